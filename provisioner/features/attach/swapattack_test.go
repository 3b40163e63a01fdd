package attach

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestAttackASwappedVolumeWithoutPersistentVolumeIsDetached: the claims of volumes V and O
// have swapped, and PersistentVolume pvc-1 (handle of V, has O) was removed by force while
// node n1 had O. The record on O makes the leader owe the detachment of "gold/O", but that
// is the handle of pvc-2, which has V: Cinder is asked to detach V, the volume of a claim
// that nobody detached, and O stays attached to n1 for ever. Before swaps, O was found by
// its stamp and detached.
func TestAttackASwappedVolumeWithoutPersistentVolumeIsDetached(t *testing.T) {
	next := testPV()
	next.Name, next.Spec.CSI.VolumeHandle, next.Annotations[objects.AnnotationClaimUID] = "pvc-2", "gold/"+otherID, "2"
	next.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + otherID + `", "with": "pvc-1"}`
	w := newWorld(t, next, machine("n1", "boot-1", ready))
	w.reportsStaged(t, "n1", "boot-1")
	orphan := cinder.Volume{ID: otherID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: "pvc-1"}.Metadata(map[string]string{
		stamps.KeyMode: stamps.ModeCSI, stamps.NodeRecordPrefix + wire.NodeKey("n1"): stamps.NodeRecord{AttachmentID: "attachment-1", Node: "n1"}.String(),
	})}
	w.volumes.all, w.volumes.found = []cinder.Volume{orphan}, &orphan
	w.rounds.tidy(t.Context())
	if from := " from " + wire.NodeKey("n1"); !slices.Contains(w.volumes.calls, "unpublish "+otherID+from) {
		t.Errorf("volume %s, of which no PersistentVolume is left, stays attached to n1; calls %q", otherID, w.volumes.calls)
	} else if slices.Contains(w.volumes.calls, "unpublish "+volumeID+from) {
		t.Error("the volume of pvc-2 is detached")
	}
}

// TestAttackAnOrphanIsNotStagedUnderItsOwnHandle: as before, but the node still has O
// mounted, and reports it under the handle by which it knows it, that of V. The record on O
// alone leads to the handle of pvc-2, which the node has not staged. So nothing keeps the
// leader from answering that the node has let go.
func TestAttackAnOrphanIsNotStagedUnderItsOwnHandle(t *testing.T) {
	next := testPV()
	next.Name, next.Spec.CSI.VolumeHandle, next.Annotations[objects.AnnotationClaimUID] = "pvc-2", "gold/"+otherID, "2"
	next.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + otherID + `", "with": "pvc-1"}`
	w := newWorld(t, next, machine("n1", "boot-1", ready))
	w.reportsStaged(t, "n1", "boot-1", handle()) // of V, by which it knows O
	orphan := cinder.Volume{ID: otherID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: "pvc-1"}.Metadata(map[string]string{
		stamps.KeyMode: stamps.ModeCSI, stamps.NodeRecordPrefix + wire.NodeKey("n1"): stamps.NodeRecord{AttachmentID: "attachment-1", Node: "n1"}.String(),
	})}
	w.volumes.all, w.volumes.found = []cinder.Volume{orphan}, &orphan
	w.rounds.tidy(t.Context())
	for _, call := range w.volumes.calls {
		if call != "find" {
			t.Errorf("Cinder was asked to %s", call)
		}
	}
	w.volumes.calls = nil
	w.reportsStaged(t, "n1", "boot-1")
	w.rounds.tidy(t.Context())
	w.rounds.tidy(t.Context())
	if !slices.Contains(w.volumes.calls, "unpublish "+otherID+" from "+wire.NodeKey("n1")) {
		t.Errorf("n1 has unmounted volume %s, which stays attached; calls %q; owed %v", otherID, w.volumes.calls, w.unsettled.owedBy(handle()))
	}
}

// TestAttackARefusalIsThatOfTheFormerVolume: a volume is of no use to a node, so its claim
// is swapped with one on another backend. What the term remembers by the handle is the former
// volume's: for ten minutes, the pod is told on the same node what was wrong with that one,
// and Cinder is not even asked.
func TestAttackARefusalIsThatOfTheFormerVolume(t *testing.T) {
	pv := testPV()
	w := newWorld(t, pv, testSecret())
	w.volumes.document = `{"driver_volume_type": "nfs"}`
	if _, err := w.publish(t); err == nil {
		t.Fatal("nfs is attached")
	}
	swapped := pv.DeepCopy()
	swapped.Annotations[objects.AnnotationVolume] = otherID
	swapped.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + volumeID + `", "with": "pvc-2"}`
	must(t, w.PersistentVolumes.Update(swapped))
	_, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), swapped, metav1.UpdateOptions{})
	must(t, err)
	w.volumes.document = withCHAP
	if _, err := w.publish(t); err != nil {
		t.Error(err)
	}
}
