//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestLostNodesWhoseKubeletsAreRestarted has real kubelets that end while pods write, and
// are started again, as the usual repair of a lost node is. What the kubelet then says of
// its volumes is not true.
func TestLostNodesWhoseKubeletsAreRestarted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	c := startKubelets(ctx, t, "", "node-1", "node-2")
	t.Run("before the forced detachment", func(t *testing.T) { c.restartsLost(ctx, t, "early", false) })
	t.Run("after the forced detachment", func(t *testing.T) { c.restartsLost(ctx, t, "late", true) })
	t.Run("with a volume that is only staged", func(t *testing.T) { c.forgetsStaged(ctx, t) })
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
}

// loseKubelet starts a pod on the first node, ends the node's kubelet, and deletes the pod
// by force. The pod goes on writing. Another pod waits for the volume on the other node.
func (c *kubeletCluster) loseKubelet(ctx context.Context, t *testing.T, claim string) (pv *corev1.PersistentVolume, first, second string) {
	t.Helper()
	pv = c.claim(ctx, t, claim, "files")
	first, second = claim+"-first", claim+"-second"
	c.create(ctx, t, c.pod(first, claim, on("node-1")))
	c.writes(ctx, t, first)
	c.nodes["node-1"].run(ctx, t, "pkill -9 -x kubelet; while pidof kubelet > /dev/null; do sleep 0.1; done")
	none := int64(0)
	must(t, c.Client.CoreV1().Pods("team-c").Delete(ctx, first, metav1.DeleteOptions{GracePeriodSeconds: &none}))
	c.create(ctx, t, c.pod(second, claim, on("node-2")))
	return pv, first, second
}

// wroteSoFar returns how many records a pod of the first node has written, whether or not
// its object still exists; 0 if its log is gone.
func (c *kubeletCluster) wroteSoFar(ctx context.Context, t *testing.T, name string) (wrote int64) {
	t.Helper()
	log, err := kubelet.ContainerLog(ctx, c.nodes["node-1"].Machine, "team-c", name)
	if err != nil {
		return 0
	}
	if last := wroteLine.FindAllStringSubmatch(log, -1); last != nil {
		_, err := fmt.Sscan(last[len(last)-1][1], &wrote)
		must(t, err)
	}
	return wrote
}

// attachmentOf returns the VolumeAttachment of a volume and a node; nil if there is none.
func (c *kubeletCluster) attachmentOf(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	t.Helper()
	all, err := c.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, a := range all.Items {
		if a.Spec.NodeName == node && *a.Spec.Source.PersistentVolumeName == pv.Name {
			return &a
		}
	}
	return nil
}

// waitsFor waits until the attachment of a volume to the second node says that the first
// node still has the volume.
func (c *kubeletCluster) waitsFor(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		a := c.attachmentOf(ctx, t, pv, "node-2")
		if a == nil || a.Status.AttachError == nil {
			return fmt.Sprintf("the attachment to the other node says nothing: %+v", a), nil
		}
		if said := a.Status.AttachError.Message; !strings.Contains(said, "is still staged on node node-1") {
			return "the attachment says " + said, nil
		}
		return "", nil
	}))
}

// reports returns what the plugin of a node reports.
func (c *kubeletCluster) reports(ctx context.Context, t *testing.T, node string) []string {
	t.Helper()
	lease, err := c.Client.CoordinationV1().Leases(harness.Namespace).Get(ctx, staged.LeaseName(node), metav1.GetOptions{})
	must(t, err)
	return staged.Of(lease).Volumes
}

// inUse reports whether the kubelet of a node says that it uses a volume.
func (c *kubeletCluster) inUse(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, name string) bool {
	t.Helper()
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	return slices.ContainsFunc(node.Status.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return strings.HasSuffix(string(v), pv.Spec.CSI.VolumeHandle) })
}

// restartsLost starts the kubelet again before or after the volume is detached by force.
func (c *kubeletCluster) restartsLost(ctx context.Context, t *testing.T, claim string, forced bool) {
	pv, first, second := c.loseKubelet(ctx, t, claim)
	if forced {
		// kube-controller-manager waits for six minutes.
		must(t, harness.Eventually(ctx, func() (string, error) {
			if c.attachmentOf(ctx, t, pv, "node-1") != nil {
				return "the volume is not detached", nil
			}
			return "", nil
		}))
		c.waitsFor(ctx, t, pv)
		before := c.wroteSoFar(ctx, t, first)
		must(t, harness.Eventually(ctx, func() (string, error) {
			if c.wroteSoFar(ctx, t, first) <= before {
				return "the first pod has stopped to write", nil
			}
			return "", nil
		}))
	}
	must(t, kubelet.Restart(ctx, c.nodes["node-1"].Machine, "node-1"))
	var wrote int64
	unlisted := false
	must(t, harness.Eventually(ctx, func() (string, error) {
		time.Sleep(time.Second) // The machine is slow.
		// Before the second pod is looked at.
		now := c.wroteSoFar(ctx, t, first)
		unlisted = unlisted || now > wrote && !c.inUse(ctx, t, pv, "node-1")
		wrote = max(wrote, now)
		pod, err := c.Client.CoreV1().Pods("team-c").Get(ctx, second, metav1.GetOptions{})
		if err != nil || pod.Status.Phase == corev1.PodRunning {
			return "", err
		}
		return fmt.Sprintf("pod %s is %s: %+v", second, pod.Status.Phase, pod.Status.Conditions), nil
	}))
	t.Logf("the kubelet listed the volume all the time that the pod wrote: %t", !unlisted)
	after := c.writes(ctx, t, second)
	if after.found < wrote || wrote == 0 {
		t.Errorf("the first pod wrote %d records, and the second found %d", wrote, after.found)
	}
	c.verifies(ctx, t, claim, second)
}

