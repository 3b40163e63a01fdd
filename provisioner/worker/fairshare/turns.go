// Package fairshare shares workers between tenants and backends.
package fairshare

import (
	"slices"
	"strconv"
	"sync"
	"time"
)

// Turns shares a number of workers between tenants and backends, so that a tenant with a
// thousand claims, or a backend that does not answer, cannot occupy all of them. An item
// without a turn does not block a worker: it leaves, and is requeued when its turn comes.
//
// No tenant and no backend may have more turns than remain free. Switches share their
// buffers by the same dynamic threshold: a single user gets half of all turns, two greedy
// ones a third each, and something always remains for a newcomer. Waiting tenants and
// backends are served in turn, each first come, first served.
//
// See docs/decisions.md, "Workers, turns, and the breaker".
type Turns[K comparable] struct {
	capacity int
	// own is a tenant's own limit; 0 means none.
	own func(tenant string) int
	// invite requeues an item. Turns calls it without holding a lock.
	invite func(key K)

	mu        sync.Mutex
	held      map[K]*turn
	byTenant  map[string]int
	byBackend map[string]int
	// waiting lists each lane's waiting items, first come first. lanes is the order in
	// which lanes are served, and upNext the index of the next one.
	waiting map[lane][]K
	lanes   []lane
	upNext  int
	laneOf  map[K]lane
	// changes counts turns taken or returned.
	changes uint64
}

// lane is shared by the items that compete for the same turns.
type lane struct{ tenant, backend string }

// turn is the permission to use a worker.
type turn struct {
	lane
	// lapse revokes an invited item's turn unless its work begins; nil once it has begun.
	lapse *time.Timer
}

// lapseAfter is how long a turn is reserved for an invited item. Work begins microseconds
// after the invitation, unless the claim is gone.
const lapseAfter = 5 * time.Second

// New returns turns for the given number of workers.
func New[K comparable](capacity int, own func(tenant string) int, invite func(key K)) *Turns[K] {
	return &Turns[K]{
		capacity:  capacity,
		own:       own,
		invite:    invite,
		held:      map[K]*turn{},
		byTenant:  map[string]int{},
		byBackend: map[string]int{},
		waiting:   map[lane][]K{},
		laneOf:    map[K]lane{},
	}
}

// Begin takes a turn for work that begins now, or queues for one. If the item already has
// a turn, it counts for this tenant and backend from now on: the policy may have selected
// others since the invitation, or the work another backend.
func (t *Turns[K]) Begin(key K, tenant, backend string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := lane{tenant, backend}
	mine, held := t.held[key]
	switch {
	case held:
		t.count(mine.lane, -1)
		mine.lane = wanted
		t.count(wanted, 1)
	case !t.fits(wanted):
		t.wait(key, wanted)
		return false
	default:
		t.leave(key)
		mine = t.hold(key, wanted)
	}
	if mine.lapse != nil {
		mine.lapse.Stop()
		mine.lapse = nil
	}
	return true
}

// Working returns the items under way, in any order.
func (t *Turns[K]) Working() []K {
	t.mu.Lock()
	defer t.mu.Unlock()
	var working []K
	for key, mine := range t.held {
		if mine.lapse == nil {
			working = append(working, key)
		}
	}
	return working
}

// End returns a turn, or stops waiting for one, and invites the items whose turn has
// come.
func (t *Turns[K]) End(key K) {
	t.mu.Lock()
	invited := t.end(key)
	t.mu.Unlock()
	t.inviteAll(invited)
}

// Leave stops waiting for a turn, or returns one whose work has not begun. A
// turn whose work has begun ends with the work.
func (t *Turns[K]) Leave(key K) {
	t.mu.Lock()
	var invited []K
	if mine, ok := t.held[key]; !ok || mine.lapse != nil {
		invited = t.end(key)
	}
	t.mu.Unlock()
	t.inviteAll(invited)
}

// Recheck invites the items whose turn has come because a tenant's limit changed.
func (t *Turns[K]) Recheck() {
	t.mu.Lock()
	invited := t.next()
	t.mu.Unlock()
	t.inviteAll(invited)
}

