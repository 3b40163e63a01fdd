package expand

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

func TestBlockVolumeIsExpanded(t *testing.T) {
	f := newFixture(t)
	claim, pv := pair("data")
	other := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimVolumeModifyingVolume, Status: corev1.ConditionTrue}
	claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{other}
	f.add(claim, pv)
	f.volumes["gold"].onAsk = func() {
		f.is("data", "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, ModifyingVolume, Resizing, reserved 20")
	}
	f.sync("data")
	f.is("data", "pv 20Gi, claim 20Gi, ModifyingVolume, reserved 20")
	if f.room.grew[claim.UID] != 20 {
		t.Error("the ledger does not know the size that Cinder shows")
	}
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Normal VolumeResizeSuccessful the volume has 20Gi; a node that uses it shows the new size after iscsiadm") {
		t.Errorf("events %q", events)
	}
	// Another run has no effect.
	f.client.ClearActions()
	f.sync("data")
	if f.room.reserved[claim.UID] != 0 {
		t.Error("a finished expansion keeps its reservation")
	}
	for _, action := range f.client.Actions() {
		if action.GetVerb() == "patch" {
			t.Errorf("another %v", action)
		}
	}
}

func TestFilesystemIsAcknowledged(t *testing.T) {
	f := newFixture(t)
	claim, pv := pair("data")
	asFilesystem(claim, pv)
	f.add(claim, pv)
	for range 2 {
		f.sync("data")
	}
	f.is("data", "pv 20Gi, claim 10Gi, allocated 20Gi, NodeResizePending, FileSystemResizePending, reserved 20")
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Normal FileSystemResizeRequired the volume has 20Gi") {
		t.Errorf("events %q, want one", events)
	}
	annotate := func(size string) {
		live, err := f.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data", metav1.GetOptions{})
		f.must(err)
		live.Annotations = map[string]string{AnnotationGrown: size}
		_, err = f.client.CoreV1().PersistentVolumeClaims("team-a").Update(t.Context(), live, metav1.UpdateOptions{})
		f.must(err)
	}
	annotate("25Gi")
	for range 2 {
		f.sync("data")
	}
	if events := f.newEvents(); len(events) != 1 || !strings.Contains(events[0], `Warning FilesystemSizeRefused annotation standalone-cinder.openstack.org/filesystem-grown is "25Gi", but the volume has 20Gi`) {
		t.Errorf("events %q, want one", events)
	}
	annotate("20Gi")
	f.sync("data")
	f.is("data", "pv 20Gi, claim 20Gi, reserved 20")
}

// TestKubeletIsNotDisturbed: what kubelet writes while it grows a filesystem stays.
func TestKubeletIsNotDisturbed(t *testing.T) {
	f := newFixture(t)
	claim, pv := pairOf("20Gi", "10Gi", "20Gi", corev1.PersistentVolumeClaimNodeResizeInProgress)
	asCSI(claim, pv)
	f.add(claim, pv)
	f.sync("data")
	f.is("data", "pv 20Gi, claim 10Gi, NodeResizeInProgress, reserved 0")
	if events := f.newEvents(); len(events) > 0 {
		t.Errorf("events %q", events)
	}
}

func TestDenialIsToldOnceAndLiftedByItsTrigger(t *testing.T) {
	f := newFixture(t)
	claim, pv := pair("data")
	f.add(claim, pv)
	room := parking.Trigger{Kind: parking.Room, Name: "tenant a"}
	f.room.denied = &placement.Denial{Reason: string(policy.QuotaExceeded), Message: "tenant a would use 40 of 30 GiB", Triggers: []parking.Trigger{room}}
	for range 3 {
		f.sync("data")
	}
	f.is("data", "pv 10Gi, claim 10Gi, reserved 0")
	if events := f.newEvents(); !slices.Equal(events, []string{"Warning QuotaExceeded tenant a would use 40 of 30 GiB"}) {
		t.Errorf("events %q", events)
	}
	f.Board.Publish(parking.Trigger{Kind: parking.Room, Name: "tenant b"})
	if queued := f.queued(); len(queued) > 0 {
		t.Errorf("another tenant's room brought back %q", queued)
	}
	f.room.denied = nil
	f.Board.Publish(room)
	if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
		t.Errorf("queued %q", queued)
	}
	f.sync("data")
	f.is("data", "pv 20Gi, claim 20Gi, reserved 20")
}

