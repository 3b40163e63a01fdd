package contract

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// client sends raw requests to one API.
type client struct {
	// base precedes every path; it may end in a project.
	base string
	// token is the X-Auth-Token; without one there is no such header.
	token string
	http  *http.Client
}

func newHTTPClient() *http.Client {
	return &http.Client{
		Timeout:       2 * time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// answer is a response.
type answer struct {
	request string
	status  int
	header  http.Header
	raw     []byte
	body    map[string]any
}

// raw is a request body to send unchanged.
type raw string

// call sends a request. The body is sent as JSON; version, if given, is the
// microversion, such as "3.27".
func (c *client) call(t testing.TB, method, path string, body any, version ...string) answer {
	t.Helper()
	var reader io.Reader
	switch given := body.(type) {
	case nil:
	case raw:
		reader = strings.NewReader(string(given))
	default:
		encoded, err := json.Marshal(given)
		if err != nil {
			t.Fatal(err)
		}
		reader = bytes.NewReader(encoded)
	}
	request, err := http.NewRequest(method, c.base+path, reader)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json")
	if reader != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("X-Auth-Token", c.token)
	}
	for _, v := range version {
		request.Header.Set("OpenStack-API-Version", "volume "+v)
	}
	return send(t, c.http, request)
}

func send(t testing.TB, via *http.Client, request *http.Request) answer {
	t.Helper()
	response, err := via.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	a := answer{request: request.Method + " " + request.URL.Path, status: response.StatusCode, header: response.Header}
	if request.URL.RawQuery != "" {
		a.request += "?" + request.URL.RawQuery
	}
	if a.raw, err = io.ReadAll(response.Body); err != nil {
		t.Fatalf("%s: %v", a.request, err)
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") && len(a.raw) > 0 {
		if err := json.Unmarshal(a.raw, &a.body); err != nil {
			t.Fatalf("%s: %v in %s", a.request, err, a.raw)
		}
	}
	return a
}

// want requires a status.
func (a answer) want(t testing.TB, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("%s: status %d, want %d; body %s", a.request, a.status, status, a.raw)
	}
	return a
}

// wantEmpty requires a status and no body.
func (a answer) wantEmpty(t testing.TB, status int) answer {
	t.Helper()
	a.want(t, status)
	if len(a.raw) > 0 {
		t.Errorf("%s: the body is %s, want none", a.request, a.raw)
	}
	return a
}

// wantError requires one of Cinder's errors: the status, the name that wraps
// it, and the sentence. Only the first line of a sentence counts, since Cinder
// may append a traceback.
func (a answer) wantError(t testing.TB, status int, name, message string) {
	t.Helper()
	a.want(t, status)
	details, ok := a.body[name].(map[string]any)
	if !ok {
		t.Fatalf("%s: the body is %s, want a %q", a.request, a.raw, name)
	}
	got, _ := details["message"].(string)
	got, _, _ = strings.Cut(got, "\n")
	if got != message {
		t.Errorf("%s: the message is %q, want %q", a.request, got, message)
	}
	if details["code"] != float64(status) {
		t.Errorf("%s: the code is %v, want %d", a.request, details["code"], status)
	}
}

func (a answer) wantBadRequest(t testing.TB, message string) {
	t.Helper()
	a.wantError(t, http.StatusBadRequest, "badRequest", message)
}

func (a answer) wantNotFound(t testing.TB, message string) {
	t.Helper()
	a.wantError(t, http.StatusNotFound, "itemNotFound", message)
}

// wantHeader requires a header's value.
func (a answer) wantHeader(t testing.TB, name, value string) {
	t.Helper()
	if got := a.header.Get(name); got != value {
		t.Errorf("%s: header %s is %q, want %q", a.request, name, got, value)
	}
}

// object returns an object in the body, by its path.
func (a answer) object(t testing.TB, path ...string) map[string]any {
	t.Helper()
	current := a.body
	for _, name := range path {
		next, ok := current[name].(map[string]any)
		if !ok {
			t.Fatalf("%s: no object %s in %s", a.request, strings.Join(path, "."), a.raw)
		}
		current = next
	}
	return current
}

// list returns a list of objects in the body.
func (a answer) list(t testing.TB, name string) []map[string]any {
	t.Helper()
	items, ok := a.body[name].([]any)
	if !ok {
		t.Fatalf("%s: no list %s in %s", a.request, name, a.raw)
	}
	var objects []map[string]any
	for _, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			t.Fatalf("%s: list %s contains %v", a.request, name, item)
		}
		objects = append(objects, object)
	}
	return objects
}

// object is a JSON object of a request.
type object = map[string]any
