package outofservice

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

const (
	// evictionTime is how long it is looked for evicted pods, and evictionPause the time
	// between two looks.
	evictionTime  = 5 * time.Second
	evictionPause = 500 * time.Millisecond
)

// endPods deletes the pods that Kubernetes evicts from a node that has the taint. No kubelet
// confirms their end, so Kubernetes deletes them by force, too, but only looks for them every
// 20 s (gcTerminating in pkg/controller/podgc/gc_controller.go). So what fails here is not
// repeated.
func (c *Controller) endPods(ctx context.Context, name, boot string) {
	ctx, cancel := context.WithTimeout(ctx, evictionTime)
	defer cancel()
	for {
		left, err := c.endEvicted(ctx, name, boot)
		if err != nil && ctx.Err() == nil {
			c.Logger.Warn("Cannot delete the pods of a node that is out of service; Kubernetes does so within 20 s", "node", name, "error", err)
		}
		if left == 0 || err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(evictionPause):
		}
	}
}

// endEvicted deletes the pods that were evicted by now, if the node still has the taint and
// nothing is heard of it. It returns how many are left that have a claim.
func (c *Controller) endEvicted(ctx context.Context, name, boot string) (left int, err error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("cannot read Node %s: %w", name, err)
	}
	if !nodemark.IsSilent(node) || !nodemark.HasTaint(node) || node.Status.NodeInfo.BootID != boot {
		return 0, nil
	}
	pods, err := c.podsOn(ctx, name)
	if err != nil {
		return 0, err
	}
	for i := range pods {
		pod := &pods[i]
		if runsEverywhere(pod) || !hasClaim(pod) || len(pod.Finalizers) > 0 {
			continue
		}
		if !isEvicted(pod) {
			left++
			continue
		}
		now := int64(0)
		err := c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue // It is gone.
		}
		if err != nil {
			return left, fmt.Errorf("cannot delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		c.Logger.Info("Deleted a pod of a node that is out of service", "node", name, "namespace", pod.Namespace, "pod", pod.Name)
	}
	return left, nil
}

// podsOn returns the pods of a node.
func (c *Controller) podsOn(ctx context.Context, name string) ([]corev1.Pod, error) {
	pods, err := paging.List(ctx, "pods", func(ctx context.Context, options metav1.ListOptions) (*corev1.PodList, error) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", name).String()
		return c.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
	}, func(page *corev1.PodList) []corev1.Pod {
		return slices.DeleteFunc(page.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != name })
	})
	if err != nil {
		return nil, fmt.Errorf("cannot tell which pods are on node %s: %w", name, err)
	}
	return pods, nil
}

// isEvicted reports whether Kubernetes deletes a pod because of a taint
// (addConditionAndDeletePod in pkg/controller/tainteviction/taint_eviction.go). The admission
// policy lets the program delete no other.
func isEvicted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue && condition.Reason == "DeletionByTaintManager"
	})
}

// hasClaim reports whether a pod uses a claim.
func hasClaim(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return claimOf(pod, &v) != "" })
}
