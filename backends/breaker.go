package backends

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// How a breaker opens and closes, unless its options say otherwise.
const (
	// defaultFailuresToOpen is how many failures in a row open the breaker.
	defaultFailuresToOpen = 5
	// shortestCoolDown and longestCoolDown bound the pause before a probe.
	shortestCoolDown = time.Second
	longestCoolDown  = 15 * time.Second
	// steadyAfter is how long a breaker must stay closed before the next outage
	// counts as a new one. Otherwise a backend that answers reads and fails
	// every change would seem to recover once a second.
	steadyAfter = 30 * time.Second
	// longestProbe bounds a probe's one request.
	longestProbe = 15 * time.Second
)

// breakerOptions configure a breaker.
type breakerOptions struct {
	backend string
	// failuresToOpen may be 0 for the default.
	failuresToOpen int
	// term is the context of the leader's term; no probe outlives it.
	term context.Context
	// probe makes one cheap request, bypassing the breaker.
	probe func(ctx context.Context) error
	// changed is LifecycleOptions.HealthChanged.
	changed func(err error)
	logger  *slog.Logger
	metrics *Metrics
}

// breaker rejects the requests to a backend that does not answer. It is closed
// until failuresToOpen requests in a row have failed. Then it is open, and
// every request fails at once, until a probe succeeds.
//
// Only a probe closes it: requests sent before it opened say nothing about the
// time after. It has one goroutine while it is open, and none while it is
// closed.
type breaker struct {
	breakerOptions

	mu sync.Mutex
	// failures counts failures in a row while the breaker is closed.
	failures int
	// rejected is the error of every request while the breaker is open; nil while
	// it is closed.
	rejected *cinder.Error
	// period is the current period of being closed or, while the breaker is
	// open, the last one. epoch is a number for each endpoint. An answer counts
	// only in the period and epoch in which its request left.
	period *period
	epoch  int
	// opened and closed are when the breaker last opened and closed.
	opened, closed time.Time
	// lastFailure is what the last failed call or probe said, and failed when.
	lastFailure string
	failed      time.Time
	// coolDown is the pause before the next probe.
	coolDown time.Duration
	// running is true while the goroutine exists.
	running bool
	// news contains the changes of health not yet announced, in order.
	news []healthChange
	// cancelProbe ends the probe under way; nil if there is none.
	cancelProbe context.CancelFunc
	// wake ends the pause before the next probe.
	wake chan struct{}
	// ended is true once the term is over and the gauge removed.
	ended bool
}

// period is one period of being closed.
type period struct {
	// over ends when the breaker opens; its cause is the error of waiting
	// requests.
	over context.Context
	end  context.CancelCauseFunc
}

func newPeriod() *period {
	over, end := context.WithCancelCause(context.Background())
	return &period{over, end}
}

// healthChange is one opening (err is set) or closing of the breaker.
type healthChange struct {
	err   error
	after time.Duration // how long the previous state lasted
}

func newBreaker(options breakerOptions) *breaker {
	if options.failuresToOpen <= 0 {
		options.failuresToOpen = defaultFailuresToOpen
	}
	if options.changed == nil {
		options.changed = func(error) {}
	}
	b := &breaker{breakerOptions: options, coolDown: shortestCoolDown, period: newPeriod(), wake: make(chan struct{}, 1)}
	b.metrics.health(b.backend, true)
	// A replica that does not lead does not know the backend's health.
	context.AfterFunc(b.term, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ended = true
		b.metrics.forgetHealth(b.backend)
	})
	return b
}

// attempt is one call of a session, which may be several requests.
type attempt struct {
	breaker *breaker
	period  *period
	epoch   int
}

// begin starts a call at the endpoint of that epoch, or returns the call's
// error.
func (b *breaker) begin(epoch int) (*attempt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected != nil {
		return nil, b.rejected
	}
	return &attempt{breaker: b, period: b.period, epoch: epoch}, nil
}

// admit is called before one of the call's requests waits for its turn, and
// again when its turn comes, which may be long after the call began. It returns
// a context that ends when the wait must end.
func (a *attempt) admit() (context.Context, error) {
	b := a.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected != nil {
		return nil, b.rejected
	}
	a.period = b.period
	return a.period.over, nil
}

// end counts the call's result. The context is the one that bounded the call.
func (a *attempt) end(ctx context.Context, err error) {
	found := verdictOf(ctx, err)
	b := a.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected != nil || a.period != b.period || a.epoch != b.epoch {
		return
	}
	switch found {
	case backendAnswers:
		b.failures = 0
	case backendFails:
		b.noteFailure(err)
		if b.failures++; b.failures >= b.failuresToOpen {
			b.open(err)
		}
	}
}

// open is called with b.mu locked.
func (b *breaker) open(err error) {
	if b.ended || b.term.Err() != nil {
		// Nothing could close it again.
		return
	}
	now := time.Now()
	if now.Sub(b.closed) >= steadyAfter {
		b.coolDown = shortestCoolDown
	} else {
		b.coolDown = min(2*b.coolDown, longestCoolDown)
	}
	b.rejected, b.failures, b.opened = b.rejection(err), 0, now
	b.period.end(b.rejected)
	// A wake-up that came before this outage does not concern it.
	select {
	case <-b.wake:
	default:
	}
	b.metrics.health(b.backend, false)
	b.metrics.outage(b.backend)
	b.news = append(b.news, healthChange{err: b.rejected})
	if !b.running {
		b.running = true
		go b.run()
	}
}

