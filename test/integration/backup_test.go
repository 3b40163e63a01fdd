package integration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestBackupsOfClaims: the leader dies while Cinder makes one, and the next goes on. Nobody
// waits for Cinder, which needs longer than a worker's patience. They
// have a quota of their own, and survive their volume. A claim on another backend gets the
// content of one. A full backup is deleted after the incremental one that depends on it.
//
//tier:outage
func TestBackupsOfClaims(t *testing.T) {
	options := cindersim.Options{CreateDelay: 100 * time.Millisecond, DeleteDelay: 100 * time.Millisecond, SnapshotDelay: 200 * time.Millisecond, BackupDelay: 16 * time.Second}
	for _, mode := range []string{"native", "csi"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			name := "backup-" + mode
			w, class, driver, handle := &snapshotWorld{}, name+"-lab", "test.example/"+name, "backup:"
			if mode == "csi" {
				w.world, class, driver, handle = csiWorldAt(t, name, options), name+"-driver", wire.DriverName, "lab/backup:"
				w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
			} else {
				w.world = newWorld(t, name, options)
			}
			far := "\n  - name: far\n    auth: {noauth: {endpoint: \"" + w.sim.NoauthEndpoint() + "\", user: admin, project: " + cindersim.DefaultNoauthProject + "}}\n"
			w.policy = w.change("\ntenants:\n", far+"tenants:\n")
			w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    quota: {backups: 2, snapshots: 0}\n    volumeSize: {max: 10Gi}\n")
			w.policy = w.change("        backends: [lab]\n", "        backends: [lab]\n        backups: true\n")
			w.policy += "      - {storageClasses: [" + name + "-far], backends: [far], mode: " + mode + "}\n"
			w.must(suite.CreateClass(w.ctx, name+"-far", driver, nil))
			var err error
			w.client, err = snapshotclient.NewForConfig(suite.Config)
			w.must(err)
			w.must(suite.InstallSnapshots(w.ctx))
			for kind, parameters := range map[string]map[string]string{"full": {"type": "backup"}, "incremental": {"type": "backup", "incremental": "true"}} {
				w.addClass(name+"-"+kind, driver, snapshotv1.VolumeSnapshotContentDelete, func(class *snapshotv1.VolumeSnapshotClass) { class.Parameters = parameters })
			}
			start := func() (kill func()) {
				if mode == "native" {
					return w.start(shortLease...).Kill
				}
				replica, sidecars := w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))
				return func() { replica.Kill(); sidecars[0].Stop() }
			}

			volumeOf := func(claim string) cindersim.Volume {
				var v cindersim.Volume
				if mode == "native" {
					_, v = w.boundVolume("b", claim)
				} else {
					_, v = w.madeFor(claim)
				}
				return v
			}

			kill := start()
			claim, err := suite.CreateClaim(w.ctx, harness.Claim(name+"-b", "data", class, "1Gi", nil))
			w.must(err)
			volume := volumeOf("data")
			one := w.take("b", "one", "data", name+"-full")
			w.backups(1, "creating")
			if mode == "native" {
				w.event("b", "one", "BackupPending", "is being made, which may take hours")
			}
			kill()
			kill = start()
			content := w.ready("b", "one")
			full := w.backups(1, "available")[0]
			if *content.Status.SnapshotHandle != handle+full.ID || *content.Status.RestoreSize != 1<<30 || content.Annotations[annotation("backup")] != "full" || full.VolumeID != volume.ID || full.Parent != "" {
				t.Errorf("backup %+v has the content %+v, %+v", full, content.Annotations, content.Status)
			}
			if full.Metadata[annotation("snapshot-uid")] != string(one.UID) || full.Metadata[annotation("recorded")] != "true" {
				t.Errorf("the backup has the metadata %v", full.Metadata)
			}
			w.stored(0)

			two := w.take("b", "two", "data", name+"-incremental")
			w.ready("b", "two")
			if next := w.backups(2, "available")[1]; next.Parent != full.ID {
				t.Errorf("the incremental backup is %+v", next)
			}
			three := w.take("b", "three", "data", name+"-full")
			const exceeded = "QuotaExceeded: tenant tenant-b would use 3 of 2 backups"
			if mode == "native" {
				w.event("b", "three", "QuotaExceeded", strings.TrimPrefix(exceeded, "QuotaExceeded: "))
			} else {
				w.event("default", objects.SnapshotContentName(three.UID), "SnapshotCreationFailed", exceeded)
			}
			w.remove("b", "three")
			w.gone("b", "three", three.UID)

			// The backups survive the volume.
			w.must(suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.ctx, claim.Name, metav1.DeleteOptions{}))
			w.noResidue()
			restored, err := suite.CreateClaim(w.ctx, harness.Claim(name+"-b", "restored", name+"-far", "2Gi", func(claim *corev1.PersistentVolumeClaim) {
				group := snapshotv1.GroupName
				claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "one"}
			}))
			w.must(err)
			made := volumeOf("restored")
			if made.SizeGiB != 2 || made.Metadata[annotation("claim-uid")] != string(restored.UID) || made.Metadata["src_backup_id"] != "" || made.Metadata[annotation("tenant")] != "tenant-b" {
				t.Errorf("the restored volume is %+v", made)
			}

			// One that is kept can be listed, and imported again.
			kept := w.ready("b", "two")
			_, err = w.client.SnapshotV1().VolumeSnapshotContents().Patch(w.ctx, kept.Name, types.MergePatchType, []byte(`{"spec": {"deletionPolicy": "Retain"}}`), metav1.PatchOptions{})
			w.must(err)
			w.remove("b", "two")
			w.must(w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, kept.Name, metav1.DeleteOptions{}))
			w.gone("b", "two", two.UID)
			id := "backup:" + w.backups(2, "available")[1].ID
			if code, output := w.operator("snapshot", "list"); code != 0 || !regexp.MustCompile(`lab +`+id+` .* yes\n`).MatchString(output) {
				t.Errorf("snapshot list: exit code %d:\n%s", code, output)
			}
			if code, output := w.operator("snapshot", "import", "--backend", "lab", "--snapshot", id, "--namespace", name+"-b", "--volume-snapshot", "two", "--deletion-policy", "Delete", "--apply"); code != 0 {
				t.Errorf("snapshot import: exit code %d:\n%s", code, output)
			}
			w.ready("b", "two")
			two, err = w.client.SnapshotV1().VolumeSnapshots(name+"-b").Get(w.ctx, "two", metav1.GetOptions{})
			w.must(err)

			w.remove("b", "one")
			w.event("b", "one", "SnapshotFailedDelete", "incremental backups depend on backup "+full.ID)
			w.backups(2, "available")
			began := time.Now()
			w.remove("b", "two")
			w.gone("b", "two", two.UID)
			w.gone("b", "one", one.UID)
			if took := time.Since(began); took > 45*time.Second && mode == "native" { // of which Cinder needs 32; the sidecar has its own pace
				t.Errorf("the deletion that waited was retried only after %s", took)
			}
			w.backups(0, "")
			w.clean()
			kill()
		})
	}
}

// backups waits until Cinder has that many backups, all with a status.
func (w *snapshotWorld) backups(count int, status string) (all []cindersim.Backup) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		all = w.sim.Backups()
		if len(all) != count || slices.ContainsFunc(all, func(b cindersim.Backup) bool { return b.Status != status }) {
			return fmt.Sprintf("Cinder has the backups %+v, want %d that are %s", all, count, status), nil
		}
		return "", nil
	}))
	return all
}
