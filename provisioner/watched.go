package provisioner

import (
	"context"
	"fmt"
)

// watch makes liveness notice if work on an object does not end.
func (p *Provisioner) watch(ctx context.Context, format string, arguments ...any) (watched context.Context, end func()) {
	task := p.Monitor.Begin(fmt.Sprintf(format, arguments...), p.LongestWork)
	return task.In(ctx), task.End
}

// WatchTurns watches those that wait for a worker, until the context ends. If
// nobody has a worker, somebody must get one.
func (p *Provisioner) WatchTurns(ctx context.Context) {
	go p.Monitor.Follow(ctx, "the queue of volumes to delete", p.LongestWork, p.volumeTurns.Progress)
	go p.Monitor.Follow(ctx, "the queue of follow-ups", p.LongestWork, p.followup.turns.Progress)
	p.Monitor.Follow(ctx, "the queue of claims", p.LongestWork, p.claimTurns.Progress)
}
