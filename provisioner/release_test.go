package provisioner

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const volumeName = "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2010-10.org.openstack:volume-1:1"

// node adds a node that uses volumes to the API server, and to the cache unless the
// watch is late.
func (f *fixture) node(name string, watched bool, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		VolumesInUse: inUse, NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
	}}
	f.updateNode(node, watched)
	return node
}

func (f *fixture) updateNode(node *corev1.Node, watched bool) {
	f.t.Helper()
	resource := corev1.SchemeGroupVersion.WithResource("nodes")
	if err := f.client.Tracker().Update(resource, node, ""); err != nil {
		f.must(f.client.Tracker().Add(node))
	}
	if watched {
		f.must(f.nodes.Update(node.DeepCopy()))
	}
}

const stillInUse = "Normal VolumeStillInUse node a still uses the volume (volumesInUse or volumesAttached of its status, or a VolumeAttachment); the deletion continues when the node has unmounted it"

// remedyInUse follows once that has lasted.
const remedyInUse = "; if the node is permanently lost, delete its Node object, taint it with node.kubernetes.io/out-of-service, or run: " +
	"kubectl annotate pv pvc-uid-1 standalone-cinder.openstack.org/released-by-nodes=a"

func TestNothingIsDisconnectedThatANodeUses(t *testing.T) {
	for name, watched := range map[string]bool{"the cache shows it": true, "the watch is late": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pv := f.recorded()
			node := f.node("a", watched, volumeName)
			f.node("b", watched, "kubernetes.io/iscsi/another")
			f.released(pv)
			for range 3 {
				if f.ShouldDelete(t.Context(), pv) {
					if err := f.deleteReleased(pv); !isIgnored(err) {
						t.Fatalf("error %v, want one that the library ignores", err)
					}
				}
			}
			wantCalls(t, f.backends["gold"])
			f.wantEvent(stillInUse)
			// Another node's change does not help.
			f.publish(parking.Node, "b")
			f.wantRequeued()
			node.Status.VolumesInUse = nil
			f.updateNode(node, true)
			f.publish(parking.Node, "a")
			f.wantRequeued(pv.Name)
			if !f.ShouldDelete(t.Context(), pv) {
				t.Fatal("not deleted after the node has released the volume")
			}
			f.must(f.deleteReleased(pv))
			wantCalls(t, f.backends["gold"], "remove volume-1 historic=false")
		})
	}
}

// TestNodeThatLetsGoBeforeTheParkingIsNotMissed: the watch reports the release
// between the check and the parking.
func TestNodeThatLetsGoBeforeTheParkingIsNotMissed(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.released(pv)
	f.node("a", false, volumeName)
	f.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		f.publish(parking.Node, "a")
		return false, nil, nil
	})
	if err := f.deleteReleased(pv); !isIgnored(err) {
		t.Fatalf("error %v, want one that the library ignores", err)
	}
	f.wantRequeued(pv.Name)
}

// TestOnlyANodeThatTakesLongNeedsAPerson: detaching takes seconds on ordinary days.
func TestOnlyANodeThatTakesLongNeedsAPerson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		pv := f.recorded()
		f.node("a", true, volumeName)
		f.released(pv)
		if f.ShouldDelete(t.Context(), pv) {
			t.Fatal("it is deleted")
		}
		f.wantEvent(stillInUse)
		f.wantRequeued()
		time.Sleep(releaseTakes)
		synctest.Wait()
		f.wantRequeued(pv.Name)
		if f.ShouldDelete(t.Context(), pv) {
			t.Fatal("it is deleted")
		}
		f.wantEvent(strings.Replace(stillInUse, "Normal", "Warning", 1) + remedyInUse)
	})
}

func TestDeletionIsRetriedWithoutAWatchOfNodes(t *testing.T) {
	f := newFixture(t)
	f.blind = true
	pv := f.recorded()
	f.node("a", false, volumeName)
	err := f.delete(pv)
	if err == nil || isIgnored(err) || retry.For(err).Outcome != "in_use" {
		t.Errorf("error %v, retried like %+v", err, retry.For(err))
	}
	wantCalls(t, f.backends["gold"])
}

