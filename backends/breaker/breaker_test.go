package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

var (
	errDown       = &cinder.Error{Backend: "gold", Operation: "volume.list", Kind: cinder.KindUnavailable, Status: 503, RequestID: "req-1", Message: "Cinder answered service unavailable", EffectUnknown: true}
	errGone       = &cinder.Error{Backend: "gold", Operation: "volume.get", Kind: cinder.KindNotFound, Status: 404, Message: "Volume v1 could not be found"}
	errUnsent     = &cinder.Error{Backend: "gold", Operation: "volume.list", Kind: cinder.KindUnavailable, Message: "the request was canceled", Unsent: true, Cause: context.Canceled}
	errRefused    = &cinder.Error{Backend: "gold", Operation: "auth.login", Kind: cinder.KindUnauthorized, Status: 401, Message: "the credentials were rejected"}
	rejectedBy503 = "backend gold: requests are blocked until a probe succeeds; last failure: volume.list: Cinder answered service unavailable (HTTP 503)"
)

// backendModel simulates a backend and checks the breaker in front of it
// against the rules, in a bubble with simulated time.
type backendModel struct {
	*rapid.T
	breaker *Breaker
	metrics *gauges
	end     context.CancelFunc
	open    []*modelAttempt // calls under way

	mu sync.Mutex
	// what the rules say
	failures      int
	isOpen        bool
	period, epoch int
	coolDown      time.Duration
	closedAt      time.Time
	due           time.Time // the latest time for the next probe
	outages       int
	woken         bool
	// what was observed
	probing       int
	probes        int
	answer        error
	hangs         bool
	announced     []bool
	wrong         []string
	wantAnnounced []bool
}

type modelAttempt struct {
	*Attempt
	period, epoch int
}

func (m *backendModel) complain(format string, arguments ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, arguments...))
}

