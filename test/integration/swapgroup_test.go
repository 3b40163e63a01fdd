package integration

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestGroupSnapshotOfSwappedClaims: the answer to CreateVolumeGroupSnapshot named each
// snapshot's volume by Cinder's ID (csiSnapshotOf), which after a swap is the handle of the
// other claim's PersistentVolume. The csi-snapshotter writes it into the group's content,
// and the snapshot-controller makes the VolumeSnapshot for the claim that has that handle.
// So the VolumeSnapshot of claim data has the content of claim log, and the other way round.
func TestGroupSnapshotOfSwappedClaims(t *testing.T) {
	const name = "group-swap"
	w := &groupWorld{&snapshotWorld{}, "csi", wire.DriverName, "none"}
	w.world = csiWorldAt(t, name, cindersim.Options{})
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.policy = w.change("        backends: [lab]\n", "        backends: [lab]\n        groups: true\n")
	var err error
	w.client, err = snapshotclient.NewForConfig(suite.Config)
	w.must(err)
	w.must(suite.InstallSnapshots(w.ctx))
	w.addGroupClass("delete", snapshotv1.VolumeSnapshotContentDelete)
	w.lead()
	for _, claim := range []string{"data", "log"} {
		_, err := suite.CreateClaim(w.ctx, harness.Claim(name+"-b", claim, w.storageClass(), "1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Labels = map[string]string{"app": "db"}
		}))
		w.must(err)
	}
	data, log := w.volume("data"), w.volume("log")
	for _, id := range []string{data.ID, log.ID} {
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			if now, _ := w.sim.Volume(id); now.Metadata[annotation("attached")] == "" {
				return "volume " + id + " is not marked yet", nil
			}
			return "", nil
		}))
	}
	if code, output := w.volumeCommand("swap", name+"-b/data", "--with", "log", "--apply"); code != 0 {
		t.Fatalf("exit code %d: %s", code, output)
	}
	one := w.group("b", "one", "delete")
	content, members := w.grouped(one)
	for claim, member := range members {
		t.Logf("VolumeSnapshot of claim %s: %s, %+v", claim, w.idOf(member), w.memberContent(member).Spec.Source)
	}
	w.membersAre(one, content, members, map[string]cindersim.Volume{"data": log, "log": data})
	for claim, member := range members {
		want := map[string]string{"data": log.ID, "log": data.ID}[claim]
		for _, s := range w.stored(2) {
			if s.ID == w.idOf(member) && s.VolumeID != want {
				t.Errorf("VolumeSnapshot %s of claim %s has the content of volume %s, but the claim has volume %s", member.Name, claim, s.VolumeID, want)
			}
		}
	}
}
