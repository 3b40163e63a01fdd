package provisioner

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// lateVolume returns a duplicate of a recorded volume.
func (f *fixture) lateVolume(pv *corev1.PersistentVolume) cinder.Volume {
	f.t.Helper()
	v := f.orphanVolume(pv.Annotations[objects.AnnotationClaimUID])
	v.ID, v.Status = "volume-late", cinder.StatusAvailable
	return v
}

func (f *fixture) relist(name string) {
	f.t.Helper()
	_, err := f.RelistBackend(f.t.Context(), name)
	f.must(err)
}

func TestDuplicateThatArrivesLateIsRemoved(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	pv := f.recorded()
	f.must(f.client.Tracker().Add(pv))
	gold := f.backends["gold"]
	recorded := f.lateVolume(pv)
	recorded.ID, recorded.Status = "volume-1", cinder.StatusAttaching
	gold.listed = []cinder.Volume{recorded, f.lateVolume(pv)}
	gold.calls = nil
	f.relist("gold")
	f.follow(followup)
	wantCalls(t, gold, "remove unrecorded volume-late of "+pv.Name)
}

func TestVolumeThatArrivesLateIsKeptWhenItMayBeTheRecordedOne(t *testing.T) {
	for name, change := range map[string]func(f *fixture, pv *corev1.PersistentVolume, v *cinder.Volume){
		"it was attached": func(_ *fixture, _ *corev1.PersistentVolume, v *cinder.Volume) { v.Metadata["readonly"] = "False" },
		"it is in use":    func(_ *fixture, _ *corev1.PersistentVolume, v *cinder.Volume) { v.Status = cinder.StatusInUse },
		"it is a restored backup": func(_ *fixture, _ *corev1.PersistentVolume, v *cinder.Volume) {
			v.Metadata[stamps.Prefix+"requested-at"] = "2026-01-01T00:00:00Z"
		},
		"its stamp contradicts itself": func(_ *fixture, _ *corev1.PersistentVolume, v *cinder.Volume) {
			v.Metadata[stamps.Prefix+"claim-uid"] = "uid-of-another"
		},
		"the API server knows the object by another volume than the cache": func(f *fixture, pv *corev1.PersistentVolume, _ *cinder.Volume) {
			renamed := pv.DeepCopy()
			renamed.Annotations[objects.AnnotationVolume] = "volume-late"
			f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), renamed, ""))
		},
		"the PersistentVolume is another program's": func(f *fixture, pv *corev1.PersistentVolume, _ *cinder.Volume) {
			pv.Annotations[objects.AnnotationProvisionedBy] = "another.example/provisioner"
			f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Update(pv))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.count()
			pv := f.recorded()
			f.must(f.client.Tracker().Add(pv))
			late := f.lateVolume(pv)
			change(f, pv, &late)
			gold := f.backends["gold"]
			gold.listed, gold.calls = []cinder.Volume{late}, nil
			// An error means that the removal is retried.
			_, _ = f.RelistBackend(t.Context(), "gold")
			wantCalls(t, gold)
		})
	}
}

func TestVolumeThatArrivesLateForAClaimThatIsGoneIsUndone(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	// Another volume of the claim was removed before, and its room was freed.
	f.ledger.Release("uid-gone")
	f.backends["gold"].listed = []cinder.Volume{f.orphanVolume("uid-gone")}
	f.relist("gold")
	f.follow(followup)
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-gone")
}

// TestDuplicateOfAVolumeWhosePersistentVolumeWasDeletedByHandIsRemoved: the claim is
// gone, and the volume that it was bound to must be kept.
func TestDuplicateOfAVolumeWhosePersistentVolumeWasDeletedByHandIsRemoved(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	pv := f.recorded()
	f.store(pv)
	followup.VolumeSeen(pv)
	f.follow(followup)
	f.removeByHand(followup, pv)
	claim := f.claim(nil)
	f.forgetClaim(claim)
	kept, late := f.lateVolume(pv), f.lateVolume(pv)
	kept.ID = pv.Annotations[objects.AnnotationVolume]
	gold := f.backends["gold"]
	gold.listed, gold.calls = []cinder.Volume{kept, late}, nil
	f.relist("gold")
	f.follow(followup)
	wantCalls(t, gold, "remove unrecorded volume-late of "+pv.Name)
}

