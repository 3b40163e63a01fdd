// Package worker is the loop shared by the controllers of a term. A Loop takes keys from
// a queue and makes attempts at them; turns keep one tenant or backend from occupying all
// workers. An attempt's Outcome decides what happens next: nothing, a retry, or, after
// Await, a wait until a trigger fires. The loop knows no objects and sends no requests.
// The queue and its workers may also belong to another library.
package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/fairshare"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Options configure a Loop.
type Options[K comparable] struct {
	// Name is the name of the queue, a plural.
	Name string
	// Workers is how many attempts run at once.
	Workers int
	// Requeue returns keys to a queue that is not the loop's. That queue's workers then
	// call Make, and use the Limiter to retry. If it is nil, the loop has its own queue
	// and workers, Do and Describe.
	Requeue func(keys []K)
	Limiter *backoff.Limiter[K]
	// Do makes an attempt at a key. Its context ends with the term.
	Do func(ctx context.Context, a *Attempt[K]) Outcome
	// Describe names the worker of a key, as a noun with its article.
	Describe func(key K) string
	// OwnTurns returns the largest number of turns that a tenant may have; 0 means no
	// limit of its own. Nil means no limits for tenants.
	OwnTurns func(tenant string) int
	// Board is the term's.
	Board *parking.Board

	// Monitor watches the work. MaxWorkTime exceeds every wait of an attempt, except for
	// turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound
}

// Outcome is what follows from an attempt. Nothing follows from the zero Outcome: the key
// waits for its turn or for triggers, or something else requeues it. Nor does anything
// follow if the end of the term canceled the attempt, since the next leader sees the same
// objects.
type Outcome struct {
	// Done forgets the key's failures.
	Done bool
	// Retry requeues the key after a delay, which grows with each failure in a row.
	Retry *backoff.Delay
}

// Attempt is one attempt at a key.
type Attempt[K comparable] struct {
	Key K

	loop *Loop[K]
	// since is a moment before the attempt: triggers that fire after it are not missed.
	since        parking.Moment
	begun, waits bool
}

// Begin takes the key's turn, until the attempt ends. If it returns false, the attempt
// must end, and the loop makes another one when the key's turn comes.
func (a *Attempt[K]) Begin(tenant, backend string) bool {
	a.begun = a.loop.Turns.Begin(a.Key, tenant, backend)
	a.waits = !a.begun
	return a.begun
}

// Waits reports whether the attempt must end because its turn has not come.
func (a *Attempt[K]) Waits() bool { return a.waits }

// Await requeues the key when one of the triggers fires, even if the attempt is also
// retried: at once if one has fired since the attempt began. A new attempt drops what
// earlier ones awaited.
func (a *Attempt[K]) Await(triggers ...parking.Trigger) { a.loop.await(a.Key, triggers, a.since) }

// LookAgain requeues the key after a while, whatever happens until then. That costs an
// attempt which may find nothing to do.
func (a *Attempt[K]) LookAgain(after time.Duration) {
	time.AfterFunc(after, func() { a.loop.Add(a.Key) })
}

// Loop works for one term.
type Loop[K comparable] struct {
	options Options[K]
	// Queue has the keys to be worked on; nil if it is not the loop's.
	Queue workqueue.TypedRateLimitingInterface[K]
	// Turns share the workers.
	Turns *fairshare.Turns[K]

	limiter *backoff.Limiter[K]

	mu sync.Mutex
	// awaited are the triggers that keys wait for.
	awaited *parking.Awaited[K]
}

// New returns the loop of one term. It does nothing before Run.
func New[K comparable](options Options[K]) *Loop[K] {
	own := options.OwnTurns
	if own == nil {
		own = func(string) int { return 0 }
	}
	l := &Loop[K]{options: options, limiter: options.Limiter, awaited: parking.NewAwaited[K]()}
	if options.Requeue == nil {
		l.limiter = backoff.New[K](backoff.Delay{First: time.Second, Most: 30 * time.Second})
		l.Queue = workqueue.NewTypedRateLimitingQueueWithConfig(l.limiter, workqueue.TypedRateLimitingQueueConfig[K]{Name: options.Name})
	}
	l.Turns = fairshare.New(options.Workers, own, func(key K) { l.Add(key) })
	options.Board.Subscribe(l.hear)
	return l
}

