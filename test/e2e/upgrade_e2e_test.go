//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/deploy"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// previousVariable names the variable with the path of an older build of the program, from
// which TestPodsUseVolumesInModeCSI upgrades. make e2e sets it.
const previousVariable = "E2E_PREVIOUS"

// upgrade replaces the previous build, first of the program and then of the node plugins,
// while a pod writes to a filesystem and another to a raw device. The present build then
// grows, unstages and moves what the previous one has staged.
func (c *kubeletCluster) upgrade(ctx context.Context, t *testing.T, writer string) {
	c.bound(ctx, t, harness.Claim("team-c", "upgraded", "files", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		block := corev1.PersistentVolumeBlock
		claim.Spec.VolumeMode = &block
	}))
	device := func(node string) *corev1.Pod {
		return c.pod("upgraded", "upgraded", func(pod *corev1.Pod) {
			on(node)(pod)
			raw(pod)
		})
	}
	c.create(ctx, t, device("node-1"))
	before := map[string]int64{"upgraded": c.writes(ctx, t, "upgraded").wrote, writer: c.told(ctx, t, writer).wrote}

	must(t, c.replica.Stop(ctx))
	c.lead(ctx, t, c.Program)
	c.logs["the upgraded program"] = c.replica.Log
	c.replacePlugins(ctx, t)
	for name, wrote := range before {
		must(t, harness.Eventually(ctx, func() (string, error) {
			if now := c.told(ctx, t, name); now.wrote < wrote+50 {
				return fmt.Sprintf("pod %s is stuck at %+v", name, now), nil
			}
			return "", nil
		}))
	}
	c.grows(ctx, t, "upgraded", "upgraded")
	last := c.told(ctx, t, "upgraded")
	c.removePod(ctx, t, "upgraded")
	c.create(ctx, t, device("node-2"))
	if after := c.writes(ctx, t, "upgraded"); after.found < last.wrote {
		t.Errorf("the pod wrote %d records before the upgrade, and found %d after it on the other node", last.wrote, after.found)
	}
	c.removePod(ctx, t, "upgraded")
}

// replacePlugins gives the DaemonSet the present image and waits until its rollout is over
// and the kubelets have registered the new plugins.
func (c *kubeletCluster) replacePlugins(ctx context.Context, t *testing.T) {
	t.Helper()
	plugins, err := c.Client.AppsV1().DaemonSets(deploy.NodeNamespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	if len(plugins.Items) != 1 {
		t.Fatalf("there are %d DaemonSets", len(plugins.Items))
	}
	plugin := &plugins.Items[0]
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": %q}]`, kubelet.ProgramImage)
	plugin, err = c.Client.AppsV1().DaemonSets(plugin.Namespace).Patch(ctx, plugin.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
	must(t, harness.Eventually(ctx, func() (string, error) {
		now, err := c.Client.AppsV1().DaemonSets(plugin.Namespace).Get(ctx, plugin.Name, metav1.GetOptions{})
		if err != nil || isRolledOut(now, plugin.Generation, len(c.nodes)) {
			return "", err
		}
		return fmt.Sprintf("the DaemonSet is at %+v", now.Status), nil
	}))
	pods, err := c.Client.CoreV1().Pods(plugin.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, pod := range pods.Items {
		must(t, harness.Eventually(ctx, func() (string, error) {
			log, err := kubelet.ContainerLog(ctx, c.nodes[pod.Spec.NodeName].Machine, pod.Namespace, pod.Name)
			if err != nil || strings.Contains(log, "kubelet registered the driver") {
				return "", err
			}
			return "the kubelet of " + pod.Spec.NodeName + " has not registered the new plugin", nil
		}))
	}
}

func isRolledOut(daemonSet *appsv1.DaemonSet, generation int64, nodes int) bool {
	status := daemonSet.Status
	return status.ObservedGeneration >= generation && int(status.UpdatedNumberScheduled) == nodes && int(status.NumberAvailable) == nodes
}
