package knowledge

import (
	"maps"
	"sync"
	"time"
)

// Unshown are objects that Cinder has acknowledged but not shown since. A Cinder whose
// database reads from another server than it writes to, as Galera may, does not show them
// for a while. Until such an object has been shown once, its absence proves nothing.
type Unshown struct {
	mu       sync.Mutex
	expected map[string]expectation // by ID
	// lag is the longest time that one was missing.
	lag time.Duration
}

type expectation struct {
	of           string // the ID of what it belongs to
	since, until time.Time
}

// NewUnshown returns an empty set.
func NewUnshown() *Unshown { return &Unshown{expected: map[string]expectation{}} }

// Expect adds an object that Cinder has acknowledged. It expires, because the object may
// be gone before it is ever shown.
func (u *Unshown) Expect(id, of string, until time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	// The callers that expected the others may never ask again.
	maps.DeleteFunc(u.expected, func(_ string, e expectation) bool { return time.Now().After(e.until) })
	u.expected[id] = expectation{of, time.Now(), until}
}

// Shown removes an object that Cinder shows.
func (u *Unshown) Shown(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.expected, id)
}

// Missing records that Cinder does not show an object, and reports whether it may yet
// appear.
func (u *Unshown) Missing(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.isExpected(id) {
		return false
	}
	u.lag = max(u.lag, time.Since(u.expected[id].since))
	return true
}

// Lag returns how long after its acknowledgement an object was still missing; 0 if none
// ever was.
func (u *Unshown) Lag() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lag
}

// ExpectedOf returns the IDs of another object's objects that have yet to appear.
func (u *Unshown) ExpectedOf(of string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var found []string
	for id, expected := range u.expected {
		if expected.of == of && u.isExpected(id) {
			found = append(found, id)
		}
	}
	return found
}

func (u *Unshown) isExpected(id string) bool {
	expected, has := u.expected[id]
	return has && !time.Now().After(expected.until)
}
