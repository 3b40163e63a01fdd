package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// throughput measures claims made at once, and deleted at once, against the limit.
func throughput(ctx context.Context, suite *harness.Suite, o options, r *results, out io.Writer) error {
	fmt.Fprintf(out, "%d claims at once, %d times; Cinder takes %s to available and %s per request; controller-manager at %d QPS; %d replicas\n\n",
		o.claims, o.rounds, o.createDelay, o.latency, o.bindQPS, o.replicas)
	limit, err := newLimit(ctx, suite, o)
	if err != nil {
		return err
	}
	defer limit.close()
	program, err := newProgram(ctx, suite, o)
	if err != nil {
		return err
	}
	defer program.close()
	log := &auditLog{path: suite.ControlPlane().AuditPath()}
	// They take turns, so that a change of the machine's load affects both.
	for round := range o.rounds {
		for _, w := range []*way{limit, program} {
			if err := w.round(ctx, log, round, o.claims); err != nil {
				return fmt.Errorf("%s: %w", w.title, err)
			}
		}
	}
	comparison{limit, program}.report(r, out)
	if o.svg == "" {
		return nil
	}
	drawn := throughputChart(limit, program)
	if o.pods != "" {
		waits, err := readPods(o.pods)
		if err != nil {
			return err
		}
		drawn.panels = append(drawn.panels, podsPanel(waits))
	}
	file, err := os.Create(o.svg)
	if err != nil {
		return err
	}
	if err := drawn.write(file); err != nil {
		return err
	}
	return file.Close()
}

// way is one way of provisioning, with what was measured.
type way struct {
	title string
	party party
	scene *scene
	// make and remove serve claims; nil for the program, which does it by itself.
	make, remove func(context.Context, []*corev1.PersistentVolumeClaim) error
	// replicas are the program's; the first one leads.
	replicas []*harness.Replica

	rounds        []roundTimes
	lives         []life
	made, deleted effort
	// resident is the memory of the replicas after the last claims were made, in MiB.
	resident []float64
}

// roundTimes are how long it took until the last claim of a round had taken a step.
type roundTimes struct {
	// asked, recorded and bound begin with the first claim, gone with their deletion.
	asked, recorded, bound, gone time.Duration
}

// effort is what making claims, or deleting them, took in all rounds.
type effort struct {
	claims int
	// cinder counts the requests to Cinder, lists the listings among them.
	cinder, lists int
	// kubernetes counts the way's own requests to the API server, controllers those of
	// kube-controller-manager.
	kubernetes, controllers requests
	// cpu is the processor time of each replica, in seconds.
	cpu []float64
}

func newLimit(ctx context.Context, suite *harness.Suite, o options) (*way, error) {
	s, err := newScene(ctx, suite, o, "limit")
	if err != nil {
		return nil, err
	}
	l, err := newLoop(s)
	if err != nil {
		s.sim.Close()
		return nil, err
	}
	return newWay(way{title: "bare loop (limit)", party: theLoop, scene: s, make: l.make, remove: l.remove}), nil
}

// newProgram starts the provisioner itself, with default flags.
func newProgram(ctx context.Context, suite *harness.Suite, o options) (*way, error) {
	s, err := newScene(ctx, suite, o, "program")
	if err != nil {
		return nil, err
	}
	if o.claimPolicy {
		if _, err := suite.NameClaims(ctx, s.provisioner, s.class); err != nil {
			return nil, err
		}
	}
	w := newWay(way{title: "standalone-cinder", party: theProgram, scene: s})
	for range o.replicas {
		replica, err := suite.StartReplica(ctx, harness.ReplicaOptions{Policy: policyFor(s), Provisioner: s.provisioner})
		if err != nil {
			w.close()
			return nil, err
		}
		w.replicas = append(w.replicas, replica)
		// Later replicas can only follow.
		if len(w.replicas) > 1 {
			continue
		}
		if err := harness.Eventually(ctx, func() (string, error) {
			if replica.Leads(ctx) {
				return "", nil
			}
			return "the replica does not lead", nil
		}); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

func newWay(w way) *way {
	w.made = effort{kubernetes: requests{}, controllers: requests{}}
	w.deleted = effort{kubernetes: requests{}, controllers: requests{}}
	return &w
}

func (w *way) close() {
	for _, replica := range w.replicas {
		replica.Kill()
	}
	w.scene.sim.Close()
}

// round makes claims, deletes them, and notes what both took.
func (w *way) round(ctx context.Context, log *auditLog, number, n int) error {
	s, suite, all := w.scene, w.scene.suite, (number+1)*n
	var claims []*corev1.PersistentVolumeClaim
	var times roundTimes
	began := time.Now()
	err := w.measured(ctx, log, &w.made, n, func() (err error) {
		if claims, err = s.createClaims(ctx, fmt.Sprintf("data-%d", number), n); err != nil {
			return err
		}
		if w.make != nil {
			if err := w.make(ctx, claims); err != nil {
				return err
			}
		}
		if err := s.observer.wait(ctx, recorded, all); err != nil {
			return err
		}
		if err := s.observer.wait(ctx, bound, all); err != nil {
			return err
		}
		return harness.Eventually(ctx, s.inUse)
	})
	if err != nil {
		return err
	}
	w.resident = nil
	for _, replica := range w.replicas {
		w.resident = append(w.resident, float64(residentMiB(replica.PID())))
	}

	var uids []types.UID
	removing := time.Now()
	for _, claim := range claims {
		uids = append(uids, claim.UID)
		s.observer.note(claim.UID, removed, removing)
	}
	err = w.measured(ctx, log, &w.deleted, n, func() error {
		if err := suite.DeleteClaims(ctx, s.namespace); err != nil {
			return err
		}
		if w.remove != nil {
			if err := w.remove(ctx, claims); err != nil {
				return err
			}
		}
		return s.observer.wait(ctx, gone, all)
	})
	lives := s.observer.of(uids)
	for _, l := range lives {
		times.asked = max(times.asked, l[asked].Sub(began))
		times.recorded = max(times.recorded, l[recorded].Sub(began))
		times.bound = max(times.bound, l[bound].Sub(began))
		times.gone = max(times.gone, l.took(removed, gone))
	}
	w.rounds, w.lives = append(w.rounds, times), append(w.lives, lives...)
	return err
}

// measured adds what some work took, with what follows from it, to an effort.
func (w *way) measured(ctx context.Context, log *auditLog, e *effort, n int, work func() error) error {
	if _, err := log.next(); err != nil {
		return err
	}
	w.scene.sim.ResetJournal()
	before := w.cpu()
	if err := work(); err != nil {
		return err
	}
	counted, err := log.settled(ctx)
	if err != nil {
		return err
	}
	e.kubernetes.add(counted[w.party])
	e.controllers.add(counted[theControllers])
	all, lists := w.scene.requests()
	e.claims, e.cinder, e.lists = e.claims+n, e.cinder+all, e.lists+lists
	for i, seconds := range w.cpu() {
		if i == len(e.cpu) {
			e.cpu = append(e.cpu, 0)
		}
		e.cpu[i] += seconds - before[i]
	}
	return nil
}

// cpu returns the processor time that each replica has used.
func (w *way) cpu() []float64 {
	var seconds []float64
	for _, replica := range w.replicas {
		seconds = append(seconds, cpuSeconds(replica.PID()))
	}
	return seconds
}

// inUse returns a complaint about a volume that is not in use.
func (s *scene) inUse() (complaint string, err error) {
	for _, v := range s.sim.Volumes() {
		if v.Status != "in-use" {
			return "volume " + v.Name + " is " + v.Status, nil
		}
	}
	return "", nil
}
