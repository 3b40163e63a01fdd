// Package history keeps the states that the simulator had, for reads that lag behind the
// changes.
package history

import "time"

// History has copies of a state as it was up to a certain age. The zero History has none.
type History[T any] struct {
	age     time.Duration
	copy    func() T
	moments []moment[T] // oldest first; the first is the state for older times, too
	changed time.Time   // the first change that no moment has; zero if there is none
}

type moment[T any] struct {
	since time.Time
	state T
}

// New makes a history that begins with the state that copy returns now, and reaches back
// to the given age.
func New[T any](age time.Duration, copy func() T) *History[T] {
	return &History[T]{age: age, copy: copy, moments: []moment[T]{{state: copy()}}}
}

// fineness is how many states are kept for each age: changes within one part of the age
// count as one.
const fineness = 20

// Settle must be called before the state changes again at the given time.
func (h *History[T]) Settle(now time.Time) {
	if h.changed.IsZero() || now.Sub(h.changed) < h.age/fineness {
		return
	}
	h.moments = append(h.moments, moment[T]{h.changed, h.copy()})
	h.changed = time.Time{}
	for len(h.moments) > 1 && now.Sub(h.moments[1].since) >= h.age {
		h.moments[0] = moment[T]{}
		h.moments = h.moments[1:]
	}
}

// Change notes that the state changes at the given time.
func (h *History[T]) Change(now time.Time) {
	if h.changed.IsZero() {
		h.changed = now
	}
}

// Before returns the state as it was at the given time less the age.
func (h *History[T]) Before(now time.Time) T {
	h.Settle(now)
	found := h.moments[0].state
	for _, m := range h.moments[1:] {
		if now.Sub(m.since) >= h.age {
			found = m.state
		}
	}
	return found
}