// probe answers one probe of the breaker.
func (m *backendModel) probe(ctx context.Context) error {
	m.mu.Lock()
	now := time.Now()
	m.probes++
	if m.probing++; m.probing > 1 {
		m.complain("%d probes at once", m.probing)
	}
	if !m.isOpen {
		m.complain("a probe while the breaker is closed")
	}
	if early := m.due.Add(-m.coolDown / 5); !m.woken && (now.Before(early) || now.After(m.due)) {
		m.complain("a probe %s after the last event was due, in a pause of %s", now.Sub(m.due), m.coolDown)
	}
	m.woken = false
	answer, hangs, epoch := m.answer, m.hangs, m.epoch
	m.mu.Unlock()
	if hangs {
		<-ctx.Done()
		answer = cutShort("volume.list", ctx.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.probing--
	found := verdictOf(ctx, answer)
	switch {
	case epoch != m.epoch:
	case found == backendAnswers:
		m.isOpen, m.failures, m.closedAt = false, 0, time.Now()
		m.period++
		m.wantAnnounced = append(m.wantAnnounced, true)
	case found == backendFails:
		m.coolDown = min(2*m.coolDown, 15*time.Second)
	}
	m.due = time.Now().Add(m.coolDown)
	return answer
}

func (m *backendModel) begin() {
	a, err := m.breaker.Begin(m.epoch)
	if (err == nil) == m.isOpen {
		m.Fatalf("begin gives %v while open is %v", err, m.isOpen)
	}
	if err == nil {
		m.open = append(m.open, &modelAttempt{Attempt: a, period: m.period, epoch: m.epoch})
	}
}

func (m *backendModel) admit(a *modelAttempt) {
	_, err := a.Admit()
	if (err == nil) == m.isOpen {
		m.Fatalf("admit gives %v while open is %v", err, m.isOpen)
	}
	if err == nil {
		a.period = m.period
	}
}

func (m *backendModel) finish(a *modelAttempt, err error) {
	m.open = slices.DeleteFunc(m.open, func(other *modelAttempt) bool { return other == a })
	counts := !m.isOpen && a.period == m.period && a.epoch == m.epoch
	switch found := verdictOf(context.Background(), err); {
	case counts && found == backendAnswers:
		m.failures = 0
	case counts && found == backendFails:
		if m.failures++; m.failures == 5 {
			m.isOpen, m.failures = true, 0
			m.period++
			m.outages++
			m.wantAnnounced = append(m.wantAnnounced, false)
			if m.closedAt.IsZero() || time.Since(m.closedAt) >= 30*time.Second {
				m.coolDown = time.Second
			} else {
				m.coolDown = min(2*m.coolDown, 15*time.Second)
			}
			m.due = time.Now().Add(m.coolDown)
		}
	}
	a.End(context.Background(), err)
}

func (m *backendModel) check() {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.wrong) > 0 {
		m.Fatalf("%v", m.wrong)
	}
	if isOpen := m.breaker.Health() != nil; isOpen != m.isOpen {
		m.Fatalf("open is %v, want %v", isOpen, m.isOpen)
	}
	m.metrics.mu.Lock()
	defer m.metrics.mu.Unlock()
	if up := m.metrics.up; up == m.isOpen {
		m.Fatalf("the gauge is %v while open is %v", up, m.isOpen)
	}
	if n := m.metrics.outages; n != m.outages {
		m.Fatalf("counted %v outages, want %d", n, m.outages)
	}
	if !slices.Equal(m.announced, m.wantAnnounced) {
		m.Fatalf("announced %v, want %v", m.announced, m.wantAnnounced)
	}
	if running := m.breaker.running; running != m.isOpen {
		m.Fatalf("the goroutine exists: %v while open is %v", running, m.isOpen)
	}
}

// inBubble runs a test in a synctest bubble. rapid would call Deadline on a
// *testing.T, which fails in a bubble.
type inBubble struct{ testing.TB }

// TestBreakerKeepsItsRules lets random calls end in random ways, in random
// order, while probes succeed, fail or hang.
func TestBreakerKeepsItsRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			term, end := context.WithCancel(context.Background())
			m := &backendModel{T: rt, metrics: &gauges{}, end: end, answer: errDown, coolDown: time.Second}
			m.breaker = New(Options{Backend: "gold", Term: term, Probe: m.probe, Logger: slog.New(slog.DiscardHandler), Metrics: m.metrics,
				Changed: func(err error) {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.announced = append(m.announced, err == nil)
				}})
			defer func() {
				end()
				synctest.Wait() // the goroutine ends with the term
				opened += m.outages
			}()
			pick := func(rt *rapid.T) *modelAttempt {
				if len(m.open) == 0 {
					rt.Skip("nothing is under way")
				}
				return rapid.SampledFrom(m.open).Draw(rt, "call")
			}
			rt.Repeat(map[string]func(*rapid.T){
				"begin": func(*rapid.T) { m.begin() },
				"admit": func(rt *rapid.T) { m.admit(pick(rt)) },
				"end": func(rt *rapid.T) {
					m.finish(pick(rt), rapid.SampledFrom([]error{nil, errDown, errDown, errDown, errGone, errUnsent, errRefused}).Draw(rt, "outcome"))
				},
				"fail in a row": func(rt *rapid.T) {
					for range rapid.IntRange(1, 6).Draw(rt, "calls") {
						if m.isOpen {
							return
						}
						m.begin()
						m.finish(m.open[len(m.open)-1], errDown)
					}
				},
				"time passes": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(40*time.Second)).Draw(rt, "for")))
				},
				"the backend changes": func(rt *rapid.T) {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.answer = rapid.SampledFrom([]error{nil, errGone, errDown, errUnsent}).Draw(rt, "answer")
					m.hangs = rapid.IntRange(0, 3).Draw(rt, "hangs") == 0
				},
				"something is fixed": func(rt *rapid.T) {
					m.mu.Lock()
					m.woken = m.isOpen
					if m.isOpen {
						// Otherwise it would continue to hang at the same
						// instant.
						m.hangs = false
					}
					m.mu.Unlock()
					m.breaker.ProbeNow()
				},
				"the endpoint changes": func(rt *rapid.T) {
					m.mu.Lock()
					m.epoch++
					m.failures = 0
					m.mu.Unlock()
					m.breaker.Moved(m.epoch)
				},
				"": func(*rapid.T) { m.check() },
			})
		})
		if opened == 0 {
			t.Error("no breaker opened in any run")
		}
	})
}

// TestStragglersOfAnOutageDoNotCount: requests that left before it fail or
// succeed long after its end.
func TestStragglersOfAnOutageDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term, end := context.WithCancel(t.Context())
		defer end()
		b := New(Options{Backend: "gold", Term: term, Probe: func(context.Context) error { return nil }, Logger: slog.New(slog.DiscardHandler), Metrics: &gauges{}})
		call := func(err error) {
			t.Helper()
			a, rejected := b.Begin(0)
			equal(t, rejected, nil)
			a.End(t.Context(), err)
		}
		var stragglers []*Attempt
		for range 10 {
			a, rejected := b.Begin(0)
			equal(t, rejected, nil)
			stragglers = append(stragglers, a)
		}
		for range 5 {
			call(errDown)
		}
		equal(t, authtest.ErrorText(b.Health()), rejectedBy503)
		stragglers[0].End(t.Context(), nil) // does not close it
		equal(t, authtest.ErrorText(b.Health()), rejectedBy503)
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, b.Health(), nil)
		for _, a := range stragglers[1:7] {
			a.End(t.Context(), errDown)
		}
		equal(t, b.Health(), nil)
		for range 4 {
			call(errDown)
		}
		stragglers[7].End(t.Context(), nil)
		// A request whose turn came after that is not a straggler.
		_, rejected := stragglers[8].Admit()
		equal(t, rejected, nil)
		stragglers[8].End(t.Context(), errDown)
		equal(t, authtest.ErrorText(b.Health()), rejectedBy503)
	})
}

