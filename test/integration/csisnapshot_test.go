package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestSnapshotsOfClaimsInModeCSI: the real csi-snapshotter takes and deletes them beside
// the real snapshot-controller. They count once for every leader, a claim is made from
// one, and what was begun and forgotten while nobody led is removed. The rule encrypts, so
// what is restored has the key of the snapshot's volume.
//
//tier:outage
func TestSnapshotsOfClaimsInModeCSI(t *testing.T) {
	w := &snapshotWorld{world: csiWorldAt(t, "snapcsi", cindersim.Options{SnapshotDelay: time.Second}), class: "snapcsi-delete"}
	w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    quota: {snapshots: 2}\n    volumeSize: {max: 10Gi}\n")
	w.policy = w.change("        mode: csi\n", "        mode: csi\n        encrypt: {keySecret: snapcsi-keys, entry: first}\n")
	keySecret(w.world, "snapcsi-keys", map[string]string{"first": firstKEK})
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	var err error
	w.client, err = snapshotclient.NewForConfig(suite.Config)
	w.must(err)
	w.must(suite.InstallSnapshots(w.ctx))
	w.addClass(w.class, wire.DriverName, snapshotv1.VolumeSnapshotContentDelete, nil)
	replica, sidecars := w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))

	w.claim("b", "data", "lab", "1Gi")
	_, volume := w.madeFor("data")
	one := w.take("b", "one", "data", w.class)
	content := w.ready("b", "one")
	stored := w.stored(1)[0]
	if handle := *content.Status.SnapshotHandle; handle != "lab/"+stored.ID || content.Spec.Driver != wire.DriverName || *content.Status.RestoreSize != 1<<30 {
		t.Errorf("the content of %s says %s, %+v", stored.ID, handle, content.Spec)
	}
	if origin, err := objects.SnapshotOriginOf(content); err != nil || origin.Tenant != "tenant-b" || origin.SnapshotID != stored.ID || strings.Join(origin.FilesystemUUIDs, ",") != volume.ID {
		t.Errorf("the content records %+v (%v)", origin, err)
	}
	if stored.Metadata[annotation("mode")] != "csi" || stored.Metadata[annotation("recorded")] != "true" || stored.Metadata[annotation("snapshot-uid")] != string(one.UID) {
		t.Errorf("the snapshot has the metadata %v", stored.Metadata)
	}

	_, err = suite.CreateClaim(w.ctx, harness.Claim("snapcsi-b", "restored", "snapcsi-driver", "2Gi", func(claim *corev1.PersistentVolumeClaim) {
		group := snapshotv1.GroupName
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "one"}
	}))
	w.must(err)
	restored, made := w.madeFor("restored")
	if uuids := restored.Spec.CSI.VolumeAttributes["filesystemUUIDs"]; uuids != volume.ID || made.SnapshotID != stored.ID || made.SizeGiB != 2 {
		t.Errorf("the restored volume may have the filesystems %q, want %s; it is %+v", uuids, volume.ID, made)
	}

	record, origin := volume.Metadata[annotation("encryption")], volume.Metadata[annotation("claim-uid")]
	if _, err := passphraseOf(record, firstKEK); err != nil || stored.Metadata[annotation("encryption")] != record || made.Metadata[annotation("encryption")] != record {
		t.Errorf("the records are %q, %q of the snapshot and %q of the restored volume (%v)", record, stored.Metadata[annotation("encryption")], made.Metadata[annotation("encryption")], err)
	}
	if content.Annotations[annotation("encrypted")] != origin || restored.Spec.CSI.VolumeAttributes["encrypted"] != origin || origin == "" {
		t.Errorf("the content says %v, and the restored PersistentVolume %v, want %s", content.Annotations, restored.Spec.CSI.VolumeAttributes, origin)
	}

	two := w.take("b", "two", "data", w.class)
	w.ready("b", "two")
	three := w.take("b", "three", "data", w.class)
	w.event("default", objects.SnapshotContentName(three.UID), "SnapshotCreationFailed", "QuotaExceeded: tenant tenant-b would use 3 of 2 snapshots")
	w.remove("b", "three")
	w.gone("b", "three", three.UID)
	w.stored(2)
	replica.Kill()
	sidecars[0].Stop()
	next, sidecars := w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))
	w.metric(next, `standalone_cinder_quota{name="tenant-b",resource="snapshots",scope="tenant",type="used"} 2`)
	w.remove("b", "two")
	w.gone("b", "two", two.UID)
	w.stored(1)
	w.metric(next, `standalone_cinder_quota{name="tenant-b",resource="snapshots",scope="tenant",type="used"} 1`)

	// The leader dies while Cinder takes one, and somebody removes all that leads to it.
	four := w.take("b", "four", "data", w.class)
	w.stored(2)
	next.Kill()
	sidecars[0].Stop()
	free := []byte(`{"metadata": {"finalizers": null}}`)
	_, err = w.client.SnapshotV1().VolumeSnapshots("snapcsi-b").Patch(w.ctx, "four", types.MergePatchType, free, metav1.PatchOptions{})
	w.must(err)
	w.remove("b", "four")
	// The snapshot-controller may make the content again, or protect it again, before it
	// sees that the VolumeSnapshot is gone.
	removeContent := func() error {
		contents, name := w.client.SnapshotV1().VolumeSnapshotContents(), objects.SnapshotContentName(four.UID)
		if _, err := contents.Patch(w.ctx, name, types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
			return err
		}
		return contents.Delete(w.ctx, name, metav1.DeleteOptions{})
	}
	if err := removeContent(); !apierrors.IsNotFound(err) {
		w.must(err)
	}
	last, _ := w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		err := removeContent()
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if n := len(w.sim.Snapshots()); err == nil || n != 1 {
			return fmt.Sprintf("Cinder has %d snapshots, the content is there: %t", n, err == nil), nil
		}
		return "", nil
	}))
	if left := w.stored(1)[0]; left.ID != stored.ID {
		t.Errorf("snapshot %s is left", left.ID)
	}
	w.metric(last, `standalone_cinder_quota{name="tenant-b",resource="snapshots",scope="tenant",type="used"} 1`)

	_ = suite.Client.CoreV1().Secrets(harness.Namespace).Delete(w.ctx, "snapcsi-keys", metav1.DeleteOptions{})
	w.must(suite.DeleteClaims(w.ctx, "snapcsi-b"))
	w.remove("b", "one")
	w.gone("b", "one", one.UID)
	w.noResidue()
}

