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
	// defaultFailuresToOpen is how many failures in a row are no accident.
	defaultFailuresToOpen = 5
	// shortestCoolDown and longestCoolDown bound the pause before a probe.
	shortestCoolDown = time.Second
	longestCoolDown  = 15 * time.Second
	// longestRefusal takes its place while credentials are refused: each probe
	// is a login, and enough of these lock an account. New credentials are tried
	// at once.
	longestRefusal = 2 * time.Minute
	// steadyAfter is how long a breaker stays closed before the next outage
	// counts as a new one. A backend that answers reads and fails every change
	// would otherwise be taken for mended once a second.
	steadyAfter = 30 * time.Second
	// longestProbe bounds the one request of a probe.
	longestProbe = 15 * time.Second
)

// breakerOptions configure a breaker.
type breakerOptions struct {
	backend string
	// failuresToOpen is 0 for the default.
	failuresToOpen int
	// hold ends with the term; no probe outlives it.
	hold context.Context
	// probe makes one cheap request, past the breaker.
	probe func(ctx context.Context) error
	// changed is LifecycleOptions.HealthChanged.
	changed func(err error)
	logger  *slog.Logger
	metrics *Metrics
}

// breaker holds back the requests to a backend that does not answer. It is
// closed until failuresToOpen requests in a row have failed; then it is open,
// and every request fails at once, until a probe is answered.
//
// Only the probe closes it: what was sent before it opened says nothing about
// the time after. One goroutine exists while it is open, and none while it is
// closed.
type breaker struct {
	breakerOptions

	mu sync.Mutex
	// failures counts those in a row while the breaker is closed.
	failures int
	// held is what every request is told while the breaker is open; nil while
	// it is closed.
	held *cinder.Error
	// period is the current or, while the breaker is open, the last time of
	// being closed, and epoch a number for each endpoint. An answer counts only
	// in the period and epoch in which its request left.
	period *period
	epoch  int
	// opened and closed are when the breaker last did so.
	opened, closed time.Time
	// coolDown is the pause before the next probe.
	coolDown time.Duration
	// running says that the goroutine exists.
	running bool
	// news are the changes of health that nobody was told of yet, in order.
	news []healthChange
	// cancelProbe ends the probe under way; nil when there is none.
	cancelProbe context.CancelFunc
	// wake ends the pause before the next probe.
	wake chan struct{}
	// ended says that the term is over and its gauge gone.
	ended bool
}