// TestWakeUpIsForOneOutage: a wake-up for an outage that a probe ends anyway
// does not remain for the next outage.
func TestWakeUpIsForOneOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term, end := context.WithCancel(t.Context())
		defer end()
		var b *Breaker
		var probed []time.Duration
		start := time.Now()
		b = New(Options{Backend: "gold", Term: term, Logger: slog.New(slog.DiscardHandler), Metrics: &gauges{}, Probe: func(context.Context) error {
			probed = append(probed, time.Since(start))
			b.ProbeNow()
			return nil
		}})
		for range 2 {
			for range 5 {
				a, rejected := b.Begin(0)
				equal(t, rejected, nil)
				a.End(t.Context(), errDown)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			equal(t, b.Health(), nil)
		}
		equal(t, len(probed), 2)
		if probed[1] < 11*time.Second {
			t.Errorf("the second outage was probed %s after its beginning", probed[1]-10*time.Second)
		}
	})
}

func TestVerdicts(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	status := func(kind cinder.Kind, status int) error { return &cinder.Error{Kind: kind, Status: status} }
	tests := map[string]struct {
		ctx  context.Context
		err  error
		want verdict
	}{
		"success":                        {want: backendAnswers},
		"not found":                      {err: status(cinder.KindNotFound, 404), want: backendAnswers},
		"over quota":                     {err: status(cinder.KindOverQuota, 413), want: backendAnswers},
		"asks for fewer requests":        {err: status(cinder.KindRateLimited, 429), want: backendAnswers},
		"forbidden":                      {err: status(cinder.KindForbidden, 403), want: backendAnswers},
		"conflict":                       {err: status(cinder.KindConflict, 400), want: backendAnswers},
		"wrapped answer":                 {err: fmt.Errorf("cannot: %w", status(cinder.KindConflict, 409)), want: backendAnswers},
		"server error":                   {err: status(cinder.KindUnavailable, 500), want: backendFails},
		"no backup service":              {err: &cinder.Error{Operation: "backup.create", Kind: cinder.KindUnavailable, Status: 503}, want: saysNothing},
		"no answer about backups":        {err: &cinder.Error{Operation: "backup.list", Kind: cinder.KindUnavailable, Cause: context.DeadlineExceeded}, want: backendFails},
		"no connection":                  {err: &cinder.Error{Kind: cinder.KindUnavailable, Message: "no connection"}, want: backendFails},
		"no answer":                      {err: &cinder.Error{Kind: cinder.KindUnavailable, Cause: context.DeadlineExceeded}, want: backendFails},
		"an answer that no Cinder gives": {err: &cinder.Error{Kind: cinder.KindInternal}, want: backendFails},
		"refused credentials":            {err: errRefused, want: backendFails},
		"unreadable credentials":         {err: &cinder.Error{Kind: cinder.KindConfig}, want: backendFails},
		"never sent for its form":        {err: &cinder.Error{Kind: cinder.KindInvalid}, want: saysNothing},
		"the term is over":               {err: &cinder.Error{Kind: cinder.KindFenced, Cause: context.Canceled}, want: saysNothing},
		"canceled":                       {ctx: canceled, err: &cinder.Error{Kind: cinder.KindUnavailable, Cause: context.Canceled}, want: saysNothing},
		"canceled in the queue":          {err: errUnsent, want: saysNothing},
		"late in the queue":              {err: &cinder.Error{Kind: cinder.KindUnavailable, Cause: context.DeadlineExceeded, Unsent: true}, want: saysNothing},
		"the caller's deadline":          {ctx: late, err: &cinder.Error{Kind: cinder.KindUnavailable, Cause: context.DeadlineExceeded}, want: saysNothing},
		"failed before the deadline":     {ctx: late, err: status(cinder.KindUnavailable, 503), want: backendFails},
		"a foreign error":                {err: errors.New("what"), want: saysNothing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			equal(t, verdictOf(ctx, test.err), test.want)
		})
	}
}

// gauges are the metrics of one backend.
type gauges struct {
	mu      sync.Mutex
	up      bool
	outages int
}

func (g *gauges) Health(_ string, up bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up = up
}

func (g *gauges) ForgetHealth(string) {}

func (g *gauges) Outage(string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outages++
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// cutShort returns the failure of a request under way whose context has ended.
func cutShort(operation string, err error) error {
	failed := &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnavailable, EffectUnknown: true, Message: "the request was canceled", Cause: err}
	if errors.Is(err, context.DeadlineExceeded) {
		failed.Message = "no answer in time"
	}
	return failed
}
