package cindersim

import (
	"sync"
	"time"
)

// Entry is a request in the journal.
type Entry struct {
	Request
	// Number orders the requests by arrival, from 1.
	Number int
	// Time is the arrival by the simulator's clock, Duration the real time
	// until the answer was written or the connection closed.
	Time     time.Time
	Duration time.Duration
	// Status is the answer's status code; 0 means that there was none.
	Status int
	// Fault names the kind of the fault that was applied, if any.
	Fault string
	// Performed means that the state machine has handled the request, whether
	// or not it rejected it.
	Performed bool
	// Done is false while the request is being handled.
	Done bool
}

// journal keeps the requests in the order of their arrival.
type journal struct {
	mu      sync.Mutex
	entries []*Entry
	numbers int
	counts  map[string]int
}

func newJournal() *journal { return &journal{counts: make(map[string]int)} }

func (j *journal) begin(request Request, now time.Time) *Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.numbers++
	entry := &Entry{Request: request, Number: j.numbers, Time: now}
	j.entries = append(j.entries, entry)
	j.counts[request.Operation]++
	return entry
}

// update changes an entry under the journal's lock.
func (j *journal) update(entry *Entry, change func(*Entry)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(entry)
}

func (j *journal) snapshot() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	entries := make([]Entry, len(j.entries))
	for i, entry := range j.entries {
		entries[i] = *entry
	}
	return entries
}

func (j *journal) last() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.numbers
}

func (j *journal) countByOperation() map[string]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := make(map[string]int, len(j.counts))
	for operation, count := range j.counts {
		counts[operation] = count
	}
	return counts
}

func (j *journal) reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries, j.counts = nil, make(map[string]int)
}
