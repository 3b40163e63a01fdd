package outofservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
)

const (
	// takenAtOnce is how many volumes of a node are taken at once.
	takenAtOnce = 8
	// takenPerRound is how many are taken before it is looked again what the node has, and
	// rounds how often that is done in one attempt. The rest waits for the next attempt, so
	// that none takes for ever, whatever the node reports.
	takenPerRound = 32
	rounds        = 3
)

// attempt does what is to be done about a node, as the API server shows it now.
func (c *Controller) attempt(ctx context.Context, name string) (*Refusal, error) {
	if refusal := c.isCrowded(name); refusal != nil {
		return refusal, nil
	}
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.Attachments.Unbar(name)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Node %s: %w", name, err)
	}
	mark, marked := nodemark.Of(node)
	boot := node.Status.NodeInfo.BootID
	switch {
	case marked && mark.State == nodemark.Taken:
		return nil, c.putBack(ctx, node, mark)
	case marked && (mark.Boot != boot || staged.IsOff(node) && mark.State == nodemark.Taking):
		// Whatever it had, the reboot ended; or a person knows more.
		return nil, c.forget(ctx, node)
	case marked && mark.State == nodemark.Taking && !nodemark.IsSilent(node):
		return nil, c.cutShort(ctx, node, mark)
	case !nodemark.IsSilent(node) || hasTaint(node):
		c.Attachments.Unbar(name)
		return nil, nil
	case marked && mark.State == nodemark.Returned:
		return refuse(Returned, "it came back without a reboot on %s, after its volumes were taken; it is taken out of service again after its next boot, or if you remove its annotation %s", mark.Since.UTC().Format(time.RFC3339), nodemark.Annotation), nil
	}
	return c.takeOut(ctx, node, mark, marked)
}

// takeOut takes a silent node out of service. Each step leaves something by which the next
// leader goes on: the mark, what Cinder has ended, the taint.
func (c *Controller) takeOut(ctx context.Context, node *corev1.Node, mark nodemark.Mark, marked bool) (*Refusal, error) {
	if node.Status.NodeInfo.BootID == "" || len(node.Status.NodeInfo.BootID) > 64 || len(strings.Fields(node.Status.NodeInfo.BootID)) != 1 {
		return refuse(Unreported, "its kubelet has reported no boot ID, by which a reboot could be told"), nil
	}
	if wait := c.pauseFor(node.Name, true); !marked && wait > 0 {
		c.soon(node.Name, wait)
		return nil, nil
	}
	if refusal, err := c.tooMany(ctx, node, marked); refusal != nil || err != nil {
		return refusal, err
	}
	if !marked {
		if _, refusal, err := c.inventory(ctx, node); refusal != nil || err != nil {
			return refusal, err
		}
		now := time.Now()
		mark = nodemark.Mark{State: nodemark.Taking, Boot: node.Status.NodeInfo.BootID, Since: now}
		// Before anything is known to be all that it has.
		c.Attachments.Bar(node.Name)
		var err error
		if node, err = c.change(ctx, node, func(n *corev1.Node) { nodemark.Set(n, mark) }); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.begun = now
		c.mu.Unlock()
	}
	c.Attachments.Bar(node.Name)
	for range rounds {
		// What it has may have changed before the mark.
		has, refusal, err := c.inventory(ctx, node)
		if refusal != nil || err != nil {
			return refusal, err
		}
		left, taken := c.left(node.Name, mark, has)
		if len(left) == 0 {
			return c.taint(ctx, node.Name, mark, taken)
		}
		heard, err := c.takeAll(ctx, node.Name, mark, left[:min(len(left), takenPerRound)])
		if err != nil {
			return nil, err
		}
		if heard {
			break
		}
	}
	c.soon(node.Name, 0)
	return nil, nil
}

// left returns which volumes are still to be taken from a node that has a mark, and how many
// were. What this term has taken stays so while the node is barred.
func (c *Controller) left(name string, mark nodemark.Mark, has []wire.Handle) (left []wire.Handle, taken int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.seen[name]
	if of == nil || of.takenBy != mark.String() {
		return has, 0
	}
	return slices.DeleteFunc(has, func(v wire.Handle) bool { return of.taken[v] }), len(of.taken)
}

// noteTaken notes that a volume was taken from a node that has a mark.
func (c *Controller) noteTaken(name string, mark nodemark.Mark, volume wire.Handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.seen[name]
	if of == nil {
		return
	}
	if of.takenBy != mark.String() {
		of.takenBy, of.taken = mark.String(), map[wire.Handle]bool{}
	}
	of.taken[volume] = true
}

// takeAll ends the attachments of volumes to a node. It returns true if the node is heard
// of again.
func (c *Controller) takeAll(ctx context.Context, name string, mark nodemark.Mark, volumes []wire.Handle) (heard bool, err error) {
	var again atomic.Bool
	var group errgroup.Group
	group.SetLimit(takenAtOnce)
	errs := make([]error, len(volumes))
	for i, volume := range volumes {
		group.Go(func() error {
			taken, err := c.Attachments.Take(ctx, volume, name, mark.Boot)
			switch {
			case err != nil:
				errs[i] = fmt.Errorf("volume %s: %w", volume, err)
			case taken:
				c.noteTaken(name, mark, volume)
			default:
				again.Store(true)
			}
			return nil
		})
	}
	_ = group.Wait() // errs has them
	return again.Load(), errors.Join(errs...)
}

