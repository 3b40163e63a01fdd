package ledger

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// growTo asks the policy first and then the ledger, as the daemon does.
func (l *Ledger) growTo(claim types.UID, h Volume, backend string, sizeGiB int64) *policy.Denial {
	inForce := l.policy()
	request := policy.Request{Namespace: "team-" + h.Tenant, StorageClass: h.StorageClass, Bytes: sizeGiB << 30}
	decision := inForce.DecideExpansion(request, policy.Holding{Tenant: h.Tenant, Backend: backend})
	refused, err := l.Grow(claim, Decided{Decision: decision, Revision: inForce.Revision()})
	if err != nil {
		panic(err)
	}
	if refused != nil {
		return refused.Denial
	}
	return nil
}

func (l *Ledger) gigabytes(kind policy.ScopeKind, name string) int64 {
	return l.Usage(kind, name).Gigabytes
}

func TestGrowthTakesTheDifference(t *testing.T) {
	l := ledgerOf(t)
	data, other := Volume{"a", "fast", 10, "volume-1", false, false}, Volume{"a", "fast", 4, "volume-2", false, false}
	l.Record("data", data, "silver")
	l.Record("other", other, "silver")
	if denial := l.growTo("data", data, "silver", 17); denial == nil || denial.Message !=
		"StorageClasses [fast] of tenant a would use 21 of 20 GiB (tenants[0].classes[0].quota.gigabytes)" {
		t.Errorf("the denial is %+v", denial)
	}
	if denial := l.growTo("data", data, "silver", 16); denial != nil {
		t.Fatal(denial)
	}
	if denial := l.growTo("other", other, "silver", 5); denial == nil {
		t.Error("two claims shared the last of the room")
	}
	if got := l.gigabytes(policy.TenantScope, "a"); got != 20 {
		t.Errorf("tenant a uses %d GiB, want 20", got)
	}
	// A smaller size than before needs no room, and frees some.
	if denial := l.growTo("data", data, "silver", 12); denial != nil {
		t.Fatal(denial)
	}
	if freed := l.TakeFreed(); !slices.Contains(freed, Scope{policy.TenantScope, "a"}) {
		t.Errorf("freed %v", freed)
	}
	if denial := l.growTo("other", other, "silver", 5); denial != nil {
		t.Error(denial)
	}
	// The PersistentVolume gets the size, and the growth does not count twice.
	data.GiB = 12
	l.Record("data", data, "silver")
	if _, freed := l.GiveUpGrowth("data"); freed {
		t.Error("a recorded growth was given up")
	}
	for _, want := range []bool{true, false} {
		if over, freed := l.GiveUpGrowth("other"); !over || freed != want || l.IsGrowing("other") {
			t.Errorf("given up: %v, freed: %v, want %v", over, freed, want)
		}
	}
	if got := l.gigabytes(policy.TenantScope, "a"); got != 16 {
		t.Errorf("tenant a uses %d GiB, want 16", got)
	}
}

func TestWhatCinderShowsCounts(t *testing.T) {
	l := ledgerOf(t)
	data := Volume{"a", "fast", 10, "volume-1", false, false}
	l.Record("data", data, "silver")
	// An earlier leader extended the volume, and did not record it.
	l.Found("data", Volume{"a", "fast", 15, "volume-1", false, false}, "silver")
	// This is a second volume of the claim, or one that only carries its stamp.
	l.Found("data", Volume{"a", "fast", 19, "volume-9", false, false}, "silver")
	if got := l.gigabytes(policy.BackendScope, "silver"); got != 15 {
		t.Errorf("backend silver has %d GiB, want 15", got)
	}
	if l.GiveUpGrowth("data"); l.gigabytes(policy.BackendScope, "silver") != 15 {
		t.Error("what Cinder shows was given up")
	}
	l.SettleGrowth("data", 16)
	l.SettleGrowth("data", 11)
	if got := l.gigabytes(policy.BackendScope, "silver"); got != 16 {
		t.Errorf("backend silver has %d GiB, want 16", got)
	}
	if l.Release("data"); l.gigabytes(policy.BackendScope, "silver") != 0 {
		t.Error("a volume that is gone counts")
	}
	if l.Record("data", data, "silver"); l.gigabytes(policy.BackendScope, "silver") != 10 {
		t.Error("a growth outlived its volume")
	}
}

