package app

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestLibraryLeavesOthersVolumesOfTheDriverAlone: the library knows the driver's name,
// and would put its finalizer on what an administrator or a sidecar made.
func TestLibraryLeavesOthersVolumesOfTheDriverAlone(t *testing.T) {
	for by, want := range map[string]bool{"openstack.org/standalone-cinder": true, policy.CSIDriver: false, "": false} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver, VolumeHandle: "gold/v1"}}}}
		if by != "" {
			pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": by}
		}
		if got := concernsLibrary(pv); got != want {
			t.Errorf("made by %q: %v", by, got)
		}
	}
}
