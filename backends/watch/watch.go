// Package watch waits until volumes and snapshots leave a status, with as few requests
// as possible: one round serves everything that is in flight.
//
// See docs/decisions.md, "Waiting for Cinder".
package watch

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Options configure a Watcher.
type Options[T cinder.Object] struct {
	Backend string
	// Noun names the awaited objects, in errors.
	Noun string
	// Interval is the shortest time between rounds.
	Interval time.Duration
	// List lists objects with a status, or all if it is empty. The backend may ignore the
	// status.
	List func(ctx context.Context, status cinder.Status, pageSize int, yield func(page []T) bool) error
	// Get reads one.
	Get func(ctx context.Context, id string) (T, error)
	// Observe gets every page read in search of objects being created; it may be nil.
	Observe func(page []T)
	// Waiting is called with the change of the number of waits.
	Waiting func(more int)
	// Pause waits between rounds, but no longer than until it is woken.
	Pause func(pause time.Duration, woken <-chan struct{})
}

// Watcher waits for many volumes, or many snapshots, of one backend at once. While any is
// in flight it makes a round of requests per tick, whose cost depends on what is in
// flight, not on the project's size. It makes no requests while nothing is in flight.
type Watcher[T cinder.Object] struct {
	options Options[T]
	// total is the number of entries in the last complete listing; nil before there was
	// one, and after a failed one.
	total atomic.Pointer[int]

	mu    sync.Mutex
	waits map[*wait[T]]struct{}
	// took is how long the last waits took, by the status that they waited to end.
	took    map[cinder.Status]recent
	running bool
	// While running is true, the next round is planned, and listedAll says whether the last
	// one listed everything.
	planned   time.Time
	listedAll bool
	// sooner ends the pause for a wait that is due before the next round.
	sooner chan struct{}
}

// New returns a watcher that waits for nothing yet.
func New[T cinder.Object](options Options[T]) *Watcher[T] {
	if options.Observe == nil {
		options.Observe = func([]T) {}
	}
	return &Watcher[T]{options: options, waits: map[*wait[T]]struct{}{}, took: map[cinder.Status]recent{}, sooner: make(chan struct{}, 1)}
}

// wait is one caller's wait for a volume or snapshot.
type wait[T cinder.Object] struct {
	id     string
	status cinder.Status // the status to leave; anyStatus if the volume only has to be seen
	begun  time.Time
	result chan outcome[T]
	// shown is set once a listing has shown the volume; failures counts the
	// rounds in a row without news of it; finished is set once the result is
	// delivered, which may be before the caller leaves. Only the goroutine that
	// makes the rounds uses them.
	shown    bool
	failures int
	finished bool
}

type outcome[T cinder.Object] struct {
	found T
	gone  bool
	err   error
}

// KindTimeout is the kind of failure of a wait that timed out.
const KindTimeout cinder.Kind = "Timeout"

// KindNotShown is the kind of Get's failure if Cinder does not show yet what it has
// acknowledged.
const KindNotShown cinder.Kind = "NotShown"

// failuresToReport is how many rounds in a row may fail for a volume before its callers
// get the error. A single lost answer is not worth a retry of the whole operation.
const failuresToReport = 3

// roundsUnshown is how many rounds in a row may fail to show what Cinder has acknowledged
// before its callers are told. At the usual interval, they take a quarter of a minute.
const roundsUnshown = 12

// slowestRound bounds how far the interval grows, as a multiple of itself.
const slowestRound = 10

// soon is how long a caller that wants to see a volume waits for a listing, in intervals.
const soon = 3

// waits are the waits by ID.
type waits[T cinder.Object] map[string][]*wait[T]

// inFlight is what a round serves: objects to be seen in any status, being created, or
// being deleted.
type inFlight[T cinder.Object] struct {
	seeing, creating, deleting waits[T]
}

// all returns the waits of every kind.
func (f inFlight[T]) all() waits[T] {
	all := waits[T]{}
	for _, some := range []waits[T]{f.seeing, f.creating, f.deleting} {
		for id, waiting := range some {
			all[id] = append(all[id], waiting...)
		}
	}
	return all
}

func (f inFlight[T]) len() int { return len(f.seeing) + len(f.creating) + len(f.deleting) }

// Await returns the volume once it has left the status, or gone once it no
// longer exists. The timeout is for the whole wait, not for one request.
func (w *Watcher[T]) Await(ctx context.Context, id string, status cinder.Status, timeout time.Duration) (after T, gone bool, err error) {
	ctx, span := cinder.StartSpan(ctx, "wait while "+cmp.Or(string(status), "unseen"))
	defer span.End()
	waiting := &wait[T]{id: id, status: status, begun: time.Now(), result: make(chan outcome[T], 1)}
	w.add(waiting)
	defer w.remove(waiting)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case found := <-waiting.result:
		if found.err == nil && status != anyStatus {
			w.note(status, time.Since(waiting.begun))
		}
		return found.found, found.gone, found.err
	case <-ctx.Done():
		return after, false, ctx.Err()
	case <-timer.C:
		return after, false, &cinder.Error{Backend: w.options.Backend, Kind: KindTimeout,
			Message: fmt.Sprintf("%s %s is still %s after %s", w.options.Noun, id, cmp.Or(string(status), "unseen"), timeout)}
	}
}

