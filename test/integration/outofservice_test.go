package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// taintAll lets the program take any share of the nodes out of service: the cluster has
// those of other tests, and no kubelet renews the Lease of any.
var taintAll = []string{"--taint-lost-nodes", "--taint-lost-nodes-share=100"}

// mayTaint gives a world's account the rights of the component taint-lost-nodes.
func (w *world) mayTaint() {
	w.Helper()
	remove, err := suite.AllowTaints(w.ctx, w.provisioner)
	w.must(err)
	w.Cleanup(func() {
		if err := remove(context.Background()); err != nil {
			w.Error(err)
		}
	})
}

// heard sets what Kubernetes knows of a node: True, False, or Unknown if nothing is heard.
func (c csiCluster) heard(ctx context.Context, n int, ready corev1.ConditionStatus) error {
	nodes := suite.Client.CoreV1().Nodes()
	for {
		node, err := nodes.Get(ctx, c.node(n), metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.Now()}}
		if _, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// boots gives a node another boot, and Readiness.
func (c csiCluster) boots(ctx context.Context, n int, boot string) error {
	nodes := suite.Client.CoreV1().Nodes()
	for {
		node, err := nodes.Get(ctx, c.node(n), metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.NodeInfo.BootID = boot
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		if _, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// is waits until a Node is as wanted.
func (c csiCluster) is(w *world, n int, what string, wanted func(*corev1.Node) bool) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		node, err := suite.Client.CoreV1().Nodes().Get(w.ctx, c.node(n), metav1.GetOptions{})
		if err != nil || wanted(node) {
			return "", err
		}
		return fmt.Sprintf("node %s is not %s: annotations %v, taints %v", node.Name, what, node.Annotations, node.Spec.Taints), nil
	}))
}

func isMarked(state nodemark.State, tainted bool) func(*corev1.Node) bool {
	return func(node *corev1.Node) bool {
		mark, marked := nodemark.Of(node)
		return nodemark.HasTaint(node) == tainted && (state == "" && !marked || marked && mark.State == state)
	}
}

// saysOn waits until an event says something about a node.
func (c csiCluster) saysOn(w *world, n int, reason, text string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		events, err := suite.Client.CoreV1().Events(metav1.NamespaceDefault).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + c.node(n)})
		if err != nil {
			return "", err
		}
		var said []string
		for _, event := range events.Items {
			said = append(said, event.Reason+": "+event.Message)
			if event.Reason == reason && strings.Contains(event.Message, text) {
				return "", nil
			}
		}
		return fmt.Sprintf("no event %s says %q about %s, but %q", reason, text, c.node(n), said), nil
	}))
}

// podOn makes a pod on a node. owner is the kind of its controller; change may be nil.
func (c csiCluster) podOn(w *world, n int, name, owner string, volumes ...corev1.Volume) {
	w.Helper()
	no, yes := false, true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: c.node(n), AutomountServiceAccountToken: &no, Volumes: volumes,
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/main"}},
		},
	}
	if owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: owner, Name: "of-" + name, UID: types.UID("uid-of-" + name), Controller: &yes}}
	}
	pods := suite.Client.CoreV1().Pods(w.name + "-a")
	_, err := pods.Create(w.ctx, pod, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		now := int64(0)
		_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
}

// claimOf makes a claim that has a volume, and returns it as a volume of a pod.
func (c csiCluster) claimOf(w *world, v csiVolume) corev1.Volume {
	w.Helper()
	return w.claimFor(v.pv)
}

// claimFor makes a claim that names a PersistentVolume.
func (w *world) claimFor(pv string) corev1.Volume {
	w.Helper()
	none := ""
	claims := suite.Client.CoreV1().PersistentVolumeClaims(w.name + "-a")
	_, err := claims.Create(w.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "of-" + pv},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none, VolumeName: pv, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		ctx := context.Background()
		_ = claims.Delete(ctx, "of-"+pv, metav1.DeleteOptions{})
		_, _ = claims.Patch(ctx, "of-"+pv, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	})
	return corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "of-" + pv}}}
}

var scratch = corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}

