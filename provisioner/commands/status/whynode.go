package status

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// explainNode says whether a node can have volumes, and which attachments are under way.
func (q *inquiry) explainNode(ctx context.Context) error {
	node, err := q.client.CoreV1().Nodes().Get(ctx, q.Name, metav1.GetOptions{})
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
		q.because("it has not been ready since %s: %s. Its volumes stay with it until it returns, or somebody who knows that the machine is off runs: kubectl taint node %s %s=nodeshutdown:NoExecute",
			at(condition.LastTransitionTime.Time), strings.TrimSuffix(condition.Message, "."), q.Name, corev1.TaintNodeOutOfService)
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			q.because("it is tainted as out of service, so its volumes go to other nodes; remove the taint when the machine is back and clean")
		}
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
