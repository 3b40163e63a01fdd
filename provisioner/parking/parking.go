// Package parking keeps what cannot be worked on now, together with everything
// that could help it. Nothing that is parked polls: it returns when one of its
// helps happens. Helps that happen between the decision to park it and the
// parking itself are not missed.
package parking

import (
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Help is something that may happen and help what is parked.
type Help struct {
	Kind HelpKind
	Name string
}

// HelpKind is the kind of a help.
type HelpKind string

// The kinds of help, and what their names refer to.
const (
	Policy      HelpKind = "policy"      // another policy is in force
	Credentials HelpKind = "credentials" // some backend's credentials have changed
	Namespace   HelpKind = "namespace"   // its labels may have changed
	Class       HelpKind = "class"       // the StorageClass was created again
	Backend     HelpKind = "backend"     // it answers again
	Room        HelpKind = "room"        // a quota has room again
	Node        HelpKind = "node"        // it may have released a volume
	Earlier     HelpKind = "earlier"     // it is known which claims are older than the term
)

// mostHelps bounds how many helps are distinguished. Beyond it, everything that
// happened counts as help for everything, which costs a needless check.
const mostHelps = 4096

// History remembers when each help last happened.
type History struct {
	mu    sync.Mutex
	clock Moment
	last  map[Help]Moment
	// floor is when everything was last forgotten.
	floor Moment
}

// Moment orders events in time.
type Moment uint64

// NewHistory makes a history in which nothing has happened.
func NewHistory() *History { return &History{last: map[Help]Moment{}} }

// Now returns the current moment.
func (h *History) Now() Moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clock
}

// Note records that helps happened now.
func (h *History) Note(helps []Help) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	if len(h.last)+len(helps) > mostHelps {
		clear(h.last)
		h.floor = h.clock
	}
	for _, one := range helps {
		h.last[one] = h.clock
	}
}

// Since reports whether any of the helps happened after the moment.
func (h *History) Since(m Moment, helps []Help) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.floor > m || slices.ContainsFunc(helps, func(one Help) bool { return h.last[one] > m })
}

// Why is the reason for which an object is parked.
type Why string

// The reasons.
const (
	Waiting Why = "waiting" // for its turn
	Denied  Why = "denied"
	Failing Why = "failing" // and is tried again later
	Blocked Why = "blocked" // it must not continue now
)

// Lot is the set of parked objects of one kind, by UID.
type Lot[T metav1.Object] struct {
	mu     sync.Mutex
	parked map[types.UID]place[T]
	counts map[Why]int
	// reported is the last message to each object's author.
	reported map[types.UID]report
}

type place[T metav1.Object] struct {
	object T
	why    Why
	helps  []Help
}

// report is a message to an object's author.
type report struct {
	reason, message string
	at              time.Time
}

// repeatAfter is how often an unchanged reason is reported again, so that its
// event does not expire (the API server keeps events for an hour).
const repeatAfter = 45 * time.Minute

// NewLot makes an empty lot.
func NewLot[T metav1.Object]() *Lot[T] {
	return &Lot[T]{parked: map[types.UID]place[T]{}, counts: map[Why]int{}, reported: map[types.UID]report{}}
}

// Park adds an object, for one reason at a time.
func (l *Lot[T]) Park(object T, reason Why, helps []Help) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid := object.GetUID()
	l.remove(uid)
	l.parked[uid] = place[T]{object, reason, helps}
	l.counts[reason]++
}

// Take removes an object if it is parked for one of the reasons; no reasons
// mean any.
func (l *Lot[T]) Take(uid types.UID, reasons ...Why) (object T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.parked[uid]
	if !ok || len(reasons) > 0 && !slices.Contains(reasons, found.why) {
		return object, false
	}
	l.remove(uid)
	return found.object, true
}

// HelpedBy returns the objects that the helps may help. Denied and waiting
// objects stay parked until the provisioner takes them.
func (l *Lot[T]) HelpedBy(helps []Help) []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []T
	for uid, p := range l.parked {
		if p.why == Waiting || !slices.ContainsFunc(p.helps, func(one Help) bool { return slices.Contains(helps, one) }) {
			continue
		}
		found = append(found, p.object)
		if p.why != Denied {
			l.remove(uid)
		}
	}
	return found
}

func (l *Lot[T]) remove(uid types.UID) {
	if before, ok := l.parked[uid]; ok {
		l.counts[before.why]--
		delete(l.parked, uid)
	}
}

// Count returns how many objects are parked for a reason.
func (l *Lot[T]) Count(reason Why) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[reason]
}

// IsNews records a message to an object's author, and reports whether it is news:
// another reason, another message, or the same one after a while.
//
// passing means that the message changes all the time without being news, such
// as the numbers of a quota.
func (l *Lot[T]) IsNews(uid types.UID, reason, message string, passing bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := report{reason, message, time.Now()}
	before, known := l.reported[uid]
	if known && before.reason == reason && (before.message == message || passing) && now.at.Sub(before.at) < repeatAfter {
		return false
	}
	l.reported[uid] = now
	return true
}

// ForgetReport makes the next message to an object's author news again.
func (l *Lot[T]) ForgetReport(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reported, uid)
}

// Forget drops an object that is gone.
func (l *Lot[T]) Forget(uid types.UID) {
	l.Take(uid)
	l.ForgetReport(uid)
}