// taint sets the taint, if a last look shows that nothing is heard of the node yet.
func (c *Controller) taint(ctx context.Context, name string, mark nodemark.Mark, volumes int) (*Refusal, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot read Node %s: %w", name, err)
	}
	present, marked := nodemark.Of(node)
	if !nodemark.IsSilent(node) || hasTaint(node) || !marked || present.State != nodemark.Taking || present.Boot != node.Status.NodeInfo.BootID || present.Boot != mark.Boot {
		c.soon(name, 0)
		return nil, nil
	}
	if refusal, err := c.tooMany(ctx, node, true); refusal != nil || err != nil {
		return refusal, err
	}
	// Several may have waited for Cinder.
	if wait := c.pauseFor(name, false); wait > 0 {
		c.soon(name, wait)
		return nil, nil
	}
	now := time.Now()
	if _, err := c.change(ctx, node, func(n *corev1.Node) {
		nodemark.Set(n, nodemark.Mark{State: nodemark.Taken, Boot: mark.Boot, Since: now})
		n.Spec.Taints = append(slices.Clone(n.Spec.Taints), nodemark.Taint())
	}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.last = now
	c.mu.Unlock()
	c.Metrics.changed("set")
	c.Logger.Warn("Took a node out of service", "node", name, "volumes", volumes, "boot", mark.Boot)
	c.event(name, corev1.EventTypeWarning, ReasonTaken, fmt.Sprintf("Node %s does not answer. Its %d volumes were taken from it at the storage, and it has the taint %s now, so its pods start elsewhere", name, volumes, corev1.TaintNodeOutOfService))
	c.endPods(ctx, name, mark.Boot)
	return nil, nil
}

// cutShort ends what was begun on a node that answers again before it has the taint.
func (c *Controller) cutShort(ctx context.Context, node *corev1.Node, mark nodemark.Mark) error {
	if _, err := c.change(ctx, node, func(n *corev1.Node) {
		nodemark.Set(n, nodemark.Mark{State: nodemark.Returned, Boot: mark.Boot, Since: time.Now()})
	}); err != nil {
		return err
	}
	c.Attachments.Unbar(node.Name)
	c.Logger.Warn("A node answers again while it was taken out of service", "node", node.Name)
	c.event(node.Name, corev1.EventTypeWarning, ReasonCutShort, fmt.Sprintf("Node %s answers again, but volumes were being taken from it, so it gets no taint. Delete its pods whose volumes of mode csi have errors: they get them anew", node.Name))
	return nil
}

// putBack removes the program's taint from a node that is back, and has nothing left of
// what was taken from it.
func (c *Controller) putBack(ctx context.Context, node *corev1.Node, mark nodemark.Mark) error {
	if !nodemark.IsReady(node) {
		return nil
	}
	rebooted := node.Status.NodeInfo.BootID != mark.Boot
	if !rebooted {
		lease, err := c.Client.CoordinationV1().Leases(c.Namespace).Get(ctx, staged.LeaseName(node.Name), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("cannot tell what node %s still has staged: %w", node.Name, err)
		}
		if report := staged.Of(lease); report.Holds(node) && len(report.Volumes) > 0 {
			c.soon(node.Name, 2*time.Second)
			return nil
		}
	}
	had := nodemark.HasTaint(node)
	if _, err := c.change(ctx, node, func(n *corev1.Node) {
		nodemark.RemoveTaint(n)
		if rebooted {
			nodemark.Remove(n)
		} else {
			nodemark.Set(n, nodemark.Mark{State: nodemark.Returned, Boot: mark.Boot, Since: time.Now()})
		}
	}); err != nil {
		return err
	}
	c.Attachments.Unbar(node.Name)
	if !had {
		return nil // A person has removed it.
	}
	c.Metrics.changed("removed")
	how := "has rebooted"
	if !rebooted {
		how = "has let go of its volumes without a reboot, before which it is not taken out of service again"
	}
	c.Logger.Info("Put a node back into service", "node", node.Name, "rebooted", rebooted)
	c.event(node.Name, corev1.EventTypeNormal, ReasonBack, fmt.Sprintf("Node %s is back and %s; the taint %s is removed", node.Name, how, corev1.TaintNodeOutOfService))
	return nil
}

// forget removes a mark that means nothing any more.
func (c *Controller) forget(ctx context.Context, node *corev1.Node) error {
	_, err := c.change(ctx, node, nodemark.Remove)
	if err == nil {
		c.Attachments.Unbar(node.Name)
	}
	return err
}

// change changes the mark and the taints of just this version of a Node. It leaves out all
// else, which the program may not know.
func (c *Controller) change(ctx context.Context, node *corev1.Node, change func(*corev1.Node)) (*corev1.Node, error) {
	wanted := node.DeepCopy()
	change(wanted)
	var mark any // null removes it
	if text, has := wanted.Annotations[nodemark.Annotation]; has {
		mark = text
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": map[string]any{nodemark.Annotation: mark},
	}}
	if len(wanted.Spec.Taints) != len(node.Spec.Taints) {
		patch["spec"] = map[string]any{"taints": wanted.Spec.Taints}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	changed, err := c.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot change Node %s: %w", node.Name, err)
	}
	return changed, nil
}

// pauseFor returns how long to wait after other nodes were taken out of service, or begun
// to be, whoever led then. What earlier terms did, the marks say. But a node may write any
// mark on itself, and clocks differ, so none counts as later than the beginning of this term.
func (c *Controller) pauseFor(name string, begun bool) time.Duration {
	c.mu.Lock()
	last := c.last
	if begun && c.begun.After(last) {
		last = c.begun
	}
	c.mu.Unlock()
	for _, object := range c.Nodes.List() {
		if node, ok := object.(*corev1.Node); ok && node.Name != name {
			if mark, marked := nodemark.Of(node); marked && (begun || mark.State != nodemark.Taking) && mark.Since.After(last) && last.Before(c.started) {
				last = mark.Since
				if last.After(c.started) {
					last = c.started
				}
			}
		}
	}
	return c.Pause - time.Since(last)
}
