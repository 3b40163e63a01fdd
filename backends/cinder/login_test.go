package cinder

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

func TestEndpointFromTheCatalog(t *testing.T) {
	identity := map[string]any{"type": "identity", "endpoints": []any{map[string]any{"interface": "public", "region_id": "RegionOne", "url": "$URL/identity/v3"}}}
	tests := map[string]struct {
		catalog []any
		region  string
		kind    string
		want    string // path of a listing
		wantErr string
	}{
		"public by default":            {catalog: []any{identity, cindertest.Entry("volumev3", "R1", "$URL/volume/v3/p1")}, want: "/volume/v3/p1/volumes/detail"},
		"internal":                     {catalog: []any{cindertest.Entry("volumev3", "R1", "$URL/volume/v3/p1")}, kind: "internal", want: "/internal/v3/p1/volumes/detail"},
		"admin":                        {catalog: []any{cindertest.Entry("volumev3", "R1", "$URL/volume/v3/p1")}, kind: "admin", want: "/admin/v3/p1/volumes/detail"},
		"a region of two":              {catalog: []any{cindertest.Entry("volumev3", "R1", "$URL/one/v3/p1"), cindertest.Entry("volumev3", "R2", "$URL/two/v3/p1")}, region: "R2", want: "/two/v3/p1/volumes/detail"},
		"official type first":          {catalog: []any{cindertest.Entry("volume", "R1", "$URL/plain/v3/p1"), cindertest.Entry("volumev3", "R1", "$URL/volumev3/v3/p1"), cindertest.Entry("block-storage", "R1", "$URL/official/v3/p1")}, want: "/official/v3/p1/volumes/detail"},
		"v2 is skipped":                {catalog: []any{cindertest.Entry("volumev2", "R1", "$URL/v2/p1"), cindertest.Entry("volume", "R1", "$URL/v1/p1"), cindertest.Entry("volume", "R1", "$URL/volume/v3/p1")}, want: "/volume/v3/p1/volumes/detail"},
		"without a version":            {catalog: []any{cindertest.Entry("block-storage", "R1", "$URL/volume/")}, want: "/volume/v3/volumes/detail"},
		"without a project":            {catalog: []any{cindertest.Entry("block-storage", "R1", "$URL/volume/v3")}, want: "/volume/v3/volumes/detail"},
		"two regions, none configured": {catalog: []any{cindertest.Entry("volumev3", "R2", "$URL/two/v3/p1"), cindertest.Entry("volumev3", "R1", "$URL/one/v3/p1")}, wantErr: "backend gold: the service catalog has block storage in several regions (R1, R2); give the backend's region"},
		"no such region": {catalog: []any{cindertest.Entry("volumev3", "R1", "$URL/volume/v3/p1")}, region: "R9",
			wantErr: `backend gold: the service catalog has no block storage v3 endpoint in region "R9" with interface "public" (it has admin in R1, internal in R1, public in R1); check region and interface of the backend`},
		"no such interface": {catalog: []any{map[string]any{"type": "volumev3", "endpoints": []any{map[string]any{"interface": "public", "region": "R1", "url": "$URL/v3"}}}}, kind: "internal",
			wantErr: `backend gold: the service catalog has no block storage v3 endpoint with interface "internal" (it has public in R1); check region and interface of the backend`},
		"no Cinder": {catalog: []any{identity, cindertest.Entry("volumev2", "R1", "$URL/v2/p1")},
			wantErr: `backend gold: the service catalog has no block storage v3 endpoint with interface "public" (it has "volumev2" admin in R1 of version 2, "volumev2" internal in R1 of version 2, "volumev2" public in R1 of version 2); check region and interface of the backend`},
		"no block storage": {catalog: []any{identity},
			wantErr: `backend gold: the service catalog has no block storage v3 endpoint with interface "public" (it has none, only services of the types "identity"); check region and interface of the backend`},
		"version 3 as a service of version 2": {catalog: []any{map[string]any{"type": "volumev2", "endpoints": []any{map[string]any{"interface": "public", "url": "$URL/v3/p1"}}}},
			wantErr: `backend gold: the service catalog has no block storage v3 endpoint with interface "public" (it has "volumev2" public in no region); check region and interface of the backend`},
		"project not filled in": {catalog: []any{map[string]any{"type": "volumev3", "endpoints": []any{map[string]any{"interface": "public", "region": "R1", "url": "$URL/v3/%(project_id)s"}, map[string]any{"interface": "internal", "region": "R1", "url": "$URL/v3/$(tenant_id)s"}}}},
			wantErr: `backend gold: the service catalog has no block storage v3 endpoint with interface "public" (it has "volumev3" internal in R1 with a placeholder that Keystone did not fill in, "volumev3" public in R1 with a placeholder that Keystone did not fill in); check region and interface of the backend`},
		"no project": {catalog: []any{},
			wantErr: "backend gold: the token has no service catalog: the credentials name no project and the user has no default project; name a project"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			cloud.Catalog = withURL(test.catalog, cloud.URL).([]any)
			client, err := logInFrom(t, cloud.Clouds(`clouds: {gold: {auth: {auth_url: $URL, user_id: u, password: p, project_id: x}}}`), auth.Config{Source: auth.Source{Cloud: "gold"}, Region: test.region, Interface: test.kind})
			equal(t, authtest.ErrorText(err), test.wantErr)
			if err != nil {
				equal(t, KindOf(err), KindConfig)
				equal(t, len(cloud.Paths()), 0)
				return
			}
			if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); err != nil {
				t.Fatal(err)
			}
			equal(t, cloud.Paths(), []string{"GET " + test.want + "?sort=created_at%3Adesc"})
		})
	}
}

