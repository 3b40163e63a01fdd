package attach

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// testAttachment returns the VolumeAttachment of a PersistentVolume on a node.
func testAttachment(pv, node string, change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + pv + "-" + node},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	}
	if change != nil {
		change(a)
	}
	return a
}

// otherPV returns the PersistentVolume of another volume.
func otherPV(n int, backend string) *corev1.PersistentVolume {
	pv := testPV()
	pv.Name, pv.Spec.CSI.VolumeHandle = fmt.Sprintf("other-%d", n), fmt.Sprintf("%s/%d", backend, n)
	pv.Annotations[objects.AnnotationVolume], pv.Annotations[objects.AnnotationBackend] = fmt.Sprint(n), backend
	return pv
}

// TestAFullNodeGetsNoMoreVolumes: the limit counts the volumes that are attached there.
func TestAFullNodeGetsNoMoreVolumes(t *testing.T) {
	const full = "node n1 has 2 of the 2 volumes of backend gold that the policy allows (csi.maxVolumesPerNode); the volume will be attached once another one is detached there"
	waiting := func(a *storagev1.VolumeAttachment) { a.Status.Attached = false }
	foreign := func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "other.example.org" }
	for name, test := range map[string]struct {
		attachments []*storagev1.VolumeAttachment
		full        bool
	}{
		"nothing else":                 {},
		"as many as the limit":         {attachments: []*storagev1.VolumeAttachment{testAttachment("other-1", "n1", nil), testAttachment("other-2", "n1", nil)}, full: true},
		"one that is not attached yet": {attachments: []*storagev1.VolumeAttachment{testAttachment("other-1", "n1", nil), testAttachment("other-2", "n1", waiting)}},
		"one on another node":          {attachments: []*storagev1.VolumeAttachment{testAttachment("other-1", "n1", nil), testAttachment("other-2", "n2", nil)}},
		"one of another driver":        {attachments: []*storagev1.VolumeAttachment{testAttachment("other-1", "n1", nil), testAttachment("other-2", "n1", foreign)}},
		"one of another backend":       {attachments: []*storagev1.VolumeAttachment{testAttachment("other-1", "n1", nil), testAttachment("other-3", "n1", nil)}},
		"one that is gone":             {attachments: []*storagev1.VolumeAttachment{testAttachment("other-1", "n1", nil), testAttachment("other-4", "n1", nil)}},
		"itself, by now over a smaller limit": {attachments: []*storagev1.VolumeAttachment{
			testAttachment("other-1", "n1", nil), testAttachment("other-2", "n1", nil), testAttachment(pvName, "n1", nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), otherPV(1, "gold"), otherPV(2, "gold"), otherPV(3, "silver"))
			for _, a := range test.attachments {
				must(t, w.attachments.Add(a))
			}
			w.rules.VolumesPerNode = 2
			_, err := w.publish(t)
			if !test.full {
				must(t, err)
				return
			}
			wantFailure(t, err, controller.NodeFull, full)
			if len(w.volumes.calls) > 0 {
				t.Errorf("calls %q", w.volumes.calls)
			}
			// A refused volume does not count.
			must(t, w.attachments.Delete(test.attachments[0]))
			_, err = w.publish(t)
			must(t, err)
		})
	}
}

// TestPlaceOfAVolumeAttachmentThatIsRemovedByHandIsFree: nobody asks the driver to
// detach the volume. If there never were VolumeAttachments, because another
// orchestrator attaches volumes, places are kept.
func TestPlaceOfAVolumeAttachmentThatIsRemovedByHandIsFree(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), otherPV(1, "gold"))
	w.rules.VolumesPerNode = 1
	_, err := w.publish(t)
	must(t, err)
	other := wire.Handle{Backend: "gold", ID: "1"}
	w.rounds.tidy(t.Context())
	if _, err := w.room.takePlace(t.Context(), w.volumes, other, place{"gold", "n1"}); err == nil {
		t.Error("the place is free although nobody has detached the volume")
	}
	attachment := testAttachment(pvName, "n1", nil)
	must(t, w.attachments.Add(attachment))
	w.rounds.tidy(t.Context())
	must(t, w.attachments.Delete(attachment))
	w.rounds.tidy(t.Context())
	_, err = w.room.takePlace(t.Context(), w.volumes, other, place{"gold", "n1"})
	must(t, err)
}

