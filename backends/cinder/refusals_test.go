package cinder

import (
	"net/http"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestALoginThatDoesNotHelpIsNotRepeated refuses every token: by the check in front of
// Cinder, and by a proxy, which no token concerns.
func TestALoginThatDoesNotHelpIsNotRepeated(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		logins int // after the first
		kind   Kind
	}{
		"Cinder": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Keystone uri="http://k/v3"`)
			cindertest.Answer(w, http.StatusUnauthorized, `{"error": {"code": 401, "message": "The request you have made requires authentication."}}`)
		}, 1, KindUnauthorized},
		"a proxy's login": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="storage"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, 0, KindConfig},
		"a proxy's page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte("<html>401</html>"))
		}, 0, KindConfig},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			before := cloud.LoginCount()
			cloud.Set(func() { cloud.Cinder = test.answer })
			for range 5 {
				_, err := client.Volume(t.Context(), "v1")
				equal(t, KindOf(err), test.kind)
			}
			equal(t, cloud.LoginCount()-before, test.logins)

			// Cinder works again, and then the token expires.
			cloud.Set(func() { cloud.Cinder = nil })
			list := func() error {
				return client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true })
			}
			equal(t, list(), nil)
			cloud.Revoke()
			equal(t, list(), nil)
			equal(t, cloud.LoginCount()-before, test.logins+1)
		})
	}
}

// TestAPageInsteadOfVersionsStopsNoVolume: what is not a list of versions has none.
func TestAPageInsteadOfVersionsStopsNoVolume(t *testing.T) {
	for name, test := range map[string]struct {
		status     int
		kind, body string
		want       string // for mode csi
	}{
		"a login page":  {401, "text/html", "<html>401</html>", "backend gold: version.get: something in front of Cinder, such as a proxy, demands a login of its own; let the program's requests pass there (HTTP 401)"},
		"a web page":    {200, "text/html", "<html></html>", "backend gold: version.get: the answer at $URL/volume/v3/ is not a list of versions but text/html"},
		"version 2":     {300, "application/json", `{"versions": [{"id": "v2.0"}]}`, `backend gold: version.get: the answer does not list version 3, but "v2.0"`},
		"other JSON":    {200, "application/json", `[]`, "backend gold: version.get: the answer at $URL/volume/v3/ is not a list of versions but other JSON"},
		"no versions":   {200, "application/json", `{}`, "backend gold: version.get: the answer does not list version 3, but none"},
		"a forbidden":   {403, "text/html", "<html>403</html>", "backend gold: version.get: something in front of Cinder, such as a proxy or a firewall, forbids the request; let the program's requests pass there (HTTP 403)"},
		"Keystone's":    {200, "application/json", `{"versions": {"values": [{"id": "v3.14"}]}}`, "backend gold: version.get: the answer at $URL/volume/v3/ is not a list of versions but other JSON"},
		"without JSON ": {200, "application/json", `versions`, "backend gold: version.get: the answer at $URL/volume/v3/ is not a list of versions but other JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			found, err := cloud.Clouds(cindertest.PasswordCloud).Resolve(auth.Config{Source: auth.Source{Cloud: "gold"}})
			if err != nil {
				t.Fatal(err)
			}
			options := testOptions()
			options.Workflow = WorkflowAuto
			client, err := Login(t.Context(), found, options)
			if err != nil {
				t.Fatal(err)
			}
			cloud.Set(func() {
				cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", test.kind)
					w.WriteHeader(test.status)
					_, _ = w.Write([]byte(test.body))
				}
			})
			workflow, err := client.Workflow(t.Context())
			equal(t, err, nil)
			equal(t, workflow, WorkflowReserve)
			want := strings.ReplaceAll(test.want, "$URL", cloud.URL)
			equal(t, authtest.ErrorText(client.OffersAttachments(t.Context())), want)
			equal(t, cloud.LoginCount(), 1)
		})
	}
}

// TestEndpointBesideKeystone uses an address that the catalog does not have, from the
// policy or from clouds.yaml, with the project in its path.
func TestEndpointBesideKeystone(t *testing.T) {
	for name, test := range map[string]struct{ entry, endpoint, want string }{
		"of the policy":                   {"", "$URL/elsewhere", "/elsewhere/v3/$PROJECT/"},
		"of clouds.yaml":                  {"volumev3_endpoint_override: $URL/other/v3, ", "", "/other/v3/$PROJECT/"},
		"of clouds.yaml, older key":       {"block-storage-endpoint: '$URL/other/v3/%(project_id)s', ", "", "/other/v3/$PROJECT/"},
		"the policy wins":                 {"volume_endpoint_override: $URL/other/v3, ", "$URL/elsewhere/v3/$PROJECT", "/elsewhere/v3/$PROJECT/"},
		"neither, so that of the catalog": {"", "", "/volume/v3/0123456789abcdef0123456789abcdef/"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			replace := func(text string) string {
				return strings.NewReplacer("$URL", cloud.URL, "$PROJECT", cloud.Project).Replace(text)
			}
			text := replace("clouds: {gold: {" + test.entry + "auth: {auth_url: $URL/identity, user_id: u, password: p, project_id: x}}}")
			dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": text})
			sources := auth.Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}
			client, err := logInFrom(t, sources, auth.Config{Source: auth.Source{Cloud: "gold"}, Endpoint: replace(test.endpoint)})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, client.Address(), replace("$URL"+test.want))
		})
	}
}
