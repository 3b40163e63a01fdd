package expand

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// TestAClaimThatOnlyNamesAPersistentVolumeEndsNoGrowth: whoever may create claims may
// write any name into spec.volumeName, and the annotation that makes the claim Lost. That
// neither frees the room of an attempt under way nor makes the program ask Cinder.
func TestAClaimThatOnlyNamesAPersistentVolumeEndsNoGrowth(t *testing.T) {
	for _, phase := range []corev1.PersistentVolumeClaimPhase{corev1.ClaimPending, corev1.ClaimLost} {
		for name, happens := range map[string]func(f *fixture, other *corev1.PersistentVolumeClaim){
			"seen":    func(f *fixture, other *corev1.PersistentVolumeClaim) { f.ClaimChanged(nil, other) },
			"deleted": func(f *fixture, other *corev1.PersistentVolumeClaim) { f.ClaimChanged(other, nil) },
		} {
			t.Run(string(phase)+" "+name, func(t *testing.T) {
				f, room := withQuota(t)
				claim, pv := pair("data")
				claim.Spec.Resources.Requests = size("30Gi")
				f.add(claim, pv)
				other, _ := pair("other")
				other.Namespace, other.Spec.VolumeName, other.Status.Phase = "team-b", pv.Name, phase
				f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Add(other))
				room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
				var queued []string
				admitted := false
				// The attempt has reserved 30 GiB, and has not asked Cinder yet.
				f.client.PrependReactor("*", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if verb := action.GetVerb(); queued == nil && (verb == "patch" || verb == "update") {
						happens(f, other)
						queued = append([]string{}, f.queued()...)
						for _, key := range queued {
							f.loop.Try(t.Context(), key)
						}
						admitted = room.reserve(f, 20)
					}
					return false, nil, nil
				})
				f.sync("data")
				if queued == nil || len(queued) > 0 || admitted || room.used() > 30 {
					t.Errorf("queued %q; tenant a has a quota of 30 GiB and uses %d; another claim was admitted meanwhile: %t", queued, room.used(), admitted)
				}
			})
		}
	}
}
