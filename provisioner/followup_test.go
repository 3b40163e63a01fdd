package provisioner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// recorded provisions a volume and adds its PersistentVolume to the API server
// and the cache.
func (f *fixture) recorded() *corev1.PersistentVolume {
	f.t.Helper()
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	pv.Annotations[objects.AnnotationProvisionedBy] = "test"
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(pv))
	f.backends["gold"].calls = nil
	f.newEvents()
	return pv
}

func TestVolumeIsCompletedOnceItsPersistentVolumeIsSeen(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	pv := f.recorded()
	if _, begun := f.journal.Beginning("uid-1"); !begun {
		t.Fatal("the journal has no attempt")
	}
	followup.VolumeSeen(pv)
	if _, begun := f.journal.Beginning("uid-1"); begun {
		t.Error("the attempt of a recorded volume still counts as unfinished; deleting its claim would undo it")
	}
	f.must(followup.do(t.Context(), followupOf(pv).Value()))
	f.must(followup.do(t.Context(), followupOf(pv).Value()))
	wantCalls(t, f.backends["gold"], "complete volume-1 read-only=false")
}

// TestSeenVolumesWaitForTheirCompletion: a volume is brought into use only after its
// PersistentVolume was seen.
func TestSeenVolumesWaitForTheirCompletion(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	pv := f.recorded()
	if n := followup.loop.Queue.Len(); n != 0 {
		t.Errorf("%d volumes wait to be completed before their PersistentVolume is seen", n)
	}
	followup.VolumeSeen(pv)
	if n := followup.loop.Queue.Len(); n != 1 {
		t.Errorf("%d volumes wait to be completed once their PersistentVolume is seen", n)
	}
}

// TestNewTermCompletesOnlyWhatAListingShowsToBeIncomplete: nearly all volumes are in
// use, and a queue that once held all of them would never shrink again.
func TestNewTermCompletesOnlyWhatAListingShowsToBeIncomplete(t *testing.T) {
	inUse := func(v *cinder.Volume) { v.Status = cinder.StatusInUse }
	for _, c := range []struct {
		name   string
		volume func(*cinder.Volume) // nil if the listing does not show it
		change func(*corev1.PersistentVolume)
		fails  bool
		want   int
	}{
		{name: "in use", volume: inUse, want: 0},
		{name: "attaching", volume: func(v *cinder.Volume) { v.Status = cinder.StatusAttaching }, want: 1},
		{name: "in use by another", volume: func(v *cinder.Volume) {
			inUse(v)
			v.Attachments = []cinder.Attachment{{ID: "1", ServerID: "server"}}
		}, want: 1},
		{name: "of another claim", volume: func(v *cinder.Volume) {
			inUse(v)
			v.Metadata[stamps.KeyClaimUID] = "uid-2"
		}, want: 1},
		{name: "not recorded for the CSI driver", volume: func(v *cinder.Volume) {
			v.Status = cinder.StatusAvailable
			v.Metadata[stamps.KeyMode] = stamps.ModeCSI
		}, want: 1},
		{name: "recorded for the CSI driver", volume: func(v *cinder.Volume) {
			v.Status = cinder.StatusAvailable
			v.Metadata[stamps.KeyMode] = stamps.ModeCSI
			v.Metadata[stamps.KeyAttached] = "true"
		}, want: 0},
		{name: "not listed", want: 1},
		{name: "the listing fails", volume: inUse, fails: true, want: 1},
		{name: "with the finalizer", volume: inUse, change: func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{objects.Finalizer} }, want: 1},
		{name: "damaged", volume: inUse, change: func(pv *corev1.PersistentVolume) { delete(pv.Annotations, objects.AnnotationConnector) }, want: 1},
		{name: "of a backend that the policy lacks", volume: inUse, change: func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationBackend] = "tin" }, want: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			pv := f.recorded()
			f.beginTermAnew()
			if c.change != nil {
				c.change(pv)
			}
			if c.volume != nil {
				v := cinder.Volume{ID: "volume-1", Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "uid-1", PV: pv.Name}.Metadata(nil)}
				c.volume(&v)
				f.backends["gold"].listed = []cinder.Volume{v}
			}
			for range 3 {
				f.followup.VolumeSeen(pv)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if c.fails {
				f.backends["gold"].listed, f.backends["gold"].listErr = nil, errors.New("no answer")
				cancel() // instead of waiting for the next attempt
			}
			f.countUntilDone(ctx, "gold")
			cancel()
			if got := f.followup.loop.Queue.Len(); got != c.want {
				t.Errorf("%d completions, want %d", got, c.want)
			}
			// From here on, completions no longer wait for a listing.
			again := pv.DeepCopy()
			again.Name, again.UID = "pvc-uid-3", "pv-uid-3"
			again.Annotations[objects.AnnotationVolume] = "volume-3"
			before := f.followup.loop.Queue.Len()
			f.followup.VolumeSeen(again)
			if got := f.followup.loop.Queue.Len() - before; got != 1 {
				t.Errorf("%d completions of a volume that is recorded later, want 1", got)
			}
		})
	}
}

