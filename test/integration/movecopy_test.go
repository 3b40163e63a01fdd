package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// copyingNode is a node that runs the pods that copy volumes, without their data: the first
// node of a cluster. What it has for a pod, it has attached, and detaches when the pod ends.
type copyingNode struct {
	csiCluster
	namespace string
	replica   *harness.Replica
	// attach and detach wait for what they ask for.
	attach, detach func(ctx context.Context, v csiVolume) error

	mu sync.Mutex
	// message is what the next pod says in the end, and meanwhile is done while it runs.
	message   string
	meanwhile func() error
}

func (n *copyingNode) prepare(message string, meanwhile func() error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.message, n.meanwhile = message, meanwhile
}

// run runs pods until the context ends.
func (n *copyingNode) run(ctx context.Context) error {
	pods := suite.Client.CoreV1().Pods(n.namespace)
	for pause(ctx, 50*time.Millisecond) == nil {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=copy"})
		if err != nil {
			continue
		}
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 {
				continue
			}
			if err := n.runPod(ctx, pod); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return nil
}

func (n *copyingNode) runPod(ctx context.Context, pod *corev1.Pod) error {
	n.mu.Lock()
	message, meanwhile := n.message, n.meanwhile
	n.message, n.meanwhile = `{"files": 3, "bytes": 3145728}`, nil
	n.mu.Unlock()
	var volumes []csiVolume
	for _, in := range pod.Spec.Volumes {
		v, err := n.boundTo(ctx, in.PersistentVolumeClaim.ClaimName)
		if err == nil {
			err = n.attach(ctx, v)
		}
		if err != nil {
			return err
		}
		volumes = append(volumes, v)
	}
	var err error
	if meanwhile != nil {
		err = meanwhile()
	}
	status := corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "copy", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}}}}}
	if message == "" {
		status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
	}
	patch, failed := json.Marshal(map[string]any{"status": status})
	if failed == nil {
		_, failed = suite.Client.CoreV1().Pods(n.namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if !apierrors.IsNotFound(failed) { // a command that was killed may have removed it
		err = errors.Join(err, failed)
	}
	for _, v := range volumes {
		err = errors.Join(err, n.detach(ctx, v))
	}
	return err
}

// boundTo waits for the volume of a claim.
func (n *copyingNode) boundTo(ctx context.Context, claim string) (v csiVolume, err error) {
	err = harness.Eventually(ctx, func() (string, error) {
		found, err := suite.Client.CoreV1().PersistentVolumeClaims(n.namespace).Get(ctx, claim, metav1.GetOptions{})
		if err != nil || found.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is not bound", claim), err
		}
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, found.Spec.VolumeName, metav1.GetOptions{})
		if err == nil {
			v = csiVolume{id: pv.Annotations[objects.AnnotationVolume], pv: pv.Name}
		}
		return "", err
	})
	return v, err
}

// withCopyingNode returns a world in mode csi whose backends lab and gold may have each other's
// volumes, with a leader, its sidecar and a node that runs copying pods.
func withCopyingNode(t *testing.T, name string, change ...func(*world)) (*world, *copyingNode) {
	t.Helper()
	w := newWorld(t, name, cindersim.Options{})
	w.withCSI("{}")
	for _, c := range change {
		c(w)
	}
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.policy = w.change(strings.ReplaceAll(`      - storageClasses: ["NAME-lab"]
        backends: [lab]
`, "NAME", name), strings.ReplaceAll(`      - storageClasses: ["NAME-lab"]
        backends: [lab, gold]
      - storageClasses: ["NAME-gold"]
        backends: [gold, lab]
`, "NAME", name))
	w.policy = w.change("clusterID: cluster-"+name+"\n", "clusterID: cluster-"+name+"\naudit: {interval: 500ms, grace: 1m, delete: true}\n")
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	replica := w.startWithSidecar().Replica
	node := &copyingNode{replica: replica, csiCluster: csiCluster{name: w.name, cluster: "cluster-" + name, sim: w.sim}, namespace: name + "-b"}
	node.attach = func(ctx context.Context, v csiVolume) error {
		err := node.attachTo(ctx, v, 0)
		if err == nil {
			_, err = node.attached(ctx, v, 0)
		}
		return err
	}
	node.detach = func(ctx context.Context, v csiVolume) error {
		return errors.Join(node.detachFrom(ctx, v, 0), node.detached(ctx, v, 0))
	}
	w.must(node.register(w.ctx, 1))
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- node.run(ctx) }()
	t.Cleanup(func() {
		stop()
		w.must(<-done)
		_ = suite.Client.StorageV1().CSINodes().Delete(t.Context(), node.node(0), metav1.DeleteOptions{})
	})
	return w, node
}

