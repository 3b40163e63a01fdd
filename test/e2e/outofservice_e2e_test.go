//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// begins is how soon the program begins when a node is not Ready. The rest is the time of
// kube-controller-manager, which takes more than 50 s to notice the loss, of Cinder and of
// the other kubelet. How long emulated nodes take says nothing about others, so the test only
// logs that.
const begins = 10 * time.Second

// TestALostNodeCostsAMinute cuts a node with a real kubelet off from the control plane, but
// not from the storage, while the pod of a StatefulSet writes there. Nobody does anything.
// The pod goes on elsewhere with its data, and the first node, which runs and tries to write
// four times a second, writes nothing more from then on. Later it is connected again.
// PARTITIONS says how often that is done, by turns with either node; once by default.
func TestALostNodeCostsAMinute(t *testing.T) {
	partitions, err := strconv.Atoi(cmp.Or(os.Getenv("PARTITIONS"), "1"))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+8*partitions)*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{classes: []string{"masked"}, policy: fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
backends:
  - name: lab
    auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}
    mode: csi
    csi: {fencing: initiator}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [masked], backends: [lab], volumeType: %s, fsType: ext4}
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, env.Types.UnitsMasked)}, "node-1", "node-2")
	remove, err := c.AllowTaints(ctx, csiProvisioner)
	must(t, err)
	t.Cleanup(func() { must(t, remove(context.Background())) })
	must(t, c.replica.Stop(ctx))
	c.arguments = []string{"--taint-lost-nodes", "--taint-lost-nodes-share=50"}
	c.lead(ctx, t, c.Program)
	c.logs["the program"] = c.replica.Log

	pv := c.claim(ctx, t, "kept", "masked")
	c.stateful(ctx, t, "kept", "node-1")
	c.worksOn(ctx, t, "node-1")
	c.writesOpenly(ctx, t, "worker-0")
	from, to := "node-1", "node-2"
	var last writer
	for n := range partitions {
		t.Logf("partition %d, of %s", n+1, from)
		last = c.partition(ctx, t, pv, from, to)
		from, to = to, from
	}
	must(t, c.Client.AppsV1().StatefulSets("team-c").Delete(ctx, "worker", metav1.DeleteOptions{}))
	c.gone(ctx, t, "worker-0")
	c.create(ctx, t, c.pod("back", "kept", on(to)))
	if back := c.writesOpenly(ctx, t, "back"); back.found < last.wrote {
		t.Errorf("the pod wrote %d records, and found %d on the node that is back", last.wrote, back.found)
	}
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
}

