package backends

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// wireClients provides a client whose requests are answered without a network.
type wireClients struct{ only *cinder.Client }

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func ok(body string) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}
}

// newWireClients logs in, and from then on lets next answer every request.
func newWireClients(t *testing.T, options cinder.Options, next tripper) *wireClients {
	t.Helper()
	options.Backend, options.Metrics = "gold", cinder.NewMetrics(prometheus.NewRegistry())
	options.Limits.Concurrency = cmp.Or(options.Limits.Concurrency, DefaultConcurrency)
	options.RequestTimeout = cmp.Or(options.RequestTimeout, DefaultRequestTimeout)
	var loggedIn atomic.Bool
	options.Base = tripper(func(r *http.Request) (*http.Response, error) {
		if !loggedIn.Load() {
			return ok(`{"volumes": []}`), nil
		}
		return next(r)
	})
	client, err := cinder.Login(t.Context(), auth.Credentials{Noauth: &auth.Noauth{Endpoint: "http://cinder/v3", User: "admin", Project: "admin"}}, options)
	if err != nil {
		t.Fatal(err)
	}
	loggedIn.Store(true)
	return &wireClients{client}
}

func (w *wireClients) client(context.Context, Config) (Cinder, error) { return loggedIn{w.only}, nil }
func (w *wireClients) forget(Cinder)                                  {}

// TestBlackHole: a backend that accepts requests and never answers. When that
// is detected, queued requests are rejected at once, whatever the pace. After
// that there is one request at a time, of at most 15 seconds.
func TestBlackHole(t *testing.T) {
	for name, limits := range map[string]turns.Limits{"unpaced": {Concurrency: 5}, "paced": {Concurrency: 5, RequestsPerSecond: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				sent, underWay, fixed := 0, 0, false
				wire := newWireClients(t, cinder.Options{Limits: limits}, func(r *http.Request) (*http.Response, error) {
					mu.Lock()
					sent++
					underWay++
					answers := fixed
					mu.Unlock()
					defer func() {
						mu.Lock()
						defer mu.Unlock()
						underWay--
					}()
					if answers {
						return ok(`{"volumes": []}`), nil
					}
					<-r.Context().Done()
					return nil, r.Context().Err()
				})
				w := newWatched(t, wire)
				defer w.end()
				time.Sleep(time.Second) // so that the pace forgets the login
				start := time.Now()
				var group sync.WaitGroup
				refused := 0
				for i := range 100 {
					group.Go(func() {
						var err error
						if i%2 == 0 {
							_, _, err = w.Find(t.Context(), fmt.Sprintf("volume-%d", i))
						} else {
							// A change, without the read before it.
							err = change(t.Context(), w.current().session, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, "v1") })
						}
						mu.Lock()
						defer mu.Unlock()
						if strings.Contains(authtest.ErrorText(err), "requests are blocked") {
							refused++
							if took := time.Since(start); took > 80*time.Second {
								t.Errorf("a call was rejected after %s", took)
							}
							equal(t, effectUnknown(err), false)
						} else {
							equal(t, effectUnknown(err), true)
							var failed *cinder.Error
							equal(t, errors.As(err, &failed), true)
							equal(t, failed.Message, "no answer in time")
						}
					})
				}
				group.Wait()
				// The first five, and those that got their slots before the
				// fifth failed.
				if refused < 90 {
					t.Errorf("%d of 100 calls were rejected", refused)
				}
				mu.Lock()
				before := sent
				mu.Unlock()
				for range 120 {
					time.Sleep(time.Second)
					mu.Lock()
					if underWay > 1 {
						t.Errorf("%d requests at once", underWay)
					}
					mu.Unlock()
				}
				// 1 + 15, 2 + 15, 4 + 15, 8 + 15, 15 + 15 seconds.
				mu.Lock()
				if probes := sent - before; probes < 4 || probes > 6 {
					t.Errorf("%d probes in two minutes", probes)
				}
				fixed = true
				mu.Unlock()
				time.Sleep(30 * time.Second)
				equal(t, w.Health(), nil)
			})
		})
	}
}

