package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// bound makes a claim and waits until its volume is in use.
func (w *world) bound(namespace, name, class string) (*corev1.PersistentVolume, cindersim.Volume) {
	w.Helper()
	w.claim(namespace, name, class, "1Gi")
	var pv *corev1.PersistentVolume
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return "claim " + name + " is not bound", err
		}
		pv, err = suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		return "", err
	}))
	var volume cindersim.Volume
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		volume = w.sim.VolumesNamed(pv.Name)[0]
		if volume.Status != "in-use" {
			return volume.Name + " is " + volume.Status, nil
		}
		return "", nil
	}))
	return pv, volume
}

func (w *world) unclaim(namespace, name string) {
	w.Helper()
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).Delete(w.ctx, name, metav1.DeleteOptions{}))
}

// node makes a Node that has volumes in use. It is gone with the test.
func (w *world) node(name string, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	w.Helper()
	nodes := suite.Client.CoreV1().Nodes()
	node, err := nodes.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name}}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() { _ = nodes.Delete(w.ctx, node.Name, metav1.DeleteOptions{}) })
	node.Status.VolumesInUse = inUse
	node.Status.NodeInfo.BootID = "boot-1"
	return w.updateStatus(node)
}

func (w *world) updateStatus(node *corev1.Node) *corev1.Node {
	w.Helper()
	updated, err := suite.Client.CoreV1().Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{})
	w.must(err)
	return updated
}

// isTouched describes the changes to a volume that a node uses, if any.
func (w *world) isTouched(volume cindersim.Volume) string {
	now, exists := w.sim.Volume(volume.ID)
	switch {
	case !exists:
		return "the volume is gone"
	case now.Status != "in-use" || len(now.Attachments) != len(volume.Attachments):
		return fmt.Sprintf("the volume is %s with %d attachments", now.Status, len(now.Attachments))
	}
	return ""
}

func (w *world) gone(pv string, volume cindersim.Volume) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, exists := w.sim.Volume(volume.ID); exists {
			return "the volume is still there", nil
		}
		_, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the PersistentVolume is still there", err
	}))
}

