package expand

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
)

// ledgerRoom is a Room with the real ledger.
type ledgerRoom struct {
	*ledger.Ledger
	onGrow func()
}

func (r *ledgerRoom) Grow(_ context.Context, claim types.UID, d ledger.Decided) (*placement.Denial, error) {
	if r.onGrow != nil {
		r.onGrow()
	}
	refused, err := r.Ledger.Grow(claim, d)
	if refused != nil {
		denied := placement.DenialOf(refused.Denial)
		return &denied, err
	}
	return nil, err
}
func (r *ledgerRoom) Health(string) error { return nil }
func (r *ledgerRoom) Unanswered(string, error) *placement.Denial {
	return &placement.Denial{Reason: placement.ReasonBackendUnavailable}
}

// withQuota gives the fixture a real ledger, and tenant a a quota of 30 GiB.
func withQuota(t *testing.T) (*fixture, *ledgerRoom) {
	t.Helper()
	f := newFixture(t)
	parsed, err := policy.Parse([]byte(strings.Replace(testPolicy, "namespaces: [team-a]", "namespaces: [team-a]\n    quota: {gigabytes: 30}", 1)), "policy.yaml", nil)
	f.must(err)
	f.policy.Store(parsed)
	room := &ledgerRoom{Ledger: ledger.New(f.policy.Load)}
	f.Controller.Room, f.Controller.Growths = room, room
	return f, room
}

func (r *ledgerRoom) used() int64 { return r.Usage(policy.TenantScope, "a").Gigabytes }

// reserve requests room as a new claim of tenant a does.
func (r *ledgerRoom) reserve(f *fixture, gib int64) (admitted bool) {
	f.t.Helper()
	decision := f.policy.Load().DecideExpansion(policy.Request{Namespace: "team-a", StorageClass: "one", Bytes: gib << 30}, policy.Holding{Tenant: "a", Backend: "gold"})
	if decision.Denial != nil {
		f.t.Fatal(decision.Denial.Message)
	}
	_, _, refused, err := r.Reserve("uid-new", "one", ledger.Decided{Decision: decision, Revision: f.policy.Load().Revision()})
	f.must(err)
	return refused == nil
}

// TestDeletedClaimKeepsTheRoomOfItsGrowth: Cinder has accepted the extension from 10 to
// 30 GiB, and the claim, which a pod uses, is deleted before Cinder is done.
func TestDeletedClaimKeepsTheRoomOfItsGrowth(t *testing.T) {
	f, room := withQuota(t)
	claim, pv := pair("data")
	claim.Spec.Resources.Requests = size("30Gi")
	f.add(claim, pv)
	room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
	admitted := false
	f.volumes["gold"].onAsk = func() {
		if room.used() != 30 {
			t.Fatalf("tenant a uses %d GiB, want 30", room.used())
		}
		before, err := f.factory.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims("team-a").Get("data")
		f.must(err)
		after, now := before.DeepCopy(), metav1.Now()
		after.DeletionTimestamp, after.ResourceVersion = &now, "99"
		f.ClaimChanged(before, after)
		admitted = room.reserve(f, 20)
	}
	f.sync("data")
	if used := room.used(); admitted || used > 30 {
		t.Errorf("tenant a has a quota of 30 GiB and uses %d: the room of an extension under way was given to another claim", used)
	}
}

// TestNewLeaderHoldsTheRoomOfADeletedClaimsGrowth is the same case with a new leader.
func TestNewLeaderHoldsTheRoomOfADeletedClaimsGrowth(t *testing.T) {
	f, room := withQuota(t)
	claim, pv := pair("data")
	now := metav1.Now()
	claim.DeletionTimestamp, claim.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
	claim.Spec.Resources.Requests = size("30Gi")
	claim.Status.AllocatedResources = size("30Gi")
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress}
	f.add(claim, pv)
	room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
	f.ClaimChanged(nil, claim)
	if used := room.used(); used != 30 {
		t.Errorf("the claim is ControllerResizeInProgress to 30 GiB, but tenant a uses %d: a new leader admits what no quota allows", used)
	}
	// The new leader looks at the volume, and nothing extends it.
	if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
		t.Errorf("queued %q", queued)
	}
	f.sync("data")
	if used, asked := room.used(), f.volumes["gold"].asked; used != 10 || len(asked) > 0 {
		t.Errorf("tenant a uses %d GiB, want 10; asked Cinder for %v", used, asked)
	}
}

