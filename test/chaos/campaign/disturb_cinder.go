package campaign

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// disturbCinder carries out one step at Cinder and reverts it. Steps overlap.
func (w *world) disturbCinder(trouble context.Context, step plan.CinderStep) {
	if !w.until(trouble, step.At) {
		return
	}
	w.timeline.Note("Cinder: %s", step)
	switch step.Kind {
	case plan.InjectFault:
		fault := step.Fault
		fault.Match = w.at(step.Where)
		injection := w.sim.Inject(fault)
		sleep(trouble, step.For)
		injection.Remove()
	case plan.Flap:
		w.flap(trouble, step)
	case plan.FillQuota:
		w.fillQuota(trouble, step)
	case plan.ExpireTokens:
		w.sim.ExpireTokens()
	case plan.StopServices:
		w.sim.StopVolumeServices()
		sleep(trouble, step.For)
		w.sim.StartVolumeServices()
	case plan.FailVolumes:
		w.failVolumes(trouble, step)
	}
}

// flap makes a backend alternate between failing and answering.
func (w *world) flap(trouble context.Context, step plan.CinderStep) {
	random := rand.New(rand.NewPCG(step.Seed, 0))
	turn := func() bool {
		return sleep(trouble, plan.ShortestTurn+time.Duration(random.Int64N(int64(plan.LongestTurn-plan.ShortestTurn))))
	}
	fault := step.Fault
	fault.Match = w.at(step.Where)
	for deadline := time.Now().Add(step.For); time.Now().Before(deadline); {
		injection := w.sim.Inject(fault)
		w.change(func(c *Counts) { c.Flaps++ })
		goOn := turn()
		injection.Remove()
		if !goOn || !turn() {
			return
		}
	}
}

// fillQuota leaves room for only a few volumes in a backend's project.
func (w *world) fillQuota(trouble context.Context, step plan.CinderStep) {
	project, there := w.project(step.Where), 0
	for _, v := range w.sim.Volumes() {
		if v.Project == project {
			there++
		}
	}
	w.sim.SetQuota(project, map[string]int{"volumes": there + step.Room})
	sleep(trouble, step.For)
	w.sim.SetQuota(project, map[string]int{"volumes": -1})
}

// at matches requests to one backend or to Keystone.
func (w *world) at(where string) func(cindersim.Request) bool {
	switch where {
	case "":
		return nil
	case plan.Keystone:
		return func(r cindersim.Request) bool { return r.Endpoint == cindersim.Keystone }
	case plan.Lab:
		return func(r cindersim.Request) bool { return r.Endpoint == cindersim.Noauth }
	}
	project := w.project(where)
	return func(r cindersim.Request) bool { return r.Endpoint == cindersim.Cinder && r.Project == project }
}

// failVolumes moves some of our volumes from available to error, one poll after
// the other. None of them is in use or about to be: for a claim that has its
// volume, that would be damage by the campaign, not by the program. Those of mode csi
// are available whenever no pod uses them.
func (w *world) failVolumes(trouble context.Context, step plan.CinderStep) {
	const some = 0.3
	random := rand.New(rand.NewPCG(step.Seed, 0))
	project := ""
	if step.Where != "" {
		project = w.project(step.Where)
	}
	for deadline := time.Now().Add(step.For); time.Now().Before(deadline) && sleep(trouble, 40*time.Millisecond); {
		for _, v := range w.sim.Volumes() {
			if v.Status == "available" && w.isStamped(v) && !checker.IsOnNodes(v) && (project == "" || project == v.Project) && random.Float64() < some &&
				w.sim.ReplaceVolumeStatus(v.ID, "available", "error") {
				w.timeline.Note("Cinder: volume %s (%s) goes from available to error", v.ID, v.Name)
			}
		}
	}
}

// isStamped reports whether a volume is ours.
func (w *world) isStamped(v cindersim.Volume) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, foreign := w.foreign[v.ID]
	return !foreign && v.Metadata[checker.StampCluster] == w.names.cluster()
}
