package books

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// Snapshots knows how many VolumeSnapshots and VolumeGroupSnapshots of each kind were created,
// and whose deletion was requested.
type Snapshots struct {
	mu    sync.Mutex
	taken map[plan.SnapshotKind]int
	asked map[types.UID]bool
}

// NewSnapshots makes an empty book.
func NewSnapshots() *Snapshots {
	return &Snapshots{taken: map[plan.SnapshotKind]int{}, asked: map[types.UID]bool{}}
}

// NoteTaken counts an object.
func (b *Snapshots) NoteTaken(as plan.SnapshotKind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken[as]++
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

// Total returns how many were taken.
func (b *Snapshots) Total(as plan.SnapshotKind) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken[as]
}