func TestNodesThatCannotBeReadStopADeletion(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	if err := f.delete(pv); err == nil || !strings.Contains(err.Error(), "cannot tell whether a node still uses the volume of PersistentVolume pvc-uid-1") {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"])
}

// TestRevokedDeletionStops: a user changes the object while the deletion waits
// for its turn, and the cache does not show the change yet.
func TestRevokedDeletionStops(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fixture, pv *corev1.PersistentVolume)
		want   string
	}{
		"the reclaim policy": {func(f *fixture, pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, "its reclaim policy is now Retain"},
		"the claimRef": {func(f *fixture, pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil }, "its claimRef was cleared"},
		"the phase":    {func(f *fixture, pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound }, "its phase is now Bound"},
		"the volume": {func(f *fixture, pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationVolume] = "volume-2" },
			"it now names volume volume-2"},
		"the object": {func(f *fixture, pv *corev1.PersistentVolume) { pv.UID = "another" }, "another object has its name"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			queued := f.recorded()
			f.released(queued)
			live := queued.DeepCopy()
			c.change(f, live)
			f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), live, ""))
			if err := f.Delete(t.Context(), queued); !isIgnored(err) {
				t.Errorf("error %v, want one that the library ignores", err)
			}
			wantCalls(t, f.backends["gold"])
			f.wantEvent("Normal DeletionStopped the volume of PersistentVolume pvc-uid-1 is not removed: " + c.want)
			if !f.hasSecret(queued.Name) {
				t.Error("the Secret is gone")
			}
		})
	}
	t.Run("the object is gone", func(t *testing.T) {
		f := newFixture(t)
		queued := f.recorded()
		f.released(queued)
		f.must(f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", queued.Name))
		if err := f.Delete(t.Context(), queued); !isIgnored(err) {
			t.Errorf("error %v, want one that the library ignores", err)
		}
		wantCalls(t, f.backends["gold"])
	})
}

// TestDeletionReadsTheObjectOnce: a deletion reads the object before its first change,
// and not again before later ones as long as the cache shows no change.
func TestDeletionReadsTheObjectOnce(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.ResourceVersion = "10"
	f.released(pv)
	f.client.ClearActions()
	r := f.releaseOf(pv, "volume-1")
	for range 3 {
		f.must(r.Permit(t.Context(), cinder.Volume{Status: cinder.StatusInUse}))
	}
	reads := 0
	for _, action := range f.client.Actions() {
		if action.Matches("get", "persistentvolumes") {
			reads++
		}
	}
	if reads != 1 {
		t.Errorf("%d reads of the object", reads)
	}
	// A cached object that is older than the proof proves nothing.
	store := f.factory.Core().V1().PersistentVolumes().Informer().GetStore()
	before, after := pv.DeepCopy(), pv.DeepCopy()
	before.ResourceVersion, before.Status.Phase = "9", corev1.VolumeBound
	f.must(store.Update(before))
	f.must(r.Permit(t.Context(), cinder.Volume{Status: cinder.StatusInUse}))
	after.ResourceVersion, after.Spec.PersistentVolumeReclaimPolicy = "11", corev1.PersistentVolumeReclaimRetain
	f.must(store.Update(after))
	var changed *removal.ChangedError
	if err := r.Permit(t.Context(), cinder.Volume{Status: cinder.StatusInUse}); !errors.As(err, &changed) {
		t.Errorf("the answer is %v", err)
	}
}

// TestUndoingWaitsForTheNode: the library got the PersistentVolume, which may since
// have been saved, used and removed.
func TestUndoingWaitsForTheNode(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	f.forgetClaim(claim)
	f.backends["gold"].calls = nil
	node := f.node("a", true, volumeName)
	if err := f.claimGone(t.Context(), claim.UID); err == nil || !strings.Contains(err.Error(), "volume volume-1 is still in use by node a") {
		t.Errorf("the answer is %v", err)
	}
	wantCalls(t, f.backends["gold"])
	if !f.hasSecret("pvc-uid-1") {
		t.Error("the Secret is gone")
	}
	node.Status.VolumesInUse = nil
	f.updateNode(node, true)
	f.must(f.claimGone(t.Context(), claim.UID))
	wantCalls(t, f.backends["gold"], "abandon pvc-uid-1")
}

