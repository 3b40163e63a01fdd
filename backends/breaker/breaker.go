// Package breaker rejects the requests to a backend that does not answer, and
// probes it until it does.
package breaker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Defaults of Options.
const (
	// DefaultFailuresToOpen is how many failures in a row open the breaker.
	DefaultFailuresToOpen = 5
	// minCoolDown and maxCoolDown bound the pause before a probe.
	minCoolDown = time.Second
	maxCoolDown = 15 * time.Second
	// steadyAfter is how long a breaker must stay closed before the next outage
	// counts as a new one. Otherwise a backend that answers reads and fails
	// every change would seem to recover once a second.
	steadyAfter = 30 * time.Second
)

// Options configure a Breaker.
type Options struct {
	Backend string
	// FailuresToOpen may be 0 for the default.
	FailuresToOpen int
	// Term is the context of the leader's term; no probe outlives it.
	Term context.Context
	// Probe makes one cheap request, bypassing the breaker.
	Probe func(ctx context.Context) error
	// Changed is called with the error of rejected requests when the breaker opens, and
	// with nil when it closes; in order, one call at a time, only during the term, and
	// with no lock held. It may be nil.
	Changed func(err error)
	Logger  *slog.Logger
	Metrics Metrics
}

// Metrics shows the health of backends.
type Metrics interface {
	Health(backend string, up bool)
	// ForgetHealth is called at the end of the term.
	ForgetHealth(backend string)
	Outage(backend string)
}

// Condition is how a backend answers, as far as the term's requests have shown.
type Condition struct {
	// Answers is false while requests are rejected.
	Answers bool
	// Since is when that began; zero if it has been so for the whole term.
	Since time.Time
	// FailuresInARow counts while the backend answers; enough of them open the
	// breaker.
	FailuresInARow int
	// LastFailure is the text of the term's last failure, if there was one.
	LastFailure   string
	LastFailureAt time.Time
}

// Breaker rejects the requests to a backend that does not answer. It is closed
// until FailuresToOpen requests in a row have failed. Then it is open, and
// every request fails at once, until a probe succeeds.
//
// Only a probe closes it: requests sent before it opened say nothing about the
// time after. It has one goroutine while it is open, and none while it is
// closed.
type Breaker struct {
	options Options

	mu        sync.Mutex
	condition Condition
	// rejected is the error of every request while the breaker is open; nil while
	// it is closed.
	rejected *cinder.Error
	// period is the current period of being closed or, while the breaker is
	// open, the last one. epoch is a number for each endpoint. An answer counts
	// only in the period and epoch in which its request left.
	period *period
	epoch  int
	// coolDown is the pause before the next probe.
	coolDown time.Duration
	// running is true while the goroutine exists.
	running bool
	// news contains the changes of health not yet announced, in order.
	news []healthChange
	// cancelProbe ends the probe under way; nil if there is none.
	cancelProbe context.CancelFunc
	// wake cuts the pause before the next probe short.
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

// New returns a closed breaker.
func New(options Options) *Breaker {
	options.FailuresToOpen = cmp.Or(options.FailuresToOpen, DefaultFailuresToOpen)
	if options.Changed == nil {
		options.Changed = func(error) {}
	}
	b := &Breaker{options: options, condition: Condition{Answers: true}, coolDown: minCoolDown, period: newPeriod(), wake: make(chan struct{}, 1)}
	b.options.Metrics.Health(b.options.Backend, true)
	// A replica that does not lead does not know the backend's health.
	context.AfterFunc(b.options.Term, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ended = true
		b.options.Metrics.ForgetHealth(b.options.Backend)
	})
	return b
}

// Attempt is one call of a session; it may make several requests.
type Attempt struct {
	breaker *Breaker
	period  *period
	epoch   int
}

// Begin starts a call at the endpoint of that epoch, or returns the error that rejects
// it.
func (b *Breaker) Begin(epoch int) (*Attempt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected != nil {
		return nil, b.rejected
	}
	return &Attempt{breaker: b, period: b.period, epoch: epoch}, nil
}

// Admit is called before one of the call's requests waits for its turn, and again when
// its turn comes, possibly long after the call began. It returns a context that ends when
// the wait must end.
func (a *Attempt) Admit() (context.Context, error) {
	b := a.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected != nil {
		return nil, b.rejected
	}
	a.period = b.period
	return a.period.over, nil
}

// End counts the call's result. The context is the one that bounded the call.
func (a *Attempt) End(ctx context.Context, err error) {
	found := verdictOf(ctx, err)
	b := a.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected != nil || a.period != b.period || a.epoch != b.epoch {
		return
	}
	switch found {
	case backendAnswers:
		b.condition.FailuresInARow = 0
	case backendFails:
		b.noteFailure(err)
		if b.condition.FailuresInARow++; b.condition.FailuresInARow >= b.options.FailuresToOpen {
			b.open(err)
		}
	}
}