func withURL(value any, url string) any {
	switch value := value.(type) {
	case string:
		return strings.ReplaceAll(value, "$URL", url)
	case []any:
		replaced := []any{}
		for _, element := range value {
			replaced = append(replaced, withURL(element, url))
		}
		return replaced
	case map[string]any:
		replaced := map[string]any{}
		for key, element := range value {
			replaced[key] = withURL(element, url)
		}
		return replaced
	}
	return value
}

func TestRefusedLogins(t *testing.T) {
	// A Keystone that echoes the request, as validation errors may do.
	echo := `{"error": {"code": 400, "message": "s3cr3t is not valid"}}`
	tests := map[string]struct {
		keystone http.HandlerFunc
		kind     Kind
		want     string
	}{
		"wrong password":                 {fixed(401, `{"error": {"code": 401, "message": "The request you have made requires authentication.", "title": "Unauthorized"}}`), KindUnauthorized, "the credentials were rejected; check user, password, project and domains (HTTP 401, req-1)"},
		"bad form":                       {fixed(400, echo), KindConfig, "Keystone rejected the login request as malformed; check the user, the project and their domains (HTTP 400, req-1)"},
		"forbidden":                      {fixed(403, echo), KindForbidden, "the account is not allowed to log in this way (HTTP 403, req-1)"},
		"not Keystone":                   {fixed(404, "404 page not found"), KindConfig, "nothing was found at the address; check auth_url or the noauth endpoint (HTTP 404, req-1)"},
		"no such application credential": {fixed(404, `{"error": {"code": 404, "message": "Could not find Application Credential: 21ced0fd.", "title": "Not Found"}}`), KindUnauthorized, "Keystone has no such application credential: it was deleted, or its ID or name is wrong (HTTP 404, req-1)"},
		"conflict":                       {fixed(409, echo), KindConfig, "the answer is conflict, which is not an answer to a login; check auth_url or the noauth endpoint (HTTP 409, req-1)"},
		"too many":                       {fixed(429, echo), KindRateLimited, "too many logins (HTTP 429, req-1)"},
		"down":                           {fixed(503, echo), KindUnavailable, "the answer is service unavailable (HTTP 503, req-1)"},
		"unknown status":                 {fixed(599, echo), KindUnavailable, "the answer is an unknown status (HTTP 599, req-1)"},
		"HTML":                           {fixed(201, "<html>s3cr3t</html>"), KindInternal, "unexpected response: not the JSON documented in the API reference"},
		"200 for a token":                {fixed(200, echo), KindConfig, "the answer is ok, which is not an answer to a login; check auth_url or the noauth endpoint (HTTP 200, req-1)"},
		"no token":                       {fixed(201, `{"token": {}}`), KindConfig, "the answer has no X-Subject-Token header: auth_url does not point to Keystone, or a proxy removes the header"},
		"empty":                          {fixed(204, ""), KindConfig, emptyAnswer + " (HTTP 204, req-1)"},
		"redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://user:s3cr3t@elsewhere:5000/v3/auth/tokens?password=s3cr3t")
			w.WriteHeader(http.StatusMovedPermanently)
		}, KindConfig, "the endpoint redirects requests (to https://elsewhere:5000); configure the address that answers directly (HTTP 301)"},
		"connection dropped": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, KindUnavailable, "the connection ended before the answer was complete"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			cloud.Keystone = test.keystone
			_, err := logInFrom(t, cloud.Clouds(cindertest.PasswordCloud), auth.Config{Source: auth.Source{Cloud: "gold"}})
			equal(t, authtest.ErrorText(err), "backend gold: auth.login: "+test.want)
			equal(t, KindOf(err), test.kind)
			equal(t, len(cloud.Paths()), 0)
		})
	}
}

