package cindersim

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/random"
)

const messageUnauthorized = "The request you have made requires authentication."

// identity is Keystone's database and token table.
type identity struct {
	options Identity
	now     func() time.Time
	ids     *random.Source
	// Set when the endpoints are known, before the first request.
	keystoneURL, cinderURL string
	endpointIDs            map[string]string

	mu       sync.Mutex
	domains  []domain
	projects []*Project
	users    []*User
	tokens   map[string]*token
	roleIDs  map[string]string
}

type domain struct{ id, name string }

type token struct {
	id               string
	user             *User
	project          *Project
	admin            bool
	methods          []string
	issued, expires  time.Time
	revoked          bool
	cachedUntil      time.Time // Cinder accepts it until then, revoked or not
	trust            *Trust
	credential       *ApplicationCredential
	auditID          string
	trustor, trustee *User
}

func newIdentity(options Options, ids *random.Source) (*identity, error) {
	k := &identity{
		options: options.Identity, now: options.Now, ids: ids,
		endpointIDs: make(map[string]string), tokens: make(map[string]*token),
		domains: []domain{{"default", "Default"}},
		roleIDs: map[string]string{"reader": ids.Hex(), "member": ids.Hex(), "admin": ids.Hex()},
	}
	// IDs are set in copies, not in the caller's slices.
	k.options.ApplicationCredentials = slices.Clone(k.options.ApplicationCredentials)
	k.options.Trusts = slices.Clone(k.options.Trusts)
	for _, given := range options.Identity.Projects {
		p := given
		if p.Name == "" {
			return nil, fmt.Errorf("option Identity.Projects: a project has no name")
		}
		if p.ID == "" {
			p.ID = ids.Hex()
		}
		p.Domain = k.domain(p.Domain).name
		k.projects = append(k.projects, &p)
	}
	for _, given := range options.Identity.Users {
		u := given
		if u.Name == "" {
			return nil, fmt.Errorf("option Identity.Users: a user has no name")
		}
		if u.ID == "" {
			u.ID = ids.Hex()
		}
		u.Domain = k.domain(u.Domain).name
		for _, name := range u.Projects {
			if k.project(name, u.Domain) == nil {
				return nil, fmt.Errorf("option Identity.Users: user %q is in the unknown project %q", u.Name, name)
			}
		}
		k.users = append(k.users, &u)
	}
	for i := range k.options.ApplicationCredentials {
		a := &k.options.ApplicationCredentials[i]
		if a.ID == "" {
			a.ID = ids.Hex()
		}
		if k.user(a.User, "Default") == nil || k.project(a.Project, "Default") == nil {
			return nil, fmt.Errorf("option Identity.ApplicationCredentials: %q names an unknown user or project", a.Name)
		}
	}
	for i := range k.options.Trusts {
		t := &k.options.Trusts[i]
		if t.ID == "" {
			t.ID = ids.Hex()
		}
		if k.user(t.Trustor, "Default") == nil || k.user(t.Trustee, "Default") == nil || k.project(t.Project, "Default") == nil {
			return nil, fmt.Errorf("option Identity.Trusts: trust %s names an unknown user or project", t.ID)
		}
	}
	return k, nil
}

// domain finds a domain by name, or adds it; the empty name is Default.
func (k *identity) domain(name string) domain {
	if name == "" {
		name = "Default"
	}
	for _, d := range k.domains {
		if d.name == name {
			return d
		}
	}
	k.domains = append(k.domains, domain{k.ids.Hex(), name})
	return k.domains[len(k.domains)-1]
}

// project finds a project by id, or by name within a domain.
func (k *identity) project(nameOrID, domain string) *Project {
	for _, p := range k.projects {
		if p.ID == nameOrID || p.Name == nameOrID && p.Domain == domain {
			return p
		}
	}
	return nil
}

func (k *identity) user(nameOrID, domain string) *User {
	for _, u := range k.users {
		if u.ID == nameOrID || u.Name == nameOrID && u.Domain == domain {
			return u
		}
	}
	return nil
}

// member reports whether a user has roles in a project.
func (k *identity) member(u *User, p *Project) bool {
	return slices.ContainsFunc(u.Projects, func(name string) bool { return k.project(name, u.Domain) == p })
}

// issue makes a token; a nil project leaves it unscoped.
func (k *identity) issue(methods []string, u *User, p *Project) *token {
	now := k.now().UTC()
	t := &token{
		id:   "gAAAAAB" + base64.RawURLEncoding.EncodeToString(k.ids.Bytes(126)),
		user: u, project: p, methods: methods, issued: now, expires: now.Add(k.options.TokenLifetime),
		auditID: base64.RawURLEncoding.EncodeToString(k.ids.Bytes(16)),
	}
	t.admin = p != nil && u.Admin
	k.tokens[t.id] = t
	return t
}

// live is the token of that id, unless it is unknown, expired or revoked.
func (k *identity) live(id string) *token {
	t := k.tokens[id]
	if t == nil || t.revoked || !k.now().Before(t.expires) {
		return nil
	}
	return t
}

// projectOf is the project of a token, valid or not.
func (k *identity) projectOf(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.tokens[id]; t != nil && t.project != nil {
		return t.project.ID
	}
	return ""
}

