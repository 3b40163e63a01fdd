// Package turns decides when a request to a backend is sent: tenants take turns at its
// slots and its pace, and final checks run when the turn has come (Admission).
package turns

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Caller is the party on whose behalf requests are made.
type Caller struct {
	// Tenant gets its own queue at the backend. Requests without a tenant share one
	// queue, which takes turns like a tenant's.
	Tenant string
	// Pace limits the tenant's requests across all backends that share the limiter; nil
	// means that only the backends' limits apply.
	Pace *rate.Limiter
	// Waits is called when a request begins to wait for its turn; the function
	// that it returns is called when the wait is over. It may be nil.
	Waits func() (over func())
	// Answered is called with the ID that Cinder assigns to a request that it accepts. It
	// may be nil.
	Answered func(operation, requestID string)
}

// Waiting tells the caller that a wait begins: for its own turn, or for something that
// serves several callers.
func (c Caller) Waiting() (over func()) {
	if c.Waits == nil {
		return func() {}
	}
	return c.Waits()
}

type callerKey struct{}

// WithCaller makes requests with the context wait in the caller's queue. Listings that
// serve many claims, and logins, have no caller, regardless of the context.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the context's caller, or the zero Caller.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Limits bound the requests to one backend.
type Limits struct {
	// Concurrency is the number of requests under way at once.
	Concurrency int
	// RequestsPerSecond is 0 for no pacing.
	RequestsPerSecond float64
}

// Queue bounds how many requests to a backend are under way and how many start per
// second. Waiting requests are queued by tenant, and a free turn goes to the next tenant
// in the round: a tenant with a thousand requests delays another by one request, not by a
// thousand.
//
// A turn is a slot, a token of the backend's pace and a token of the tenant's. It is
// granted when all three are available; none is taken while another is missing. Otherwise
// the order of arrival at the limiter would decide who is next, and a tenant over its
// pace would occupy slots. Tokens are not reserved ahead either: those of requests that
// leave the queue would be lost to later ones.
type Queue struct {
	pace  *rate.Limiter // nil when requests are not paced
	slots int           // in total

	mu   sync.Mutex
	free int
	// round holds the tenants with waiting requests, the next one in front.
	round []*turnQueue
	// granted counts turns.
	granted uint64
	// timer is set while a request waits for a token although a slot is free.
	timer *time.Timer
}

type turnQueue struct {
	tenant  string
	waiting []*turnWait // first come first served
}

type turnWait struct {
	queue   *turnQueue
	granted bool
	pace    *rate.Limiter // the tenant's; nil for none
	ready   chan struct{}
}

// NewQueue returns the queue of one backend.
func NewQueue(limits Limits) *Queue {
	q := &Queue{}
	q.SetLimits(limits)
	return q
}

// SetLimits changes the limits. If there are fewer slots than before, the excess ones in
// use are not granted again.
func (q *Queue) SetLimits(limits Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free += limits.Concurrency - q.slots
	q.slots = limits.Concurrency
	switch perSecond := limits.RequestsPerSecond; {
	case perSecond <= 0:
		q.pace = nil
	case q.pace == nil:
		q.pace = rate.NewLimiter(rate.Limit(perSecond), burst(perSecond))
	default:
		q.pace.SetLimit(rate.Limit(perSecond))
		q.pace.SetBurst(burst(perSecond))
	}
	q.serve()
}

func burst(perSecond float64) int { return max(1, int(perSecond)) }

// Progress reports whether requests wait, and a mark that changes whenever one gets its
// turn.
func (q *Queue) Progress() (waiting bool, mark string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.round) > 0, strconv.FormatUint(q.granted, 10)
}

// InUse returns how many slots are in use.
func (q *Queue) InUse() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slots - q.free
}

// patience is what can end the wait for a turn: the request's context, the waiter's, or
// the beginning of an outage.
type patience struct {
	ctx    context.Context
	waiter context.Context
	outage context.Context // its cause is the error; nil for none
}

// errNoPace means that a tenant's pace admits no requests at all.
var errNoPace = errors.New("the tenant's pace admits no request; give its limiter a burst of at least one")

