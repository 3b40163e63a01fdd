package snapshot

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	firstPause   = 5 * time.Second
	longestPause = 10 * time.Minute
)

// pauses keep groups from being attempted too often: an attempt in vain takes snapshots only
// to remove them, or stops pods, and the csi-snapshotter repeats it soon.
type pauses struct {
	mu sync.Mutex
	// of has them by the UIDs of the groups.
	of map[types.UID]pause
}

// pause follows an attempt in vain.
type pause struct {
	until  time.Time
	length time.Duration
	why    error
}

func newPauses() *pauses { return &pauses{of: map[types.UID]pause{}} }

// why returns the error of a group's last attempt as long as the group pauses.
func (p *pauses) why(group types.UID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.of[group]; time.Now().Before(last.until) {
		return last.why
	}
	return nil
}

// begin begins a pause, longer each time, and returns why.
func (p *pauses) begin(group types.UID, why error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	length := min(max(2*p.of[group].length, firstPause), longestPause)
	p.of[group] = pause{time.Now().Add(length), length, why}
	return why
}

// end forgets a group that was taken, or is gone.
func (p *pauses) end(group types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, group)
}