// TestMoveToAnotherBackend: the claim's volume is copied to another backend, by a pod, and
// the two are swapped, unless anybody else may have used the claim since the copy began.
func TestMoveToAnotherBackend(t *testing.T) {
	w, node := withCopyingNode(t, "movecopy")
	w.claim("b", "data", "lab", "1Gi")
	w.claim("b", "other", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, "movecopy-b", 2)
	w.must(err)
	claims := suite.Client.CoreV1().PersistentVolumeClaims("movecopy-b")
	current := func(name string) *corev1.PersistentVolumeClaim {
		t.Helper()
		claim, err := claims.Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		return claim
	}
	at := func(claim string) string {
		t.Helper()
		v, err := node.boundTo(w.ctx, claim)
		w.must(err)
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, v.pv, metav1.GetOptions{})
		w.must(err)
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			now, found := w.sim.Volume(v.id)
			if found && now.Metadata["csi.storage.k8s.io/pv/name"] == v.pv && now.Metadata[annotation("swap")] == "" && now.Status == "available" {
				return "", nil
			}
			return fmt.Sprintf("claim %s: volume %s is %s, with %v", claim, v.id, now.Status, now.Metadata), nil
		}))
		return pv.Annotations[objects.AnnotationBackend] + "/" + v.id
	}
	first, second := at("data"), at("other")
	move := func(claim string, wantCode int, want string, flags ...string) {
		t.Helper()
		code, output := w.volumeCommand("move", append([]string{"movecopy-b/" + claim, "--to-backend", "gold", "--image", "none.example/program"}, flags...)...)
		if code != wantCode || !strings.Contains(output, want) {
			t.Errorf("%s %v: exit code %d, want %d and %q:\n%s", claim, flags, code, wantCode, want, output)
		}
	}
	toGold := []string{"--storage-class", "movecopy-gold", "--apply"}

	move("data", 1, "a new claim of StorageClass movecopy-lab goes to backend lab before gold")
	move("data", 0, "claim movecopy-b/data gets a copy of volume "+first+" on backend gold, and claim data-former, of StorageClass movecopy-gold, keeps that volume", toGold[:2]...)
	if _, err := claims.Get(w.ctx, "data-former", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run made a claim (%v)", err)
	}

	pod := func(name, claim string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "movecopy-b", Name: name}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "none.example/none"}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
		}}
	}
	pods := suite.Client.CoreV1().Pods("movecopy-b")
	_, err = pods.Create(w.ctx, pod("user", "data"), metav1.CreateOptions{})
	w.must(err)
	move("data", 1, "pod user uses claim data; stop it first", toGold...)
	w.must(pods.Delete(w.ctx, "user", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))

	node.prepare(`{"error": "no space left on device"}`, nil)
	move("data", 1, "the volume is not copied: no space left on device", toGold...)
	node.prepare("", nil)
	move("data", 1, "the pod ended as Failed without a result: Evicted", toGold...)
	for _, claim := range []string{"data", "data-former"} {
		node.prepare(`{}`, func() error {
			_, err := pods.Create(w.ctx, pod("brief", claim), metav1.CreateOptions{})
			return errors.Join(err, pods.Delete(w.ctx, "brief", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		})
		move("data", 1, "pod movecopy-b/brief may have used claim "+claim+" since the copy began", toGold...)
	}
	if now := at("data"); now != first {
		t.Errorf("the claim has volume %s instead of %s", now, first)
	}
	copied := at("data-former")
	if code, output := w.volumeCommand("swap", "movecopy-b/data", "--with", "data-former", "--apply"); code != 1 || !strings.Contains(output, "claim data-former is a copy that volume move is making; run that command again") {
		t.Errorf("the claim is swapped with what may be half a copy: %d %s", code, output)
	}

	move("data", 0, "claim movecopy-b/data has volume "+copied+"; claim data-former keeps "+first+": delete it when you trust the copy", toGold...)
	if got := at("data"); got != copied || at("data-former") != first {
		t.Errorf("the claims have %s and %s", got, at("data-former"))
	}
	has, _ := strings.CutPrefix(copied, "gold/")
	had, _ := strings.CutPrefix(first, "lab/")
	w.told(current("data"), "VolumeSwapped", "it now has volume "+has+" on backend gold; before, it had volume "+had+" on backend lab")
	w.told(current("data-former"), "VolumeSwapped", "it now has volume "+had+" on backend lab; before, it had volume "+has+" on backend gold")
	w.metric(node.replica, `standalone_cinder_move_volumes{backend="lab",copy="former"} 1`)
	w.metric(node.replica, `standalone_cinder_move_volumes_bytes{backend="lab",copy="former"} 1.073741824e+09`)
	move("data", 0, "claim movecopy-b/data has volume "+copied+"; nothing to do", toGold...)
	if former := current("data-former"); former.Labels[annotation("copy")] != "former" {
		t.Errorf("the labels are %v", former.Labels)
	}
	// The former volume is not moved by a drain, and not overwritten once it is the claim's again.
	code, output := w.volumeCommand("move", "--from-backend", "lab", "--to-backend", "gold", "--image", "none.example/program", "--storage-class", "movecopy-gold", "--apply")
	if code != 0 || !strings.Contains(output, "1 volumes (1 GiB) were moved to backend gold") || !strings.Contains(output, "movecopy-b/data-former") {
		t.Errorf("exit code %d: %s", code, output)
	}
	if at("other") == second || at("other-former") != second || at("data-former") != first {
		t.Errorf("the claims have %s, %s and %s", at("other"), at("other-former"), at("data-former"))
	}
	if code, output := w.volumeCommand("swap", "movecopy-b/data", "--with", "data-former", "--apply", "--back"); code != 0 {
		t.Error(output)
	}
	move("data", 1, "claim movecopy-b/data-former exists, and was not made for a copy of this one; delete it if it is not needed", toGold...)
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}
	w.must(suite.DeleteClaims(w.ctx, "movecopy-b"))
	w.noResidue()
}
