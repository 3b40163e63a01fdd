// Package journal remembers, in memory and for one term, what the term began,
// undid and removed.
package journal

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// Journal remembers what this term began, undid and removed, until Kubernetes or Cinder
// shows it. It lives in memory, for one term: the next leader looks at Cinder and
// Kubernetes instead. It makes no requests.
type Journal struct {
	mu sync.Mutex
	// begun is the set of claims that may have a volume but no PersistentVolume yet.
	begun map[types.UID]Beginning
	// undone is the set of claims whose attempts this term has undone.
	undone map[types.UID]undoing
	// outlived is the set of claims that are still cached although their PersistentVolume
	// was created and deleted.
	outlived map[types.UID]bool
	// handles maps the handle by which nodes identify a volume to its claim in begun.
	handles map[Handle]types.UID
	// removed holds the PersistentVolumes whose volumes are gone; the value is whether
	// the object is deleted, too. Until the cache shows the deletion, the library may
	// request it again.
	removed map[types.UID]bool
}

// Beginning is what is needed to undo a claim's attempt.
type Beginning struct {
	Backend   string
	Stamp     stamps.Volume
	Connector cinder.Connector
	// Since is when the journal first had the attempt.
	Since time.Time
	// HandedOver is the volume that nodes may use once the library has the
	// PersistentVolume to save; nil before.
	HandedOver *nodeuse.Volume
	// handle identifies the volume to nodes once it is mapped to a CSI source.
	handle Handle
}

// Handle identifies a volume to kubelet.
type Handle struct{ Driver, VolumeHandle string }

// undoing is when and where a claim's attempt was undone.
type undoing struct {
	backend string
	stamp   stamps.Volume
	at      time.Time
}

// undoneFor is how long the journal remembers that a claim's attempt was undone.
const undoneFor = 15 * time.Minute

// New returns a term's journal.
func New() *Journal {
	return &Journal{
		begun: map[types.UID]Beginning{}, undone: map[types.UID]undoing{},
		handles:  map[Handle]types.UID{},
		outlived: map[types.UID]bool{}, removed: map[types.UID]bool{},
	}
}

// Beginning returns the claim's unfinished attempt.
func (j *Journal) Beginning(claim types.UID) (Beginning, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	begun, ok := j.begun[claim]
	return begun, ok
}

// StampOf returns the stamp of the claim's unfinished attempt.
func (j *Journal) StampOf(claim types.UID) (stamp stamps.Volume, begun bool) {
	b, begun := j.Beginning(claim)
	return b.Stamp, begun
}

// Begin remembers an attempt, and reports whether it is the claim's first.
func (j *Journal) Begin(claim types.UID, b Beginning) (first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	earlier, before := j.begun[claim]
	if b.HandedOver == nil {
		b.HandedOver = earlier.HandedOver
	}
	b.handle, b.Since = earlier.handle, earlier.Since
	if !before {
		b.Since = time.Now()
	}
	j.begun[claim] = b
	// A PersistentVolume saved from now on is not for the undone volume.
	delete(j.undone, claim)
	return !before
}

// Unfinished returns every unfinished attempt.
func (j *Journal) Unfinished() map[types.UID]Beginning {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.begun)
}

// HandOver remembers that the library is saving the claim's PersistentVolume.
func (j *Journal) HandOver(claim types.UID, pv *corev1.PersistentVolume) {
	use := nodeuse.VolumeOf(pv)
	j.mu.Lock()
	defer j.mu.Unlock()
	if begun, ok := j.begun[claim]; ok {
		begun.HandedOver = &use
		j.begun[claim] = begun
	}
}

// ReserveHandle remembers the handle of a claim's volume until its PersistentVolume is
// saved. If another claim has the handle, ReserveHandle returns that claim: the caches do
// not show PersistentVolumes that are being saved.
func (j *Journal) ReserveHandle(claim types.UID, h Handle) (holder types.UID) {
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

// Finish forgets an attempt: its volume is recorded, or nothing is left of it.
func (j *Journal) Finish(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if begun := j.begun[claim]; j.handles[begun.handle] == claim {
		delete(j.handles, begun.handle)
	}
	delete(j.begun, claim)
}

// NoteUndone remembers that a claim has no volume left on a backend and that none was
// recorded.
func (j *Journal) NoteUndone(claim types.UID, begun Beginning) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for uid, u := range j.undone {
		if time.Since(u.at) > undoneFor {
			delete(j.undone, uid)
		}
	}
	j.undone[claim] = undoing{begun.Backend, begun.Stamp, time.Now()}
}

// UndoneOf reports whether a PersistentVolume may name an undone volume, and returns the
// volume's stamp.
func (j *Journal) UndoneOf(pv *corev1.PersistentVolume) (stamp stamps.Volume, undone bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	u, ok := j.undone[objects.MadeFor(pv)]
	return u.stamp, ok && time.Since(u.at) < undoneFor && u.backend == pv.Annotations[objects.AnnotationBackend] && u.stamp.PV == pv.Name
}

// NoteOutlived remembers a claim that the cache still shows after its PersistentVolume is
// gone, usually because the cache lags.
func (j *Journal) NoteOutlived(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outlived[claim] = true
}

// HasOutlived reports whether NoteOutlived remembered the claim.
func (j *Journal) HasOutlived(claim types.UID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.outlived[claim]
}

// Forget drops a claim that is gone, except its unfinished attempt, which is undone
// first.
func (j *Journal) Forget(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.outlived, claim)
}

// NoteRemoved remembers that the volume of a PersistentVolume is gone.
func (j *Journal) NoteRemoved(pv types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.removed[pv] = false
}

// IsRemoved reports whether the volume of a PersistentVolume is gone.
func (j *Journal) IsRemoved(pv types.UID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, removed := j.removed[pv]
	return removed
}

// NoteDeleted remembers that a PersistentVolume whose volume is gone was deleted, unless
// the cache already shows that.
func (j *Journal) NoteDeleted(pv types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, removed := j.removed[pv]; removed {
		j.removed[pv] = true
	}
}

// IsDeleted reports whether NoteDeleted remembered the PersistentVolume.
func (j *Journal) IsDeleted(pv types.UID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.removed[pv]
}

// ObjectGone forgets a PersistentVolume and reports whether its volume had been removed.
func (j *Journal) ObjectGone(pv types.UID) (removed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, removed = j.removed[pv]
	delete(j.removed, pv)
	return removed
}
