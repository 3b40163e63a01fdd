package provisioner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// movedBackends are at another place, or have no connector, for as long as a test says.
type movedBackends struct {
	fakeBackends
	place        cinder.Place
	connectorErr error
}

type movedVolumes struct {
	*fakeVolumes
	at *movedBackends
}

func (b *movedBackends) Recorded(name string) (Recorded, error) {
	volumes, err := b.of(name)
	return movedVolumes{volumes, b}, err
}

func (b *movedBackends) Connector(name string) (cinder.Connector, error) {
	if b.connectorErr != nil {
		return cinder.Connector{}, b.connectorErr
	}
	return b.fakeBackends.Connector(name)
}

func (v movedVolumes) Place() cinder.Place {
	if v.at.place.IsKnown() {
		return v.at.place
	}
	return v.fakeVolumes.Place()
}

var errNoSuchVolume = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold", Status: 404, Message: "no such volume"}

// untouched fails the test if a volume was undone or removed.
func (f *fixture) untouched(backend, why string) {
	f.t.Helper()
	for _, call := range f.backends[backend].calls {
		if strings.HasPrefix(call, "abandon") || strings.HasPrefix(call, "remove") {
			f.t.Errorf("%s: the backend was called: %s", why, call)
		}
	}
}

// TestRebootOfAnEarlierReleaseHidesNoUser: a deletion waits for node a, which
// runs with boot-1. A user rescues the data: the reclaim policy becomes Retain,
// another claim gets the PersistentVolume, and node a is rebooted in the
// meantime. A pod there uses the volume for weeks. Then the PersistentVolume is
// released again, with the policy Delete, while node a still uses the volume.
// The boot remembered from the first release must not make the program believe
// that node a has released it. (The PersistentVolume is the historic
// provisioner's: one of ours counts as damaged under another claim.)
func TestRebootOfAnEarlierReleaseHidesNoUser(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.Annotations = map[string]string{objects.AnnotationProvisionedBy: "test", objects.HistoricIdentity: "id", objects.HistoricVolume: "volume-1", objects.AnnotationBackend: "gold"}
	f.backends["gold"].hasVolume = map[string]bool{"volume-1": true}
	node := f.node("a", true, volumeName)
	f.released(pv)
	if f.ShouldDelete(t.Context(), pv) {
		t.Fatal("deleted while the node uses it")
	}
	// The volume was rescued, and its PersistentVolume bound to another claim.
	bound := pv.DeepCopy()
	bound.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	bound.Spec.ClaimRef.Name, bound.Spec.ClaimRef.UID = "rescued", "uid-rescued"
	bound.Status.Phase = corev1.VolumeBound
	f.store(bound)
	f.followup.VolumeSeen(bound)
	node.Status.NodeInfo.BootID = "boot-2"
	f.updateNode(node, true) // a pod has used it since then
	f.publish(parking.Node, "a")
	// The PersistentVolume is released again.
	again := bound.DeepCopy()
	again.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	f.released(again)
	f.backends["gold"].calls = nil
	if !f.ShouldDelete(t.Context(), again) {
		return
	}
	_ = f.Delete(t.Context(), again)
	f.untouched("gold", "node a has the volume in use, and took it into use with boot-2")
}

// TestMarkIsNotLostWhereTheBackendLeadsElsewhere is like
// TestRecordedVolumeIsNeverTakenForAnOrphan, but the volume was never completed
// because the credentials lead to another project for a while. The mark finds no
// such volume there, and the listing there does not show it. When the original
// credentials are back, the volume, which a pod has written to, must still be
// known as recorded.
func TestMarkIsNotLostWhereTheBackendLeadsElsewhere(t *testing.T) {
	f := newFixture(t)
	moved := &movedBackends{fakeBackends: f.backends}
	f.useBackends(moved)
	f.count()
	followup := f.followup
	gold := f.backends["gold"]
	pv := f.recorded()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.released(pv)
	// The credentials lead to project p2.
	moved.place = cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p2"}
	gold.err = &cinder.Error{Kind: backends.KindElsewhere, Backend: "gold", Message: "elsewhere", Place: moved.place}
	followup.VolumeSeen(pv)
	followup.loop.Next(t.Context())
	claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data")
	f.must(err)
	f.forgetClaim(claim)
	followup.ClaimGone(claim)
	f.removeByHand(followup, pv)
	f.follow(followup)
	f.Recount("gold")
	f.relist("gold")
	// The original credentials are back.
	moved.place, gold.err, gold.calls = cinder.Place{}, nil, nil
	v := f.orphanVolume("uid-1")
	v.ID, v.Status = "volume-1", cinder.StatusAttaching
	gold.listed = []cinder.Volume{v}
	f.Recount("gold")
	f.count()
	f.follow(followup)
	f.untouched("gold", "a recorded volume that a pod has written to")
}