func TestHeldGrowthComesBeforeItsVolume(t *testing.T) {
	l := ledgerOf(t)
	l.HoldGrowth("data", 18)
	if got := l.gigabytes(policy.TenantScope, "a"); got != 0 {
		t.Errorf("an unknown volume counts %d GiB", got)
	}
	data := Volume{"a", "fast", 10, "volume-1", false, false}
	l.Record("data", data, "silver")
	if got := l.gigabytes(policy.TenantScope, "a"); got != 18 {
		t.Errorf("tenant a uses %d GiB, want 18", got)
	}
	// The claim already has this room.
	if denial := l.growTo("data", data, "silver", 18); denial != nil {
		t.Error(denial)
	}
}

// TestRequestedGrowthCountsUntilItIsSettled: Cinder may be extending the volume,
// whatever the claim asks for now.
func TestRequestedGrowthCountsUntilItIsSettled(t *testing.T) {
	l := ledgerOf(t)
	data := Volume{"a", "fast", 10, "volume-1", false, false}
	l.Record("data", data, "silver")
	l.HoldGrowth("data", 18)
	if denial := l.growTo("data", data, "silver", 12); denial != nil {
		t.Fatal(denial)
	}
	if over, freed := l.GiveUpGrowth("data"); over || freed {
		t.Errorf("given up: %v, freed: %v", over, freed)
	}
	if got := l.gigabytes(policy.TenantScope, "a"); got != 18 || !l.IsGrowing("data") {
		t.Errorf("tenant a uses %d GiB, want 18", got)
	}
	if !l.SettleGrowth("data", 12) || l.IsGrowing("data") {
		t.Error("a settled growth frees nothing, or goes on")
	}
	if got := l.gigabytes(policy.TenantScope, "a"); got != 12 {
		t.Errorf("tenant a uses %d GiB, want 12", got)
	}
}

// TestNoInterleavingOfGrowthsExceedsALimit: in whichever order growths are reserved,
// given up, recorded and released, the sums are those of the volumes, and within the
// limits.
func TestNoInterleavingOfGrowthsExceedsALimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ledgerOf(t)
		recorded, reserved := map[types.UID]int64{}, map[types.UID]int64{}
		uids, sizes := rapid.SampledFrom([]types.UID{"1", "2", "3"}), rapid.Int64Range(1, 20)
		of := func(uid types.UID) Volume {
			return Volume{"a", "fast", recorded[uid], "volume-" + string(uid), false, false}
		}
		for _, uid := range []types.UID{"1", "2", "3"} {
			recorded[uid] = 2
			l.Record(uid, of(uid), "silver")
		}
		t.Repeat(map[string]func(*rapid.T){
			"grow": func(t *rapid.T) {
				uid, size := uids.Draw(t, "uid"), sizes.Draw(t, "size")
				if recorded[uid] > 0 && l.growTo(uid, of(uid), "silver", size) == nil {
					reserved[uid] = size
				}
			},
			"give up": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				l.GiveUpGrowth(uid)
				delete(reserved, uid)
			},
			"record": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				if recorded[uid] > 0 && reserved[uid] > recorded[uid] {
					recorded[uid] = reserved[uid]
					l.SettleGrowth(uid, recorded[uid])
					l.Record(uid, of(uid), "silver")
					delete(reserved, uid)
				}
			},
			"release": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				l.Release(uid)
				recorded[uid] = 0
				delete(reserved, uid)
			},
			"": func(t *rapid.T) {
				want := int64(0)
				for uid, size := range recorded {
					if size > 0 {
						want += max(size, reserved[uid])
					}
				}
				for _, s := range []Scope{{policy.TenantScope, "a"}, {policy.ClassScope, "tenants[0].classes[0]"}, {policy.BackendScope, "silver"}} {
					if got := l.gigabytes(s.Kind, s.Name); got != want {
						t.Fatalf("%v has %d GiB, the volumes have %d", s, got, want)
					}
				}
				if want > 20 {
					t.Fatalf("%d GiB of 20 are used", want)
				}
			},
		})
	})
}