// beginTermAnew forgets which backends were listed.
func (f *fixture) beginTermAnew() {
	clear(f.followup.listed)
	for name := range f.backends {
		f.Recount(name)
	}
	f.placement.TakeWanted()
}

// countInBackground counts backends as a term does, in a synctest bubble, until stop is
// called.
func (f *fixture) countInBackground() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var counting sync.WaitGroup
	counting.Go(func() { f.CountBackends(ctx) })
	synctest.Wait()
	return func() {
		cancel()
		counting.Wait()
	}
}

// TestPersistentVolumesWaitOnceForAListing: some change in the meantime, and some are
// deleted.
func TestPersistentVolumesWaitOnceForAListing(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.beginTermAnew()
	for range 3 {
		f.followup.VolumeSeen(pv)
	}
	if got := f.followup.unlisted["gold"]; len(got) != 1 {
		t.Errorf("%v wait for a listing", got)
	}
	f.followup.VolumeGone(pv)
	if got := f.followup.unlisted["gold"]; len(got) != 0 {
		t.Errorf("%v wait for a listing, although the PersistentVolume is gone", got)
	}
}

// TestPersistentVolumesOfEveryBackendAreTakenUp: the number of backends does not
// matter.
func TestPersistentVolumesOfEveryBackendAreTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for i := range 300 { // sorted before gold
			f.backends[fmt.Sprintf("b%03d", i)] = &fakeVolumes{document: iscsiDocument}
		}
		pv := f.recorded()
		f.beginTermAnew()
		f.followup.VolumeSeen(pv)
		defer f.countInBackground()()
		if got := f.followup.loop.Queue.Len(); got != 1 {
			t.Errorf("%d completions are queued, want 1; waiting: %v", got, f.followup.unlisted)
		}
	})
}

// TestReloadsStartNoMoreCounts: while a backend is silent, reloads must not pile up
// counts that would all read the whole listing once it answers.
func TestReloadsStartNoMoreCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		silver := f.backends["silver"]
		var answers atomic.Bool
		var listings atomic.Int32
		silver.onList = func() {
			silver.listErr = errors.New("silent")
			if answers.Load() {
				silver.listErr = nil
				listings.Add(1)
			}
		}
		defer f.countInBackground()()
		for range 50 {
			f.PolicyChanged()
			synctest.Wait()
		}
		answers.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := listings.Load(); n > 2 {
			t.Errorf("the listing was read %d times, want twice", n)
		}
		f.Recount("silver")
		synctest.Wait()
		if !f.placement.IsCounted("silver") {
			t.Error("a backend that moved is not counted again")
		}
	})
}

// TestVolumesOfANewBackendAreCompleted: a claim counts the backend before the reload
// that adds it has ended.
func TestVolumesOfANewBackendAreCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.countInBackground()()
		f.backends["tin"] = &fakeVolumes{document: iscsiDocument}
		pv := f.recorded()
		pv.Annotations[objects.AnnotationBackend] = "tin"
		f.followup.VolumeSeen(pv)
		f.must(f.placement.CountBackend(t.Context(), "tin"))
		f.PolicyChanged()
		synctest.Wait()
		if got := f.followup.loop.Queue.Len(); got != 1 {
			t.Errorf("%d completions are queued, want 1; waiting: %v", got, f.followup.unlisted)
		}
	})
}

