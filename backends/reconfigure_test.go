package backends

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// cindersByRegion gives each region its own Cinder.
type cindersByRegion map[string]*memoryCinder

func (r cindersByRegion) client(_ context.Context, config Config) (Cinder, error) {
	return uncut{r[config.Auth.Region].client()}, nil
}

func (r cindersByRegion) forget(Cinder) {}

// uncut is a Cinder whose listings continue when their reader leaves.
type uncut struct{ memoryClient }

func (u uncut) With(admission turns.Admission) Cinder { return uncut{u.with(admission)} }

func (u uncut) ListVolumes(ctx context.Context, query cinder.Query, yield func([]cinder.Volume) bool) error {
	return u.memoryClient.ListVolumes(context.WithoutCancel(ctx), query, yield)
}

func regionalTerm(t *testing.T, of cindersByRegion, change ...func(*LifecycleOptions)) *Lifecycle {
	t.Helper()
	term, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	options := LifecycleOptions{Config: Config{Name: "gold", Auth: auth.Config{Region: "one"}}, Cluster: "cluster-1", Fence: func() error { return nil }, Term: term,
		Logger: discard(), Metrics: testMetrics(), Poll: time.Millisecond}
	for _, f := range change {
		f(&options)
	}
	return newLifecycle(options, of)
}

func TestConfigureReportsWhetherTheEndpointChanged(t *testing.T) {
	before := Config{Name: "gold", Auth: auth.Config{Region: "one", Source: auth.Source{Noauth: &auth.Noauth{Endpoint: "http://cinder/v3"}}}, Limits: turns.Limits{Concurrency: 3},
		Timeouts: Timeouts{Create: time.Minute}}
	tests := map[string]struct {
		change func(*Config)
		want   bool
		kept   bool // the configuration is equal
	}{
		"nothing":           {change: func(*Config) {}, kept: true},
		"another copy":      {change: func(c *Config) { c.Auth.Source.Noauth = &auth.Noauth{Endpoint: "http://cinder/v3"} }, kept: true},
		"a default written": {change: func(c *Config) { c.Timeouts.Delete = DefaultDeleteTimeout }, kept: true},
		"another name":      {change: func(c *Config) { c.Name = "zinc" }, kept: true},
		"limits":            {change: func(c *Config) { c.Limits.Concurrency = 4 }},
		"pace":              {change: func(c *Config) { c.Limits.RequestsPerSecond = 4 }},
		"time-outs":         {change: func(c *Config) { c.Timeouts.Request = time.Second }},
		"connector":         {change: func(c *Config) { c.Connector.WWPNs = []string{"50:01"} }},
		"region":            {change: func(c *Config) { c.Auth.Region = "two" }, want: true},
		"interface":         {change: func(c *Config) { c.Auth.Interface = "internal" }, want: true},
		"endpoint":          {change: func(c *Config) { c.Auth.Source.Noauth = &auth.Noauth{Endpoint: "http://other/v3"} }, want: true},
		"way to log in":     {change: func(c *Config) { c.Auth.Source = auth.Source{Cloud: "gold"} }, want: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := regionalTerm(t, cindersByRegion{}, func(o *LifecycleOptions) { o.Config = before })
			at, config := l.current(), l.current().config.Load()
			next := before
			test.change(&next)
			equal(t, l.Configure(next), test.want)
			equal(t, l.current() != at, test.want)
			equal(t, l.current().config.Load() == config, test.kept)
			equal(t, l.current().config.Load().Name, "gold")
			// Configuring the same again changes nothing.
			equal(t, l.Configure(next), false)
		})
	}
}

