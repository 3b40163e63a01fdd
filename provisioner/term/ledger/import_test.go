package ledger

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestImportExchangesWhatAnotherClaimLeftBehind: the volume needs room only once, under
// the claim that gets it. It counts for the other claim again if that one gives up.
func TestImportExchangesWhatAnotherClaimLeftBehind(t *testing.T) {
	l := ledgerOf(t)
	decision := func(gib int64) Decided {
		return Decided{Decision: l.policy().Decide(policy.Request{Namespace: "team-a", StorageClass: "fast", Bytes: gib << 30}), Revision: l.policy().Revision(), Import: "volume-1", LeftBy: "old"}
	}
	used := func(volumes, gib int64) {
		t.Helper()
		if sum := l.Usage(policy.TenantScope, "a"); sum.Volumes != volumes || sum.Gigabytes != gib {
			t.Errorf("used %+v, want %d volumes of %d GiB", sum, volumes, gib)
		}
	}
	l.Record("old", Volume{Tenant: "a", StorageClass: "fast", GiB: 15, VolumeID: "volume-1"}, "gold")
	if _, _, refused, err := l.Reserve("new", "fast", decision(15)); refused == nil || err != nil {
		t.Errorf("a volume in use was exchanged: %v", err)
	}
	l.PersistentVolumeGone("old")
	if _, _, refused, err := l.Reserve("new", "fast", decision(21)); refused == nil || err != nil {
		t.Errorf("more than the quota was granted: %v", err)
	}
	used(1, 15)
	backend, _, refused, err := l.Reserve("new", "fast", decision(15))
	if backend != "gold" || refused != nil || err != nil {
		t.Fatalf("%s, %+v, %v", backend, refused, err)
	}
	used(1, 15)
	position, counts := l.PositionOf("new")
	if !counts || !position.Imported || position.VolumeID != "volume-1" || !position.NothingSeen {
		t.Errorf("%+v", position)
	}
	if !l.ReleaseReservation("new") || !l.WasRecorded("old", "volume-1") {
		t.Error("the volume no longer counts for the claim that left it behind")
	}
	used(1, 15)
	if _, _, refused, err := l.Reserve("new", "fast", decision(15)); refused != nil || err != nil {
		t.Fatalf("%+v, %v", refused, err)
	}
	l.Keep("new")
	if l.ReleaseReservation("new") || l.WasRecorded("old", "volume-1") {
		t.Error("a stamped volume counts for both, or for none")
	}
	used(1, 15)
}