// partition cuts a node off on which worker-0 runs, until the program has put it back into
// service, and lets the program take it out of service again. It returns what the pod wrote.
func (c *kubeletCluster) partition(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, from, to string) (last writer) {
	t.Helper()
	lost, other := c.nodes[from], c.nodes[to]
	directory := func(n *csiNode) string {
		return strings.TrimSpace(n.run(ctx, t, "ls -d /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/"+pv.Name+"/mount"))
	}
	// What the node writes besides, it says it has written only when it is on the disk. It pauses,
	// or an emulated node takes the processor from the other, on which the pod is to start.
	lost.run(ctx, t, "rm -f /tmp/acknowledged; cd "+directory(lost)+" && dd if=/dev/zero of=loser bs=4096 count=1 conv=fsync status=none && chmod 666 loser")
	lost.run(ctx, t, "cat > /tmp/loser.sh <<'X'\ni=0; while :; do i=$((i+1)); printf '%012d\\n' $i | dd of="+directory(lost)+"/loser bs=4096 conv=sync,notrunc oflag=direct status=none 2>/dev/null && echo $i > /tmp/acknowledged; sleep 0.25; done\nX\nsetsid sh /tmp/loser.sh > /dev/null 2>&1 < /dev/null &")
	acknowledged := func() int {
		return number(t, lost.run(ctx, t, "cat /tmp/acknowledged 2>/dev/null || echo 0"))
	}
	onDisk := func(n *csiNode) int {
		return number(t, n.run(ctx, t, "dd if="+directory(n)+"/loser iflag=direct bs=4096 count=1 status=none | head -c 12"))
	}
	must(t, harness.Eventually(ctx, func() (string, error) {
		if acknowledged() < 5 {
			return "the node does not write", nil
		}
		return "", nil
	}))
	before := c.told(ctx, t, "worker-0")

	line := newTimeline()
	lost.cutOff()
	c.watchMove(ctx, t, line, pv, from, to)
	after := c.writesOpenly(ctx, t, "worker-0")
	line.note("the pod has written there")
	first := onDisk(other)
	t.Logf("the steps after the loss:\n%s", line)
	if after.found < before.wrote {
		t.Errorf("the pod wrote %d records before its node was lost, and found %d on the other", before.wrote, after.found)
	}
	if took := line.at("its attachments begin to end") - line.at("the node is not Ready"); took > begins {
		t.Errorf("the program begins %s after the node is not Ready", took.Round(time.Second))
	}
	if got := acknowledged(); got > first || first == 0 {
		t.Errorf("the lost node was told that it wrote %d, and on the disk is %d", got, first)
	}
	// It is still there, and still tries.
	time.Sleep(90 * time.Second)
	lost.run(ctx, t, "pgrep -f /tmp/loser.sh")
	if got := onDisk(other); got != first {
		t.Errorf("the lost node wrote %d after the other node wrote first, up to %d", got-first, got)
	} else {
		t.Logf("the lost node wrote %d records, of which 0 after the other node's first", got)
	}

	cut, err := kubelet.Connect(lost.Machine, c.ControlPlane().NodeKubeconfigPath(from))
	must(t, err)
	lost.cutOff = cut
	lost.run(ctx, t, "pkill -9 -f '/tmp/[l]oser.sh'; true")
	c.isReady(ctx, t, from, corev1.ConditionTrue)
	connected := time.Now()
	must(t, harness.Eventually(ctx, func() (string, error) {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, from, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if mark, marked := nodemark.Of(node); nodemark.HasTaint(node) || !marked || mark.State != nodemark.Returned {
			return fmt.Sprintf("the node is not back in service: %v %v", node.Annotations, node.Spec.Taints), nil
		}
		return "", nil
	}))
	t.Logf("the node is back in service %s after it was Ready", time.Since(connected).Round(time.Second))
	last = c.told(ctx, t, "worker-0")
	if got := onDisk(other); got != first {
		t.Errorf("the lost node wrote %d when it was connected again", got-first)
	}
	// As a person says that it may be taken again.
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, from, types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {%q: null}}}`, nodemark.Annotation), metav1.PatchOptions{})
	must(t, err)
	return last
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimLeft(strings.TrimSpace(text), "0"))
	if err != nil && strings.Trim(strings.TrimSpace(text), "0\x00") != "" {
		t.Fatalf("%q is no number", text)
	}
	return n
}

// writesOpenly waits until a pod has written something new to a volume whose target asks for
// no password.
func (c *kubeletCluster) writesOpenly(ctx context.Context, t *testing.T, name string) (w writer) {
	t.Helper()
	c.runs(ctx, t, name)
	must(t, harness.Eventually(ctx, func() (string, error) {
		if w = c.told(ctx, t, name); w.wrote <= w.found+20 {
			return fmt.Sprintf("pod %s does not write: %+v", name, w), nil
		}
		return "", nil
	}))
	return w
}

// stateful makes a StatefulSet of one pod that writes to a claim, on the preferred node.
func (c *kubeletCluster) stateful(ctx context.Context, t *testing.T, claim, preferred string) {
	t.Helper()
	one, labels := int32(1), map[string]string{"app": "worker"}
	pod := c.pod("worker", claim, nil)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight:     100,
		Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{preferred}}}},
	}}}}
	_, err := c.Client.AppsV1().StatefulSets("team-c").Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &one, ServiceName: "worker", Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// timeline is when something was seen first.
type timeline struct {
	begun time.Time
	steps []string
	times []time.Duration
}

func newTimeline() *timeline { return &timeline{begun: time.Now()} }

func (l *timeline) note(step string) {
	if l.at(step) == 0 {
		l.steps, l.times = append(l.steps, step), append(l.times, time.Since(l.begun))
	}
}

func (l *timeline) at(step string) time.Duration {
	for i, one := range l.steps {
		if one == step {
			return l.times[i]
		}
	}
	return 0
}

func (l *timeline) String() string {
	var text strings.Builder
	for i, step := range l.steps {
		fmt.Fprintf(&text, "%6.1f s  %s\n", l.times[i].Seconds(), step)
	}
	return text.String()
}

// watchMove notes the steps by which a pod comes from a lost node to another.
func (c *kubeletCluster) watchMove(ctx context.Context, t *testing.T, line *timeline, pv *corev1.PersistentVolume, lost, other string) {
	t.Helper()
	old, err := c.Client.CoreV1().Pods("team-c").Get(ctx, "worker-0", metav1.GetOptions{})
	must(t, err)
	must(t, harness.Eventually(ctx, func() (string, error) {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, lost, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if nodemark.IsSilent(node) {
			line.note("the node is not Ready")
		}
		if mark, marked := nodemark.Of(node); marked {
			line.note("its attachments begin to end")
			if mark.State == nodemark.Taken {
				line.note("it has the taint")
			}
		}
		if c.attachmentOf(ctx, t, pv, lost) == nil {
			line.note("Kubernetes has detached the volume")
		}
		if a := c.attachmentOf(ctx, t, pv, other); a != nil && a.Status.Attached {
			line.note("the volume is attached to the other node")
		}
		pod, err := c.Client.CoreV1().Pods("team-c").Get(ctx, "worker-0", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			line.note("the pod is deleted")
			return "there is no pod", nil
		}
		if err != nil {
			return "", err
		}
		if pod.UID != old.UID {
			line.note("the pod is deleted")
			line.note("the pod is made again")
		}
		if pod.UID == old.UID || pod.Spec.NodeName != other || pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("the pod is %s on %s", pod.Status.Phase, pod.Spec.NodeName), nil
		}
		line.note("the pod runs elsewhere")
		return "", nil
	}))
}