// TestRecordOfAnUndoneVolumeIsRemoved: a PersistentVolume is saved late. Its volume is
// already gone, because the claim was deleted before the volume was recorded.
func TestRecordOfAnUndoneVolumeIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		policy  corev1.PersistentVolumeReclaimPolicy
		volume  bool
		claim   bool
		undone  bool
		removed bool
	}{
		"undone":                           {corev1.PersistentVolumeReclaimRetain, false, false, true, true},
		"undone, the library's to delete":  {corev1.PersistentVolumeReclaimDelete, false, false, true, false},
		"undone, and there is such volume": {corev1.PersistentVolumeReclaimRetain, true, false, true, false},
		"undone, and the claim exists":     {corev1.PersistentVolumeReclaimRetain, false, true, true, false},
		"kept by an administrator":         {corev1.PersistentVolumeReclaimRetain, false, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			followup := f.followup
			claim := f.claim(nil)
			pv, err := f.provision(claim)
			f.must(err)
			if !c.claim {
				f.goneAtTheServer(claim)
			}
			if c.undone {
				begun, _ := f.journal.Beginning(claim.UID)
				f.must(f.undo(t.Context(), claim.UID, begun, f.cleaner.IsUnrecorded))
			}
			f.backends["gold"].hasVolume = map[string]bool{"volume-1": c.volume}
			pv.UID = "pv-uid"
			pv.Annotations[objects.AnnotationProvisionedBy] = "test"
			pv.Spec.PersistentVolumeReclaimPolicy = c.policy
			pv.Status.Phase = corev1.VolumeReleased
			f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(pv))
			_, err = f.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
			f.must(err)
			followup.VolumeSeen(pv)
			for followup.loop.Queue.Len() > 0 {
				followup.loop.Next(t.Context())
			}
			left, err := f.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
			f.must(err)
			if removed := len(left.Items) == 0; removed != c.removed {
				t.Errorf("removed: %t, want %t", removed, c.removed)
			}
		})
	}
}

// TestRecordThatComesWhileItsVolumeIsUndoneIsRemoved: the PersistentVolume is
// saved after the volume's removal and before the Secret's.
func TestRecordThatComesWhileItsVolumeIsUndoneIsRemoved(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	claim := f.claim(nil)
	pv, err := f.provision(claim)
	f.must(err)
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", "test"
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.forgetClaim(claim)
	f.backends["gold"].onCall = func() {
		f.backends["gold"].onCall = nil
		f.backends["gold"].err = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold", Message: "gone"}
		f.released(pv)
		f.must(followup.do(t.Context(), followupOf(pv).Value())) // seen, but its volume is missing
		f.backends["gold"].err = nil
	}
	followup.ClaimGone(claim)
	f.follow(followup)
	if _, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{}); err == nil {
		t.Error("the PersistentVolume is left without its volume")
	}
	if f.hasSecret(pv.Name) {
		t.Error("the Secret is left")
	}
}

func followupOf(pv *corev1.PersistentVolume) task { return completionOf(pv.Name) }

func TestVolumesThatAreNotCompleted(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"of another provisioner": func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationProvisionedBy] = "other" },
		"not ours":               func(pv *corev1.PersistentVolume) { delete(pv.Annotations, objects.AnnotationVolume) },
		"released":               func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pv := f.recorded()
			change(pv)
			f.must(f.followup.do(t.Context(), followupOf(pv).Value()))
			wantCalls(t, f.backends["gold"])
		})
	}
}

func TestMissingVolumeIsReportedOnThePersistentVolume(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.backends["gold"].err = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold"}
	f.must(f.followup.do(t.Context(), followupOf(pv).Value()))
	events := f.newEvents()
	const want = "Warning VolumeMissing volume volume-1 no longer exists at backend gold; its data is lost unless the storage array has a copy"
	if len(events) != 1 || events[0] != want {
		t.Errorf("events %q, want %q", events, want)
	}
}