// TestVolumeOfAnEarlierLeaderIsKeptWhileItIsAttached: a node has attached the
// volume, under the name that its PersistentVolume would have.
func TestVolumeOfAnEarlierLeaderIsKeptWhileItIsAttached(t *testing.T) {
	f := newFixture(t)
	v := f.orphanVolume("uid-gone")
	v.Status = cinder.StatusAttaching
	asked := nodeuse.Volume{}
	f.cleaner.Nodes = askedNodes{asked: &asked, users: []string{"a"}}
	if err := f.cleaner.IsUnneeded(t.Context(), v); err == nil || !strings.Contains(err.Error(), "is still in use by node a") {
		t.Errorf("the answer is %v", err)
	}
	if asked.PV != "pvc-uid-gone" || asked.ID != v.ID || !asked.MayAttach {
		t.Errorf("request for %+v", asked)
	}
}

type askedNodes struct {
	Nodes
	asked *nodeuse.Volume
	users []string
}

func (n askedNodes) Users(_ context.Context, v nodeuse.Volume) ([]string, error) {
	*n.asked = v
	return n.users, nil
}

// whileNodesAreRead calls do while the API server lists the nodes, which may take any
// length of time.
func (f *fixture) whileNodesAreRead(do func()) {
	f.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		do()
		return false, nil, nil
	})
}

func TestDeletionRevokedWhileNodesAreReadKeepsTheVolume(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	f.whileNodesAreRead(func() {
		kept := pv.DeepCopy()
		kept.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), kept, ""))
	})
	if err := f.delete(pv); !isIgnored(err) || !strings.Contains(err.Error(), "its reclaim policy is now Retain") {
		t.Errorf("error %v, want one that says that the deletion was revoked", err)
	}
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

// TestNodesAreReadAgainWhenAnOperatorAnswersForThem: an operator's statement counts as
// soon as the API server has it.
func TestNodesAreReadAgainWhenAnOperatorAnswersForThem(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		want                bool // removed
	}{
		{"said meanwhile", "", "n1", true},
		{"taken back meanwhile", "n1", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			pv, err := f.provision(f.claim(nil))
			f.must(err)
			pv.UID = "pv-uid"
			pv.Annotations[nodeuse.AnnotationReleasedBy] = c.before
			f.must(f.client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{VolumesInUse: nodeuse.Names(pv)}}))
			f.released(pv)
			changed := pv.DeepCopy()
			changed.Annotations[nodeuse.AnnotationReleasedBy] = c.after
			f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), changed, ""))
			err = f.deleteReleased(pv)
			if (err == nil) != c.want {
				t.Errorf("error %v, want the volume removed: %t", err, c.want)
			}
		})
	}
}

func TestRecordSavedWhileNodesAreReadKeepsTheVolume(t *testing.T) {
	f := newFixture(t)
	stamp := stamps.Of(f.stamped("uid-1"))
	v := f.stamped("uid-1")
	v.Status = cinder.StatusAttaching
	f.backends["gold"].listed = []cinder.Volume{v}
	f.whileNodesAreRead(func() {
		f.must(f.client.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: stamp.PV, Annotations: map[string]string{
			objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: v.ID, objects.AnnotationBackend: "gold", objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "uid-1", objects.AnnotationConnector: "{}",
		}}}))
	})
	if err := f.Cleaner().RemoveVolume(t.Context(), "gold", v.ID, stamp); !removal.IsKept(err) {
		t.Errorf("error %v, want that the volume is recorded", err)
	}
	wantCalls(t, f.backends["gold"])
}

// TestNewUseForgetsTheBootOfTheOldOne: a rebooted node has released what it used
// before, but not what it has used since another pod took the volume back into use.
func TestNewUseForgetsTheBootOfTheOldOne(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	pv.Annotations[objects.AnnotationProvisionedBy] = "test"
	f.released(pv)
	boots := func(id string) {
		f.must(f.nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: id}, VolumesInUse: nodeuse.Names(pv)}}))
	}
	waits := func() bool { return !f.ShouldDelete(t.Context(), pv) }
	boots("first")
	if !waits() {
		t.Fatal("the deletion does not wait for the node")
	}
	again := pv.DeepCopy()
	again.Status.Phase = corev1.VolumeBound
	f.store(again)
	f.followup.VolumeSeen(again)
	boots("second")
	f.store(pv)
	if !waits() {
		t.Error("a reboot before the volume's new use let the deletion take the volume from a node that uses it")
	}
}
