package contract

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"testing"
)

func noauthCases() []testCase {
	return []testCase{
		{"noauth: without a token every request is an empty 204", onlyNoauth, func(t *testing.T, target Target) {
			name := unique(t, "never")
			c := &client{base: target.client().base, http: target.http}
			for _, request := range []struct {
				method, path string
				body         any
			}{
				{"GET", "/volumes", nil},
				{"GET", "/volumes/" + missingID, nil},
				{"POST", "/volumes", object{"volume": object{"name": name, "size": 1, "volume_type": target.Types.ISCSI}}},
				{"DELETE", "/volumes/" + missingID, nil},
				{"GET", "/bogus", nil},
			} {
				got := c.call(t, request.method, request.path, request.body).wantEmpty(t, http.StatusNoContent)
				got.wantHeader(t, "X-Auth-Token", "admin:admin")
			}
			if made := listed(t, target.client(), "/volumes?name="+name); len(made) > 0 {
				removed(t, target, target.client(), made[0]["id"].(string))
				t.Error("a create without token made a volume")
			}
		}},
		{"noauth: without a token even /v3 is an empty 204", onlyNoauth, func(t *testing.T, target Target) {
			c := &client{base: target.Endpoint, http: target.http}
			c.call(t, "GET", "", nil).wantEmpty(t, http.StatusNoContent)
			c.call(t, "GET", "/", nil).wantEmpty(t, http.StatusNoContent)
		}},
		{"noauth: without a token X-Auth-User and X-Auth-Project-Id are echoed as one", onlyNoauth, func(t *testing.T, target Target) {
			request, err := http.NewRequest("GET", target.client().base+"/volumes", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Auth-User", "someone")
			request.Header.Set("X-Auth-Project-Id", target.Project)
			send(t, target.http, request).wantEmpty(t, http.StatusNoContent).wantHeader(t, "X-Auth-Token", "someone:"+target.Project)
		}},
		{"noauth: a project that is not hexadecimal has no URL", onlyNoauth, func(t *testing.T, target Target) {
			for _, project := range []string{"admin", "demo"} {
				wantNotRouted(t, target.noauthClient(project).call(t, "GET", "/volumes", nil))
			}
		}},
		{"noauth: hexadecimal letters are enough of a project", onlyNoauth, func(t *testing.T, target Target) {
			target.noauthClient("fade").call(t, "GET", "/volumes?limit=1", nil).want(t, http.StatusOK)
		}},
		{"noauth: another project in the URL than in the token is malformed", onlyNoauth, func(t *testing.T, target Target) {
			for _, token := range []string{"admin:ffffffffffffffffffffffffffffffff", "fake"} {
				c := &client{base: target.client().base, token: token, http: target.http}
				c.call(t, "GET", "/volumes", nil).wantBadRequest(t, "Malformed request url")
			}
		}},
		{"noauth: the URL may leave the project out, whatever it is", onlyNoauth, func(t *testing.T, target Target) {
			for _, project := range []string{target.Project, "admin"} {
				c := &client{base: target.Endpoint, token: "admin:" + project, http: target.http}
				c.call(t, "GET", "/volumes?limit=1", nil).want(t, http.StatusOK)
			}
		}},
		{"noauth: a token without a colon is both user and project", onlyNoauth, func(t *testing.T, target Target) {
			c := &client{base: target.client().base, token: target.Project, http: target.http}
			c.call(t, "GET", "/volumes?limit=1", nil).want(t, http.StatusOK)
		}},
		{"noauth: everybody sees and deletes every project's volumes", onlyNoauth, func(t *testing.T, target Target) {
			name := unique(t, "foreign")
			owner := target.noauthClient(scratchProject(t))
			id := create(t, target, owner, object{"name": name})
			waitStatus(t, target, owner, id, "available")

			c := target.client()
			if found := listed(t, c, "/volumes?name="+name); len(found) != 0 {
				t.Errorf("the list of another project shows it: %v", found)
			}
			if found := listed(t, c, "/volumes?all_tenants=1&name="+name); len(found) != 1 {
				t.Errorf("the list of all projects shows %d of it", len(found))
			}
			wantStatus(t, c, id, "available")
			c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+id)
		}},
	}
}

// scratchProject returns an otherwise unused project of a Cinder in noauth
// mode.
func scratchProject(t testing.TB) string {
	t.Helper()
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(id)
}

// listed returns the volumes of a list.
func listed(t testing.TB, c *client, path string, version ...string) []map[string]any {
	t.Helper()
	return c.call(t, "GET", path, nil, version...).want(t, http.StatusOK).list(t, "volumes")
}
