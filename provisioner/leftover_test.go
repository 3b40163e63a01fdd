package provisioner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// leftover is a volume that an earlier leader made for claim team-a/data.
func (f *fixture) leftoverVolume(uid string) backends.Volume {
	v := f.stamped(uid)
	v.Metadata = backends.Stamp{
		Cluster: "cluster-1", Namespace: "team-a", Claim: "data", ClaimUID: uid, PV: "pvc-" + uid, Tenant: "a", StorageClass: "one",
	}.Metadata(nil)
	return v
}

// follow runs the follow-up until its queue is empty.
func (f *fixture) follow(followup *Followup) {
	for followup.queue.Len() > 0 {
		followup.next(f.t.Context())
	}
}

func TestVolumeOfAClaimThatWasDeletedUnderAnEarlierLeaderIsUndone(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].listed = []backends.Volume{f.leftoverVolume("uid-gone")}
	followup := NewFollowup(f.Provisioner, 1)
	f.count()
	f.follow(followup)
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-gone")
	if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
		t.Errorf("it still counts as %+v", got)
	}
}

func TestLeftoverIsKeptWhileAnythingMayReferToIt(t *testing.T) {
	claim := func(uid types.UID) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: uid}}
	}
	for name, prepare := range map[string]func(f *fixture){
		"its claim is in the cache": func(f *fixture) {
			f.claim(func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-gone" })
		},
		"its claim has not reached the cache": func(f *fixture) {
			f.must(f.client.Tracker().Add(claim("uid-gone")))
		},
		"a PersistentVolume names it that has not reached the cache": func(f *fixture) {
			f.must(f.client.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-gone"}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.backends["gold"].listed = []backends.Volume{f.leftoverVolume("uid-gone")}
			prepare(f)
			followup := NewFollowup(f.Provisioner, 1)
			f.count()
			f.follow(followup)
			wantCalls(t, f.backends["gold"])
		})
	}
}

func TestClaimOfTheSameNameDoesNotKeepAnothersLeftover(t *testing.T) {
	f := newFixture(t)
	f.must(f.client.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-new"}}))
	f.backends["gold"].listed = []backends.Volume{f.leftoverVolume("uid-gone")}
	followup := NewFollowup(f.Provisioner, 1)
	f.count()
	f.follow(followup)
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-gone")
}

func TestWhatATenantHasElsewhereCountsBeforeItsFirstVolume(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.backends["silver"].listed = []backends.Volume{f.stamped("uid-of-another")}
	if _, err := f.provision(f.claim(nil)); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.wantEvent(exceeded)
	wantCalls(t, f.backends["gold"])
}

func TestTenantsOtherBackendThatCannotBeCountedDoesNotStopIt(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.backends["silver"].listErr = &backends.Error{Kind: backends.KindUnavailable, Backend: "silver", Message: "down"}
	_, err := f.provision(f.claim(nil))
	f.must(err)
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}
