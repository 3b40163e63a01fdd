package app

import (
	"reflect"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// TestCachedCSINodesHaveTheDriverAlone: the program reads nothing else of them.
func TestCachedCSINodesHaveTheDriverAlone(t *testing.T) {
	got, err := onlyUse(&storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid", ResourceVersion: "7", Annotations: map[string]string{"a": "b"}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "other.example.org", NodeID: "x", TopologyKeys: []string{"zone"}}, {Name: wire.DriverName, NodeID: "v1 n1", TopologyKeys: []string{"zone"}},
		}},
	})
	want := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid", ResourceVersion: "7"},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: "v1 n1"}}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("kept %+v (%v)", got, err)
	}
}

// TestCachedVolumeAttachmentsOfOthersHaveTheirPlaceAlone: the program reads nothing
// else of them.
func TestCachedVolumeAttachmentsOfOthersHaveTheirPlaceAlone(t *testing.T) {
	pv := "pvc-1"
	full := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "7", Finalizers: []string{"f"}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "other.example.org", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"a": "b"}},
	}
	want := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "7"},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
	for _, attacher := range []string{"other.example.org", wire.DriverName} {
		full.Spec.Attacher = attacher
		if attacher == wire.DriverName {
			want.Spec.Attacher, want.Status.Attached = attacher, true
		}
		if got, err := onlyUse(full); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("kept %+v (%v)", got, err)
		}
	}
}
