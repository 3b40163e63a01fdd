package secrets

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// holding records who needs a Secret that volumes share. The Secret stays as long as an
// attempt of this term may still record a PersistentVolume that names it, and as long
// as such an object exists.
type holding struct {
	// use is read-locked while an attempt writes the Secret, and write-locked while the
	// Keeper finds out whether anything needs it. A later attempt then creates it
	// again.
	use sync.RWMutex
	// attempts are the claims that may get a PersistentVolume that names the Secret;
	// left are the PersistentVolumes whose volumes are gone. The Keeper's mutex guards
	// both.
	attempts map[types.UID]bool
	left     map[types.UID]bool
}

// named returns the entry of a Secret. Names are derived from backends and users, so
// there are few, and entries are never removed.
func (k *Keeper) named(name string) *holding {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry, ok := k.byName[name]
	if !ok {
		entry = &holding{attempts: map[types.UID]bool{}, left: map[types.UID]bool{}}
		k.byName[name] = entry
	}
	return entry
}

// hold records that a claim's attempt may need a Secret.
func (k *Keeper) hold(entry *holding, claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry.attempts[claim] = true
}

// isHeld reports whether any attempt may need a Secret.
func (k *Keeper) isHeld(entry *holding) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(entry.attempts) > 0
}

// UsedBy lists the Secrets that a claim's attempt needs.
func (k *Keeper) UsedBy(claim types.UID) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name, entry := range k.byName {
		if entry.attempts[claim] {
			names = append(names, name)
		}
	}
	return names
}

// AttemptOver ends what Keep began: the PersistentVolume is in the API server, or there
// will be none.
func (k *Keeper) AttemptOver(claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, entry := range k.byName {
		delete(entry.attempts, claim)
	}
}

// leave records that the volume of a PersistentVolume that names a Secret is
// gone.
func (k *Keeper) leave(entry *holding, pv types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry.left[pv] = true
}

// hasLeft reports whether leave recorded that.
func (k *Keeper) hasLeft(entry *holding, pv types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return entry.left[pv]
}

// Remembered returns how many attempts and PersistentVolumes are remembered for
// a shared Secret.
func (k *Keeper) Remembered(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if entry := k.byName[name]; entry != nil {
		return len(entry.attempts) + len(entry.left)
	}
	return 0
}

// VolumeGone forgets a PersistentVolume.
func (k *Keeper) VolumeGone(pv types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, entry := range k.byName {
		delete(entry.left, pv)
	}
}
