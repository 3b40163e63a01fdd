package webconfig

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// hashed is the bcrypt hash of the password hunter2.
const hashed = "$2a$04$lNuS1TAKld8P.ZqmBhGvBehNoDjWHbqXKbDhMMFIcT8WtE1l8B9tm"

// serveFunc serves as a file says.
type serveFunc func(net.Listener, *http.Server, string) error

func ours(listener net.Listener, server *http.Server, path string) error {
	return Serve(listener, server, path, slog.New(slog.DiscardHandler))
}

func theirs(listener net.Listener, server *http.Server, path string) error {
	return web.Serve(listener, server, &web.FlagConfig{WebConfigFile: &path}, slog.New(slog.DiscardHandler))
}

// site is a server with the file web.yaml, and those that it may name.
type site struct {
	t                *testing.T
	authority, other *authtest.Authority
	dir, address     string
	served           atomic.Int64
	failed           chan error
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, authority: authtest.NewAuthority(t), other: authtest.NewAuthority(t), failed: make(chan error, 1)}
	_, _, cert, key := s.authority.Issue("server", false)
	s.dir = authtest.WriteFiles(t, map[string]string{"tls.crt": cert, "tls.key": key, "ca.crt": s.authority.PEM, "none.crt": "", "ca.key": s.otherKey()})
	return s
}

func (s *site) otherKey() string {
	_, _, _, key := s.other.Issue("server", false)
	return key
}

func (s *site) path() string { return filepath.Join(s.dir, "web.yaml") }

// write replaces web.yaml. CERT, KEY and CA stand for what the files have.
func (s *site) write(text string) {
	s.t.Helper()
	for word, name := range map[string]string{"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"} {
		content, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			s.t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "<"+word+">", fmt.Sprintf("%q", content))
	}
	authtest.WriteFile(s.t, s.path(), text)
}

// start serves until the test ends.
func (s *site) start(serve serveFunc) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.served.Add(1)
		fmt.Fprintln(w, "metrics")
	})}
	s.address = listener.Addr().String()
	go func() { s.failed <- serve(listener, server, s.path()) }()
	s.t.Cleanup(func() { _ = server.Close(); _ = listener.Close() })
}

// probe is a client with one request.
type probe struct {
	name           string
	scheme         string
	user, password string
	signer         *authtest.Authority // of the client's certificate
	http2          bool
	change         func(*tls.Config)
}

func (s *site) client(p probe) *http.Client {
	s.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS10}
	config.RootCAs.AppendCertsFromPEM([]byte(s.authority.PEM))
	if p.signer != nil {
		_, _, cert, key := p.signer.Issue("prometheus", false)
		pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
		if err != nil {
			s.t.Fatal(err)
		}
		// It is sent even to a server that names another authority.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if p.change != nil {
		p.change(config)
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: p.http2}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask says what a client sees.
func (s *site) ask(client *http.Client, p probe) string {
	s.t.Helper()
	request, err := http.NewRequest(http.MethodGet, p.scheme+"://"+s.address, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if p.user+p.password != "" {
		request.SetBasicAuth(p.user, p.password)
	}
	answer, err := client.Do(request)
	if err != nil {
		return "no answer"
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "no whole answer"
	}
	seen := fmt.Sprintf("%d %s %q", answer.StatusCode, answer.Proto, body)
	if state := answer.TLS; state != nil {
		seen += fmt.Sprintf(" %s %s %s", tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite), state.CurveID)
	}
	for _, name := range []string{"Www-Authenticate", "X-Content-Type-Options", "Content-Type"} {
		if values := answer.Header[name]; values != nil {
			seen += fmt.Sprintf(" %s=%q", name, values)
		}
	}
	return seen
}

