package backends

import (
	"container/list"
	"context"
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

func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// turns bounds how many requests to a backend are under way and how many begin
// in a second. Whoever waits is queued by tenant, and a turn that is free goes
// to the next tenant in the round: one with a thousand requests delays another
// by one request, not by a thousand.
//
// A turn is a slot and a token of the pace together. Neither is waited for
// while the other is held, or it would be the pace, in the order of arrival,
// that decides who is next.
type turns struct {
	pace  *rate.Limiter
	slots int // all of them

	mu   sync.Mutex
	free int
	// queues holds the tenants with waiting requests, round the same in order;
	// its front is next.
	queues map[string]*turnQueue
	round  *list.List // of *turnQueue
	// timer wakes the queues when the pace has the next token; nil while
	// nobody waits for one.
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
	ready chan struct{}
}

func newTurns(limits Limits) *turns {
	pace := rate.NewLimiter(rate.Inf, 0)
	if perSecond := limits.RequestsPerSecond; perSecond > 0 {
		pace = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
	}
	return &turns{pace: pace, slots: limits.Concurrency, free: limits.Concurrency, queues: map[string]*turnQueue{}, round: list.New()}
}

// acquire waits for the tenant's turn, until one of the contexts ends. The turn
// is given back by release, or by pass when it was not used.
func (t *turns) acquire(ctx, waiter context.Context, tenant string) error {
	t.mu.Lock()
	if t.round.Len() == 0 && t.free > 0 && t.pace.Allow() {
		t.free--
		t.mu.Unlock()
		return nil
	}
	waiting := t.enqueue(tenant)
	t.serve()
	t.mu.Unlock()
	var err error
	select {
	case <-waiting.ready:
		return nil
	case <-waiter.Done():
		err = waiter.Err()
	case <-ctx.Done():
		err = ctx.Err()
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
// token of the pace: when requests are held back, a queue empties at once.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passOn()
}

func (t *turns) passOn() {
	if t.round.Len() > 0 {
		t.grant()
		return
	}
	t.free++
}

// serve gives out turns while there are slots, tokens and somebody who waits.
// Without a token it comes back when the next is due.
func (t *turns) serve() {
	for t.free > 0 && t.round.Len() > 0 {
		if !t.pace.Allow() {
			t.sleep()
			return
		}
		t.free--
		t.grant()
	}
	if t.timer != nil && t.round.Len() == 0 {
		t.timer.Stop()
		t.timer = nil
	}
}

// sleep sets the timer for the next token, unless it is set already.
func (t *turns) sleep() {
	if t.timer != nil {
		return
	}
	missing := max(0, 1-t.pace.Tokens())
	// One more nanosecond: rounding down would find no token yet.
	due := time.Duration(missing/float64(t.pace.Limit())*float64(time.Second)) + 1
	t.timer = time.AfterFunc(due, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timer = nil
		t.serve()
	})
}

// grant gives a turn to the first of the tenant whose turn it is; the tenant
// goes to the end of the round.
func (t *turns) grant() {
	queue := t.round.Front().Value.(*turnQueue)
	next := queue.waiting.Front().Value.(*turnWait)
	t.round.MoveToBack(queue.place)
	t.leave(next)
	close(next.ready)
}

func (t *turns) enqueue(tenant string) *turnWait {
	queue := t.queues[tenant]
	if queue == nil {
		queue = &turnQueue{tenant: tenant, waiting: list.New()}
		queue.place = t.round.PushBack(queue)
		t.queues[tenant] = queue
	}
	waiting := &turnWait{queue: queue, ready: make(chan struct{})}
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
}

// keepPace waits for the tenant's own pace, until one of the contexts ends. It
// comes before the backend's turn, so that a tenant over its pace holds no
// slot.
func keepPace(ctx, waiter context.Context, pace *rate.Limiter) error {
	if pace == nil {
		return nil
	}
	reservation := pace.Reserve()
	if !reservation.OK() {
		return errNoPace
	}
	delay := reservation.Delay()
	if delay == 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-waiter.Done():
		reservation.Cancel()
		return waiter.Err()
	case <-ctx.Done():
		reservation.Cancel()
		return ctx.Err()
	}
}
