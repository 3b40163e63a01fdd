// Package secrets knows who needs the Secrets that volumes share.
package secrets

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Holders knows who needs the Secrets that volumes share. A Secret stays
// as long as an attempt of this term may still record a PersistentVolume that
// names it, and as long as one exists.
type Holders struct {
	mu     sync.Mutex
	byName map[string]*Secret
}

// Secret is one of them.
type Secret struct {
	// Use is held for reading while an attempt writes the Secret, and for
	// writing while it is found out whether anybody needs it: whoever comes
	// meanwhile makes it anew.
	Use sync.RWMutex
	// attempts are the claims that may get a PersistentVolume that names it,
	// left the PersistentVolumes whose volumes are gone. Both are guarded by
	// Holders.mu.
	attempts map[types.UID]bool
	left     map[types.UID]bool
}

// New makes holders of nothing.
func New() *Holders { return &Holders{byName: map[string]*Secret{}} }

// Named returns the entry of a Secret. Names follow from backends and users, so
// that there are few and entries stay.
func (s *Holders) Named(name string) *Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, ok := s.byName[name]
	if !ok {
		entry = &Secret{attempts: map[types.UID]bool{}, left: map[types.UID]bool{}}
		s.byName[name] = entry
	}
	return entry
}

// Hold notes that a claim's attempt may need a Secret.
func (s *Holders) Hold(entry *Secret, claim types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry.attempts[claim] = true
}

// IsHeld reports whether any attempt may need a Secret.
func (s *Holders) IsHeld(entry *Secret) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(entry.attempts) > 0
}

// HeldBy lists the Secrets that a claim's attempt needs.
func (s *Holders) HeldBy(claim types.UID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, entry := range s.byName {
		if entry.attempts[claim] {
			names = append(names, name)
		}
	}
	return names
}

// AttemptOver ends what Hold began: the PersistentVolume is in the API server,
// or there will be none.
func (s *Holders) AttemptOver(claim types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entry := range s.byName {
		delete(entry.attempts, claim)
	}
}

// Leave notes that the volume of a PersistentVolume that names a Secret is gone.
func (s *Holders) Leave(entry *Secret, pv types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry.left[pv] = true
}

// HasLeft reports whether that was noted.
func (s *Holders) HasLeft(entry *Secret, pv types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return entry.left[pv]
}

// Remembered is how many attempts and PersistentVolumes are remembered of a
// Secret.
func (s *Holders) Remembered(entry *Secret) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(entry.attempts) + len(entry.left)
}

// VolumeGone forgets a PersistentVolume.
func (s *Holders) VolumeGone(pv types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entry := range s.byName {
		delete(entry.left, pv)
	}
}
