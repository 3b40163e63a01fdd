package backends

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/breaker"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

var gold = Config{Name: "gold", Auth: auth.Config{Source: auth.Source{Cloud: "gold"}}}

// gate delays the requests of a handler until it is opened.
type gate struct {
	arrived chan struct{}
	open    chan struct{}
	handler http.HandlerFunc
}

func newGate(handler http.HandlerFunc) *gate {
	return &gate{arrived: make(chan struct{}, 1000), open: make(chan struct{}), handler: handler}
}

func (g *gate) serve(w http.ResponseWriter, r *http.Request) {
	g.arrived <- struct{}{}
	<-g.open
	g.handler(w, r)
}

func TestManyLookupsShareOneLogin(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	slow := newGate(cloud.Token)
	cloud.Keystone = slow.serve
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	const callers = 100
	clients := make([]*cinder.Client, callers)
	var started, done sync.WaitGroup
	for i := range callers {
		started.Add(1)
		done.Go(func() {
			started.Done()
			client, err := pool.Client(t.Context(), gold)
			if err != nil {
				t.Error(err)
			}
			clients[i] = client
		})
	}
	started.Wait()
	<-slow.arrived
	close(slow.open)
	done.Wait()
	if n := cloud.LoginCount(); n != 1 {
		t.Errorf("%d logins, want 1", n)
	}
	for _, client := range clients {
		if client != clients[0] {
			t.Fatal("the callers have different clients")
		}
	}
}

func TestLoginOutlivesTheFirstCaller(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	slow := newGate(cloud.Token)
	cloud.Keystone = slow.serve
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := pool.Client(ctx, gold)
		first <- err
	}()
	<-slow.arrived
	second := make(chan error)
	go func() {
		_, err := pool.Client(t.Context(), gold)
		second <- err
	}()
	cancel()
	err := <-first
	equal(t, authtest.ErrorText(err), "backend gold: auth.login: the request was canceled")
	if !errors.Is(err, context.Canceled) || effectUnknown(err) {
		t.Errorf("the canceled caller got %#v", err)
	}
	close(slow.open)
	if err := <-second; err != nil {
		t.Errorf("the caller that stayed got %v", err)
	}
	equal(t, cloud.LoginCount(), 1)
}

// logins returns the number of logins with an outcome.
func logins(t *testing.T, registry *prometheus.Registry, outcome string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "standalone_cinder_logins_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "outcome" && label.GetValue() == outcome {
					return metric.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

func TestFailedLoginIsNotKept(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Keystone = func(w http.ResponseWriter, _ *http.Request) { cindertest.Answer(w, http.StatusServiceUnavailable, "") }
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: metrics})
	_, err := pool.Client(t.Context(), gold)
	equal(t, authtest.ErrorText(err), "backend gold: auth.login: the answer is service unavailable (HTTP 503)")
	equal(t, cinder.KindOf(err), cinder.KindUnavailable)
	cloud.Set(func() { cloud.Keystone = nil })
	if _, err := pool.Client(t.Context(), gold); err != nil {
		t.Errorf("after Keystone came back: %v", err)
	}
	for range 3 {
		if _, err := pool.Client(t.Context(), gold); err != nil {
			t.Error(err)
		}
	}
	equal(t, logins(t, registry, "failure"), 1.0)
	equal(t, logins(t, registry, "success"), 1.0)
	equal(t, testutil.ToFloat64(metrics.pool.WithLabelValues("gold", "miss")), 2.0)
	equal(t, testutil.ToFloat64(metrics.pool.WithLabelValues("gold", "hit")), 3.0)
}

func TestCatalogIsReadOnce(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	for range 10 {
		client, err := pool.Client(t.Context(), gold)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, cloud.LoginCount(), 1)
	want := "GET /volume/v3/0123456789abcdef0123456789abcdef/volumes/detail?sort=created_at%3Adesc"
	for _, path := range cloud.Paths() {
		equal(t, path, want)
	}
	equal(t, len(cloud.Paths()), 10)
}

func TestEvictionDoesNotBreakAClientInUse(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	slow := newGate(func(w http.ResponseWriter, _ *http.Request) { cindertest.Answer(w, http.StatusOK, `{"volumes": []}`) })
	cloud.Cinder = slow.serve
	pool := NewPool(PoolOptions{Size: 1, Sources: cloud.Clouds(cindertest.PasswordCloud + strings.Replace(strings.TrimPrefix(cindertest.PasswordCloud, "\nclouds:\n"), "gold", "zinc", 1)), Metrics: testMetrics()})
	client, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	list := func() error {
		return client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true })
	}
	result := make(chan error)
	go func() { result <- list() }()
	<-slow.arrived
	if _, err := pool.Client(t.Context(), Config{Name: "zinc", Auth: auth.Config{Source: auth.Source{Cloud: "zinc"}}}); err != nil {
		t.Fatal(err)
	}
	close(slow.open)
	if err := <-result; err != nil {
		t.Errorf("the request under way: %v", err)
	}
	if err := list(); err != nil {
		t.Errorf("the next request of the evicted client: %v", err)
	}
	again, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	if again == client {
		t.Error("the client was not evicted")
	}
	equal(t, cloud.LoginCount(), 3)
}

