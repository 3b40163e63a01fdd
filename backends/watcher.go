package backends

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// watcher waits for many volumes, or many snapshots, of one backend at once.
// While any is in flight it makes one round of requests per tick: one listing
// for all that are being created and one for all being deleted. It makes no
// request while nothing is in flight.
type watcher[T any] struct {
	backend  string
	noun     string        // what it waits for, in errors
	interval time.Duration // the shortest time between rounds
	// list lists those with a status, or all if it is empty.
	list    func(ctx context.Context, status cinder.Status, pageSize int, yield func(page []T) bool) error
	get     func(ctx context.Context, id string) (T, error)
	state   func(T) (id string, status cinder.Status)
	observe func(page []T)
	// waiting adds to the number that is waited for.
	waiting func(more int)

	mu      sync.Mutex
	waits   map[*wait[T]]struct{}
	running bool
}

// wait is one caller's wait for a volume or snapshot.
type wait[T any] struct {
	id     string
	status cinder.Status // the status to leave
	result chan outcome[T]
	// shown is set once a listing has shown the volume; failures counts the
	// rounds in a row without news of it; finished is set once the result is
	// delivered, which may be before the caller leaves. Only the goroutine that
	// makes the rounds uses them.
	shown    bool
	failures int
	finished bool
}

type outcome[T any] struct {
	found T
	gone  bool
	err   error
}

// failuresToReport is how many rounds in a row may fail for a volume before its
// callers get the error. A single lost answer is not worth a retry of the whole
// operation.
const failuresToReport = 3

// slowestRound bounds how far the interval grows, as a multiple of itself.
const slowestRound = 10

// fewVolumes is how many requests for single volumes are cheaper for Cinder
// than a listing of all: by measurement, one takes 20 ms and a full page 350
// ms.
const fewVolumes = 8

// await returns the volume once it has left the status, or gone once it no
// longer exists. The timeout is for the whole wait, not for one request.
func (w *watcher[T]) await(ctx context.Context, id string, status cinder.Status, timeout time.Duration) (after T, gone bool, err error) {
	ctx, span := cinder.StartSpan(ctx, "wait while "+string(status))
	defer span.End()
	waiting := &wait[T]{id: id, status: status, result: make(chan outcome[T], 1)}
	w.add(waiting)
	defer w.remove(waiting)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case found := <-waiting.result:
		return found.found, found.gone, found.err
	case <-ctx.Done():
		return after, false, ctx.Err()
	case <-timer.C:
		return after, false, &cinder.Error{Backend: w.backend, Kind: KindTimeout,
			Message: fmt.Sprintf("%s %s is still %s after %s", w.noun, id, status, timeout)}
	}
}

