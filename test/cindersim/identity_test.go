package cindersim

import (
	"fmt"
	"net/http"
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