// TestTimeoutsHoldForTheNextWait: changed timeouts do not need a new term.
func TestTimeoutsHoldForTheNextWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		memory.looks = 1 << 30
		l := regionalTerm(t, cindersByRegion{"one": memory})
		config := Config{Auth: auth.Config{Region: "one"}, Timeouts: Timeouts{Create: 7 * time.Second}}
		equal(t, l.Configure(config), false)
		start := time.Now()
		_, err := l.Connect(t.Context(), claimSpec(1))
		equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 is still creating after 7s")
		equal(t, time.Since(start), 7*time.Second)
		equal(t, memory.count("volume.create"), 1)
		equal(t, memory.count("volume.list") > 1, true)
		memory.mu.Lock()
		memory.looks = 0
		memory.mu.Unlock()
		time.Sleep(time.Minute)
	})
}

// TestLimitsHoldForTheNextRequest: the pool gets the new limits.
func TestLimitsHoldForTheNextRequest(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	memory := newMemoryCinder()
	cloud.Cinder = memory.client().ServeHTTP
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	l := NewLifecycle(LifecycleOptions{Config: gold, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(),
		Logger: discard(), Metrics: testMetrics(), Poll: time.Millisecond})
	_, found, err := l.Find(t.Context(), "volume-1")
	equal(t, authtest.ErrorText(err), "")
	equal(t, found, false)
	limited := gold
	limited.Limits.Concurrency = 2
	equal(t, l.Configure(limited), false)
	_, _, err = l.Find(t.Context(), "volume-1")
	equal(t, authtest.ErrorText(err), "")
	equal(t, cloud.LoginCount(), 2)
	var underWay, most atomic.Int32
	cloud.Set(func() {
		cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), underWay.Add(1)))
			time.Sleep(10 * time.Millisecond)
			underWay.Add(-1)
			memory.client().ServeHTTP(w, r)
		}
	})
	atOnce(t, 8, func(int) error {
		_, _, err := l.Find(t.Context(), "volume-1")
		return err
	})
	equal(t, most.Load(), 2)
}

// TestAnotherEndpointIsListedAgain: knowledge of the old endpoint does not
// apply to the new one, and a volume there is found.
func TestAnotherEndpointIsListedAgain(t *testing.T) {
	one, two := newMemoryCinder(), newMemoryCinder()
	l := regionalTerm(t, cindersByRegion{"one": one, "two": two})
	_, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	idle(t, l)
	there := two.add(mine(1, cinder.StatusAvailable))
	equal(t, l.Configure(Config{Auth: auth.Config{Region: "two"}}), true)
	one.forgetLog()
	all, err := l.Volumes(t.Context())
	equal(t, authtest.ErrorText(err), "")
	equal(t, ids(all), []string{there})
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, there)
	equal(t, two.changes(), []string{"volume.os-reserve " + there, "volume.os-initialize_connection " + there})
	equal(t, authtest.ErrorText(l.Complete(t.Context(), claimTarget(1, there), false)), "")
	equal(t, one.log, []string(nil))
	equal(t, two.count("volume.list"), 1)
}

// TestOperationEndsWhereItBegan: when the endpoint changes, a claim is served
// to the end where its look was, and the next claim is looked up at the new
// endpoint.
func TestOperationEndsWhereItBegan(t *testing.T) {
	for _, during := range []string{"volume.list", "volume.create", "volume.os-reserve"} {
		t.Run(during, func(t *testing.T) { operationEndsWhereItBegan(t, during) })
	}
}

func operationEndsWhereItBegan(t *testing.T, during string) {
	one, two := newMemoryCinder(), newMemoryCinder()
	one.looks = 50
	l := regionalTerm(t, cindersByRegion{"one": one, "two": two})
	at := l.current()
	var changed bool
	var once sync.Once
	one.onCall(func(operation string) {
		if operation == during {
			once.Do(func() { changed = l.Configure(Config{Auth: auth.Config{Region: "two"}}) })
		}
	})
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, changed, true)
	equal(t, two.log, []string(nil))
	found := one.stamped(claimStamp(1))
	equal(t, len(found), 1)
	equal(t, found[0].ID, connected.Volume.ID)
	equal(t, found[0].Status, cinder.StatusAttaching)
	// The new endpoint may be the same Cinder at another address.
	equal(t, l.KnowsNothingOf(claimStamp(1)), false)
	equal(t, l.KnowsNothingOf(claimStamp(2)), true)
	_, err = l.HasVolumeOf(t.Context(), claimStamp(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, two.count("volume.list"), 1)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if !at.watcher.Running() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the old endpoint's watcher continues")
		}
	}
}