// See reads a volume. It uses the next listing if one is due soon that costs less than
// separate reads, and its own read if that listing does not come.
func (w *Watcher[T]) See(ctx context.Context, id string, timeout time.Duration) (T, error) {
	if w.listsSoon() {
		if found, gone, err := w.Await(ctx, id, anyStatus, timeout); err == nil && !gone {
			return found, nil
		}
	}
	return w.options.Get(ctx, id)
}

// anyStatus is the status of a wait that ends when the volume is seen.
const anyStatus cinder.Status = ""

// listsSoon reports whether the next round is near and likely to list everything, because
// the last one did.
func (w *Watcher[T]) listsSoon() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waits) > 0 && w.listedAll && time.Until(w.planned) <= soon*w.options.Interval
}

func (w *Watcher[T]) add(waiting *wait[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[waiting] = struct{}{}
	w.options.Waiting(1)
	switch {
	case !w.running:
		w.running = true
		go w.run()
	case w.due(waiting).Before(w.planned):
		select {
		case w.sooner <- struct{}{}:
		default:
		}
	}
}

// due returns when a first look for a wait is worth its cost: shortly before the fastest
// of the last few ended, and not at once.
func (w *Watcher[T]) due(waiting *wait[T]) time.Time {
	return waiting.begun.Add(max(w.options.Interval, w.took[waiting.status].fastest()*9/10))
}

func (w *Watcher[T]) note(status cinder.Status, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took[status] = w.took[status].with(took)
}

func (w *Watcher[T]) remove(waiting *wait[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waits, waiting)
	w.options.Waiting(-1)
}

// run makes rounds while there are waits. The first round comes when a volume like the
// last ones would be ready. From then on the pause adapts: it starts short, as most
// volumes take a fraction of a second, and grows while nothing changes and with the
// duration of a round, so that a slow Cinder gets fewer requests: the rounds keep it busy
// for at most a third of the time.
func (w *Watcher[T]) run() {
	pause := w.options.Interval
	known := 0
	for {
		early := w.rest(pause)
		now := w.pending(pause)
		if now.len() == 0 {
			return
		}
		started := time.Now()
		settled := w.round(now)
		took := time.Since(started)
		if settled > 0 || now.len() > known || early {
			pause = w.options.Interval
		} else {
			pause = min(pause*13/10, w.options.Interval*slowestRound)
		}
		pause = min(max(pause, 2*took), w.options.Interval*slowestRound)
		known = now.len() - settled
	}
}

// rest pauses between rounds, and longer while no wait is due. It reports whether it was
// longer.
func (w *Watcher[T]) rest(pause time.Duration) (longer bool) {
	began := time.Now()
	for {
		next, now := w.next(began, pause), time.Now()
		if !next.After(now) {
			return next.After(began.Add(pause))
		}
		w.options.Pause(next.Sub(now), w.sooner)
	}
}

// next plans the round after a pause.
func (w *Watcher[T]) next(began time.Time, pause time.Duration) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	select { // What woke the last pause is planned now.
	case <-w.sooner:
	default:
	}
	soonest := began.Add(w.options.Interval * slowestRound)
	for waiting := range w.waits {
		if due := w.due(waiting); due.Before(soonest) {
			soonest = due
		}
	}
	w.planned = began.Add(pause)
	if len(w.waits) > 0 && soonest.After(w.planned) {
		w.planned = soonest
	}
	return w.planned
}

// Running reports whether rounds are being made, or are about to be.
func (w *Watcher[T]) Running() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running
}

// pending takes a snapshot of the waits; if there are none, the caller must end. Until the
// round is over, the next one is expected after a pause like the last.
func (w *Watcher[T]) pending(pause time.Duration) inFlight[T] {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := inFlight[T]{seeing: waits[T]{}, creating: waits[T]{}, deleting: waits[T]{}}
	for waiting := range w.waits {
		of := now.creating
		switch waiting.status {
		case anyStatus:
			of = now.seeing
		case cinder.StatusDeleting:
			of = now.deleting
		}
		if !waiting.finished {
			of[waiting.id] = append(of[waiting.id], waiting)
		}
	}
	w.running, w.listedAll, w.planned = now.len() > 0, w.listsAll(now), time.Now().Add(pause)
	return now
}

// ListAll makes a complete listing, and notes how many entries it has.
func (w *Watcher[T]) ListAll(ctx context.Context, yield func(page []T) bool) error {
	listed := 0
	err := w.options.List(ctx, "", pageSize, func(page []T) bool {
		listed += len(page)
		return yield(page)
	})
	if err == nil {
		w.total.Store(&listed)
	}
	return err
}
