//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/deploy"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const podsProject = 0xc73

// leaseOfPods is long, so that it does not expire while a kubelet reports.
const leaseOfPods = time.Minute

// TestDeadLeaderIsReplacedWhenItsKubeletReports has the program run as the manifests say, on
// a node with a real kubelet.
func TestDeadLeaderIsReplacedWhenItsKubeletReports(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	c := startPlainKubelets(ctx, t, harness.SuiteOptions{}, "node-1")
	endpoint, err := url.Parse(c.env.Noauth.Endpoint)
	must(t, err)
	inside := net.JoinHostPort(controlplane.ServiceAddress, endpoint.Port())
	_, err = c.nodes["node-1"].ReachAt(inside, endpoint.Host)
	must(t, err)
	endpoint.Host = inside
	must(t, c.CreateClass(ctx, "gold", provisioner, nil))
	c.install(ctx, t, fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-pods
backends:
  - {name: lab, auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}, connector: {host: k8s-e2e}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes: [{storageClasses: [gold], backends: [lab], volumeType: %s}]
`, endpoint, c.env.Noauth.User, podsProject, c.env.Types.ISCSI), "--lease-duration="+leaseOfPods.String(), "--renew-deadline=30s")

	kill := func(leader *corev1.Pod) (end func()) {
		id := strings.TrimPrefix(leader.Status.ContainerStatuses[0].ContainerID, "containerd://")
		pid := c.nodes["node-1"].run(ctx, t, "basename $(dirname $(grep -l "+id+" /proc/[0-9]*/cgroup))")
		return func() { c.nodes["node-1"].run(ctx, t, "kill -9 "+pid) }
	}
	t.Run("the only replica is killed", func(t *testing.T) { c.replaces(ctx, t, "alone", 1, true, kill) })
	_, err = c.Client.AppsV1().Deployments(deploy.Namespace).Patch(ctx, deploy.Release, types.MergePatchType, []byte(`{"spec": {"replicas": 2}}`), metav1.PatchOptions{})
	must(t, err)
	for round := range 2 {
		t.Run("one of two is killed at work", func(t *testing.T) { c.replaces(ctx, t, fmt.Sprintf("busy-%d", round), 2, false, kill) })
		t.Run("one of two is killed at rest", func(t *testing.T) { c.replaces(ctx, t, fmt.Sprintf("idle-%d", round), 2, true, kill) })
	}
	// Nothing reports its end, and it may have no time or no right to give up its lease.
	t.Run("one of two is deleted by force", func(t *testing.T) {
		c.replaces(ctx, t, "forced", 2, false, func(leader *corev1.Pod) (end func()) {
			return func() {
				must(t, c.Client.CoreV1().Pods(deploy.Namespace).Delete(ctx, leader.Name, *metav1.NewDeleteOptions(0)))
			}
		})
	})
	must(t, c.DeleteClaims(ctx, "team-c"))
	must(t, c.WaitForNoPersistentVolumes(ctx, provisioner))
}

// install installs the program as an operator does, with one replica.
func (c *kubeletCluster) install(ctx context.Context, t *testing.T, policy string, arguments ...string) {
	t.Helper()
	directory := t.TempDir()
	manifests, err := filepath.Rel(directory, deploy.Path())
	must(t, err)
	image, tag, _ := strings.Cut(kubelet.ProgramImage, ":")
	var patch strings.Builder
	for _, argument := range arguments {
		fmt.Fprintf(&patch, "\n      - {op: add, path: /spec/template/spec/containers/0/args/-, value: %q}", argument)
	}
	must(t, os.WriteFile(filepath.Join(directory, "policy.yaml"), []byte(policy), 0o600))
	must(t, os.WriteFile(filepath.Join(directory, "kustomization.yaml"), fmt.Appendf(nil, `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s/base]
components: [%[1]s/components/noauth]
configMapGenerator: [{name: standalone-cinder-policy, namespace: standalone-cinder, files: [policy.yaml]}]
generatorOptions: {disableNameSuffixHash: true}
images: [{name: ghcr.io/standalone-cinder/standalone-cinder, newName: %[2]s, newTag: %[3]s}]
replicas: [{name: standalone-cinder, count: 1}]
patches:
  - target: {kind: Deployment}
    patch: |%[4]s
`, manifests, image, tag, &patch), 0o600))
	rendered, err := deploy.Kustomization(ctx, directory)
	must(t, err)
	must(t, c.Apply(ctx, rendered))
}

// leads waits until so many replicas are ready and one of them leads, and returns its
// identity and its pod.
func (c *kubeletCluster) leads(ctx context.Context, t *testing.T, replicas int) (identity string, pod *corev1.Pod) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		deployment, err := c.Client.AppsV1().Deployments(deploy.Namespace).Get(ctx, deploy.Release, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if deployment.Status.Replicas != int32(replicas) || deployment.Status.ReadyReplicas != int32(replicas) {
			return fmt.Sprintf("the Deployment is %+v", deployment.Status), nil
		}
		if identity, err = c.Leader(ctx, provisioner); err != nil || identity == "" {
			return "nobody leads", nil
		}
		pod, err = c.Client.CoreV1().Pods(deploy.Namespace).Get(ctx, wiring.PodOf(identity), metav1.GetOptions{})
		return "", err
	}))
	return identity, pod
}

// replaces ends the leader at rest or at work, and measures how long claims wait that are made
// at this moment.
func (c *kubeletCluster) replaces(ctx context.Context, t *testing.T, name string, replicas int, atRest bool, prepare func(leader *corev1.Pod) (end func())) {
	dead, pod := c.leads(ctx, t, replicas)
	end := prepare(pod)
	claim := func(name string) {
		t.Helper()
		_, err := c.CreateClaim(ctx, harness.Claim("team-c", name, "gold", "1Gi", nil))
		must(t, err)
	}
	before, after := name+"-before", name+"-after"
	asked := time.Now()
	c.bound(ctx, t, harness.Claim("team-c", name, "gold", "1Gi", nil))
	usual := time.Since(asked)
	if atRest {
		time.Sleep(10 * time.Second)
	} else {
		claim(before)
	}
	started, said := time.Now(), ""
	end()
	ended := time.Since(started)
	claim(after)
	if atRest {
		before = after
	}
	seen := map[string]time.Duration{}
	must(t, harness.Eventually(ctx, func() (string, error) {
		note := func(what string, is bool) {
			if _, known := seen[what]; is && !known {
				seen[what] = time.Since(started).Round(10 * time.Millisecond)
			}
		}
		if now, err := c.Client.CoreV1().Pods(deploy.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil {
			for _, container := range now.Status.ContainerStatuses {
				for _, state := range []corev1.ContainerState{container.State, container.LastTerminationState} {
					if state.Terminated != nil && strings.HasPrefix(state.Terminated.Message, dead) {
						note("report", true)
						said = strings.TrimPrefix(state.Terminated.Message, dead)
					}
				}
			}
		}
		identity, err := c.Leader(ctx, provisioner)
		if err != nil {
			return "", err
		}
		note("lease", identity != dead && identity != "")
		for _, name := range []string{before, after} {
			claim, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			note(name, claim.Status.Phase == corev1.ClaimBound)
		}
		if seen[before] == 0 || seen[after] == 0 {
			return fmt.Sprintf("seen so far: %v", seen), nil
		}
		return "", nil
	}))
	if seen["report"] > 0 && seen["lease"] > leaseOfPods/2 {
		t.Errorf("the end was reported after %s, and the next leader came after %s", seen["report"], seen["lease"])
	}
	if atRest != (said != "") {
		t.Errorf("the dead leader's log says %q", said)
	}
	t.Logf("the leader ended within %s; the kubelet's report is there after %s, the next leader after %s; a claim made before is Bound after %s, one made after it %s (%s with a leader)",
		ended.Round(10*time.Millisecond), seen["report"], seen["lease"], seen[before], seen[after], usual.Round(10*time.Millisecond))
}