// staysSo checks for some seconds that a Node stays as it is.
func (c csiCluster) staysSo(w *world, n int, what string, is func(*corev1.Node) bool) {
	w.Helper()
	for range 16 {
		node, err := suite.Client.CoreV1().Nodes().Get(w.ctx, c.node(n), metav1.GetOptions{})
		w.must(err)
		if !is(node) {
			w.Fatalf("node %s is no longer %s: annotations %v, taints %v", node.Name, what, node.Annotations, node.Spec.Taints)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// evict deletes a pod as Kubernetes does because of a taint (addConditionAndDeletePod in
// pkg/controller/tainteviction/taint_eviction.go).
func (w *world) evict(name string) error {
	pods := suite.Client.CoreV1().Pods(w.name + "-a")
	_, err := pods.Patch(w.ctx, name, types.StrategicMergePatchType, []byte(`{"status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	return pods.Delete(w.ctx, name, metav1.DeleteOptions{})
}

// gonePod waits until a pod is gone.
func (w *world) gonePod(name string) error {
	return harness.Eventually(w.ctx, func() (string, error) {
		pod, err := suite.Client.CoreV1().Pods(w.name+"-a").Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("pod %s is still there, and was deleted at %v", name, pod.DeletionTimestamp), err
	})
}

// TestALostNodeIsTakenOutOfService: the volumes of a node that does not answer are taken
// from it at Cinder before it gets the taint; then another node gets them. When it is back
// and has let go of them, the taint goes. It was only slow, so it is not taken again.
func TestALostNodeIsTakenOutOfService(t *testing.T) {
	w := newWorld(t, "csitaint", cindersim.Options{})
	w.withCSI("{fencing: initiator}")
	c, volumes := w.csi(2, 3)
	c.withMachines(w, 2)
	w.mayTaint()
	held, brought, third := volumes[0], volumes[1], volumes[2]
	s := w.startWithSidecar(taintAll...)
	w.must(c.heard(w.ctx, 0, corev1.ConditionTrue))
	w.must(c.heard(w.ctx, 1, corev1.ConditionTrue))
	ended := map[string]string{}
	for _, v := range []csiVolume{held, brought} {
		w.must(c.attachTo(w.ctx, v, 0))
		connection, err := c.attached(w.ctx, v, 0)
		w.must(err)
		ended[v.id] = connection.Attachment
	}
	w.must(c.stages(w.ctx, 0, "boot-1", held))
	c.podOn(w, 0, "db-0", "StatefulSet", c.claimOf(w, held), scratch)
	c.podOn(w, 0, "web-1", "ReplicaSet", scratch)

	watch, err := suite.Client.CoreV1().Nodes().Watch(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + c.node(0)})
	w.must(err)
	defer watch.Stop()
	lost := time.Now()
	w.must(c.heard(w.ctx, 0, corev1.ConditionUnknown))
	marked := false
	for event := range watch.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			t.Fatalf("the watch says %v", event.Object)
		}
		marked = marked || isMarked(nodemark.Taking, false)(node)
		if nodemark.HasTaint(node) {
			if !marked || !isMarked(nodemark.Taken, true)(node) {
				t.Errorf("the node has the taint with the annotations %v", node.Annotations)
			}
			break
		}
	}
	t.Logf("the node has the taint after %s", time.Since(lost).Round(100*time.Millisecond))
	// Only the program may end it before its time is over.
	w.must(w.evict("db-0"))
	w.must(w.gonePod("db-0"))
	for _, v := range []csiVolume{held, brought} {
		w.must(c.onlyOn(v))
	}
	lease, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Get(w.ctx, staged.LeaseName(c.node(0)), metav1.GetOptions{})
	w.must(err)
	for _, attachment := range ended {
		if !slices.Contains(staged.Of(lease).Ended, attachment) {
			t.Errorf("the node may stage with attachment %s; it may not with %q", attachment, staged.Of(lease).Ended)
		}
	}
	c.saysOn(w, 0, "NodeTakenOutOfService", "Its 2 volumes were taken from it")
	w.metric(s.Replica, `standalone_cinder_out_of_service_taints_total{action="set"} 1`)
	// The attacher sees that its VolumeAttachments are gone at Cinder, and calls again.
	time.Sleep(5 * time.Second)
	for _, v := range []csiVolume{held, brought} {
		w.must(c.onlyOn(v))
	}
	w.must(c.detachFrom(w.ctx, held, 0))
	w.must(c.answered(w.ctx, held, 0))
	w.must(c.attachTo(w.ctx, held, 1))
	_, err = c.attached(w.ctx, held, 1)
	w.must(err)
	w.must(c.detachFrom(w.ctx, brought, 0))
	w.must(c.answered(w.ctx, brought, 0))

	// It was only slow, and still has the volume mounted.
	w.must(c.heard(w.ctx, 0, corev1.ConditionTrue))
	w.must(c.attachTo(w.ctx, third, 0))
	c.refused(w, third, 0, "is taken out of service, so it gets no volume until it is back")
	c.staysSo(w, 0, "out of service", isMarked(nodemark.Taken, true))
	w.must(c.stages(w.ctx, 0, "boot-1"))
	c.is(w, 0, "back", isMarked(nodemark.Returned, false))
	c.saysOn(w, 0, "NodeBackInService", "without a reboot")
	_, err = c.attached(w.ctx, third, 0)
	w.must(err)
	w.must(c.onlyOn(held, c.node(1)))
	w.must(c.heard(w.ctx, 0, corev1.ConditionUnknown))
	c.saysOn(w, 0, "NodeNotTakenOutOfService", "it came back without a reboot")
	c.staysSo(w, 0, "as it came back", isMarked(nodemark.Returned, false))
	w.metric(s.Replica, `standalone_cinder_lost_nodes_not_taken{reason="returned"} 1`)
	w.must(c.onlyOn(third, c.node(0)))
	// Another boot is another node.
	w.must(c.boots(w.ctx, 0, "boot-2"))
	c.is(w, 0, "new", isMarked("", false))
	w.must(c.detachFrom(w.ctx, third, 0))
	w.must(c.detached(w.ctx, third, 0))
	w.must(c.detachFrom(w.ctx, held, 1))
	w.must(c.detached(w.ctx, held, 1))
}

// TestLostNodesThatAreLeftAlone: as long as anything on a node could be written by two
// nodes, or run twice although it must not, it gets no taint, and an event says why.
func TestLostNodesThatAreLeftAlone(t *testing.T) {
	w := newWorld(t, "csileftalone", cindersim.Options{})
	w.withCSI("{fencing: initiator}")
	const nodes = 11
	c, volumes := w.csi(nodes, 4)
	c.withMachines(w, nodes)
	w.mayTaint()
	nfs := corev1.Volume{Name: "shared", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.9", Path: "/x"}}}
	native, err := suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-native"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2010-10.org.openstack:volume-1", Lun: 1}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	t.Cleanup(func() {
		pvs := suite.Client.CoreV1().PersistentVolumes()
		_ = pvs.Delete(context.Background(), native.Name, metav1.DeleteOptions{})
		_, _ = pvs.Patch(context.Background(), native.Name, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	})
	s := w.startWithSidecar(taintAll...)
	// Each has a volume that the array would keep it out of.
	c.podOn(w, 0, "with-nfs", "ReplicaSet", nfs)
	c.podOn(w, 1, "with-native", "ReplicaSet", w.claimFor(native.Name))
	c.podOn(w, 2, "with-unknown", "", corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "missing"}}})
	c.podOn(w, 3, "lonely-0", "StatefulSet", scratch)
	w.must(c.attachTo(w.ctx, volumes[0], 4))
	_, err = c.attached(w.ctx, volumes[0], 4)
	w.must(err)
	w.must(suite.Client.CoordinationV1().Leases(harness.Namespace).Delete(w.ctx, staged.LeaseName(c.node(4)), metav1.DeleteOptions{}))
	inUse := func(n int, name string) {
		node, err := suite.Client.CoreV1().Nodes().Get(w.ctx, c.node(n), metav1.GetOptions{})
		w.must(err)
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(name)}
		w.updateStatus(node)
	}
	inUse(5, "kubernetes.io/csi/rbd.csi.ceph.com^1")
	inUse(6, wire.KubeletName(wire.DriverName, "lab/"+volumes[1].id))
	w.must(suite.Report(w.ctx, c.node(7), staged.Report{Machine: harness.Machine(c.node(7), "boot-1"), Mounts: []string{staged.ISCSIMount("192.0.2.1:3260", "iqn.x", "1")}}))
	w.must(suite.ReportStaged(w.ctx, c.node(8), harness.Machine(c.node(8), "boot-1"), "lab/"+volumes[2].id))
	w.must(c.taint(w.ctx, 9))
	for n := range nodes - 1 {
		w.must(c.heard(w.ctx, n, corev1.ConditionUnknown))
	}
	// A kubelet that says so itself is not lost.
	w.must(c.heard(w.ctx, 10, corev1.ConditionFalse))
	for n, why := range []string{
		"pod csileftalone-a/with-nfs has volume shared, of a kind that the program does not know",
		"has PersistentVolume csileftalone-native, which is not of this program's driver",
		"claim missing of pod csileftalone-a/with-unknown has no object that the program knows",
		"pod csileftalone-a/lonely-0 must not run twice",
		"its node plugin has not reported what it has staged",
		"its status names the volume kubernetes.io/csi/rbd.csi.ceph.com^1, which is not of this program's driver",
		"its status names volume lab/" + volumes[1].id + ", and its backend does not say fencing: initiator",
		"its kubelet has mounted the native volume iscsi/",
		"its node plugin has staged volume lab/" + volumes[2].id + ", and its backend does not say fencing: initiator",
	} {
		c.saysOn(w, n, "NodeNotTakenOutOfService", why)
	}
	w.metric(s.Replica, `standalone_cinder_lost_nodes_not_taken{reason="volume"} 7`)
	w.metric(s.Replica, `standalone_cinder_lost_nodes_not_taken{reason="identity"} 1`)
	w.metric(s.Replica, `standalone_cinder_lost_nodes_not_taken{reason="unreported"} 1`)
	for n := range nodes {
		c.staysAlone(w, n)
	}
	w.must(c.onlyOn(volumes[0], c.node(4)))
	// A person's taint stays when the node is back.
	w.must(c.boots(w.ctx, 9, "boot-2"))
	c.staysSo(w, 9, "tainted by a person", func(node *corev1.Node) bool { return staged.IsOff(node) && isMarked("", false)(node) })
	w.must(c.detachFrom(w.ctx, volumes[0], 4))
}

// staysAlone returns an error unless the program has left a Node alone.
func (c csiCluster) staysAlone(w *world, n int) {
	w.Helper()
	node, err := suite.Client.CoreV1().Nodes().Get(w.ctx, c.node(n), metav1.GetOptions{})
	w.must(err)
	if !isMarked("", false)(node) {
		w.Errorf("node %s has the annotations %v and the taints %v", node.Name, node.Annotations, node.Spec.Taints)
	}
}

// TestTooManyLostNodesAreLeftAlone: if more nodes are silent than the share allows, the
// trouble may be the control plane's. Without the flag, nothing happens to any.
func TestTooManyLostNodesAreLeftAlone(t *testing.T) {
	w := newWorld(t, "csishare", cindersim.Options{})
	w.withCSI("{fencing: initiator}")
	c, volumes := w.csi(3, 1)
	c.withMachines(w, 3)
	w.mayTaint()
	s := w.startWithSidecar(shortLease...)
	w.must(c.attachTo(w.ctx, volumes[0], 0))
	_, err := c.attached(w.ctx, volumes[0], 0)
	w.must(err)
	for n := range 3 {
		w.must(c.heard(w.ctx, n, corev1.ConditionUnknown))
	}
	c.staysSo(w, 0, "left alone by default", isMarked("", false))
	s.Replica.Kill()
	s.Attacher.Stop()
	s = w.startWithSidecar(append(slices.Clone(shortLease), "--taint-lost-nodes", "--taint-lost-nodes-share=1")...)
	c.saysOn(w, 0, "NodeNotTakenOutOfService", "that --taint-lost-nodes-share=1 allows, so the trouble may be the control plane's")
	w.metric(s.Replica, `standalone_cinder_lost_nodes_not_taken{reason="share"} 3`)
	// One that kube-controller-manager does not see is not lost.
	seconds, now := int32(40), metav1.NowMicro()
	s.Replica.Kill()
	s.Attacher.Stop()
	leases := suite.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err = leases.Create(w.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.node(0)}, Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{})
	w.must(err)
	t.Cleanup(func() { _ = leases.Delete(context.Background(), c.node(0), metav1.DeleteOptions{}) })
	renewing, stop := context.WithCancel(w.ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for renewing.Err() == nil {
			_, _ = leases.Patch(renewing, c.node(0), types.MergePatchType, fmt.Appendf(nil, `{"spec": {"renewTime": %q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")), metav1.PatchOptions{})
			time.Sleep(time.Second)
		}
	}()
	defer func() { stop(); <-renewed }()
	for n := 1; n < 3; n++ {
		w.must(c.heard(w.ctx, n, corev1.ConditionTrue))
	}
	w.startWithSidecar(append(slices.Clone(shortLease), taintAll...)...)
	c.saysOn(w, 0, "NodeNotTakenOutOfService", "its kubelet's Lease has not expired")
	for n := range 3 {
		c.staysAlone(w, n)
	}
	w.must(c.onlyOn(volumes[0], c.node(0)))
	w.must(c.detachFrom(w.ctx, volumes[0], 0))
}

// TestTheNextLeaderTakesALostNodeOutOfService: a leader dies while Cinder does not answer,
// so that it has only marked the node. The next one goes on. A node that answers again
// before the taint gets none.
//
//tier:outage
func TestTheNextLeaderTakesALostNodeOutOfService(t *testing.T) {
	w := newWorld(t, "csitaintnext", cindersim.Options{})
	w.withCSI("{fencing: initiator}")
	c, volumes := w.csi(2, 2)
	c.withMachines(w, 2)
	w.mayTaint()
	s := w.startWithSidecar(append(slices.Clone(shortLease), taintAll...)...)
	for n, v := range volumes {
		w.must(c.heard(w.ctx, n, corev1.ConditionTrue))
		w.must(c.attachTo(w.ctx, v, n))
		_, err := c.attached(w.ctx, v, n)
		w.must(err)
	}
	silent := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Match: func(r cindersim.Request) bool { return r.Method == "DELETE" }})
	w.must(c.heard(w.ctx, 0, corev1.ConditionUnknown))
	c.is(w, 0, "marked", isMarked(nodemark.Taking, false))
	c.staysSo(w, 0, "only marked", isMarked(nodemark.Taking, false))
	s.Replica.Kill()
	s.Attacher.Stop()
	w.startWithSidecar(append(slices.Clone(shortLease), taintAll...)...)
	c.staysSo(w, 0, "only marked", isMarked(nodemark.Taking, false))
	silent.Remove()
	c.is(w, 0, "out of service", isMarked(nodemark.Taken, true))
	w.must(c.onlyOn(volumes[0]))
	w.must(c.detachFrom(w.ctx, volumes[0], 0))
	w.must(c.answered(w.ctx, volumes[0], 0))
	// Nobody took it out of service but the program, so it removes the taint.
	w.must(c.boots(w.ctx, 0, "boot-2"))
	c.is(w, 0, "new", isMarked("", false))
	c.saysOn(w, 0, "NodeBackInService", "has rebooted")

	// One a minute.
	silent = w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Match: func(r cindersim.Request) bool { return r.Method == "DELETE" }})
	w.must(c.heard(w.ctx, 1, corev1.ConditionUnknown))
	begun := time.Now()
	c.staysSo(w, 1, "left alone for a minute", isMarked("", false))
	c.is(w, 1, "marked", isMarked(nodemark.Taking, false))
	t.Logf("the second node was begun %s after it was lost", time.Since(begun).Round(time.Second))
	// It is heard of again before anything could be ended.
	w.must(c.heard(w.ctx, 1, corev1.ConditionTrue))
	c.is(w, 1, "left in service", isMarked(nodemark.Returned, false))
	c.saysOn(w, 1, "NodeReturnedWithoutVolumes", "Delete its pods")
	silent.Remove()
	w.must(c.detachFrom(w.ctx, volumes[1], 1))
	w.must(c.detached(w.ctx, volumes[1], 1))
}

// TestAccountMayChangeOfNodesOnlyItsOwnTaint attacks with the account of the program: RBAC
// would allow every one of these requests.
func TestAccountMayChangeOfNodesOnlyItsOwnTaint(t *testing.T) {
	w := newWorld(t, "guardednodes", cindersim.Options{})
	c := csiCluster{name: w.name}
	c.withMachines(w, 2)
	w.start()
	w.mayTaint()
	config := rest.CopyConfig(suite.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", harness.Namespace, harness.Account(w.provisioner)),
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + harness.Namespace, "system:authenticated"},
	}
	account, err := kubernetes.NewForConfig(config)
	w.must(err)
	patch := func(n int, body string) error {
		_, err := account.CoreV1().Nodes().Patch(w.ctx, c.node(n), types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	const (
		label = `{"metadata": {"labels": {"x": "%d"}}}`
		mark  = `{"metadata": {"annotations": {"standalone-cinder.openstack.org/out-of-service": "taking boot-1 2026-11-29T10:00:00Z"}}}`
		own   = `{"key": "node.kubernetes.io/out-of-service", "value": "standalone-cinder", "effect": "NoExecute"}`
		both  = `{"spec": {"taints": [` + own + `]}, "metadata": {"annotations": {"standalone-cinder.openstack.org/out-of-service": "taken boot-1 2026-11-29T10:00:00Z"}}}`
	)
	// The policy takes effect some moments after it was made. What changes nothing passes.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if err := patch(0, fmt.Sprintf(label, time.Now().UnixNano())); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "of a Node only its own taint") {
			return fmt.Sprintf("the policy is not in force: %v", err), nil
		}
		return "", nil
	}))
	w.must(c.taint(w.ctx, 1))
	// The API server taints new Nodes as not ready.
	_, err = suite.Client.CoreV1().Nodes().Patch(w.ctx, c.node(0), types.MergePatchType, []byte(`{"spec": {"taints": null}}`), metav1.PatchOptions{})
	w.must(err)
	for _, n := range []int{0, 1} {
		w.must(c.heard(w.ctx, n, corev1.ConditionTrue))
	}
	w.must(patch(0, mark))
	refused := func(n int, what, body string) {
		t.Helper()
		if err := patch(n, body); !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want it forbidden", what, err)
		}
	}
	refused(0, "taints a node that is Ready", both)
	for n := range 2 {
		w.must(c.heard(w.ctx, n, corev1.ConditionUnknown))
	}
	refused(0, "labels", fmt.Sprintf(label, 1))
	refused(0, "another annotation", `{"metadata": {"annotations": {"x": "y"}}}`)
	refused(0, "a finalizer", `{"metadata": {"finalizers": ["example.org/x"]}}`)
	refused(0, "cordons", `{"spec": {"unschedulable": true}}`)
	refused(0, "another taint", `{"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}`)
	refused(0, "a person's taint", `{"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]}}`)
	refused(0, "its taint with another effect", strings.Replace(both, "NoExecute", "NoSchedule", 1))
	refused(0, "its taint without a mark", `{"spec": {"taints": [`+own+`]}, "metadata": {"annotations": {"standalone-cinder.openstack.org/out-of-service": null}}}`)
	refused(0, "its taint and another", strings.Replace(both, "["+own, `[{"key": "x", "effect": "NoExecute"}, `+own, 1))
	refused(1, "removes a person's taint", `{"spec": {"taints": null}}`)
	refused(1, "replaces a person's taint", both)
	if _, err := account.CoreV1().Nodes().Patch(w.ctx, c.node(0), types.MergePatchType, []byte(`{"status": {"phase": "Running"}}`), metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("its status: %v", err)
	}
	if err := account.CoreV1().Nodes().Delete(w.ctx, c.node(0), metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("its deletion: %v", err)
	}
	w.must(patch(0, both))
	pods, now := account.CoreV1().Pods(w.name+"-a"), int64(0)
	force := metav1.DeleteOptions{GracePeriodSeconds: &now}
	for name, prepare := range map[string]func(string) error{
		"runs": func(string) error { return nil },
		"is-deleted": func(name string) error {
			return suite.Client.CoreV1().Pods(w.name+"-a").Delete(w.ctx, name, metav1.DeleteOptions{})
		},
	} {
		c.podOn(w, 0, name, "StatefulSet", scratch)
		w.must(prepare(name))
		if err := pods.Delete(w.ctx, name, force); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only pods that Kubernetes evicts") {
			t.Errorf("deletes a pod that %s: %v", name, err)
		}
	}
	w.must(w.evict("runs"))
	w.must(pods.Delete(w.ctx, "runs", force))
	w.must(c.heard(w.ctx, 0, corev1.ConditionTrue))
	w.must(patch(0, `{"spec": {"taints": null}, "metadata": {"annotations": {"standalone-cinder.openstack.org/out-of-service": null}}}`))
}

