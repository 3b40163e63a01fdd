package provisioner

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
)

// whileNodesAreRead has something happen at the API server while it answers which
// nodes there are, which may take as long as it likes.
func (f *fixture) whileNodesAreRead(do func()) {
	f.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		do()
		return false, nil, nil
	})
}

func TestChangeOfMindWhileNodesAreReadKeepsTheVolume(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	f.whileNodesAreRead(func() {
		kept := pv.DeepCopy()
		kept.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), kept, ""))
	})
	if err := f.delete(pv); !isIgnored(err) || !strings.Contains(err.Error(), "its reclaim policy is Retain now") {
		t.Errorf("error %v, want that somebody changed his mind", err)
	}
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

// An operator's word is the one that the API server has.
func TestNodesAreAskedAgainWhenAnOperatorAnswersForThem(t *testing.T) {
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
			err = f.Delete(t.Context(), pv)
			if (err == nil) != c.want {
				t.Errorf("error %v, want the volume removed: %t", err, c.want)
			}
		})
	}
}

func TestRecordSavedWhileNodesAreReadKeepsTheVolume(t *testing.T) {
	f := newFixture(t)
	stamp := backends.StampOf(f.stamped("uid-1"))
	v := f.stamped("uid-1")
	v.Status = backends.StatusAttaching
	f.backends["gold"].listed = []backends.Volume{v}
	f.whileNodesAreRead(func() {
		f.must(f.client.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: stamp.PV, Annotations: map[string]string{
			annotationProvisionedBy: "test", annotationVolume: v.ID, annotationBackend: "gold", annotationCluster: "cluster-1", annotationClaimUID: "uid-1", annotationConnector: "{}",
		}}}))
	})
	if err := f.Cleaner().RemoveVolume(t.Context(), "gold", v.ID, stamp); !IsKept(err) {
		t.Errorf("error %v, want that the volume is recorded", err)
	}
	wantCalls(t, f.backends["gold"])
}

// A node that is started anew has let go of what it used before, but not of what
// it has used since somebody took the volume back into use.
func TestANewUseForgetsTheBootOfTheOldOne(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	pv.Annotations[annotationProvisionedBy] = "test"
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
	NewFollowup(f.Provisioner, 1).VolumeSeen(again)
	boots("second")
	f.store(pv)
	if !waits() {
		t.Error("the volume is taken from a node that uses it, since the node used it before it was started anew")
	}
}