func (s *site) probes() []probe {
	only := func(version uint16) func(*tls.Config) {
		return func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version }
	}
	return []probe{
		{name: "HTTP", scheme: "http"},
		{name: "HTTP with a login", scheme: "http", user: "prometheus", password: "hunter2"},
		{name: "no login", scheme: "https"},
		{name: "right login", scheme: "https", user: "prometheus", password: "hunter2"},
		{name: "right login again", scheme: "https", user: "prometheus", password: "hunter2", http2: true},
		{name: "second user", scheme: "https", user: "second", password: "hunter2"},
		{name: "wrong password", scheme: "https", user: "prometheus", password: "hunter3"},
		{name: "no password", scheme: "https", user: "prometheus"},
		{name: "unknown user", scheme: "https", user: "nobody", password: "hunter2"},
		{name: "client certificate", scheme: "https", signer: s.authority},
		{name: "client certificate and login", scheme: "https", signer: s.authority, user: "prometheus", password: "hunter2", http2: true},
		{name: "client certificate of another authority", scheme: "https", signer: s.other},
		{name: "HTTP/2", scheme: "https", http2: true},
		{name: "TLS 1.0", scheme: "https", change: only(tls.VersionTLS10)},
		{name: "TLS 1.1", scheme: "https", change: only(tls.VersionTLS11)},
		{name: "TLS 1.2", scheme: "https", http2: true, change: only(tls.VersionTLS12)},
		{name: "TLS 1.3", scheme: "https", change: only(tls.VersionTLS13)},
	}
}

const pair = "cert_file: tls.crt, key_file: tls.key"

// TestServersOfBothLibrariesLookTheSame: clients cannot tell this package from Prometheus'
// own, before and after a change of the file.
func TestServersOfBothLibrariesLookTheSame(t *testing.T) {
	for name, texts := range map[string][]string{
		"empty file":                 {""},
		"comments":                   {"# nothing yet\n"},
		"nothing set":                {"{}\n"},
		"login":                      {"basic_auth_users: {prometheus: " + hashed + "}\n"},
		"TLS":                        {"tls_server_config: {" + pair + "}\n"},
		"TLS and login":              {"tls_server_config: {" + pair + "}\nbasic_auth_users: {prometheus: " + hashed + ", second: " + hashed + "}\n"},
		"user with a number's name":  {"basic_auth_users: {007: " + hashed + "}\n"},
		"login in quotes":            {"basic_auth_users:\n  'prometheus': \"" + hashed + "\"\n"},
		"NoClientCert":               {"tls_server_config: {" + pair + ", client_auth_type: NoClientCert}\n"},
		"verified certificate":       {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert}\n"},
		"verified if given":          {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven}\n"},
		"any certificate":            {"tls_server_config: {" + pair + ", client_auth_type: RequireAnyClientCert}\n"},
		"certificate requested":      {"tls_server_config: {" + pair + ", client_auth_type: RequestClientCert}\n"},
		"certificate and login":      {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert}\nbasic_auth_users: {prometheus: " + hashed + "}\n"},
		"allowed name":               {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [one, 127.0.0.1]}\n"},
		"other name":                 {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [one]}\n"},
		"no name":                    {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: []}\n"},
		"name if given":              {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven, client_allowed_sans: [127.0.0.1]}\n"},
		"TLS 1.3 alone":              {"tls_server_config: {" + pair + ", min_version: TLS13}\n"},
		"alias":                      {"tls_server_config: {cert_file: &name tls.crt, key_file: tls.key, client_ca_file: *name, client_auth_type: VerifyClientCertIfGiven}\n"},
		"logins added and removed":   {"{}\n", "basic_auth_users: {second: " + hashed + "}\n", "{}\n"},
		"password changed":           {"basic_auth_users: {prometheus: " + hashed + "}\n", "basic_auth_users: {prometheus: " + hashOf(t, "hunter3", 4) + "}\n"},
		"certificate required later": {"tls_server_config: {" + pair + "}\n", "tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert}\n"},
		"name allowed no more": {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [127.0.0.1]}\n",
			"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [one]}\n"},
		"file broken later": {"basic_auth_users: {prometheus: " + hashed + "}\n", "basic_auth_user: {prometheus: " + hashed + "}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			mine, oracle := s, &site{t: t, authority: s.authority, other: s.other, dir: s.dir, failed: make(chan error, 1)}
			for i, text := range texts {
				s.write(text)
				if i == 0 {
					if err := Validate(s.path()); err != nil {
						t.Fatal(err)
					}
					mine.start(ours)
					oracle.start(theirs)
				}
				for _, p := range s.probes() {
					if got, want := mine.ask(s.client(p), p), oracle.ask(s.client(p), p); got != want {
						t.Errorf("%s:\n%s sees %s\nwant %s", text, p.name, got, want)
					}
				}
			}
			if mine.served.Load() != oracle.served.Load() {
				t.Errorf("served %d requests, want %d", mine.served.Load(), oracle.served.Load())
			}
		})
	}
}

