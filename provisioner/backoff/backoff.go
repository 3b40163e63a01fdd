// Package backoff gives the items of a queue the delays that their errors call
// for.
package backoff

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Delay is how an error is tried again: first after First, then twice as long
// each time, up to Most. Nothing gives up.
type Delay struct {
	// Outcome labels the metrics; stable, in snake case.
	Outcome string
	First   time.Duration
	Most    time.Duration
	// AtLeast is what the server asked for.
	AtLeast time.Duration
}

// Limiter gives the library's queues the delay that the error of an item
// calls for. Keys are claim UIDs and names of PersistentVolumes, which never
// collide.
type Limiter struct {
	// unexplained is the delay of failures that nobody told of.
	unexplained Delay

	mu    sync.Mutex
	items map[string]*entry
}

type entry struct {
	delay    Delay
	failures int // in a row, with the same outcome
	// explained is set while the library has not asked for the delay of the
	// last failure; unexplained counts the failures in a row that are its own.
	explained   bool
	unexplained int
	requeues    int // as the library counts them
}

// New makes an empty limiter. The delay is that of failures that nobody told of.
func New(unexplained Delay) *Limiter {
	return &Limiter{unexplained: unexplained, items: map[string]*entry{}}
}

// Len is how many items are remembered.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.items)
}

// Failed notes why an item failed; When then knows how long to wait.
func (l *Limiter) Failed(key string, d Delay) {
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

// Succeeded forgets an item's failures. Those of the library stay: saving the
// fruit of a success may fail again and again.
func (l *Limiter) Succeeded(key string) {
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

// Gone forgets all about an item that is no more.
func (l *Limiter) Gone(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.items, key)
}

// When implements workqueue.TypedRateLimiter.
func (l *Limiter) When(key string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	item := l.item(key)
	item.requeues++
	d, failures := item.delay, item.failures
	if item.explained {
		item.explained, item.unexplained = false, 0
	} else {
		// The library failed on its own, before or after this program's part.
		item.unexplained++
		d, failures = l.unexplained, item.unexplained
	}
	delay := d.First
	for range min(failures-1, 20) {
		delay = min(delay*2, d.Most)
	}
	delay = max(delay, d.AtLeast)
	// A tenth of jitter keeps claims that failed together from coming back
	// together.
	return delay + time.Duration(rand.Int64N(int64(delay)/10+1))
}

// Forget implements workqueue.TypedRateLimiter. The library forgets whatever
// leaves its queue, also what is only parked: failures that were
// explained are kept until Succeeded or Gone.
func (l *Limiter) Forget(key string) {
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
func (l *Limiter) NumRequeues(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if item, ok := l.items[key]; ok {
		return item.requeues
	}
	return 0
}

func (l *Limiter) item(key string) *entry {
	item := l.items[key]
	if item == nil {
		item = &entry{}
		l.items[key] = item
	}
	return item
}