// TestVolumeIsLeftToTheNodesThatUseIt: its claim is deleted while nodes still
// use it. The deletion waits, names the nodes, survives a change of the leader,
// and continues as soon as all of them have released the volume, in whatever
// way.
//
//tier:outage
func TestVolumeIsLeftToTheNodesThatUseIt(t *testing.T) {
	t.Parallel()
	lettingGo := map[string]func(w *world, pv string, node *corev1.Node){
		"unmounts": func(w *world, _ string, node *corev1.Node) {
			node.Status.VolumesInUse = nil
			w.updateStatus(node)
		},
		"is-deleted": func(w *world, _ string, node *corev1.Node) {
			w.must(suite.Client.CoreV1().Nodes().Delete(w.ctx, node.Name, metav1.DeleteOptions{}))
		},
		"is-out-of-service": func(w *world, _ string, node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
			_, err := suite.Client.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
			w.must(err)
		},
		"is-started-anew": func(w *world, _ string, node *corev1.Node) {
			node.Status.NodeInfo.BootID = "boot-2"
			w.updateStatus(node)
		},
		"is-answered-for": func(w *world, pv string, node *corev1.Node) {
			patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, nodeuse.AnnotationReleasedBy, node.Name)
			_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv, "application/merge-patch+json", patch, metav1.PatchOptions{})
			w.must(err)
		},
	}
	w := newWorld(t, "nodeuse", cindersim.Options{})
	replica := w.start()
	type held struct {
		pv     *corev1.PersistentVolume
		volume cindersim.Volume
		nodes  []*corev1.Node
	}
	volumes := map[string]held{}
	for name := range lettingGo {
		class, namespace := "gold", "a"
		if name == "unmounts" {
			class, namespace = "lab", "b"
		}
		pv, volume := w.bound(namespace, name, class)
		names := nodeuse.Names(pv)
		h := held{pv, volume, []*corev1.Node{w.node(name+"-1", names...), w.node(name+"-2", names...)}}
		w.unclaim(namespace, name)
		volumes[name] = h
	}
	for name, h := range volumes {
		event, err := suite.WaitEvent(w.ctx, metav1.NamespaceDefault, h.pv.Name, "VolumeStillInUse", h.nodes[0].Name+", "+h.nodes[1].Name)
		w.must(err)
		if event.Count > 1 || event.Type != corev1.EventTypeNormal {
			t.Errorf("%s: told %d times as %s: %s", name, event.Count, event.Type, event.Message)
		}
	}
	for name, h := range volumes {
		lettingGo["unmounts"](w, h.pv.Name, h.nodes[0])
		if touched := w.isTouched(h.volume); touched != "" {
			t.Errorf("%s: one of two nodes has let go: %s", name, touched)
		}
	}
	// The next leader asks, too, and learns during which boot they are used.
	w.must(replica.Stop(w.ctx))
	w.start()
	for name, h := range volumes {
		// As far as the leader knows, only the second node uses the volume.
		if _, err := suite.WaitEvent(w.ctx, metav1.NamespaceDefault, h.pv.Name, "VolumeStillInUse", "node "+h.nodes[1].Name+" still uses the volume"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	time.Sleep(2 * time.Second)
	for name, h := range volumes {
		if touched := w.isTouched(h.volume); touched != "" {
			t.Errorf("%s: a node still uses it: %s", name, touched)
		}
	}
	for name, h := range volumes {
		lettingGo[name](w, h.pv.Name, h.nodes[1])
	}
	for _, h := range volumes {
		w.gone(h.pv.Name, h.volume)
	}
	w.noResidue()
}

// TestRescueOfReleasedVolumesIsHeard: a namespace is deleted by mistake, and an
// administrator changes the policy of all its volumes to Retain while the
// deletions wait for their turns.
//
//tier:outage
func TestRescueOfReleasedVolumesIsHeard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "rescue", cindersim.Options{})
	w.start()
	const many = 6
	var pvs []string
	volumes := map[string]cindersim.Volume{}
	for i := range many {
		pv, volume := w.bound("b", fmt.Sprintf("data-%d", i), "lab")
		pvs = append(pvs, pv.Name)
		volumes[pv.Name] = volume
	}
	// No read of a volume is answered before the rescue has come, so that the
	// deletions are under way then.
	slow := w.sim.Inject(cindersim.Fault{Kind: cindersim.Delay, Operation: "volume.get", Delay: worldTime})
	for i := range many {
		w.unclaim("b", fmt.Sprintf("data-%d", i))
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, name := range pvs {
			pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, name, metav1.GetOptions{})
			if err != nil || pv.Status.Phase != corev1.VolumeReleased {
				return name + " is not released", err
			}
		}
		return "", nil
	}))
	for _, name := range pvs {
		_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, name, "application/merge-patch+json", []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`), metav1.PatchOptions{})
		w.must(err)
	}
	slow.Remove()
	time.Sleep(8 * time.Second)
	for _, name := range pvs {
		if touched := w.isTouched(volumes[name]); touched != "" {
			t.Errorf("%s was rescued before its first change: %s", name, touched)
		}
	}
	// Once the policy is Delete again, they are deleted.
	for _, name := range pvs {
		_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, name, "application/merge-patch+json", []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`), metav1.PatchOptions{})
		w.must(err)
	}
	w.noResidue()
}

// TestVolumeThatKubeletForgotIsLeftToItsNode: a kubelet could not unmount a native volume,
// was started again, and lists nothing. Its node plugin reports the mount.
func TestVolumeThatKubeletForgotIsLeftToItsNode(t *testing.T) {
	w := newWorld(t, "forgotten", cindersim.Options{})
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.start("--csi-endpoint", "unix://"+w.socket())
	pv, volume := w.bound("a", "forgotten", "gold")
	node := w.node("forgotten-1")
	machine := harness.Machine(node.Name, "boot-1")
	node.Status.NodeInfo = corev1.NodeSystemInfo{SystemUUID: machine.SystemUUID, MachineID: machine.MachineID, BootID: machine.Boot}
	w.updateStatus(node)
	at := pv.Spec.ISCSI
	mount := staged.ISCSIMount(at.TargetPortal, at.IQN, fmt.Sprint(at.Lun))
	w.must(suite.Report(w.ctx, node.Name, staged.Report{Machine: machine, Mounts: []string{mount}}))
	w.unclaim("a", "forgotten")
	_, err := suite.WaitEvent(w.ctx, metav1.NamespaceDefault, pv.Name, "VolumeStillInUse", "node "+node.Name+" still uses the volume")
	w.must(err)
	if touched := w.isTouched(volume); touched != "" {
		t.Error(touched)
	}
	w.must(suite.Report(w.ctx, node.Name, staged.Report{Machine: machine}))
	w.gone(pv.Name, volume)
}
