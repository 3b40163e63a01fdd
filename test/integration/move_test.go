package integration

import (
	"fmt"
	"regexp"
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
	w := newWorld(t, "move", cindersim.Options{MigrationDelay: 15 * time.Second})
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

// TestMoveAllVolumesOfAType: what is in use is moved when it is free, what cannot be moved
// stops no other, and a command that is run again continues.
func TestMoveAllVolumesOfAType(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "moves", cindersim.Options{MigrationDelay: time.Second})
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.start()
	for _, name := range []string{"free", "in-use", "kept", "late"} {
		w.claim("b", name, "lab", "1Gi")
	}
	w.claim("a", "native", "gold", "1Gi")
	_, err := suite.WaitBound(w.ctx, "moves-a", 1)
	w.must(err)
	claims, err := suite.WaitBound(w.ctx, "moves-b", 4)
	w.must(err)
	volumes := map[string]cindersim.Volume{}
	for i := range claims {
		volumes[claims[i].Name] = w.sim.VolumesNamed(claims[i].Spec.VolumeName)[0]
	}
	w.must(w.sim.SetVolumeStatus(volumes["in-use"].ID, "in-use"))
	w.must(w.sim.SetVolumeStatus(volumes["late"].ID, "in-use"))
	w.snapshot(volumes["kept"].ID)
	move := func(wantCode int, flags []string, want ...string) {
		t.Helper()
		code, output := w.volumeCommand("move", append([]string{"--from", "iscsi", "--to", "iscsi-mp"}, flags...)...)
		if code != wantCode {
			t.Errorf("%v: exit code %d, want %d:\n%s", flags, code, wantCode, output)
		}
		for _, want := range want {
			if found, err := regexp.MatchString(want, output); err != nil || !found {
				t.Errorf("%v: the output lacks %s (%v):\n%s", flags, want, err, output)
			}
		}
	}
	types := func(want string) {
		t.Helper()
		var got []string
		for _, name := range []string{"free", "in-use", "kept", "late"} {
			now, _ := w.sim.Volume(volumes[name].ID)
			got = append(got, now.Type)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the types are %s, want %s", got, want)
		}
	}
	const refused = `moves-a/native +\S+ +pvc-\S+ +\S+ +1 +refused +\S.*is native, so it records for good`
	move(1, nil, refused, `moves-b/in-use +lab +pvc-\S+ +\S+ +1 +busy`, `moves-b/kept .* refused +volume \S+ has snapshots`, `moves-b/free .* ready`,
		`nothing was changed; with --apply, the command would move 1 volumes \(1 GiB\) to type "iscsi-mp"`)
	types("iscsi iscsi iscsi iscsi")
	move(2, []string{"moves-b/free"}, `needs one claim as NAMESPACE/CLAIM, or --from`)
	move(2, []string{"--at-once", "0"}, `--at-once must be from 1 to 50, not 0`)
	move(1, []string{"--apply", "--namespace", "moves-b"}, `\[\d/4\] moves-b/free \(1 GiB\): moved after \ds`,
		`1 volumes \(1 GiB\) were moved to type "iscsi-mp"`, `1 of 4 volumes cannot be moved, and 2 are busy`)
	types("iscsi-mp iscsi iscsi iscsi")

	w.must(w.sim.SetVolumeStatus(volumes["in-use"].ID, "available"))
	go func() {
		_ = pause(w.ctx, 2*time.Second)
		_ = w.sim.SetVolumeStatus(volumes["late"].ID, "available")
	}()
	move(1, []string{"--apply", "--wait", "5s", "--from-backend", "lab"}, `moves-b/late \(1 GiB\): moved`, `1 of 3 volumes cannot be moved, and 0 are busy`)
	types("iscsi-mp iscsi-mp iscsi iscsi-mp")
	for i := range claims {
		if all := w.sim.VolumesNamed(claims[i].Spec.VolumeName); len(all) != 1 || all[0].ID != volumes[claims[i].Name].ID {
			t.Errorf("claim %s has %s", claims[i].Name, describe(all))
		}
	}
}

// TestAMoveOfAllVolumesOfATypeMovesNoOther: the list of what is to be moved is as old as the
// command, which may run for hours. Meanwhile a volume gets another type.
func TestAMoveOfAllVolumesOfATypeMovesNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "movesother", cindersim.Options{})
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.start()
	w.claim("b", "late", "lab", "1Gi")
	claims, err := suite.WaitBound(w.ctx, "movesother-b", 1)
	w.must(err)
	v := w.sim.VolumesNamed(claims[0].Spec.VolumeName)[0]
	w.must(w.sim.SetVolumeStatus(v.ID, "in-use"))
	done := make(chan string, 1)
	go func() {
		_, output := w.volumeCommand("move", "--from", "iscsi", "--to", "iscsi-mp", "--apply", "--wait", "10s", "--namespace", "movesother-b")
		done <- output
	}()
	w.must(pause(w.ctx, 4*time.Second))
	w.must(w.sim.SetVolumeStatus(v.ID, "available"))
	if code, output := w.volumeCommand("move", "movesother-b/late", "--to", "rbd", "--apply"); code != 0 {
		t.Fatal(output)
	}
	if now, _ := w.sim.Volume(v.ID); now.Type != "rbd" {
		t.Fatalf("the volume has type %s", now.Type)
	}
	output := <-done
	if now, _ := w.sim.Volume(v.ID); now.Type != "rbd" {
		t.Errorf("the volume has type %s, although it had not the type iscsi anymore:\n%s", now.Type, output)
	}
}