// acquire waits for the caller's turn. The caller ends it with Release, or with pass if
// it sent no request.
func (q *Queue) acquire(caller Caller, p patience) error {
	if pace := caller.Pace; pace != nil && pace.Burst() < 1 && pace.Limit() != rate.Inf {
		return errNoPace
	}
	q.mu.Lock()
	if len(q.round) == 0 && q.free > 0 && untilToken(q.pace) == 0 && allows(caller.Pace) {
		q.take()
		q.granted++
		q.mu.Unlock()
		return nil
	}
	waiting := q.enqueue(caller)
	q.serve()
	q.mu.Unlock()
	defer caller.Waiting()()
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
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiting.granted {
		// The turn was granted at this very moment; pass it on to the next request.
		q.passOn()
		return err
	}
	q.leave(waiting)
	q.serve()
	return err
}

// Release ends a turn whose request was sent.
func (q *Queue) Release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	q.serve()
}

// pass ends a turn whose request was not sent. The next request needs no
// further token of the backend's pace.
func (q *Queue) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.passOn()
}

func (q *Queue) passOn() {
	if q.free < 0 {
		// There are fewer slots than before; see SetLimits.
		q.free++
		return
	}
	if next, _ := q.next(); next != nil {
		q.grant(next)
		return
	}
	q.free++
	q.serve()
}

// serve grants turns while there are slots, tokens and waiting requests. Without a token,
// it runs again when one is due.
func (q *Queue) serve() {
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	for q.free > 0 && len(q.round) > 0 {
		if due := untilToken(q.pace); due > 0 {
			q.serveAfter(due)
			return
		}
		next, due := q.next()
		if next == nil {
			q.serveAfter(due)
			return
		}
		q.take()
		q.grant(next)
	}
}

func (q *Queue) serveAfter(due time.Duration) {
	q.timer = time.AfterFunc(due, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.serve()
	})
}

// take uses an available slot and token.
func (q *Queue) take() {
	q.free--
	allows(q.pace)
}

// next returns the first request of the first tenant in the round whose pace
// allows one, and uses its token; otherwise nil, and when to try again.
func (q *Queue) next() (next *turnWait, due time.Duration) {
	due = maxSleep
	for _, queue := range q.round {
		first := queue.waiting[0]
		if allows(first.pace) {
			return first, 0
		}
		due = min(due, untilToken(first.pace))
	}
	return nil, max(due, 1)
}

// grant gives a turn to a request; its tenant goes to the end of the round.
func (q *Queue) grant(next *turnWait) {
	at := slices.Index(q.round, next.queue)
	q.round = append(slices.Delete(q.round, at, at+1), next.queue)
	q.leave(next)
	q.granted++
	next.granted = true
	close(next.ready)
}

func (q *Queue) enqueue(caller Caller) *turnWait {
	at := slices.IndexFunc(q.round, func(queue *turnQueue) bool { return queue.tenant == caller.Tenant })
	if at < 0 {
		at = len(q.round)
		q.round = append(q.round, &turnQueue{tenant: caller.Tenant})
	}
	waiting := &turnWait{queue: q.round[at], pace: caller.Pace, ready: make(chan struct{})}
	q.round[at].waiting = append(q.round[at].waiting, waiting)
	return waiting
}

// leave removes a request from its queue, and a tenant without requests from
// the round.
func (q *Queue) leave(waiting *turnWait) {
	queue := waiting.queue
	at := slices.Index(queue.waiting, waiting)
	queue.waiting = slices.Delete(queue.waiting, at, at+1)
	if len(queue.waiting) == 0 {
		at := slices.Index(q.round, queue)
		q.round = slices.Delete(q.round, at, at+1)
	}
	if len(q.round) == 0 && q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

func allows(pace *rate.Limiter) bool { return pace == nil || pace.Allow() }

// maxSleep bounds the time between two checks of a pace, which may change meanwhile.
const maxSleep = time.Minute

// untilToken returns the time until a pace has its next token, 0 if it has one.
func untilToken(pace *rate.Limiter) time.Duration {
	if pace == nil || pace.Limit() == rate.Inf {
		return 0
	}
	missing := 1 - pace.Tokens()
	if missing <= 0 {
		return 0
	}
	seconds := min(missing/float64(pace.Limit()), maxSleep.Seconds())
	// Plus one nanosecond: rounding down would find no token yet.
	return time.Duration(seconds*float64(time.Second)) + 1
}
