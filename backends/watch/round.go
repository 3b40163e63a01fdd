package watch

import (
	"context"
	"maps"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// round makes one round of requests and delivers what has changed. A failure
// for some volumes does not delay news about others.
func (w *Watcher[T]) round(now inFlight[T]) (settled int) {
	// The waits bound the operation; the transport's timeouts bound a round.
	ctx := context.Background()
	if w.listsAll(now) {
		all := now.all()
		missing := unseen(all)
		seen, complete, err := w.sweep(ctx, now, missing, 2*(*w.total.Load())+pageSize)
		settled += seen
		switch {
		case err != nil:
			// The next round does without a complete listing: the failure may concern a page
			// that no wait needs.
			w.total.Store(nil)
			return settled + failed(all, missing, err)
		case complete:
			return settled + w.verify(ctx, all, missing)
		}
	}
	if len(now.creating) > 0 {
		made := w.roundCreating(ctx, now.creating)
		w.changes(made)
		settled += made
	}
	if len(now.deleting) > 0 {
		settled += w.roundDeleting(ctx, now.deleting)
	}
	return settled + w.verify(ctx, now.seeing, unseen(now.seeing))
}

// sweep serves waits with one listing of everything, and removes from missing what it
// resolves. It gives up, and reports so, after more entries than most.
func (w *Watcher[T]) sweep(ctx context.Context, now inFlight[T], missing map[string]bool, most int) (settled int, complete bool, err error) {
	all := now.all()
	listed := 0
	err = w.ListAll(ctx, func(page []T) bool {
		if len(now.creating) > 0 {
			w.options.Observe(page)
		}
		settled += w.see(page, all, missing)
		listed += len(page)
		return listed <= most
	})
	complete = err == nil && listed <= most
	if complete {
		settled += absent(now.deleting, missing)
	}
	return settled, complete, err
}

// see delivers a page of a listing, and removes its volumes from missing.
func (w *Watcher[T]) see(page []T, of waits[T], missing map[string]bool) (settled int) {
	for _, v := range page {
		id := cinder.IDOf(v)
		for _, waiting := range of[id] {
			waiting.shown = true
		}
		delete(missing, id)
		settled += w.deliver(of[id], v)
	}
	return settled
}

// roundCreating reads the newest volumes first, since those being created are among them.
// It stops when it has seen them all, or when reading the rest one by one is cheaper: a
// volume that an earlier leader left in creation may be far down the list.
func (w *Watcher[T]) roundCreating(ctx context.Context, creating waits[T]) (settled int) {
	missing := unseen(creating)
	pages := 0
	err := w.options.List(ctx, "", newestPage(len(creating)), func(page []T) bool {
		w.options.Observe(page)
		settled += w.see(page, creating, missing)
		pages++
		return len(missing) >= pages
	})
	if err != nil {
		return settled + failed(creating, missing, err)
	}
	return settled + w.verify(ctx, creating, missing)
}

// roundDeleting lists the volumes in deletion. A missing volume has left that state.
// Missing volumes are read one by one, or by one unfiltered listing, whichever is cheaper.
func (w *Watcher[T]) roundDeleting(ctx context.Context, deleting waits[T]) (settled int) {
	missing := unseen(deleting)
	if len(missing) == 1 {
		// A listing without it would be no proof, and cost a read, too.
		removed := w.verify(ctx, deleting, missing)
		w.changes(-removed)
		return removed
	}
	err := w.options.List(ctx, cinder.StatusDeleting, pageSize, func(page []T) bool {
		settled += w.see(page, deleting, missing)
		return len(missing) > 0
	})
	cost, known := w.costOfAll()
	if !known {
		cost = fewReads
	}
	swept := err == nil && float64(len(missing)) > cost
	if swept {
		var seen int
		seen, _, err = w.sweep(ctx, inFlight[T]{deleting: deleting}, missing, math.MaxInt)
		settled += seen
	}
	if err != nil {
		return settled + failed(deleting, missing, err)
	}
	removed := w.verify(ctx, deleting, missing)
	if !swept { // or the complete listing has counted what is there
		w.changes(-removed)
	}
	return settled + removed
}

// absent resolves volumes missing from a complete listing whose absence proves that they
// are gone, because an earlier listing has shown them, and removes them from missing.
// Another project's volume is never shown, although an administrator may have deleted it
// by ID.
func absent[T cinder.Object](deleting waits[T], missing map[string]bool) (settled int) {
	for id := range missing {
		if shown(deleting[id]) {
			delete(missing, id)
			settled += finish(deleting[id], outcome[T]{gone: true})
		}
	}
	return settled
}

func unseen[T cinder.Object](of waits[T]) map[string]bool {
	missing := make(map[string]bool, len(of))
	for id := range of {
		missing[id] = true
	}
	return missing
}

// shown reports whether every wait has seen its volume in a listing; a wait that just
// began may not have.
func shown[T cinder.Object](waits []*wait[T]) bool {
	return len(waits) > 0 && !slices.ContainsFunc(waits, func(waiting *wait[T]) bool { return !waiting.shown })
}

// verify reads volumes that a listing did not show, by their IDs.
func (w *Watcher[T]) verify(ctx context.Context, of waits[T], missing map[string]bool) (settled int) {
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
			answers[i].found, answers[i].err = w.options.Get(ctx, id)
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
func (w *Watcher[T]) deliver(waits []*wait[T], v T) (settled int) {
	_, status, _ := v.State()
	for _, waiting := range waits {
		waiting.failures = 0
		if status == waiting.status || waiting.status == cinder.StatusCreating && status == "downloading" {
			continue
		}
		settled += finish([]*wait[T]{waiting}, outcome[T]{found: v})
	}
	return settled
}

// failed records that a round brought no news of the missing volumes, and delivers the
// error to waits for which that has happened too often.
func failed[T cinder.Object](of waits[T], missing map[string]bool, err error) (settled int) {
	most := failuresToReport
	if cinder.IsKind(err, KindNotShown) {
		most = roundsUnshown
	}
	for id := range missing {
		for _, waiting := range of[id] {
			if waiting.failures++; waiting.failures >= most {
				settled += finish([]*wait[T]{waiting}, outcome[T]{err: err})
			}
		}
	}
	return settled
}

// finish delivers an outcome to the waits.
func finish[T cinder.Object](waits []*wait[T], result outcome[T]) (count int) {
	for _, waiting := range waits {
		if !waiting.finished {
			waiting.finished = true
			waiting.result <- result
			count++
		}
	}
	return count
}
