package provisioner

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// removeByHand removes a PersistentVolume as an administrator does who keeps the
// volume.
func (f *fixture) removeByHand(followup *Followup, pv *corev1.PersistentVolume) {
	f.t.Helper()
	f.must(f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", pv.Name))
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Delete(pv))
	followup.VolumeGone(pv)
}

// TestRecordedVolumeIsNeverTakenForAnOrphan: Cinder is down when the
// PersistentVolume is saved, so the volume is never brought into use, although a
// pod writes to it. Its claim is deleted, and then its PersistentVolume, because a
// user wants to keep the data.
func TestRecordedVolumeIsNeverTakenForAnOrphan(t *testing.T) {
	f, followup, gold := newCountedFixture(t)
	pv := f.recorded()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.released(pv)
	gold.err = errGoldDown
	followup.VolumeSeen(pv)
	followup.loop.Next(t.Context()) // cannot complete it
	v := f.orphanVolume("uid-1")
	v.ID, v.Status = "volume-1", cinder.StatusAttaching
	gold.listed = []cinder.Volume{v}
	claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data")
	f.must(err)
	f.forgetClaim(claim)
	followup.ClaimGone(claim)
	f.removeByHand(followup, pv)
	gold.err, gold.calls = nil, nil
	f.relist("gold")
	f.follow(followup)
	f.relist("gold")
	f.follow(followup)
	// It is marked for the next leader, and otherwise left alone.
	wantCalls(t, gold, "mark volume-1")
	if got := f.ledger.Usage(policy.TenantScope, "a"); got.Volumes != 1 {
		t.Errorf("it counts as %+v", got)
	}
	// Once it is gone, it no longer counts.
	gold.listed = nil
	f.relist("gold")
	if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
		t.Errorf("it counts as %+v when it is gone", got)
	}
}

// TestRecordedVolumeIsMarkedInEveryPhase: a volume that is used is brought into
// use. One that is kept is only marked: an administrator may have detached it on
// purpose.
func TestRecordedVolumeIsMarkedInEveryPhase(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pv *corev1.PersistentVolume)
		want   string
	}{
		"released": {func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }, "mark volume-1"},
		"failed":   {func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeFailed }, "mark volume-1"},
		"being deleted": {func(pv *corev1.PersistentVolume) {
			pv.Status.Phase, pv.DeletionTimestamp = corev1.VolumeBound, &metav1.Time{Time: time.Now()}
		}, "complete volume-1 read-only=false"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pv := f.recorded()
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			c.change(pv)
			f.must(f.followup.do(t.Context(), followupOf(pv).Value()))
			wantCalls(t, f.backends["gold"], c.want)
		})
	}
}

// TestSecretOfAKeptVolumeStays: the volume was attached, so it is kept, and an
// administrator may import it with its credentials.
func TestSecretOfAKeptVolumeStays(t *testing.T) {
	f := newFixture(t, credentialsOf("pvc-uid-gone"))
	gold := f.backends["gold"]
	v := f.orphanVolume("uid-gone")
	gold.listed = []cinder.Volume{v}
	followup := f.followup
	gold.abandonKeeps = true
	f.count()
	f.follow(followup)
	if !f.hasSecret("pvc-uid-gone") {
		t.Error("the Secret is gone")
	}
	if n := followup.loop.Queue.NumRequeues(followupOfClaimUID("uid-gone")); n != 0 {
		t.Errorf("retried %d times", n)
	}
}

func followupOfClaimUID(claim types.UID) task { return undoOf(claim) }

// TestClaimThatGoesWhileItsBackendIsDownIsUndone: an earlier leader created its
// volume, which this leader may or may not have listed.
func TestClaimThatGoesWhileItsBackendIsDownIsUndone(t *testing.T) {
	for name, listed := range map[string]bool{"listed before": true, "listed afterwards": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			gold := f.backends["gold"]
			followup := f.followup
			claim := f.claim(func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-gone" })
			f.noteEarlier(claim)
			old := f.orphanVolume("uid-gone")
			old.CreatedAt = time.Now().Add(-3 * time.Hour)
			gold.listed = []cinder.Volume{old}
			if listed {
				f.count()
			}
			gold.health, gold.abandonErr = errGoldDown, errGoldDown
			f.forgetClaim(claim)
			followup.ClaimGone(claim)
			followup.loop.Next(t.Context())
			gold.health, gold.abandonErr, gold.calls = nil, nil, nil
			if listed {
				f.must(f.claimGone(t.Context(), claim.UID)) // the queue's next try
			} else {
				f.count()
			}
			f.follow(followup)
			wantCalls(t, gold, "abandon pvc-uid-gone")
			if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
				t.Errorf("it still counts as %+v", got)
			}
		})
	}
}