// fixed always gives the same answer.
func fixed(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Openstack-Request-Id", "req-1")
		cindertest.Answer(w, status, body)
	}
}

// noauthCinder answers GET …/volumes/detail like a Cinder with auth_strategy
// noauth whose routes accept projects matching the pattern (empty: only
// addresses without a project).
func noauthCinder(projects string, withoutProject bool) http.HandlerFunc {
	pattern := regexp.MustCompile(`^/v3/` + projects + `/volumes/detail$`)
	return func(w http.ResponseWriter, r *http.Request) {
		switch token := r.Header.Get("X-Auth-Token"); {
		case token == "":
			w.WriteHeader(http.StatusNoContent)
		case withoutProject && r.URL.Path == "/v3/volumes/detail", pattern.MatchString(r.URL.Path) && strings.HasPrefix(r.URL.Path, "/v3/"+strings.SplitN(token, ":", 2)[1]+"/"):
			cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
		case pattern.MatchString(r.URL.Path):
			cindertest.Answer(w, http.StatusBadRequest, `{"badRequest": {"code": 400, "message": "Malformed request url"}}`)
		default:
			cindertest.Answer(w, http.StatusNotFound, cindertest.RoutingNotFound)
		}
	}
}

func TestNoauthLogin(t *testing.T) {
	const hex = "0123456789abcdef0123456789abcdef"
	current := noauthCinder(`[0-9a-f\-]+`, true)
	old := noauthCinder(`[^/]+`, false)
	strict := noauthCinder(`[0-9a-f\-]+`, false)
	tests := map[string]struct {
		cinder  http.HandlerFunc
		noauth  auth.Noauth // $URL is the server
		asked   []string
		wantErr string
		kind    Kind
	}{
		"hexadecimal project in the address":  {cinder: current, noauth: auth.Noauth{Endpoint: "$URL/v3", Project: hex}, asked: []string{"/v3/" + hex + "/volumes/detail"}},
		"current Cinder, the default project": {cinder: current, noauth: auth.Noauth{Endpoint: "$URL/v3"}, asked: []string{"/v3/admin/volumes/detail", "/v3/volumes/detail"}},
		"old Cinder, the default project":     {cinder: old, noauth: auth.Noauth{Endpoint: "$URL/v3/"}, asked: []string{"/v3/admin/volumes/detail"}},
		"v2 is repaired":                      {cinder: current, noauth: auth.Noauth{Endpoint: "$URL/v2", Project: hex}, asked: []string{"/v3/" + hex + "/volumes/detail"}},
		"no version":                          {cinder: current, noauth: auth.Noauth{Endpoint: "$URL", Project: hex}, asked: []string{"/v3/" + hex + "/volumes/detail"}},
		"project in the endpoint":             {cinder: current, noauth: auth.Noauth{Endpoint: "$URL/v3/" + hex}, asked: []string{"/v3/" + hex + "/volumes/detail"}},
		"the same project twice":              {cinder: current, noauth: auth.Noauth{Endpoint: "$URL/v3/" + hex + "/", Project: hex}, asked: []string{"/v3/" + hex + "/volumes/detail"}},
		"project that no address accepts": {cinder: strict, noauth: auth.Noauth{Endpoint: "$URL/v3", Project: "demo"}, asked: []string{"/v3/demo/volumes/detail", "/v3/volumes/detail"}, kind: KindConfig,
			wantErr: `backend gold: auth.discover: no volumes API of version 3 at $URL/v3/ accepts project "demo": give auth.noauth.project as a hexadecimal id such as 0123456789abcdef0123456789abcdef, set project_id_regex in cinder.conf, or check auth.noauth.endpoint (HTTP 404)`},
		"no Cinder there": {cinder: fixed(404, "404 page not found"), noauth: auth.Noauth{Endpoint: "$URL/cinder", Project: hex}, asked: []string{"/cinder/v3/" + hex + "/volumes/detail", "/cinder/v3/volumes/detail"}, kind: KindConfig,
			wantErr: "backend gold: auth.discover: no volumes API of version 3 at $URL/cinder/v3/; check auth.noauth.endpoint (HTTP 404)"},
		"the header is lost on the way": {cinder: fixed(204, ""), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindConfig,
			wantErr: "backend gold: auth.discover: " + emptyAnswer + " (HTTP 204, req-1)"},
		"empty 200": {cinder: fixed(200, ""), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindUnavailable,
			wantErr: "backend gold: auth.discover: the connection ended before the answer was complete"},
		"HTML": {cinder: fixed(200, "<html></html>"), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindConfig,
			wantErr: "backend gold: auth.discover: the endpoint does not answer like Cinder's volumes API; check auth.noauth.endpoint (HTTP 200)"},
		"other JSON": {cinder: fixed(200, `{"servers": []}`), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindConfig,
			wantErr: "backend gold: auth.discover: the endpoint does not answer like Cinder's volumes API; check auth.noauth.endpoint (HTTP 200)"},
		"other type": {cinder: fixed(200, `{"volumes": "none"}`), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindConfig,
			wantErr: "backend gold: auth.discover: the endpoint does not answer like Cinder's volumes API; check auth.noauth.endpoint (HTTP 200)"},
		"Keystone behind it": {cinder: fixed(401, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindUnauthorized,
			wantErr: "backend gold: auth.discover: the credentials were rejected (HTTP 401, req-1)"},
		"down": {cinder: fixed(503, ""), noauth: auth.Noauth{Endpoint: "$URL"}, asked: []string{"/v3/admin/volumes/detail"}, kind: KindUnavailable,
			wantErr: "backend gold: auth.discover: the answer is service unavailable (HTTP 503, req-1)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			cloud.Cinder = test.cinder
			noauth := test.noauth
			noauth.Endpoint = strings.ReplaceAll(noauth.Endpoint, "$URL", cloud.URL)
			_, err := logInNoauth(t, noauth)
			equal(t, authtest.ErrorText(err), strings.ReplaceAll(test.wantErr, "$URL", cloud.URL))
			if err != nil {
				equal(t, KindOf(err), test.kind)
			}
			var want []string
			for _, path := range test.asked {
				want = append(want, "GET "+path+"?limit=1")
			}
			equal(t, cloud.Paths(), want)
		})
	}
}

// TestRedirectsAreNotFollowed: following one would send the token to another
// host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect was followed with token %q", r.Header.Get("X-Auth-Token"))
	}))
	defer elsewhere.Close()
	cloud := cindertest.NewCloud(t)
	cloud.Cinder = http.RedirectHandler(elsewhere.URL+"/v3/volumes/detail", http.StatusFound).ServeHTTP
	client := logIn(t, cloud)
	_, err := client.Volume(t.Context(), "v1")
	equal(t, authtest.ErrorText(err), "backend gold: volume.get: the endpoint redirects requests (to "+elsewhere.URL+"); configure the address that answers directly (HTTP 302)")
	equal(t, KindOf(err), KindConfig)
	_, err = client.CreateVolume(t.Context(), NewVolume{SizeGiB: 1})
	equal(t, KindOf(err), KindConfig)
	if !effectUnknown(err) {
		t.Error("a redirect counts as proof that there was no effect")
	}
}
