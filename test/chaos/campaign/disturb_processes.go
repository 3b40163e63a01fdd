package campaign

import (
	"context"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// disturbProcesses kills, pauses, stops and rolls replicas, one after the
// other.
func (w *world) disturbProcesses(ctx, trouble context.Context) {
	for _, step := range w.plan.Processes {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s", step)
		switch step.Kind {
		case plan.KillLeader, plan.KillFollower:
			s := w.chosen(trouble, step)
			s.kill()
			w.change(func(c *Counts) { c.Kills++ })
			sleep(trouble, step.For)
			s.startUntilReady(ctx)
		case plan.KillAll:
			for _, s := range w.slots {
				s.kill()
			}
			w.change(func(c *Counts) { c.Kills += len(w.slots) })
			sleep(trouble, step.For)
			_ = w.startReplicas(ctx)
		case plan.PauseLeader, plan.PauseFollower:
			w.chosen(trouble, step).pause(trouble, step.For)
			w.change(func(c *Counts) { c.Pauses++ })
		case plan.StopLeader:
			s := w.leader(trouble, step.Pick)
			s.stop(ctx)
			w.change(func(c *Counts) { c.Rolls++ })
			s.startUntilReady(ctx)
		case plan.Roll:
			for _, s := range w.slots {
				s.stop(ctx)
				s.startUntilReady(ctx)
			}
			w.change(func(c *Counts) { c.Rolls += len(w.slots) })
		}
	}
}

// chosen returns the slot that a step applies to.
func (w *world) chosen(ctx context.Context, step plan.ProcessStep) *slot {
	if step.Kind == plan.KillFollower || step.Kind == plan.PauseFollower {
		return w.follower(ctx, step.Pick)
	}
	return w.leader(ctx, step.Pick)
}

// disturbServer kills and pauses the API server. It is back when this returns.
func (w *world) disturbServer(ctx, trouble context.Context) {
	for _, step := range w.plan.Server {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s", step)
		w.change(func(c *Counts) { c.ServerFailures++ })
		switch step.Kind {
		case plan.KillServer:
			if err := w.suite.ControlPlane().KillAPIServer(); err != nil {
				w.timeline.Say("%s", err)
			}
			sleep(trouble, step.For)
			w.restartServer(ctx)
			if err := w.watch.start(ctx); err != nil && ctx.Err() == nil {
				w.timeline.Say("%s", err)
			}
		case plan.PauseServer:
			if err := w.suite.ControlPlane().PauseAPIServer(trouble); err != nil {
				w.timeline.Say("%s", err)
			}
			sleep(trouble, step.For)
			if err := w.suite.ControlPlane().ResumeAPIServer(); err != nil {
				w.timeline.Say("%s", err)
			}
		}
		w.timeline.Note("the API server is back")
	}
}

// restartServer starts the API server again; a campaign needs it.
func (w *world) restartServer(ctx context.Context) {
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		err := w.suite.ControlPlane().RestartAPIServer(bounded)
		cancel()
		if err == nil {
			return
		}
		w.timeline.Say("%s", firstLine(err.Error()))
		sleep(ctx, time.Second)
	}
}
