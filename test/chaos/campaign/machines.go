package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// arrays returns the arrays that machines reach, by volume type.
func arrays() map[string]*drivers.Array {
	return map[string]*drivers.Array{
		plan.Shown:  {Target: "iqn.2026-01.example:shown", Portal: "192.0.2.1:3260"},
		plan.Masked: {Target: "iqn.2026-01.example:masked", Portal: "192.0.2.2:3260", Masks: true},
	}
}

// station is the place of a machine in the cluster, and what the cluster's controllers
// know of it.
type station struct {
	*machine.Machine

	mu sync.Mutex
	// lost is since when it is not Ready; zero if it is.
	lost time.Time
	// off means that it is tainted as out of service, or that its Node is deleted.
	off bool
}

func (s *station) note(lost time.Time, off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost, s.off = lost, off
}

// takesPods reports whether the scheduler would put a pod there.
func (s *station) takesPods() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost.IsZero() && !s.off
}

// isGivenUp reports whether Kubernetes detaches volumes from it by force.
func (s *station) isGivenUp(patience time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.off || !s.lost.IsZero() && time.Since(s.lost) > patience
}

// makeMachines boots all machines.
func (w *world) makeMachines(ctx context.Context) error {
	if !w.options.CSI {
		return nil
	}
	ctx, w.endKeep = context.WithCancel(ctx)
	w.storage = machine.NewStorage(w.arrays[plan.Shown], w.arrays[plan.Masked])
	for n := range plan.Machines {
		name := w.names.machine(n)
		s := &station{Machine: machine.New(machine.Options{
			Name: name, Storage: w.storage, Config: w.suite.Config, Namespace: harness.Namespace,
			Wanted: func() []machine.Volume { return w.pods.On(name) },
			Wrong: func(volume, text string) {
				w.found(checker.Finding{Kind: checker.WrongContent, Object: "volume " + volume, Text: text, VolumeID: volume})
			},
		})}
		if err := s.On(); err != nil {
			return err
		}
		w.machines = append(w.machines, s)
		w.keeping.Go(func() { s.Run(ctx) })
	}
	return nil
}

// disturbMachine does to one machine what the plan says, and reverts it.
func (w *world) disturbMachine(ctx, trouble context.Context, steps []plan.MachineStep) {
	for _, step := range steps {
		if !w.carryOut(ctx, trouble, step.At, step.String(), func() error { return w.befall(ctx, trouble, w.machines[step.Machine], step) }) {
			return
		}
	}
}

func (w *world) befall(ctx, trouble context.Context, s *station, step plan.MachineStep) error {
	switch step.Kind {
	case plan.KillPlugin:
		s.KillPlugin(step.Nth, step.After, step.For)
		return nil
	case plan.RestartKubelet:
		return s.RestartKubelet()
	}
	if !w.awaitStaged(trouble, s) {
		return nil
	}
	w.change(func(c *Counts) { c.Losses++ })
	if step.Kills {
		s.KillPlugin(step.Nth, step.After, step.For/2)
	}
	if step.Kind == plan.CrashMachine {
		s.Off()
	}
	s.Cut()
	if err := w.lose(ctx, s); err != nil {
		return err
	}
	switch step.Kind {
	case plan.LoseMachine:
		sleep(trouble, step.For)
		if step.Restarts {
			if err := s.RestartKubelet(); err != nil {
				return err
			}
		}
	case plan.CrashMachine:
		sleep(trouble, step.For)
	default:
		// The administrator comes later, and makes sure that it is off.
		sleep(trouble, step.For/3)
		s.Off()
		if err := w.giveUp(ctx, s, step.Kind != plan.TaintMachine); err != nil {
			return err
		}
		sleep(trouble, step.For*2/3)
		if step.Kind == plan.ReplaceMachine {
			s.Replace()
		}
	}
	s.Reconnect(step.Late)
	if err := s.On(); err != nil {
		return err
	}
	w.timeline.Note("%s is back", s.Name)
	return w.welcome(ctx, s, step.Kind == plan.TaintMachine)
}

// awaitStaged waits for a while until a machine has some volumes, so that it can lose them,
// and there are others that can get them. It returns false if the faults end first.
func (w *world) awaitStaged(trouble context.Context, s *station) bool {
	const enough, most = 3, 12 * time.Second
	for until := time.Now().Add(most); time.Now().Before(until); {
		staged := 0
		for _, write := range w.writes() {
			if write.Node == s.Name {
				staged++
			}
		}
		if staged >= enough && !slices.ContainsFunc(w.machines, func(other *station) bool { return other != s && !other.takesPods() }) {
			return true
		}
		if !sleep(trouble, lookAgain) {
			return false
		}
	}
	return trouble.Err() == nil
}