// mistakes are files that cannot be used, with words of the error.
var mistakes = map[string]struct {
	text string
	want []string
	// lenient says that Prometheus' library takes the file, for what the comment says.
	lenient bool
}{
	"unknown section":       {"basic_users: {}\n", []string{"line 1: basic_users is unknown", "remove it"}, false},
	"unknown key":           {"tls_server_config:\n  cert_filse: tls.crt\n", []string{"line 2: cert_filse is unknown"}, false},
	"two unknown keys":      {"a: 1\nb: 2\n", []string{"a is unknown", "b is unknown"}, false},
	"repeated section":      {"basic_auth_users: {}\nbasic_auth_users: {}\n", []string{"line 2: "}, false},
	"repeated user":         {"basic_auth_users: {prometheus: " + hashed + ", prometheus: " + hashed + "}\n", []string{"already defined"}, false},
	"text":                  {"hunter2\n", []string{"line 1: ", "into a mapping"}, false},
	"list":                  {"basic_auth_users: [hunter2]\n", []string{"into a mapping"}, false},
	"mapping for a string":  {"basic_auth_users: {prometheus: {hunter2: a}}\n", []string{"into string"}, false},
	"text for a list":       {"tls_server_config: {" + pair + ", client_allowed_sans: {hunter2: a}}\n", []string{"[]string"}, false},
	"syntax":                {"basic_auth_users: {prometheus: hunter2\n", []string{"line 1"}, false},
	"anchor":                {"basic_auth_users: {prometheus: *hunter2}\n", []string{"unknown anchor"}, false},
	"tag":                   {"basic_auth_users: {prometheus: !!int hunter2}\n", []string{"cannot decode"}, false},
	"tag for a mapping":     {"basic_auth_users: !hunter2\n", []string{"into a mapping"}, false},
	"password":              {"basic_auth_users: {prometheus: hunter2}\n", []string{"bcrypt hash", "htpasswd"}, false},
	"no password":           {"basic_auth_users: {prometheus: }\n", []string{"bcrypt hash"}, false},
	"cut hash":              {"basic_auth_users: {prometheus: " + hashed[:40] + "}\n", []string{"bcrypt hash"}, false},
	"name and hash swapped": {"basic_auth_users: {" + hashed + ": prometheus}\n", []string{"bcrypt hash"}, false},
	"no space":              {"basic_auth_users: {prometheus:" + hashed + "}\n", []string{"a space"}, false},
	"no space at the root":  {"prometheus:" + hashed + ": a\n", []string{"a key is unknown"}, false},
	"no certificate":        {"tls_server_config: {key_file: tls.key}\n", []string{"cert_file and key_file"}, false},
	"no key":                {"tls_server_config: {cert_file: tls.crt}\n", []string{"cert_file and key_file"}, false},
	"neither, but a policy": {"tls_server_config: {client_auth_type: NoClientCert}\n", []string{"cert_file and key_file"}, false},
	"missing certificate":   {"tls_server_config: {cert_file: gone.crt, key_file: tls.key}\n", []string{"cert_file", "gone.crt: no such file"}, false},
	"missing key":           {"tls_server_config: {cert_file: tls.crt, key_file: gone.key}\n", []string{"key_file", "gone.key: no such file"}, false},
	"key for a file":        {"tls_server_config: {cert_file: tls.crt, key_file: <KEY>}\n", []string{"names of files"}, false},
	"another key":           {"tls_server_config: {cert_file: tls.crt, key_file: ca.key}\n", []string{"cert_file and key_file", "does not match"}, false},
	"missing authority":     {"tls_server_config: {" + pair + ", client_ca_file: gone.crt, client_auth_type: RequireAndVerifyClientCert}\n", []string{"client_ca_file", "gone.crt: no such file"}, false},
	"authority, no policy":  {"tls_server_config: {" + pair + ", client_ca_file: ca.crt}\n", []string{"client_ca_file", "client_auth_type"}, false},
	"unknown policy":        {"tls_server_config: {" + pair + ", client_auth_type: Always}\n", []string{`client_auth_type: "Always" is unknown`, "RequireAndVerifyClientCert"}, false},
	"unknown version":       {"tls_server_config: {" + pair + ", min_version: TLS111}\n", []string{`min_version: "TLS111" is unknown`, "TLS12, TLS13"}, false},

	// It would serve plain HTTP.
	"TLS without certificate": {"tls_server_config: {min_version: TLS13}\n", []string{"cert_file and key_file"}, true},
	"nothing about TLS":       {"tls_server_config: {}\n", []string{"cert_file and key_file"}, true},
	// It would admit everybody.
	"names, no policy":    {"tls_server_config: {" + pair + ", client_allowed_sans: [one]}\n", []string{"client_allowed_sans", "client_auth_type"}, true},
	"names, not verified": {"tls_server_config: {" + pair + ", client_allowed_sans: [127.0.0.1], client_auth_type: RequireAnyClientCert}\n", []string{"client_allowed_sans", "client_auth_type"}, true},
	"nobody verifies":     {"tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAnyClientCert}\n", []string{"client_ca_file", "client_auth_type"}, true},
	"users in comments":   {"basic_auth_users:\n  # prometheus: " + hashed + "\n", []string{"line 1", "no value"}, true},
	"null for TLS":        {"tls_server_config:\n", []string{"line 1", "no value"}, true},
	"null for names":      {"tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans:\n", []string{"line 6", "no value"}, true},
	"a beginning":         {"---\n", []string{"no value"}, true},
	// It would admit whom any public authority knows.
	"authority of the system": {"tls_server_config: {" + pair + ", client_auth_type: RequireAndVerifyClientCert}\n", []string{"client_ca_file", "client_auth_type"}, true},
	// It would ignore the second.
	"two documents": {"{}\n---\nbasic_auth_users: {prometheus: " + hashed + "}\n", []string{"second YAML document"}, true},
	// It would serve nobody.
	"no authority in the file": {"tls_server_config: {" + pair + ", client_ca_file: none.crt, client_auth_type: RequireAndVerifyClientCert}\n", []string{"no certificate"}, true},
	// No client can send such a name.
	"colon in a name": {"basic_auth_users: {\"a:b\": " + hashed + "}\n", []string{"basic_auth_users"}, true},
	// This package does without them.
	"old version":       {"tls_server_config: {" + pair + ", min_version: TLS10}\n", []string{"min_version"}, true},
	"inline":            {"tls_server_config: {cert: <CERT>, key: <KEY>}\n", []string{"cert is unknown or not supported", "key is unknown or not supported"}, true},
	"cipher suites":     {"tls_server_config: {" + pair + ", min_version: TLS13, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]}\n", []string{"cipher_suites is unknown or not supported"}, true},
	"HTTP":              {"http_server_config: {http2: false}\n", []string{"http_server_config is unknown or not supported"}, true},
	"limit of requests": {"rate_limit: {interval: 1h, burst: 1}\n", []string{"rate_limit is unknown or not supported"}, true},
}

