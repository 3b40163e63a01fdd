package provisioner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// orphanVolume returns a volume that an earlier leader created for claim team-a/data.
func (f *fixture) orphanVolume(uid string) cinder.Volume {
	v := f.stamped(uid)
	v.Metadata = stamps.Volume{
		Cluster: "cluster-1", ClusterUID: "kube-system-uid", Namespace: "team-a", Claim: "data", ClaimUID: uid, PV: "pvc-" + uid, Tenant: "a", StorageClass: "one",
	}.Metadata(nil)
	v.CreatedAt = time.Now()
	return v
}

// follow runs the follow-up until its queue is empty.
func (f *fixture) follow(followup *Followup) {
	for followup.loop.Queue.Len() > 0 {
		followup.loop.Next(f.t.Context())
	}
}

func TestVolumeOfAClaimThatWasDeletedUnderAnEarlierLeaderIsUndone(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].listed = []cinder.Volume{f.orphanVolume("uid-gone")}
	followup := f.followup
	f.count()
	f.follow(followup)
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-gone")
	if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
		t.Errorf("it still counts as %+v", got)
	}
}

func TestOrphanIsKeptWhileAnythingMayReferToIt(t *testing.T) {
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
			f.backends["gold"].listed = []cinder.Volume{f.orphanVolume("uid-gone")}
			prepare(f)
			followup := f.followup
			f.count()
			f.follow(followup)
			wantCalls(t, f.backends["gold"])
		})
	}
}

func TestVolumesThatAreNotTakenForOrphans(t *testing.T) {
	for name, change := range map[string]func(v *cinder.Volume){
		"an old volume":                      func(v *cinder.Volume) { v.CreatedAt = time.Now().Add(-2 * time.Hour) },
		"one whose stamp contradicts itself": func(v *cinder.Volume) { v.Metadata["csi.storage.k8s.io/pv/name"] = "pvc-uid-of-another" },
		"one whose stamp names no claim":     func(v *cinder.Volume) { delete(v.Metadata, "csi.storage.k8s.io/pvc/name") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			odd, other := f.orphanVolume("uid-odd"), f.orphanVolume("uid-gone")
			change(&odd)
			f.backends["gold"].listed = []cinder.Volume{odd, other}
			followup := f.followup
			f.count()
			f.follow(followup)
			// The odd volume does not prevent the removal of the other one.
			wantCalls(t, f.backends["gold"], "abandon pvc-uid-gone")
		})
	}
}

func TestDuplicateOnAnotherBackendIsRemoved(t *testing.T) {
	f := newFixture(t)
	f.must(f.placement.CountBackend(t.Context(), "gold"))
	claim := f.claim(nil)
	pv, err := f.provision(claim)
	f.must(err)
	f.backends["gold"].calls = nil
	f.backends["silver"].listed = []cinder.Volume{f.stamped("uid-1")}
	followup := f.followup
	f.count()
	f.follow(followup)
	// A PersistentVolume may still come to name this one.
	wantCalls(t, f.backends["silver"])
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", "test"
	f.store(pv)
	f.relist("silver")
	f.follow(followup)
	wantCalls(t, f.backends["silver"], "remove unrecorded volume-of-uid-1 of pvc-uid-1")
	wantCalls(t, f.backends["gold"])
	if position, _ := f.ledger.PositionOf(claim.UID); position.Backend != "gold" {
		t.Errorf("the claim counts on %q", position.Backend)
	}
}