// validate does what keystonemiddleware does for Cinder: it validates a token
// at Keystone and caches the answer for a while.
func (k *identity) validate(id string) (user, project string, admin, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	t := k.tokens[id]
	if t == nil || !now.Before(t.expires) || t.revoked && !now.Before(t.cachedUntil) {
		return "", "", false, false
	}
	if !t.revoked && !now.Before(t.cachedUntil) && k.options.ValidationCache > 0 {
		t.cachedUntil = now.Add(k.options.ValidationCache)
	}
	if t.project == nil {
		return t.user.ID, "", false, true
	}
	return t.user.ID, t.project.ID, t.admin, true
}

// expireAll ends every token now, also for Cinder.
func (k *identity) expireAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	for _, t := range k.tokens {
		if now.Before(t.expires) {
			t.expires = now
		}
	}
}

// setPassword changes a password, which revokes the user's tokens.
func (k *identity) setPassword(name, password string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.user(name, "Default")
	if u == nil {
		return fmt.Errorf("no user has the id or, in the domain Default, the name %q", name)
	}
	u.Password = password
	for _, t := range k.tokens {
		if t.user == u {
			t.revoked = true
		}
	}
	return nil
}

// setSecret changes an application credential's secret.
func (k *identity) setSecret(nameOrID, secret string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.credential(nameOrID)
	if a == nil {
		return fmt.Errorf("no application credential has the id or name %q", nameOrID)
	}
	a.Secret = secret
	for _, t := range k.tokens {
		if t.credential == a {
			t.revoked = true
		}
	}
	return nil
}

func (k *identity) credential(nameOrID string) *ApplicationCredential {
	for i := range k.options.ApplicationCredentials {
		if a := &k.options.ApplicationCredentials[i]; a.ID == nameOrID || a.Name == nameOrID {
			return a
		}
	}
	return nil
}

// endpointID is a stable id of a service or endpoint of the catalog.
func (k *identity) endpointID(name string) string {
	if k.endpointIDs[name] == "" {
		k.endpointIDs[name] = k.ids.Hex()
	}
	return k.endpointIDs[name]
}

// catalog lists the services as a project sees them.
func (k *identity) catalog(p *Project) []map[string]any {
	service := func(name, kind string, url func(region, networkInterface string) string) map[string]any {
		endpoints := []map[string]string{}
		for _, region := range k.options.Regions {
			for _, networkInterface := range k.options.Interfaces {
				endpoints = append(endpoints, map[string]string{
					"id":        k.endpointID(kind + "/" + region + "/" + networkInterface),
					"interface": networkInterface, "region": region, "region_id": region,
					"url": url(region, networkInterface),
				})
			}
		}
		return map[string]any{"id": k.endpointID(kind), "type": kind, "name": name, "endpoints": endpoints}
	}
	services := []map[string]any{service("keystone", "identity", func(string, string) string { return k.keystoneURL })}
	for _, kind := range k.options.ServiceTypes {
		name := "cinder"
		if kind == "volumev3" {
			name = "cinderv3"
		}
		services = append(services, service(name, kind, func(region, networkInterface string) string {
			url := k.cinderURL + "/" + p.ID
			if k.options.EndpointURL != nil {
				url = k.options.EndpointURL(region, networkInterface, p.ID, url)
			}
			return url
		}))
	}
	return services
}

func (k *identity) domainOf(name string) map[string]string {
	d := k.domain(name)
	return map[string]string{"id": d.id, "name": d.name}
}

// view is the body that describes a token.
func (k *identity) view(t *token, withCatalog bool) map[string]any {
	const layout = "2006-01-02T15:04:05.000000Z"
	view := map[string]any{
		"methods": t.methods,
		"user": map[string]any{
			"domain": k.domainOf(t.user.Domain), "id": t.user.ID, "name": t.user.Name, "password_expires_at": nil,
		},
		"audit_ids":  []string{t.auditID},
		"expires_at": t.expires.UTC().Truncate(time.Second).Format(layout),
		"issued_at":  t.issued.UTC().Truncate(time.Second).Format(layout),
	}
	if t.project != nil {
		view["project"] = map[string]any{"domain": k.domainOf(t.project.Domain), "id": t.project.ID, "name": t.project.Name}
		roles := []map[string]string{}
		for _, role := range []string{"reader", "member", "admin"} {
			if role != "admin" || t.admin {
				roles = append(roles, map[string]string{"id": k.roleIDs[role], "name": role})
			}
		}
		view["roles"] = roles
		if t.trust == nil {
			view["is_domain"] = false
		}
		if withCatalog {
			view["catalog"] = k.catalog(t.project)
		}
	}
	if t.trust != nil {
		view["OS-TRUST:trust"] = map[string]any{
			"id": t.trust.ID, "impersonation": true,
			"trustor_user": map[string]string{"id": t.trustor.ID}, "trustee_user": map[string]string{"id": t.trustee.ID},
		}
	}
	if t.credential != nil {
		view["application_credential"] = map[string]any{"id": t.credential.ID, "name": t.credential.Name, "restricted": true}
	}
	return map[string]any{"token": view}
}

// identityRefusal is an error answer of Keystone.
func identityRefusal(status int, message string, args ...any) *reply {
	answer := &reply{status: status, body: encode(map[string]any{"error": map[string]any{
		"code": status, "message": fmt.Sprintf(message, args...), "title": http.StatusText(status),
	}})}
	return answer
}
