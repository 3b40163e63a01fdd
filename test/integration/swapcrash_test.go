package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// TestCrashMatrixOfSwaps kills the command at every request, before it has an effect and
// after, or loses request or answer, while a leader is at work. The same command, run
// again, ends with each claim's volume under the other one, once. At no time do two
// PersistentVolumes have one volume that somebody could use.
//
//tier:matrix
func TestCrashMatrixOfSwaps(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	s := openSite(ctx, t, "swapcrash", siteOptions{csi: true, workflow: "attachment", cinder: cindersim.Options{}})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, s.news())
		}
	}
	must(s.replace(ctx))
	var claims []*corev1.PersistentVolumeClaim
	for _, name := range []string{"data", "yesterday"} {
		claim, err := s.claim(ctx, name)
		must(err)
		claims = append(claims, claim)
	}
	must(s.served(ctx, claims...))

	dir, back := t.TempDir(), false
	must(s.swap(ctx, dir, claims, back, step{}, mishap{}))
	crashTable{
		site: s, steps: s.steps(), mishaps: importMishaps, must: []string{"cinder POST volumes/ID/metadata", "kubernetes PATCH api/v1/persistentvolumes/pvc-ID"},
		fits: func(_ mishap, at step) bool { return !at.reads() },
		run: func(at step, m mishap) error {
			back = !back
			return s.swap(ctx, dir, claims, back, at, m)
		},
	}.runAll(t)
	for _, name := range []string{"data", "yesterday"} {
		must(s.deleteClaim(ctx, name))
	}
	must(s.gone(ctx))
}

// swap swaps the volumes of two claims, or swaps them back, while a mishap befalls a step,
// and again.
func (s *site) swap(ctx context.Context, dir string, claims []*corev1.PersistentVolumeClaim, back bool, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	before, err := s.volumesOf(ctx, claims)
	if err != nil {
		return err
	}
	arguments := []string{claims[0].Namespace + "/" + claims[0].Name, "--with", claims[1].Name, "--apply", fmt.Sprintf("--back=%t", back)}
	s.begin()
	var missed error
	if at != (step{}) {
		operator, command, err := s.volumeCommand(ctx, dir, "swap", arguments...)
		if err != nil {
			return err
		}
		if missed = s.interrupted(ctx, operator, command, at, m); missed != nil && !errors.Is(missed, errNotReached) {
			return missed
		}
	}
	_, command, err := s.volumeCommand(ctx, dir, "swap", arguments...)
	if err != nil {
		return err
	}
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("run again: %w: %s", err, output)
	}
	after, err := s.volumesOf(ctx, claims)
	if err != nil {
		return err
	}
	if after[0] != before[1] || after[1] != before[0] {
		return fmt.Errorf("the claims had volumes %s, and have %s", before, after)
	}
	for _, v := range s.ours() {
		if v.Metadata[annotation("swap")] != "" {
			return fmt.Errorf("volume %s is still marked: %v", v.ID, v.Metadata)
		}
	}
	if err := s.served(ctx, claims...); err != nil {
		return err
	}
	return missed
}

// volumesOf returns the volumes that the PersistentVolumes of claims record.
func (s *site) volumesOf(ctx context.Context, claims []*corev1.PersistentVolumeClaim) ([]string, error) {
	var volumes []string
	for _, claim := range claims {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, pvName(claim), metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if pv.Annotations[annotation("swap")] != "" {
			return nil, fmt.Errorf("PersistentVolume %s still has the intent %s", pv.Name, pv.Annotations[annotation("swap")])
		}
		volumes = append(volumes, pv.Annotations[annotation("volume-id")])
	}
	return volumes, nil
}