// TestFailuresOfTheOldEndpointDoNotCount: neither failures before the change
// nor those of operations that end at the old endpoint count for the new one.
func TestFailuresOfTheOldEndpointDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newMemoryCinder(), newMemoryCinder()
		one.fault = func(string, string) mishap { return refused }
		l := regionalTerm(t, cindersByRegion{"one": one, "two": two})
		old := l.current()
		has := func(at *owners) { _, _ = at.get(t.Context(), "volume-1") }
		for range 4 {
			has(old)
		}
		l.Configure(Config{Auth: auth.Config{Region: "two"}})
		for range 10 {
			has(old)
		}
		equal(t, l.Health(), nil)
		two.mu.Lock()
		two.fault = one.fault
		two.mu.Unlock()
		for range 4 {
			has(l.current())
			equal(t, l.Health(), nil)
		}
		has(l.current())
		equal(t, l.Health() == nil, false)
		two.mu.Lock()
		two.fault = nil
		two.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, l.Health(), nil)
	})
}

// TestProbeOfTheOldEndpointClosesNothing: the probe succeeds in the end, and
// closes nothing all the same.
func TestProbeOfTheOldEndpointClosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newMemoryCinder(), newMemoryCinder()
		for _, memory := range []*memoryCinder{one, two} {
			memory.fault = func(string, string) mishap { return refused }
		}
		l := regionalTerm(t, cindersByRegion{"one": one, "two": two})
		for range 5 {
			_, _, _ = l.Find(t.Context(), "volume-1")
		}
		one.mu.Lock()
		one.fault = nil
		one.before = func(string) { time.Sleep(10 * time.Second) }
		one.mu.Unlock()
		time.Sleep(5 * time.Second) // the probe is under way
		l.Configure(Config{Auth: auth.Config{Region: "two"}})
		time.Sleep(time.Minute)
		equal(t, authtest.ErrorText(l.Health()), rejectedBy(t, "volume.list: Cinder answered service unavailable (HTTP 503)"))
		two.mu.Lock()
		two.fault = nil
		two.mu.Unlock()
		time.Sleep(15 * time.Second)
		equal(t, l.Health(), nil)
	})
}

