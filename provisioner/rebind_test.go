package provisioner

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// rebindPolicy has a second tenant, which may have one volume.
const rebindPolicy = testPolicy + `
  - name: b
    namespaces: [team-b]
    quota: {volumes: 1}
    metadata: {costcenter: "4711"}
    classes:
      - {storageClasses: [both], backends: [gold, silver]}
`

type rebindBench struct {
	*fixture
	gold *fakeVolumes
	pv   *corev1.PersistentVolume
}

// newRebindBench has a volume that was made for claim data of tenant a, whose
// PersistentVolume is bound to claim moved of team-b. The first claim is gone.
func newRebindBench(t *testing.T) *rebindBench {
	t.Helper()
	f, followup, gold := newCountedFixture(t)
	f.current.Store(parsePolicy(t, rebindPolicy))
	for _, name := range []string{"team-a", "team-b"} {
		_, _ = f.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	first := f.claim(nil)
	pv, err := f.provision(first)
	f.must(err)
	v := f.stamped("uid-1")
	v.ID, v.Status = "volume-1", cinder.StatusInUse
	v.Metadata["budget"] = "old"
	gold.listed = []cinder.Volume{v}
	gold.calls = nil
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", f.Name
	pv.Spec.StorageClassName = "both"
	pv.Status.Phase = corev1.VolumeBound
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-1"}
	f.store(pv)
	followup.VolumeSeen(pv)
	f.forgetClaim(first)
	f.newEvents()
	b := &rebindBench{fixture: f, gold: gold, pv: pv}
	b.give("team-b", "moved", "uid-2")
	return b
}

// give binds the PersistentVolume to a claim, and the claim to it.
func (b *rebindBench) give(namespace, name string, uid types.UID) {
	b.t.Helper()
	class := "both"
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: b.pv.Name},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	b.must(b.client.Tracker().Add(claim))
	b.must(b.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Add(claim))
	b.pv = b.pv.DeepCopy()
	b.pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name, UID: uid}
	b.store(b.pv)
}

// live reads the PersistentVolume from the API server, and shows it to the cache.
func (b *rebindBench) live() *corev1.PersistentVolume {
	b.t.Helper()
	pv, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), b.pv.Name, metav1.GetOptions{})
	b.must(err)
	b.store(pv)
	b.followup.VolumeSeen(pv)
	return pv
}

func (b *rebindBench) usage(tenant string) policy.Usage {
	return b.ledger.Usage(policy.TenantScope, tenant)
}

// TestWhatWaitsForARebindContinues: the answer to the request that records the new claim was
// lost, and the cache shows later that it had its effect.
func TestWhatWaitsForARebindContinues(t *testing.T) {
	b := newRebindBench(t)
	before := b.pv
	b.client.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("EOF")
	})
	if err := b.followup.rebind(t.Context(), b.pv.Name, false); err == nil {
		t.Fatal("the answer was not lost")
	}
	after := before.DeepCopy()
	after.Annotations[objects.AnnotationReboundTo], after.Annotations[objects.AnnotationTenant] = "uid-2", "b"
	since := b.Board.Now()
	b.VolumeChanged(before, after)
	if !b.Board.Since(since, []parking.Trigger{{Kind: parking.Namespace, Name: "team-b"}}) {
		t.Error("what was denied while the volume counted for tenant a is not tried again")
	}
}

