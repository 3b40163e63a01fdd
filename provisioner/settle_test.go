package provisioner

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// TestAttemptThatEndsSaysWhy: the library logs the reason why it ignores an
// attempt's error, and the reason must be the true one.
func TestAttemptThatEndsSaysWhy(t *testing.T) {
	for want, happens := range map[error]func(f *fixture, claim *corev1.PersistentVolumeClaim){
		errClaimGone: func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.noteEarlier(claim)
			f.goneAtTheServer(claim)
		},
		errBoundToOther: func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.noteEarlier(claim)
			bound := claim.DeepCopy()
			bound.Spec.VolumeName = "another"
			f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, bound.Namespace))
		},
		errDenied: func(f *fixture, _ *corev1.PersistentVolumeClaim) { f.class.Name = "unknown" },
		errSaved: func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			pv, err := f.provision(claim)
			f.must(err)
			f.must(f.client.Tracker().Add(pv))
		},
		errNoTurn: func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			for busy := types.UID("busy"); f.claimTurns.Begin(busy, "a", "gold"); busy += "-" {
			}
		},
	} {
		t.Run(want.Error(), func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(nil)
			happens(f, claim)
			_, err := f.provision(claim)
			var ignored *controller.IgnoredError
			if !errors.As(err, &ignored) || ignored.Reason != want.Error() {
				t.Errorf("error %v, want it ignored because: %s", err, want)
			}
		})
	}
}
