// Package cindertest stands in for Keystone and Cinder in tests of logins and single requests.
package cindertest

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// Cloud is a Keystone and a Cinder at one address, just enough for logins and single
// requests. memoryCinder simulates the life of volumes.
type Cloud struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	logins   []map[string]any // bodies of POST /v3/auth/tokens
	tokens   int
	valid    map[string]bool
	Password string          // the accepted one; empty accepts any
	Catalog  []any           // nil means the default
	Project  string          // tokens are scoped to it
	requests []*http.Request // to Cinder

	// Keystone and Cinder, if set, answer instead of the defaults.
	Keystone http.HandlerFunc
	Cinder   http.HandlerFunc
}

// defaultProject is the ID of the project that tokens are scoped to.
const defaultProject = "0123456789abcdef0123456789abcdef"

func NewCloud(t *testing.T) *Cloud {
	t.Helper()
	c := &Cloud{t: t, valid: map[string]bool{}, Project: defaultProject}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func NewTLSCloud(t *testing.T, prepare func(*httptest.Server)) *Cloud {
	t.Helper()
	c := &Cloud{t: t, valid: map[string]bool{}, Project: defaultProject}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.Config.ErrorLog = log.New(io.Discard, "", 0) // rejected handshakes
	prepare(c.Server)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func (c *Cloud) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/identity/v3/auth/tokens" {
		c.mu.Lock()
		handler := c.Keystone
		c.mu.Unlock()
		if handler == nil {
			handler = c.Token
		}
		handler(w, r)
		return
	}
	c.mu.Lock()
	c.requests = append(c.requests, r.Clone(r.Context()))
	handler := c.Cinder
	known := len(c.valid) == 0 || c.valid[r.Header.Get("X-Auth-Token")]
	c.mu.Unlock()
	switch {
	case !known:
		Answer(w, http.StatusUnauthorized, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`)
	case handler != nil:
		handler(w, r)
	default:
		Answer(w, http.StatusOK, `{"volumes": []}`)
	}
}

// Token answers POST and GET of /v3/auth/tokens.
func (c *Cloud) Token(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var body map[string]any
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			c.t.Errorf("login without a JSON body: %v", err)
		}
	} else {
		body = map[string]any{"validated": r.Header.Get("X-Subject-Token")}
	}
	c.logins = append(c.logins, body)
	if encoded, _ := json.Marshal(body); c.Password != "" && !strings.Contains(string(encoded), `"password":"`+c.Password+`"`) {
		Answer(w, http.StatusUnauthorized, `{"error": {"code": 401, "message": "The request you have made requires authentication.", "title": "Unauthorized"}}`)
		return
	}
	c.tokens++
	token := fmt.Sprintf("token-%d", c.tokens)
	if r.Method == http.MethodGet {
		token = r.Header.Get("X-Subject-Token")
	}
	c.valid[token] = true
	catalog := c.Catalog
	if catalog == nil {
		catalog = []any{Entry("volumev3", "RegionOne", c.URL+"/volume/v3/0123456789abcdef0123456789abcdef")}
	}
	w.Header().Set("X-Subject-Token", token)
	status := http.StatusCreated
	if r.Method == http.MethodGet {
		status = http.StatusOK
	}
	scoped := map[string]any{"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "catalog": catalog, "project": map[string]any{"id": c.Project, "name": "storage"}}
	encoded, err := json.Marshal(map[string]any{"token": scoped})
	if err != nil {
		c.t.Error(err)
	}
	Answer(w, status, string(encoded))
}

// Entry returns a catalog service with its three interfaces.
func Entry(service, region, url string) map[string]any {
	var endpoints []any
	for _, name := range []string{"public", "internal", "admin"} {
		address := url
		if name != "public" {
			address = strings.Replace(url, "/volume/", "/"+name+"/", 1)
		}
		endpoints = append(endpoints, map[string]any{"interface": name, "region": region, "region_id": region, "url": address})
	}
	return map[string]any{"type": service, "name": "cinder", "endpoints": endpoints}
}

func Answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

func (c *Cloud) Set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *Cloud) LoginCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.logins)
}

func (c *Cloud) LastLogin() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.logins) == 0 {
		c.t.Fatal("no login arrived")
	}
	return c.logins[len(c.logins)-1]
}

// Paths lists the requests to Cinder, as "METHOD path?query".
func (c *Cloud) Paths() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var paths []string
	for _, r := range c.requests {
		paths = append(paths, r.Method+" "+r.URL.RequestURI())
	}
	return paths
}

// Requests lists the requests to Cinder.
func (c *Cloud) Requests() []*http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// Revoke invalidates every token issued so far.
func (c *Cloud) Revoke() {
	c.Set(func() { c.valid = map[string]bool{"none": true} })
}

// Clouds writes a clouds.yaml, in which $URL stands for Keystone, and returns Sources
// that read it with an empty environment.
func (c *Cloud) Clouds(text string) auth.Sources {
	c.t.Helper()
	return auth.Sources{CloudsFile: authtest.WriteFiles(c.t, map[string]string{"clouds.yaml": strings.ReplaceAll(text, "$URL", c.URL+"/identity")}) + "/clouds.yaml", Getenv: authtest.NoEnvironment}
}

// PasswordCloud is the most common entry.
const PasswordCloud = `
clouds:
  gold:
    region_name: RegionOne
    auth:
      auth_url: $URL
      username: kube
      password: s3cr3t
      user_domain_name: Default
      project_name: storage
      project_domain_name: Default
`

// RoutingNotFound is Cinder's answer to an unknown address, recorded from Cinder 21.3.1
// (Zed).
const RoutingNotFound = `{"message": "The resource could not be found.<br /><br />\n\n\n", "code": "404 Not Found", "title": "Not Found"}`