func TestAVolumeFollowsItsPersistentVolumeToAnotherClaim(t *testing.T) {
	b := newRebindBench(t)
	b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
	wantCalls(t, b.gold, "rebind volume-1 to team-b/moved of tenant b")
	pv := b.live()
	for key, want := range map[string]string{
		objects.AnnotationReboundTo: "uid-2", objects.AnnotationClaimUID: "uid-1", objects.AnnotationTenant: "b", objects.AnnotationRule: "tenants[1].classes[0]",
	} {
		if pv.Annotations[key] != want {
			t.Errorf("annotation %s is %q, want %q", key, pv.Annotations[key], want)
		}
	}
	if pv.Labels[objects.AnnotationTenant] != "b" {
		t.Errorf("labels %v", pv.Labels)
	}
	want := stamps.Volume{
		Cluster: "cluster-1", ClusterUID: "kube-system-uid", Namespace: "team-b", Claim: "moved", ClaimUID: "uid-1", PV: "pvc-uid-1", ReboundTo: "uid-2",
		Tenant: "b", StorageClass: "both",
	}
	if got := stamps.Of(b.gold.listed[0]); got != want || b.gold.listed[0].Metadata["costcenter"] != "4711" {
		t.Errorf("the stamp is %+v, with %v", got, b.gold.listed[0].Metadata)
	}
	if a, other := b.usage("a"), b.usage("b"); a.Volumes != 0 || other.Volumes != 1 {
		t.Errorf("tenant a uses %+v, tenant b %+v", a, other)
	}
	events := strings.Join(b.newEvents(), "\n")
	for _, part := range []string{
		"Normal Rebound tenant b, rule tenants[1].classes[0]: claim team-b/moved has volume volume-1 of backend gold now; before, claim team-a/data of tenant a had it",
		"Normal Rebound tenant b, rule tenants[1].classes[0]: claim team-b/moved has volume volume-1 of backend gold now",
	} {
		if !strings.Contains(events, part) {
			t.Errorf("the events are\n%s\nwithout %s", events, part)
		}
	}
	// Nothing is left to do, and the deletion needs nothing else.
	b.gold.calls = nil
	b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
	wantCalls(t, b.gold)
	b.must(b.delete(pv))
	wantCalls(t, b.gold, "remove volume-1 historic=false")
}

// TestARebindRecordsHowLargeTheVolumeIs: the claim that asked for more may lose its
// PersistentVolume before that says what the volume has, and the next claim asks for no
// more than it says.
func TestARebindRecordsHowLargeTheVolumeIs(t *testing.T) {
	for name, test := range map[string]struct {
		shown, want int64
		restamped   bool
	}{
		"as recorded":                         {2, 2, false},
		"larger":                              {3, 3, false},
		"larger, and stamped before":          {3, 3, true},
		"smaller, which no growth has caused": {1, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			b.gold.listed[0].SizeGiB = test.shown
			if fails := test.restamped; fails {
				b.client.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
					defer func() { fails = false }()
					return fails, nil, errors.New("the API server does not answer")
				})
				if err := b.followup.rebind(t.Context(), b.pv.Name, false); err == nil {
					t.Fatal("no error")
				}
			}
			b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
			if size := b.live().Spec.Capacity[corev1.ResourceStorage]; size.Value() != test.want<<30 {
				t.Errorf("the PersistentVolume has %s, want %d GiB", size.String(), test.want)
			}
			if b.usage("a").Gigabytes != 0 || b.usage("b").Gigabytes != test.want {
				t.Errorf("tenant a uses %+v, tenant b %+v", b.usage("a"), b.usage("b"))
			}
		})
	}
}

// TestAnInterruptedRebindIsMadeAgain: after each request, the next leader ends what was
// begun, and nothing is counted twice meanwhile.
func TestAnInterruptedRebindIsMadeAgain(t *testing.T) {
	b := newRebindBench(t)
	b.gold.err = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "the answer is lost"}
	if err := b.followup.rebind(t.Context(), b.pv.Name, false); err == nil {
		t.Fatal("no error")
	}
	if pv := b.live(); pv.Annotations[objects.AnnotationTenant] != "a" || b.usage("a").Volumes != 1 || b.usage("b").Volumes != 0 {
		t.Errorf("after a lost answer, tenant a uses %+v, tenant b %+v", b.usage("a"), b.usage("b"))
	}
	b.gold.err = nil
	b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
	if b.usage("a").Volumes != 0 || b.usage("b").Volumes != 1 {
		t.Errorf("tenant a uses %+v, tenant b %+v", b.usage("a"), b.usage("b"))
	}
}