func TestClaimDeletedDuringAdmissionLeavesNothing(t *testing.T) {
	t.Run("reserved", func(t *testing.T) {
		f, followup, _ := newCountedFixture(t)
		claim := f.claim(nil)
		f.forgetClaim(claim) // the library has already read it
		f.admits(claim)
		f.follow(followup)
		if _, counts := f.ledger.PositionOf(claim.UID); counts {
			t.Error("its room stays reserved")
		}
	})
	t.Run("denied", func(t *testing.T) {
		f := newFixture(t)
		followup := f.followup
		claim := f.claim(func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" })
		f.forgetClaim(claim)
		f.admits(claim)
		f.follow(followup)
		if len(f.PendingClaims()) != 0 || !f.parkedClaims.lot.IsNews(claim.UID, "NoMatchingTenant", "", true) {
			t.Error("its denial is remembered")
		}
	})
	t.Run("while its backend is listed", func(t *testing.T) {
		f := newFixture(t)
		gold := f.backends["gold"]
		claim := f.claim(nil)
		gold.onList = func() {
			gold.onList = nil
			f.forgetClaim(claim)
			f.must(f.claimGone(t.Context(), claim.UID)) // finds no attempt to undo
		}
		if _, err := f.provision(claim); !isIgnored(err) {
			t.Errorf("error %v, want one that the library ignores", err)
		}
		for _, call := range gold.calls {
			if call != "abandon pvc-uid-1" {
				t.Errorf("the backend was called: %s", call)
			}
		}
	})
	t.Run("and cannot be undone at once", func(t *testing.T) {
		f := newFixture(t)
		followup := f.followup
		gold := f.backends["gold"]
		claim := f.claim(nil)
		gold.onCall = func() {
			gold.onCall = nil
			f.forgetClaim(claim)
			f.must(f.claimGone(t.Context(), claim.UID))
			gold.abandonErr = &cinder.Error{Kind: backends.KindTimeout, Backend: "gold", Message: "slow"}
		}
		if _, err := f.provision(claim); err == nil {
			t.Fatal("the attempt succeeded")
		}
		gold.abandonErr = nil
		f.follow(followup)
		if _, begun := f.journal.Beginning(claim.UID); begun {
			t.Error("the attempt is forgotten, so nothing undoes it")
		}
	})
}

func TestFencedUndoIsRetried(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	f.backends["gold"].abandonErr = &cinder.Error{Kind: cinder.KindFenced, Backend: "gold", Message: "the lease has run out"}
	f.forgetClaim(claim)
	followup.ClaimGone(claim)
	followup.loop.Next(t.Context())
	if followup.loop.Queue.NumRequeues(followupOfClaimUID(claim.UID)) == 0 {
		t.Error("the undo is not retried")
	}
}

func TestClaimOfTheSameNameDoesNotKeepAnOrphan(t *testing.T) {
	f := newFixture(t)
	f.must(f.client.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-new"}}))
	f.backends["gold"].listed = []cinder.Volume{f.orphanVolume("uid-gone")}
	followup := f.followup
	f.count()
	f.follow(followup)
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-gone")
}

func TestWhatATenantHasElsewhereCountsBeforeItsFirstVolume(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.backends["silver"].listed = []cinder.Volume{f.stamped("uid-of-another")}
	if _, err := f.provision(f.claim(nil)); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.wantEvent(exceeded)
	wantCalls(t, f.backends["gold"])
}

func TestTenantsOtherBackendThatCannotBeCountedDoesNotStopIt(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.backends["silver"].listErr = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "silver", Message: "down"}
	_, err := f.provision(f.claim(nil))
	f.must(err)
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

// TestSecretGoesAfterTheVolume: if the volume turns out to have been in use, it is kept
// together with its credentials.
func TestSecretGoesAfterTheVolume(t *testing.T) {
	f := newFixture(t, credentialsOf("pvc-uid-gone"))
	gold := f.backends["gold"]
	gold.listed = []cinder.Volume{f.orphanVolume("uid-gone")}
	gold.onCall = func() {
		if !f.hasSecret("pvc-uid-gone") {
			t.Error("the Secret is removed while the volume exists")
		}
	}
	followup := f.followup
	f.count()
	f.follow(followup)
	wantCalls(t, gold, "abandon pvc-uid-gone")
	if f.hasSecret("pvc-uid-gone") {
		t.Error("the Secret is left")
	}
}

// TestBackendsThatShowTheSameVolumesShareThem: two backends of a policy may have
// the same project, for example with different connectors.
func TestBackendsThatShowTheSameVolumesShareThem(t *testing.T) {
	f := newFixture(t)
	f.must(f.placement.CountBackend(t.Context(), "gold"))
	_, err := f.provision(f.claim(nil))
	f.must(err)
	own := f.stamped("uid-1")
	f.backends["gold"].calls, f.backends["gold"].hasVolume = nil, map[string]bool{own.ID: true}
	f.backends["silver"].listed = []cinder.Volume{own}
	followup := f.followup
	f.must(f.placement.CountBackend(t.Context(), "silver"))
	f.follow(followup)
	wantCalls(t, f.backends["silver"])
	wantCalls(t, f.backends["gold"])
}
