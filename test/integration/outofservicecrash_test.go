package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestCrashMatrixOfNodesTakenOutOfService lets the leader die, and requests and answers be
// lost, late or doubled, at every step by which a lost node is taken out of service. It
// never has the taint before its attachment has ended and its plugin is forbidden to stage
// with it, it has the taint in the end, and it loses the taint after a reboot.
//
//tier:matrix
func TestCrashMatrixOfNodesTakenOutOfService(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	dir, err := os.MkdirTemp("", "csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := openSite(ctx, t, "csitaintcrash", siteOptions{
		requestTimeout: time.Second, apiPatience: time.Second, sockets: dir, backend: "csi: {fencing: initiator}", reports: true,
		arguments: append(slices.Clone(shortLease), taintAll...),
	})
	c := csiCluster{name: s.name, cluster: "cluster-" + s.name, sim: s.sim, project: cindersim.DefaultNoauthProject, backend: "gold"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, s.news())
		}
	}
	must(suite.AllowCSINodes(ctx, s.provisioner))
	remove, err := suite.AllowTaints(ctx, s.provisioner)
	must(err)
	must(c.register(ctx, 2))
	v, err := c.volume(ctx, 0)
	must(err)
	defer func() {
		if err := errors.Join(c.remove(context.Background(), []csiVolume{v}, 2), c.removeMachine(context.Background(), 0), remove(context.Background())); err != nil {
			t.Error(err)
		}
	}()
	must(s.replace(ctx))

	of := &takenNode{site: s, c: c, v: v}
	must(of.use(ctx))
	s.begin()
	must(of.lose(ctx))
	steps := s.steps()
	must(of.comesBack(ctx))
	node, report := "kubernetes PATCH api/v1/nodes/"+c.node(0), "kubernetes PUT apis/coordination.k8s.io/v1/namespaces/standalone-cinder/leases/"+staged.LeaseName(c.node(0))
	crashTable{
		site: s, steps: steps, mishaps: attachMishaps, fits: fitsLeader, mayMiss: vary, must: []string{node, report},
		run: func(at step, m mishap) error { return of.through(ctx, at, m) },
	}.runAll(t)
	var whats []string
	for _, at := range steps {
		whats = append(whats, at.what)
	}
	if !slices.Contains(whats, "cinder DELETE attachments/ID") || !slices.Contains(steps, step{node, 2}) {
		t.Errorf("the undisturbed run has the steps %q", steps)
	}
}

// takenNode is a site with a node that is lost again and again, each time in another boot.
type takenNode struct {
	*site
	c     csiCluster
	v     csiVolume
	boots int
	// attachment is what the node has the volume by.
	attachment string
}

func (n *takenNode) boot() string { return fmt.Sprintf("boot-%d", n.boots) }

// use boots the node, and attaches the volume to it, which it stages.
func (n *takenNode) use(ctx context.Context) error {
	n.boots++
	if err := errors.Join(n.c.machine(ctx, 0, n.boot()), n.c.heard(ctx, 0, corev1.ConditionTrue)); err != nil {
		return err
	}
	if err := n.is(ctx, "", false); err != nil {
		return err
	}
	if err := errors.Join(n.c.attachTo(ctx, n.v, 0), n.attach(ctx, n.c, n.v, 0)); err != nil {
		return err
	}
	attachments := suite.Client.StorageV1().VolumeAttachments()
	a, err := attachments.Get(ctx, n.c.attachment(n.v, 0), metav1.GetOptions{})
	if err != nil {
		return err
	}
	a.Status.Attached = true
	if _, err := attachments.UpdateStatus(ctx, a, metav1.UpdateOptions{}); err != nil {
		return err
	}
	now, _ := n.sim.Volume(n.v.id)
	n.attachment = now.Attachments[0].ID
	return n.c.stages(ctx, 0, n.boot(), n.v)
}

// lose waits until the node that is lost has the taint.
func (n *takenNode) lose(ctx context.Context) error {
	if err := n.c.heard(ctx, 0, corev1.ConditionUnknown); err != nil {
		return err
	}
	return n.is(ctx, nodemark.Taken, true)
}

// is waits until the node has a mark, and the program's taint or not. Whenever it has the
// taint, its attachment has ended.
func (n *takenNode) is(ctx context.Context, state nodemark.State, tainted bool) error {
	return harness.Eventually(ctx, func() (string, error) {
		node, err := suite.Client.CoreV1().Nodes().Get(ctx, n.c.node(0), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if nodemark.HasTaint(node) && n.attachment != "" {
			lease, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Get(ctx, staged.LeaseName(node.Name), metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if err := n.c.onlyOn(n.v); err != nil {
				return "", fmt.Errorf("the node has the taint: %w", err)
			}
			if staged.Of(lease).Boot == n.boot() && !slices.Contains(staged.Of(lease).Ended, n.attachment) {
				return "", fmt.Errorf("the node has the taint, and may stage with %s; forbidden are %q", n.attachment, staged.Of(lease).Ended)
			}
			own := 0
			for _, taint := range node.Spec.Taints {
				if strings.HasSuffix(taint.Key, "out-of-service") {
					own++
				}
			}
			if own != 1 {
				return "", fmt.Errorf("the node has the taints %v", node.Spec.Taints)
			}
		}
		if !isMarked(state, tainted)(node) {
			return fmt.Sprintf("node %s has the annotations %v and the taints %v", node.Name, node.Annotations, node.Spec.Taints), nil
		}
		return "", nil
	})
}

// comesBack detaches the volume as Kubernetes does, gives it to another node and back, and
// boots the node.
func (n *takenNode) comesBack(ctx context.Context) error {
	if err := errors.Join(n.c.detachFrom(ctx, n.v, 0), n.detach(ctx, n.c, n.v, 0)); err != nil {
		return err
	}
	if err := n.attach(ctx, n.c, n.v, 1); err != nil {
		return err
	}
	if err := n.detach(ctx, n.c, n.v, 1); err != nil {
		return err
	}
	n.boots++
	n.attachment = ""
	if err := errors.Join(n.c.boots(ctx, 0, n.boot()), n.c.stages(ctx, 0, n.boot())); err != nil {
		return err
	}
	return n.is(ctx, "", false)
}

// through loses the node while a mishap befalls a step.
func (n *takenNode) through(ctx context.Context, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	// Another leader does not know when the last node was taken, of which no mark is left.
	for _, replica := range n.living() {
		n.kill(replica)
	}
	if err := errors.Join(n.replace(ctx), n.use(ctx)); err != nil {
		return fmt.Errorf("before anything went wrong: %w", err)
	}
	trap, reached, err := n.during(ctx, at, m, n.lose)
	if err == nil && reached && m.verdict == faultproxy.Late {
		n.release()
		if err = wait(ctx, trap.done); err == nil {
			err = n.is(ctx, nodemark.Taken, true)
		}
	}
	if err == nil {
		err = n.comesBack(ctx)
	}
	if err == nil && !reached {
		err = errNotReached
	}
	return err
}