func TestAFullQuotaDoesNotKeepABoundVolumeFromItsClaim(t *testing.T) {
	b := newRebindBench(t)
	b.ledger.Record("uid-3", ledger.Volume{Tenant: "b", StorageClass: "both", GiB: 1, VolumeID: "volume-3"}, "gold")
	b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
	if b.usage("b").Volumes != 2 {
		t.Errorf("tenant b uses %+v", b.usage("b"))
	}
	if events := strings.Join(b.newEvents(), "\n"); !strings.Contains(events, "tenant b uses 2 of 1 volumes (tenants[1].quota.volumes)") {
		t.Errorf("the events are\n%s", events)
	}
}

// TestARebindThatIsNotGrantedChangesNothing: the volume still counts for its earlier
// tenant, an event says which rule is missing, and it can be deleted.
func TestARebindThatIsNotGrantedChangesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		policy, event string
	}{
		"no tenant":           {testPolicy, "NoMatchingTenant"},
		"no rule":             {strings.Replace(rebindPolicy, "[both], backends: [gold, silver]}\n", "[other], backends: [gold, silver]}\n", 1), "NoMatchingClass"},
		"not this backend":    {strings.Replace(rebindPolicy, "[both], backends: [gold, silver]}\n", "[both], backends: [silver]}\n", 1), "tenant b may not use backend gold, which has the volume, for StorageClass both (tenants[1].classes[0].backends)"},
		"a suspended backend": {strings.Replace(rebindPolicy, "name: gold", "name: gold\n    suspended: true", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			b.current.Store(parsePolicy(t, test.policy))
			b.gold.calls = nil
			err := b.followup.rebind(t.Context(), b.pv.Name, false)
			if test.event == "" {
				b.must(err)
				return
			}
			if err == nil || !strings.Contains(strings.Join(b.newEvents(), "\n"), test.event) {
				t.Errorf("error %v", err)
			}
			pv := b.live()
			if pv.Annotations[objects.AnnotationTenant] != "a" || b.usage("a").Volumes != 1 {
				t.Errorf("tenant %s, tenant a uses %+v", pv.Annotations[objects.AnnotationTenant], b.usage("a"))
			}
			// The same reason is told once.
			_ = b.followup.rebind(t.Context(), b.pv.Name, false)
			if again := b.newEvents(); len(again) != 0 {
				t.Errorf("told again: %q", again)
			}
			b.must(b.delete(pv))
			wantCalls(t, b.gold, "remove volume-1 historic=false")
		})
	}
}

