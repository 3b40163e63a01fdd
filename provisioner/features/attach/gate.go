package attach

import (
	"sync"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Gate lets one party at a time decide to which nodes a volume is attached: it is being
// attached, or its owed detachment is being done, or it is frozen and must stay where it is.
type Gate struct {
	mu     sync.Mutex
	closed map[wire.Handle]bool
}

// NewGate makes the Gate of one term.
func NewGate() *Gate { return &Gate{closed: map[wire.Handle]bool{}} }

// Close keeps others away from a volume until Open. It returns false if somebody else does.
func (g *Gate) Close(volume wire.Handle) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed[volume] {
		return false
	}
	g.closed[volume] = true
	return true
}

// Open ends what Close began.
func (g *Gate) Open(volume wire.Handle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.closed, volume)
}
