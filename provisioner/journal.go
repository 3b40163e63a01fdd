package provisioner

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// journal remembers what this term began, undid and removed, until Kubernetes or
// Cinder shows it. It is in memory, for one term: the next leader looks at Cinder
// and Kubernetes instead. It makes no requests and calls no other part of the
// hub.
type journal struct {
	mu sync.Mutex
	// begun is the set of claims that may have a volume but no PersistentVolume yet.
	begun map[types.UID]beginning
	// undone is the set of claims whose attempts this term has undone.
	undone map[types.UID]undoing
	// outlived is the set of claims that are still cached although their
	// PersistentVolume was created and deleted again.
	outlived map[types.UID]bool
	// handles maps the handle by which nodes know a volume to its claim in begun.
	handles map[handle]types.UID
	// removed is the set of PersistentVolumes whose volumes are gone. Until the
	// object is gone too, the library may call Delete again whenever it changes.
	removed map[types.UID]bool
}

// beginning is what undoing a claim's attempt needs.
type beginning struct {
	backend   string
	stamp     backends.Stamp
	connector cinder.Connector
	// since is when the journal first had the attempt.
	since time.Time
	// handedOver is what nodes may use, once the library has the PersistentVolume to
	// save; nil before.
	handedOver *nodeuse.Volume
	// handle identifies the volume to nodes, once it is mapped to a CSI source.
	handle handle
}

// handle identifies a volume to kubelet.
type handle struct{ driver, volumeHandle string }

// undoing is when and where a claim's attempt was undone.
type undoing struct {
	backend string
	stamp   backends.Stamp
	at      time.Time
}

// undoneFor is how long the journal remembers that a claim's attempt was undone.
const undoneFor = 15 * time.Minute

func newJournal() *journal {
	return &journal{
		begun: map[types.UID]beginning{}, undone: map[types.UID]undoing{},
		handles:  map[handle]types.UID{},
		outlived: map[types.UID]bool{}, removed: map[types.UID]bool{},
	}
}

// beginning returns the claim's unfinished attempt.
func (j *journal) beginning(claim types.UID) (beginning, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	begun, ok := j.begun[claim]
	return begun, ok
}

// stampOf returns the stamp of the claim's unfinished attempt.
func (j *journal) stampOf(claim types.UID) (stamp backends.Stamp, begun bool) {
	b, begun := j.beginning(claim)
	return b.stamp, begun
}

// begin remembers an attempt, and reports whether it is the claim's first.
func (j *journal) begin(claim types.UID, b beginning) (first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	earlier, before := j.begun[claim]
	if b.handedOver == nil {
		b.handedOver = earlier.handedOver
	}
	b.handle, b.since = earlier.handle, earlier.since
	if !before {
		b.since = time.Now()
	}
	j.begun[claim] = b
	// A PersistentVolume saved from now on is not for the volume that was undone.
	delete(j.undone, claim)
	return !before
}

// unfinished returns every unfinished attempt.
func (j *journal) unfinished() map[types.UID]beginning {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.begun)
}

// handOver remembers that the library is saving the claim's PersistentVolume.
func (j *journal) handOver(claim types.UID, pv *corev1.PersistentVolume) {
	use := nodeuse.VolumeOf(pv)
	j.mu.Lock()
	defer j.mu.Unlock()
	if begun, ok := j.begun[claim]; ok {
		begun.handedOver = &use
		j.begun[claim] = begun
	}
}

// reserveHandle remembers the handle of a claim's volume until its
// PersistentVolume is saved. It returns the claim that has it already, if there is
// one: the caches do not show what is being saved.
func (j *journal) reserveHandle(claim types.UID, h handle) (holder types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	begun, ok := j.begun[claim]
	if !ok {
		return ""
	}
	if holder, taken := j.handles[h]; taken && holder != claim {
		return holder
	}
	delete(j.handles, begun.handle)
	begun.handle = h
	j.handles[h], j.begun[claim] = claim, begun
	return ""
}

// finish forgets an attempt: its volume is recorded, or nothing is left of it.
func (j *journal) finish(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if begun := j.begun[claim]; j.handles[begun.handle] == claim {
		delete(j.handles, begun.handle)
	}
	delete(j.begun, claim)
}

// noteUndone remembers that a claim has no volume left on a backend, and that
// none was recorded.
func (j *journal) noteUndone(claim types.UID, begun beginning) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for uid, u := range j.undone {
		if time.Since(u.at) > undoneFor {
			delete(j.undone, uid)
		}
	}
	j.undone[claim] = undoing{begun.backend, begun.stamp, time.Now()}
}

// undoneOf reports whether a PersistentVolume may name a volume that was undone.
func (j *journal) undoneOf(pv *corev1.PersistentVolume) (undoing, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	u, ok := j.undone[types.UID(pv.Annotations[record.AnnotationClaimUID])]
	return u, ok && time.Since(u.at) < undoneFor && u.backend == pv.Annotations[record.AnnotationBackend] && u.stamp.PV == pv.Name
}

// noteOutlived remembers a claim that the cache shows although its
// PersistentVolume is gone: usually the cache is late.
func (j *journal) noteOutlived(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outlived[claim] = true
}

func (j *journal) hasOutlived(claim types.UID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.outlived[claim]
}

// claimGone forgets a claim that is gone, but not its unfinished attempt.
func (j *journal) claimGone(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.outlived, claim)
}

// noteRemoved remembers that the volume of a PersistentVolume is gone.
func (j *journal) noteRemoved(pv types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.removed[pv] = true
}

func (j *journal) isRemoved(pv types.UID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.removed[pv]
}

// objectGone forgets a PersistentVolume, and reports whether its volume had been
// removed.
func (j *journal) objectGone(pv types.UID) (removed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	removed = j.removed[pv]
	delete(j.removed, pv)
	return removed
}