// TestPlacesAreCountedBeforeTheCacheShowsThem: several volumes are attached at the same
// time.
func TestPlacesAreCountedBeforeTheCacheShowsThem(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), otherPV(1, "gold"))
	w.rules.VolumesPerNode = 1
	_, err := w.publish(t)
	must(t, err)
	other := controller.PublishRequest{Volume: wire.Handle{Backend: "gold", ID: "1"}, Node: n1}
	_, err = w.Publish(t.Context(), other)
	wantFailure(t, err, controller.NodeFull, "node n1 has 1 of the 1 volumes of backend gold that the policy allows (csi.maxVolumesPerNode); the volume will be attached once another one is detached there")
	// A repetition does not count again.
	_, err = w.publish(t)
	must(t, err)
	// A failed attempt takes no place.
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindConflict, Message: "busy"}
	_, err = w.publish(t)
	wantFailure(t, err, "Conflict", "backend gold: busy")
	w.volumes.err = nil
	_, err = w.room.takePlace(t.Context(), w.volumes, other.Volume, place{"gold", "n1"})
	must(t, err)
	w.Attachments.Known = func() bool { return false }
	if _, err := w.publish(t); err == nil || err.Error() != "the VolumeAttachments are not read yet, so it is not known how many volumes node n1 has" {
		t.Errorf("error %v", err)
	}
}

// TestAnAttachmentThatWasBegunKeepsItsPlace: it exists at Cinder until the volume is
// detached, whatever becomes of this call and of those that repeat it.
func TestAnAttachmentThatWasBegunKeepsItsPlace(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), otherPV(1, "gold"))
	w.rules.VolumesPerNode = 1
	w.client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("silent") })
	_, err := w.publish(t)
	if err == nil || err.Error() != "cannot update Secret standalone-cinder/pvc-1-node: silent" {
		t.Errorf("error %v", err)
	}
	w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no answer"}
	_, err = w.publish(t)
	wantFailure(t, err, "Unavailable", "backend gold: no answer")
	w.volumes.err = nil
	other := controller.PublishRequest{Volume: wire.Handle{Backend: "gold", ID: "1"}, Node: n1}
	_, err = w.Publish(t.Context(), other)
	wantFailure(t, err, controller.NodeFull, "node n1 has 1 of the 1 volumes of backend gold that the policy allows (csi.maxVolumesPerNode); the volume will be attached once another one is detached there")
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	_, err = w.room.takePlace(t.Context(), w.volumes, other.Volume, place{"gold", "n1"})
	must(t, err)
}

// TestAnAttachmentThatAnEarlierTermBeganKeepsItsPlace: its VolumeAttachment does not show
// it yet, but its volume does. A record that no VolumeAttachment asks for keeps no place.
func TestAnAttachmentThatAnEarlierTermBeganKeepsItsPlace(t *testing.T) {
	for name, test := range map[string]struct {
		attachment *storagev1.VolumeAttachment
		full       bool
	}{
		"its VolumeAttachment waits":    {testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) { a.Status.Attached = false }), true},
		"it has no VolumeAttachment":    {testAttachment("other-1", "n2", nil), false},
		"another node's attachment was": {testAttachment(pvName, "n2", func(a *storagev1.VolumeAttachment) { a.Status.Attached = false }), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), otherPV(1, "gold"), test.attachment)
			w.rules.VolumesPerNode = 1
			begun := cinder.Volume{ID: volumeID, Status: cinder.StatusReserved, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
			begun.Metadata[stamps.KeyMode] = stamps.ModeCSI
			begun.Metadata[stamps.NodeRecordPrefix+wire.NodeKey("n1")] = stamps.NodeRecord{AttachmentID: "attachment-1", Node: "n1"}.String()
			w.volumes.all = []cinder.Volume{begun}
			must(t, w.rounds.know(t.Context(), w.volumes, "gold"))
			_, err := w.room.takePlace(t.Context(), w.volumes, wire.Handle{Backend: "gold", ID: "1"}, place{"gold", "n1"})
			if !test.full {
				must(t, err)
				return
			}
			wantFailure(t, err, controller.NodeFull, "node n1 has 1 of the 1 volumes of backend gold that the policy allows (csi.maxVolumesPerNode); the volume will be attached once another one is detached there")
			_, err = w.publish(t)
			must(t, err)
		})
	}
}
