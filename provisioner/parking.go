package provisioner

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// What cannot be worked on now leaves the library's queue and is parked, with
// all that could help it. Nothing that is parked polls: it comes back when one
// of its helps happens, and what happened between the decision to park it and
// the parking is not missed.

// help is something that may happen and help what is parked.
type help struct {
	kind helpKind
	name string
}

type helpKind string

const (
	helpPolicy      helpKind = "policy"      // another policy is in force
	helpCredentials helpKind = "credentials" // some backend's credentials have changed
	helpNamespace   helpKind = "namespace"   // its labels may have changed
	helpClass       helpKind = "class"       // the StorageClass was made anew
	helpBackend     helpKind = "backend"     // it answers again
	helpRoom        helpKind = "room"        // a quota has room again
	helpNode        helpKind = "node"        // it may have let a volume go
	helpEarlier     helpKind = "earlier"     // it is known which claims are older than the term
)

// roomOf is the help that a quota's scope gives.
func roomOf(s scope) help { return help{helpRoom, string(s.kind) + " " + s.name} }

func backendHelps(names []string) []help {
	helps := make([]help, len(names))
	for i, name := range names {
		helps[i] = help{helpBackend, name}
	}
	return helps
}

// mostHelps bounds how many kinds of help are told apart. Beyond, all that
// happened counts as help for everything, which costs a needless look.
const mostHelps = 4096

// helped remembers when each help came last.
type helped struct {
	mu    sync.Mutex
	clock moment
	last  map[help]moment
	// floor is when all was forgotten last.
	floor moment
}

// moment orders what happens.
type moment uint64

func newHelped() *helped { return &helped{last: map[help]moment{}} }

func (h *helped) now() moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clock
}

func (h *helped) note(helps []help) {
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

// since says whether any of the helps came after the moment.
func (h *helped) since(m moment, helps []help) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.floor > m || slices.ContainsFunc(helps, func(one help) bool { return h.last[one] > m })
}

// why is the reason for which an object is parked.
type why string

const (
	waiting why = "waiting" // for its turn
	denied  why = "denied"
	failing why = "failing" // the library will try again
	held    why = "held"    // a deletion that must not go on now
)

// lot holds the parked objects of one kind, by UID.
type lot[T metav1.Object] struct {
	mu     sync.Mutex
	parked map[types.UID]place[T]
	counts map[why]int
	// told is what the objects' authors were told last.
	told map[types.UID]said
}

type place[T metav1.Object] struct {
	object T
	why    why
	helps  []help
}

// said is what an object's author was told.
type said struct {
	reason, message string
	at              time.Time
}

// repeatDenial is how often a reason that stands is told again, so that its
// event does not expire (the API server keeps events for an hour).
const repeatDenial = 45 * time.Minute

func newLot[T metav1.Object]() *lot[T] {
	return &lot[T]{parked: map[types.UID]place[T]{}, counts: map[why]int{}, told: map[types.UID]said{}}
}

// park puts an object in, for one reason at a time.
func (l *lot[T]) park(object T, reason why, helps []help) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid := object.GetUID()
	l.remove(uid)
	l.parked[uid] = place[T]{object, reason, helps}
	l.counts[reason]++
}

// take takes an object out if it is in for one of the reasons; no reasons mean
// any.
func (l *lot[T]) take(uid types.UID, reasons ...why) (object T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.parked[uid]
	if !ok || len(reasons) > 0 && !slices.Contains(reasons, found.why) {
		return object, false
	}
	l.remove(uid)
	return found.object, true
}

// helpedBy returns the objects that the helps may help. Those that are denied or
// wait stay in, until somebody looks at them.
func (l *lot[T]) helpedBy(helps []help) []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []T
	for uid, p := range l.parked {
		if p.why == waiting || !slices.ContainsFunc(p.helps, func(one help) bool { return slices.Contains(helps, one) }) {
			continue
		}
		found = append(found, p.object)
		if p.why != denied {
			l.remove(uid)
		}
	}
	return found
}

func (l *lot[T]) remove(uid types.UID) {
	if before, ok := l.parked[uid]; ok {
		l.counts[before.why]--
		delete(l.parked, uid)
	}
}

func (l *lot[T]) count(reason why) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[reason]
}

// tell notes what an object's author is told, and reports whether that is news:
// another reason, another message, or the same after a while. A message about
// passing numbers is no news.
func (l *lot[T]) tell(uid types.UID, reason, message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := said{reason, message, time.Now()}
	before, known := l.told[uid]
	// The numbers of a quota change with every other claim, and what a backend
	// failed with last with every request.
	passing := reason == string(policy.QuotaExceeded) || reason == reasonBackendUnavailable
	if known && before.reason == reason && (before.message == message || passing) && now.at.Sub(before.at) < repeatDenial {
		return false
	}
	l.told[uid] = now
	return true
}

// unsay makes the next word to an object's author news again.
func (l *lot[T]) unsay(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.told, uid)
}

// forget drops an object that is gone.
func (l *lot[T]) forget(uid types.UID) {
	l.take(uid)
	l.unsay(uid)
}

// parkClaim parks a claim because of what was seen since the moment, and has it
// looked at again at once if it was helped meanwhile.
func (p *Provisioner) parkClaim(claim *corev1.PersistentVolumeClaim, reason why, helps []help, since moment) {
	p.claims.park(claim, reason, helps)
	p.Metrics.deniedClaims(p.claims.count(denied))
	if p.helped.since(since, helps) {
		p.claims.take(claim.UID, failing)
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// parkVolume does the same for a deletion.
func (p *Provisioner) parkVolume(pv *corev1.PersistentVolume, reason why, helps []help, since moment) {
	p.volumes.park(pv, reason, helps)
	if p.helped.since(since, helps) {
		p.volumes.take(pv.UID)
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
}
