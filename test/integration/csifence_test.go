package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// withCSI gives backend gold of a world a csi block.
func (w *world) withCSI(block string) {
	w.policy = strings.Replace(w.policy, "    auth: {cloud: team-a}\n", "    auth: {cloud: team-a}\n    mode: csi\n    csi: "+block+"\n", 1)
}

// refused waits until a VolumeAttachment says why its volume is not attached.
func (c csiCluster) refused(w *world, v csiVolume, n int, why string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		va, err := suite.Client.StorageV1().VolumeAttachments().Get(w.ctx, c.attachment(v, n), metav1.GetOptions{})
		if err != nil || va.Status.AttachError == nil || !strings.Contains(va.Status.AttachError.Message, why) {
			return fmt.Sprintf("the VolumeAttachment says %+v, and not %q", va.Status, why), err
		}
		return "", nil
	}))
}

// TestAFullNodeWaitsForRoom: the limit of the policy is kept where volumes are attached,
// by the code that means a full node, and a reload changes it.
func TestAFullNodeWaitsForRoom(t *testing.T) {
	w := newWorld(t, "csifull", cindersim.Options{})
	w.withCSI("{maxVolumesPerNode: 1}")
	c, volumes := w.csi(2, 3)
	s := w.startWithSidecar()
	w.must(c.attachTo(w.ctx, volumes[0], 0))
	_, err := c.attached(w.ctx, volumes[0], 0)
	w.must(err)
	full := fmt.Sprintf("rpc error: code = ResourceExhausted desc = node %s has 1 of the 1 volumes of backend gold that the policy allows", c.node(0))
	for _, v := range volumes[1:] {
		w.must(c.attachTo(w.ctx, v, 0))
		c.refused(w, v, 0, full)
		w.must(c.onlyOn(v))
	}
	// Another node has room of its own.
	w.must(c.detachFrom(w.ctx, volumes[2], 0))
	w.must(c.detached(w.ctx, volumes[2], 0))
	w.must(c.attachTo(w.ctx, volumes[2], 1))
	_, err = c.attached(w.ctx, volumes[2], 1)
	w.must(err)
	// What goes makes room.
	w.must(c.detachFrom(w.ctx, volumes[0], 0))
	_, err = c.attached(w.ctx, volumes[1], 0)
	w.must(err)
	w.must(c.attachTo(w.ctx, volumes[0], 0))
	c.refused(w, volumes[0], 0, full)
	w.policy = strings.Replace(w.policy, "maxVolumesPerNode: 1", "maxVolumesPerNode: 2", 1)
	w.must(s.WritePolicy(w.policy))
	_, err = c.attached(w.ctx, volumes[0], 0)
	w.must(err)
}

// machine makes the Node of a node, or changes it: its boot, and the volumes that its
// plugin reports as staged.
func (c csiCluster) machine(ctx context.Context, n int, boot string, uses ...csiVolume) error {
	nodes := suite.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, c.node(n), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node(n)}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	machine := harness.Machine(c.node(n), boot)
	node.Status.NodeInfo.BootID, node.Status.NodeInfo.SystemUUID = machine.Boot, machine.SystemUUID
	if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return c.stages(ctx, n, boot, uses...)
}

// stages makes a node's plugin report what it has staged.
func (c csiCluster) stages(ctx context.Context, n int, boot string, volumes ...csiVolume) error {
	var handles []string
	for _, v := range volumes {
		handles = append(handles, wire.Handle{Backend: c.backend, ID: v.id}.String())
	}
	slices.Sort(handles)
	return suite.ReportStaged(ctx, c.node(n), harness.Machine(c.node(n), boot), handles...)
}

// taint marks a node as out of service.
func (c csiCluster) taint(ctx context.Context, n int) error {
	_, err := suite.Client.CoreV1().Nodes().Patch(ctx, c.node(n), types.StrategicMergePatchType,
		[]byte(`{"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]}}`), metav1.PatchOptions{})
	return err
}