// TestMistakesAreRefusedWithoutSecrets: both libraries refuse a file, and the error names
// the culprit and the remedy.
func TestMistakesAreRefusedWithoutSecrets(t *testing.T) {
	for name, c := range mistakes {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write(c.text)
			err := Validate(s.path())
			if err == nil {
				t.Fatalf("taken: %s", c.text)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
			}
			for _, secret := range []string{"hunter2", "ter2", "$2a$", hashed[7:20], "BEGIN", "webconfig."} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%v has %s", err, secret)
				}
			}
			s.start(ours)
			if err := <-s.failed; err == nil {
				t.Error("served")
			}
			s.start(theirs)
			if c.lenient {
				if got := web.Validate(s.path()); got != nil {
					t.Errorf("Prometheus' library refuses it, too: %v", got)
				}
			} else if err := <-s.failed; err == nil {
				t.Error("Prometheus' library serves")
			}
		})
	}
}

// TestWhatCannotBeUsedAfterAChangeServesNobody: neither new clients nor those with an open
// connection, until the file is good again.
func TestWhatCannotBeUsedAfterAChangeServesNobody(t *testing.T) {
	const (
		login   = "basic_auth_users: {prometheus: " + hashed + "}\n"
		secured = "tls_server_config: {" + pair + "}\n"
	)
	broken := map[string]string{
		"empty": "", "cut off": "basic_auth_users: {prometheus: ", "no hash": "basic_auth_users: {prometheus: hunter2}\n", "unknown key": "basic_auth_user: {}\n",
		"unknown version": "tls_server_config: {" + pair + ", min_version: TLS9}\n" + login, "unknown policy": "tls_server_config: {" + pair + ", client_auth_type: Always}\n" + login,
	}
	for name, c := range map[string]struct {
		good, other string
		probe       probe
	}{
		"TLS":   {secured + login, login, probe{scheme: "https", user: "prometheus", password: "hunter2"}},
		"plain": {login, secured + login, probe{scheme: "http", user: "prometheus", password: "hunter2"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write(c.good)
			s.start(ours)
			open := s.client(c.probe)
			good := s.ask(open, c.probe)
			if !strings.HasPrefix(good, "200 ") {
				t.Fatal(good)
			}
			change := func(what string) {
				t.Helper()
				before := s.served.Load()
				if got := s.ask(open, c.probe); !strings.HasPrefix(got, "500 ") {
					t.Errorf("%s: an open connection sees %s", what, got)
				}
				if got := s.ask(s.client(c.probe), c.probe); !strings.HasPrefix(got, "500 ") && got != "no answer" {
					t.Errorf("%s: a new connection sees %s", what, got)
				}
				if s.served.Load() != before {
					t.Errorf("%s: served", what)
				}
				s.write(c.good)
				if got := s.ask(open, c.probe); got != good {
					t.Errorf("after %s: an open connection sees %s", what, got)
				}
				if got := s.ask(s.client(c.probe), c.probe); got != good {
					t.Errorf("after %s: a new connection sees %s", what, got)
				}
			}
			for what, text := range broken {
				s.write(text)
				change(what)
			}
			s.write(c.other)
			change("TLS on or off")
			if err := os.Remove(s.path()); err != nil {
				t.Fatal(err)
			}
			change("no file")
		})
	}
}