// TestNothingChangesBeforeAClaimIsBound covers objects that only look like a rebind.
func TestNothingChangesBeforeAClaimIsBound(t *testing.T) {
	for name, prepare := range map[string]func(b *rebindBench){
		"the PersistentVolume is not bound": func(b *rebindBench) { b.pv.Status.Phase = corev1.VolumeAvailable },
		"nobody has it":                     func(b *rebindBench) { b.pv.Spec.ClaimRef = nil },
		"the claim is not bound": func(b *rebindBench) {
			b.change("moved", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" })
		},
		"the claim has another": func(b *rebindBench) {
			b.change("moved", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-other" })
		},
		"another claim has the name": func(b *rebindBench) { b.change("moved", func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-9" }) },
		"the cache is late": func(b *rebindBench) {
			late := b.pv.DeepCopy()
			late.Spec.ClaimRef.UID, late.Annotations = "uid-1", b.pv.Annotations
			b.must(b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), late, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			prepare(b)
			if name != "the cache is late" {
				b.store(b.pv)
			}
			b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
			wantCalls(t, b.gold)
			if b.usage("a").Volumes != 1 || b.usage("b").Volumes != 0 {
				t.Errorf("tenant a uses %+v, tenant b %+v", b.usage("a"), b.usage("b"))
			}
		})
	}
}

// change changes a claim of team-b in the API server.
func (b *rebindBench) change(name string, change func(*corev1.PersistentVolumeClaim)) {
	b.t.Helper()
	resource := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	object, err := b.client.Tracker().Get(resource, "team-b", name)
	b.must(err)
	claim := object.(*corev1.PersistentVolumeClaim).DeepCopy()
	change(claim)
	b.must(b.client.Tracker().Update(resource, claim, "team-b"))
}

// TestAClaimThatMayStillHaveTheVolumeKeepsIt: the stamp changes only when the claim in it
// has lost the volume.
func TestAClaimThatMayStillHaveTheVolumeKeepsIt(t *testing.T) {
	earlier := func(volumeName string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-1"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volumeName}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
		}
	}
	for name, test := range map[string]struct {
		earlier *corev1.PersistentVolumeClaim
		waits   bool
	}{
		"bound":           {earlier("pvc-uid-1", corev1.ClaimBound), true},
		"lost":            {earlier("pvc-uid-1", corev1.ClaimLost), false},
		"bound elsewhere": {earlier("pvc-other", corev1.ClaimBound), false},
		"never bound":     {earlier("", corev1.ClaimPending), false},
		"another of its name": {func() *corev1.PersistentVolumeClaim {
			c := earlier("pvc-uid-1", corev1.ClaimBound)
			c.UID = "uid-9"
			return c
		}(), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			b.must(b.client.Tracker().Add(test.earlier))
			err := b.followup.rebind(t.Context(), b.pv.Name, false)
			if waits := err != nil; waits != test.waits || test.waits && !strings.Contains(err.Error(), "claim team-a/data does not show yet that it has lost PersistentVolume pvc-uid-1") {
				t.Errorf("error %v", err)
			}
			if moved := b.live().Annotations[objects.AnnotationTenant] == "b"; moved == test.waits {
				t.Errorf("moved: %t", moved)
			}
		})
	}
}

// TestAVolumeNeverComesBackToTheClaimThatItWasMadeFor: that claim is denied, whether its
// PersistentVolume still exists or only its volume is left.
func TestAVolumeNeverComesBackToTheClaimThatItWasMadeFor(t *testing.T) {
	const want = "Warning VolumeGivenAway the volume that was made for this claim has been given to another claim; delete this claim, and create a new one if you need a volume"
	b := newRebindBench(t)
	first := b.claim(nil)
	denied := func(when string) {
		t.Helper()
		b.newEvents()
		b.parkedClaims.lot.Forget(first.UID)
		if b.admits(first) {
			t.Errorf("%s: the claim is admitted", when)
		}
		if events := b.newEvents(); len(events) != 1 || events[0] != want {
			t.Errorf("%s: events %q", when, events)
		}
	}
	denied("bound to another claim")
	b.must(b.followup.rebind(t.Context(), b.pv.Name, false))
	denied("rebound")
	pv := b.live()
	b.must(b.factory.Core().V1().PersistentVolumes().Informer().GetStore().Delete(pv))
	b.followup.VolumeGone(pv)
	denied("kept without a PersistentVolume")

	// The next leader knows only the stamp, and not before the first listing.
	b.newTerm(nil)
	b.placement.Recount("gold")
	b.placement.Recount("silver")
	b.gold.calls = nil
	if _, err := b.provision(first); !isIgnored(err) {
		t.Errorf("error %v", err)
	}
	wantCalls(t, b.gold)
	denied("found by a listing")
}

// TestARestoredPersistentVolumeIsNotWantedBeforeItIsBound: an object that is applied again
// is Pending until kube-controller-manager has looked at it. If it names a claim that is
// gone, it is released next, which asks for no deletion.
func TestARestoredPersistentVolumeIsNotWantedBeforeItIsBound(t *testing.T) {
	for phase, wanted := range map[corev1.PersistentVolumePhase]bool{"": false, corev1.VolumePending: false, corev1.VolumeAvailable: true, corev1.VolumeBound: true} {
		t.Run(string(phase), func(t *testing.T) {
			b := newRebindBench(t)
			requested := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
			b.gold.listed[0].Metadata[stamps.KeyRequestedAt] = requested.Format(time.RFC3339)
			b.gold.attach = func(target backends.Target) error {
				// As Lifecycle.Complete does.
				switch v := b.gold.listed[0]; {
				case target.Undecided:
					return &cinder.Error{Kind: backends.KindRestored}
				case stamps.IsRestored(v, target.PVUID, target.RecordedAt):
					v.Metadata[stamps.KeyPVUID] = target.PVUID
				}
				return nil
			}
			b.pv = b.pv.DeepCopy()
			b.pv.UID, b.pv.CreationTimestamp, b.pv.Status.Phase = "restored", metav1.NewTime(requested.Add(time.Hour)), phase
			b.store(b.pv)
			b.followup.VolumeSeen(b.pv)
			_ = b.followup.complete(t.Context(), b.pv.Name)
			if isWanted := !stamps.IsRestored(b.gold.listed[0], "restored", b.pv.CreationTimestamp.Time); isWanted != wanted {
				t.Errorf("a deletion is permitted: %t, want %t", isWanted, wanted)
			}
			if again := b.followup.wantsCompletion(b.pv); again == wanted {
				t.Errorf("is to be completed again: %t", again)
			}
		})
	}
}

// TestNothingIsAwaitedForAPersistentVolumeThatIsGone: the end of the object is the end of
// what its follow-ups waited for, if only for its next phase.
func TestNothingIsAwaitedForAPersistentVolumeThatIsGone(t *testing.T) {
	undecided := func(b *rebindBench) {
		b.gold.attach = func(backends.Target) error { return &cinder.Error{Kind: backends.KindRestored} }
		b.pv.UID = "restored"
	}
	elsewhere := func(b *rebindBench) { b.pv.Annotations[objects.AnnotationBackend] = "removed" }
	denied := func(b *rebindBench) {
		b.current.Store(parsePolicy(t, strings.ReplaceAll(rebindPolicy, "team-b", "team-c")))
	}
	for name, test := range map[string]struct {
		before func(*rebindBench)
		task   func(*rebindBench) task
	}{
		"its next phase":             {undecided, func(b *rebindBench) task { return completionOf(b.pv.Name) }},
		"its backend in the policy":  {elsewhere, func(b *rebindBench) task { return completionOf(b.pv.Name) }},
		"a rule for its claim":       {denied, func(b *rebindBench) task { return rebindOf(b.pv.Name) }},
		"a rule, whatever its stamp": {denied, func(b *rebindBench) task { return misstampedOf(b.pv.Name, "volume-1") }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			test.before(b)
			b.store(b.pv)
			b.followup.loop.Try(t.Context(), test.task(b))
			if awaiting := b.followup.loop.Awaiting(); len(awaiting) != 1 {
				t.Fatalf("%d follow-ups wait before", len(awaiting))
			}
			b.must(b.factory.Core().V1().PersistentVolumes().Informer().GetStore().Delete(b.pv))
			b.followup.VolumeGone(b.pv)
			if awaiting := b.followup.loop.Awaiting(); len(awaiting) != 0 {
				t.Errorf("%d follow-ups wait", len(awaiting))
			}
		})
	}
}

