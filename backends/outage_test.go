package backends

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// wireClients gives a client out whose requests go over one transport.
type wireClients struct{ only *Client }

func newWireClients(wire *transport) *wireClients {
	provider := &gophercloud.ProviderClient{HTTPClient: httpClient(wire)}
	service := &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: "http://cinder/v3/", Type: "block-storage"}
	return &wireClients{&Client{config: Config{Name: "gold"}.withDefaults(), service: service}}
}

func (w *wireClients) client(context.Context) (api, error) { return w.only, nil }
func (w *wireClients) forget(api)                          {}

// TestBlackHole: a backend that takes requests and never answers. Those in the
// queue are refused as soon as it is known, whatever the pace, and then there
// is one request at a time, of a quarter of a minute.
func TestBlackHole(t *testing.T) {
	for name, limits := range map[string]Limits{"unpaced": {Concurrency: 5}, "paced": {Concurrency: 5, RequestsPerSecond: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var sent []time.Duration
				underWay, mended := 0, false
				start := time.Now()
				wire := testTransport(t, func(r *http.Request) (*http.Response, error) {
					mu.Lock()
					sent = append(sent, time.Since(start).Round(time.Second))
					underWay++
					answers := mended
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
				}, limits)
				w := newWatched(t, newWireClients(wire))
				defer w.end()
				var group sync.WaitGroup
				refused := 0
				for i := range 100 {
					group.Go(func() {
						var err error
						if i%2 == 0 {
							_, err = w.Has(t.Context(), fmt.Sprintf("volume-%d", i))
						} else {
							// A change, past the look that comes before.
							err = w.current().cinder.change(t.Context(), func(ctx context.Context, cinder api) error { return cinder.Reserve(ctx, "v1") })
						}
						mu.Lock()
						defer mu.Unlock()
						if strings.Contains(authtest.ErrorText(err), "requests are held back") {
							refused++
							if took := time.Since(start); took > 80*time.Second {
								t.Errorf("a call is refused after %s", took)
							}
							equal(t, effectUnknown(err), false)
						} else {
							equal(t, effectUnknown(err), true)
							equal(t, err.(*Error).Message, "no answer in time")
						}
					})
				}
				group.Wait()
				// The first five, and those that took their slots before the
				// fifth failed.
				if refused < 90 {
					t.Errorf("%d of 100 calls were refused", refused)
				}
				mu.Lock()
				before := len(sent)
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
				if probes := len(sent) - before; probes < 4 || probes > 6 {
					t.Errorf("%d probes in two minutes", probes)
				}
				mended = true
				mu.Unlock()
				time.Sleep(30 * time.Second)
				equal(t, w.Health(), nil)
				equal(t, slotsTaken(wire), 0)
			})
		})
	}
}

// TestMendedCredentialsAreUsedAtOnce goes all the way from the file: it is read
// anew, the backend is asked at once, and claims are served.
func TestMendedCredentialsAreUsedAtOnce(t *testing.T) {
	cloud := newCloudServer(t)
	cloud.password = "n3w"
	cinder := newMemoryCinder()
	cloud.cinder = cinder.ServeHTTP
	sources := cloud.clouds(passwordCloud)
	metrics := testMetrics()
	pool := NewPool(PoolOptions{Sources: sources, Metrics: metrics, CredentialsAge: time.Hour})
	health := make(chan error, 10)
	l := NewLifecycle(LifecycleOptions{Config: gold, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Hold: t.Context(),
		Logger: discard(), Metrics: metrics, Poll: time.Millisecond, HealthChanged: func(err error) { health <- err }})
	before, err := pool.CheckCredentials(gold)
	equal(t, authtest.ErrorText(err), "")
	for range 5 {
		_, err := l.Connect(t.Context(), claimSpec(1))
		equal(t, authtest.ErrorText(err), "backend gold: auth.login: the credentials were refused (HTTP 401)")
	}
	logins := cloud.loginCount()
	_, err = l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), heldByLogin)
	equal(t, authtest.ErrorText(<-health), heldByLogin)
	equal(t, cloud.loginCount(), logins)
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(passwordCloud, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
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

// TestProbeBoundsItsRequests, and nobody else's.
func TestProbeBoundsItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := testTransport(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, Limits{})
		start := time.Now()
		w := newWatched(t, newWireClients(wire))
		defer w.end()
		equal(t, authtest.ErrorText(w.current().cinder.probe(t.Context())), "backend gold: volume.list: no answer in time")
		equal(t, time.Since(start), longestProbe)
		start = time.Now()
		_, err := w.Has(t.Context(), "volume-1")
		equal(t, authtest.ErrorText(err), "backend gold: volume.get: no answer in time")
		equal(t, time.Since(start), DefaultRequestTimeout)
		wire.timeout = time.Second
		start = time.Now()
		equal(t, authtest.ErrorText(w.current().cinder.probe(t.Context())), "backend gold: volume.list: no answer in time")
		equal(t, time.Since(start), time.Second)
	})
}

// TestQueueLeavesAtOnceWhenAnOutageBegins: neither the requests that hang in
// the slots nor a tenant's pace keep anybody waiting for a refusal.
func TestQueueLeavesAtOnceWhenAnOutageBegins(t *testing.T) {
	for name, caller := range map[string]Caller{
		"for a slot":            {Tenant: "a"},
		"for the tenant's pace": {Tenant: "b", Pace: rate.NewLimiter(rate.Every(time.Hour), 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wire := testTransport(t, func(*http.Request) (*http.Response, error) { return ok(`{"volumes": []}`), nil }, Limits{Concurrency: 1})
				w := newWatched(t, newWireClients(wire))
				defer w.end()
				if caller.Pace == nil {
					occupy(t, wire)
				} else {
					caller.Pace.Allow()
				}
				start := time.Now()
				result := make(chan error)
				for range 20 {
					go func() {
						_, err := w.Has(WithCaller(t.Context(), caller), "volume-1")
						result <- err
					}()
				}
				synctest.Wait()
				for range 5 {
					a, err := w.breaker.begin(0)
					equal(t, err, nil)
					a.end(t.Context(), errDown)
				}
				for range 20 {
					equal(t, authtest.ErrorText(<-result), heldBy503)
				}
				equal(t, time.Since(start), 0)
				equal(t, len(wire.turns.queues), 0)
				if caller.Pace == nil {
					wire.turns.release()
				}
				time.Sleep(time.Second)
				equal(t, w.Health(), nil)
			})
		})
	}
}

// callerAsked calls back when a request asks on whose behalf it is made, which
// is just before it takes its turn.
type callerAsked struct {
	context.Context
	hook func()
}

func (c callerAsked) Value(key any) any {
	if key == (callerKey{}) {
		c.hook()
	}
	return c.Context.Value(key)
}

// TestTurnThatComesWithTheOutage: a request that gets a free slot at the very
// moment at which the outage begins is not sent.
func TestTurnThatComesWithTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		wire := testTransport(t, func(*http.Request) (*http.Response, error) {
			sent++
			return ok(`{"volumes": []}`), nil
		}, Limits{})
		w := newWatched(t, newWireClients(wire))
		_, err := w.Has(callerAsked{t.Context(), func() {
			for range 5 {
				a, err := w.breaker.begin(0)
				equal(t, err, nil)
				a.end(t.Context(), errDown)
			}
		}}, "volume-1")
		equal(t, authtest.ErrorText(err), heldBy503)
		equal(t, sent, 0)
		equal(t, slotsTaken(wire), 0)
		w.end()
	})
}
