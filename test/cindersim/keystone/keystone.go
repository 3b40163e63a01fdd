// Package keystone simulates Keystone v3: users log in, and tokens are issued,
// validated and revoked. Its service is the identity of the simulated Cinder.
package keystone

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// IDs makes the IDs of projects, users, services and tokens.
type IDs interface {
	// Hex is an ID as Keystone makes them, Bytes are n random bytes.
	Hex() string
	Bytes(n int) []byte
}

// Options configures a Service. All are required.
type Options struct {
	Identity Identity
	Now      func() time.Time
	IDs      IDs
}

// Service is Keystone's database and token table.
type Service struct {
	options Identity
	now     func() time.Time
	ids     IDs
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

// New makes a service. It returns an error if the options contradict each
// other.
func New(options Options) (*Service, error) {
	given, ids := options.Identity.withDefaults(), options.IDs
	k := &Service{
		options: given, now: options.Now, ids: ids,
		endpointIDs: make(map[string]string), tokens: make(map[string]*token),
		domains: []domain{{"default", "Default"}},
		roleIDs: map[string]string{"reader": ids.Hex(), "member": ids.Hex(), "admin": ids.Hex()},
	}
	// IDs are set in copies, not in the caller's slices.
	k.options.ApplicationCredentials = slices.Clone(k.options.ApplicationCredentials)
	k.options.Trusts = slices.Clone(k.options.Trusts)
	for _, p := range given.Projects {
		if p.Name == "" {
			return nil, fmt.Errorf("option Identity.Projects: a project has no name")
		}
		if p.ID == "" {
			p.ID = ids.Hex()
		}
		p.Domain = k.domain(p.Domain).name
		k.projects = append(k.projects, &p)
	}
	for _, u := range given.Users {
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

// SetURLs sets the addresses, each ending in /v3, that answers and the catalog
// name. It must be called before the first request.
func (k *Service) SetURLs(keystone, cinder string) {
	k.keystoneURL, k.cinderURL = keystone, cinder
}

// ProjectID returns the ID of a project, found by ID or, in the domain Default,
// by name; "" if there is none.
func (k *Service) ProjectID(nameOrID string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.project(nameOrID, "Default"); p != nil {
		return p.ID
	}
	return ""
}

// Projects lists the projects, with the IDs that were made for them.
func (k *Service) Projects() []Project {
	k.mu.Lock()
	defer k.mu.Unlock()
	projects := make([]Project, 0, len(k.projects))
	for _, p := range k.projects {
		projects = append(projects, *p)
	}
	return projects
}

// ApplicationCredentials lists the application credentials, with the IDs that
// were made for them.
func (k *Service) ApplicationCredentials() []ApplicationCredential {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.options.ApplicationCredentials)
}

// Trusts lists the trusts, with the IDs that were made for them.
func (k *Service) Trusts() []Trust {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.options.Trusts)
}

// CloudsYAML returns a clouds.yaml with an entry for every user in each of its
// projects, named user-project, or by the user alone where the names are equal.
func (k *Service) CloudsYAML() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out strings.Builder
	out.WriteString("clouds:\n")
	for _, u := range k.users {
		for _, name := range u.Projects {
			p := k.project(name, u.Domain)
			entry := u.Name
			if p.Name != u.Name {
				entry += "-" + p.Name
			}
			fmt.Fprintf(&out, "  %q:\n    auth:\n      auth_url: %q\n      username: %q\n      password: %q\n"+
				"      project_name: %q\n      user_domain_name: %q\n      project_domain_name: %q\n    region_name: %q\n",
				entry, k.keystoneURL, u.Name, u.Password, p.Name, u.Domain, p.Domain, k.options.Regions[0])
		}
	}
	return out.String()
}

// domain finds a domain by name, or adds it; the empty name is Default.
func (k *Service) domain(name string) domain {
	name = cmp.Or(name, "Default")
	for _, d := range k.domains {
		if d.name == name {
			return d
		}
	}
	k.domains = append(k.domains, domain{k.ids.Hex(), name})
	return k.domains[len(k.domains)-1]
}

// project finds a project by id, or by name within a domain.
func (k *Service) project(nameOrID, domain string) *Project {
	for _, p := range k.projects {
		if p.ID == nameOrID || p.Name == nameOrID && p.Domain == domain {
			return p
		}
	}
	return nil
}

func (k *Service) user(nameOrID, domain string) *User {
	for _, u := range k.users {
		if u.ID == nameOrID || u.Name == nameOrID && u.Domain == domain {
			return u
		}
	}
	return nil
}

// member reports whether a user has roles in a project.
func (k *Service) member(u *User, p *Project) bool {
	return slices.ContainsFunc(u.Projects, func(name string) bool { return k.project(name, u.Domain) == p })
}

// issue makes a token; a nil project leaves it unscoped.
func (k *Service) issue(methods []string, u *User, p *Project) *token {
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

// live returns the token of that id, unless it is unknown, expired or revoked.
func (k *Service) live(id string) *token {
	t := k.tokens[id]
	if t == nil || t.revoked || !k.now().Before(t.expires) {
		return nil
	}
	return t
}

// ProjectOf returns the project of a token, valid or not.
func (k *Service) ProjectOf(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.tokens[id]; t != nil && t.project != nil {
		return t.project.ID
	}
	return ""
}

// Validate does what keystonemiddleware does for Cinder: it validates a token
// at Keystone and caches the answer for a while.
func (k *Service) Validate(id string) (user, project string, admin, ok bool) {
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

// ExpireTokens ends every token now, also for Cinder.
func (k *Service) ExpireTokens() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	for _, t := range k.tokens {
		if now.Before(t.expires) {
			t.expires = now
		}
	}
}

// SetPassword changes a password, which revokes the user's tokens.
func (k *Service) SetPassword(name, password string) error {
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

// SetApplicationCredentialSecret changes an application credential's secret.
func (k *Service) SetApplicationCredentialSecret(nameOrID, secret string) error {
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

func (k *Service) credential(nameOrID string) *ApplicationCredential {
	for i := range k.options.ApplicationCredentials {
		if a := &k.options.ApplicationCredentials[i]; a.ID == nameOrID || a.Name == nameOrID {
			return a
		}
	}
	return nil
}

// endpointID returns a stable id of a service or endpoint of the catalog.
func (k *Service) endpointID(name string) string {
	if k.endpointIDs[name] == "" {
		k.endpointIDs[name] = k.ids.Hex()
	}
	return k.endpointIDs[name]
}

// catalog lists the services as a project sees them.
func (k *Service) catalog(p *Project) []map[string]any {
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
	if k.options.KeyManager {
		services = append(services, service("barbican", "key-manager", func(string, string) string {
			return strings.TrimSuffix(k.cinderURL, "/v3") + "/key-manager"
		}))
	}
	return services
}

func (k *Service) domainOf(name string) map[string]string {
	d := k.domain(name)
	return map[string]string{"id": d.id, "name": d.name}
}

// view returns the body that describes a token.
func (k *Service) view(t *token, withCatalog bool) map[string]any {
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