func (c csiCluster) removeMachine(ctx context.Context, n int) error {
	err := suite.Client.CoreV1().Nodes().Delete(ctx, c.node(n), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// withMachines makes Nodes, and removes them after the test.
func (c csiCluster) withMachines(w *world, nodes int) {
	w.Helper()
	for n := range nodes {
		w.must(c.machine(w.ctx, n, "boot-1"))
	}
	w.Cleanup(func() {
		for n := range nodes {
			if err := c.removeMachine(context.Background(), n); err != nil {
				w.Error(err)
			}
		}
	})
}

// TestAVolumeLeavesALostNode: Kubernetes detaches a volume by force, and says nothing
// about it. The volume stays attached at Cinder until the node cannot write to it, so
// that nothing gets its address, and the lost node gets nothing more; whoever leads knows.
//
//tier:outage
func TestAVolumeLeavesALostNode(t *testing.T) {
	w := newWorld(t, "csilost", cindersim.Options{})
	w.withCSI("{fencing: export}")
	c, volumes := w.csi(2, 3)
	c.withMachines(w, 2)
	v, other, third := volumes[0], volumes[1], volumes[2]
	s := w.startWithSidecar(shortLease...)
	until := fmt.Sprintf("the node plugin of %s has unstaged it, %s has rebooted, its Node object is deleted, or it is off and tainted", c.node(0), c.node(0))
	lose := func(boot string) {
		t.Helper()
		w.must(c.machine(w.ctx, 0, boot))
		w.must(c.attachTo(w.ctx, v, 0))
		_, err := c.attached(w.ctx, v, 0)
		w.must(err)
		w.must(c.stages(w.ctx, 0, boot, v))
		w.must(c.detachFrom(w.ctx, v, 0))
		w.must(c.answered(w.ctx, v, 0))
		w.must(c.onlyOn(v, c.node(0)))
		w.must(c.attachTo(w.ctx, v, 1))
		c.refused(w, v, 1, fmt.Sprintf("rpc error: code = FailedPrecondition desc = volume gold/%s is still staged on node %s, from which Kubernetes has detached it, and that node may write to it; node %s gets it once %s", v.id, c.node(0), c.node(1), until))
		w.must(c.onlyOn(v, c.node(0)))
	}
	moves := func() {
		t.Helper()
		_, err := c.attached(w.ctx, v, 1)
		w.must(err)
		w.must(c.onlyOn(v, c.node(1)))
	}
	back := func() {
		t.Helper()
		w.must(c.detachFrom(w.ctx, v, 1))
		w.must(c.detached(w.ctx, v, 1))
	}
	barred := fmt.Sprintf("node %s has volume gold/%s staged, which Kubernetes has detached from it, so it gets no other volume until", c.node(0), v.id)

	// Its plugin unstages the volume.
	lose("boot-1")
	w.must(c.attachTo(w.ctx, other, 0))
	c.refused(w, other, 0, barred)
	w.must(c.onlyOn(other))
	w.must(c.stages(w.ctx, 0, "boot-1"))
	moves()
	_, err := c.attached(w.ctx, other, 0)
	w.must(err)
	back()
	w.must(c.detachFrom(w.ctx, other, 0))
	w.must(c.detached(w.ctx, other, 0))

	// Nobody wants it: it is detached all the same.
	lose("boot-1")
	w.must(c.detachFrom(w.ctx, v, 1))
	w.must(c.answered(w.ctx, v, 1))
	w.must(c.stages(w.ctx, 0, "boot-1"))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if err := c.onlyOn(v); err != nil {
			return err.Error(), nil
		}
		return "", nil
	}))

	// The node is back, and its next pod gets the volume with the same attachment.
	lose("boot-1")
	w.must(c.detachFrom(w.ctx, v, 1))
	w.must(c.answered(w.ctx, v, 1))
	w.must(c.attachTo(w.ctx, v, 0))
	_, err = c.attached(w.ctx, v, 0)
	w.must(err)
	w.must(c.onlyOn(v, c.node(0)))
	w.must(c.stages(w.ctx, 0, "boot-1"))
	w.must(c.detachFrom(w.ctx, v, 0))
	w.must(c.detached(w.ctx, v, 0))
	w.must(c.onlyOn(v))

	// It is tainted, and another replica leads: it knows what is not cleaned up.
	lose("boot-1")
	s.Replica.Kill()
	s.Attacher.Stop()
	w.startWithSidecar(shortLease...)
	w.must(c.attachTo(w.ctx, third, 0))
	c.refused(w, third, 0, barred)
	w.must(c.taint(w.ctx, 0))
	moves()
	c.refused(w, third, 0, barred)
	w.must(c.onlyOn(third))
	// It boots, and its plugin has not reported yet.
	node, err := suite.Client.CoreV1().Nodes().Get(w.ctx, c.node(0), metav1.GetOptions{})
	w.must(err)
	node.Status.NodeInfo.BootID = "boot-2"
	w.updateStatus(node)
	_, err = c.attached(w.ctx, third, 0)
	w.must(err)
	back()
	w.must(c.removeMachine(w.ctx, 0))

	// It is deleted.
	lose("boot-3")
	w.must(c.removeMachine(w.ctx, 0))
	moves()
	back()
}

