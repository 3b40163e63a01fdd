package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestMoveAVolume: Cinder copies a volume to the storage of another type. An
// administrator, as every user is in noauth mode, sees the copy with the stamp of the
// claim; nobody takes it for the claim's volume.
func TestMoveAVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "move", cindersim.Options{MigrationDelay: 4 * time.Second})
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.policy = w.change("clusterID: cluster-move\n", "clusterID: cluster-move\naudit: {interval: 500ms, grace: 1m, delete: true}\n")
	first := w.start()
	w.claim("b", "data", "lab", "1Gi")
	claims, err := suite.WaitBound(w.ctx, "move-b", 1)
	w.must(err)
	before := w.sim.VolumesNamed(claims[0].Spec.VolumeName)[0]
	move := func(claim, to string, apply ...string) (int, string) {
		return w.volumeCommand("move", append([]string{claim, "--to", to}, apply...)...)
	}
	expect := func(code int, output string, wantCode int, want string) {
		t.Helper()
		if code != wantCode || !strings.Contains(output, want) {
			t.Errorf("exit code %d, want %d and %q:\n%s", code, wantCode, want, output)
		}
	}
	code, output := move("data", "iscsi-mp")
	expect(code, output, 2, `needs the namespace and the name of a claim, such as team-a/data, not "data"`)
	code, output = move("move-b/data", "iscsi-mp")
	expect(code, output, 0, "Cinder would copy it to another storage if its present one cannot have that type")
	kept := w.snapshot(before.ID)
	code, output = move("move-b/data", "iscsi-mp", "--apply")
	expect(code, output, 1, "has snapshots, such as "+kept)
	w.deleteSnapshot(kept)

	done := make(chan string, 1)
	go func() {
		code, output := move("move-b/data", "iscsi-mp", "--apply")
		done <- fmt.Sprint(code, output)
	}()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if all := w.sim.VolumesNamed(before.Name); len(all) != 2 || all[0].Status == "creating" || all[1].Status == "creating" {
			return "Cinder does not copy: " + describe(all), nil
		}
		return "", nil
	}))
	// A new leader sees both.
	w.must(first.Stop(w.ctx))
	w.start()
	w.claim("b", "later", "lab", "1Gi")
	_, err = suite.WaitBound(w.ctx, "move-b", 2)
	w.must(err)
	if all := w.sim.VolumesNamed(before.Name); len(all) != 2 {
		t.Errorf("Cinder did not copy long enough for this test: %s", describe(all))
	}
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}
	if said := <-done; !strings.HasPrefix(said, "0") || !strings.Contains(said, `now has type "iscsi-mp"; it had "iscsi"`) {
		t.Errorf("the command said %s", said)
	}
	after := w.sim.VolumesNamed(before.Name)
	if len(after) != 1 || after[0].ID != before.ID || after[0].Type != "iscsi-mp" || after[0].Status != "available" {
		t.Errorf("the volumes are %s", describe(after))
	}
	if changes := w.sim.CountByOperation()["volume.delete"]; changes != 0 {
		t.Errorf("%d deletions were requested", changes)
	}
	code, output = move("move-b/data", "iscsi-mp", "--apply")
	expect(code, output, 0, `already has type "iscsi-mp"; nothing to do`)
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claims[0].Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	if pv.Spec.CSI == nil || pv.Spec.CSI.VolumeHandle != "lab/"+before.ID {
		t.Errorf("the PersistentVolume names %+v", pv.Spec.CSI)
	}
	w.must(suite.DeleteClaims(w.ctx, "move-b"))
	w.noResidue()
}
