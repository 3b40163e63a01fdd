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
	case isFinished(pod):
		q.because("it has ended, so it uses no volume")
	case pod.DeletionTimestamp != nil:
		q.because("it is being deleted since %s, which its node must confirm: kubectl cinder why node/%s", at(pod.DeletionTimestamp.Time), pod.Spec.NodeName)
	case pod.Status.Phase == corev1.PodRunning:
		q.because("it runs on node %s, so its volumes are mounted", pod.Spec.NodeName)
	case len(claims) == 0:
		q.because("it uses no claim, so no volume is in its way")
	}
	if condition := conditionOf(pod, corev1.PodScheduled); condition != nil && condition.Status == corev1.ConditionFalse {
		q.because("no node has been found for it since %s: %s", at(condition.LastTransitionTime.Time), condition.Message)
	}
	for _, claim := range claims {
		q.explainClaimOf(ctx, pod, claim)
	}
	q.addEvents(ctx, "Pod", q.Namespace, q.Name, pod.UID)
	return nil
}

// explainClaimOf says what one claim of a pod waits for.
func (q *inquiry) explainClaimOf(ctx context.Context, pod *corev1.Pod, name string) {
	claim, err := q.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("claim %s does not exist", name)
		return
	case err != nil:
		q.note("claim %s cannot be read: %s", name, err)
		return
	case claim.Status.Phase != corev1.ClaimBound:
		q.because("claim %s has no volume yet: kubectl cinder why %s -n %s", name, name, pod.Namespace)
		return
	}
	pv, err := q.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
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
	if !here && !isFinished(pod) {
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

// claimsOf returns the names of a pod's claims.
func claimsOf(pod *corev1.Pod) (names []string) {
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			names = append(names, volume.PersistentVolumeClaim.ClaimName)
		case volume.Ephemeral != nil:
			names = append(names, pod.Name+"-"+volume.Name)
		}
	}
	return names
}

func uses(pod *corev1.Pod, claim string) bool { return slices.Contains(claimsOf(pod), claim) }

func isFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