// TestRetainedObjectIsHeldUntilItsVolumeIsInUse: the library removes its own finalizer from
// the PersistentVolume as soon as it sees it. If the leader died then, and the claim and
// the PersistentVolume were deleted before the next leader began, that leader took the
// volume for one that was never handed out. The model in objects/removal found it.
func TestRetainedObjectIsHeldUntilItsVolumeIsInUse(t *testing.T) {
	for _, policy := range []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete} {
		t.Run(string(policy), func(t *testing.T) {
			f := newFixture(t)
			f.class.ReclaimPolicy = &policy
			pv := f.recorded()
			if held := slices.Contains(pv.Finalizers, objects.Finalizer); held != (policy == corev1.PersistentVolumeReclaimRetain) {
				t.Errorf("it is saved with the finalizers %q", pv.Finalizers)
			}
			// The cache is late.
			f.store(pv)
			live := pv.DeepCopy()
			live.Finalizers = append(live.Finalizers, "kubernetes.io/pv-protection")
			live.ResourceVersion = "later"
			f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), live, ""))
			f.followup.VolumeSeen(pv)
			f.follow(f.followup)
			live, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
			f.must(err)
			if !slices.Equal(live.Finalizers, []string{"kubernetes.io/pv-protection"}) {
				t.Errorf("when the volume is in use, it has the finalizers %q", live.Finalizers)
			}
		})
	}
}

// TestObjectOfAVolumeThatIsNotInUseYetIsKept: after a leader has died or handed
// over, only the object shows that the volume was recorded.
func TestObjectOfAVolumeThatIsNotInUseYetIsKept(t *testing.T) {
	f := newFixture(t)
	followup := f.followup
	gold := f.backends["gold"]
	pv := f.recorded()
	finalizers := func() []string {
		t.Helper()
		live, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
		f.must(err)
		f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Update(live))
		return live.Finalizers
	}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	pv.Finalizers = []string{"kubernetes.io/pv-protection"}
	f.store(pv)
	followup.VolumeSeen(pv)
	gold.err = errGoldDown
	followup.loop.Next(t.Context())
	if got := finalizers(); !slices.Equal(got, []string{"kubernetes.io/pv-protection", objects.Finalizer}) {
		t.Errorf("finalizers %v after a failure", got)
	}
	gold.err = nil
	followup.loop.Queue.Add(followupOf(pv))
	followup.loop.Next(t.Context())
	if got := finalizers(); !slices.Equal(got, []string{"kubernetes.io/pv-protection"}) {
		t.Errorf("finalizers %v when the volume is in use", got)
	}
	// The library keeps an object whose volume it must delete.
	deleted := pv.DeepCopy()
	deleted.Spec.PersistentVolumeReclaimPolicy, deleted.Status.Phase = corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased
	deleted.Finalizers = []string{objects.Finalizer}
	f.store(deleted)
	f.followup.VolumeSeen(deleted)
	f.must(f.followup.do(t.Context(), followupOf(deleted).Value()))
	if got := finalizers(); len(got) != 0 {
		t.Errorf("finalizers %v of a PersistentVolume that is to be deleted", got)
	}
}

// TestFinalizersOfAnotherInstallationStay: all use the same one.
func TestFinalizersOfAnotherInstallationStay(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.Annotations[objects.AnnotationProvisionedBy] = "another.example/cinder"
	pv.Spec.PersistentVolumeReclaimPolicy, pv.Finalizers = corev1.PersistentVolumeReclaimRetain, []string{objects.Finalizer}
	f.store(pv)
	f.followup.VolumeSeen(pv)
	f.follow(f.followup)
	live, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
	f.must(err)
	if !slices.Equal(live.Finalizers, []string{objects.Finalizer}) {
		t.Errorf("finalizers %v", live.Finalizers)
	}
}