// period is one time of being closed.
type period struct {
	// over ends when the breaker opens; its cause is what requests are told.
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
	after time.Duration // how long the state before had lasted
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
	// A replica that does not lead knows nothing of the backend's health.
	context.AfterFunc(b.hold, func() {
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

// begin lets a call begin, or returns the error that it ends with. The epoch
// is that of the endpoint which is called.
func (b *breaker) begin(epoch int) (*attempt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held != nil {
		return nil, b.held
	}
	return &attempt{breaker: b, period: b.period, epoch: epoch}, nil
}

// admit is asked before one of the call's requests waits for its turn, and
// again when that has come, which may be long after the call began. It returns
// the context whose end also ends the waiting.
func (a *attempt) admit() (context.Context, error) {
	b := a.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held != nil {
		return nil, b.held
	}
	a.period = b.period
	return a.period.over, nil
}

// end counts how the call ended. The context is the one that bounded it.
func (a *attempt) end(ctx context.Context, err error) {
	found := verdictOf(ctx, err)
	b := a.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held != nil || a.period != b.period || a.epoch != b.epoch {
		return
	}
	switch found {
	case backendAnswers:
		b.failures = 0
	case backendFails:
		if b.failures++; b.failures >= b.failuresToOpen {
			b.open(err)
		}
	}
}

// open is called under the lock.
func (b *breaker) open(err error) {
	if b.ended || b.hold.Err() != nil {
		// Nothing could close it again.
		return
	}
	now := time.Now()
	if now.Sub(b.closed) >= steadyAfter {
		b.coolDown = shortestCoolDown
	} else {
		b.coolDown = longerCoolDown(b.coolDown, err)
	}
	b.held, b.failures, b.opened = b.heldBack(err), 0, now
	b.period.end(b.held)
	// A wake-up that came before this outage is not meant for it.
	select {
	case <-b.wake:
	default:
	}
	b.metrics.health(b.backend, false)
	b.metrics.outage(b.backend)
	b.news = append(b.news, healthChange{err: b.held})
	if !b.running {
		b.running = true
		go b.run()
	}
}

// close is called under the lock.
func (b *breaker) close() {
	now := time.Now()
	b.held, b.failures, b.closed = nil, 0, now
	b.period = newPeriod()
	b.metrics.health(b.backend, true)
	b.news = append(b.news, healthChange{after: now.Sub(b.opened)})
}

// moved says that requests go to another endpoint from now on: what is known
// of the old one does not count any more.
func (b *breaker) moved(epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch, b.failures = epoch, 0
}

// health is nil while the breaker is closed.
func (b *breaker) health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
		return nil
	}
	return b.held
}

func longerCoolDown(d time.Duration, last error) time.Duration {
	if cinder.IsKind(last, cinder.KindUnauthorized) {
		return min(2*d, longestRefusal)
	}
	return min(2*d, longestCoolDown)
}

// heldBack is what requests are told that are not made. The request id of the
// last failure is left out, so that the same trouble gives the same sentence.
func (b *breaker) heldBack(last error) *cinder.Error {
	said := last.Error()
	var failed *cinder.Error
	if errors.As(last, &failed) {
		said = failed.Summary()
	}
	return &cinder.Error{Backend: b.backend, Kind: cinder.KindUnavailable, Unsent: true,
		Message: "requests are held back until it answers again; the last failure: " + said}
}

// run tells of changes and probes until the breaker is closed or the term
// ends. That one goroutine does both keeps the news in order.
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
		case <-b.hold.Done():
		}
		timer.Stop()
		if b.hold.Err() != nil {
			return
		}
		b.probeOnce()
	}
}

// announce tells of what has changed, without the lock. It returns the pause
// before the next probe, or false when the breaker is closed and all is told:
// the goroutine then ends, and the next opening starts another.
func (b *breaker) announce() (pause time.Duration, open bool) {
	for {
		b.mu.Lock()
		if len(b.news) == 0 {
			defer b.mu.Unlock()
			b.running = b.held != nil
			// Up to a fifth less, so that replicas and backends that failed
			// together are not probed together.
			return b.coolDown - rand.N(b.coolDown/5), b.running
		}
		change := b.news[0]
		b.news = b.news[1:]
		b.mu.Unlock()
		if change.err != nil {
			b.logger.Warn("Requests to the backend are held back", "error", change.err)
		} else {
			b.logger.Info("The backend answers again", "outage", change.after)
		}
		if b.hold.Err() == nil {
			b.changed(change.err)
		}
	}
}

// probeOnce asks the backend once and draws the conclusion.
func (b *breaker) probeOnce() {
	ctx, cancel := context.WithCancel(b.hold)
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
		b.held = b.heldBack(err)
		b.coolDown = longerCoolDown(b.coolDown, err)
	}
}

// probeNow has an open breaker probe at once, also when a probe is under way:
// that one may hang on what was mended meanwhile.
func (b *breaker) probeNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
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

// verdict is what the end of a call says about the backend.
type verdict int

const (
	saysNothing verdict = iota
	backendAnswers
	backendFails
)

// verdictOf judges the end of a call that the context bounded. Whatever is an
// answer speaks for the backend, except one that no Cinder gives, a failure of
// its own, and a refusal of the credentials: a backend that nobody can log in
// to is of no use, and going on with it can lock the account.
func verdictOf(ctx context.Context, err error) verdict {
	if err == nil {
		return backendAnswers
	}
	var failed *cinder.Error
	switch {
	case !errors.As(err, &failed), failed.Unsent, failed.Kind == cinder.KindFenced, errors.Is(failed, context.Canceled):
		return saysNothing
	case errors.Is(failed, context.DeadlineExceeded) && ctx.Err() != nil:
		// The caller's time was up, not the request's.
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
