package attach

import (
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const otherID = "0c7d34a1-2f2b-4b53-9a0e-6f7a1c1f9b10"

// TestASwappedVolumeIsAttachedUnderItsHandle: Cinder hears of the volume that is recorded,
// and the node of both.
func TestASwappedVolumeIsAttachedUnderItsHandle(t *testing.T) {
	pv := testPV()
	pv.Annotations[objects.AnnotationVolume] = otherID
	pv.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + volumeID + `", "with": ["pvc-2"], "filesystemUUIDs": ["a"], "neverFormat": true}`
	w := newWorld(t, pv, testSecret())
	w.rules.VolumesPerNode = 1
	got, err := w.publish(t)
	must(t, err)
	if w.volumes.target.VolumeID != otherID {
		t.Errorf("Cinder was asked for volume %s", w.volumes.target.VolumeID)
	}
	if v := got.Volume; v == nil || v.ID != otherID || !slices.Equal(v.FilesystemUUIDs, []string{"a"}) || !v.NeverFormat {
		t.Errorf("the node is told %+v", v)
	}
	// The node's place is that of the backend where the volume is.
	if _, err := w.room.takePlace(t.Context(), w.volumes, wire.Handle{Backend: "gold", ID: "1"}, place{"gold", "n1"}); err == nil {
		t.Error("the place is free")
	}
	stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName}
	v := cinder.Volume{ID: otherID, Metadata: stamp.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI})}
	if handle, known := w.handleFor(v, "gold"); !known || handle != (wire.Handle{Backend: "gold", ID: volumeID}) {
		t.Errorf("volume %s has the handle %s", v.ID, handle)
	}
	w.volumes.all = []cinder.Volume{v}
	if list, err := w.List(t.Context(), true); err != nil || len(list) != 1 || list[0].Volume.ID != volumeID {
		t.Errorf("the list is %+v, %v", list, err)
	}
	must(t, w.Unpublish(t.Context(), handle(), ""))
	if w.volumes.target.VolumeID != otherID {
		t.Errorf("volume %s was detached", w.volumes.target.VolumeID)
	}
}

// TestAHandleWithoutAPersistentVolumeIsNotThatOfTheNextOwner: the volume that the handle
// once named serves another claim by now.
func TestAHandleWithoutAPersistentVolumeIsNotThatOfTheNextOwner(t *testing.T) {
	next := testPV()
	next.Name, next.Spec.CSI.VolumeHandle = "pvc-2", "gold/"+otherID
	next.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + otherID + `"}`
	w := newWorld(t, next)
	err := w.Unpublish(t.Context(), handle(), n1.Name)
	if failed, ok := errors.AsType[*controller.Failure](err); !ok || failed.Kind != string(cinder.KindNotFound) || !strings.Contains(failed.Message, "is by now that of PersistentVolume pvc-2") {
		t.Errorf("error %v", err)
	}
	if len(w.volumes.calls) > 0 {
		t.Errorf("Cinder was asked for %q", w.volumes.calls)
	}
}

// TestARecordThatIsNotOfTheHandleNeedsASwap: a record that somebody edited, or copied from
// another PersistentVolume, attaches nothing.
func TestARecordThatIsNotOfTheHandleNeedsASwap(t *testing.T) {
	for name, swapped := range map[string]string{
		"none":           "",
		"of another":     `{"handle": "gold/` + otherID + `"}`,
		"unreadable":     `{`,
		"without a name": `{}`,
	} {
		pv := testPV()
		pv.Annotations[objects.AnnotationVolume] = otherID
		if swapped != "" {
			pv.Annotations[objects.AnnotationSwapped] = swapped
		}
		w := newWorld(t, pv, testSecret())
		_, err := w.publish(t)
		if failed, ok := errors.AsType[*controller.Failure](err); !ok || failed.Kind != controller.Damaged {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestAnOrphanWhoseHandleIsAnothersIsLeftAlone: the claims of volumes V and O have swapped,
// and PersistentVolume pvc-1 (handle of V, has O) was removed by force while node n1 had O.
// Nothing leads from O to the handle by which the node knows it, and gold/O is the handle of
// pvc-2, which has V.
func TestAnOrphanWhoseHandleIsAnothersIsLeftAlone(t *testing.T) {
	next := testPV()
	next.Name, next.Spec.CSI.VolumeHandle, next.Annotations[objects.AnnotationClaimUID] = "pvc-2", "gold/"+otherID, "2"
	next.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + otherID + `", "with": ["pvc-1"]}`
	w := newWorld(t, next, machine("n1", "boot-1", ready))
	w.reportsStaged(t, "n1", "boot-1", handle()) // of V, by which it knows O
	orphan := cinder.Volume{ID: otherID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: "pvc-1"}.Metadata(map[string]string{
		stamps.KeyMode: stamps.ModeCSI, stamps.NodeRecordPrefix + wire.NodeKey("n1"): stamps.NodeRecord{AttachmentID: "attachment-1", Node: "n1"}.String(),
	})}
	w.volumes.all, w.volumes.found = []cinder.Volume{orphan}, &orphan
	for range 2 {
		w.rounds.tidy(t.Context())
		w.reportsStaged(t, "n1", "boot-1")
	}
	for _, call := range w.volumes.calls {
		if call != "find" {
			t.Errorf("Cinder was asked to %s", call)
		}
	}
}

// TestARefusalIsNotThatOfTheFormerVolume: a volume is of no use to a node, so its claim
// is swapped with one on another backend. What the term remembers by the handle is the former
// volume's: for ten minutes, the pod is told on the same node what was wrong with that one,
// and Cinder is not even asked.
func TestARefusalIsNotThatOfTheFormerVolume(t *testing.T) {
	pv := testPV()
	w := newWorld(t, pv, testSecret())
	w.volumes.document = `{"driver_volume_type": "nfs"}`
	if _, err := w.publish(t); err == nil {
		t.Fatal("nfs is attached")
	}
	swapped := pv.DeepCopy()
	swapped.Annotations[objects.AnnotationVolume] = otherID
	swapped.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + volumeID + `", "with": ["pvc-2"]}`
	must(t, w.PersistentVolumes.Update(swapped))
	_, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), swapped, metav1.UpdateOptions{})
	must(t, err)
	w.volumes.document = withCHAP
	if _, err := w.publish(t); err != nil {
		t.Error(err)
	}
}
