package campaign

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// claimBook knows every claim that was created, and which deletions were
// requested.
type claimBook struct {
	mu    sync.Mutex
	made  []types.UID
	asked map[types.UID]time.Time
}

func newClaimBook() *claimBook { return &claimBook{asked: map[types.UID]time.Time{}} }

func (b *claimBook) noteMade(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, uid)
}

// noteAsked must be called before the delete request.
func (b *claimBook) noteAsked(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked[uid].IsZero() {
		b.asked[uid] = time.Now()
	}
}

func (b *claimBook) isAsked(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.asked[uid].IsZero()
}

// askedAt is when a claim's deletion was first requested; zero if it was not.
func (b *claimBook) askedAt(uid types.UID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[uid]
}

func (b *claimBook) totals() (made, asked int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.made), len(b.asked)
}

// pick picks one of the claims created so far; empty when there is none.
func (b *claimBook) pick(drawn int) types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.made) == 0 {
		return ""
	}
	// Things happen to the newest claims.
	newest := b.made[max(0, len(b.made)-20):]
	return newest[drawn%len(newest)]
}
