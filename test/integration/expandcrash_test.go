package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// growthMishaps are what happens to each step of an expansion.
var growthMishaps = []mishap{
	{name: "killed before", verdict: faultproxy.HoldBefore, kill: true},
	{name: "killed after", verdict: faultproxy.HoldAfter, kill: true},
	{name: "request lost", verdict: faultproxy.LoseBefore},
	{name: "answer lost", verdict: faultproxy.LoseAfter},
	{name: "twice", verdict: faultproxy.Twice},
}

// growthSteps are the changes that an expansion is made of. The third change of
// the claim comes after the acknowledgment.
var growthSteps = []step{
	{"kubernetes PATCH api/v1/namespaces/NAMESPACE/persistentvolumeclaims/data/status", 1},
	{"cinder POST volumes/ID/action os-extend", 1},
	{"kubernetes PATCH api/v1/persistentvolumes/pvc-ID", 1},
	{"kubernetes PATCH api/v1/namespaces/NAMESPACE/persistentvolumeclaims/data/status", 2},
	{"kubernetes PATCH api/v1/namespaces/NAMESPACE/persistentvolumeclaims/data/status", 3},
}

// TestCrashMatrixOfExpansions lets the leader die, and requests and answers be lost, at
// every step of an expansion. In the end the volume has the new size, once, and
// PersistentVolume and claim say so.
//
//tier:matrix
func TestCrashMatrixOfExpansions(t *testing.T) {
	const sites = 4
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	type growth struct {
		step   step
		mishap mishap
	}
	first := newGrowthSite(ctx, t, 0)
	steps, err := first.grow(ctx, step{}, mishap{})
	if err != nil {
		t.Fatalf("undisturbed: %v\n%s", err, first.news())
	}
	for _, known := range growthSteps {
		if !slices.Contains(steps, known) {
			t.Errorf("the undisturbed run has no step %q, but %q", known, steps)
		}
	}
	queue := make(chan growth, len(steps)*len(growthMishaps))
	sampled := sample.New(t)
	for _, at := range steps {
		for _, m := range growthMishaps {
			if m.befalls(provisioning, at) && sampled.Takes(at.what) {
				queue <- growth{at, m}
			}
		}
	}
	close(queue)
	var group sync.WaitGroup
	for i := range sites {
		group.Go(func() {
			s := first
			if i > 0 {
				s = newGrowthSite(ctx, t, i)
			}
			for c := range queue {
				t.Run(fmt.Sprintf("%s/%s", c.step, c.mishap.name), func(t *testing.T) {
					_, err := s.grow(ctx, c.step, c.mishap)
					switch {
					case errors.Is(err, errNotReached) && !slices.Contains(growthSteps, c.step):
						t.Log("this run did not take the step") // reads vary
					case err != nil:
						t.Errorf("%v\n%s", err, s.news())
					}
					s.news()
				})
			}
		})
	}
	group.Wait()
}

func newGrowthSite(ctx context.Context, t *testing.T, number int) *site {
	t.Helper()
	options := siteOptions{cinder: cindersim.Options{CreateDelay: 100 * time.Millisecond, ExtendDelay: 250 * time.Millisecond}}
	s, err := newSite(ctx, fmt.Sprintf("growcrash%d", number), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if _, err = suite.Client.StorageV1().StorageClasses().Patch(ctx, s.class, types.MergePatchType, []byte(`{"allowVolumeExpansion": true}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.replace(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// grow expands the volume of a claim and acknowledges that its filesystem has
// grown, while a mishap befalls a step. It returns the steps that were taken, and
// leaves the site as it was.
func (s *site) grow(ctx context.Context, at step, m mishap) ([]step, error) {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	claim, err := s.claim(ctx, "data")
	if err == nil {
		err = s.served(ctx, claim)
	}
	if err != nil {
		return nil, fmt.Errorf("before anything went wrong: %w", err)
	}
	s.sim.ResetJournal()
	s.begin()
	var t *trap
	caught := make(<-chan struct{})
	if at != (step{}) {
		t = s.set(at, m.verdict)
		caught = t.caught()
	}
	grown := make(chan error, 1)
	go func() { grown <- s.growTo(ctx, claim, "3Gi") }()
	reached := at == (step{})
	select {
	case <-caught:
		reached = true
		if m.kill {
			s.kill(t.by)
		}
		err = errors.Join(s.replace(ctx), <-grown)
	case err = <-grown:
	}
	if err != nil {
		return nil, err
	}
	steps := s.steps()
	if n := s.extensions(); n != 1 {
		return nil, fmt.Errorf("Cinder extended %d times, want once", n)
	}
	if err := s.served(ctx, claim); err != nil {
		return nil, err
	}
	if err := s.finish(ctx, &stage{phase: deleting, claim: claim}); err != nil {
		return nil, err
	}
	if !reached && !m.kill {
		// The claim may have grown by the first of two answers.
		select {
		case <-caught:
			reached = true
		default:
		}
	}
	if !reached {
		return nil, errNotReached
	}
	return steps, nil
}

// growTo asks for a size, and acknowledges it when only the filesystem is left.
func (s *site) growTo(ctx context.Context, claim *corev1.PersistentVolumeClaim, size string) error {
	claims := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	is := func(want string) error {
		return s.eventually(ctx, func() (string, error) {
			now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, pvName(claim), metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			state := fmt.Sprintf("pv %s, claim %s %s %d", pv.Spec.Capacity.Storage(), now.Status.Capacity.Storage(),
				now.Status.AllocatedResourceStatuses[corev1.ResourceStorage], len(harness.Conditions(now)))
			if state != want {
				return fmt.Sprintf("%s, want %s", state, want), nil
			}
			return "", nil
		})
	}
	patch := func(text string) error {
		_, err := claims.Patch(ctx, claim.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	if err := patch(fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size)); err != nil {
		return err
	}
	if err := is(fmt.Sprintf("pv %s, claim 1Gi NodeResizePending 1", size)); err != nil {
		return err
	}
	if err := patch(fmt.Sprintf(`{"metadata": {"annotations": {"standalone-cinder.openstack.org/filesystem-grown": %q}}}`, size)); err != nil {
		return err
	}
	return is(fmt.Sprintf("pv %s, claim %s  0", size, size))
}

// extensions counts the extensions that Cinder accepted.
func (s *site) extensions() int {
	n := 0
	for _, entry := range s.sim.Journal() {
		if entry.Operation == "action.os-extend" && entry.Performed && entry.Status == 202 {
			n++
		}
	}
	return n
}
