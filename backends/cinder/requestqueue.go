package cinder

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Caller is the party for which requests are made.
type Caller struct {
	// Tenant gets its own queue for the backend. Requests without a tenant
	// share one queue, which takes turns like a tenant's.
	Tenant string
	// Pace limits the tenant's requests, over all backends that share the
	// limiter; nil means that only the backends' limits apply.
	Pace *rate.Limiter
}

type callerKey struct{}

// WithCaller makes the requests sent with the context wait in the caller's
// queue. Listings that serve many claims, and logins, have no caller, whatever
// the context carries.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller that the context carries; the zero Caller if none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Limits bound the requests to one backend.
type Limits struct {
	// Concurrency is the number of requests under way at once.
	Concurrency int
	// RequestsPerSecond is 0 when requests are not paced.
	RequestsPerSecond float64
}

// turns bounds how many requests to a backend are under way and how many begin
// in a second. Waiting requests are queued by tenant, and a free turn goes to
// the next tenant in the round: a tenant with a thousand requests delays
// another by one request, not by a thousand.
//
// A turn is a slot, a token of the backend's pace and a token of the tenant's.
// It is granted when all three are available; none is taken while another is
// missing. Otherwise the order of arrival at the limiter would decide who is
// next, and a tenant over its pace would occupy slots. Tokens are not reserved
// ahead either: those of requests that leave the queue would be lost to later
// ones.
type turns struct {
	pace  *rate.Limiter // nil when requests are not paced
	slots int           // in total

	mu   sync.Mutex
	free int
	// queues contains the tenants with waiting requests; round contains the
	// same in order, the next one in front.
	queues map[string]*turnQueue
	round  *list.List // of *turnQueue
	// timer is set while a request waits for a token although a slot is free.
	timer *time.Timer
}

type turnQueue struct {
	tenant  string
	place   *list.Element // in the round
	waiting *list.List    // of *turnWait, first come first served
}

type turnWait struct {
	queue *turnQueue
	place *list.Element // in the queue; nil once granted
	pace  *rate.Limiter // the tenant's; nil for none
	ready chan struct{}
}

func newTurns(limits Limits) *turns {
	t := &turns{slots: limits.Concurrency, free: limits.Concurrency, queues: map[string]*turnQueue{}, round: list.New()}
	if perSecond := limits.RequestsPerSecond; perSecond > 0 {
		t.pace = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
	}
	return t
}

// patience is what ends the wait for a turn: the request's context, the
// waiter's, or the beginning of an outage.
type patience struct {
	ctx    context.Context
	waiter context.Context
	outage context.Context // its cause is the error; nil for none
}

// errNoPace means that a tenant's pace admits no request at all.
var errNoPace = errors.New("the tenant's pace admits no request; give its limiter a burst of at least one")

// acquire waits for the caller's turn. The caller ends it with release, or with
// pass if no request was sent.
func (t *turns) acquire(caller Caller, p patience) error {
	if pace := caller.Pace; pace != nil && pace.Burst() < 1 && pace.Limit() != rate.Inf {
		return errNoPace
	}
	t.mu.Lock()
	if t.round.Len() == 0 && t.free > 0 && untilToken(t.pace) == 0 && allows(caller.Pace) {
		t.take()
		t.mu.Unlock()
		return nil
	}
	waiting := t.enqueue(caller)
	t.serve()
	t.mu.Unlock()
	var outage <-chan struct{}
	if p.outage != nil {
		outage = p.outage.Done()
	}
	var err error
	select {
	case <-waiting.ready:
		return nil
	case <-p.waiter.Done():
		err = p.waiter.Err()
	case <-p.ctx.Done():
		err = p.ctx.Err()
	case <-outage:
		err = context.Cause(p.outage)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if waiting.place == nil {
		// The turn was granted at this very moment; it goes to the next
		// request.
		t.passOn()
		return err
	}
	t.leave(waiting)
	t.serve()
	return err
}

// release ends a turn whose request was sent.
func (t *turns) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.serve()
}

// pass ends a turn whose request was not sent. The next request needs no
// further token of the backend's pace.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passOn()
}

func (t *turns) passOn() {
	if next, _ := t.next(); next != nil {
		t.grant(next)
		return
	}
	t.free++
	t.serve()
}

// serve grants turns while there are slots, tokens and waiting requests.
// Without a token it runs again when one is due.
func (t *turns) serve() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	for t.free > 0 && t.round.Len() > 0 {
		if due := untilToken(t.pace); due > 0 {
			t.serveAfter(due)
			return
		}
		next, due := t.next()
		if next == nil {
			t.serveAfter(due)
			return
		}
		t.take()
		t.grant(next)
	}
}

func (t *turns) serveAfter(due time.Duration) {
	t.timer = time.AfterFunc(due, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.serve()
	})
}

// take uses an available slot and token.
func (t *turns) take() {
	t.free--
	allows(t.pace)
}

// next returns the first request of the first tenant in the round whose pace
// allows one, and uses its token; otherwise nil, and when to try again.
func (t *turns) next() (next *turnWait, due time.Duration) {
	due = longestSleep
	for place := t.round.Front(); place != nil; place = place.Next() {
		first := place.Value.(*turnQueue).waiting.Front().Value.(*turnWait)
		if allows(first.pace) {
			return first, 0
		}
		due = min(due, untilToken(first.pace))
	}
	return nil, max(due, 1)
}

// grant gives a turn to a request; its tenant goes to the end of the round.
func (t *turns) grant(next *turnWait) {
	t.round.MoveToBack(next.queue.place)
	t.leave(next)
	close(next.ready)
}

func (t *turns) enqueue(caller Caller) *turnWait {
	queue := t.queues[caller.Tenant]
	if queue == nil {
		queue = &turnQueue{tenant: caller.Tenant, waiting: list.New()}
		queue.place = t.round.PushBack(queue)
		t.queues[caller.Tenant] = queue
	}
	waiting := &turnWait{queue: queue, pace: caller.Pace, ready: make(chan struct{})}
	waiting.place = queue.waiting.PushBack(waiting)
	return waiting
}

// leave removes a request from its queue, and a tenant without requests from
// the round.
func (t *turns) leave(waiting *turnWait) {
	queue := waiting.queue
	queue.waiting.Remove(waiting.place)
	waiting.place = nil
	if queue.waiting.Len() == 0 {
		t.round.Remove(queue.place)
		delete(t.queues, queue.tenant)
	}
	if t.round.Len() == 0 && t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

func allows(pace *rate.Limiter) bool { return pace == nil || pace.Allow() }

// longestSleep bounds the time between two checks of a pace, which may be
// changed meanwhile.
const longestSleep = time.Minute

// untilToken is the time until a pace has its next token, 0 if it has one.
func untilToken(pace *rate.Limiter) time.Duration {
	if pace == nil || pace.Limit() == rate.Inf {
		return 0
	}
	missing := 1 - pace.Tokens()
	if missing <= 0 {
		return 0
	}
	seconds := min(missing/float64(pace.Limit()), longestSleep.Seconds())
	// One more nanosecond: rounding down would find no token yet.
	return time.Duration(seconds*float64(time.Second)) + 1
}
