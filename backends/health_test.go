package backends

import (
	"context"
	"fmt"
	"math"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/breaker"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

var (
	errDown         = &cinder.Error{Backend: "gold", Operation: "volume.list", Kind: cinder.KindUnavailable, Status: 503, RequestID: "req-1", Message: "Cinder answered service unavailable", EffectUnknown: true}
	errRefused      = &cinder.Error{Backend: "gold", Operation: "auth.login", Kind: cinder.KindUnauthorized, Status: 401, Message: "the credentials were rejected"}
	rejectedBy503   = "backend gold: requests are blocked until a probe succeeds; last failure: volume.list: Cinder answered service unavailable (HTTP 503)"
	rejectedByLogin = "backend gold: requests are blocked until a probe succeeds; last failure: auth.login: the credentials were rejected (HTTP 401)"
)

// healthOf provides a Cinder, or fails on demand.
type healthOf struct {
	memory Cinder

	mu    sync.Mutex
	err   error
	calls int
}

func (h *healthOf) set(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *healthOf) asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// client fails the way a login does.
func (h *healthOf) client(context.Context, Config) (Cinder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if h.err != nil {
		return nil, h.err
	}
	return h.memory, nil
}

func (h *healthOf) forget(Cinder) {}

// watched is a lifecycle in a term, with the announcements of its health.
type watched struct {
	*Lifecycle
	metrics *Metrics
	end     context.CancelFunc

	mu   sync.Mutex
	said []string
}

func (w *watched) news() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said)
}

func newWatched(t *testing.T, source clients, change ...func(*LifecycleOptions)) *watched {
	t.Helper()
	term, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	w := &watched{metrics: testMetrics(), end: end}
	start := time.Now()
	options := LifecycleOptions{Config: Config{Name: "gold"}, Cluster: "cluster-1", Fence: func() error { return nil }, Term: term,
		Logger: discard(), Metrics: w.metrics, Poll: time.Millisecond,
		HealthChanged: func(err error) {
			// This deadlocks if it is called with a lock held: all of these
			// take one.
			_ = w.Health()
			w.Configure(w.options.Config)
			_ = w.KnowsNothingOf(claimStamp(1))
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said = append(w.said, fmt.Sprintf("%s %v", time.Since(start).Round(time.Second), err))
		}}
	for _, f := range change {
		f(&options)
	}
	w.Lifecycle = newLifecycle(options, source)
	return w
}

func TestLoginsThatFailOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := *errDown
		lost.Operation, lost.EffectUnknown = "auth.login", true
		source := &healthOf{memory: newMemoryCinder().client(), err: &lost}
		w := newWatched(t, source)
		defer w.end()
		for i := range 5 {
			equal(t, w.Health(), nil)
			_, _, err := w.Find(t.Context(), "volume-1")
			equal(t, authtest.ErrorText(err), "backend gold: auth.login: Cinder answered service unavailable (HTTP 503, req-1)")
			// Whatever happened to the login, the call was not made.
			equal(t, effectUnknown(err), false)
			equal(t, source.asked(), i+1)
		}
		const want = "backend gold: requests are blocked until a probe succeeds; last failure: auth.login: Cinder answered service unavailable (HTTP 503)"
		for range 100 {
			_, err := w.Connect(t.Context(), claimSpec(1))
			equal(t, authtest.ErrorText(err), want)
			equal(t, cinder.KindOf(err), cinder.KindUnavailable)
			equal(t, effectUnknown(err), false)
			equal(t, authtest.ErrorText(w.Remove(t.Context(), claimTarget(1, "volume-1"))), want)
		}
		equal(t, authtest.ErrorText(w.Health()), want)
		equal(t, source.asked(), 5)
	})
}