// TestTriggerDuringTheDecision: it brings a claim back that is parked only afterwards.
func TestTriggerDuringTheDecision(t *testing.T) {
	f := newFixture(t)
	claim, pv := pair("data")
	claim.Spec.Resources.Requests = size("60Gi") // more than the policy allows
	f.add(claim, pv)
	f.client.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		f.Board.Publish(parking.Trigger{Kind: parking.Policy})
		return false, nil, nil
	})
	f.sync("data")
	if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
		t.Errorf("queued %q", queued)
	}
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning VolumeTooLarge the volume would have 60 GiB") {
		t.Errorf("events %q", events)
	}
}

func TestFailures(t *testing.T) {
	const refused = "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInfeasible, ControllerResizeError, reserved 0"
	const trying = "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, Resizing, reserved 20"
	for name, c := range map[string]struct {
		err    error
		health error
		state  string
		event  string
	}{
		"Cinder's own quota": {err: failure(cinder.KindOverQuota, "no room"), state: refused,
			event: "Warning VolumeResizeFailed Cinder's own quota of backend gold has no room: backend gold: volume.os-extend: no room (HTTP 400); ask for less, or for a larger quota in OpenStack"},
		"the array":              {err: failure(backends.KindVolumeFailed, "the array failed"), state: refused, event: "Warning VolumeResizeFailed backend gold: volume.os-extend: the array failed (HTTP 400)"},
		"a refusal":              {err: failure(cinder.KindInvalid, "3.42"), state: refused, event: "Warning VolumeResizeFailed backend gold: volume.os-extend: 3.42 (HTTP 400)"},
		"a volume that is gone":  {err: failure(cinder.KindNotFound, "gone"), state: refused, event: "Warning VolumeResizeFailed backend gold: volume.os-extend: gone (HTTP 400)"},
		"another's volume":       {err: failure(backends.KindNotOurs, "stamp"), state: refused, event: "Warning VolumeResizeFailed backend gold: volume.os-extend: stamp (HTTP 400)"},
		"something passing":      {err: failure(cinder.KindUnavailable, "500"), state: trying, event: "Warning VolumeResizeFailed backend gold: volume.os-extend: 500 (HTTP 400)"},
		"another operation":      {err: failure(cinder.KindConflict, "attaching"), state: trying},
		"the backend is silent":  {err: failure(cinder.KindUnavailable, "no answer"), health: errSilent, state: trying, event: "Warning BackendUnavailable backend gold does not answer"},
		"the lease is uncertain": {err: failure(cinder.KindFenced, "fenced"), state: trying},
		"reads lag":              {err: failure(backends.KindNotShown, "not shown yet"), state: trying},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.add(pair("data"))
			f.volumes["gold"].err, f.room.health = c.err, c.health
			for range 2 {
				f.sync("data")
			}
			f.is("data", c.state)
			if events := strings.Join(f.newEvents(), "\n"); events != c.event {
				t.Errorf("events %q, want one %q", events, c.event)
			}
			// Whatever it was, a trigger of the backend causes a retry, and the
			// expansion goes on.
			f.volumes["gold"].err, f.room.health = nil, nil
			f.queued()
			f.Board.Publish(parking.Trigger{Kind: parking.Policy})
			if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
				t.Errorf("queued %q", queued)
			}
			f.sync("data")
			f.is("data", "pv 20Gi, claim 20Gi, reserved 20")
		})
	}
}

// TestTheUserAsksForLess: after a failure, the user gets the smaller size.
func TestTheUserAsksForLess(t *testing.T) {
	f := newFixture(t)
	claim, pv := pairOf("15Gi", "10Gi", "10Gi", corev1.PersistentVolumeClaimControllerResizeInfeasible)
	claim.Status.AllocatedResources = size("20Gi")
	f.add(claim, pv)
	f.sync("data")
	f.is("data", "pv 15Gi, claim 15Gi, reserved 15")
	if asked := f.volumes["gold"].asked; !slices.Equal(asked, []int64{15}) {
		t.Errorf("asked for %v", asked)
	}
}

