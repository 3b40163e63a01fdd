package imports

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// swappedPV returns a PersistentVolume whose handle names one volume, and that has another.
func swappedPV(name, handle, has string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		objects.AnnotationProvisionedBy: "test", objects.AnnotationBackend: "gold", objects.AnnotationVolume: has, objects.AnnotationCluster: "cluster-1",
		objects.AnnotationSwapped: `{"handle": "gold/` + handle + `", "with": ["pvc-x"]}`,
	}}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "standalone-cinder.openstack.org", VolumeHandle: "gold/" + handle}
	return pv
}

// TestAKeptVolumeWhoseHandleIsAnothersWaits: claims A and B swap, B is deleted with the
// policy Retain, and with it PersistentVolume B. Its data is in the volume that A's handle
// names, and kubelet would take two PersistentVolumes with one handle for one volume.
func TestAKeptVolumeWhoseHandleIsAnothersWaits(t *testing.T) {
	o := newOperator(t, csiPolicy, drivers(nil), swappedPV("pvc-a", "volume-1", "volume-2"))
	if _, err := o.Plan(t.Context(), o.request); err == nil || !strings.Contains(err.Error(), "is already used by PersistentVolume pvc-a") {
		t.Errorf("error %v", err)
	}
}

// TestARestoredBackupOfASwappedVolumeNeedsItsUUID: the backup may be of the volume that the
// claim had before the swap, and the PersistentVolume records the filesystem of the other.
func TestARestoredBackupOfASwappedVolumeNeedsItsUUID(t *testing.T) {
	restored := drivers(nil)
	restored.CreatedAt = time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC)
	o := newOperator(t, csiPolicy, restored, swappedPV("pvc-uid-old", filesystem1, filesystem2))
	if plan, err := o.Plan(t.Context(), o.request); err == nil || !strings.Contains(err.Error(), "give it with --filesystem-uuid") {
		t.Errorf("plan %+v, error %v", plan, err)
	}
}
