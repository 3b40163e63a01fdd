// Package campaign carries out a plan on a real control plane and a simulated
// Cinder, watches how the program reacts, and judges the outcome.
package campaign

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/evidence"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// Options are common to all seeds.
type Options struct {
	// Duration and ClaimEvery size the plan.
	Duration   time.Duration
	ClaimEvery time.Duration
	Hostile    bool
	Snapshots  bool
	CSI, Calm  bool
	// Lag is how old the state is that Cinder's reads show, as the replicas are told.
	Lag time.Duration
	// Settle bounds how long it may take, after the faults end, until nothing is
	// left to do.
	Settle time.Duration
	// Program replaces the suite's build.
	Program string
	// Previous is an older build. If it is set, each replica starts with it, and a replica
	// that is started again runs the other build, until the faults end.
	Previous string
	// Log receives progress messages.
	Log io.Writer
}

// Plan draws what the seed does.
func (o Options) Plan(seed uint64) plan.Plan {
	return plan.Make(seed, plan.Options{Duration: o.Duration, ClaimEvery: o.ClaimEvery, Hostile: o.Hostile, Snapshots: o.Snapshots, OnlySingle: o.Previous != "", CSI: o.CSI, Calm: o.Calm})
}

// Result is the outcome of one seed.
type Result struct {
	Seed     uint64
	Took     time.Duration
	Settled  time.Duration
	Counts   Counts
	Findings []checker.Finding
	Evidence evidence.Evidence
}

// Counts are the numbers of things done.
type Counts struct {
	Claims, Bound, Deleted int
	// Snapshots are the VolumeSnapshots that are no backups, Groups the VolumeGroupSnapshots,
	// Together those of the latter of which all snapshots were taken.
	Snapshots, Backups, Groups, Together int
	Kills, Pauses, Rolls                 int
	ServerFailures                       int
	Cuts, Faults                         int
	// Flaps are the failing phases of flapping backends, Full the creates that
	// Cinder's own quotas refused.
	Flaps, Full int
	// Flips are changes of a reclaim policy, Removals the PersistentVolumes that
	// were deleted by hand, and Unbound how often the program reported that one
	// was deleted before it was bound.
	Flips, Removals, Unbound int
	// Retypes are the volumes whose type the command has changed, Grows the requests
	// for larger volumes that the API server took.
	Retypes, Grows int
	// Places is how often a backend led elsewhere, NodeUses how many volumes
	// nodes used.
	Places, NodeUses int
	// Lies are the answers that were replaced by hostile ones, Attacks how many
	// kinds of them there were.
	Lies, Attacks int
	// Pods are those whose claims are in mode csi, Attached how often one of their
	// volumes was attached to a node.
	Pods, Attached int
	// Staged is how often machines staged a volume, Losses how often a machine was lost,
	// and Forced how often a volume was detached from one that had not unstaged it.
	Staged, Losses, Forced int
	// Sealed is how many volumes machines encrypted.
	Sealed int
	// Rebound is how often a volume went from one claim to another.
	Rebound int
	// PeakMemory is the most that a replica took, in bytes; 0 if unknown.
	PeakMemory int64
}

// Failed reports whether anything is wrong.
func (r Result) Failed() bool { return len(r.Findings) > 0 }

// Run carries out one seed. Everything that it started and made is gone when it
// returns. An error means that the campaign itself could not continue.
func Run(ctx context.Context, suite *harness.Suite, options Options, seed uint64) (result Result, err error) {
	w, err := newWorld(ctx, suite, options, seed)
	if err != nil {
		return Result{}, fmt.Errorf("seed %d: %w", seed, err)
	}
	defer w.close()
	if err := w.trouble(ctx); err != nil {
		return Result{}, fmt.Errorf("seed %d: %w", seed, err)
	}
	settled, err := w.end(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("seed %d: %w", seed, err)
	}
	result = Result{
		Seed:     seed,
		Took:     time.Since(w.started),
		Settled:  settled,
		Counts:   w.count(),
		Findings: w.findings(),
	}
	if result.Failed() {
		result.Evidence = evidence.Collect(result.Findings, w.sources())
	}
	return result, nil
}

// sources returns what helps to understand findings, while it is still there.
func (w *world) sources() evidence.Sources {
	s := evidence.Sources{Timeline: w.timeline.All(), Journal: w.sim.Journal(), Logs: map[string]string{}, Volume: w.sim.Volume}
	for _, m := range w.machines {
		s.Logs[m.Name] = m.Log()
	}
	for _, slot := range w.slots {
		slot.mu.Lock()
		for _, r := range slot.past {
			s.Logs[r.name] = r.Log()
		}
		slot.mu.Unlock()
		if slot.attacher != nil {
			s.Logs[fmt.Sprintf("attacher %d", slot.number)] = slot.attacher.Log()
		}
	}
	return s
}

// trouble runs all actors for as long as the plan says, together with the
// watch. Each actor reverts its own faults.
func (w *world) trouble(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, w.plan.Duration)
	defer cancel()
	var actors sync.WaitGroup
	for name, steps := range w.plan.Claims {
		t := newTenant(w, name)
		actors.Go(func() { t.run(ctx, bounded, steps) })
		actors.Go(func() { w.takeSnapshots(ctx, bounded, name) })
		actors.Go(func() { w.growClaims(ctx, bounded, name) })
	}
	actors.Go(func() { w.disturbProcesses(ctx, bounded) })
	actors.Go(func() { w.disturbServer(ctx, bounded) })
	actors.Go(func() { w.administer(ctx, bounded) })
	for _, step := range w.plan.Cinder {
		actors.Go(func() { w.disturbCinder(bounded, step) })
	}
	actors.Go(func() { w.disturbPlaces(ctx, bounded) })
	for _, step := range w.plan.Hostile {
		actors.Go(func() { w.beHostile(bounded, step) })
	}
	for _, step := range w.plan.Volumes {
		actors.Go(func() { w.disturbVolume(ctx, bounded, step) })
	}
	for _, step := range w.plan.Pods {
		actors.Go(func() { w.runPod(ctx, bounded, step) })
	}
	for _, step := range w.plan.Movers {
		actors.Go(func() { w.runMover(ctx, bounded, step) })
	}
	for _, steps := range w.plan.Machines {
		actors.Go(func() { w.disturbMachine(ctx, bounded, steps) })
	}
	for _, step := range w.plan.Workloads {
		actors.Go(func() { w.runWorkload(ctx, bounded, step) })
	}
	for i, step := range w.plan.Nodes {
		actors.Go(func() { w.disturbNode(ctx, bounded, i, step) })
	}
	for _, link := range w.plan.Links {
		actors.Go(func() { w.disturbLink(bounded, link) })
	}
	actors.Wait()
	return ctx.Err()
}

// until waits for a time in the plan; false means that the faults are over.
func (w *world) until(ctx context.Context, at time.Duration) bool {
	return sleep(ctx, time.Until(w.started.Add(at)))
}

// carryOut does a step of the plan at its time, and reports that it could not be done. It
// returns false if the faults are over.
func (w *world) carryOut(ctx, trouble context.Context, at time.Duration, what string, do func() error) bool {
	if !w.until(trouble, at) {
		return false
	}
	w.timeline.Note("%s", what)
	if err := do(); err != nil && ctx.Err() == nil {
		w.timeline.Say("%s: %s", what, err)
	}
	return true
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, duration time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