func TestRoomOfAFoundVolumeIsFreedWhenAnAdministratorRemovesIt(t *testing.T) {
	f := newFixture(t)
	old := f.orphanVolume("uid-gone")
	old.CreatedAt = time.Now().Add(-2 * time.Hour)
	gold := f.backends["gold"]
	gold.listed = []cinder.Volume{old}
	f.count()
	if got := f.ledger.Usage(policy.TenantScope, "a"); got.Volumes != 1 {
		t.Fatalf("an orphan counts as %+v", got)
	}
	gold.listed = nil
	f.relist("gold")
	if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
		t.Errorf("it counts as %+v when it is gone", got)
	}
}

// TestKeptVolumeCountsForItsTenantWhicheverBackendIsListedFirst: two backends show one
// project, and each of two tenants may use one of them.
func TestKeptVolumeCountsForItsTenantWhicheverBackendIsListedFirst(t *testing.T) {
	twoTenants := parsePolicy(t, strings.Replace(testPolicy, "[gold, silver]", "[gold]", 1)+
		"  - name: b\n    namespaces: [team-b]\n    classes:\n      - {storageClasses: [two], backends: [silver]}\n")
	for _, order := range [][]string{{"gold", "silver"}, {"silver", "gold"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			f := newFixture(t)
			f.current.Store(twoTenants)
			for _, name := range order {
				f.backends[name].listed = []cinder.Volume{f.stamped("uid-gone")}
				f.must(f.placement.CountBackend(t.Context(), name))
			}
			wants := func(when string) {
				t.Helper()
				for scope, want := range map[ledger.Scope]int64{
					{Kind: policy.TenantScope, Name: "a"}:       1,
					{Kind: policy.TenantScope, Name: "b"}:       0,
					{Kind: policy.BackendScope, Name: "gold"}:   1,
					{Kind: policy.BackendScope, Name: "silver"}: 0,
				} {
					if got := f.ledger.Usage(scope.Kind, scope.Name).Volumes; got != want {
						t.Errorf("%s, %d volumes count for %s, want %d", when, got, scope.Name, want)
					}
				}
			}
			wants("after the first listings")
			for range 2 {
				for _, name := range order {
					f.relist(name)
				}
			}
			wants("after further listings")
			// Claims may wait for the room that the volume took on silver.
			if moved := order[0] == "silver"; moved != (len(f.ledger.Freed()) == 1) {
				t.Errorf("freed room was signaled: %t, want %t", !moved, moved)
			}
		})
	}
}

// TestKeptVolumeCountsAgainWhenAReloadBringsItsRuleBack: the term began with a policy that
// did not let the tenant use the backend.
func TestKeptVolumeCountsAgainWhenAReloadBringsItsRuleBack(t *testing.T) {
	for name, without := range map[string]string{
		"the tenant has other rules": strings.NewReplacer("[gold, silver]", "[silver]", "[gold]", "[silver]").Replace(testPolicy),
		"there is no such tenant":    strings.Replace(testPolicy, "name: a", "name: another", 1),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.current.Store(parsePolicy(t, without))
			f.backends["gold"].listed = []cinder.Volume{f.stamped("uid-gone")}
			f.count()
			if got := f.ledger.Usage(policy.TenantScope, "a").Volumes; got != 0 {
				t.Errorf("%d volumes count for a tenant that may not use their backend", got)
			}
			f.current.Store(parsePolicy(t, testPolicy))
			f.PolicyChanged()
			if got := f.ledger.Usage(policy.TenantScope, "a").Volumes; got != 1 {
				t.Errorf("%d volumes count for the tenant after the reload, want 1", got)
			}
		})
	}
}

