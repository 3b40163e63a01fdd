// Package books keeps what a campaign did, for the checks at its end.
package books

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Claims knows every claim that was created, and which deletions were
// requested.
type Claims struct {
	mu    sync.Mutex
	made  []types.UID
	asked map[types.UID]time.Time
}

// NewClaims makes an empty book.
func NewClaims() *Claims { return &Claims{asked: map[types.UID]time.Time{}} }

// NoteMade notes a claim that was created.
func (b *Claims) NoteMade(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, uid)
}

// RecordDeletionRequest notes that a deletion is requested. It must be called before the
// request.
func (b *Claims) RecordDeletionRequest(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked[uid].IsZero() {
		b.asked[uid] = time.Now()
	}
}

// DeletionRequested reports whether a claim's deletion was requested.
func (b *Claims) DeletionRequested(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.asked[uid].IsZero()
}

// DeletionRequestedAt returns when a claim's deletion was first requested; zero if it was
// not.
func (b *Claims) DeletionRequestedAt(uid types.UID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[uid]
}

// Totals counts the claims, and the requested deletions.
func (b *Claims) Totals() (made, asked int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.made), len(b.asked)
}

// Pick picks one of the claims created so far; empty when there is none.
func (b *Claims) Pick(drawn int) types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.made) == 0 {
		return ""
	}
	// Things happen to the newest claims.
	newest := b.made[max(0, len(b.made)-20):]
	return newest[drawn%len(newest)]
}
