package cinder

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Caller is on whose behalf requests are made.
type Caller struct {
	// Tenant has its own place among those who wait for the backend. Empty is
	// nobody, who waits in turn like a tenant.
	Tenant string
	// Pace bounds the tenant's requests, over all backends that share the
	// limiter; nil means that only the backends' own limits do.
	Pace *rate.Limiter
}

type callerKey struct{}

// WithCaller has the requests that are made with the context wait at the
// caller's place. Listings that serve many, and logins, are on nobody's behalf
// whatever the context says.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller that the context carries; the zero Caller if none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Limits bound what is asked of one backend at a time.
type Limits struct {
	// Concurrency is the number of requests under way at once.
	Concurrency int
	// RequestsPerSecond is 0 when requests are not paced.
	RequestsPerSecond float64
}

// turns bounds how many requests to a backend are under way and how many begin
// in a second. Whoever waits is queued by tenant, and a turn that is free goes
// to the next tenant in the round: one with a thousand requests delays another
// by one request, not by a thousand.
//
// A turn is a slot, a token of the backend's pace and one of the tenant's. It
// is given when all three are there; none is held while another is waited for.
// The pace would else decide by the order of arrival who is next, and a tenant
// over its own pace would hold slots. Nor is a token reserved ahead: those of
// requests that give up would be lost to the ones that come after.
type turns struct {
	pace  *rate.Limiter // nil when requests are not paced
	slots int           // all of them

	mu   sync.Mutex
	free int
	// queues holds the tenants with waiting requests, round the same in order;
	// its front is next.
	queues map[string]*turnQueue
	round  *list.List // of *turnQueue
	// timer is set while somebody waits for a token beside a free slot.
	timer *time.Timer
}

type turnQueue struct {
	tenant  string
	place   *list.Element // in the round
	waiting *list.List    // of *turnWait, first come first served
}

type turnWait struct {
	queue *turnQueue
	place *list.Element // in the queue; nil once the turn has come
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

// patience is what ends the waiting for a turn: the request's own context, that
// of whoever waits for it, and the beginning of an outage.
type patience struct {
	ctx    context.Context
	waiter context.Context
	outage context.Context // its cause is what ends the waiting; nil for none
}

// errNoPace says that a tenant's pace admits no request at all.
var errNoPace = errors.New("the tenant's pace admits no request; give its limiter a burst of at least one")

// acquire waits for the caller's turn. It is given back by release, or by pass
// when no request was sent.
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
		// The turn came at this very moment; it is somebody else's now.
		t.passOn()
		return err
	}
	t.leave(waiting)
	t.serve()
	return err
}

// release ends a turn that was used.
func (t *turns) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.serve()
}

// pass ends a turn whose request was not sent. The next in turn needs no other
// token of the backend's pace.
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

// serve gives out turns while there are slots, tokens and somebody who waits.
// Without a token it comes back when one is due.
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

// take uses a slot and a token that are there.
func (t *turns) take() {
	t.free--
	allows(t.pace)
}

// next is the first request of the first tenant in the round whose own pace
// allows one, and uses its token; else nil and when to look again.
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

// leave takes a request out of its queue, and a tenant without any out of the
// round.
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

// longestSleep bounds the time between two looks at a pace: its owner may
// change it meanwhile.
const longestSleep = time.Minute

// untilToken is when a pace has its next token, 0 when it has one.
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