func TestChangedCredentialsArePickedUp(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Nanosecond})
	before, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	same, err := pool.Client(t.Context(), gold)
	if err != nil || same != before {
		t.Errorf("without a change: client %p and error %v, want %p", same, err, before)
	}
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(cindertest.PasswordCloud, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
	after, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	if after == before {
		t.Error("the old client is still in use")
	}
	equal(t, cloud.LastLogin()["auth"].(map[string]any)["identity"].(map[string]any)["password"].(map[string]any)["user"].(map[string]any)["password"], any("n3w"))
	if err := before.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true }); err != nil {
		t.Errorf("a caller that still uses the old client: %v", err)
	}
	changed := gold
	changed.Limits.Concurrency = 3
	if other, err := pool.Client(t.Context(), changed); err != nil || other == after {
		t.Errorf("a changed configuration gives the same client (error %v)", err)
	}
	equal(t, cloud.LoginCount(), 3)
}

func TestCredentialsAreNotReadWithinTheirAge(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Hour})
	before, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	authtest.WriteFile(t, sources.CloudsFile, "not: read")
	if client, err := pool.Client(t.Context(), gold); err != nil || client != before {
		t.Errorf("client %p and error %v, want %p", client, err, before)
	}
	other := gold
	other.Auth.Region = "RegionTwo"
	if _, err := pool.Client(t.Context(), other); !cinder.IsKind(err, cinder.KindConfig) {
		t.Errorf("with a changed configuration: %v, want the broken file", err)
	}
	pool.forget(loggedIn{before})
	logins := cloud.LoginCount()
	if client, err := pool.Client(t.Context(), gold); err != nil || client == before || cloud.LoginCount() != logins+1 {
		t.Errorf("after Forget: client %p and error %v, want a login with the last good credentials", client, err)
	}
}

func TestForgetLeavesANewerClient(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	old, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	pool.forget(loggedIn{old})
	current, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	pool.forget(loggedIn{old})
	if again, _ := pool.Client(t.Context(), gold); again != current {
		t.Error("forgetting the old client dropped the new one")
	}
}

func TestExpiredTokenIsRenewedOnce(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	registry := prometheus.NewRegistry()
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: NewMetrics(registry)})
	client, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	cloud.Revoke()
	var group sync.WaitGroup
	for range 30 {
		group.Go(func() {
			if err := client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true }); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	equal(t, cloud.LoginCount(), 2)
	equal(t, logins(t, registry, "success"), 2.0)
	if again, _ := pool.Client(t.Context(), gold); again != client {
		t.Error("a renewed token changed the client")
	}
}

// TestRenewalOutlivesTheFirstCaller would fail if the renewal used the context
// of the request that got the 401 first: all other requests would be canceled
// too.
func TestRenewalOutlivesTheFirstCaller(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	client, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	slow := newGate(cloud.Token)
	cloud.Set(func() { cloud.Keystone = slow.serve })
	cloud.Revoke()
	list := func(ctx context.Context) chan error {
		result := make(chan error, 1)
		go func() {
			result <- client.ListVolumes(ctx, cinder.Query{}, func([]cinder.Volume) bool { return true })
		}()
		return result
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := list(ctx)
	<-slow.arrived
	second := list(t.Context())
	cancel()
	close(slow.open)
	<-first
	if err := <-second; err != nil {
		t.Errorf("the caller that stayed got %v", err)
	}
	equal(t, cloud.LoginCount(), 2)
}

func TestRevokedPasswordIsReplacedFromTheFile(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Password = "s3cr3t"
	sources := cloud.Clouds(cindertest.PasswordCloud)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Hour})
	s := testSession(t.Context(), pool)
	list := func() error {
		return read(t.Context(), s, func(_ context.Context, client Cinder) error {
			return client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true })
		})
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}
	cloud.Set(func() { cloud.Password = "n3w" })
	cloud.Revoke()
	err := list()
	equal(t, authtest.ErrorText(err), "backend gold: auth.login: the credentials were rejected; check user, password, project and domains; unless they change, the next login waits 1 to 60 minutes, so that the account is not locked (HTTP 401)")
	equal(t, cinder.KindOf(err), cinder.KindUnauthorized)
	equal(t, cloud.LoginCount(), 2)
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(cindertest.PasswordCloud, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
	if err := list(); err != nil {
		t.Errorf("after the file was fixed: %v", err)
	}
}