// TestAVolumeLeavesALostNodeAtOnce: the array keeps the node out.
func TestAVolumeLeavesALostNodeAtOnce(t *testing.T) {
	w := newWorld(t, "csilostatonce", cindersim.Options{})
	w.withCSI("{fencing: initiator}")
	c, volumes := w.csi(2, 2)
	c.withMachines(w, 2)
	v, other := volumes[0], volumes[1]
	w.startWithSidecar()
	w.must(c.attachTo(w.ctx, v, 0))
	_, err := c.attached(w.ctx, v, 0)
	w.must(err)
	w.must(c.machine(w.ctx, 0, "boot-1", v))
	w.must(c.detachFrom(w.ctx, v, 0))
	w.must(c.detached(w.ctx, v, 0))
	w.must(c.attachTo(w.ctx, v, 1))
	_, err = c.attached(w.ctx, v, 1)
	w.must(err)
	w.must(c.attachTo(w.ctx, other, 0))
	c.refused(w, other, 0, fmt.Sprintf("node %s has volume gold/%s staged, which Kubernetes has detached from it", c.node(0), v.id))
	// Node and CSINode go, and what is left is detached all the same.
	w.must(c.detachFrom(w.ctx, other, 0))
	w.must(c.detached(w.ctx, other, 0))
	w.must(c.removeMachine(w.ctx, 1))
	w.must(suite.Client.StorageV1().CSINodes().Delete(w.ctx, c.node(1), metav1.DeleteOptions{}))
	w.must(c.detachFrom(w.ctx, v, 1))
	w.must(c.detached(w.ctx, v, 1))
	w.must(c.registerNode(w.ctx, 1))
}

// TestANodeThatNamesAnotherOneIsDetachedItself: a node writes its own CSINode.
func TestANodeThatNamesAnotherOneIsDetachedItself(t *testing.T) {
	w := newWorld(t, "csiliar", cindersim.Options{})
	c, volumes := w.csi(2, 2)
	w.startWithSidecar()
	for n, v := range volumes {
		w.must(c.attachTo(w.ctx, v, n))
		_, err := c.attached(w.ctx, v, n)
		w.must(err)
	}
	nodes := suite.Client.StorageV1().CSINodes()
	honest, err := nodes.Get(w.ctx, c.node(0), metav1.GetOptions{})
	w.must(err)
	liar, err := nodes.Get(w.ctx, c.node(1), metav1.GetOptions{})
	w.must(err)
	w.must(nodes.Delete(w.ctx, liar.Name, metav1.DeleteOptions{}))
	liar.ObjectMeta, liar.Spec.Drivers = metav1.ObjectMeta{Name: liar.Name}, honest.Spec.Drivers
	_, err = nodes.Create(w.ctx, liar, metav1.CreateOptions{})
	w.must(err)
	w.must(c.detachFrom(w.ctx, volumes[1], 1))
	w.must(c.detached(w.ctx, volumes[1], 1))
	w.must(c.onlyOn(volumes[0], c.node(0)))
	entries, err := c.credentials(w.ctx, volumes[1])
	w.must(err)
	if len(entries) > 0 {
		t.Errorf("the Secret has %d entries", len(entries))
	}
}
