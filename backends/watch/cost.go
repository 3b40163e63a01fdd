package watch

// pageSize is the most that Cinder returns at once (osapi_max_limit).
const pageSize = 1000

// fewReads is how many volumes are read individually rather than by a complete listing of
// unknown length.
const fewReads = 8

// readsAtOnce is how many individual reads run at once.
const readsAtOnce = 8

// costOfListing returns a listing's cost to Cinder, in reads of a single volume: such a
// read takes 20 ms; a page takes 20 ms plus a third of a millisecond per volume.
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

// cost returns the cost of a round that serves each kind of wait separately. About half
// of the volumes being deleted are gone by the next round, and each of those must be
// read.
func (f inFlight[T]) cost() float64 {
	cost := float64(len(f.seeing))
	if n := len(f.creating); n > 0 {
		cost += costOfListing(newestPage(n))
	}
	if n := len(f.deleting); n == 1 {
		cost++
	} else if n > 0 {
		cost += costOfListing(n) + float64(n)/2
	}
	return cost
}

// changes adjusts the total by what a round found without listing everything: a project
// that is being emptied has less to list from round to round.
func (w *Watcher[T]) changes(by int) {
	if total := w.total.Load(); total != nil {
		now := max(0, *total+by)
		w.total.CompareAndSwap(total, &now)
	}
}

// newestPage returns a page size that likely covers n just-created volumes.
func newestPage(n int) int { return min(max(2*n, 50), pageSize) }

// listsAll reports whether one complete listing is cheapest.
func (w *Watcher[T]) listsAll(f inFlight[T]) bool {
	cost, known := w.costOfAll()
	return known && cost <= f.cost()
}
