package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// The phases of a volume that changes its claim.
const (
	// phaseRebinding: the volume is given to another claim.
	phaseRebinding = "rebinding"
	// phaseDeletingRebound: that claim is deleted.
	phaseDeletingRebound = "deleting"
)

// stepReadPV is the first of the live reads that prove a rebind.
const stepReadPV = "kubernetes GET api/v1/persistentvolumes/pvc-ID"

// rebindCrashWays are those in which leaders die: by an administrator and by a
// populator, from tenant to tenant.
var rebindCrashWays = []way{
	{name: "administrator", to: "-other", prepare: made, handOver: byVolumeName("moved"), finish: policyBack},
	{name: "populator", from: "-populator", prepare: prepareByLibPopulator, handOver: handOverByLibPopulator, finish: finishByLibPopulator},
}

// rebindMustHave are steps without which the matrix proves nothing.
func rebindMustHave(mode string) map[string][]string {
	end := stepClose
	if mode == "reserve" {
		end = stepTerminate
	}
	if mode == "csi" {
		end = stepDeleteNodes
	}
	return map[string][]string{phaseRebinding: {stepReadPV, stepMark, stepLetGo}, phaseDeletingRebound: {end, stepDelete, stepDeleteRecord}}
}

// rebindCell is one case.
type rebindCell struct {
	phase string
	at    step
	m     mishap
	// again means that the next leader is killed at the same step.
	again bool
}

func (c rebindCell) String() string {
	name := fmt.Sprintf("%s/%s/%s", c.phase, c.at, c.m.name)
	if c.again {
		name += ", and again"
	}
	return name
}

// TestCrashMatrixOfRebinds lets the leader die, and requests and answers be lost, late or
// doubled, at every request of a rebind, and of the deletion of a volume that was
// rebound. Afterwards the volume is the other claim's, once, and counts for its tenant;
// it grows and is copied, and after its claim nothing is left.
//
//tier:matrix
func TestCrashMatrixOfRebinds(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	var group sync.WaitGroup
	var mutex sync.Mutex
	rebinds := 0
	for _, mode := range rebindModes {
		for _, w := range rebindCrashWays {
			sampled := sample.New(t)
			group.Go(func() {
				t.Run(mode+"/"+w.name, func(t *testing.T) {
					s, err := newRebindSite(ctx, "rebindcrash-"+mode+"-"+w.name, mode, 2)
					if err != nil {
						t.Fatal(err)
					}
					defer func() {
						if err := s.close(); err != nil {
							t.Error(err)
						}
					}()
					s.crashes(ctx, t, mode, w, sampled)
					mutex.Lock()
					defer mutex.Unlock()
					rebinds += s.rebinds
				})
			})
		}
	}
	group.Wait()
	t.Logf("%d volumes changed their claims", rebinds)
}

// crashes runs all cases of a site.
func (s *rebindSite) crashes(ctx context.Context, t *testing.T, mode string, w way, sampled *sample.Sample) {
	recorded, err := s.recordRebinds(ctx, w)
	if err != nil {
		t.Fatalf("undisturbed: %v\n%s", err, s.news())
	}
	for _, phase := range []string{phaseRebinding, phaseDeletingRebound} {
		for _, what := range rebindMustHave(mode)[phase] {
			if !slices.Contains(recorded[phase], step{what, 1}) {
				t.Errorf("%s: the undisturbed runs have no step %q: %q", phase, what, recorded[phase])
			}
		}
		for _, c := range rebindCells(mode, phase, recorded[phase]) {
			if !sampled.Takes(phase + c.at.what) {
				continue
			}
			t.Run(c.String(), func(t *testing.T) {
				switch err := s.crashRebind(ctx, w, c); {
				case errors.Is(err, errNotReached):
					t.Log("this run did not take the step")
				case err != nil:
					t.Fatalf("%v\n%s", err, s.news())
				}
				s.news()
			})
			if t.Failed() {
				return // what is left there would only fail the next one
			}
		}
	}
}

// rebindCells returns the cases for the steps of a phase. Deletions have a matrix of
// their own, and the workflows differ only in these, so there only kills are repeated.
func rebindCells(mode, phase string, steps []step) (cells []rebindCell) {
	for _, at := range steps {
		for _, m := range attachMishaps {
			rebinding := phase == phaseRebinding
			if !m.befalls(provisioning, at) || !rebinding && at.reads() || !m.kill && (!rebinding || mode == "reserve") {
				continue
			}
			cells = append(cells, rebindCell{phase: phase, at: at, m: m})
			if rebinding && !at.reads() && m.kill && m.verdict == faultproxy.HoldAfter {
				cells = append(cells, rebindCell{phase: phase, at: at, m: m, again: true})
			}
		}
	}
	return cells
}

