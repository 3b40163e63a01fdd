package placement

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// TestClaimLeavesOnlyABackendWithoutAVolumeOfIt: Choose stays at a backend until
// MayLeave allows it, and MayLeave needs a proof.
func TestClaimLeavesOnlyABackendWithoutAVolumeOfIt(t *testing.T) {
	const uid = "uid-1"
	for name, c := range map[string]struct {
		happens  func(f *fixture)
		mayLeave bool
	}{
		"the backend answers": {func(*fixture) {}, false},
		"nothing was begun":   {func(f *fixture) { f.backends["gold"].health = errors.New("down") }, true},
		"an attempt began and sent nothing": {func(f *fixture) {
			f.backends["gold"].health = errors.New("down")
			f.begun[uid] = stamps.Volume{ClaimUID: uid}
		}, true},
		"an attempt may have created a volume": {func(f *fixture) {
			f.backends["gold"].health = errors.New("down")
			f.begun[uid] = stamps.Volume{ClaimUID: uid}
			f.backends["gold"].touched = map[string]bool{uid: true}
		}, false},
		"a listing showed a volume": {func(f *fixture) {
			f.backends["gold"].health = errors.New("down")
			f.Ledger.ReleaseReservation(uid)
			f.Ledger.Found(uid, ledger.Volume{Tenant: "a", GiB: 1}, "gold")
		}, false},
		"Cinder's quota is full": {func(f *fixture) {
			f.NoteFull("gold", policy.VolumeProperties{SizeGiB: 1}, errGoldAtLimit)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.NoteEarlier(objects.NewEarlierClaims("10", nil))
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: uid, ResourceVersion: "11"}}
			decided := ledger.Decided{
				Decision: f.Policy().Decide(policy.Request{Namespace: "team-a", StorageClass: "both", Bytes: 1 << 30}),
				Revision: f.Policy().Revision(),
			}
			if decided.Denial != nil {
				t.Fatal(decided.Denial.Message)
			}
			chosen, err := f.Choose(t.Context(), claim, "both", decided)
			if err != nil || chosen.Backend != "gold" {
				t.Fatalf("chose %+v, error %v", chosen, err)
			}
			c.happens(f)
			if got := f.MayLeave(claim, decided); got != c.mayLeave {
				t.Errorf("may leave: %t, want %t", got, c.mayLeave)
			}
		})
	}
}
