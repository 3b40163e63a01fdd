package parking

import (
	"maps"
	"slices"
	"sync"
)

// Board is where the parts of a term publish what may unblock other work. It remembers
// when each trigger was last published.
type Board struct {
	mu    sync.Mutex
	clock Moment
	last  map[Trigger]Moment
	// floor is when all triggers were last forgotten.
	floor       Moment
	subscribers []func([]Trigger)
}

// Moment orders events in time.
type Moment uint64

// maxTriggers bounds how many triggers are distinguished. Beyond it, the board forgets
// them, and every trigger counts as published, which costs needless checks.
const maxTriggers = 4096

// NewBoard returns an empty board.
func NewBoard() *Board { return &Board{last: map[Trigger]Moment{}} }

// Subscribe makes Publish call hear with all published triggers, in the order of the
// subscriptions. Publish waits for hear.
func (b *Board) Subscribe(hear func([]Trigger)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers = append(b.subscribers, hear)
}

// Publish fires triggers now.
func (b *Board) Publish(triggers ...Trigger) {
	if len(triggers) == 0 {
		return
	}
	b.mu.Lock()
	b.clock++
	if len(b.last)+len(triggers) > maxTriggers {
		clear(b.last)
		b.floor = b.clock
	}
	for _, one := range triggers {
		b.last[one] = b.clock
	}
	subscribers := b.subscribers
	b.mu.Unlock()
	for _, hear := range subscribers {
		hear(triggers)
	}
}

// Now returns the current moment.
func (b *Board) Now() Moment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

// Since reports whether any of the triggers was published after the moment.
func (b *Board) Since(m Moment, triggers []Trigger) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.floor > m || slices.ContainsFunc(triggers, func(one Trigger) bool { return b.last[one] > m })
}

// Awaited are the triggers that keys wait for. It is not safe for concurrent use.
type Awaited[K comparable] struct {
	of map[K][]Trigger
	// count is how many keys wait for a trigger. Most published triggers unblock nothing
	// and cost one look-up.
	count map[Trigger]int
}

// NewAwaited makes an Awaited without keys.
func NewAwaited[K comparable]() *Awaited[K] {
	return &Awaited[K]{of: map[K][]Trigger{}, count: map[Trigger]int{}}
}

// Set replaces the triggers of a key.
func (a *Awaited[K]) Set(key K, triggers []Trigger) {
	a.Delete(key)
	a.of[key] = triggers
	for _, one := range triggers {
		a.count[one]++
	}
}

// Delete forgets a key.
func (a *Awaited[K]) Delete(key K) {
	for _, one := range a.of[key] {
		if a.count[one]--; a.count[one] == 0 {
			delete(a.count, one)
		}
	}
	delete(a.of, key)
}

// By returns the keys that wait for any of the triggers, in any order.
func (a *Awaited[K]) By(triggers []Trigger) []K {
	if !slices.ContainsFunc(triggers, func(one Trigger) bool { return a.count[one] > 0 }) {
		return nil
	}
	var found []K
	for key, awaited := range a.of {
		if slices.ContainsFunc(awaited, func(one Trigger) bool { return slices.Contains(triggers, one) }) {
			found = append(found, key)
		}
	}
	return found
}

// Keys returns all keys, in any order.
func (a *Awaited[K]) Keys() []K { return slices.Collect(maps.Keys(a.of)) }
