package backends

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// watcher waits for many volumes, or many snapshots, of one backend at once.
// While any is in flight it makes a round of requests per tick, which costs
// Cinder as much as there is in flight, not as much as the project has. It makes
// no request while nothing is in flight.
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
	// total is how many the last complete listing had; nil before there was one, and
	// after one that failed.
	total atomic.Pointer[int]

	mu      sync.Mutex
	waits   map[*wait[T]]struct{}
	running bool
	// While running, pause is how long the pause before the next round is, and
	// listedAll whether the last one listed everything.
	pause     time.Duration
	listedAll bool
}

// wait is one caller's wait for a volume or snapshot.
type wait[T any] struct {
	id     string
	status cinder.Status // the status to leave; empty if any will do
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

// pageSize is the most that Cinder returns at once (osapi_max_limit).
const pageSize = 1000

// fewReads is how many volumes are rather read by their IDs than by a listing of
// nobody knows how many.
const fewReads = 8

// readsAtOnce is how many volumes are read by their IDs at once.
const readsAtOnce = 8

// soon is how long a caller that wants to see a volume waits for a listing,
// as a multiple of the interval.
const soon = 3

// costOfListing is what a listing costs Cinder, measured in reads of a single
// volume: such a read takes 20 ms, a page 20 ms and a third of a millisecond for
// each volume on it.
func costOfListing(volumes int) float64 {
	return float64(max(1, (volumes+pageSize-1)/pageSize)) + float64(volumes)/60
}

// costOfAll is what a complete listing costs, if it is known.
func (w *watcher[T]) costOfAll() (cost float64, known bool) {
	total := w.total.Load()
	if total == nil {
		return 0, false
	}
	return costOfListing(*total), true
}

// waits is what is waited for, by ID.
type waits[T any] map[string][]*wait[T]

// inFlight is what a round serves: what is to be seen in whatever status, what is
// being created, and what is being deleted.
type inFlight[T any] struct {
	seeing, creating, deleting waits[T]
}

func (f inFlight[T]) len() int { return len(f.seeing) + len(f.creating) + len(f.deleting) }

// cost is what a round costs that serves each kind of wait by itself. About
// half of what is being deleted is gone when the next round looks, and has to
// be read.
func (f inFlight[T]) cost() float64 {
	cost := float64(len(f.seeing))
	if n := len(f.creating); n > 0 {
		cost += costOfListing(newestPage(n))
	}
	if n := len(f.deleting); n > 0 {
		cost += costOfListing(n) + float64(n)/2
	}
	return cost
}

// newestPage is the size of the page on which n volumes are likely to be that were
// just created.
func newestPage(n int) int { return min(max(2*n, 50), pageSize) }

// await returns the volume once it has left the status, or gone once it no
// longer exists. The timeout is for the whole wait, not for one request.
func (w *watcher[T]) await(ctx context.Context, id string, status cinder.Status, timeout time.Duration) (after T, gone bool, err error) {
	ctx, span := cinder.StartSpan(ctx, "wait while "+cmp.Or(string(status), "unseen"))
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
			Message: fmt.Sprintf("%s %s is still %s after %s", w.noun, id, cmp.Or(string(status), "unseen"), timeout)}
	}
}

// see reads a volume: with the next listing, if one is due soon that costs less
// than reading each volume by itself, and if it comes.
func (w *watcher[T]) see(ctx context.Context, id string, timeout time.Duration) (T, error) {
	if w.listsSoon() {
		if found, gone, err := w.await(ctx, id, anyStatus, timeout); err == nil && !gone {
			return found, nil
		}
	}
	return w.get(ctx, id)
}

// anyStatus is what a wait is for that ends when the volume is seen.
const anyStatus cinder.Status = ""

// listsSoon reports whether others wait for the next round, which is near, and
// likely to list everything because the last one did.
func (w *watcher[T]) listsSoon() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waits) > 0 && w.listedAll && w.pause <= soon*w.interval
}

