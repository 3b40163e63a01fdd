package books

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Attachments knows the VolumeAttachments of pods: which were seen attached, and
// which deletions were requested.
type Attachments struct {
	mu       sync.Mutex
	pods     int
	attached map[types.UID]bool
	asked    map[types.UID]bool
}

// NewAttachments makes an empty book.
func NewAttachments() *Attachments {
	return &Attachments{attached: map[types.UID]bool{}, asked: map[types.UID]bool{}}
}

// NotePod counts a pod.
func (b *Attachments) NotePod() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods++
}

// NoteAttached notes a VolumeAttachment that was seen attached.
func (b *Attachments) NoteAttached(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attached[uid] = true
}

// RecordDeletionRequest notes that a deletion is requested. It must be called before the
// request.
func (b *Attachments) RecordDeletionRequest(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[uid] = true
}

// DeletionRequested reports whether a deletion was requested.
func (b *Attachments) DeletionRequested(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[uid]
}

// Totals counts the pods, and the VolumeAttachments that were seen attached.
func (b *Attachments) Totals() (pods, attached int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pods, len(b.attached)
}
