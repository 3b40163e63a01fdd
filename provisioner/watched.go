package provisioner

import (
	"context"
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/provisioner/liveness"
)

type taskKey struct{}

// watch makes liveness notice if work on an object does not end.
func (p *Provisioner) watch(ctx context.Context, format string, arguments ...any) (watched context.Context, end func()) {
	task := p.Monitor.Begin(fmt.Sprintf(format, arguments...), p.LongestWork)
	return context.WithValue(ctx, taskKey{}, task), task.End
}

// waits stops the watch over the work of a context while it waits for a turn at
// a backend: how long depends on the policy's limits and on who else waits.
func waits(ctx context.Context) (wait func() (over func())) {
	if task, ok := ctx.Value(taskKey{}).(*liveness.Task); ok {
		return task.Pause
	}
	return nil
}

// WatchTurns watches those that wait for a worker, until the context ends. If
// nobody has a worker, somebody must get one.
func (p *Provisioner) WatchTurns(ctx context.Context) {
	go p.Monitor.Follow(ctx, "the queue of volumes to delete", p.LongestWork, p.volumeTurns.Progress)
	go p.Monitor.Follow(ctx, "the queue of follow-ups", p.LongestWork, p.followup.turns.Progress)
	p.Monitor.Follow(ctx, "the queue of claims", p.LongestWork, p.claimTurns.Progress)
}
