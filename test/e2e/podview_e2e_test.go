//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/deploy"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

func podViewPolicy(env rig.Env) string {
	var rules strings.Builder
	for _, mode := range []string{"native", "csi"} {
		for _, fsType := range []string{"ext4", "xfs"} {
			fmt.Fprintf(&rules, "      - {storageClasses: [%s-%s], backends: [lab], volumeType: %s, fsType: %s, mode: %s}\n", mode, fsType, env.Types.ISCSI, fsType, mode)
		}
		fmt.Fprintf(&rules, "      - {storageClasses: [%s-paths], backends: [paths], volumeType: %s, fsType: ext4, mode: %s}\n", mode, env.Types.ISCSIMultipath, mode)
	}
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
backends:
  - name: lab
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[3]x"}}
    connector: {host: k8s-e2e, initiator: %[5]q}
  - name: paths
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[4]x"}}
    connector: {host: k8s-e2e, initiator: %[5]q, multipath: true}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
%[6]s`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, kubeletZonedProject, sharedInitiator, rules.String())
}

// TestHowLongPodsWait measures what a person waits for: from a new claim until a container
// runs with its volume, and from the end of its pod until another runs with the data on
// the next node. It asserts no time, because the nodes are emulated.
func TestHowLongPodsWait(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	classes := []string{"native-ext4", "native-xfs", "native-paths", "csi-ext4", "csi-xfs", "csi-paths"}
	c := startKubeletsWith(ctx, t, kubeletOptions{policy: podViewPolicy(env), classes: classes, verbosity: 2}, "node-1", "node-2")

	// The first pod of a node pays for what the others find.
	for i, node := range []string{"node-1", "node-2"} {
		name := fmt.Sprintf("first-%d", i)
		c.view(ctx, t, name, "csi-ext4", on(node))
		c.removePod(ctx, t, name)
	}
	var waits []map[string]any
	for _, class := range classes {
		t.Run(class, func(t *testing.T) {
			made := c.view(ctx, t, class, class, on("node-1"))
			before := c.writes(ctx, t, class)
			ended := time.Now()
			must(t, c.Client.CoreV1().Pods("team-c").Delete(ctx, class, metav1.DeleteOptions{}))
			c.create(ctx, t, c.pod(class+"-next", class, on("node-2")))
			moved := c.follow(ctx, t, ended, class+"-next", class)
			if after := c.writes(ctx, t, class+"-next"); after.found < before.wrote {
				t.Errorf("the pod wrote %d records, and the next found %d", before.wrote, after.found)
			}
			t.Logf("claimed: %s; moved: %s", made, moved)
			waits = append(waits, made.figures(class, false), moved.figures(class, true))
			c.removePod(ctx, t, class+"-next")
		})
	}
	t.Run("many volumes", func(t *testing.T) {
		const many = 20
		for i := range many - 1 {
			c.claim(ctx, t, fmt.Sprintf("many-%d", i), "csi-ext4")
		}
		t.Logf("one: %s", c.view(ctx, t, "one", "csi-ext4", on("node-1")))
		c.removePod(ctx, t, "one")
		t.Logf("%d: %s", many, c.view(ctx, t, "many", "csi-ext4", func(pod *corev1.Pod) {
			on("node-1")(pod)
			for i := range many - 1 {
				name := fmt.Sprintf("many-%d", i)
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
				pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
			}
		}))
	})
	t.Run("a dead portal", func(t *testing.T) {
		c.nodes["node-2"].cuts[env.Portals[1]]()
		t.Log(c.view(ctx, t, "dead-portal", "csi-paths", on("node-2")))
	})
	if file := os.Getenv("E2E_POD_WAITS"); file != "" {
		content, err := json.Marshal(waits)
		must(t, errors.Join(err, os.WriteFile(file, content, 0o644)))
	}
	t.Logf("the plugin's calls:\n%s", c.calls(ctx, t))
}

// view makes a claim and a pod that uses it at the same time, and follows them.
func (c *kubeletCluster) view(ctx context.Context, t *testing.T, name, class string, change func(*corev1.Pod)) wait {
	t.Helper()
	began := time.Now()
	_, err := c.CreateClaim(ctx, harness.Claim("team-c", name, class, "1Gi", nil))
	must(t, err)
	c.create(ctx, t, c.pod(name, name, change))
	return c.follow(ctx, t, began, name, name)
}

// wait is when the steps of a pod were done, from its beginning.
type wait struct{ bound, scheduled, attached, runs time.Duration }

func (w wait) String() string {
	steps := []string{}
	for _, step := range []struct {
		name string
		at   time.Duration
	}{{"bound", w.bound}, {"scheduled", w.scheduled}, {"attached", w.attached}, {"runs", w.runs}} {
		if step.at > 0 {
			steps = append(steps, fmt.Sprintf("%s %.1f s", step.name, step.at.Seconds()))
		}
	}
	return strings.Join(steps, ", ")
}

// figures are what test/bench reads.
func (w wait) figures(class string, moved bool) map[string]any {
	return map[string]any{"class": class, "moved": moved, "bound": w.bound.Seconds(), "attached": w.attached.Seconds(), "runs": w.runs.Seconds()}
}

// follow waits until the container of a pod runs. Only volumes of mode csi are attached by
// Kubernetes.
func (c *kubeletCluster) follow(ctx context.Context, t *testing.T, began time.Time, pod, claim string) (w wait) {
	t.Helper()
	note := func(at *time.Duration, done bool) {
		*at = cmp.Or(*at, map[bool]time.Duration{true: time.Since(began)}[done])
	}
	must(t, harness.Eventually(ctx, func() (string, error) {
		now, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		note(&w.bound, now.Status.Phase == corev1.ClaimBound)
		follower, err := c.Client.CoreV1().Pods("team-c").Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		note(&w.scheduled, follower.Spec.NodeName != "")
		attachments, err := c.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, a := range attachments.Items {
			if *a.Spec.Source.PersistentVolumeName == now.Spec.VolumeName && a.Spec.NodeName == follower.Spec.NodeName {
				note(&w.attached, a.Status.Attached)
			}
		}
		if follower.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("pod %s is %s", pod, follower.Status.Phase), nil
		}
		note(&w.runs, true)
		return "", nil
	}))
	return w
}

// calls lists how long the slow calls of the plugins took.
func (c *kubeletCluster) calls(ctx context.Context, t *testing.T) string {
	t.Helper()
	pods, err := c.Client.CoreV1().Pods(deploy.NodeNamespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	var all strings.Builder
	for _, pod := range pods.Items {
		log, err := kubelet.ContainerLog(ctx, c.nodes[pod.Spec.NodeName].Machine, deploy.NodeNamespace, pod.Name)
		must(t, err)
		for lines := bufio.NewScanner(strings.NewReader(log)); lines.Scan(); {
			_, text, _ := strings.Cut(lines.Text(), "{")
			var line struct{ Time, Msg, Method, Duration string }
			if json.Unmarshal([]byte("{"+text), &line) != nil || line.Duration == "" || strings.HasPrefix(line.Method, "Probe") || strings.Contains(line.Method, "Get") {
				continue
			}
			fmt.Fprintln(&all, pod.Spec.NodeName, line.Time, cmp.Or(line.Method, line.Msg), line.Duration)
		}
	}
	return all.String()
}
