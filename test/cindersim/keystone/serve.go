package keystone

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Answer is an answer before it is written. Its body is encoded as JSON; nil
// means that there is none.
type Answer struct {
	Status int
	Header http.Header
	Body   map[string]any
}

// refuse returns an error answer.
func refuse(status int, message string, args ...any) *Answer {
	return &Answer{Status: status, Body: map[string]any{"error": map[string]any{
		"code": status, "message": fmt.Sprintf(message, args...), "title": http.StatusText(status),
	}}}
}

// Operation names what a request does.
func Operation(method, path string) string {
	switch path {
	case "/", "":
		return "version.list"
	case "/v3", "/v3/":
		return "version.get"
	case "/v3/auth/tokens":
		switch method {
		case http.MethodPost:
			return "auth.tokens.create"
		case http.MethodGet, http.MethodHead:
			return "auth.tokens.get"
		case http.MethodDelete:
			return "auth.tokens.delete"
		}
	}
	return "unknown"
}

// Serve answers a request. The base is the scheme and host that the client used.
func (k *Service) Serve(r *http.Request, body []byte, base string) *Answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	version := map[string]any{
		"id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z",
		"links":       []map[string]string{{"rel": "self", "href": base + "/v3/"}},
		"media-types": []map[string]string{{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}},
	}
	switch Operation(r.Method, r.URL.Path) {
	case "version.list":
		return &Answer{
			Status: http.StatusMultipleChoices, Header: http.Header{"Location": {base + "/v3/"}},
			Body: map[string]any{"versions": map[string]any{"values": []any{version}}},
		}
	case "version.get":
		return &Answer{Status: http.StatusOK, Body: map[string]any{"version": version}}
	case "auth.tokens.create":
		return k.createToken(r, body)
	case "auth.tokens.get":
		return k.showToken(r)
	case "auth.tokens.delete":
		return k.deleteToken(r)
	}
	return refuse(http.StatusNotFound, "The resource could not be found.")
}

// Unauthorized returns the answer to a request without a valid token, also of
// other services.
func (k *Service) Unauthorized() *Answer {
	answer := refuse(http.StatusUnauthorized, "The request you have made requires authentication.")
	answer.Header = http.Header{"Www-Authenticate": {`Keystone uri="` + k.keystoneURL + `"`}}
	return answer
}

// domainReference names a domain, and thingReference a project or user, by id
// or by name and domain.
type domainReference struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type thingReference struct {
	ID       string           `json:"id"`
	Name     string           `json:"name"`
	Password string           `json:"password"`
	Domain   *domainReference `json:"domain"`
}

type authRequest struct {
	Identity *struct {
		Methods  []string `json:"methods"`
		Password *struct {
			User *thingReference `json:"user"`
		} `json:"password"`
		Token *struct {
			ID string `json:"id"`
		} `json:"token"`
		Credential *struct {
			ID     string          `json:"id"`
			Name   string          `json:"name"`
			Secret string          `json:"secret"`
			User   *thingReference `json:"user"`
		} `json:"application_credential"`
	} `json:"identity"`
	Scope json.RawMessage `json:"scope"`
}

type authScope struct {
	Project *thingReference  `json:"project"`
	Domain  *domainReference `json:"domain"`
	Trust   *struct {
		ID string `json:"id"`
	} `json:"OS-TRUST:trust"`
	Unscoped json.RawMessage `json:"unscoped"`
}

const messageExpecting = "Expecting to find %s in %s. The server could not comply with the request since it is either " +
	"malformed or otherwise incorrect. The client is assumed to be in error."

