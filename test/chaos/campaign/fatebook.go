package campaign

import (
	"maps"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
)

// fateBook knows what the campaign did to PersistentVolumes by hand; each is
// chosen for only one step.
type fateBook struct {
	mu     sync.Mutex
	chosen map[string]bool
	fates  map[string]checker.Fate
}

func newFateBook() *fateBook {
	return &fateBook{chosen: map[string]bool{}, fates: map[string]checker.Fate{}}
}

// choose returns true for the first step that chooses a PersistentVolume.
func (b *fateBook) choose(pv string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.chosen[pv] {
		return false
	}
	b.chosen[pv] = true
	return true
}

// note updates what is known about a PersistentVolume.
func (b *fateBook) note(pv string, change func(*checker.Fate)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fate := b.fates[pv]
	change(&fate)
	b.fates[pv] = fate
}

// noteKeeping must be called before a request for the reclaim policy Retain, and again
// when it has failed.
func (b *fateBook) noteKeeping(pv string, underWay bool) {
	b.note(pv, func(f *checker.Fate) { f.Keeping = underWay })
}

// noteKept must be called after the answer of the API server.
func (b *fateBook) noteKept(pv checker.PV) {
	b.note(pv.Name, func(f *checker.Fate) { f.PV, f.Kept, f.Freed, f.Keeping = pv, time.Now(), false, false })
}

// noteFreed must be called before the request.
func (b *fateBook) noteFreed(pv checker.PV) {
	b.note(pv.Name, func(f *checker.Fate) { f.PV, f.Freed = pv, true })
}

// noteRemoved must be called before the request.
func (b *fateBook) noteRemoved(pv checker.PV) {
	b.note(pv.Name, func(f *checker.Fate) { f.PV, f.Removed = pv, true })
}

// noteSeen is called with what the watch shows of PersistentVolumes.
func (b *fateBook) noteSeen(pvs []checker.PV) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pv := range pvs {
		if fate, known := b.fates[pv.Name]; known {
			b.fates[pv.Name] = fate.SeenWith(pv)
		}
	}
}

func (b *fateBook) all() map[string]checker.Fate {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.fates)
}
