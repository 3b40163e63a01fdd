package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// hashed is the bcrypt hash of the password hunter2.
const hashed = "$2a$04$lNuS1TAKld8P.ZqmBhGvBehNoDjWHbqXKbDhMMFIcT8WtE1l8B9tm"

// serving returns a replica that serves, with its web configuration and certificates
// in a directory.
func serving(t *testing.T, authority *authtest.Authority, webConfig string) (s *starter, dir string) {
	t.Helper()
	_, _, cert, key := authority.Issue("server", false)
	dir = authtest.WriteFiles(t, map[string]string{"web.yaml": webConfig, "tls.crt": cert, "tls.key": key, "ca.crt": authority.PEM})
	s = newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
	_ = s.server.listener.Close()
	s.options.WebConfigFile, s.options.HealthListen = filepath.Join(dir, "web.yaml"), "127.0.0.1:0"
	if err := s.server.listen(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	s.server.serve(ctx)
	return s, dir
}

// get returns the status of an answer, or the text of the error.
func get(client *http.Client, url, user, password string) (status int, text string) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if user != "" {
		request.SetBasicAuth(user, password)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

func clientOf(authority *authtest.Authority, certificates ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authority.PEM))
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}}
}

func TestMetricsNeedTheLoginOfTheWebConfiguration(t *testing.T) {
	authority := authtest.NewAuthority(t)
	webConfig := "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\nbasic_auth_users: {prometheus: " + hashed + "}\n"
	s, dir := serving(t, authority, webConfig)
	client, url := clientOf(authority), "https://"+s.Address()+"/metrics"
	for _, c := range []struct {
		user, password string
		status         int
	}{
		{"prometheus", "hunter2", http.StatusOK},
		{"prometheus", "wrong", http.StatusUnauthorized},
		{"another", "hunter2", http.StatusUnauthorized},
		{"", "", http.StatusUnauthorized},
	} {
		if status, text := get(client, url, c.user, c.password); status != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.user, c.password, status, text, c.status)
		}
	}
	if status, text := get(client, "http://"+s.Address()+"/metrics", "prometheus", "hunter2"); status != http.StatusBadRequest {
		t.Errorf("without TLS: %d %s", status, text)
	}
	// The kubelet has no credentials, and needs none.
	health := "http://" + s.server.healthListener.Addr().String()
	if status, text := get(client, health+"/healthz", "", ""); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, text)
	}
	if status, _ := get(client, health+"/readyz", "", ""); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz of a replica that has not started: %d", status)
	}
	for _, path := range []string{"/metrics", "/"} {
		if status, _ := get(client, health+path, "", ""); status != http.StatusNotFound {
			t.Errorf("the port for health serves %s: %d", path, status)
		}
	}
	// A new certificate and new logins need no restart.
	other := authtest.NewAuthority(t)
	_, _, cert, key := other.Issue("server", false)
	authtest.WriteFile(t, filepath.Join(dir, "tls.crt"), cert)
	authtest.WriteFile(t, filepath.Join(dir, "tls.key"), key)
	authtest.WriteFile(t, filepath.Join(dir, "web.yaml"), strings.Replace(webConfig, "prometheus", "another", 1))
	if status, text := get(clientOf(other), url, "another", "hunter2"); status != http.StatusOK {
		t.Errorf("after a change of the files: %d %s", status, text)
	}
	if status, _ := get(clientOf(other), url, "prometheus", "hunter2"); status != http.StatusUnauthorized {
		t.Errorf("a login that was removed: %d", status)
	}
}