// TestRejectedPasswordIsSentOnce has two backends log in with one password that
// was changed at Keystone, from many goroutines, after their tokens were revoked.
func TestRejectedPasswordIsSentOnce(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Password = "s3cr3t"
	zinc := Config{Name: "zinc", Auth: auth.Config{Source: auth.Source{Cloud: "zinc"}}}
	text := cindertest.PasswordCloud + strings.Replace(strings.TrimPrefix(cindertest.PasswordCloud, "\nclouds:\n"), "gold", "zinc", 1)
	sources := cloud.Clouds(text)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Nanosecond})
	list := func(config Config) error {
		s := testSession(t.Context(), pool)
		s.config = func() Config { return config }
		return read(t.Context(), s, func(ctx context.Context, client Cinder) error {
			return client.ListVolumes(ctx, cinder.Query{}, func([]cinder.Volume) bool { return true })
		})
	}
	for _, config := range []Config{gold, zinc} {
		equal(t, authtest.ErrorText(list(config)), "")
	}
	before := cloud.LoginCount()
	cloud.Set(func() { cloud.Password = "n3w" })
	cloud.Revoke()
	var group sync.WaitGroup
	for _, config := range []Config{gold, zinc} {
		for range 20 {
			group.Go(func() {
				if err := list(config); !cinder.IsKind(err, cinder.KindUnauthorized) {
					t.Errorf("%s: %v", config.Name, err)
				}
			})
		}
	}
	group.Wait()
	equal(t, cloud.LoginCount()-before, 1)
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(text, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
	for _, config := range []Config{gold, zinc} {
		equal(t, authtest.ErrorText(list(config)), "")
	}
}

// TestMutationAfterRevokedPassword makes a change with a client whose password
// was replaced: a rejected request had no effect and is repeated.
func TestMutationAfterRevokedPassword(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Password = "s3cr3t"
	cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) { cindertest.Answer(w, http.StatusAccepted, "") }
	sources := cloud.Clouds(cindertest.PasswordCloud)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Hour})
	if _, err := pool.Client(t.Context(), gold); err != nil {
		t.Fatal(err)
	}
	cloud.Set(func() { cloud.Password = "n3w" })
	cloud.Revoke()
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(cindertest.PasswordCloud, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
	s := testSession(t.Context(), pool)
	err := change(t.Context(), s, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, "v1") })
	equal(t, authtest.ErrorText(err), "")
	equal(t, len(cloud.Paths()), 2) // rejected, accepted
}