// Add requeues keys.
func (l *Loop[K]) Add(keys ...K) {
	if l.options.Requeue != nil {
		l.options.Requeue(keys)
		return
	}
	for _, key := range keys {
		l.Queue.Add(key)
	}
}

// Run works until the context ends and none of its own workers' attempts is under way.
func (l *Loop[K]) Run(ctx context.Context) {
	var group sync.WaitGroup
	if l.Queue != nil {
		for range l.options.Workers {
			group.Go(func() {
				for l.Next(ctx) {
				}
			})
		}
	}
	group.Go(func() {
		l.options.Monitor.Follow(ctx, "the queue of "+l.options.Name, l.options.MaxWorkTime, l.Turns.Progress)
	})
	<-ctx.Done()
	if l.Queue != nil {
		l.Queue.ShutDown()
	}
	group.Wait()
}

// Next makes an attempt at the next key. It returns false when the queue is shut down.
func (l *Loop[K]) Next(ctx context.Context) bool {
	key, shutDown := l.Queue.Get()
	if shutDown {
		return false
	}
	defer l.Queue.Done(key)
	if ctx.Err() == nil { // otherwise the queue is only emptied
		l.Try(ctx, key)
	}
	return true
}

// Try makes an attempt at a key and acts on its outcome.
func (l *Loop[K]) Try(ctx context.Context, key K) {
	if outcome := l.Make(ctx, key, l.options.Describe(key), l.options.Do); outcome.Retry != nil && ctx.Err() == nil {
		l.Queue.AddRateLimited(key)
	}
}

// Make makes an attempt at a key with do and acts on its outcome, except for a retry. The
// worker is named by a noun with its article.
func (l *Loop[K]) Make(ctx context.Context, key K, worker string, do func(ctx context.Context, a *Attempt[K]) Outcome) Outcome {
	task := l.options.Monitor.Begin(worker, l.options.MaxWorkTime)
	defer task.End()
	a := l.Attempt(key)
	outcome := do(task.In(ctx), a)
	// An attempt that waits for its turn has not succeeded.
	if ctx.Err() == nil && outcome.Done && !a.waits {
		l.limiter.Succeeded(key)
	}
	if ctx.Err() == nil && outcome.Retry != nil {
		l.limiter.Failed(key, *outcome.Retry)
	}
	switch {
	case a.begun:
		l.Turns.End(key)
	case !a.waits:
		// An earlier attempt may have waited for a turn that this one did not need.
		l.Turns.Leave(key)
	}
	return outcome
}

// Attempt returns an attempt that begins now.
func (l *Loop[K]) Attempt(key K) *Attempt[K] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaited.Delete(key)
	return &Attempt[K]{Key: key, loop: l, since: l.options.Board.Now()}
}

func (l *Loop[K]) await(key K, triggers []parking.Trigger, since parking.Moment) {
	l.mu.Lock()
	l.awaited.Set(key, triggers)
	l.mu.Unlock()
	if l.options.Board.Since(since, triggers) {
		l.mu.Lock()
		l.awaited.Delete(key)
		l.mu.Unlock()
		l.Add(key)
	}
}

// hear requeues the keys that any of the triggers may unblock. Another policy may have
// changed tenants' limits.
func (l *Loop[K]) hear(triggers []parking.Trigger) {
	if slices.ContainsFunc(triggers, func(one parking.Trigger) bool { return one.Kind == parking.Policy }) {
		l.Turns.Recheck()
	}
	l.mu.Lock()
	keys := l.awaited.By(triggers)
	for _, key := range keys {
		l.awaited.Delete(key)
	}
	l.mu.Unlock()
	l.Add(keys...)
}

// Awaiting returns the keys that wait for a trigger, in any order.
func (l *Loop[K]) Awaiting() []K {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.awaited.Keys()
}

// Leave drops a key's triggers and turn. An attempt under way continues.
func (l *Loop[K]) Leave(key K) {
	l.mu.Lock()
	l.awaited.Delete(key)
	l.mu.Unlock()
	l.Turns.Leave(key)
}

// Forget drops a key that needs no more work, and its failures.
func (l *Loop[K]) Forget(key K) {
	l.Leave(key)
	l.limiter.Gone(key)
}