// listsAll reports whether one listing of everything costs the least.
func (w *watcher[T]) listsAll(f inFlight[T]) bool {
	cost, known := w.costOfAll()
	return known && cost <= f.cost()
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
// with the duration of a round, so that a slow Cinder gets fewer requests: the
// rounds keep it busy for at most a third of the time.
func (w *watcher[T]) run() {
	pause := w.interval
	known := 0
	for {
		w.sleep(pause)
		now := w.pending()
		if now.len() == 0 {
			return
		}
		started := time.Now()
		settled := w.round(now)
		took := time.Since(started)
		if settled > 0 || now.len() > known {
			pause = w.interval
		} else {
			pause = min(pause*13/10, w.interval*slowestRound)
		}
		pause = min(max(pause, 2*took), w.interval*slowestRound)
		known = now.len() - settled
	}
}

func (w *watcher[T]) sleep(pause time.Duration) {
	w.mu.Lock()
	w.pause = pause
	w.mu.Unlock()
	time.Sleep(pause)
}

// pending takes a snapshot of the waits; if there are none, the caller must end.
func (w *watcher[T]) pending() inFlight[T] {
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
	w.running, w.listedAll = now.len() > 0, w.listsAll(now)
	return now
}

// round makes one round of requests and delivers what has changed. A failure
// for some volumes does not delay the news of others.
func (w *watcher[T]) round(now inFlight[T]) (settled int) {
	// The waits bound the operation; the transport's timeouts bound a round of
	// requests.
	ctx := context.Background()
	if w.listsAll(now) {
		if settled, done := w.roundAll(ctx, now); done {
			return settled
		}
	}
	if len(now.creating) > 0 {
		settled += w.roundCreating(ctx, now.creating)
	}
	if len(now.deleting) > 0 {
		settled += w.roundDeleting(ctx, now.deleting)
	}
	return settled + w.verify(ctx, now.seeing, unseen(now.seeing))
}

// roundAll serves all waits by one listing. It gives up, and is not done, if there
// is much more than the last complete listing had.
func (w *watcher[T]) roundAll(ctx context.Context, now inFlight[T]) (settled int, done bool) {
	all := []waits[T]{now.seeing, now.creating, now.deleting}
	missing := make([]map[string]bool, len(all))
	for i, of := range all {
		missing[i] = unseen(of)
	}
	most := 2*(*w.total.Load()) + pageSize
	listed := 0
	err := w.list(ctx, "", pageSize, func(page []T) bool {
		if len(now.creating) > 0 {
			w.observe(page)
		}
		for _, v := range page {
			id, _ := w.state(v)
			show(now.deleting[id])
			for i, of := range all {
				delete(missing[i], id)
				settled += w.deliver(of[id], v)
			}
		}
		listed += len(page)
		return listed <= most
	})
	if err == nil {
		w.total.Store(&listed)
		if listed > most {
			return settled, false
		}
		settled += absent(now.deleting, missing[2])
	} else {
		// The next round does without: what fails may be a page that none of the waits
		// needs.
		w.total.Store(nil)
	}
	for i, of := range all {
		if err != nil {
			settled += failed(of, missing[i], err)
		} else {
			settled += w.verify(ctx, of, missing[i])
		}
	}
	return settled, true
}

// roundCreating reads the newest volumes first, since those being created are
// among them. It stops when it has seen them all, or when requesting the rest
// one by one is less work: a volume that an earlier leader left in creation may
// be far behind.
func (w *watcher[T]) roundCreating(ctx context.Context, creating waits[T]) (settled int) {
	missing := unseen(creating)
	pages := 0
	err := w.list(ctx, "", newestPage(len(creating)), func(page []T) bool {
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
// state, or the filter was not honored. The missing ones are read one by one, or
// by one listing without a filter, whichever costs less.
func (w *watcher[T]) roundDeleting(ctx context.Context, deleting waits[T]) (settled int) {
	missing := unseen(deleting)
	err := w.list(ctx, cinder.StatusDeleting, pageSize, func(page []T) bool {
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
	cost, known := w.costOfAll()
	if !known {
		cost = fewReads
	}
	if err == nil && float64(len(missing)) > cost {
		var n int
		n, err = w.sweep(ctx, deleting, missing)
		settled += n
	}
	if err != nil {
		return settled + failed(deleting, missing, err)
	}
	return settled + w.verify(ctx, deleting, missing)
}

// listAll makes a complete listing, and notes how much it has.
func (w *watcher[T]) listAll(ctx context.Context, yield func(page []T) bool) error {
	listed := 0
	err := w.list(ctx, "", pageSize, func(page []T) bool {
		listed += len(page)
		return yield(page)
	})
	if err == nil {
		w.total.Store(&listed)
	}
	return err
}

// sweep settles missing volumes with one complete listing, and removes the
// settled ones from missing.
func (w *watcher[T]) sweep(ctx context.Context, deleting waits[T], missing map[string]bool) (settled int, err error) {
	err = w.listAll(ctx, func(page []T) bool {
		for _, v := range page {
			if id, _ := w.state(v); missing[id] {
				delete(missing, id)
				settled += w.deliver(deleting[id], v)
				show(deleting[id])
			}
		}
		return true
	})
	if err != nil {
		return settled, err
	}
	return settled + absent(deleting, missing), nil
}

// absent settles those volumes missing from a complete listing whose absence
// proves that they are gone, and removes them from missing: an earlier listing
// has shown them. Another project's volume is never shown, although an
// administrator may have deleted it by ID.
func absent[T any](deleting waits[T], missing map[string]bool) (settled int) {
	for id := range missing {
		if shown(deleting[id]) {
			delete(missing, id)
			settled += finish(deleting[id], outcome[T]{gone: true})
		}
	}
	return settled
}

func unseen[T any](of waits[T]) map[string]bool {
	missing := make(map[string]bool, len(of))
	for id := range of {
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

// verify reads volumes by their IDs that a listing did not show.
func (w *watcher[T]) verify(ctx context.Context, of waits[T], missing map[string]bool) (settled int) {
	type answer struct {
		found T
		err   error
	}
	ids := slices.Collect(maps.Keys(missing))
	answers := make([]answer, len(ids))
	var group errgroup.Group
	group.SetLimit(readsAtOnce)
	for i, id := range ids {
		group.Go(func() error {
			answers[i].found, answers[i].err = w.get(ctx, id)
			return nil
		})
	}
	_ = group.Wait()
	for i, id := range ids {
		switch err := answers[i].err; {
		case cinder.IsKind(err, cinder.KindNotFound):
			settled += finish(of[id], outcome[T]{gone: true})
		case err != nil:
			settled += failed(of, map[string]bool{id: true}, err)
		default:
			settled += w.deliver(of[id], answers[i].found)
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
func failed[T any](of waits[T], missing map[string]bool, err error) (settled int) {
	for id := range missing {
		for _, waiting := range of[id] {
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