// TestOutageFromBeginningToEnd: pauses grow while probes fail, the backend gets
// no other requests, and everything is announced in order.
func TestOutageFromBeginningToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &healthOf{memory: newMemoryCinder().client(), err: errDown}
		w := newWatched(t, source)
		defer w.end()
		fail(t, w, 5)
		synctest.Wait()
		equal(t, w.news(), []string{"0s " + rejectedBy503})
		time.Sleep(60 * time.Second)
		// 1 + 2 + 4 + 8 + 15 + 15 + 15 seconds, each up to a fifth less.
		if probes := source.asked() - 5; probes < 7 || probes > 8 {
			t.Errorf("%d probes in a minute", probes)
		}
		source.set(errRefused)
		time.Sleep(15 * time.Second)
		equal(t, authtest.ErrorText(w.Health()), rejectedByLogin)
		source.set(nil)
		time.Sleep(30 * time.Second)
		equal(t, w.Health(), nil)
		_, err := w.Connect(t.Context(), claimSpec(1))
		equal(t, authtest.ErrorText(err), "")
		said := w.news()
		equal(t, len(said), 2)
		equal(t, said[1][len(said[1])-5:], "<nil>")
		equal(t, testutil.ToFloat64(w.metrics.outages.WithLabelValues("gold")), 1.0)
		time.Sleep(time.Minute) // until all waits for volumes have ended
	})
}

// fail makes calls that must fail.
func fail(t *testing.T, w *watched, calls int) {
	t.Helper()
	for range calls {
		if _, _, err := w.Find(t.Context(), "volume-1"); err == nil {
			t.Fatal("no error")
		}
	}
}

// TestFixedBackendIsProbedAtOnce would fail if callers had to wait for the end
// of the pause.
func TestFixedBackendIsProbedAtOnce(t *testing.T) {
	for name, mend := range map[string]func(w *watched){
		"credentials": func(w *watched) { w.ProbeNow() },
		"limits":      func(w *watched) { w.Configure(Config{Limits: turns.Limits{Concurrency: 3}}) },
		"endpoint":    func(w *watched) { w.Configure(Config{Auth: auth.Config{Region: "RegionTwo"}}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &healthOf{memory: newMemoryCinder().client(), err: errRefused}
				w := newWatched(t, source)
				defer w.end()
				fail(t, w, 5)
				time.Sleep(time.Minute) // now the pauses are long
				source.set(nil)
				before := time.Now()
				mend(w)
				synctest.Wait()
				equal(t, w.Health(), nil)
				equal(t, time.Since(before), 0)
			})
		})
	}
}

// TestHangingProbeEndsWhenTheBackendIsFixed: a hanging probe gives way to a new
// one.
func TestHangingProbeEndsWhenTheBackendIsFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		memory.fault = func(string, string) mishap { return refused }
		source := &hangingClients{memory: memory.client()}
		w := newWatched(t, source)
		defer w.end()
		fail(t, w, 5)
		source.hangs.Store(true)
		time.Sleep(10 * time.Second)
		source.hangs.Store(false)
		memory.mu.Lock()
		memory.fault = nil
		memory.mu.Unlock()
		synctest.Wait()
		equal(t, authtest.ErrorText(w.Health()), rejectedBy(t, "volume.get: Cinder answered service unavailable (HTTP 503)"))
		w.ProbeNow()
		synctest.Wait()
		equal(t, w.Health(), nil)
	})
}

func rejectedBy(t *testing.T, last string) string {
	t.Helper()
	return "backend gold: requests are blocked until a probe succeeds; last failure: " + last
}

// hangingClients makes a look-up hang until its context ends.
type hangingClients struct {
	memory Cinder
	hangs  atomic.Bool
}

func (h *hangingClients) client(ctx context.Context, _ Config) (Cinder, error) {
	if h.hangs.Load() {
		<-ctx.Done()
		return nil, cinder.NotSent("gold", cinder.OperationLogin, ctx.Err())
	}
	return h.memory, nil
}

func (h *hangingClients) forget(Cinder) {}