// TestNewLeaderResumes: what the last leader began counts from the start, and what
// Cinder did for it is recorded even if the policy denies it now.
func TestNewLeaderResumes(t *testing.T) {
	begun := func(f *fixture, wanted string) *corev1.PersistentVolumeClaim {
		claim, pv := pairOf(wanted, "10Gi", "10Gi", corev1.PersistentVolumeClaimControllerResizeInProgress)
		claim.Status.AllocatedResources = size(wanted)
		f.add(claim, pv)
		f.ClaimChanged(nil, claim)
		return claim
	}
	t.Run("before Cinder was asked", func(t *testing.T) {
		f := newFixture(t)
		begun(f, "20Gi")
		f.is("data", "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, reserved 20")
		f.sync("data")
		f.is("data", "pv 20Gi, claim 20Gi, reserved 20")
	})
	t.Run("after Cinder did more", func(t *testing.T) {
		f := newFixture(t)
		f.volumes["gold"].size = 25
		begun(f, "20Gi")
		f.sync("data")
		f.is("data", "pv 25Gi, claim 25Gi, reserved 25")
		if asked := f.volumes["gold"].asked; len(asked) > 0 {
			t.Errorf("asked for %v", asked)
		}
	})
	t.Run("denied, and done", func(t *testing.T) {
		f := newFixture(t)
		f.volumes["gold"].size = 60
		begun(f, "60Gi")
		f.sync("data")
		f.is("data", "pv 60Gi, claim 60Gi, reserved 60")
	})
	t.Run("denied, and not done", func(t *testing.T) {
		f := newFixture(t)
		begun(f, "60Gi")
		f.sync("data")
		f.is("data", "pv 10Gi, claim 10Gi, allocated 60Gi, ControllerResizeInfeasible, ControllerResizeError, reserved 0")
		if asked := f.volumes["gold"].asked; len(asked) > 0 {
			t.Errorf("asked for %v", asked)
		}
	})
}

func TestWhatIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
		"another provisioner's": func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other"
		},
		"another cluster's": func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Annotations["standalone-cinder.openstack.org/cluster"] = "other"
		},
		"a resizer's by name only": func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			claim.Annotations = map[string]string{"volume.kubernetes.io/storage-resizer": "test"}
			pv.Annotations = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim, pv := pair("data")
			change(claim, pv)
			f.add(claim, pv)
			f.ClaimChanged(nil, claim)
			if queued := f.queued(); len(queued) > 0 {
				t.Errorf("queued %q", queued)
			}
			f.sync("data")
			f.is("data", "pv 10Gi, claim 10Gi, reserved 0")
		})
	}
}

func TestHistoricVolumeIsRefused(t *testing.T) {
	f := newFixture(t)
	claim, pv := pair("data")
	pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "test", "cinderVolumeId": "volume-1", "standaloneCinderProvisionerIdentity": "x"}
	f.add(claim, pv)
	for range 2 {
		f.sync("data")
	}
	f.is("data", "pv 10Gi, claim 10Gi, reserved 0")
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning UnsupportedExpansion the historic provisioner made the volume") {
		t.Errorf("events %q", events)
	}
}

func TestDamagedRecordIsTold(t *testing.T) {
	f := newFixture(t)
	claim, pv := pair("data")
	delete(pv.Annotations, "standalone-cinder.openstack.org/connector")
	f.add(claim, pv)
	for range 2 {
		f.sync("data")
	}
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning VolumeResizeFailed PersistentVolume pvc-uid-data: annotation standalone-cinder.openstack.org/connector is missing") {
		t.Errorf("events %q", events)
	}
}

// TestPersistentVolumeDeletedByHand: it is not made again.
func TestPersistentVolumeDeletedByHand(t *testing.T) {
	f := newFixture(t)
	f.add(pair("data"))
	f.volumes["gold"].onAsk = func() {
		f.must(f.client.CoreV1().PersistentVolumes().Delete(t.Context(), "pvc-uid-data", metav1.DeleteOptions{}))
	}
	f.loop.Try(t.Context(), "team-a/data")
	pvs, err := f.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	f.must(err)
	if len(pvs.Items) > 0 || f.room.grew["uid-data"] != 20 {
		t.Errorf("%d PersistentVolumes, Cinder's size is known as %d", len(pvs.Items), f.room.grew["uid-data"])
	}
}

// TestPersistentVolumeChangedMeanwhile: the controller writes only to the version that
// it read.
func TestPersistentVolumeChangedMeanwhile(t *testing.T) {
	f := newFixture(t)
	f.add(pair("data"))
	conflicts := 0
	f.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch := string(action.(clienttesting.PatchAction).GetPatch()); !strings.Contains(patch, `"resourceVersion":"1"`) || !strings.Contains(patch, `"uid":"pv-uid-data"`) {
			t.Errorf("the patch is %s", patch)
		}
		conflicts++
		return conflicts == 1, nil, apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumes"}, "pvc-uid-data", errors.New("changed"))
	})
	f.sync("data")
	f.is("data", "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, Resizing, reserved 20")
	f.sync("data")
	f.is("data", "pv 20Gi, claim 20Gi, reserved 20")
	if asked := f.volumes["gold"].asked; len(asked) != 1 {
		t.Errorf("asked for %v", asked)
	}
}

