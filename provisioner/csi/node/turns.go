package node

import (
	"context"
	"runtime"

	"google.golang.org/grpc/status"
)

// turns has room for the volumes that are staged at once. On a small node, more would slow
// each other down until the node's programs take too long, and all begin again.
type turns chan struct{}

func newTurns() turns { return make(turns, max(4, 2*runtime.GOMAXPROCS(0))) }

// take waits until a volume may be staged. A caller that gives up meanwhile has left
// nothing.
func (t turns) take(ctx context.Context) (end func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}
