package books

import (
	"maps"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
)

// Fates knows what the campaign did to PersistentVolumes by hand; each is
// chosen for only one step.
type Fates struct {
	mu     sync.Mutex
	chosen map[string]bool
	fates  map[string]checker.Fate
}

// NewFates makes an empty book.
func NewFates() *Fates {
	return &Fates{chosen: map[string]bool{}, fates: map[string]checker.Fate{}}
}

// Choose returns true for the first step that chooses a PersistentVolume.
func (b *Fates) Choose(pv string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.chosen[pv] {
		return false
	}
	b.chosen[pv] = true
	return true
}

// Note updates what is known about a PersistentVolume.
func (b *Fates) Note(pv string, change func(*checker.Fate)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fate := b.fates[pv]
	change(&fate)
	b.fates[pv] = fate
}

// NoteKeeping must be called before a request for the reclaim policy Retain, and again
// when it has failed.
func (b *Fates) NoteKeeping(pv string, underWay bool) {
	b.Note(pv, func(f *checker.Fate) { f.Keeping = underWay })
}

// NoteKept notes that a PersistentVolume has the reclaim policy Retain. It must
// be called after the answer of the API server.
func (b *Fates) NoteKept(pv checker.PV) {
	b.Note(pv.Name, func(f *checker.Fate) { f.PV, f.Kept, f.Freed, f.Keeping = pv, time.Now(), false, false })
}

// NoteFreed must be called before the request.
func (b *Fates) NoteFreed(pv checker.PV) {
	b.Note(pv.Name, func(f *checker.Fate) { f.PV, f.Freed = pv, true })
}

// NoteRemoved must be called before the request.
func (b *Fates) NoteRemoved(pv checker.PV) {
	b.Note(pv.Name, func(f *checker.Fate) { f.PV, f.Removed = pv, true })
}

// NoteSeen notes which PersistentVolumes the watch shows.
func (b *Fates) NoteSeen(pvs []checker.PV) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pv := range pvs {
		if fate, known := b.fates[pv.Name]; known {
			b.fates[pv.Name] = fate.SeenWith(pv)
		}
	}
}

// All returns the fates by PersistentVolume.
func (b *Fates) All() map[string]checker.Fate {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.fates)
}
