// Package backoff delays the items of a queue according to their errors.
package backoff

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Delay describes an error's retries: the first after First, then after twice as long
// each time, up to Most. Retries never stop.
type Delay struct {
	// Outcome labels the metrics. It is stable, and in snake case.
	Outcome string
	First   time.Duration
	Most    time.Duration
	// AtLeast is the delay that the server requested.
	AtLeast time.Duration
}

// Limiter gives each item of a queue the delay for its error.
type Limiter[K comparable] struct {
	// unexplained is the delay for failures that were not reported to the limiter.
	unexplained Delay

	mu    sync.Mutex
	items map[K]*entry
}

type entry struct {
	delay    Delay
	failures int // in a row, with the same outcome
	// explained is set until the library asks for the delay of the last failure.
	// unexplained counts the library's own consecutive failures.
	explained   bool
	unexplained int
	requeues    int // as the library counts them
}

// New returns an empty limiter. The delay applies to failures not reported to it.
func New[K comparable](unexplained Delay) *Limiter[K] {
	return &Limiter[K]{unexplained: unexplained, items: map[K]*entry{}}
}

// Len returns how many items are remembered.
func (l *Limiter[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.items)
}

// Failed records why an item failed, so that When knows how long to wait.
func (l *Limiter[K]) Failed(key K, d Delay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	item := l.item(key)
	if item.delay.Outcome != d.Outcome {
		item.failures = 0
	}
	item.delay = d
	item.failures++
	item.explained = true
}

// Succeeded forgets an item's failures, but not the library's, because saving the result
// of a success may still fail repeatedly.
func (l *Limiter[K]) Succeeded(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	item, ok := l.items[key]
	if !ok {
		return
	}
	if item.unexplained == 0 {
		delete(l.items, key)
		return
	}
	item.delay, item.failures, item.explained = Delay{}, 0, false
}

// Gone forgets an item that no longer exists.
func (l *Limiter[K]) Gone(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.items, key)
}

// When implements workqueue.TypedRateLimiter.
func (l *Limiter[K]) When(key K) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	item := l.item(key)
	item.requeues++
	d, failures := item.delay, item.failures
	if item.explained {
		item.explained, item.unexplained = false, 0
	} else {
		// The library itself failed, before or after this program's part.
		item.unexplained++
		d, failures = l.unexplained, item.unexplained
	}
	delay := d.First
	for range min(failures-1, 20) {
		delay = min(delay*2, d.Most)
	}
	delay = max(delay, d.AtLeast)
	// A tenth of jitter keeps claims that failed together from retrying together.
	return delay + time.Duration(rand.Int64N(int64(delay)/10+1))
}

// Forget implements workqueue.TypedRateLimiter. The library forgets every item that
// leaves its queue, even one that is only parked, so reported failures are kept until
// Succeeded or Gone.
func (l *Limiter[K]) Forget(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	item, ok := l.items[key]
	if !ok {
		return
	}
	item.unexplained, item.requeues = 0, 0
	if item.failures == 0 {
		delete(l.items, key)
	}
}

// NumRequeues implements workqueue.TypedRateLimiter.
func (l *Limiter[K]) NumRequeues(key K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if item, ok := l.items[key]; ok {
		return item.requeues
	}
	return 0
}

func (l *Limiter[K]) item(key K) *entry {
	item := l.items[key]
	if item == nil {
		item = &entry{}
		l.items[key] = item
	}
	return item
}