// recordRebinds returns the steps that every one of several undisturbed runs takes, by
// phase.
func (s *rebindSite) recordRebinds(ctx context.Context, w way) (steps map[string][]step, err error) {
	for range 3 {
		taken, err := s.passRebind(ctx, w, "", 0, nil, nil)
		if err != nil {
			return nil, err
		}
		s.news()
		if steps == nil {
			steps = taken
		}
		for phase := range steps {
			steps[phase] = slices.DeleteFunc(steps[phase], func(at step) bool { return !slices.Contains(taken[phase], at) })
		}
	}
	return steps, nil
}

// crashRebind lets a mishap befall a step. If the phase passes without the step, it begins
// again.
func (s *rebindSite) crashRebind(ctx context.Context, w way, c rebindCell) (err error) {
	for range attempts {
		if _, err := s.leader(ctx); err != nil {
			return err
		}
		var t *trap
		reached := false
		begin := func() { t = s.set(c.at, c.m.verdict) }
		_, err = s.passRebind(ctx, w, c.phase, 2, begin, func(ctx context.Context, goal func(context.Context) error) error {
			var err error
			if reached, err = s.reaches(ctx, t, goal); err != nil || !reached {
				return err
			}
			if c.m.kill {
				s.kill(t.by)
			}
			if c.again {
				s.begin()
				again := s.set(step{c.at.what, 1}, c.m.verdict)
				if err := s.replace(ctx); err != nil {
					return err
				}
				reachedAgain, err := s.reaches(ctx, again, goal)
				if err != nil {
					return err
				}
				if reachedAgain {
					s.kill(again.by)
				}
			}
			if err := s.replace(ctx); err != nil {
				return err
			}
			if c.m.verdict != faultproxy.Late {
				return nil
			}
			// Everybody has gone on without the request.
			if err := goal(ctx); err != nil {
				return err
			}
			if err := pause(ctx, max(s.options.requestTimeout, s.options.apiPatience)); err != nil {
				return err
			}
			s.release()
			if err := wait(ctx, t.done); err != nil {
				return fmt.Errorf("the late request was not answered: %w", err)
			}
			return nil
		})
		if err != nil || reached {
			return err
		}
	}
	return errNotReached
}

// passRebind gives a volume to another claim, uses it, and deletes it; something happens
// during one phase. It returns the steps of all phases. extra is how many more events
// than one a rebind may have.
func (s *rebindSite) passRebind(ctx context.Context, w way, phase string, extra int, begin func(), during func(ctx context.Context, goal func(context.Context) error) error) (map[string][]step, error) {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	r, err := s.begins(ctx, w)
	if err == nil {
		err = s.settled(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	steps := map[string][]step{}
	meanwhile := func(of string, act func() error, goal func(context.Context) error) error {
		s.begin()
		if of == phase {
			begin()
		}
		err := act()
		if err == nil && of == phase {
			err = during(ctx, goal)
		}
		if err == nil {
			err = goal(ctx)
		}
		steps[of] = s.steps()
		if err != nil {
			return fmt.Errorf("%s: %w", of, err)
		}
		return nil
	}
	err = meanwhile(phaseRebinding, func() error { return w.handOver(ctx, s, r) }, func(ctx context.Context) error { return s.rebound(ctx, r) })
	if err == nil {
		s.rebinds++
		err = w.finish(ctx, s, r)
	}
	if err == nil {
		err = s.toldAbout(ctx, r, extra)
	}
	if err == nil {
		err = s.uses(ctx, r, false)
	}
	if err != nil {
		return nil, err
	}
	err = meanwhile(phaseDeletingRebound, func() error { return s.drop(ctx, r.to) }, func(ctx context.Context) error { return s.letGo(ctx, r) })
	s.begin()
	s.release()
	if err != nil {
		return nil, err
	}
	return steps, errors.Join(s.gone(ctx), s.counts(ctx, r, counted{}), s.removeDecoys())
}

// settled waits until the program has done all for the new volume, so that what it does
// next belongs to the rebind.
func (s *rebindSite) settled(ctx context.Context, r *rebinding) error {
	return s.eventually(ctx, func() (string, error) {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		if err == nil && slices.Contains(pv.Finalizers, objects.Finalizer) {
			return "the PersistentVolume has the finalizer for a volume that is not in use", nil
		}
		return "", err
	})
}

// toldAbout checks that a rebind was not told more often than leaders died, and was
// never denied.
func (s *rebindSite) toldAbout(ctx context.Context, r *rebinding, extra int) error {
	told, err := s.eventsOf(ctx, r.to.Namespace, r.to.UID, "Rebound")
	if err != nil {
		return err
	}
	denied, err := s.eventsOf(ctx, r.to.Namespace, r.to.UID, "RebindDenied")
	if err != nil {
		return err
	}
	if told > 1+extra || denied > 0 {
		return fmt.Errorf("the claim has %d events about its rebind, and %d that it is denied", told, denied)
	}
	return nil
}