func TestBackendsSideBySideDoNotMix(t *testing.T) {
	clouds := []*cindertest.Cloud{cindertest.NewCloud(t), cindertest.NewCloud(t)}
	noauth := cindertest.NewCloud(t)
	text := "clouds:\n"
	for i, cloud := range clouds {
		text += fmt.Sprintf("  cloud%d: {auth: {auth_url: %s/identity, user_id: user%d, password: password%d, project_id: x}}\n", i, cloud.URL, i, i)
	}
	dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": text})
	pool := NewPool(PoolOptions{Sources: auth.Sources{CloudsFile: filepath.Join(dir, "clouds.yaml")}, Metrics: testMetrics()})
	var group sync.WaitGroup
	for i := range 3 {
		config := Config{Name: fmt.Sprintf("backend%d", i), Auth: auth.Config{Source: auth.Source{Cloud: fmt.Sprintf("cloud%d", i)}}}
		if i == 2 {
			config.Auth.Source = auth.Source{Noauth: &auth.Noauth{Endpoint: noauth.URL, Project: "0123abcd"}}
		}
		for range 10 {
			group.Go(func() {
				client, err := pool.Client(t.Context(), config)
				if err != nil {
					t.Error(err)
					return
				}
				if err := client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true }); err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	for i, cloud := range clouds {
		equal(t, cloud.LoginCount(), 1)
		user := cloud.LastLogin()["auth"].(map[string]any)["identity"].(map[string]any)["password"].(map[string]any)["user"].(map[string]any)
		equal(t, user, map[string]any{"id": fmt.Sprintf("user%d", i), "password": fmt.Sprintf("password%d", i)})
		equal(t, len(cloud.Paths()), 10)
	}
	for _, r := range noauth.Requests() {
		equal(t, r.Header.Get("X-Auth-Token"), "admin:0123abcd")
	}
}

func TestUnusableCredentialsAskNothing(t *testing.T) {
	pool := NewPool(PoolOptions{Sources: auth.Sources{CloudsFile: "/nowhere/clouds.yaml"}, Metrics: testMetrics()})
	_, err := pool.Client(t.Context(), gold)
	equal(t, authtest.ErrorText(err), "backend gold: cannot read /nowhere/clouds.yaml: no such file or directory")
}

// TestRenewalOfAProbeIsBoundedLikeTheProbe: otherwise it would hang on a silent
// Keystone for as long as a request may take.
func TestRenewalOfAProbeIsBoundedLikeTheProbe(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	patient := gold
	patient.Timeouts.Request = time.Hour
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	client, err := pool.Client(t.Context(), patient)
	if err != nil {
		t.Fatal(err)
	}
	silent := newGate(cloud.Token)
	t.Cleanup(func() { close(silent.open) })
	cloud.Set(func() { cloud.Keystone = silent.serve })
	cloud.Revoke()
	err = client.ListVolumes(cinder.WithRequestTimeout(t.Context(), 200*time.Millisecond), cinder.Query{}, func([]cinder.Volume) bool { return true })
	equal(t, authtest.ErrorText(err), "backend gold: auth.login: no answer in time")
}

// TestVersionFollowsTheWholeConfiguration: a client is made for one connector
// and one set of limits.
func TestVersionFollowsTheWholeConfiguration(t *testing.T) {
	pool := NewPool(PoolOptions{Metrics: testMetrics()})
	seen := map[string]string{}
	for name, change := range map[string]func(*Config){
		"nothing":     func(*Config) {},
		"connector":   func(c *Config) { c.Connector.Host = "k8s" },
		"concurrency": func(c *Config) { c.Limits.Concurrency = 3 },
		"endpoint":    func(c *Config) { c.Auth.Source.Noauth = &auth.Noauth{Endpoint: "http://d"} },
	} {
		config := Config{Name: "b", Auth: auth.Config{Source: auth.Source{Noauth: &auth.Noauth{Endpoint: "http://c"}}}}
		change(&config)
		version, err := pool.CheckCredentials(config)
		if before, known := seen[version]; err != nil || known {
			t.Errorf("%s has the version of %s, error %v", name, before, err)
		}
		seen[version] = name
	}
	_, err := pool.CheckCredentials(Config{Name: "b"})
	if !cinder.IsKind(err, cinder.KindConfig) || err.Error() != "backend b: no way to log in is configured; set one of auth.cloud, auth.noauth, auth.cloudConfig or auth.environment" {
		t.Errorf("%s error %v", cinder.KindOf(err), err)
	}
}

// TestTwoConfigurationsOfOneBackend: while a backend moves, operations that
// began before still use the earlier configuration.
func TestTwoConfigurationsOfOneBackend(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	var underWay, highest atomic.Int32
	cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
		now := underWay.Add(1)
		for before := highest.Load(); now > before && !highest.CompareAndSwap(before, now); before = highest.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		underWay.Add(-1)
		cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	earlier, later := gold, gold
	earlier.Limits.Concurrency, later.Limits.Concurrency = 2, 2
	later.Auth.Interface = "internal"
	var group sync.WaitGroup
	for i := range 40 {
		config := earlier
		if i%2 == 1 {
			config = later
		}
		group.Go(func() {
			client, err := pool.Client(t.Context(), config)
			if err != nil {
				t.Error(err)
				return
			}
			if err := client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true }); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	equal(t, cloud.LoginCount(), 2)
	if n := highest.Load(); n > 2 {
		t.Errorf("%d requests were under way at once, with a limit of 2", n)
	}
}

// TestTokensInPlainTextAreReported: Keystone has TLS, and its catalog names a
// Cinder without it.
func TestTokensInPlainTextAreReported(t *testing.T) {
	plain := cindertest.NewCloud(t)
	secure := cindertest.NewTLSCloud(t, func(*httptest.Server) {})
	for name, test := range map[string]struct {
		address string
		want    []string
	}{
		"http": {strings.Replace(plain.URL, "http://", "http://user:s3cr3t@", 1) + "/volume/v3/p", []string{"gold: Keystone is reached by https, but its service catalog lists block storage at " + plain.URL +
			"/volume/v3/p/: tokens cross the network in plain text; fix the catalog, or select another interface"}},
		"https": {secure.URL + "/volume/v3/p", nil},
	} {
		t.Run(name, func(t *testing.T) {
			secure.Set(func() { secure.Catalog = []any{cindertest.Entry("volumev3", "RegionOne", test.address)} })
			var warnings []string
			text := strings.Replace(cindertest.PasswordCloud, "    auth:", "    verify: false\n    auth:", 1)
			pool := NewPool(PoolOptions{Sources: secure.Clouds(text), Metrics: testMetrics(), Warn: func(backend, message string) {
				if !strings.Contains(message, "verify: false") {
					warnings = append(warnings, backend+": "+message)
				}
			}})
			for range 3 {
				if _, err := pool.Client(t.Context(), gold); err != nil {
					t.Fatal(err)
				}
			}
			equal(t, warnings, test.want)
		})
	}
}

// TestASilentKeystoneOpensEveryBreaker: two backends log in with one account, and
// its Keystone accepts connections but does not answer. While the login of gold
// waits for its answer, those of zinc give up waiting for their turn. That must
// count as a failure of zinc, although nothing was sent: while its breaker is
// closed, claims do not go on to the next backend of their rule, and each holds a
// worker for two request timeouts (2.5 minutes). With many backends on one
// account, most logins end this way whatever the timeouts are.
func TestASilentKeystoneOpensEveryBreaker(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	over, asked := make(chan struct{}), make(chan struct{}, 1)
	cloud.Keystone = func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}
	metrics := testMetrics()
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: metrics})
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() { close(over) })
	group.Go(func() { _, _ = pool.Client(context.Background(), gold) })
	<-asked

	zinc := Config{Name: "zinc", Auth: gold.Auth, Timeouts: Timeouts{Request: 20 * time.Millisecond}}
	l := NewLifecycle(LifecycleOptions{Config: zinc, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(), Logger: discard(), Metrics: metrics})
	var last error
	for range 2 * breaker.DefaultFailuresToOpen {
		if _, last = l.Volumes(t.Context()); last == nil {
			t.Fatal("a silent Keystone gave a token")
		}
	}
	if l.Health() == nil {
		t.Errorf("%d requests have failed in a row, and the breaker is closed; last failure: %v", 2*breaker.DefaultFailuresToOpen, last)
	}
}