func TestUntouched(t *testing.T) {
	stamp := claimStamp(1)
	tests := map[string]struct {
		prepare func(t *testing.T, memory *memoryCinder, l *Lifecycle)
		want    bool
	}{
		"nothing was asked": {prepare: func(*testing.T, *memoryCinder, *Lifecycle) {}, want: true},
		"another claim": {want: true, prepare: func(t *testing.T, _ *memoryCinder, l *Lifecycle) {
			_, err := l.Connect(t.Context(), claimSpec(2))
			equal(t, authtest.ErrorText(err), "")
		}},
		"the listing failed": {want: true, prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.fault = func(string, string) mishap { return unsent }
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, cinder.KindOf(err), cinder.KindUnavailable)
		}},
		"the create was refused": {want: true, prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.fault = failing("volume.create", rateLimited)
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, cinder.KindOf(err), cinder.KindRateLimited)
		}},
		"the create's answer was lost": {prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.fault = failing("volume.create", lost)
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, effectUnknown(err), true)
		}},
		"the create's answer was an error": {prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.fault = failing("volume.create", refused)
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, effectUnknown(err), true)
		}},
		"it has a volume": {prepare: func(t *testing.T, _ *memoryCinder, l *Lifecycle) {
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, authtest.ErrorText(err), "")
		}},
		"an earlier term left one, not listed yet": {want: true, prepare: func(_ *testing.T, memory *memoryCinder, _ *Lifecycle) {
			memory.add(mine(1, cinder.StatusAvailable))
		}},
		"an earlier term left one": {prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.add(mine(1, cinder.StatusAvailable))
			_, err := l.Volumes(t.Context())
			equal(t, authtest.ErrorText(err), "")
		}},
		"it was removed": {want: true, prepare: func(t *testing.T, _ *memoryCinder, l *Lifecycle) {
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, authtest.ErrorText(err), "")
			equal(t, authtest.ErrorText(l.Abandon(t.Context(), stamp, testConnector, nil)), "")
		}},
		"it was at another endpoint": {prepare: func(t *testing.T, _ *memoryCinder, l *Lifecycle) {
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, authtest.ErrorText(err), "")
			equal(t, l.Configure(Config{Auth: auth.Config{Region: "two"}}), true)
		}},
		"the create's answer was lost at another endpoint": {prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.fault = failing("volume.create", lost)
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, effectUnknown(err), true)
			equal(t, l.Configure(Config{Auth: auth.Config{Region: "two"}}), true)
		}},
		"an earlier term's was at another endpoint": {prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			memory.add(mine(1, cinder.StatusAvailable))
			_, err := l.Volumes(t.Context())
			equal(t, authtest.ErrorText(err), "")
			equal(t, l.Configure(Config{Auth: auth.Config{Region: "two"}}), true)
		}},
		"the new endpoint has nothing either": {want: true, prepare: func(t *testing.T, memory *memoryCinder, l *Lifecycle) {
			equal(t, l.Configure(Config{Auth: auth.Config{Region: "two"}}), true)
			equal(t, authtest.ErrorText(l.Abandon(t.Context(), stamp, testConnector, nil)), "")
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			l := memory.term(t)
			test.prepare(t, memory, l)
			memory.forgetLog()
			equal(t, l.KnowsNothingOf(stamp), test.want)
			equal(t, memory.log, []string(nil))
		})
	}
}

// failing makes every call of an operation end in a mishap.
func failing(operation string, how mishap) func(string, string) mishap {
	return func(called, _ string) mishap {
		if called == operation {
			return how
		}
		return noFault
	}
}

// TestConfigureWhileClaimsAreServed is for the race detector, and counts
// volumes: every claim ends with one volume at one of the endpoints, or an
// error.
func TestConfigureWhileClaimsAreServed(t *testing.T) {
	of := cindersByRegion{"one": newMemoryCinder(), "two": newMemoryCinder()}
	of["two"].ids = 1000 // ids are unique
	l := regionalTerm(t, of)
	var group sync.WaitGroup
	for claim := range 50 {
		group.Go(func() {
			ctx := turns.WithCaller(t.Context(), turns.Caller{Tenant: fmt.Sprint(claim % 3), Pace: rate.NewLimiter(rate.Inf, 1)})
			connected, err := l.Connect(ctx, claimSpec(claim))
			if err != nil {
				t.Error(err)
				return
			}
			_ = l.KnowsNothingOf(claimStamp(claim))
			if err := l.Complete(ctx, claimTarget(claim, connected.Volume.ID), false); err != nil && !cinder.IsKind(err, cinder.KindNotFound) {
				t.Error(err)
			}
		})
	}
	for i := range 20 {
		l.Configure(Config{Auth: auth.Config{Region: []string{"two", "one"}[i%2]}, Limits: turns.Limits{Concurrency: i + 1}})
		time.Sleep(time.Millisecond)
	}
	group.Wait()
	for region, memory := range of {
		for claim := range 50 {
			if found := memory.stamped(claimStamp(claim)); len(found) > 1 {
				t.Errorf("claim %d has %d volumes in region %s", claim, len(found), region)
			}
		}
	}
}