// TestVolumeAttributesClassOfAClaimInModeCSI: the class gives the volume another type
// by the real csi-resizer, but only one that the rule lists.
func TestVolumeAttributesClassOfAClaimInModeCSI(t *testing.T) {
	w := csiWorldAt(t, "modifycsi", cindersim.Options{Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true})})
	w.policy = w.change("        mode: csi\n", "        mode: csi\n        volumeTypes: [other]\n")
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.startBeside(nil, suite.Resizer(w.ctx, w.provisioner))
	for name, parameters := range map[string]map[string]string{"other": {"type": "other"}, "multipath": {"type": "iscsi-mp"}, "unknown": {"type": "other", "iops": "3"}} {
		w.attributesClass(name, parameters)
	}
	claim := w.madeCSI("data", "lab", "1Gi", nil)
	w.claimsNameClasses()
	modified := func(class, want string) {
		t.Helper()
		w.patchClaim(claim, fmt.Sprintf(`{"spec": {"volumeAttributesClassName": "modifycsi-%s"}}`, class))
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			now, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(w.ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, now.Spec.VolumeName, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			is := w.volumeOf(claim).Type
			if pv.Spec.VolumeAttributesClassName != nil {
				is += ", pv " + *pv.Spec.VolumeAttributesClassName
			}
			if status := now.Status.ModifyVolumeStatus; status != nil {
				is += fmt.Sprintf(", %s %s", status.Status, status.TargetVolumeAttributesClassName)
			}
			if is != want {
				return fmt.Sprintf("the claim is: %s, want: %s", is, want), nil
			}
			return "", nil
		}))
	}
	modified("other", "other, pv modifycsi-other")
	modified("multipath", "other, pv modifycsi-other, Infeasible modifycsi-multipath")
	w.told(claim, "VolumeModifyFailed", `asks for volumes of type "iscsi-mp", which tenants[1].classes[0].volumeTypes does not list`)
	modified("unknown", "other, pv modifycsi-other, Infeasible modifycsi-unknown")
	modified("other", "other, pv modifycsi-other")
	w.must(suite.DeleteClaims(w.ctx, "modifycsi-b"))
	w.noResidue()
}

// claimsNameClasses makes claims that name a VolumeAttributesClass from the beginning:
// they are bound with it, or get an event that says why not.
func (w *world) claimsNameClasses() {
	w.Helper()
	naming := func(class string) func(*corev1.PersistentVolumeClaim) {
		name := w.name + "-" + class
		return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = &name }
	}
	create := func(name, storageClass, class string) *corev1.PersistentVolumeClaim {
		claim, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-b", name, w.name+"-"+storageClass, "1Gi", naming(class)))
		w.must(err)
		return claim
	}
	made := w.madeCSI("other", "driver", "1Gi", naming("other"))
	pv, volume := w.madeFor("other")
	if volume.Type != "other" || pv.Spec.VolumeAttributesClassName == nil || *pv.Spec.VolumeAttributesClassName != w.name+"-other" {
		w.Errorf("the volume has type %q, the PersistentVolume class %v", volume.Type, pv.Spec.VolumeAttributesClassName)
	}
	if current := made.Status.CurrentVolumeAttributesClassName; current == nil || *current != w.name+"-other" {
		w.Errorf("the claim has the class %v", current)
	}
	w.told(create("not-listed", "lab", "multipath"), "ParameterNotAllowed", `asks for volumes of type "iscsi-mp", which tenants[1].classes[0].volumeTypes does not list`)
	w.told(create("unknown", "lab", "unknown"), "ParameterNotAllowed", `VolumeAttributesClass "modifycsi-unknown" has parameters that the driver does not take: iops; it takes type`)
	w.told(create("native", "mistaken", "other"), "UnsupportedVolumeAttributesClass", "makes native volumes, which cannot have one")
	late := create("late", "lab", "late")
	w.told(late, "VolumeAttributesClassNotFound", `VolumeAttributesClass "modifycsi-late" does not exist`)
	w.attributesClass("late", map[string]string{"type": "other"})
	if _, volume := w.madeFor("late"); volume.Type != "other" {
		w.Errorf("the volume of the claim that waited has type %q", volume.Type)
	}
}

// attributesClass makes a VolumeAttributesClass of the driver.
func (w *world) attributesClass(name string, parameters map[string]string) {
	w.Helper()
	name = w.name + "-" + name
	_, err := suite.Client.StorageV1().VolumeAttributesClasses().Create(w.ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: wire.DriverName, Parameters: parameters}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = suite.Client.StorageV1().VolumeAttributesClasses().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}