func TestSweepIsDueAfterAnythingThatMayArriveLate(t *testing.T) {
	began := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	at := func(s int) time.Time {
		if s < 0 {
			return time.Time{}
		}
		return began.Add(time.Duration(s) * time.Second)
	}
	for _, c := range []struct {
		name               string
		doubt, swept, asks int // seconds; -1 means never
		want               bool
	}{
		{"just begun", -1, -1, 5, false},
		{"soon after the beginning", -1, -1, 15, true},
		{"swept once, not late yet", -1, 15, 60, false},
		{"when the last request has run out of time", -1, 15, 90, true},
		{"nothing more can arrive", -1, 91, 5000, false},
		{"an answer was lost a moment ago", 200, 91, 205, true},
		{"answers are lost all the time", 214, 205, 215, false},
		{"answers are lost all the time, and it is time", 219, 205, 220, true},
		{"late after a lost answer", 200, 220, 290, true},
		{"long after a lost answer", 200, 295, 900, false},
		{"answers are lost from the beginning", 80, -1, 85, false},
		{"answers are lost from the beginning for long", 88, -1, 90, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.count()
			f.backends["gold"].lastUncertain = at(c.doubt)
			if got := f.sweepIsDue("gold", began, at(c.swept), at(c.asks)); got != c.want {
				t.Errorf("due: %t, want %t", got, c.want)
			}
		})
	}
	t.Run("a backend that is down waits", func(t *testing.T) {
		f := newFixture(t)
		f.count()
		f.backends["gold"].health = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no answer"}
		if f.sweepIsDue("gold", began, time.Time{}, at(900)) {
			t.Error("it is due")
		}
	})
}

func TestSecretThatArrivesLateIsRemoved(t *testing.T) {
	secret := func() *corev1.Secret {
		s := credentialsOf("pvc-uid-gone")
		s.CreationTimestamp = metav1.Now()
		return s
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-gone"}}
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		change  func(f *fixture, s *corev1.Secret)
		stays   bool
	}{
		{name: "neither claim nor PersistentVolume nor volume exists"},
		{name: "the claim exists", objects: []runtime.Object{claim}, stays: true},
		{name: "the PersistentVolume exists", objects: []runtime.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-gone"}}}, stays: true},
		{name: "a volume exists", stays: true, change: func(f *fixture, _ *corev1.Secret) {
			f.backends["silver"].listed = []cinder.Volume{f.orphanVolume("uid-gone")}
		}},
		{name: "a backend does not answer", stays: true, change: func(f *fixture, _ *corev1.Secret) {
			f.backends["silver"].health = &cinder.Error{Backend: "silver", Kind: cinder.KindUnavailable, Message: "no answer"}
		}},
		{name: "the claim is being served", stays: true, change: func(f *fixture, _ *corev1.Secret) { f.journal.Begin("uid-gone", journal.Beginning{}) }},
		{name: "it is old", stays: true, change: func(_ *fixture, s *corev1.Secret) {
			s.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * time.Hour))
		}},
		{name: "it is another cluster's", stays: true, change: func(_ *fixture, s *corev1.Secret) { s.Annotations[objects.AnnotationCluster] = "cluster-2" }},
		{name: "it lacks our label", stays: true, change: func(_ *fixture, s *corev1.Secret) { delete(s.Labels, objects.LabelManagedBy) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.objects...)
			s := secret()
			if c.change != nil {
				c.change(f, s)
			}
			f.must(f.client.Tracker().Add(s))
			_ = f.SweepSecrets(t.Context())
			if got := f.hasSecret("pvc-uid-gone"); got != c.stays {
				t.Errorf("the Secret exists: %t, want %t", got, c.stays)
			}
		})
	}
}

func TestFailedSecretRequestCausesALaterSweep(t *testing.T) {
	f := newFixture(t)
	f.client.PrependReactor("create", "secrets", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection lost")
	})
	before := time.Now()
	if _, err := f.provision(f.claim(nil)); err == nil {
		t.Fatal("no error")
	}
	if doubt := f.secrets.LastUncertain(); doubt.Before(before) {
		t.Errorf("the doubt is from %s", doubt)
	}
}

// TestFailedSweepOfSecretsIsRetriedSoon: a late Secret holds credentials, so the retry
// is worth listing every backend.
func TestFailedSweepOfSecretsIsRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.noteEarlier()
		var lists atomic.Int32 // one for each sweep
		f.client.PrependReactor("list", "secrets", func(ktesting.Action) (bool, runtime.Object, error) {
			lists.Add(1)
			return true, nil, errors.New("connection lost")
		})
		ctx, end := context.WithTimeout(t.Context(), 10*time.Minute)
		defer end()
		began := time.Now()
		var group sync.WaitGroup
		group.Go(func() { f.sweepSecretsAgain(ctx, began) })
		time.Sleep(time.Minute)
		if n := lists.Load(); n < 3 {
			t.Errorf("%d sweeps in the first minute, want three or more", n)
		}
		group.Wait()
		if n := lists.Load(); n > 15 {
			t.Errorf("%d sweeps in ten minutes, want at most 15", n)
		}
	})
}
