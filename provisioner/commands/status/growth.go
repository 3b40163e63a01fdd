package status

import corev1 "k8s.io/api/core/v1"

// isGrowing reports whether a bound claim asks for more than its pods may use.
func isGrowing(claim *corev1.PersistentVolumeClaim) bool {
	wanted, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	return claim.Status.Phase == corev1.ClaimBound && wanted.Cmp(has) > 0
}

// explainGrowth says why the volume of a bound claim is smaller than the claim asks
// for. Until the policy admits the growth, only events show anything.
func (a *whyAnswer) explainGrowth(claim *corev1.PersistentVolumeClaim) {
	wanted, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	a.note("it is bound to PersistentVolume %s, and asks to grow from %s to %s", claim.Spec.VolumeName, has.String(), wanted.String())
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimControllerResizeInProgress:
		a.because("the volume is being extended at Cinder; the last warning, if there is one, says what is in the way")
	case corev1.PersistentVolumeClaimControllerResizeInfeasible:
		a.because("Cinder refused to extend the volume: %s", messageOf(claim, corev1.PersistentVolumeClaimControllerResizeError))
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		a.because("Cinder has extended the volume, and the node must still grow what is on it: %s", messageOf(claim, corev1.PersistentVolumeClaimFileSystemResizePending))
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		a.because("Cinder has extended the volume, and the node could not grow what is on it: %s", messageOf(claim, corev1.PersistentVolumeClaimNodeResizeError))
	}
}

// messageOf returns the message of one of the claim's conditions.
func messageOf(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType) string {
	for _, condition := range claim.Status.Conditions {
		if condition.Type == kind && condition.Message != "" {
			return condition.Message
		}
	}
	return "the claim has no message about it"
}