// TestForbiddenByTheAPIServer: this is reported, because only an administrator can
// change it.
func TestForbiddenByTheAPIServer(t *testing.T) {
	f := newFixture(t)
	f.add(pair("data"))
	f.client.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "pvc-uid-data", errors.New("an old admission policy"))
	})
	for range 2 {
		f.sync("data")
	}
	f.is("data", "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, Resizing, reserved 20")
	if events := f.newEvents(); len(events) != 1 || !strings.Contains(events[0], "VolumeResizeFailed cannot record on PersistentVolume pvc-uid-data that its volume has 20 GiB") {
		t.Errorf("events %q, want one", events)
	}
}

// TestClaimDeletedInTheQueue: a volume that waits for its turn at the backend is not
// extended for a claim that is gone.
func TestClaimDeletedInTheQueue(t *testing.T) {
	f := newFixture(t)
	f.add(pair("data"))
	f.volumes["gold"].onTurn = func() {
		store := f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore()
		claim, _ := pair("data")
		claim.DeletionTimestamp = new(metav1.Now())
		f.must(store.Update(claim))
	}
	f.sync("data")
	if asked := f.volumes["gold"].asked; len(asked) > 0 {
		t.Errorf("asked for %v", asked)
	}
}

// TestOwnWritesBringNothingBack: otherwise a failure would be retried at once.
func TestOwnWritesBringNothingBack(t *testing.T) {
	f := newFixture(t)
	before, pv := pair("data")
	f.add(before, pv)
	after := before.DeepCopy()
	after.ResourceVersion = "2"
	after.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
	f.ClaimChanged(before, after)
	if queued := f.queued(); len(queued) > 0 {
		t.Errorf("queued %q", queued)
	}
	wanted := after.DeepCopy()
	wanted.ResourceVersion = "3"
	wanted.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("15Gi")
	f.ClaimChanged(after, wanted)
	if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
		t.Errorf("queued %q", queued)
	}
	// First a resync, then a PersistentVolume that the cache shows later than its
	// claim.
	f.ClaimChanged(wanted, wanted)
	f.VolumeChanged(nil, pv)
	if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
		t.Errorf("queued %q", queued)
	}
}

// TestSlowBackendLeavesWorkers: other backends find workers.
func TestSlowBackendLeavesWorkers(t *testing.T) {
	f := newFixture(t)
	names := []string{"slow-1", "slow-2", "slow-3", "slow-4", "slow-5", "quick"}
	for _, name := range names {
		claim, pv := pair(name)
		if name == "quick" {
			pv.Annotations["standalone-cinder.openstack.org/backend"] = "silver"
			pv.Annotations["standalone-cinder.openstack.org/tenant"] = "b"
			claim.Namespace, pv.Spec.ClaimRef.Namespace = "team-b", "team-b"
		}
		f.add(claim, pv)
	}
	// The claim is denied, which takes a worker as well.
	release, told := make(chan struct{}), make(chan struct{})
	f.OnBehalfOf = func(ctx context.Context, tenant string) context.Context {
		if tenant == "b" {
			close(told)
		} else {
			<-release
		}
		return ctx
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	for _, name := range names[:5] {
		f.loop.Queue.Add("team-a/" + name)
	}
	f.loop.Queue.Add("team-b/quick")
	<-told
	close(release)
	cancel()
	running.Wait()
}

// TestClaimChangedUnderTheLastWrite: the volume has grown, so that counts, although the
// attempt must begin again to say so on the claim.
func TestClaimChangedUnderTheLastWrite(t *testing.T) {
	f := newFixture(t)
	f.add(pair("data"))
	writes := 0
	f.client.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		return writes == 2, nil, apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, "data", errors.New("changed"))
	})
	f.sync("data")
	f.is("data", "pv 20Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, Resizing, reserved 20")
	f.sync("data")
	f.is("data", "pv 20Gi, claim 20Gi, reserved 20")
	count := &dto.Metric{}
	f.must(f.Metrics.expand.WithLabelValues("gold", "success").(prometheus.Histogram).Write(count))
	if n := count.GetHistogram().GetSampleCount(); n != 1 {
		t.Errorf("%d expansions are counted", n)
	}
}