// TestAVolumeGivenBackAfterAnInterruptedRebindIsStampedForItsClaim: the leader dies after
// it has stamped the volume for tenant b, and the administrator gives the PersistentVolume
// back to the claim that it names. The stamp must not stay tenant b's.
func TestAVolumeGivenBackAfterAnInterruptedRebindIsStampedForItsClaim(t *testing.T) {
	b := newRebindBench(t)
	dies := true
	b.client.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return dies, nil, errors.New("the leader dies")
	})
	if err := b.followup.rebind(t.Context(), b.pv.Name, false); err == nil {
		t.Fatal("no error")
	}
	dies = false
	b.must(b.client.CoreV1().PersistentVolumeClaims("team-b").Delete(t.Context(), "moved", metav1.DeleteOptions{}))
	b.give("team-a", "again", "uid-1") // the claim of the record
	b.newEvents()
	b.newTerm(nil)
	b.live()
	b.count()
	for range 2 { // the second listing finds nothing more to do
		_, err := b.RelistBackend(t.Context(), "gold")
		b.must(err)
		b.drain()
	}
	if got := stamps.Of(b.gold.listed[0]); got.Tenant != "a" || got.Holder() != "uid-1" || got.Namespace != "team-a" {
		t.Errorf("tenant a's volume carries the stamp %+v", got)
	}
	if charged := b.gold.listed[0].Metadata["costcenter"]; charged != "" {
		t.Errorf("tenant a's volume is charged to %q", charged)
	}
	if rebound := strings.Count(strings.Join(b.newEvents(), "\n"), "Rebound"); rebound > 2 {
		t.Errorf("%d events", rebound)
	}
}