// lose does what Kubernetes does with a node that it does not hear of.
func (w *world) lose(ctx context.Context, s *station) error {
	s.note(time.Now(), false)
	err := w.patchNode(ctx, s.Name, map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}}}}, "status")
	if apierrors.IsNotFound(err) {
		return nil // it was lost before it has registered
	}
	return err
}

// giveUp declares a node off: it taints it, or deletes it.
func (w *world) giveUp(ctx context.Context, s *station, forGood bool) error {
	var err error
	if forGood {
		w.timeline.Note("the administrator deletes %s", s.Name)
		if err = destroy(ctx, w.suite.Client.CoreV1().Nodes(), s.Name); err == nil {
			err = destroy(ctx, w.suite.Client.StorageV1().CSINodes(), s.Name)
		}
	} else {
		w.timeline.Note("the administrator taints %s", s.Name)
		err = w.taint(ctx, s, []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.note(time.Now(), true)
	return nil
}

func (w *world) taint(ctx context.Context, s *station, taints []corev1.Taint) error {
	return w.patchNode(ctx, s.Name, map[string]any{"spec": map[string]any{"taints": taints}})
}

// welcome waits until a machine that is back is known to be Ready, and lets it have pods.
func (w *world) welcome(ctx context.Context, s *station, tainted bool) error {
	for {
		node, err := read(ctx, w.suite.Client.CoreV1().Nodes(), s.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && node.Status.NodeInfo.BootID == s.IDs().Boot && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			break
		}
		if !sleep(ctx, lookAgain) {
			return ctx.Err()
		}
	}
	if tainted {
		if err := w.taint(ctx, s, []corev1.Taint{}); err != nil {
			return err
		}
	}
	s.note(time.Time{}, false)
	return nil
}

// writes returns where the kernels of all machines write.
func (w *world) writes() []checker.Write {
	if w.storage == nil {
		return nil
	}
	var machines []*machine.Machine
	for _, s := range w.machines {
		machines = append(machines, s.Machine)
	}
	var all []checker.Write
	for _, write := range w.storage.Writes(machines) {
		all = append(all, checker.Write(write))
	}
	return all
}

// addMachines adds to a state what is on machines, and what they say.
func (w *world) addMachines(ctx context.Context, s *checker.State) error {
	for n, m := range w.machines {
		s.Machines = append(s.Machines, m.Name)
		report, err := w.reportOf(ctx, w.names.machine(n))
		if err != nil {
			return err
		}
		s.Reports = append(s.Reports, report)
	}
	s.Writes = w.writes()
	for _, p := range w.allWorkloads() {
		if pod, runs := p.pod(w); pod.Node != "" {
			pod.Runs = runs
			s.Pods = append(s.Pods, pod)
		}
	}
	return nil
}

// reportOf returns what a node says.
func (w *world) reportOf(ctx context.Context, node string) (checker.Report, error) {
	r := checker.Report{Node: node}
	_, err := read(ctx, w.suite.Client.CoreV1().Nodes(), node)
	r.There = err == nil
	if err := unlessGone(err); err != nil {
		return r, err
	}
	lease, err := read(ctx, w.suite.Client.CoordinationV1().Leases(harness.Namespace), staged.LeaseName(node))
	if err != nil {
		return r, unlessGone(err)
	}
	for _, text := range staged.Of(lease).Volumes {
		if handle, err := wire.ParseHandle(text); err == nil {
			r.Volumes = append(r.Volumes, handle.ID)
		}
	}
	return r, nil
}

// noteHarm finds what machines did that loses somebody's data.
func (w *world) noteHarm() {
	for _, s := range w.machines {
		for _, text := range s.Harm() {
			w.found(checker.Finding{Kind: checker.WrongContent, Object: "node " + s.Name, Text: text})
		}
	}
}

// sweepMachines removes what machines left in the cluster. They have ended.
func (w *world) sweepMachines(ctx context.Context) error {
	var errs []error
	for n := range w.machines {
		name := w.names.machine(n)
		errs = append(errs,
			destroy(ctx, w.suite.Client.CoreV1().Nodes(), name),
			destroy(ctx, w.suite.Client.StorageV1().CSINodes(), name),
			destroy(ctx, w.suite.Client.CoordinationV1().Leases(harness.Namespace), staged.LeaseName(name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("machines: %w", err)
	}
	return nil
}
