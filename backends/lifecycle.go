package backends

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/breaker"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/keyedmutex"
)

// LifecycleOptions configure a Lifecycle.
type LifecycleOptions struct {
	Config Config
	Pool   *Pool
	// Cluster is the ID stamped on this cluster's volumes.
	Cluster string
	// Fence returns an error once the leader's term is over; it is called before every
	// change at Cinder.
	Fence func() error
	// Changing is called before every change at Cinder, which is not sent after an error,
	// and ended when its answer is there or will never come. Nil permits every change.
	Changing func() (ended func(), err error)
	// Term is canceled when the term ends, which aborts requests in flight.
	Term    context.Context
	Logger  *slog.Logger
	Metrics *Metrics
	// Poll is the shortest time between two rounds of waiting; 0 means 200 ms.
	Poll time.Duration
	// ReadLag is how stale reads may be.
	ReadLag time.Duration
	// Changed is the latest time at which an earlier term can have made a change; zero
	// means now. The first request waits until reads show it.
	Changed time.Time
	// pause is that of watch.Options; nil means to sleep until it is woken.
	pause func(time.Duration, <-chan struct{})
	// FailuresToOpen is that of breaker.Options.
	FailuresToOpen int
	// HealthChanged is that of breaker.Options.Changed. It must return quickly: the next
	// probe waits for it.
	HealthChanged func(err error)
	// Moved is called, with no lock held, when changed credentials point to another
	// place, so that the endpoint changes as after Configure. It must return quickly. It
	// may be nil.
	Moved func()
}

// Lifecycle manages the life cycle of one backend's volumes: create, connect, bring into
// use, and back. It uses the volume actions or the attachments API; see Workflow. It
// lives as long as one leader's term: its memory (volumes created, create requests with
// lost answers, the term's first listing) is valid only while no other replica leads.
//
// Every method derives its next step from the observed state, so it may be interrupted
// anywhere and repeated, by this leader or the next.
//
// While the backend does not answer, every method that needs a request fails at
// once with the error that Health returns.
type Lifecycle struct {
	options LifecycleOptions
	clients clients
	breaker *breaker.Breaker

	// locks serializes the operations on one claim's volume, such as Complete
	// and Remove when a claim is deleted as soon as it is bound.
	locks *keyedmutex.Mutex

	// mu guards what all endpoints of the term know, and which of them is current.
	mu sync.Mutex
	at *owners
	// lastUncertain is when a create request last lost its answer, or the endpoint last
	// changed.
	lastUncertain time.Time
}

// NewLifecycle returns the lifecycle of one backend for one term.
func NewLifecycle(options LifecycleOptions) *Lifecycle {
	return newLifecycle(options, options.Pool)
}

func newLifecycle(options LifecycleOptions, clients clients) *Lifecycle {
	options.Config = options.Config.withDefaults()
	options.Logger = options.Logger.With("backend", options.Config.Name)
	options.Poll = cmp.Or(options.Poll, 200*time.Millisecond)
	options.Changed = cmp.Or(options.Changed, time.Now())
	if options.pause == nil {
		options.pause = sleep
	}
	l := &Lifecycle{options: options, clients: clients, locks: keyedmutex.New()}
	l.breaker = breaker.New(breaker.Options{
		Backend:        options.Config.Name,
		FailuresToOpen: options.FailuresToOpen,
		Term:           options.Term,
		Probe:          func(ctx context.Context) error { return l.current().session.probe(ctx) },
		Changed:        options.HealthChanged,
		Logger:         options.Logger,
		Metrics:        options.Metrics,
	})
	l.at = l.newEndpoint(options.Config, 0, options.Changed)
	return l
}

// current returns the endpoint for an operation that begins now.
func (l *Lifecycle) current() *owners {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// Health returns the error with which requests are rejected, or nil while the backend
// answers.
func (l *Lifecycle) Health() error { return l.breaker.Health() }

// Condition returns how the backend answers, for reports.
func (l *Lifecycle) Condition() breaker.Condition { return l.breaker.Condition() }

// ProbeNow probes a backend that does not answer at once, rather than after the pause
// between two probes. It is for callers that know of a fix, such as new credentials, and
// does nothing while the backend answers.
func (l *Lifecycle) ProbeNow() { l.breaker.ProbeNow() }

// maxMoves bounds how often one call reads the volume and takes a step. The longest
// normal path has four moves; more mean that another party is also changing the volume.
const maxMoves = 12

// serialized runs operations with the same key one at a time, at the endpoint that is
// current when the operation begins.
func (l *Lifecycle) serialized(ctx context.Context, key string, operate func(at *owners) error) error {
	// The holder of the lock may be waiting for a turn at the backend.
	waited := turns.CallerOf(ctx).Waiting()
	release, err := l.locks.Acquire(ctx, key)
	waited()
	if err != nil {
		return err
	}
	defer release()
	return operate(l.current())
}

// serialized runs an operation that returns a value.
func serialized[T any](ctx context.Context, l *Lifecycle, key string, operate func(at *owners) (T, error)) (result T, err error) {
	err = l.serialized(ctx, key, func(at *owners) error {
		result, err = operate(at)
		return err
	})
	return result, err
}

func sleep(pause time.Duration, woken <-chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	}
}
