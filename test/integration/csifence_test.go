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
// kubelet lists.
func (c csiCluster) machine(ctx context.Context, n int, boot string, uses ...csiVolume) error {
	nodes := suite.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, c.node(n), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node(n)}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	node.Status.NodeInfo.BootID, node.Status.VolumesInUse = boot, nil
	for _, v := range uses {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName("kubernetes.io/csi/"+wire.DriverName+"^"+wire.Handle{Backend: c.backend, ID: v.id}.String()))
	}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
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

// uncleanOn returns the nodes that the volume's notes name.
func (c csiCluster) uncleanOn(v csiVolume) []string {
	now, _ := c.sim.Volume(v.id)
	var nodes []string
	for key, value := range now.Metadata {
		if strings.HasPrefix(key, annotation("unclean.")) && value != "" {
			node, _, _ := strings.Cut(value, " ")
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// TestAVolumeLeavesALostNode: Kubernetes detaches a volume by force, and says nothing
// about it. With fencing by export it stays attached until the node cannot write to it, so
// that nothing gets its address, and the lost node gets nothing more; whoever leads knows.
func TestAVolumeLeavesALostNode(t *testing.T) {
	w := newWorld(t, "csilost", cindersim.Options{})
	w.withCSI("{fencing: export}")
	c, volumes := w.csi(2, 3)
	c.withMachines(w, 2)
	v, other, third := volumes[0], volumes[1], volumes[2]
	s := w.startWithSidecar(shortLease...)
	lose := func(boot string) {
		t.Helper()
		w.must(c.attachTo(w.ctx, v, 0))
		_, err := c.attached(w.ctx, v, 0)
		w.must(err)
		w.must(c.machine(w.ctx, 0, boot, v))
		w.must(c.detachFrom(w.ctx, v, 0))
		why := fmt.Sprintf("rpc error: code = FailedPrecondition desc = node %s still uses volume gold/%s and may write to it (csi.fencing: export), so the volume stays attached until the kubelet of %s releases it", c.node(0), v.id, c.node(0))
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			va, err := suite.Client.StorageV1().VolumeAttachments().Get(w.ctx, c.attachment(v, 0), metav1.GetOptions{})
			if err != nil || va.Status.DetachError == nil || !strings.Contains(va.Status.DetachError.Message, why) {
				return fmt.Sprintf("the VolumeAttachment says %+v", va.Status), err
			}
			return "", nil
		}))
		w.must(c.onlyOn(v, c.node(0)))
		if got := c.uncleanOn(v); !slices.Equal(got, []string{c.node(0)}) {
			t.Fatalf("the volume is unclean on %q", got)
		}
		w.must(c.attachTo(w.ctx, v, 1))
		c.refused(w, v, 1, fmt.Sprintf("volume %s is attached to node %s, and must be detached there before it can be attached to node %s, which waits until node %s can no longer write to it", v.id, c.node(0), c.node(1), c.node(0)))
	}
	moves := func() {
		t.Helper()
		_, err := c.attached(w.ctx, v, 1)
		w.must(err)
	}
	back := func() {
		t.Helper()
		w.must(c.detachFrom(w.ctx, v, 1))
		w.must(c.detached(w.ctx, v, 1))
	}
	quarantined := fmt.Sprintf("node %s was lost with volume gold/%s and may still write to it", c.node(0), v.id)

	// Its kubelet comes back, and cleans up.
	lose("boot-1")
	w.must(c.attachTo(w.ctx, other, 0))
	c.refused(w, other, 0, quarantined)
	w.must(c.onlyOn(other))
	w.must(c.machine(w.ctx, 0, "boot-1"))
	moves()
	_, err := c.attached(w.ctx, other, 0)
	w.must(err)
	back()
	if got := c.uncleanOn(v); len(got) > 0 {
		t.Errorf("the volume is unclean on %q", got)
	}

	// It is tainted, and another replica leads: it knows what is not cleaned up.
	lose("boot-1")
	s.Replica.Kill()
	s.Attacher.Stop()
	w.startWithSidecar(shortLease...)
	w.must(c.attachTo(w.ctx, third, 0))
	c.refused(w, third, 0, quarantined)
	w.must(c.taint(w.ctx, 0))
	moves()
	c.refused(w, third, 0, quarantined)
	w.must(c.onlyOn(third))
	// It boots, with its kubelet's list as it was.
	w.must(c.machine(w.ctx, 0, "boot-2", v))
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
	c.refused(w, other, 0, fmt.Sprintf("node %s was lost with volume gold/%s", c.node(0), v.id))
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
