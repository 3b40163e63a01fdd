// Package parking holds work that cannot continue now, together with everything that
// could unblock it. Parked work is not polled: it is requeued when one of its triggers is
// published on the term's Board. Triggers published between the decision to park and the
// parking itself are not missed.
package parking

import (
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

// Trigger is an event that may unblock parked objects.
type Trigger struct {
	Kind TriggerKind
	Name string
}

// TriggerKind is the kind of a trigger.
type TriggerKind string

// The kinds of triggers, and what their names refer to.
const (
	Policy      TriggerKind = "policy"      // another policy is in force
	Credentials TriggerKind = "credentials" // some backend's credentials have changed
	Namespace   TriggerKind = "namespace"   // its labels may have changed
	Class       TriggerKind = "class"       // it was re-created
	Attributes  TriggerKind = "attributes"  // the VolumeAttributesClass was created
	Backend     TriggerKind = "backend"     // it answers again
	Room        TriggerKind = "room"        // a quota has room again
	Source      TriggerKind = "source"      // see SourceClaim, SourceSnapshot and PopulatedClaim
	Volume      TriggerKind = "volume"      // the PersistentVolume that a claim was left to has changed
	Node        TriggerKind = "node"        // it may have released a volume
	Snapshots   TriggerKind = "snapshots"   // a snapshot of the volume with this ID is gone
	Object      TriggerKind = "object"      // another object, such as a claim, has changed
	Earlier     TriggerKind = "earlier"     // the claims older than the term are known
)

// SourceClaim fires when a claim that others may copy has changed.
func SourceClaim(namespace, name string) Trigger { return Trigger{Source, namespace + "/" + name} }

// SourceSnapshot fires when a VolumeSnapshot that claims may copy has changed. No
// namespace has a slash.
func SourceSnapshot(namespace, name string) Trigger {
	return Trigger{Source, "/" + namespace + "/" + name}
}

// PopulatedClaim fires when the claim with a UID, which a populator may fill, has changed.
func PopulatedClaim(uid types.UID) Trigger { return Trigger{Source, string(uid)} }

// Reason explains why an object is parked.
type Reason string

// The reasons.
const (
	Waiting Reason = "waiting" // for its turn
	Denied  Reason = "denied"
	Failing Reason = "failing" // and will be retried
	Blocked Reason = "blocked" // it must not continue now
	Left    Reason = "left"    // to another program
)

// Lot is the set of parked objects of one kind, by UID.
type Lot[T metav1.Object] struct {
	mu     sync.Mutex
	parked map[types.UID]entry[T]
	// reported is the last message about each object.
	reported map[types.UID]report
}

type entry[T metav1.Object] struct {
	object T
	reason Reason
	since  time.Time
}

// report is a message for the author of an object.
type report struct {
	reason, message string
	at              time.Time
	// latest is the last message with this reason, news or not; since is when the first
	// one came.
	latest string
	since  time.Time
	// failure is the last attempt's failure, if it came after the message; failing is
	// when the first of these attempts failed.
	failure string
	failing time.Time
}

// repeatAfter is how often an unchanged reason is reported again, so that its event does
// not expire (the API server keeps events for an hour).
const repeatAfter = 45 * time.Minute

// NewLot returns an empty lot.
func NewLot[T metav1.Object]() *Lot[T] {
	return &Lot[T]{parked: map[types.UID]entry[T]{}, reported: map[types.UID]report{}}
}

// Park adds an object, for one reason at a time.
func (l *Lot[T]) Park(object T, reason Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked[object.GetUID()] = entry[T]{object, reason, time.Now()}
}

// Holds reports whether an object is parked.
func (l *Lot[T]) Holds(uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, parked := l.parked[uid]
	return parked
}

// NoteFailure records why the last attempt at an object failed, for List. It does not
// report the failure to the object's author.
func (l *Lot[T]) NoteFailure(uid types.UID, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.reported[uid]
	if known.failure = bound.Message(message); known.failing.IsZero() {
		known.failing = time.Now()
	}
	l.reported[uid] = known
}

// Take removes an object if it is parked for one of the reasons, or for any reason if
// none is given.
func (l *Lot[T]) Take(uid types.UID, reasons ...Reason) (object T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.parked[uid]
	if !ok || len(reasons) > 0 && !slices.Contains(reasons, found.reason) {
		return object, false
	}
	delete(l.parked, uid)
	return found.object, true
}

// Each calls yield for every parked object, with the reason of the last message to its
// author; empty if there was none.
func (l *Lot[T]) Each(yield func(object T, reason Reason, reported string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, p := range l.parked {
		yield(p.object, p.reason, l.reported[uid].reason)
	}
}

// Parked is an object and why it is parked.
type Parked[T metav1.Object] struct {
	Object T
	State  Reason
	// Reason and Message are those of the last message to the author. If failures of the
	// object are noted, Reason is empty and Message is the last one.
	Reason, Message string
	// EventReason and Event are those of the last event about the object, which is what
	// its author knows; empty if there was none.
	EventReason, Event string
	// Since is when the wait for this reason began.
	Since time.Time
}

// List returns every parked object, in any order.
func (l *Lot[T]) List() []Parked[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Parked[T], 0, len(l.parked))
	for uid, p := range l.parked {
		one, told := Parked[T]{Object: p.object, State: p.reason, Since: p.since}, l.reported[uid]
		one.EventReason, one.Event = told.reason, told.message
		switch {
		case p.reason == Waiting:
		case p.reason == Failing && told.failure != "":
			one.Message, one.Since = told.failure, told.failing
		case told.reason != "":
			one.Reason, one.Message, one.Since = told.reason, told.latest, told.since
		}
		all = append(all, one)
	}
	return all
}

// IsNews records a message to an object's author and reports whether it is news: another
// reason, another message, or the same message after a while.
//
// passing means that the message changes all the time without being news, such as quota
// numbers.
func (l *Lot[T]) IsNews(uid types.UID, reason, message string, passing bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, message := time.Now(), bound.Message(message)
	now := report{reason: reason, message: message, at: at, latest: message, since: at}
	before := l.reported[uid]
	same := before.reason == reason
	if same && before.failure == "" {
		now.since = before.since
	}
	news := !same || before.message != message && !passing || at.Sub(before.at) >= repeatAfter
	if !news {
		now.message, now.at = before.message, before.at
	}
	l.reported[uid] = now
	return news
}

// Lasts reports whether the last message to an object's author has had this reason for as
// long as that.
func (l *Lot[T]) Lasts(uid types.UID, reason string, long time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.reported[uid]
	return told.reason == reason && time.Since(told.since) >= long
}

// Told returns the last message to an object's author; empty if there was none.
func (l *Lot[T]) Told(uid types.UID) (reason, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.reported[uid]
	return told.reason, told.latest
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