// TestDuplicateLeavesTheSecretOfAKeptVolume: volume-kept was recorded and in use,
// and is kept on purpose with its Secret. The removal of a duplicate that was
// never attached must not remove that Secret.
func TestDuplicateLeavesTheSecretOfAKeptVolume(t *testing.T) {
	prepare := func(t *testing.T) (f *fixture, second cinder.Volume) {
		f = newFixture(t, credentialsOf("pvc-uid-gone"))
		kept, second := f.orphanVolume("uid-gone"), f.orphanVolume("uid-gone")
		kept.ID, kept.Metadata["readonly"] = "volume-kept", "False"
		second.ID, second.Status = "volume-second", cinder.StatusAvailable
		f.backends["gold"].listed = []cinder.Volume{kept, second}
		return f, second
	}
	t.Run("found by a new leader", func(t *testing.T) {
		f, _ := prepare(t)
		followup := f.followup
		f.count()
		f.follow(followup)
		if !f.hasSecret("pvc-uid-gone") {
			t.Error("the Secret of the kept volume is gone")
		}
	})
	t.Run("found by an audit", func(t *testing.T) {
		f, second := prepare(t)
		f.must(f.cleaner.RemoveVolume(t.Context(), "gold", second.ID, stamps.Of(second)))
		if !f.hasSecret("pvc-uid-gone") {
			t.Error("the Secret of the kept volume is gone")
		}
	})
}

// TestConnectorThatCannotBeReadForgetsNoClaim: the connector has the port names
// of nodes, and the nodes cannot be listed for a moment.
func TestConnectorThatCannotBeReadForgetsNoClaim(t *testing.T) {
	f := newFixture(t)
	moved := &movedBackends{fakeBackends: f.backends}
	f.useBackends(moved)
	gold := f.backends["gold"]
	followup := f.followup
	claim := f.claim(func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-gone" })
	f.noteEarlier(claim)
	old := f.orphanVolume("uid-gone")
	old.CreatedAt = time.Now().Add(-3 * time.Hour)
	gold.listed = []cinder.Volume{old}
	f.count()
	f.forgetClaim(claim)
	moved.connectorErr = errors.New("cannot list the nodes")
	followup.ClaimGone(claim)
	followup.loop.Next(t.Context())
	moved.connectorErr = nil
	if n := followup.loop.Queue.NumRequeues(followupOfClaimUID(claim.UID)); n == 0 {
		t.Error("it is not retried")
	}
	f.must(f.claimGone(t.Context(), claim.UID)) // the queue's next try
	if len(gold.calls) == 0 {
		t.Error("the volume of a claim whose deletion this term saw is forgotten")
	}
}

// TestRecordOfAVolumeElsewhereIsNotStale: a claim's first attempt was undone,
// because the claim was denied for a moment. Then it gets another volume, with
// the policy Retain, and uses it. The claim is deleted, and the credentials now
// lead to another project, where the volume does not exist. Its PersistentVolume
// must stay.
func TestRecordOfAVolumeElsewhereIsNotStale(t *testing.T) {
	f := newFixture(t)
	moved := &movedBackends{fakeBackends: f.backends}
	f.useBackends(moved)
	followup := f.followup
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	begun, _ := f.journal.Beginning(claim.UID)
	f.must(f.undo(t.Context(), claim.UID, begun, f.cleaner.IsUnrecorded))
	pv, err := f.provision(claim)
	f.must(err)
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", "test"
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.released(pv)
	f.forgetClaim(claim)
	moved.place = cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p2"}
	f.backends["gold"].hasVolume = nil
	followup.VolumeSeen(pv)
	f.follow(followup)
	if _, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the PersistentVolume of a volume with data is gone, because another project does not have the volume: %v", err)
	}
}

