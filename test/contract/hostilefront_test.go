package contract

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/hostile"
)

// front is a hostile server before a target.
type front struct {
	target   Target // as seen through it
	cinder   *hostile.Server
	keystone *hostile.Server
}

func newFront(t *testing.T, target Target) *front {
	t.Helper()
	f := &front{target: target}
	origin := originOf(t, target.Endpoint)
	var address string
	f.cinder, address = f.serve(t, origin, func([]byte) []byte { return nil })
	f.target.Endpoint = address + target.Endpoint[len(origin):]
	if target.Keystone == nil {
		return f
	}
	keystone := *target.Keystone
	origin = originOf(t, keystone.URL)
	// The catalog leads to the hostile Cinder.
	toFront := func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte(originOf(t, target.Endpoint)), []byte(address))
	}
	var identity string
	f.keystone, identity = f.serve(t, origin, toFront)
	keystone.URL = identity + keystone.URL[len(origin):]
	f.target.Keystone = &keystone
	return f
}

// serve puts a hostile server before an origin. rewrite changes bodies; nil
// leaves one as it is.
func (f *front) serve(t *testing.T, origin string, rewrite func([]byte) []byte) (*hostile.Server, string) {
	t.Helper()
	to, err := url.Parse(origin)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: f.target.http.Transport,
		ModifyResponse: func(response *http.Response) error {
			body, err := io.ReadAll(response.Body)
			if changed := rewrite(body); changed != nil {
				body = changed
				response.Header.Set("Content-Length", strconv.Itoa(len(body)))
			}
			response.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	}
	server := hostile.NewServer(proxy, nil)
	listening := httptest.NewServer(server)
	listening.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(func() {
		server.Close()
		listening.CloseClientConnections()
		listening.Close()
	})
	return server, listening.URL
}

func originOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Scheme + "://" + u.Host
}

// sources returns where the program finds credentials for the target behind the
// hostile server.
func (f *front) sources() auth.Sources {
	_, sources := f.target.source(f.target.Project, f.target.account())
	return sources
}

func (f *front) attack(attack hostile.Attack, operation string) {
	judge := func(r *http.Request) (hostile.Attack, bool) { return attack, hostile.Operation(r) == operation }
	if operation == "" {
		judge = nil
	}
	f.cinder.Judge(judge)
	if f.keystone != nil {
		f.keystone.Judge(judge)
	}
}

func (f *front) used() int {
	total := 0
	for _, server := range []*hostile.Server{f.cinder, f.keystone} {
		if server != nil {
			for _, n := range server.Used() {
				total += n
			}
		}
	}
	return total
}