func TestMetricsNeedTheClientCertificateOfTheWebConfiguration(t *testing.T) {
	authority := authtest.NewAuthority(t)
	s, _ := serving(t, authority, "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert}\n")
	url := "https://" + s.Address() + "/metrics"
	pair := func(from *authtest.Authority) tls.Certificate {
		_, _, cert, key := from.Issue("prometheus", false)
		found, err := tls.X509KeyPair([]byte(cert), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if status, text := get(clientOf(authority, pair(authority)), url, "", ""); status != http.StatusOK {
		t.Errorf("with a certificate: %d %s", status, text)
	}
	if status, text := get(clientOf(authority), url, "", ""); status != 0 || !strings.Contains(text, "certificate required") {
		t.Errorf("without a certificate: %d %s", status, text)
	}
	if status, text := get(clientOf(authority, pair(authtest.NewAuthority(t))), url, "", ""); status != 0 {
		t.Errorf("with another authority's certificate: %d %s", status, text)
	}
}

func TestRunEndsAtOnceWithABadWebConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no file":          {"", "no such file"},
		"unknown field":    {"basic_users: {}\n", "basic_users"},
		"no key":           {"tls_server_config: {cert_file: tls.crt}\n", "key_file"},
		"missing files":    {"tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n", "tls.crt"},
		"password in text": {"basic_auth_users: {prometheus: hunter2}\n", "a bcrypt hash"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			if c.text != "" {
				files["web.yaml"] = c.text
			}
			path := filepath.Join(authtest.WriteFiles(t, files), "web.yaml")
			s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
			s.options.WebConfigFile, s.options.Metrics = path, prometheus.NewRegistry()
			_, err := New(s.options)
			if err == nil || !strings.HasPrefix(err.Error(), "--web-config-file "+path+" cannot be used") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestProfilesAreServedOnlyWhereNobodyElseReachesThem(t *testing.T) {
	for address, allowed := range map[string]bool{
		"": true, "127.0.0.1:6060": true, "127.8.9.10:0": true, "[::1]:6060": true, "[::ffff:127.0.0.1]:6060": true,
		":6060": false, "0.0.0.0:6060": false, "[::]:6060": false, "192.0.2.1:6060": false, "localhost:6060": false, "127.0.0.1": false, "6060": false, "[::ffff:192.0.2.1]:6060": false,
	} {
		options := Options{PolicyFile: "policy.yaml", Workers: 1, KubeQPS: 1, KubeBurst: 1, PprofAddress: address}
		err := options.Validate()
		if want := `--pprof-address is "` + address + `", which is not an IP address of the loopback interface with a port; give one, such as 127.0.0.1:6060, and reach it with kubectl port-forward`; allowed != (err == nil) || err != nil && err.Error() != want {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestProfilesHaveAPortOfTheirOwn(t *testing.T) {
	s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
	_ = s.server.listener.Close()
	s.options.PprofAddress = "127.0.0.1:0"
	if err := s.server.listen(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	s.server.serve(ctx)
	profiles := "http://" + s.server.pprofListener.Addr().String()
	for url, want := range map[string]int{
		profiles + "/debug/pprof/":                    http.StatusOK,
		profiles + "/debug/pprof/heap":                http.StatusOK,
		profiles + "/debug/pprof/goroutine?debug=1":   http.StatusOK,
		profiles + "/debug/pprof/profile?seconds=1":   http.StatusOK,
		profiles + "/metrics":                         http.StatusNotFound,
		profiles + "/":                                http.StatusNotFound,
		"http://" + s.Address() + "/debug/pprof/":     http.StatusNotFound,
		"http://" + s.Address() + "/debug/pprof/heap": http.StatusNotFound,
		"http://" + s.Address() + "/healthz":          http.StatusOK,
	} {
		if status, text := get(http.DefaultClient, url, "", ""); status != want {
			t.Errorf("%s: %d %s, want %d", url, status, text, want)
		}
	}
}

// stuckMetrics are not gathered until they are released.
type stuckMetrics struct {
	Metrics
	gathering, release chan struct{}
}

func (m *stuckMetrics) Gather() ([]*dto.MetricFamily, error) {
	select {
	case m.gathering <- struct{}{}:
	default:
	}
	<-m.release
	return nil, nil
}

// TestHealthDoesNotWaitForTheMetrics: while readers of the metrics wait, and others fill
// the port, the kubelet's probes are answered at once.
func TestHealthDoesNotWaitForTheMetrics(t *testing.T) {
	s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
	_ = s.server.listener.Close()
	metrics := &stuckMetrics{Metrics: s.options.Metrics, gathering: make(chan struct{}, 1), release: make(chan struct{})}
	s.options.Metrics = metrics
	s.options.HealthListen = "127.0.0.1:0"
	if err := s.server.listen(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	defer close(metrics.release)
	s.server.serve(ctx)
	for i := range 400 {
		c, err := net.Dial("tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil && i == 0 {
			t.Fatal(err)
		}
	}
	<-metrics.gathering
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if status, text := get(client, "http://"+s.server.healthListener.Addr().String()+"/healthz", "", ""); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, text)
	}
}

func TestNoPortIsLeftOpenIfOneIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
	_ = s.server.listener.Close()
	s.options.HealthListen, s.options.PprofAddress = "127.0.0.1:0", taken.Addr().String()
	if err := s.server.listen(); err == nil || !strings.HasPrefix(err.Error(), "--pprof-address "+s.options.PprofAddress+": listen tcp") {
		t.Fatalf("got %v", err)
	}
	for _, listener := range []net.Listener{s.server.listener, s.server.healthListener} {
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s is open: %v", listener.Addr(), err)
		}
	}
}
