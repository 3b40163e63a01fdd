package cindersim

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

// loggedIn sends to the project of a user of the default identity.
func loggedIn(t testing.TB, s *Simulator, user string) *sender {
	t.Helper()
	token := issue(t, s, http.StatusCreated, passwordBody(user, user+"-pass", user))
	return sendTo(t, s.CinderURL()+"/"+s.ProjectID(user), token.header.Get("X-Subject-Token"))
}

func passwordBody(user, password, project string) string {
	return fmt.Sprintf(`{"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": %q, "domain": {"id": "default"}, `+
		`"password": %q}}}, "scope": {"project": {"name": %q, "domain": {"name": "Default"}}}}}`, user, password, project)
}

func issue(t testing.TB, s *Simulator, want int, body string) result {
	t.Helper()
	return sendTo(t, s.KeystoneURL(), "").do(want, "POST", "/auth/tokens", body)
}

func TestApplicationCredentials(t *testing.T) {
	identity := keystone.DefaultIdentity()
	identity.ApplicationCredentials = []keystone.ApplicationCredential{{Name: "robot", Secret: "s3cret", User: "team-a", Project: "team-a"}}
	s := started(t, Options{Identity: identity})
	id := s.ApplicationCredentials()[0].ID
	body := func(reference, secret string) string {
		return `{"auth": {"identity": {"methods": ["application_credential"], "application_credential": {` + reference + `, "secret": "` + secret + `"}}}}`
	}
	byID, byName := `"id": "`+id+`"`, `"name": "robot", "user": {"name": "team-a", "domain": {"name": "Default"}}`
	for _, reference := range []string{byID, byName} {
		token := issue(t, s, http.StatusCreated, body(reference, "s3cret")).body["token"].(map[string]any)
		if token["project"].(map[string]any)["name"] != "team-a" || token["catalog"] == nil || token["application_credential"].(map[string]any)["id"] != id {
			t.Errorf("the token is %v", token)
		}
	}
	issue(t, s, http.StatusUnauthorized, body(byID, "wrong"))
	issue(t, s, http.StatusUnauthorized, body(`"name": "robot", "user": {"name": "team-b", "domain": {"name": "Default"}}`, "s3cret"))
	if got := issue(t, s, http.StatusNotFound, body(`"id": "nope"`, "s3cret")); got.body["error"].(map[string]any)["message"] != "Could not find Application Credential: nope." {
		t.Errorf("an unknown credential gives %v", got.body)
	}
	scoped := strings.Replace(body(byID, "s3cret"), `}}}}`, `}}, "scope": {"project": {"id": "x"}}}}`, 1)
	issue(t, s, http.StatusUnauthorized, scoped)

	if err := s.SetApplicationCredentialSecret("robot", "rotated"); err != nil {
		t.Fatal(err)
	}
	issue(t, s, http.StatusUnauthorized, body(byID, "s3cret"))
	issue(t, s, http.StatusCreated, body(byID, "rotated"))
	if err := s.SetApplicationCredentialSecret("nobody", "x"); err == nil {
		t.Error("an unknown credential's secret can be set")
	}
}

func TestTrusts(t *testing.T) {
	identity := keystone.DefaultIdentity()
	identity.Trusts = []keystone.Trust{{Trustor: "team-a", Trustee: "admin", Project: "team-a"}}
	s := started(t, Options{Identity: identity})
	trust := s.Trusts()[0].ID
	body := func(user, id string) string {
		return fmt.Sprintf(`{"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": %q, "domain": {"id": "default"}, `+
			`"password": "%s-pass"}}}, "scope": {"OS-TRUST:trust": {"id": %q}}}}`, user, user, id)
	}
	got := issue(t, s, http.StatusCreated, body("admin", trust))
	token := got.body["token"].(map[string]any)
	if token["user"].(map[string]any)["name"] != "team-a" || token["project"].(map[string]any)["id"] != s.ProjectID("team-a") ||
		token["OS-TRUST:trust"].(map[string]any)["id"] != trust {
		t.Errorf("the token is %v", token)
	}
	c := sendTo(t, s.CinderURL()+"/"+s.ProjectID("team-a"), got.header.Get("X-Subject-Token"))
	id := c.create("entrusted")
	if v, _ := s.Volume(id); v.Project != s.ProjectID("team-a") {
		t.Errorf("the volume belongs to %s", v.Project)
	}
	c.act(http.StatusForbidden, id, "os-reset_status", `{"status": "error"}`)
	issue(t, s, http.StatusForbidden, body("team-b", trust))
	issue(t, s, http.StatusUnauthorized, body("admin", "nope"))
}

