package books

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Snapshots knows which VolumeSnapshots were created, and whose deletion was
// requested.
type Snapshots struct {
	mu    sync.Mutex
	taken int
	asked map[types.UID]bool
}

// NewSnapshots makes an empty book.
func NewSnapshots() *Snapshots { return &Snapshots{asked: map[types.UID]bool{}} }

// NoteTaken counts a VolumeSnapshot.
func (b *Snapshots) NoteTaken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken++
}

// RecordDeletionRequest notes that a deletion is requested. It must be called before the
// request.
func (b *Snapshots) RecordDeletionRequest(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[uid] = true
}

// DeletionRequested reports whether a deletion was requested.
func (b *Snapshots) DeletionRequested(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[uid]
}

// Total counts the VolumeSnapshots.
func (b *Snapshots) Total() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}