// TestFixedCredentialsAreUsedAtOnce tests the whole path: the file is read
// again, the backend is probed at once, and claims are served.
func TestFixedCredentialsAreUsedAtOnce(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Password = "n3w"
	memory := newMemoryCinder()
	cloud.Cinder = memory.client().ServeHTTP
	sources := cloud.Clouds(cindertest.PasswordCloud)
	metrics := testMetrics()
	pool := NewPool(PoolOptions{Sources: sources, Metrics: metrics, CredentialsAge: time.Hour})
	health := make(chan error, 10)
	l := NewLifecycle(LifecycleOptions{Config: gold, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(),
		Logger: discard(), Metrics: metrics, Poll: time.Millisecond, HealthChanged: func(err error) { health <- err }})
	before, err := pool.CheckCredentials(gold)
	equal(t, authtest.ErrorText(err), "")
	for i := range 5 {
		want := "backend gold: auth.login: the credentials were rejected; check user, password, project and domains"
		if i > 0 {
			want += "; unless they change, the next login waits 1 to 60 minutes, so that the account is not locked"
		}
		_, err := l.Connect(t.Context(), claimSpec(1))
		equal(t, authtest.ErrorText(err), want+" (HTTP 401)")
	}
	equal(t, cloud.LoginCount(), 1)
	rejected := "backend gold: requests are blocked until a probe succeeds; last failure: auth.login: the credentials were rejected; check user, password, project and domains; unless they change, the next login waits 1 to 60 minutes, so that the account is not locked (HTTP 401)"
	_, err = l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), rejected)
	equal(t, authtest.ErrorText(<-health), rejected)
	equal(t, cloud.LoginCount(), 1)
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(cindertest.PasswordCloud, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
	after, err := pool.CheckCredentials(gold)
	equal(t, authtest.ErrorText(err), "")
	if after == before {
		t.Error("the version is the same")
	}
	l.ProbeNow()
	equal(t, authtest.ErrorText(<-health), "")
	_, err = l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	idle(t, l)
}

// TestProbeBoundsItsRequests: a probe bounds its own requests, but not those of
// others.
func TestProbeBoundsItsRequests(t *testing.T) {
	for _, test := range []struct{ configured, probe time.Duration }{{DefaultRequestTimeout, maxProbe}, {time.Second, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatched(t, newWireClients(t, cinder.Options{RequestTimeout: test.configured}, func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}))
			defer w.end()
			start := time.Now()
			equal(t, authtest.ErrorText(w.current().session.probe(t.Context())), "backend gold: volume.list: no answer in time")
			equal(t, time.Since(start), test.probe)
			start = time.Now()
			_, _, err := w.Find(t.Context(), "volume-1")
			equal(t, authtest.ErrorText(err), "backend gold: volume.get: no answer in time")
			equal(t, time.Since(start), test.configured)
		})
	}
}

// TestQueueLeavesAtOnceWhenAnOutageBegins: a rejection delays no request,
// neither because others hang in the slots nor because of a tenant's pace.
func TestQueueLeavesAtOnceWhenAnOutageBegins(t *testing.T) {
	for name, caller := range map[string]turns.Caller{
		"for a slot":            {Tenant: "a"},
		"for the tenant's pace": {Tenant: "b", Pace: rate.NewLimiter(rate.Every(time.Hour), 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				w := newWatched(t, newWireClients(t, cinder.Options{Limits: turns.Limits{Concurrency: 1}}, func(*http.Request) (*http.Response, error) {
					<-hang
					return ok(`{"volumes": []}`), nil
				}))
				defer w.end()
				if caller.Pace == nil {
					go func() { _, _, _ = w.Find(t.Context(), "volume-0") }() // takes the slot
					synctest.Wait()
				} else {
					caller.Pace.Allow()
				}
				start := time.Now()
				result := make(chan error)
				for range 20 {
					go func() {
						_, _, err := w.Find(turns.WithCaller(t.Context(), caller), "volume-1")
						result <- err
					}()
				}
				synctest.Wait()
				for range 5 {
					a, err := w.breaker.Begin(0)
					equal(t, err, nil)
					a.End(t.Context(), errDown)
				}
				for range 20 {
					equal(t, authtest.ErrorText(<-result), rejectedBy503)
				}
				equal(t, time.Since(start), 0)
				close(hang)
				time.Sleep(time.Second)
				equal(t, w.Health(), nil)
			})
		})
	}
}