// TestALostNodeWithManyVolumes: all are forbidden in one Lease and end in one attempt. A pod
// that must not run twice keeps its node in service even if it tolerates the taint. The
// taint goes when the node is clean, although somebody has removed the mark meanwhile, and
// another node's mark, which that node can write, does not stop the program.
func TestALostNodeWithManyVolumes(t *testing.T) {
	w := newWorld(t, "csitaintmany", cindersim.Options{})
	w.withCSI("{fencing: initiator}")
	const many = 24
	c, volumes := w.csi(3, many)
	c.withMachines(w, 3)
	w.mayTaint()
	nodes := suite.Client.CoreV1().Nodes()
	annotate := func(n int, mark string) {
		_, err := nodes.Patch(w.ctx, c.node(n), types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %s}}}`, nodemark.Annotation, mark), metav1.PatchOptions{})
		w.must(err)
	}
	annotate(1, `"returned boot-1 2096-11-29T10:00:00Z"`)
	s := w.startWithSidecar(taintAll...)
	for n := range 3 {
		w.must(c.heard(w.ctx, n, corev1.ConditionTrue))
	}
	for _, v := range volumes {
		w.must(c.attachTo(w.ctx, v, 0))
		_, err := c.attached(w.ctx, v, 0)
		w.must(err)
	}
	w.must(c.stages(w.ctx, 0, "boot-1", volumes...))
	tolerant := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "tolerant-0", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "tolerant", UID: "uid-of-tolerant", Controller: new(true)}}},
		Spec: corev1.PodSpec{
			NodeName: c.node(2), AutomountServiceAccountToken: new(false), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/main"}},
		},
	}
	pods := suite.Client.CoreV1().Pods(w.name + "-a")
	_, err := pods.Create(w.ctx, tolerant, metav1.CreateOptions{})
	w.must(err)
	t.Cleanup(func() { _ = pods.Delete(context.Background(), "tolerant-0", *metav1.NewDeleteOptions(0)) })

	w.must(c.heard(w.ctx, 2, corev1.ConditionUnknown))
	lost := time.Now()
	w.must(c.heard(w.ctx, 0, corev1.ConditionUnknown))
	c.is(w, 0, "out of service", isMarked(nodemark.Taken, true))
	t.Logf("%d volumes are taken after %s", many, time.Since(lost).Round(100*time.Millisecond))
	c.saysOn(w, 0, "NodeTakenOutOfService", fmt.Sprintf("Its %d volumes were taken from it", many))
	w.must(c.onlyOn(volumes[0]))
	if log := s.Replica.Log(); strings.Contains(log, "cannot be taken out of service yet") {
		t.Error("an attempt failed, although nothing was wrong")
	}
	c.saysOn(w, 2, "NodeNotTakenOutOfService", "tolerant-0 must not run twice")
	c.staysAlone(w, 2)

	annotate(0, "null")
	for _, v := range volumes {
		w.must(c.detachFrom(w.ctx, v, 0))
		w.must(c.answered(w.ctx, v, 0))
	}
	w.must(c.heard(w.ctx, 0, corev1.ConditionTrue))
	c.staysSo(w, 0, "tainted", func(node *corev1.Node) bool { return nodemark.HasTaint(node) && nodemark.Bars(node) })
	w.must(c.stages(w.ctx, 0, "boot-1"))
	c.is(w, 0, "back", isMarked(nodemark.Returned, false))
}
