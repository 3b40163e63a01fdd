package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// tenantImportSteps are the changes that the import for a tenant's claim is
// made of.
var tenantImportSteps = map[string][]step{
	"csi": {
		{"cinder POST volumes/ID/metadata", 1},
		{stepSecret, 1},
		{stepRecord, 1},
	},
	"reserve": {
		{"cinder POST volumes/ID/metadata", 1},
		{stepReserve, 1},
		{stepInitialize, 1},
		{stepSecret, 1},
		{stepRecord, 1},
	},
	"attachment": {
		{"cinder POST volumes/ID/metadata", 1},
		{stepOpen, 1},
		{stepRecord, 1},
	},
}

// tenantImportMishaps are what happens to each step.
var tenantImportMishaps = []mishap{
	{name: "killed before", verdict: faultproxy.HoldBefore, kill: true},
	{name: "killed after", verdict: faultproxy.HoldAfter, kill: true},
	{name: "request lost", verdict: faultproxy.LoseBefore},
	{name: "answer lost", verdict: faultproxy.LoseAfter},
	{name: "claim deleted, killed before", verdict: faultproxy.HoldBefore, kill: true, abandon: true},
	{name: "claim deleted, killed after", verdict: faultproxy.HoldAfter, kill: true, abandon: true},
	{name: "claim deleted, answer delayed past the time-out", verdict: faultproxy.HoldAfter, abandon: true},
}

// TestCrashMatrixOfTenantsImports lets the leader die, requests and answers be lost,
// and the claim be deleted, at every change of an import for a tenant's claim. In the
// end the claim has the volume; or the claim is gone, and the volume is free.
//
//tier:matrix
func TestCrashMatrixOfTenantsImports(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	var group sync.WaitGroup
	for workflow, steps := range tenantImportSteps {
		group.Go(func() {
			t.Run(workflow, func(t *testing.T) {
				s := openSite(ctx, t, "timportcrash"+workflow, importSites[workflow])
				if err := s.replace(ctx); err != nil {
					t.Fatal(err)
				}
				run := func(at step, m mishap) error { return s.importForTenant(ctx, at, m) }
				if err := run(step{}, mishap{}); err != nil {
					t.Fatalf("undisturbed: %v\n%s", err, s.news())
				}
				crashTable{site: s, steps: steps, mishaps: tenantImportMishaps, run: run}.runAll(t)
			})
		})
	}
	group.Wait()
}

// importForTenant imports a volume for a claim that asks for it, while a mishap
// befalls a step.
func (s *site) importForTenant(ctx context.Context, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	metadata := map[string]string{"owner": "somebody"}
	if s.options.csi {
		metadata[annotation("filesystem-uuids")] = oldFilesystem
	}
	id, err := s.sim.AddVolume(cindersim.Volume{Name: "old data", Project: s.project(), SizeGiB: 1, Metadata: metadata})
	if err != nil {
		return err
	}
	s.sim.ResetJournal()
	s.begin()
	var t *trap
	if at != (step{}) {
		t = s.set(at, m.verdict)
	}
	_, err = suite.CreateClaim(ctx, harness.Claim(s.namespace, "data", s.class, "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{annotation("import-volume"): "old data"}
	}))
	if err != nil {
		return err
	}
	if t != nil {
		if err := wait(ctx, t.caught()); err != nil {
			return fmt.Errorf("the import did not take the step: %w", err)
		}
		if m.abandon {
			if err := s.deleteClaim(ctx, "data"); err != nil {
				return err
			}
		}
		if m.kill {
			s.kill(t.by)
		}
		if err := s.replace(ctx); err != nil {
			return err
		}
	}
	if m.abandon {
		err = s.freeAgain(ctx, id)
	} else {
		err = s.eventually(ctx, func() (string, error) { return s.unlikeImported(ctx, id) })
		if err == nil {
			err = s.discardImported(ctx, id, true)
		}
	}
	if creates := s.creates(); creates != 0 {
		err = errors.Join(err, fmt.Errorf("%d volumes were made", creates))
	}
	return errors.Join(err, s.gone(ctx))
}

// freeAgain waits until the volume of a claim that is gone is free, or recorded, and
// removes it.
func (s *site) freeAgain(ctx context.Context, id string) error {
	recorded := false
	err := s.eventually(ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, "imported-"+id, metav1.GetOptions{})
		if recorded = err == nil; recorded {
			return "", nil
		}
		if !apierrors.IsNotFound(err) {
			return "", err
		}
		secrets, err := s.secrets(ctx)
		v, exists := s.sim.Volume(id)
		switch {
		case err != nil:
			return "", err
		case !exists:
			return "", errors.New("the volume was deleted")
		case v.Status != "available" || len(v.Attachments) > 0 || v.Metadata["owner"] != "somebody" || len(secrets) > 0:
			return fmt.Sprintf("%d Secrets, and the volume is not free: %s", len(secrets), describe([]cindersim.Volume{v})), nil
		}
		return "", nil
	})
	switch {
	case err != nil:
		return err
	case recorded:
		return s.discardImported(ctx, id, false)
	}
	return s.sim.RemoveVolume(id)
}

// discardImported makes the program delete an imported volume.
func (s *site) discardImported(ctx context.Context, id string, hasClaim bool) error {
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(ctx, "imported-"+id, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`), metav1.PatchOptions{})
	if err == nil && hasClaim {
		err = s.deleteClaim(ctx, "data")
	}
	return err
}