// TestForeignPersistentVolumeOfTheSameNameHidesNothing: another provisioner has
// taken over the StorageClass, and gives its PersistentVolumes the same names.
func TestForeignPersistentVolumeOfTheSameNameHidesNothing(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	f.backends["gold"].calls = nil
	bound := claim.DeepCopy()
	bound.Spec.VolumeName = "pvc-uid-1"
	f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, "team-a"))
	foreign := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", UID: "foreign", Annotations: map[string]string{objects.AnnotationProvisionedBy: "cinder.csi.openstack.org"}},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-1"}}}
	f.store(foreign)
	followup.VolumeSeen(foreign)
	f.follow(followup)
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-1")
}

// TestDuplicateThatCannotBeRemovedDoesNotFailTheListing: the listing is complete,
// for the audit too, and is not repeated because of the duplicate.
func TestDuplicateThatCannotBeRemovedDoesNotFailTheListing(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	pv := f.recorded()
	f.store(pv)
	gold := f.backends["gold"]
	gold.listed = []cinder.Volume{f.lateVolume(pv)}
	gold.err = &cinder.Error{Kind: cinder.KindForbidden, Backend: "gold", Message: "an administrator must do it"}
	all, err := f.RelistBackend(t.Context(), "gold")
	if err != nil || len(all) != 1 {
		t.Errorf("%d volumes, %v", len(all), err)
	}
	followup.loop.Next(t.Context())
	if n := followup.loop.Queue.NumRequeues(followupOfVolume("uid-1", "gold", "volume-late")); n != 1 {
		t.Errorf("the removal is retried %d times", n)
	}
}

func followupOfVolume(claim types.UID, backend, volume string) task {
	return removalOf(claim, backend, volume)
}

// TestRecordedVolumesOfARenamedBackendAreLeftAlone: the new name's listing shows
// volumes that PersistentVolumes record under the old name.
func TestRecordedVolumesOfARenamedBackendAreLeftAlone(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.Annotations[objects.AnnotationBackend] = "bronze"
	f.store(pv)
	f.seen()
	followup := f.followup
	f.follow(followup) // waits for a policy that has the backend
	v := f.orphanVolume("uid-1")
	v.ID = "volume-1"
	f.backends["silver"].listed = []cinder.Volume{v}
	f.count()
	f.relist("silver")
	if n := followup.loop.Queue.Len(); n != 0 {
		t.Errorf("%d follow-ups", n)
	}
	wantCalls(t, f.backends["silver"])
}

// TestFinishedFollowUpsLeaveNothingInTheLimiter: this holds even after a failure.
func TestFinishedFollowUpsLeaveNothingInTheLimiter(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	pv := f.recorded()
	f.backends["gold"].err = errors.New("broken")
	followup.VolumeSeen(pv)
	followup.loop.Next(t.Context())
	f.backends["gold"].err = nil
	followup.loop.Queue.Add(followupOf(pv))
	followup.loop.Next(t.Context())
	wantCalls(t, f.backends["gold"], "complete volume-1 read-only=false", "complete volume-1 read-only=false")
	if n := f.limiter.Len(); n != 0 {
		t.Errorf("%d items in the limiter", n)
	}
}

// TestSecretsOfClaimsThatWaitNeedNoBackend: a sweep keeps the Secret of a pending
// claim without listing volumes, so it succeeds while a backend is down.
func TestSecretsOfClaimsThatWaitNeedNoBackend(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	secret := credentialsOf("pvc-" + string(claim.UID))
	secret.CreationTimestamp = metav1.Now()
	f.must(f.client.Tracker().Add(secret))
	f.backends["gold"].health = errGoldDown
	f.must(f.SweepSecrets(t.Context()))
}

func TestPersistentVolumeDeletedBeforeItIsBoundIsReported(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	pv := f.recorded()
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-1"}
	pv.Status.Phase = corev1.VolumeAvailable
	followup.VolumeSeen(pv)
	pv.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for range 3 {
		followup.VolumeSeen(pv)
	}
	const want = "Warning DeletedBeforeBound PersistentVolume pvc-uid-1 was deleted before it was bound, so claim team-a/data can no longer be bound to it; delete the claim to remove the PersistentVolume and its volume, then create a new claim"
	if events := f.newEvents(); len(events) != 2 || events[0] != want || events[1] != want {
		t.Errorf("events %q\nwant %q for the PersistentVolume and the claim", events, want)
	}
}

func TestHistoricVolumeIsFoundThoughAnotherBackendIsDown(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].hasErr = errGoldDown
	f.backends["silver"].hasVolume = map[string]bool{"volume-9": true}
	backend, err := f.locateHistoric(t.Context(), &objects.Origin{VolumeID: "volume-9", PVName: "old"})
	if backend != "silver" || err != nil {
		t.Errorf("%q, %v", backend, err)
	}
	f.backends["silver"].hasVolume = nil
	if _, err := f.locateHistoric(t.Context(), &objects.Origin{VolumeID: "volume-9", PVName: "old"}); !cinder.IsKind(err, cinder.KindUnavailable) {
		t.Errorf("error %v, want one that leaves open whether the volume exists", err)
	}
}