// TestFollowUpsOfAMissingBackendWaitForAnotherPolicy: a backend was renamed, and
// the program restarted. Only another policy can unblock the completions and marks
// of the old name's volumes, so they must not be retried every 30 s, with a
// warning each, for the whole term.
func TestFollowUpsOfAMissingBackendWaitForAnotherPolicy(t *testing.T) {
	prepare := func(t *testing.T) (*fixture, *Followup, *corev1.PersistentVolume) {
		f := newFixture(t)
		pv := f.recorded()
		pv.Annotations[objects.AnnotationBackend] = "bronze"
		f.store(pv)
		return f, f.followup, pv
	}
	t.Run("completion", func(t *testing.T) {
		f, followup, pv := prepare(t)
		followup.VolumeSeen(pv)
		followup.loop.Next(f.t.Context())
		if n := followup.loop.Queue.NumRequeues(followupOf(pv)); n != 0 {
			t.Errorf("tried again by the clock: %d", n)
		}
	})
	t.Run("mark", func(t *testing.T) {
		f, followup, pv := prepare(t)
		f.seen()
		f.removeByHand(followup, pv)
		followup.loop.Next(f.t.Context())
		if n := followup.loop.Queue.NumRequeues(followupOfMark(pv)); n != 0 {
			t.Errorf("tried again by the clock: %d", n)
		}
	})
}

// TestAVolumeThatWentWithAnEarlierTermDoesNotCount: the earlier term deleted the volume,
// but its PersistentVolume went only after this term had counted it.
func TestAVolumeThatWentWithAnEarlierTermDoesNotCount(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		count int64
	}{
		{"gone", errNoSuchVolume, 0},
		{"perhaps elsewhere", &cinder.Error{Backend: "gold", Kind: backends.KindElsewhere}, 1},
		{"there", nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			pv := f.recorded()
			pv.Annotations[objects.AnnotationEndpoint], pv.Annotations[objects.AnnotationProject] = "http://cinder:8776/v3", "p1"
			f.store(pv)
			followup := f.followup
			f.seen()
			f.backends["gold"].err = c.err
			f.removeByHand(followup, pv)
			f.follow(followup)
			if got := f.ledger.Usage(policy.TenantScope, pv.Annotations[objects.AnnotationTenant]).Volumes; got != c.count {
				t.Errorf("%d volumes count, want %d", got, c.count)
			}
		})
	}
}

func followupOfMark(pv *corev1.PersistentVolume) task {
	return unique.Make(followup{kind: mark, claim: types.UID(pv.Annotations[objects.AnnotationClaimUID]), backend: pv.Annotations[objects.AnnotationBackend], volume: pv.Annotations[objects.AnnotationVolume]})
}

// TestProofIsBoundedInTime: the proof is made while a request to the backend
// waits in its slot, and the API client has no timeout of its own.
func TestProofIsBoundedInTime(t *testing.T) {
	f := newFixture(t)
	v := f.orphanVolume("uid-gone")
	v.Status = cinder.StatusAttaching
	nodes := &boundedNodes{}
	f.cleaner.Nodes = nodes
	f.must(f.cleaner.Permit(f.cleaner.IsUnneeded)(t.Context(), v))
	if !nodes.bounded {
		t.Error("the request to the API server has no deadline")
	}
}

type boundedNodes struct {
	Nodes
	bounded bool
}

func (n *boundedNodes) Users(ctx context.Context, _ nodeuse.Volume) ([]string, error) {
	_, n.bounded = ctx.Deadline()
	return nil, nil
}

// TestNodesThatTakeFourSecondsToReadAreWaitedFor: a listing takes that long in a
// cluster of several thousand nodes. A caller that comes just after one has begun waits
// for its end, for a pause of three times its length, and for the next listing. The
// proof's timeout must allow that.
func TestNodesThatTakeFourSecondsToReadAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.client.PrependReactor("list", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			time.Sleep(4 * time.Second)
			return false, nil, nil
		})
		go func() { _, _ = f.Nodes.Users(t.Context(), nodeuse.Volume{PV: "pvc-1"}) }()
		time.Sleep(time.Second)
		bounded, cancel := context.WithTimeout(t.Context(), removal.Timeout)
		defer cancel()
		began := time.Now()
		if _, err := f.Nodes.Users(bounded, nodeuse.Volume{PV: "pvc-2"}); err != nil {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
	})
}