// TestBackendThatOnlyReadsDoesNotFlap: its probes always succeed, and its
// changes never do. The pauses grow all the same.
func TestBackendThatOnlyReadsDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		memory.fault = func(operation, _ string) mishap {
			if isRead(operation) {
				return noFault
			}
			return refused
		}
		id := memory.add(mine(1, cinder.StatusAvailable))
		w := newWatched(t, &memoryClients{memory: memory.client()})
		defer w.end()
		change := func() error {
			return change(t.Context(), w.current().session, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, id) })
		}
		var outages []time.Duration
		for range 6 {
			for w.Health() == nil {
				_ = change()
			}
			began := time.Now()
			for w.Health() != nil {
				time.Sleep(10 * time.Millisecond)
			}
			outages = append(outages, time.Since(began))
		}
		for i, most := range []time.Duration{1, 2, 4, 8, 15, 15} {
			most *= time.Second
			if got := outages[i]; got < most*8/10 || got > most+10*time.Millisecond {
				t.Errorf("outage %d lasted %s, want up to %s", i, got, most)
			}
		}
		time.Sleep(30 * time.Second)
		for w.Health() == nil {
			_ = change()
		}
		began := time.Now()
		for w.Health() != nil {
			time.Sleep(10 * time.Millisecond)
		}
		if got := time.Since(began); got > time.Second+10*time.Millisecond {
			t.Errorf("after half a minute without failures an outage lasted %s", got)
		}
	})
}

// TestAnswersKeepTheBreakerClosed: any answer keeps the breaker closed, and so
// does a request that was never sent.
func TestAnswersKeepTheBreakerClosed(t *testing.T) {
	memory := newMemoryCinder()
	calls := 0
	memory.fault = func(string, string) mishap {
		calls++
		return []mishap{refused, refused, unsent, lost, rateLimited}[calls%5]
	}
	l := memory.term(t, func(o *LifecycleOptions) { o.FailuresToOpen = 0 })
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		_, _, _ = l.Find(t.Context(), "volume-1")
		_, _, _ = l.Find(canceled, "volume-1")
		_, _, _ = l.Find(t.Context(), "volume/../1")
	}
	equal(t, l.Health(), nil)
}

func TestRefusedCredentialsOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		memory.fault = func(string, string) mishap { return unauthorized }
		w := newWatched(t, &memoryClients{memory: memory.client()}, func(o *LifecycleOptions) { o.FailuresToOpen = 2 })
		defer w.end()
		fail(t, w, 2)
		equal(t, authtest.ErrorText(w.Health()), rejectedBy(t, "volume.get: the credentials were rejected (HTTP 401)"))
	})
}

// TestReasonOfAFailedVolumeTellsNothing: a request for it hides its failures,
// and would otherwise make every second failure look like a success.
func TestReasonOfAFailedVolumeTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		w := newWatched(t, &memoryClients{memory: memory.client()})
		defer w.end()
		memory.fault = func(string, string) mishap { return refused }
		ask := func() {
			ask(t.Context(), w.current().session, func(ctx context.Context, client makingRequests) { client.FailureReason(ctx, "volume-1") })
		}
		for range 5 {
			fail(t, w, 1)
			ask()
		}
		equal(t, w.Health() == nil, false)
		equal(t, memory.count("message.list"), 4)
	})
}

// TestTermEndsAnOutage: no goroutine is left, which the bubble would detect,
// nothing more is announced, and the gauge is gone.
func TestTermEndsAnOutage(t *testing.T) {
	for name, hang := range map[string]bool{"in a pause": false, "in a probe": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.fault = func(string, string) mishap { return refused }
				source := &hangingClients{memory: memory.client()}
				w := newWatched(t, source)
				fail(t, w, 5)
				source.hangs.Store(hang)
				time.Sleep(10 * time.Second)
				equal(t, testutil.CollectAndCount(w.metrics.up), 1)
				w.end()
				synctest.Wait()
				equal(t, len(w.news()), 1)
				equal(t, testutil.CollectAndCount(w.metrics.up), 0)
			})
		})
	}
}

func TestNoOutageBeginsAfterTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, &healthOf{memory: newMemoryCinder().client(), err: errDown})
		w.end()
		synctest.Wait()
		fail(t, w, 20)
		synctest.Wait()
		equal(t, w.Health(), nil)
		equal(t, w.news(), []string(nil))
		equal(t, testutil.CollectAndCount(w.metrics.up), 0)
	})
}

// TestWaitsEndWhileRequestsAreRejected: waits for volumes fail after the usual
// number of rounds, and no round costs a request.
func TestWaitsEndWhileRequestsAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		memory.looks = math.MaxInt
		w := newWatched(t, &memoryClients{memory: memory.client()})
		defer w.end()
		result := make(chan error, 1)
		go func() {
			_, err := w.Connect(t.Context(), claimSpec(1))
			result <- err
		}()
		time.Sleep(10 * time.Second)
		memory.mu.Lock()
		memory.fault = func(string, string) mishap { return refused }
		memory.mu.Unlock()
		fail(t, w, 5)
		memory.forgetLog()
		equal(t, authtest.ErrorText(<-result), rejectedBy(t, "volume.get: Cinder answered service unavailable (HTTP 503)"))
		if n := len(memory.log); n > 1 { // a probe
			t.Errorf("%d requests during the outage", n)
		}
		memory.mu.Lock()
		memory.fault = nil
		memory.looks = 1
		memory.mu.Unlock()
		time.Sleep(time.Minute)
	})
}

// TestConditionTellsAnOutage follows an outage from its first failure to its
// end.
func TestConditionTellsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &healthOf{memory: newMemoryCinder().client(), err: errDown}
		w := newWatched(t, source)
		defer w.end()
		equal(t, w.Condition(), breaker.Condition{Answers: true})
		began := time.Now()
		fail(t, w, 2)
		const said = "volume.list: Cinder answered service unavailable (HTTP 503)"
		equal(t, w.Condition(), breaker.Condition{Answers: true, FailuresInARow: 2, LastFailure: said, LastFailureAt: began})
		time.Sleep(time.Minute)
		opened := time.Now()
		fail(t, w, 3)
		equal(t, w.Condition(), breaker.Condition{Since: opened, LastFailure: said, LastFailureAt: opened})
		time.Sleep(20 * time.Second)
		during := w.Condition()
		equal(t, during.Since, opened)
		if !during.LastFailureAt.After(opened) {
			t.Error("failed probes are not noted")
		}
		source.set(nil)
		time.Sleep(20 * time.Second)
		after := w.Condition()
		if !after.Answers || !after.Since.After(opened) || after.FailuresInARow != 0 || after.LastFailure == "" {
			t.Errorf("after the outage: %+v", after)
		}
	})
}

// inBubble runs a test in a synctest bubble. rapid would call Deadline on a
// *testing.T, which fails in a bubble.
type inBubble struct{ testing.TB }

// TestAMovedCinderIsFoundInTheCatalog: Cinder answers no longer where the catalog had it when
// the leader logged in, and the token is still valid. A probe reads the catalog again.
func TestAMovedCinderIsFoundInTheCatalog(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	catalog := func(address string) {
		cloud.Set(func() {
			cloud.Catalog = []any{cindertest.Entry("volumev3", "RegionOne", address+"/volume/v3/p")}
		})
	}
	catalog(closed.URL)
	metrics, moved := testMetrics(), make(chan struct{}, 1)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: metrics})
	l := NewLifecycle(LifecycleOptions{Config: gold, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(), Logger: discard(), Metrics: metrics,
		Moved: func() { moved <- struct{}{} }})
	for range breaker.DefaultFailuresToOpen {
		if _, err := l.Volumes(t.Context()); err == nil {
			t.Fatal("nobody listens there")
		}
	}
	before := l.Place()
	catalog(cloud.URL)
	<-moved
	for l.Health() != nil {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := l.Volumes(t.Context()); err != nil || l.Place() == before {
		t.Errorf("the backend is at %s, before at %s: %v", l.Place(), before, err)
	}
	equal(t, cloud.LoginCount(), 2)
}