// createToken authenticates a user by one or more methods and issues a token
// for the requested scope.
func (k *Service) createToken(r *http.Request, body []byte) *Answer {
	var request struct {
		Auth *authRequest `json:"auth"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return refuse(http.StatusBadRequest, "Expecting to find valid JSON in request body. The server could not comply "+
			"with the request since it is either malformed or otherwise incorrect. The client is assumed to be in error.")
	}
	auth := request.Auth
	if auth == nil {
		return refuse(http.StatusBadRequest, messageExpecting, "auth", "request body")
	}
	if auth.Identity == nil {
		return refuse(http.StatusBadRequest, "'identity' is a required property")
	}
	for _, method := range auth.Identity.Methods {
		given := method == "password" && auth.Identity.Password != nil || method == "token" && auth.Identity.Token != nil ||
			method == "application_credential" && auth.Identity.Credential != nil
		if slices.Contains([]string{"password", "token", "application_credential"}, method) && !given {
			return refuse(http.StatusBadRequest, messageExpecting, method, "identity")
		}
		if !given {
			return k.Unauthorized()
		}
	}
	var user *User
	var credential *ApplicationCredential
	for _, method := range auth.Identity.Methods {
		var refused *Answer
		switch method {
		case "password":
			user, refused = k.byPassword(auth.Identity.Password.User)
		case "token":
			if t := k.live(auth.Identity.Token.ID); t != nil {
				user = t.user
			} else {
				refused = refuse(http.StatusNotFound, "Failed to validate token")
			}
		case "application_credential":
			user, credential, refused = k.byCredential(auth)
		}
		if refused != nil {
			return refused
		}
	}
	if user == nil {
		return k.Unauthorized()
	}
	t, refused := k.scope(auth, user, credential)
	if refused != nil {
		return refused
	}
	_, noCatalog := r.URL.Query()["nocatalog"]
	return &Answer{
		Status: http.StatusCreated, Header: http.Header{"X-Subject-Token": {t.id}}, Body: k.view(t, !noCatalog),
	}
}

func (k *Service) byPassword(reference *thingReference) (*User, *Answer) {
	if reference == nil {
		return nil, refuse(http.StatusBadRequest, messageExpecting, "user", "password")
	}
	user, refused := k.lookUpUser(reference)
	if refused != nil {
		return nil, refused
	}
	if user == nil || user.Password != reference.Password {
		return nil, k.Unauthorized()
	}
	return user, nil
}

func (k *Service) lookUpUser(reference *thingReference) (*User, *Answer) {
	if reference.ID != "" {
		for _, u := range k.users {
			if u.ID == reference.ID {
				return u, nil
			}
		}
		return nil, nil
	}
	if reference.Name == "" {
		return nil, refuse(http.StatusBadRequest, "Invalid input for field identity/password/user: id or name must be present.")
	}
	if reference.Domain == nil {
		return nil, refuse(http.StatusBadRequest, messageExpecting, "domain", "user")
	}
	d, ok := k.lookUpDomain(reference.Domain)
	if !ok {
		return nil, nil
	}
	for _, u := range k.users {
		if u.Name == reference.Name && u.Domain == d.name {
			return u, nil
		}
	}
	return nil, nil
}

func (k *Service) lookUpDomain(reference *domainReference) (domain, bool) {
	for _, d := range k.domains {
		if reference.Name != "" && d.name == reference.Name || reference.Name == "" && d.id == reference.ID {
			return d, true
		}
	}
	return domain{}, false
}

// byCredential authenticates with an application credential. An unknown one is,
// unlike a wrong secret, a 404.
func (k *Service) byCredential(auth *authRequest) (*User, *ApplicationCredential, *Answer) {
	given := auth.Identity.Credential
	if len(auth.Scope) > 0 {
		return nil, nil, refuse(http.StatusUnauthorized,
			"Error authenticating with application credential: Application credentials cannot request a scope.")
	}
	var credential *ApplicationCredential
	switch {
	case given.ID != "":
		for i := range k.options.ApplicationCredentials {
			if k.options.ApplicationCredentials[i].ID == given.ID {
				credential = &k.options.ApplicationCredentials[i]
			}
		}
		if credential == nil {
			return nil, nil, refuse(http.StatusNotFound, "Could not find Application Credential: %s.", given.ID)
		}
	case given.Name == "":
		return nil, nil, refuse(http.StatusBadRequest, messageExpecting, "name or ID", "application credential")
	case given.User == nil:
		return nil, nil, refuse(http.StatusBadRequest, messageExpecting, "user", "application credential")
	default:
		owner, refused := k.lookUpUser(given.User)
		if refused != nil {
			return nil, nil, refused
		}
		for i := range k.options.ApplicationCredentials {
			if a := &k.options.ApplicationCredentials[i]; owner != nil && a.Name == given.Name && k.user(a.User, "Default") == owner {
				credential = a
			}
		}
	}
	if credential == nil || credential.Secret != given.Secret {
		return nil, nil, k.Unauthorized()
	}
	return k.user(credential.User, "Default"), credential, nil
}

// scope issues a token for the requested scope; without a scope the token is
// valid for no service.
func (k *Service) scope(auth *authRequest, user *User, credential *ApplicationCredential) (*token, *Answer) {
	methods := auth.Identity.Methods
	if credential != nil {
		t := k.issue(methods, user, k.project(credential.Project, "Default"))
		t.credential = credential
		return t, nil
	}
	scope := strings.TrimSpace(string(auth.Scope))
	if scope == "" || scope == `"unscoped"` || scope == "null" {
		return k.issue(methods, user, nil), nil
	}
	var asked authScope
	if err := json.Unmarshal(auth.Scope, &asked); err != nil {
		return nil, refuse(http.StatusBadRequest, messageExpecting, "scope", "auth")
	}
	switch {
	case asked.Project != nil:
		p, refused := k.lookUpProject(asked.Project)
		if refused != nil {
			return nil, refused
		}
		if p == nil || !k.member(user, p) {
			return nil, k.Unauthorized()
		}
		return k.issue(methods, user, p), nil
	case asked.Trust != nil:
		return k.trusted(methods, user, asked.Trust.ID)
	case asked.Unscoped != nil:
		return k.issue(methods, user, nil), nil
	case asked.Domain != nil:
		// No user of the simulator has a role in a domain.
		return nil, k.Unauthorized()
	}
	return nil, refuse(http.StatusBadRequest, messageExpecting, "system, project, domain, OS-TRUST:trust or unscoped", "scope")
}

func (k *Service) lookUpProject(reference *thingReference) (*Project, *Answer) {
	if reference.Name == "" {
		if reference.ID == "" {
			return nil, refuse(http.StatusBadRequest, "Invalid input for field scope/project: id or name must be present.")
		}
		for _, p := range k.projects {
			if p.ID == reference.ID {
				return p, nil
			}
		}
		return nil, nil
	}
	if reference.Domain == nil {
		return nil, refuse(http.StatusBadRequest, messageExpecting, "domain", "project")
	}
	d, ok := k.lookUpDomain(reference.Domain)
	if !ok {
		return nil, nil
	}
	for _, p := range k.projects {
		if p.Name == reference.Name && p.Domain == d.name {
			return p, nil
		}
	}
	return nil, nil
}

// trusted issues a token with which the trustee acts as the trustor.
func (k *Service) trusted(methods []string, user *User, id string) (*token, *Answer) {
	for i := range k.options.Trusts {
		trust := &k.options.Trusts[i]
		if trust.ID != id {
			continue
		}
		if k.user(trust.Trustee, "Default") != user {
			return nil, refuse(http.StatusForbidden, "You are not authorized to perform the requested action.")
		}
		trustor := k.user(trust.Trustor, "Default")
		t := k.issue(methods, trustor, k.project(trust.Project, "Default"))
		t.trust, t.trustor, t.trustee = trust, trustor, user
		return t, nil
	}
	return nil, k.Unauthorized()
}

// showToken validates the subject token for the bearer of a token.
func (k *Service) showToken(r *http.Request) *Answer {
	if k.live(r.Header.Get("X-Auth-Token")) == nil {
		return k.Unauthorized()
	}
	subject := k.live(r.Header.Get("X-Subject-Token"))
	if subject == nil {
		return refuse(http.StatusNotFound, "Failed to validate token")
	}
	_, noCatalog := r.URL.Query()["nocatalog"]
	return &Answer{
		Status: http.StatusOK, Header: http.Header{"X-Subject-Token": {subject.id}}, Body: k.view(subject, !noCatalog),
	}
}

// deleteToken revokes the subject token.
func (k *Service) deleteToken(r *http.Request) *Answer {
	if k.live(r.Header.Get("X-Auth-Token")) == nil {
		return k.Unauthorized()
	}
	subject := k.live(r.Header.Get("X-Subject-Token"))
	if subject == nil {
		return refuse(http.StatusNotFound, "Failed to validate token")
	}
	subject.revoked = true
	return &Answer{Status: http.StatusNoContent}
}
