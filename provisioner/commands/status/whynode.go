package status

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
)

// explainNode says whether a node can have volumes, and which attachments are under way.
func (q *inquiry) explainNode(ctx context.Context) error {
	node, err := q.client.CoreV1().Nodes().Get(ctx, q.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && q.stillHasVolumes(ctx) {
		q.Phase = "gone"
		q.because("the node does not exist, so what it still has ends without it")
		q.noteAttachmentsOf(ctx)
		return nil
	}
	if err != nil {
		return err
	}
	q.Phase = "not ready"
	ready := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	switch {
	case ready >= 0 && node.Status.Conditions[ready].Status == corev1.ConditionTrue:
		q.Phase = "ready"
		q.because("it is ready since %s", at(node.Status.Conditions[ready].LastTransitionTime.Time))
	case ready >= 0:
		condition := node.Status.Conditions[ready]
		remedy := ""
		if condition.Status == corev1.ConditionUnknown && !isOutOfService(node) {
			// Of a kubelet that says false, the machine runs, and may write.
			remedy = fmt.Sprintf(". Its volumes stay with it until it returns, or somebody who knows that the machine is off runs: kubectl taint node %s %s=nodeshutdown:NoExecute", q.Name, corev1.TaintNodeOutOfService)
		}
		q.because("it has not been ready since %s: %s%s", at(condition.LastTransitionTime.Time), strings.TrimSuffix(condition.Message, "."), remedy)
	}
	mark, marked := nodemark.Of(node)
	switch {
	case nodemark.HasTaint(node) && marked:
		q.because("the program took it out of service%s, after its volumes were taken from it; it removes the taint when the node is Ready again and has rebooted or unstaged everything", since(mark))
	case isOutOfService(node):
		q.because("it is tainted as out of service, so its volumes go to other nodes; remove the taint when the machine is back and clean")
	case marked && mark.State == nodemark.Taking:
		q.because("the program takes its volumes from it since %s, and then taints it as out of service", at(mark.Since))
	case marked && mark.State == nodemark.Returned:
		q.note("it came back without a reboot after its volumes were taken, so the program does not take it out of service again before it reboots, or somebody removes its annotation %s", nodemark.Annotation)
	}
	if node.Spec.Unschedulable {
		q.note("it is cordoned: no new pod comes to it until kubectl uncordon %s", q.Name)
	}
	q.noteDriverOn(ctx, q.Name)
	q.noteAttachmentsOf(ctx)
	// A kubelet writes the node's name where other objects have a UID.
	q.addEvents(ctx, "Node", "", q.Name, "")
	return nil
}

// since says when a mark was made. Somebody may have removed or damaged it.
func since(mark nodemark.Mark) string {
	if mark.Since.IsZero() {
		return ""
	}
	return " on " + at(mark.Since)
}

func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// stillHasVolumes reports whether a node, which may be gone, has VolumeAttachments.
func (q *inquiry) stillHasVolumes(ctx context.Context) bool {
	attachments, err := q.attachments(ctx, "", q.Name)
	return err == nil && len(attachments) > 0
}

// noteDriverOn notes whether the node plugin runs on a node.
func (q *inquiry) noteDriverOn(ctx context.Context, node string) {
	plugins, err := q.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.note("node %s has no CSINode, so no kubelet runs there", node)
	case apierrors.IsForbidden(err):
	case err != nil:
		q.note("CSINode %s cannot be read: %s", node, err)
	case !slices.ContainsFunc(plugins.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == policy.CSIDriver }):
		q.note("the node plugin is not registered on node %s, so it can have no volumes of mode csi: does the DaemonSet run there?", node)
	}
}

// noteAttachmentsOf notes the volumes of mode csi that a node has, and those under way.
func (q *inquiry) noteAttachmentsOf(ctx context.Context) {
	attachments, err := q.attachments(ctx, "", q.Name)
	if err != nil {
		q.note("its VolumeAttachments cannot be read: %s", err)
		return
	}
	attached := 0
	moving := slices.DeleteFunc(attachments, func(a storagev1.VolumeAttachment) bool {
		settled := describeAttachment(&a).settled
		if settled {
			attached++
		}
		return settled
	})
	q.note("volumes of mode csi that are attached to it: %d", attached)
	for i := range moving[:min(len(moving), maxListed)] {
		q.note("a volume %s (VolumeAttachment %s)", describeAttachment(&moving[i]).text, moving[i].Name)
	}
	if more := len(moving) - maxListed; more > 0 {
		q.note("%d more attachments are under way", more)
	}
}