// TestNewVolumeOfAClaimWhoseRecordIsGoneIsUndone: an administrator removes a
// recorded volume and its PersistentVolume by hand. The pending claim gets
// another volume, and is deleted before that one is recorded. The memory of the
// first record must not keep the second volume.
func TestNewVolumeOfAClaimWhoseRecordIsGoneIsUndone(t *testing.T) {
	f, followup, gold := newCountedFixture(t)
	pv := f.recorded()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.store(pv)
	f.seen()
	f.removeByHand(followup, pv)
	gold.err = errNoSuchVolume // the volume is gone, too
	f.follow(followup)
	gold.err = nil
	claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data")
	f.must(err)
	_, err = f.provision(claim)
	f.must(err)
	v := f.orphanVolume("uid-1")
	v.ID, v.Status = "volume-2", cinder.StatusAttaching
	gold.listed, gold.calls = []cinder.Volume{v}, nil
	f.forgetClaim(claim)
	followup.ClaimGone(claim)
	f.follow(followup)
	wantCalls(t, gold, "abandon pvc-uid-1")
}

// TestRoomOfAKeptVolumeIsFreedWhenItIsGone: this term created the volume and another
// user attached it, so undoing keeps it. Then an administrator removes it by hand.
func TestRoomOfAKeptVolumeIsFreedWhenItIsGone(t *testing.T) {
	f, followup, gold := newCountedFixture(t)
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	gold.abandonKeeps = true
	f.forgetClaim(claim)
	followup.ClaimGone(claim)
	f.follow(followup)
	gold.abandonKeeps = false
	f.relist("gold")
	f.relist("gold")
	if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
		t.Errorf("it counts as %+v when it is gone", got)
	}
}

// TestErrorSaysWhyAMisplacedVolumeIsKept: the claim's volume is on a backend that
// its rule no longer names, and must not be removed.
func TestErrorSaysWhyAMisplacedVolumeIsKept(t *testing.T) {
	f := newFixture(t)
	f.backends["silver"].listed = []cinder.Volume{f.stamped("uid-1")}
	f.backends["silver"].abandonKeeps = true
	f.count()
	_, err := f.provision(f.claim(nil))
	if err == nil || !strings.Contains(err.Error(), "has been attached") {
		t.Errorf("error %v does not say why", err)
	}
}

// TestRecordThatArrivesAfterTheProofIsNoticed: a removal may wait for minutes
// between its steps. In the meantime, a late request of the former leader saves a
// PersistentVolume that names the volume.
func TestRecordThatArrivesAfterTheProofIsNoticed(t *testing.T) {
	f := newFixture(t)
	v := f.orphanVolume("uid-1")
	permit := f.cleaner.Permit(f.cleaner.IsUnrecorded)
	f.must(permit(t.Context(), v))
	f.store(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", UID: "pv-uid", Annotations: map[string]string{objects.AnnotationVolume: v.ID}}})
	if err := permit(t.Context(), v); !removal.IsKept(err) {
		t.Errorf("the second change is permitted: %v", err)
	}
}

// TestClaimWhosePersistentVolumeGoesComesBack: the claim is pending, but in no queue
// and not parked.
func TestClaimWhosePersistentVolumeGoesComesBack(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	pv := f.recorded()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-1"}
	f.store(pv)
	followup.VolumeSeen(pv)
	f.follow(followup)
	f.removeByHand(followup, pv)
	f.follow(followup)
	if !slices.Contains(f.requeued, "data") {
		t.Error("the pending claim waits for the resync")
	}
}

// TestClaimUndoneBeforeItsConnectIsNotForgotten: the claim is deleted after the
// last check before Connect, and is undone while Connect waits for the claim's
// lock. Connect then creates a volume, and the Secret cannot be written. The
// failed attempt must still undo that volume.
func TestClaimUndoneBeforeItsConnectIsNotForgotten(t *testing.T) {
	f, followup, gold := newCountedFixture(t)
	claim := f.claim(nil)
	gold.onCall = func() {
		gold.onCall = nil
		f.forgetClaim(claim)
		f.must(f.claimGone(t.Context(), claim.UID))
		gold.calls = nil
	}
	f.client.PrependReactor("create", "secrets", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("down") })
	if _, err := f.provision(claim); err == nil {
		t.Fatal("provisioned")
	}
	f.follow(followup)
	wantCalls(t, gold, "abandon pvc-uid-1")
}

