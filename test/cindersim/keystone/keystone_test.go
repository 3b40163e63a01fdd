package keystone

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/random"
)

const (
	keystoneURL = "http://k/v3"
	cinderURL   = "http://c/v3"
)

// made returns a service with an identity.
func made(t testing.TB, identity Identity) *Service {
	t.Helper()
	k, err := New(Options{Identity: identity, Now: time.Now, IDs: random.New(1)})
	if err != nil {
		t.Fatal(err)
	}
	k.SetURLs(keystoneURL, cinderURL)
	return k
}

// issue asks for a token, requires a status, and returns the answer's body.
func issue(t testing.TB, k *Service, want int, body string) map[string]any {
	t.Helper()
	answer := k.Serve(httptest.NewRequest("POST", keystoneURL+"/auth/tokens", nil), []byte(body), "http://k")
	raw, err := json.Marshal(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Status != want {
		t.Fatalf("status %d, want %d: %s", answer.Status, want, raw)
	}
	var read map[string]any
	if err := json.Unmarshal(raw, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

func passwordBody(user, password, project string) string {
	return fmt.Sprintf(`{"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": %q, "domain": {"id": "default"}, `+
		`"password": %q}}}, "scope": {"project": {"name": %q, "domain": {"name": "Default"}}}}}`, user, password, project)
}

func TestApplicationCredentials(t *testing.T) {
	identity := DefaultIdentity()
	identity.ApplicationCredentials = []ApplicationCredential{{Name: "robot", Secret: "s3cret", User: "team-a", Project: "team-a"}}
	k := made(t, identity)
	id := k.ApplicationCredentials()[0].ID
	body := func(reference, secret string) string {
		return `{"auth": {"identity": {"methods": ["application_credential"], "application_credential": {` + reference + `, "secret": "` + secret + `"}}}}`
	}
	byID, byName := `"id": "`+id+`"`, `"name": "robot", "user": {"name": "team-a", "domain": {"name": "Default"}}`
	for _, reference := range []string{byID, byName} {
		token := issue(t, k, http.StatusCreated, body(reference, "s3cret"))["token"].(map[string]any)
		if token["project"].(map[string]any)["name"] != "team-a" || token["catalog"] == nil || token["application_credential"].(map[string]any)["id"] != id {
			t.Errorf("the token is %v", token)
		}
	}
	issue(t, k, http.StatusUnauthorized, body(byID, "wrong"))
	issue(t, k, http.StatusUnauthorized, body(`"name": "robot", "user": {"name": "team-b", "domain": {"name": "Default"}}`, "s3cret"))
	if got := issue(t, k, http.StatusNotFound, body(`"id": "nope"`, "s3cret")); got["error"].(map[string]any)["message"] != "Could not find Application Credential: nope." {
		t.Errorf("an unknown credential gives %v", got)
	}
	scoped := strings.Replace(body(byID, "s3cret"), `}}}}`, `}}, "scope": {"project": {"id": "x"}}}}`, 1)
	issue(t, k, http.StatusUnauthorized, scoped)

	if err := k.SetApplicationCredentialSecret("robot", "rotated"); err != nil {
		t.Fatal(err)
	}
	issue(t, k, http.StatusUnauthorized, body(byID, "s3cret"))
	issue(t, k, http.StatusCreated, body(byID, "rotated"))
	if err := k.SetApplicationCredentialSecret("nobody", "x"); err == nil {
		t.Error("an unknown credential's secret can be set")
	}
}

func TestTheCatalogIsConfigurable(t *testing.T) {
	identity := DefaultIdentity()
	identity.Regions = []string{"north", "south"}
	identity.Interfaces = []string{"internal"}
	identity.ServiceTypes = []string{"block-storage"}
	identity.EndpointURL = func(region, networkInterface, projectID, url string) string {
		return "https://" + region + "." + networkInterface + ".example.org/v3/" + projectID
	}
	k := made(t, identity)
	token := issue(t, k, http.StatusCreated, passwordBody("team-a", "team-a-pass", "team-a"))["token"].(map[string]any)
	var got []string
	for _, service := range token["catalog"].([]any) {
		service := service.(map[string]any)
		for _, endpoint := range service["endpoints"].([]any) {
			endpoint := endpoint.(map[string]any)
			got = append(got, fmt.Sprint(service["type"], " ", endpoint["region"], " ", endpoint["interface"], " ", endpoint["url"]))
		}
	}
	project := k.ProjectID("team-a")
	want := []string{
		"identity north internal " + keystoneURL, "identity south internal " + keystoneURL,
		"block-storage north internal https://north.internal.example.org/v3/" + project,
		"block-storage south internal https://south.internal.example.org/v3/" + project,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the catalog has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestUsersOfOtherDomains(t *testing.T) {
	k := made(t, Identity{
		Projects: []Project{{Name: "p", Domain: "customers"}, {Name: "p"}},
		Users:    []User{{Name: "u", Password: "x", Domain: "customers", Projects: []string{"p"}}},
	})
	body := strings.NewReplacer(`{"id": "default"}`, `{"name": "customers"}`, `"name": "Default"`, `"name": "customers"`).
		Replace(passwordBody("u", "x", "p"))
	token := issue(t, k, http.StatusCreated, body)["token"].(map[string]any)
	if token["project"].(map[string]any)["domain"].(map[string]any)["name"] != "customers" {
		t.Errorf("the token is %v", token)
	}
	issue(t, k, http.StatusUnauthorized, passwordBody("u", "x", "p"))
	// The project of the same name in another domain is a different project.
	issue(t, k, http.StatusUnauthorized, strings.Replace(body, `"project": {"name": "p", "domain": {"name": "customers"}}`,
		`"project": {"name": "p", "domain": {"name": "Default"}}`, 1))
}

func TestCloudsYAMLNamesEveryLogin(t *testing.T) {
	k := made(t, Identity{
		Projects: []Project{{Name: "lab"}, {Name: "eve"}},
		Users:    []User{{Name: "eve", Password: "p\"w", Projects: []string{"eve", "lab"}}},
	})
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
	if got := k.CloudsYAML(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestIdentitiesThatContradictThemselves(t *testing.T) {
	for _, test := range []struct {
		name     string
		identity Identity
		want     string
	}{
		{"a nameless project", Identity{Projects: []Project{{}}}, "option Identity.Projects: a project has no name"},
		{"a nameless user", Identity{Users: []User{{}}}, "option Identity.Users: a user has no name"},
		{"a user of nowhere", Identity{Users: []User{{Name: "u", Projects: []string{"p"}}}},
			`option Identity.Users: user "u" is in the unknown project "p"`},
		{"a credential of nobody", Identity{ApplicationCredentials: []ApplicationCredential{{Name: "c", User: "x"}}},
			`option Identity.ApplicationCredentials: "c" names an unknown user or project`},
		{"a trust of nobody", Identity{Trusts: []Trust{{ID: "t"}}},
			"option Identity.Trusts: trust t names an unknown user or project"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := New(Options{Identity: test.identity, Now: time.Now, IDs: random.New(1)}); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}
