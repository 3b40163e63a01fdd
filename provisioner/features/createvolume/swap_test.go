package createvolume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestDeletingASwappedVolumeAgainSucceeds: a trusted caller deletes the volume of a
// handle, and its answer is lost. The volume that the handle names is another one's by now,
// and CSI demands that DeleteVolume of what is gone succeeds.
func TestDeletingASwappedVolumeAgainSucceeds(t *testing.T) {
	w := newWorld(t)
	must(t, w.PersistentVolumes.Add(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-2", Annotations: map[string]string{
			objects.AnnotationVolume: "volume-uid-1", objects.AnnotationBackend: "gold", objects.AnnotationCluster: "cluster-1",
			objects.AnnotationSwapped: `{"handle": "gold/volume-uid-2", "with": ["pvc-uid-1"]}`,
		}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/volume-uid-2"}}},
	}))
	w.volume = &cinder.Volume{ID: "volume-uid-1", Status: cinder.StatusAvailable, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "uid-2", PV: "pvc-uid-2"}.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI})}
	if err := w.Delete(t.Context(), wire.Handle{Backend: "gold", ID: "volume-uid-1"}); err != nil {
		t.Error(err)
	}
}