// conflictBackends have volumes that cannot be brought into use.
type conflictBackends struct{ fakeBackends }

type conflictVolumes struct{ *fakeVolumes }

func (b conflictBackends) Recorded(name string) (Recorded, error) {
	return conflictVolumes{b.fakeBackends[name]}, nil
}

func (v conflictVolumes) Complete(_ context.Context, target backends.Target, _ bool) error {
	v.call("complete %s", target.VolumeID)
	return &cinder.Error{Kind: cinder.KindConflict, Backend: "gold", Message: "volume volume-1 is available where attaching was expected"}
}

// TestKeptVolumeThatWasDetachedStaysDetached: the PersistentVolume is released
// with the policy Retain, and its volume was in use once. An administrator has
// detached the volume to copy its data, which the audit accepts. No leader tries
// to bring it into use.
func TestKeptVolumeThatWasDetachedStaysDetached(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.useBackends(conflictBackends{f.backends})
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.released(pv)
	followup := f.followup
	followup.VolumeSeen(pv)
	followup.loop.Next(t.Context())
	if n := followup.loop.Queue.NumRequeues(followupOf(pv)); n != 0 {
		t.Errorf("tried again by the clock: %d", n)
	}
}

// TestRecordingAgainFreesNothing: every change of a PersistentVolume records it again.
// If that freed room, it would bring back every claim that waits for room of the
// tenant.
func TestRecordingAgainFreesNothing(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	pv := f.recorded()
	f.followup.countRecorded(pv)
	f.ledger.TakeFreed()
	f.followup.countRecorded(pv)
	if freed := f.ledger.TakeFreed(); len(freed) != 0 {
		t.Errorf("freed: %v", freed)
	}
}

// staleBackends were listed before the volume was created.
type staleBackends struct{ fakeBackends }

type staleVolumes struct{ *fakeVolumes }

func (b staleBackends) Listing(name string) (Listing, error) {
	return staleVolumes{b.fakeBackends[name]}, nil
}

func (v staleVolumes) Volumes(context.Context) ([]cinder.Volume, error) { return nil, nil }

// TestSweepOfSecretsByAnOldListingKeepsThoseThatCount: the volume was created
// after the last listing, recorded and in use, and is kept with its Secret,
// because a user removed the PersistentVolume to import the volume again. A sweep
// of Secrets must not rely on the old listing.
func TestSweepOfSecretsByAnOldListingKeepsThoseThatCount(t *testing.T) {
	f := newFixture(t)
	f.useBackends(staleBackends{f.backends})
	f.count()
	followup := f.followup
	pv := f.recorded()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.released(pv)
	followup.VolumeSeen(pv)
	f.follow(followup)
	secret, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{})
	f.must(err)
	secret.CreationTimestamp = metav1.Now()
	f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), secret, "own"))
	claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data")
	f.must(err)
	f.forgetClaim(claim)
	followup.ClaimGone(claim)
	f.removeByHand(followup, pv)
	f.follow(followup)
	v := f.orphanVolume("uid-1")
	v.ID, v.Status, v.Metadata["readonly"] = "volume-1", cinder.StatusInUse, "False"
	f.backends["gold"].listed = []cinder.Volume{v}
	f.must(f.SweepSecrets(t.Context()))
	if !f.hasSecret("pvc-uid-1") {
		t.Error("the Secret of the kept volume is gone")
	}
}

// TestDeletionThatIsDoneIsNotReportedAsStopped: Cinder has accepted the deletion,
// which takes minutes. Then the reclaim policy becomes Retain, which is too late:
// no event may claim that the volume still exists.
func TestDeletionThatIsDoneIsNotReportedAsStopped(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.ResourceVersion = "10"
	f.released(pv)
	f.backends["gold"].onCall = func() { // the volume goes
		retained := pv.DeepCopy()
		retained.ResourceVersion, retained.Spec.PersistentVolumeReclaimPolicy = "11", corev1.PersistentVolumeReclaimRetain
		f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Update(retained))
	}
	_ = f.Delete(t.Context(), pv)
	wantCalls(t, f.backends["gold"], "remove volume-1 historic=false")
	for _, event := range f.newEvents() {
		if strings.Contains(event, "is not removed") {
			t.Errorf("an event about a volume that is gone: %s", event)
		}
	}
}
