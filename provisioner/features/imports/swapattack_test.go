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
		objects.AnnotationSwapped: `{"handle": "gold/` + handle + `", "with": "pvc-x"}`,
	}}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "standalone-cinder.openstack.org", VolumeHandle: "gold/" + handle}
	return pv
}

// TestAttackAKeptVolumeCanBeImportedAfterASwap: claims A and B swap, B is deleted with the
// policy Retain, and with it PersistentVolume B. Its data is in the volume that A's handle
// names, and an import would give that handle to a second PersistentVolume, so it is
// refused (rightly: kubelet would take both for one). As long as A exists, no command makes
// the kept data usable again in mode csi. Likewise after A's objects were lost: A's volume
// has the ID in B's handle, so disaster recovery by import, which docs promise, ends here.
func TestAttackAKeptVolumeCanBeImportedAfterASwap(t *testing.T) {
	o := newOperator(t, csiPolicy, drivers(nil), swappedPV("pvc-a", "volume-1", "volume-2"))
	if _, err := o.Plan(t.Context(), o.request); err != nil {
		t.Error(err)
	}
}

// TestAttackARestoredBackupOfASwappedVolumeIsMounted: an operator restores Cinder's backup
// of the volume that a claim had before a swap, and imports it. The stamp in the backup
// names the claim's PersistentVolume, and the import takes the filesystem's UUIDs from
// that, but those are of the other volume by now: the import succeeds, and no node mounts
// the volume. Without a record, it would have asked for --filesystem-uuid.
func TestAttackARestoredBackupOfASwappedVolumeIsMounted(t *testing.T) {
	restored := drivers(nil)
	restored.CreatedAt = time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC)
	// It had volume filesystem1 when the backup was made, whose filesystem has that UUID.
	o := newOperator(t, csiPolicy, restored, swappedPV("pvc-uid-old", filesystem1, filesystem2))
	plan, err := o.Plan(t.Context(), o.request)
	if err != nil {
		return // it asks for the UUID
	}
	if has := plan.PersistentVolume.Spec.CSI.VolumeAttributes["filesystemUUIDs"]; !strings.Contains(has, filesystem1) {
		t.Errorf("nodes look for the filesystems %q, and the volume has %s", has, filesystem1)
	}
}