func (w *watcher[T]) add(waiting *wait[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[waiting] = struct{}{}
	w.waiting(1)
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *watcher[T]) remove(waiting *wait[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waits, waiting)
	w.waiting(-1)
}

// run makes rounds while there are waits. The pause adapts: it starts short, as
// most volumes take a fraction of a second, and grows while nothing changes and
// with the duration of a round, so that a slow Cinder gets fewer requests.
func (w *watcher[T]) run() {
	pause := w.interval
	known := 0
	for {
		time.Sleep(pause)
		creating, deleting, ok := w.pending()
		if !ok {
			return
		}
		started := time.Now()
		settled := w.round(creating, deleting)
		took := time.Since(started)
		total := len(creating) + len(deleting)
		if settled > 0 || total > known {
			pause = w.interval
		} else {
			pause = min(pause*13/10, w.interval*slowestRound)
		}
		pause = min(max(pause, 4*took), w.interval*slowestRound)
		known = total - settled
	}
}

// pending takes a snapshot of the waits; if there are none, ok is false and the
// caller must end.
func (w *watcher[T]) pending() (creating, deleting map[string][]*wait[T], ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	creating, deleting = map[string][]*wait[T]{}, map[string][]*wait[T]{}
	for waiting := range w.waits {
		switch {
		case waiting.finished:
		case waiting.status == cinder.StatusDeleting:
			deleting[waiting.id] = append(deleting[waiting.id], waiting)
		default:
			creating[waiting.id] = append(creating[waiting.id], waiting)
		}
	}
	w.running = len(creating)+len(deleting) > 0
	return creating, deleting, w.running
}

// round makes one round of requests and delivers what has changed. A failure
// for some volumes does not delay the news of others.
func (w *watcher[T]) round(creating, deleting map[string][]*wait[T]) (settled int) {
	// The waits bound the operation; the transport's timeouts bound a round of
	// requests.
	ctx := context.Background()
	if len(creating) > 0 {
		settled += w.roundCreating(ctx, creating)
	}
	if len(deleting) > 0 {
		settled += w.roundDeleting(ctx, deleting)
	}
	return settled
}

// roundCreating reads the newest volumes first, since those being created are
// among them. It stops when it has seen them all, or when requesting the rest
// one by one is less work: a volume that an earlier leader left in creation may
// be far behind.
func (w *watcher[T]) roundCreating(ctx context.Context, creating map[string][]*wait[T]) (settled int) {
	missing := unseen(creating)
	pages := 0
	err := w.list(ctx, "", min(max(2*len(creating), 50), 1000), func(page []T) bool {
		w.observe(page)
		for _, v := range page {
			if id, _ := w.state(v); missing[id] {
				delete(missing, id)
				settled += w.deliver(creating[id], v)
			}
		}
		pages++
		return len(missing) >= pages
	})
	if err != nil {
		return settled + failed(creating, missing, err)
	}
	return settled + w.verify(ctx, creating, missing)
}

// roundDeleting lists the volumes in deletion. A missing volume has left that
// state, or the filter was not honored. A few missing volumes are read one by
// one; for many, one listing without a filter decides. Absence from it proves
// that a volume is gone only if an earlier listing showed it: another project's
// volume is never shown, although an administrator may have deleted it by ID.
func (w *watcher[T]) roundDeleting(ctx context.Context, deleting map[string][]*wait[T]) (settled int) {
	missing := unseen(deleting)
	err := w.list(ctx, cinder.StatusDeleting, 1000, func(page []T) bool {
		for _, v := range page {
			id, status := w.state(v)
			show(deleting[id])
			if status == cinder.StatusDeleting && missing[id] {
				delete(missing, id)
				settled += w.deliver(deleting[id], v)
			}
		}
		return len(missing) > 0
	})
	if err == nil && len(missing) > fewVolumes {
		var n int
		n, err = w.sweep(ctx, deleting, missing)
		settled += n
	}
	if err != nil {
		return settled + failed(deleting, missing, err)
	}
	return settled + w.verify(ctx, deleting, missing)
}

// sweep settles missing volumes with one complete listing, and removes the
// settled ones from missing.
func (w *watcher[T]) sweep(ctx context.Context, waits map[string][]*wait[T], missing map[string]bool) (settled int, err error) {
	err = w.list(ctx, "", 1000, func(page []T) bool {
		for _, v := range page {
			if id, _ := w.state(v); missing[id] {
				delete(missing, id)
				settled += w.deliver(waits[id], v)
				show(waits[id])
			}
		}
		return true
	})
	if err != nil {
		return settled, err
	}
	for id := range missing {
		if shown(waits[id]) {
			delete(missing, id)
			settled += finish(waits[id], outcome[T]{gone: true})
		}
	}
	return settled, nil
}

func unseen[T any](waits map[string][]*wait[T]) map[string]bool {
	missing := make(map[string]bool, len(waits))
	for id := range waits {
		missing[id] = true
	}
	return missing
}

func show[T any](waits []*wait[T]) {
	for _, waiting := range waits {
		waiting.shown = true
	}
}

// shown reports whether every wait has seen its volume in a listing; a wait
// that just began may not have.
func shown[T any](waits []*wait[T]) bool {
	for _, waiting := range waits {
		if !waiting.shown {
			return false
		}
	}
	return len(waits) > 0
}

// verify reads volumes one by one that a listing did not show.
func (w *watcher[T]) verify(ctx context.Context, waits map[string][]*wait[T], missing map[string]bool) (settled int) {
	for id := range missing {
		v, err := w.get(ctx, id)
		switch {
		case cinder.IsKind(err, cinder.KindNotFound):
			settled += finish(waits[id], outcome[T]{gone: true})
		case err != nil:
			settled += failed(waits, map[string]bool{id: true}, err)
		default:
			settled += w.deliver(waits[id], v)
		}
	}
	return settled
}

// deliver delivers a volume to the waits whose status it has left.
func (w *watcher[T]) deliver(waits []*wait[T], v T) (settled int) {
	_, status := w.state(v)
	for _, waiting := range waits {
		waiting.failures = 0
		if status == waiting.status || waiting.status == cinder.StatusCreating && status == "downloading" {
			continue
		}
		settled += finish([]*wait[T]{waiting}, outcome[T]{found: v})
	}
	return settled
}

// failed records that a round brought no news of the missing volumes, and
// delivers the error where that has happened too often.
func failed[T any](waits map[string][]*wait[T], missing map[string]bool, err error) (settled int) {
	for id := range missing {
		for _, waiting := range waits[id] {
			if waiting.failures++; waiting.failures >= failuresToReport {
				settled += finish([]*wait[T]{waiting}, outcome[T]{err: err})
			}
		}
	}
	return settled
}

// finish delivers an outcome to the waits.
func finish[T any](waits []*wait[T], result outcome[T]) (count int) {
	for _, waiting := range waits {
		if !waiting.finished {
			waiting.finished = true
			waiting.result <- result
			count++
		}
	}
	return count
}