// TestGrowthOfAGoneClaimIsSettled: the claim disappears before Cinder shows what became
// of the extension, and another one takes its name.
func TestGrowthOfAGoneClaimIsSettled(t *testing.T) {
	for name, shown := range map[string]int64{"extended": 30, "not extended": 10} {
		t.Run(name, func(t *testing.T) {
			f, room := withQuota(t)
			claim, pv := pair("data")
			claim.Spec.Resources.Requests = size("30Gi")
			f.add(claim, pv)
			room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
			f.volumes["gold"].err = failure(cinder.KindUnavailable, "no answer")
			f.sync("data")
			f.must(f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "data", metav1.DeleteOptions{}))
			f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Delete(claim))
			f.ClaimChanged(claim, nil)
			another, itsPV := pair("another")
			another.Name, itsPV.Spec.ClaimRef.Name = "data", "data"
			f.add(another, itsPV)
			answering := f.Controller.Volumes
			f.Controller.Volumes = func(string) (Volumes, error) { return nil, errSilent }
			f.sync("data")
			f.Controller.Volumes = answering
			if used := room.used(); used != 30 {
				t.Errorf("tenant a uses %d GiB before Cinder answers, want 30", used)
			}
			f.queued()
			asked := len(f.volumes["gold"].asked)
			f.volumes["gold"].err, f.volumes["gold"].size = nil, shown
			f.sync("data")
			if used := room.used(); used != shown || room.IsGrowing(claim.UID) {
				t.Errorf("tenant a uses %d GiB, want %d", used, shown)
			}
			if more := f.volumes["gold"].asked[asked:]; len(more) > 0 {
				t.Errorf("asked for %v", more)
			}
			if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
				t.Errorf("the claim that has the name now is not worked on: queued %q", queued)
			}
		})
	}
}

// TestSmallerRequestKeepsTheRoomOfTheLarger: an earlier leader requested 30 GiB, and
// the user now asks for 11. Cinder is still extending the volume to 30.
func TestSmallerRequestKeepsTheRoomOfTheLarger(t *testing.T) {
	f, room := withQuota(t)
	claim, pv := pair("data")
	claim.Spec.Resources.Requests = size("11Gi")
	claim.Status.AllocatedResources = size("30Gi")
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress}
	f.add(claim, pv)
	room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
	f.ClaimChanged(nil, claim)
	if room.used() != 30 {
		t.Fatalf("tenant a uses %d GiB, want 30", room.used())
	}
	admitted := false
	f.Controller.Volumes = func(string) (Volumes, error) {
		return extending(func() cinder.Volume {
			admitted = room.reserve(f, 19) // while Extend waits for the end of `extending`
			return cinder.Volume{ID: "volume-data", SizeGiB: 30}
		}), nil
	}
	f.sync("data")
	if used := room.used(); admitted || used > 30 {
		t.Errorf("tenant a has a quota of 30 GiB and uses %d: the room of an extension under way was given to another claim", used)
	}
}

type extending func() cinder.Volume

func (e extending) Extend(context.Context, backends.Target, int64) (cinder.Volume, error) {
	return e(), nil
}

// TestGrowthOfAGoneClaimIsFreed: the claim disappears between the look at it and the
// reservation (which waits up to ten seconds for listings). Its PersistentVolume stays,
// because of the policy Retain.
func TestGrowthOfAGoneClaimIsFreed(t *testing.T) {
	f, room := withQuota(t)
	claim, pv := pair("data")
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	claim.Spec.Resources.Requests = size("30Gi")
	f.add(claim, pv)
	room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
	room.onGrow = func() {
		f.must(f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "data", metav1.DeleteOptions{}))
		f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Delete(claim))
		f.ClaimChanged(claim, nil)
	}
	f.sync("data")
	room.onGrow = nil
	f.sync("data") // the retry
	pv.Status.Phase = corev1.VolumeReleased
	f.VolumeChanged(nil, pv)
	if used := room.used(); used != 10 {
		t.Errorf("the retained volume has 10 GiB, and nobody extends it, but %d GiB count until the end of the term", used)
	}
}

// TestADeletedClaimLeavesTheReport: the look at its growth failed, so it waits for the
// backend. Then its PersistentVolume goes, too.
func TestADeletedClaimLeavesTheReport(t *testing.T) {
	f, room := withQuota(t)
	claim, pv := pair("data")
	claim.Spec.Resources.Requests = size("30Gi")
	f.add(claim, pv)
	room.Record(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "one", GiB: 10, VolumeID: "volume-data"}, "gold")
	f.volumes["gold"].err = failure(cinder.KindUnavailable, "no answer")
	f.sync("data")
	f.must(f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "data", metav1.DeleteOptions{}))
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Delete(claim))
	f.ClaimChanged(claim, nil)
	f.Controller.Volumes = func(string) (Volumes, error) { return nil, errSilent }
	f.sync("data")
	if waiting := f.parked.List(); len(waiting) != 1 {
		t.Fatalf("waiting: %v", waiting)
	}
	f.must(f.client.CoreV1().PersistentVolumes().Delete(t.Context(), pv.Name, metav1.DeleteOptions{}))
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Delete(pv))
	f.sync("data")
	if waiting := f.parked.List(); len(waiting) > 0 {
		t.Errorf("the report has a claim that is gone: %v", waiting)
	}
}