// drain works until the queue is empty.
func (b *rebindBench) drain() {
	for b.followup.loop.Queue.Len() > 0 {
		b.followup.loop.Next(b.t.Context())
	}
}

// TestARebindThatFailsIsTold: nothing waits without an event, and its attempts are not
// told again and again.
func TestARebindThatFailsIsTold(t *testing.T) {
	for name, failure := range map[string]*cinder.Error{
		"elsewhere": {Kind: backends.KindElsewhere, Backend: "gold", Message: "the volume was made elsewhere"},
		"rejected":  {Kind: cinder.KindInvalid, Backend: "gold", Message: "Cinder rejects the metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			b.gold.err = failure
			_ = b.followup.rebind(t.Context(), b.pv.Name, false)
			events := b.newEvents()
			if len(events) != 2 || !strings.Contains(strings.Join(events, "\n"), failure.Message) || strings.Contains(events[1], "gold") {
				t.Errorf("events %q", events)
			}
			_ = b.followup.rebind(t.Context(), b.pv.Name, false)
			if events := b.newEvents(); len(events) > 0 {
				t.Errorf("told again: %q", events)
			}
		})
	}
}

// TestARebindGoesOnWhenTheEarlierClaimHasLostTheVolume: whichever object shows that last
// brings the PersistentVolume into the queue.
func TestARebindGoesOnWhenTheEarlierClaimHasLostTheVolume(t *testing.T) {
	earlier := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-uid-1"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	lost := earlier.DeepCopy()
	lost.Status.Phase = corev1.ClaimLost
	for name, happens := range map[string]func(b *rebindBench){
		"it is Lost": func(b *rebindBench) { b.followup.ClaimChanged(earlier, lost) },
		"it is gone": func(b *rebindBench) { b.followup.ClaimGone(earlier) },
		"the new claim is bound": func(b *rebindBench) {
			bound, err := b.Claims.PersistentVolumeClaims("team-b").Get("moved")
			b.must(err)
			pending := bound.DeepCopy()
			pending.Spec.VolumeName = ""
			b.followup.ClaimChanged(pending, bound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRebindBench(t)
			for b.followup.loop.Queue.Len() > 0 {
				item, _ := b.followup.loop.Queue.Get()
				b.followup.loop.Queue.Done(item)
			}
			happens(b)
			queued := false
			for b.followup.loop.Queue.Len() > 0 {
				item, _ := b.followup.loop.Queue.Get()
				b.followup.loop.Queue.Done(item)
				queued = queued || item == rebindOf("pvc-uid-1")
			}
			if !queued {
				t.Error("the PersistentVolume is not queued")
			}
		})
	}
}
