package objects

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestIdentityOutlivesTheClaim: who a volume was made for is part of its identity, and
// neither another claim nor a lost or wrong annotation changes that.
func TestIdentityOutlivesTheClaim(t *testing.T) {
	for name, test := range map[string]struct {
		pv              string
		change          func(*corev1.PersistentVolume)
		madeFor, holder types.UID
		damage          string
	}{
		"the claim it was made for": {pv: "pvc-uid-data", madeFor: "uid-data", holder: "uid-data"},
		"bound to another claim": {pv: "pvc-uid-data", change: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "uid-other" },
			madeFor: "uid-data", holder: "uid-data"},
		"rebound": {pv: "pvc-uid-data", change: func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef.UID, pv.Annotations[AnnotationReboundTo] = "uid-other", "uid-other"
		}, madeFor: "uid-data", holder: "uid-other"},
		"restored without the annotation": {pv: "pvc-uid-data", change: func(pv *corev1.PersistentVolume) { delete(pv.Annotations, AnnotationClaimUID) },
			madeFor: "uid-data", holder: "uid-data"},
		"with the annotation of another claim": {pv: "pvc-uid-data", change: func(pv *corev1.PersistentVolume) { pv.Annotations[AnnotationClaimUID] = "uid-other" },
			madeFor: "uid-data", holder: "uid-data"},
		"imported, for another claim now": {pv: "imported-volume-1", change: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "uid-other" },
			madeFor: "uid-data", holder: "uid-data"},
		"imported, restored without the annotation": {pv: "imported-volume-1", change: func(pv *corev1.PersistentVolume) { delete(pv.Annotations, AnnotationClaimUID) },
			damage: "claim-uid is missing; volume volume-1 has its value in the metadata standalone-cinder.openstack.org/claim-uid"},
	} {
		t.Run(name, func(t *testing.T) {
			pv := existingVolumeOf(test.pv, recordedAnnotations(), test.change)
			origin, err := OriginOf(pv)
			if test.damage != "" {
				if err == nil || !strings.Contains(err.Error(), test.damage) {
					t.Errorf("error %v, want %s", err, test.damage)
				}
				return
			}
			if err != nil || origin.ClaimUID != string(test.madeFor) || MadeFor(pv) != test.madeFor || HolderOf(pv) != test.holder {
				t.Errorf("made for %q (%q), holder %q, error %v", MadeFor(pv), origin.ClaimUID, HolderOf(pv), err)
			}
		})
	}
}