// close is called with b.mu locked.
func (b *breaker) close() {
	now := time.Now()
	b.rejected, b.failures, b.closed = nil, 0, now
	b.period = newPeriod()
	b.metrics.health(b.backend, true)
	b.news = append(b.news, healthChange{after: now.Sub(b.opened)})
}

// moved switches to another endpoint: results from the old one no longer count.
func (b *breaker) moved(epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch, b.failures = epoch, 0
}

// health is nil while the breaker is closed.
func (b *breaker) health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected == nil {
		return nil
	}
	return b.rejected
}

// condition is called without b.mu locked.
func (b *breaker) condition() Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := Condition{Answers: b.rejected == nil, Since: b.closed, FailuresInARow: b.failures, LastFailure: b.lastFailure, LastFailureAt: b.failed}
	if !c.Answers {
		c.Since = b.opened
	}
	return c
}

// rejection is the error of rejected requests. It omits the last failure's
// request ID, so that the same problem gives the same sentence.
func (b *breaker) rejection(last error) *cinder.Error {
	return &cinder.Error{Backend: b.backend, Kind: cinder.KindUnavailable, Unsent: true,
		Message: "requests are blocked until a probe succeeds; last failure: " + summaryOf(last)}
}

func summaryOf(err error) string {
	var failed *cinder.Error
	if errors.As(err, &failed) {
		return failed.Summary()
	}
	return err.Error()
}

// noteFailure is called with b.mu locked.
func (b *breaker) noteFailure(err error) { b.lastFailure, b.failed = summaryOf(err), time.Now() }

// run announces changes and probes, until the breaker is closed or the term
// ends. One goroutine does both, so that the news stays in order.
func (b *breaker) run() {
	for {
		pause, open := b.announce()
		if !open {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.term.Done():
		}
		timer.Stop()
		if b.term.Err() != nil {
			return
		}
		b.probeOnce()
	}
}

// announce reports changes, without the lock. It returns the pause before the
// next probe, or false once the breaker is closed and everything announced: the
// goroutine then ends, and the next opening starts another.
func (b *breaker) announce() (pause time.Duration, open bool) {
	for {
		b.mu.Lock()
		if len(b.news) == 0 {
			defer b.mu.Unlock()
			b.running = b.rejected != nil
			// Up to a fifth less, so that replicas and backends that failed
			// together do not probe together.
			return b.coolDown - rand.N(b.coolDown/5), b.running
		}
		change := b.news[0]
		b.news = b.news[1:]
		b.mu.Unlock()
		if change.err != nil {
			b.logger.Warn("Requests to the backend are rejected", "error", change.err)
		} else {
			b.logger.Info("The backend answers again", "outage", change.after)
		}
		if b.term.Err() == nil {
			b.changed(change.err)
		}
	}
}

// probeOnce probes the backend once and evaluates the result.
func (b *breaker) probeOnce() {
	ctx, cancel := context.WithCancel(b.term)
	defer cancel()
	b.mu.Lock()
	epoch := b.epoch
	b.cancelProbe = cancel
	b.mu.Unlock()
	err := b.probe(ctx)
	found := verdictOf(ctx, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancelProbe = nil
	if b.ended || epoch != b.epoch {
		return
	}
	switch found {
	case backendAnswers:
		b.close()
	case backendFails:
		b.noteFailure(err)
		b.rejected = b.rejection(err)
		b.coolDown = min(2*b.coolDown, longestCoolDown)
	}
}

// probeNow makes an open breaker probe at once, even if a probe is under way:
// that one may hang on a problem that is now fixed.
func (b *breaker) probeNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected == nil {
		return
	}
	if b.cancelProbe != nil {
		b.cancelProbe()
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// verdict is what a call's result says about the backend.
type verdict int

const (
	saysNothing verdict = iota
	backendAnswers
	backendFails
)

// verdictOf judges the result of a call that the context bounded. Any answer
// counts for the backend, except an internal failure, an answer that Cinder
// never gives, and rejected credentials: a backend is useless without a login.
func verdictOf(ctx context.Context, err error) verdict {
	if err == nil {
		return backendAnswers
	}
	var failed *cinder.Error
	switch {
	case !errors.As(err, &failed), failed.Unsent, failed.Kind == cinder.KindFenced, errors.Is(failed, context.Canceled):
		return saysNothing
	case errors.Is(failed, context.DeadlineExceeded) && ctx.Err() != nil:
		// The caller's time ran out, not the request's.
		return saysNothing
	}
	switch failed.Kind {
	case cinder.KindUnavailable, cinder.KindInternal, cinder.KindUnauthorized, cinder.KindConfig:
		return backendFails
	}
	if failed.Status != 0 {
		return backendAnswers
	}
	return saysNothing
}