// Count returns how many items have a turn, and how many wait for one.
func (t *Turns[K]) Count() (held, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held), len(t.laneOf)
}

func (t *Turns[K]) inviteAll(invited []K) {
	for _, key := range invited {
		t.invite(key)
	}
}

// fits reports whether one more turn leaves enough free ones for all others.
func (t *Turns[K]) fits(l lane) bool {
	free := t.capacity - len(t.held)
	if own := t.own(l.tenant); own > 0 && t.byTenant[l.tenant] >= own {
		return false
	}
	return free > 0 && (t.byTenant[l.tenant] == 0 || t.byTenant[l.tenant] < free) && (t.byBackend[l.backend] == 0 || t.byBackend[l.backend] < free)
}

func (t *Turns[K]) hold(key K, l lane) *turn {
	mine := &turn{lane: l}
	t.held[key] = mine
	t.count(l, 1)
	return mine
}

func (t *Turns[K]) lapsed(key K, mine *turn) {
	t.mu.Lock()
	var invited []K
	if t.held[key] == mine && mine.lapse != nil {
		invited = t.end(key)
	}
	t.mu.Unlock()
	t.inviteAll(invited)
}

// end returns a turn or leaves the queue, and returns the items to invite.
func (t *Turns[K]) end(key K) (invited []K) {
	t.leave(key)
	if mine, ok := t.held[key]; ok {
		if mine.lapse != nil {
			mine.lapse.Stop()
		}
		delete(t.held, key)
		t.count(mine.lane, -1)
	}
	return t.next()
}

func (t *Turns[K]) count(l lane, change int) {
	t.changes++
	if t.byTenant[l.tenant] += change; t.byTenant[l.tenant] == 0 {
		delete(t.byTenant, l.tenant)
	}
	if t.byBackend[l.backend] += change; t.byBackend[l.backend] == 0 {
		delete(t.byBackend, l.backend)
	}
}

// wait puts an item at the end of its lane, unless it waits there already.
func (t *Turns[K]) wait(key K, l lane) {
	if before, ok := t.laneOf[key]; ok && before == l {
		return
	}
	t.leave(key)
	if len(t.waiting[l]) == 0 {
		// The place before the next lane is behind all others.
		t.lanes = slices.Insert(t.lanes, t.upNext, l)
		if t.upNext++; t.upNext == len(t.lanes) {
			t.upNext = 0
		}
	}
	t.waiting[l] = append(t.waiting[l], key)
	t.laneOf[key] = l
}

// leave removes an item from the lane that it waits in.
func (t *Turns[K]) leave(key K) {
	l, ok := t.laneOf[key]
	if !ok {
		return
	}
	delete(t.laneOf, key)
	if queue := t.waiting[l]; queue[0] == key {
		t.waiting[l] = queue[1:] // the usual case, because items leave when they are invited
	} else {
		t.waiting[l] = slices.DeleteFunc(queue, func(other K) bool { return other == key })
	}
	if len(t.waiting[l]) == 0 {
		delete(t.waiting, l)
		at := slices.Index(t.lanes, l)
		t.lanes = slices.Delete(t.lanes, at, at+1)
		if at < t.upNext {
			t.upNext--
		}
		if t.upNext == len(t.lanes) {
			t.upNext = 0
		}
	}
}

// Progress reports whether items wait although none has a turn. The mark changes whenever
// an item takes or returns one.
func (t *Turns[K]) Progress() (waiting bool, mark string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lanes) > 0 && len(t.held) == 0, strconv.FormatUint(t.changes, 10)
}

// next gives turns to waiting items, one lane after the other, and returns the items to
// invite.
func (t *Turns[K]) next() (invited []K) {
	for passed := 0; passed < len(t.lanes) && len(t.held) < t.capacity; {
		l := t.lanes[t.upNext]
		t.upNext = (t.upNext + 1) % len(t.lanes)
		if !t.fits(l) {
			passed++
			continue
		}
		key := t.waiting[l][0]
		t.leave(key)
		mine := t.hold(key, l)
		mine.lapse = time.AfterFunc(lapseAfter, func() { t.lapsed(key, mine) })
		invited = append(invited, key)
		passed = 0
	}
	return invited
}