func TestTokensExpireAndAreRevoked(t *testing.T) {
	clock := newClock()
	identity := keystone.DefaultIdentity()
	identity.TokenLifetime = 10 * time.Minute
	s := started(t, clock.options(Options{Identity: identity}))
	c := loggedIn(t, s, "team-a")
	c.do(http.StatusOK, "GET", "/volumes", "")
	clock.advance(10*time.Minute - time.Second)
	c.do(http.StatusOK, "GET", "/volumes", "")
	clock.advance(time.Second)
	c.do(http.StatusUnauthorized, "GET", "/volumes", "")

	c = loggedIn(t, s, "team-a")
	c.do(http.StatusOK, "GET", "/volumes", "")
	s.ExpireTokens()
	c.do(http.StatusUnauthorized, "GET", "/volumes", "")

	// A revoked token works for as long as Cinder caches its validation.
	used, unused := loggedIn(t, s, "team-a"), loggedIn(t, s, "team-a")
	used.do(http.StatusOK, "GET", "/volumes", "")
	if err := s.SetPassword("team-a", "rotated"); err != nil {
		t.Fatal(err)
	}
	used.do(http.StatusOK, "GET", "/volumes", "")
	unused.do(http.StatusUnauthorized, "GET", "/volumes", "")
	clock.advance(5 * time.Minute)
	used.do(http.StatusUnauthorized, "GET", "/volumes", "")
	issue(t, s, http.StatusUnauthorized, passwordBody("team-a", "team-a-pass", "team-a"))
	issue(t, s, http.StatusCreated, passwordBody("team-a", "rotated", "team-a"))
	if err := s.SetPassword("nobody", "x"); err == nil {
		t.Error("an unknown user's password can be set")
	}
}

func TestWithoutValidationCacheARevokedTokenEndsAtOnce(t *testing.T) {
	identity := keystone.DefaultIdentity()
	identity.ValidationCache = -1
	s := started(t, Options{Identity: identity})
	c := loggedIn(t, s, "team-a")
	c.do(http.StatusOK, "GET", "/volumes", "")
	sendTo(t, s.KeystoneURL(), c.token).do(http.StatusNoContent, "DELETE", "/auth/tokens", "", "X-Subject-Token", c.token)
	c.do(http.StatusUnauthorized, "GET", "/volumes", "")
}

func TestTheCatalogIsConfigurable(t *testing.T) {
	identity := keystone.DefaultIdentity()
	identity.Regions = []string{"north", "south"}
	identity.Interfaces = []string{"internal"}
	identity.ServiceTypes = []string{"block-storage"}
	identity.EndpointURL = func(region, networkInterface, projectID, url string) string {
		return "https://" + region + "." + networkInterface + ".example.org/v3/" + projectID
	}
	s := started(t, Options{Identity: identity})
	token := issue(t, s, http.StatusCreated, passwordBody("team-a", "team-a-pass", "team-a")).body["token"].(map[string]any)
	var got []string
	for _, service := range token["catalog"].([]any) {
		service := service.(map[string]any)
		for _, endpoint := range service["endpoints"].([]any) {
			endpoint := endpoint.(map[string]any)
			got = append(got, fmt.Sprint(service["type"], " ", endpoint["region"], " ", endpoint["interface"], " ", endpoint["url"]))
		}
	}
	project := s.ProjectID("team-a")
	want := []string{
		"identity north internal " + s.KeystoneURL(), "identity south internal " + s.KeystoneURL(),
		"block-storage north internal https://north.internal.example.org/v3/" + project,
		"block-storage south internal https://south.internal.example.org/v3/" + project,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the catalog has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestUsersOfOtherDomains(t *testing.T) {
	s := started(t, Options{Identity: keystone.Identity{
		Projects: []keystone.Project{{Name: "p", Domain: "customers"}, {Name: "p"}},
		Users:    []keystone.User{{Name: "u", Password: "x", Domain: "customers", Projects: []string{"p"}}},
	}})
	body := strings.NewReplacer(`{"id": "default"}`, `{"name": "customers"}`, `"name": "Default"`, `"name": "customers"`).
		Replace(passwordBody("u", "x", "p"))
	token := issue(t, s, http.StatusCreated, body).body["token"].(map[string]any)
	if token["project"].(map[string]any)["domain"].(map[string]any)["name"] != "customers" {
		t.Errorf("the token is %v", token)
	}
	issue(t, s, http.StatusUnauthorized, passwordBody("u", "x", "p"))
	// The project of the same name in another domain is a different project.
	issue(t, s, http.StatusUnauthorized, strings.Replace(body, `"project": {"name": "p", "domain": {"name": "customers"}}`,
		`"project": {"name": "p", "domain": {"name": "Default"}}`, 1))
}

func TestCloudsYAMLNamesEveryLogin(t *testing.T) {
	s, err := New(Options{Identity: keystone.Identity{
		Projects: []keystone.Project{{Name: "lab"}, {Name: "eve"}},
		Users:    []keystone.User{{Name: "eve", Password: "p\"w", Projects: []string{"eve", "lab"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.SetURLs("http://n/v3", "http://c/v3", "http://k/v3")
	want := `clouds:
  "eve":
    auth:
      auth_url: "http://k/v3"
      username: "eve"
      password: "p\"w"
      project_name: "eve"
      user_domain_name: "Default"
      project_domain_name: "Default"
    region_name: "RegionOne"
  "eve-lab":
    auth:
      auth_url: "http://k/v3"
      username: "eve"
      password: "p\"w"
      project_name: "lab"
      user_domain_name: "Default"
      project_domain_name: "Default"
    region_name: "RegionOne"
`
	if got := s.CloudsYAML(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
