package watch

// pageSize is the most that Cinder returns at once (osapi_max_limit).
const pageSize = 1000

// fewReads is how many volumes are read by their IDs rather than by a complete
// listing of unknown length.
const fewReads = 8

// readsAtOnce is how many volumes are read by their IDs at once.
const readsAtOnce = 8

// costOfListing returns what a listing costs Cinder, measured in reads of a
// single volume: such a read takes 20 ms, a page 20 ms and a third of a
// millisecond for each volume on it.
func costOfListing(volumes int) float64 {
	return float64(max(1, (volumes+pageSize-1)/pageSize)) + float64(volumes)/60
}

// costOfAll returns what a complete listing costs, if it is known.
func (w *Watcher[T]) costOfAll() (cost float64, known bool) {
	total := w.total.Load()
	if total == nil {
		return 0, false
	}
	return costOfListing(*total), true
}

// cost returns the cost of a round that serves each kind of wait separately.
// About half of what is being deleted is gone by the next round, and has to be
// read.
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

// changes corrects the total by what a round has found out without listing everything:
// a project that is being emptied has less to list from round to round.
func (w *Watcher[T]) changes(by int) {
	if total := w.total.Load(); total != nil {
		now := max(0, *total+by)
		w.total.CompareAndSwap(total, &now)
	}
}

// newestPage returns the size of a page that is likely to have n volumes that were
// just created.
func newestPage(n int) int { return min(max(2*n, 50), pageSize) }

// listsAll reports whether one listing of everything costs the least.
func (w *Watcher[T]) listsAll(f inFlight[T]) bool {
	cost, known := w.costOfAll()
	return known && cost <= f.cost()
}
