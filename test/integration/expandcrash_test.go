package integration

import (
	"context"
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
			if fitsLeader(m, at) && sampled.Takes(at.what) {
				queue <- growth{at, m}
			}
		}
	}
	close(queue)
	all := []*site{first}
	for i := 1; i < sites; i++ {
		all = append(all, newGrowthSite(ctx, t, i))
	}
	var group sync.WaitGroup
	for _, s := range all {
		table := crashTable{
			site: s, mayMiss: func(at step) bool { return !slices.Contains(growthSteps, at) }, // reads vary
			run: func(at step, m mishap) error {
				_, err := s.grow(ctx, at, m)
				return err
			},
		}
		group.Go(func() {
			for c := range queue {
				table.runOne(t, c.step, c.mishap)
			}
		})
	}
	group.Wait()
}

func newGrowthSite(ctx context.Context, t *testing.T, number int) *site {
	t.Helper()
	options := siteOptions{cinder: cindersim.Options{CreateDelay: 100 * time.Millisecond, ExtendDelay: 250 * time.Millisecond}}
	s := openSite(ctx, t, fmt.Sprintf("growcrash%d", number), options)
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
	trap, reached, err := s.during(ctx, at, m, func(ctx context.Context) error { return s.growTo(ctx, claim, "3Gi") })
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
	// The claim may have grown by the first of two answers.
	if !reached && (m.kill || !trap.isCaught()) {
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