// TestOneUserOfManyProjectsIsNotLocked: a service user often has a project for each
// tenant, hence a backend for each. Its password is changed at Keystone, which
// counts failures by user, whatever project they ask for. If each of twelve
// backends sent the wrong password, a Keystone that locks after five failures
// (lockout_failure_attempts) would lock the user for everybody.
func TestOneUserOfManyProjectsIsNotLocked(t *testing.T) {
	const projects, lockedAfter = 12, 5
	cloud := cindertest.NewCloud(t)
	cloud.Password = "changed"
	text := "clouds:\n"
	for i := range projects {
		text += fmt.Sprintf("  p%d: {region_name: RegionOne, auth: {auth_url: $URL, username: kube, password: s3cr3t, user_domain_name: Default, project_name: p%d, project_domain_name: Default}}\n", i, i)
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(text), Metrics: testMetrics()})
	for i := range projects {
		name := fmt.Sprintf("p%d", i)
		if _, err := pool.Client(t.Context(), Config{Name: name, Auth: auth.Config{Source: auth.Source{Cloud: name}}}); !cinder.IsKind(err, cinder.KindUnauthorized) {
			t.Fatal(err)
		}
	}
	if got := cloud.LoginCount(); got >= lockedAfter {
		t.Errorf("%d logins with one user and a wrong password, and %d lock it", got, lockedAfter)
	}
}

// TestClientOfACallerInAHurry: a client that is logged in is there, whatever the caller's
// context.
func TestClientOfACallerInAHurry(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics(), CredentialsAge: time.Nanosecond})
	if _, err := pool.Client(t.Context(), gold); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if _, err := pool.Client(ctx, gold); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryLookupCounts: callers that wait for one login each count as a look-up that
// found no client.
func TestEveryLookupCounts(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	slow := newGate(cloud.Token)
	cloud.Keystone = slow.serve
	registry := prometheus.NewRegistry()
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: NewMetrics(registry)})
	var group sync.WaitGroup
	const callers = 10
	for range callers {
		group.Go(func() { _, _ = pool.Client(t.Context(), gold) })
	}
	<-slow.arrived
	time.Sleep(100 * time.Millisecond)
	close(slow.open)
	group.Wait()
	want := `
# HELP standalone_cinder_client_pool_lookups_total Look-ups of a logged-in client by result: hit, miss, or changed when configuration or credentials changed.
# TYPE standalone_cinder_client_pool_lookups_total counter
standalone_cinder_client_pool_lookups_total{backend="gold",result="miss"} 10
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "standalone_cinder_client_pool_lookups_total"); err != nil {
		t.Error(err)
	}
}