// verifies has a third pod on the first node read everything that the second has written.
func (c *kubeletCluster) verifies(ctx context.Context, t *testing.T, claim, second string) {
	t.Helper()
	c.isReady(ctx, t, "node-1", corev1.ConditionTrue)
	wrote := c.told(ctx, t, second).wrote
	c.removePod(ctx, t, second)
	third := claim + "-third"
	c.create(ctx, t, c.pod(third, claim, on("node-1")))
	if last := c.writes(ctx, t, third); last.found < wrote {
		t.Errorf("the second pod wrote %d records, and the third found %d", wrote, last.found)
	}
	c.removePod(ctx, t, third)
}

// forgetsStaged has the kubelet end after it has unmounted a volume from the pod, and
// before it unstages the volume. Nobody tells it about the volume again, so it forgets it,
// while the kernel still writes. Only a reboot ends that.
func (c *kubeletCluster) forgetsStaged(ctx context.Context, t *testing.T) {
	lost, other := c.nodes["node-1"], c.nodes["node-2"]
	pv, first, second := c.loseKubelet(ctx, t, "forgotten")
	wrote := c.wroteSoFar(ctx, t, first)
	id := volumeID(t, pv)
	mounts := strings.Fields(lost.run(ctx, t, "grep -F "+pv.Name+" /proc/mounts | cut -d' ' -f2; true"))
	mounted := strings.Fields(lost.run(ctx, t, "d=$(grep -F "+pv.Name+" /proc/mounts | head -1 | cut -d' ' -f1); grep \"^$d \" /proc/mounts | cut -d' ' -f2 | grep globalmount"))
	if len(mounts) != 1 || len(mounted) != 1 {
		t.Fatalf("volume %s is mounted at %q and %q", id, mounts, mounted)
	}
	global, podMount := mounted[0], mounts[0]
	lost.run(ctx, t, fmt.Sprintf(`set -e; pkill -9 -f 'workload writ[e]'
for i in $(seq 100); do umount %[1]s 2>/dev/null && break; sleep 0.2; done
rm %[2]s/vol_data.json; rmdir %[1]s %[2]s || true; test ! -e %[2]s`, podMount, path.Dir(podMount)))
	sums := lost.writeFiles(ctx, t, global, 5)
	lost.run(ctx, t, "setsid sh -c 'while :; do date > "+global+"/writer; sync "+global+"/writer; sleep 0.5; done' > /dev/null 2>&1 < /dev/null &")

	must(t, kubelet.Restart(ctx, lost.Machine, lost.name))
	must(t, harness.Eventually(ctx, func() (string, error) {
		if c.attachmentOf(ctx, t, pv, lost.name) != nil {
			return "the volume is not detached", nil
		}
		return "", nil
	}))
	if c.inUse(ctx, t, pv, lost.name) {
		t.Error("the kubelet still lists the volume, so this test shows nothing")
	}
	c.waitsFor(ctx, t, pv)
	if reported := c.reports(ctx, t, lost.name); !slices.Contains(reported, pv.Spec.CSI.VolumeHandle) {
		t.Errorf("the plugin reports only %q", reported)
	}
	// csi-attacher repeats a refused call at least every 30 s.
	time.Sleep(45 * time.Second)
	pod, err := c.Client.CoreV1().Pods("team-c").Get(ctx, second, metav1.GetOptions{})
	must(t, err)
	if a := c.attachmentOf(ctx, t, pv, other.name); pod.Status.Phase != corev1.PodPending || a == nil || a.Status.Attached {
		t.Errorf("the second pod is %s, although the first node writes", pod.Status.Phase)
	}
	lost.run(ctx, t, "test -s "+global+"/writer")

	lost.Kill()
	must(t, c.boot(ctx, lost))
	after := c.writes(ctx, t, second)
	if after.found < wrote || wrote == 0 {
		t.Errorf("the first pod wrote %d records, and the second found %d", wrote, after.found)
	}
	there := strings.TrimSpace(other.run(ctx, t, "grep -F "+pv.Name+" /proc/mounts | cut -d' ' -f2"))
	other.hasFiles(ctx, t, there, sums)
	sums = other.writeFiles(ctx, t, there, 5)
	must(t, harness.Eventually(ctx, func() (string, error) {
		_, err := c.Client.CoreV1().Nodes().Get(ctx, lost.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "the lost node is not back", nil
		}
		return "", err
	}))
	c.isReady(ctx, t, lost.name, corev1.ConditionTrue)
	other.hasFiles(ctx, t, there, sums)
	c.verifies(ctx, t, "forgotten", second)
}