// TestABadKeyAfterAChangeEndsHandshakes: a certificate whose key is not its own is not
// replaced by the last good one.
func TestABadKeyAfterAChangeEndsHandshakes(t *testing.T) {
	s := newSite(t)
	s.write("tls_server_config: {" + pair + "}\n")
	s.start(ours)
	p := probe{scheme: "https"}
	if got := s.ask(s.client(p), p); !strings.HasPrefix(got, "200 ") {
		t.Fatal(got)
	}
	authtest.WriteFile(t, filepath.Join(s.dir, "tls.key"), s.otherKey())
	if got := s.ask(s.client(p), p); got != "no answer" || s.served.Load() != 1 {
		t.Errorf("a client sees %s", got)
	}
}

// TestAResumedSessionIsNotAdmittedByAnOldFile: the client remembers the session.
func TestAResumedSessionIsNotAdmittedByAnOldFile(t *testing.T) {
	s := newSite(t)
	admitting := "tls_server_config: {" + pair + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [%s]}\n"
	s.write(fmt.Sprintf(admitting, "127.0.0.1"))
	s.start(ours)
	sessions := tls.NewLRUClientSessionCache(8)
	p := probe{scheme: "https", signer: s.authority, change: func(c *tls.Config) { c.ClientSessionCache = sessions }}
	client := s.client(p)
	if got := s.ask(client, p); !strings.HasPrefix(got, "200 ") {
		t.Fatal(got)
	}
	client.CloseIdleConnections()
	s.write(fmt.Sprintf(admitting, "another"))
	if got := s.ask(client, p); got != "no answer" {
		t.Errorf("the client sees %s", got)
	}
}

// TestAProblemIsLoggedOnce: clients cannot fill the log, which has no secrets.
func TestAProblemIsLoggedOnce(t *testing.T) {
	s := newSite(t)
	s.write("basic_auth_users: {prometheus: " + hashed + "}\n")
	var text strings.Builder
	logger := slog.New(slog.NewTextHandler(&text, nil))
	g := &guard{path: s.path(), logger: logger, next: http.NotFoundHandler(), logins: newLogins(), complaints: map[string]string{}}
	for _, broken := range []string{"basic_auth_users: {prometheus: hunter2}\n", "basic_auth_users: {}\n", "basic_auth_users: {prometheus: hunter2}\n"} {
		s.write(broken)
		for range 3 {
			c, err := g.current()
			g.note("request", err)
			if (err == nil) != slices.Contains([]string{"basic_auth_users: {}\n"}, broken) {
				t.Errorf("%s: %v %v", broken, c, err)
			}
		}
	}
	if n := strings.Count(text.String(), "a bcrypt hash"); n != 2 || strings.Contains(text.String(), "hunter2") {
		t.Errorf("logged %d times: %s", n, text.String())
	}
}