// open opens the breaker. The caller must hold b.mu.
func (b *Breaker) open(err error) {
	if b.ended || b.options.Term.Err() != nil {
		// Nothing would ever close it again.
		return
	}
	now := time.Now()
	if now.Sub(b.condition.Since) >= steadyAfter {
		b.coolDown = minCoolDown
	} else {
		b.coolDown = min(2*b.coolDown, maxCoolDown)
	}
	b.rejected = b.rejection(err)
	b.condition.Answers, b.condition.FailuresInARow, b.condition.Since = false, 0, now
	b.period.end(b.rejected)
	// A wake-up from before this outage does not concern it.
	select {
	case <-b.wake:
	default:
	}
	b.options.Metrics.Health(b.options.Backend, false)
	b.options.Metrics.Outage(b.options.Backend)
	b.news = append(b.news, healthChange{err: b.rejected})
	if !b.running {
		b.running = true
		go b.run()
	}
}

// close closes the breaker. The caller must hold b.mu.
func (b *Breaker) close() {
	down := b.condition.Since
	b.rejected = nil
	b.condition.Answers, b.condition.FailuresInARow, b.condition.Since = true, 0, time.Now()
	b.period = newPeriod()
	b.options.Metrics.Health(b.options.Backend, true)
	b.news = append(b.news, healthChange{after: b.condition.Since.Sub(down)})
}

// Moved switches to another endpoint: results from the old one no longer count.
func (b *Breaker) Moved(epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch, b.condition.FailuresInARow = epoch, 0
}

// Health returns the error with which requests are rejected, or nil while the
// breaker is closed.
func (b *Breaker) Health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rejected == nil {
		return nil
	}
	return b.rejected
}

// Condition returns how the backend answers. The caller must not hold b.mu.
func (b *Breaker) Condition() Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.condition
}

// rejection returns the error of rejected requests. It omits the last failure's request
// ID, so that the same problem yields the same message.
func (b *Breaker) rejection(last error) *cinder.Error {
	return &cinder.Error{Backend: b.options.Backend, Kind: cinder.KindUnavailable, Unsent: true,
		Message: "requests are blocked until a probe succeeds; last failure: " + summaryOf(last)}
}

func summaryOf(err error) string {
	if failed, ok := errors.AsType[*cinder.Error](err); ok {
		return failed.Summary()
	}
	return err.Error()
}

// noteFailure records the last failure. The caller must hold b.mu.
func (b *Breaker) noteFailure(err error) {
	b.condition.LastFailure, b.condition.LastFailureAt = summaryOf(err), time.Now()
}

// run announces changes and probes, until the breaker is closed or the term
// ends. One goroutine does both, so that the news stays in order.
func (b *Breaker) run() {
	for {
		pause, open := b.announce()
		if !open {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.options.Term.Done():
		}
		timer.Stop()
		if b.options.Term.Err() != nil {
			return
		}
		b.probeOnce()
	}
}

// announce reports changes, without the lock. It returns the pause before the next probe,
// or false once the breaker is closed and everything is announced: the goroutine then
// ends, and the next opening starts another.
func (b *Breaker) announce() (pause time.Duration, open bool) {
	for {
		b.mu.Lock()
		if len(b.news) == 0 {
			defer b.mu.Unlock()
			b.running = b.rejected != nil
			// Up to a fifth less, so that replicas and backends that failed together do
			// not probe together.
			return b.coolDown - rand.N(b.coolDown/5), b.running
		}
		change := b.news[0]
		b.news = b.news[1:]
		b.mu.Unlock()
		if change.err != nil {
			b.options.Logger.Warn("Requests to the backend are rejected", "error", change.err)
		} else {
			b.options.Logger.Info("The backend answers again", "outage", change.after)
		}
		if b.options.Term.Err() == nil {
			b.options.Changed(change.err)
		}
	}
}

// probeOnce probes the backend once and evaluates the result.
func (b *Breaker) probeOnce() {
	ctx, cancel := context.WithCancel(b.options.Term)
	defer cancel()
	b.mu.Lock()
	epoch := b.epoch
	b.cancelProbe = cancel
	b.mu.Unlock()
	err := b.options.Probe(ctx)
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
		b.coolDown = min(2*b.coolDown, maxCoolDown)
	}
}

// ProbeNow makes an open breaker probe at once, even if a probe is under way: that one
// may hang on a problem that has since been fixed.
func (b *Breaker) ProbeNow() {
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

// verdict is what a call's result reveals about the backend.
type verdict int

const (
	saysNothing verdict = iota
	backendAnswers
	backendFails
)

// verdictOf judges the result of a call bounded by the context. Any answer counts in the
// backend's favor, except an internal failure, an answer that Cinder never gives, and
// rejected credentials: a backend is useless without a login.
func verdictOf(ctx context.Context, err error) verdict {
	if err == nil {
		return backendAnswers
	}
	var failed *cinder.Error
	switch {
	case !errors.As(err, &failed), failed.Unsent, failed.Kind == cinder.KindFenced, errors.Is(failed, context.Canceled):
		return saysNothing
	case errors.Is(failed, context.DeadlineExceeded) && ctx.Err() != nil:
		// The caller ran out of time, not the request.
		return saysNothing
	case strings.HasPrefix(failed.Operation, "backup.") && failed.Status >= 500:
		// Cinder answers so without a backup service, which volumes do not need.
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