// TestVolumeElsewhereIsReportedOnThePersistentVolume: the event must not call the
// data lost, and the completion is retried.
func TestVolumeElsewhereIsReportedOnThePersistentVolume(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.backends["gold"].err = &cinder.Error{Kind: backends.KindElsewhere, Backend: "gold", Place: f.backends["gold"].Place(), Message: "volume volume-1 was recorded at A, but the backend points to B"}
	followup := f.followup
	const want = "backend gold: volume volume-1 was recorded at A, but the backend points to B; its PersistentVolume stays; " +
		"put the configuration and credentials of backend gold back to what they were, or, if the volume is certainly gone, run: " +
		"kubectl annotate pv pvc-uid-1 --overwrite standalone-cinder.openstack.org/endpoint=http://cinder:8776/v3 standalone-cinder.openstack.org/project-id=p1"
	if err := followup.do(t.Context(), followupOf(pv).Value()); err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
	if events := f.newEvents(); len(events) != 1 || events[0] != "Warning VolumeElsewhere "+want {
		t.Errorf("events %q", events)
	}
	f.backends["gold"].err, f.backends["gold"].calls = nil, nil
	f.must(followup.do(t.Context(), followupOf(pv).Value()))
	wantCalls(t, f.backends["gold"], "complete volume-1 read-only=false")
}

func TestReadOnlyVolumeIsAttachedReadOnly(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	f.must(f.followup.do(t.Context(), followupOf(pv).Value()))
	wantCalls(t, f.backends["gold"], "complete volume-1 read-only=true")
}

// TestForeignPersistentVolumeDoesNotEndAnAttempt: the foreign object has only the
// claim's UID.
func TestForeignPersistentVolumeDoesNotEndAnAttempt(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	_, err := f.provision(f.claim(nil))
	f.must(err)
	followup.VolumeSeen(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Annotations: map[string]string{objects.AnnotationClaimUID: "uid-1"}}})
	if _, begun := f.journal.Beginning("uid-1"); !begun {
		t.Error("the claim's attempt is forgotten, so nothing would undo it")
	}
}

// TestHelpForABackendHelpsItsFollowups: a completion failed because its backend led to
// another place. It is retried as soon as the backend may lead to the right place
// again, because nothing else would bring it back for half an hour.
func TestHelpForABackendHelpsItsFollowups(t *testing.T) {
	for _, c := range []struct {
		name string
		help func(f *fixture)
		want int
	}{
		{"its credentials", func(f *fixture) { f.publish(parking.Credentials, "gold") }, 1},
		{"a reload", func(f *fixture) { f.PolicyChanged() }, 1},
		{"it answers again", func(f *fixture) { f.publish(parking.Backend, "gold") }, 1},
		{"it leads elsewhere", func(f *fixture) { f.Recount("gold") }, 1},
		{"another's credentials", func(f *fixture) { f.publish(parking.Credentials, "silver") }, 0},
		{"another leads elsewhere", func(f *fixture) { f.Recount("silver") }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			followup := f.followup
			pv := f.recorded()
			followup.VolumeSeen(pv)
			f.backends["gold"].err = &cinder.Error{Kind: backends.KindElsewhere}
			if !followup.loop.Next(t.Context()) || followup.loop.Queue.Len() != 0 {
				t.Fatal("the failed completion does not wait")
			}
			c.help(f)
			if got := followup.loop.Queue.Len(); got != c.want {
				t.Fatalf("%d completions are retried at once, want %d", got, c.want)
			}
			f.backends["gold"].err = nil
			if c.want == 0 {
				return
			}
			followup.loop.Next(t.Context())
			c.help(f)
			if got := followup.loop.Queue.Len(); got != 0 {
				t.Errorf("%d completions are retried although none has failed", got)
			}
		})
	}
	t.Run("while it fails", func(t *testing.T) {
		f := newFixture(t)
		followup := f.followup
		followup.VolumeSeen(f.recorded())
		f.backends["gold"].err = &cinder.Error{Kind: backends.KindElsewhere}
		f.backends["gold"].onCall = func() { f.publish(parking.Credentials, "gold") }
		followup.loop.Next(t.Context())
		if got := followup.loop.Queue.Len(); got != 1 {
			t.Errorf("%d completions are retried at once, want 1", got)
		}
	})
}
