package status

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// explainPod follows the claims of a pod to its node.
func (q *inquiry) explainPod(ctx context.Context) error {
	pod, err := q.client.CoreV1().Pods(q.Namespace).Get(ctx, q.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	q.Phase = string(pod.Status.Phase)
	claims := claimsOf(pod)
	switch {
	case objects.IsFinished(pod):
		q.because("it has ended, so it uses no volume")
	case pod.DeletionTimestamp != nil:
		q.explainDeletionOf(pod)
		if pod.Spec.NodeName != "" {
			q.note("its node must confirm the deletion: kubectl cinder why node/%s", pod.Spec.NodeName)
		}
	case pod.Status.Phase == corev1.PodRunning:
		q.because("it runs on node %s, so its volumes are mounted", pod.Spec.NodeName)
		if ready := conditionOf(pod, corev1.PodReady); ready != nil && ready.Status != corev1.ConditionTrue {
			q.note("it has not been ready since %s, which its node may cause: kubectl cinder why node/%s", at(ready.LastTransitionTime.Time), pod.Spec.NodeName)
		}
	case len(claims) == 0:
		q.because("it uses no claim, so no volume is in its way")
	}
	if condition := conditionOf(pod, corev1.PodScheduled); condition != nil && condition.Status == corev1.ConditionFalse {
		q.because("it has had no node since %s: %s: %s", at(condition.LastTransitionTime.Time), condition.Reason, condition.Message)
	}
	for _, claim := range claims {
		q.explainClaimOf(ctx, pod, claim)
	}
	q.addEvents(ctx, "Pod", q.Namespace, q.Name, pod.UID)
	return nil
}

// explainClaimOf says what one claim of a pod waits for.
func (q *inquiry) explainClaimOf(ctx context.Context, pod *corev1.Pod, used claimOfPod) {
	name := used.name
	claim, err := q.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("claim %s does not exist", name)
		return
	case err != nil:
		q.note("claim %s cannot be read: %s", name, err)
		return
	case used.ephemeral != "" && !metav1.IsControlledBy(claim, pod):
		q.because("claim %s was not made for it, but has the name that the claim of its ephemeral volume %s would have", name, used.ephemeral)
		return
	case claim.Status.Phase == corev1.ClaimLost:
		q.because("claim %s has lost its volume: kubectl cinder why %s -n %s", name, name, pod.Namespace)
		return
	case claim.Status.Phase != corev1.ClaimBound:
		q.because("claim %s has no volume yet: kubectl cinder why %s -n %s", name, name, pod.Namespace)
		return
	}
	pv, err := q.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("PersistentVolume %s of claim %s does not exist", claim.Spec.VolumeName, name)
	case err != nil:
		q.note("PersistentVolume %s of claim %s cannot be read: %s", claim.Spec.VolumeName, name, err)
	case !objects.IsOurs(pv):
		q.note("PersistentVolume %s of claim %s was made by another provisioner", pv.Name, name)
	case pod.Spec.NodeName != "" && objects.IsCSI(pv):
		q.explainAttachmentFor(ctx, pod, name, pv)
	default:
		q.note("claim %s is bound to PersistentVolume %s", name, pv.Name)
	}
}

// explainAttachmentFor says whether a volume is attached to the pod's node.
func (q *inquiry) explainAttachmentFor(ctx context.Context, pod *corev1.Pod, claim string, pv *corev1.PersistentVolume) {
	attachments, err := q.attachments(ctx, pv.Name, "")
	if err != nil {
		q.note("where the volume of claim %s is attached cannot be read: %s", claim, err)
		return
	}
	here := false
	for i := range attachments {
		of := &attachments[i]
		here = here || of.Spec.NodeName == pod.Spec.NodeName
		state := describeAttachment(of)
		switch {
		case of.Spec.NodeName == pod.Spec.NodeName && state.settled:
			q.note("the volume of claim %s %s", claim, state.text)
		case of.Spec.NodeName == pod.Spec.NodeName:
			q.because("the volume of claim %s %s", claim, state.text)
		default:
			q.note("the volume of claim %s %s: kubectl cinder why volumeattachment/%s", claim, state.text, of.Name)
		}
	}
	if !here && !objects.IsFinished(pod) && pod.DeletionTimestamp == nil {
		q.because("the volume of claim %s is not attached to node %s: kube-controller-manager has not asked for it yet, or waits until another node has let go", claim, pod.Spec.NodeName)
	}
}

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}

// claimOfPod is a claim that a pod names, or that is made for its ephemeral volume.
type claimOfPod struct{ name, ephemeral string }

func claimsOf(pod *corev1.Pod) (claims []claimOfPod) {
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			claims = append(claims, claimOfPod{name: volume.PersistentVolumeClaim.ClaimName})
		case volume.Ephemeral != nil:
			claims = append(claims, claimOfPod{pod.Name + "-" + volume.Name, volume.Name})
		}
	}
	return claims
}
