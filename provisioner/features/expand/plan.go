package expand

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// AnnotationGrown holds the volume's size. An operator writes it on a claim after
// growing its filesystem on the node.
const AnnotationGrown = objects.AnnotationFilesystemGrown

// action is the next step of an expansion.
type action int

const (
	nothing  action = iota
	extend          // the volume is smaller than the claim asks for
	finish          // nothing is left but the claim's status
	awaitFS         // the volume has its size, and its filesystem is to follow
	refuseFS        // an annotation says that the filesystem has grown to another size
)

// wants reports whether a claim that is bound to a volume asks for more than it has. It
// uses only fields that the caches keep.
func wants(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	if claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound || pv.DeletionTimestamp != nil ||
		pv.Status.Phase != corev1.VolumeBound || ref == nil || ref.UID != claim.UID || claim.Spec.VolumeName != pv.Name {
		return false
	}
	wanted := requested(claim)
	return wanted.Cmp(storage(claim.Status.Capacity)) > 0 || wanted.Cmp(storage(pv.Spec.Capacity)) > 0
}

// plan derives the next step for a claim that wants more from what both objects say.
func plan(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) action {
	if !wants(claim, pv) {
		return nothing
	}
	capacity := storage(pv.Spec.Capacity)
	block := objects.IsBlock(claim)
	switch wanted := requested(claim); {
	case wanted.Cmp(capacity) > 0:
		// Kubelet grows a filesystem to the size that the PersistentVolume has. That
		// size stays while kubelet may be growing it. An operator looks at the device
		// instead.
		if isOnNode(claim) && !block && grownBy(pv) == byKubelet && !isGrown(claim, pv) {
			return nothing
		}
		return extend
	case block || isGrown(claim, pv):
		return finish
	case isRefused(claim, pv):
		return refuseFS
	}
	return awaitFS
}

// isOnNode reports whether only the filesystem is still to grow, or is growing.
func isOnNode(claim *corev1.PersistentVolumeClaim) bool {
	status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	return status == corev1.PersistentVolumeClaimNodeResizePending || status == corev1.PersistentVolumeClaimNodeResizeInProgress
}

// requested returns the size that a claim asks for.
func requested(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return storage(claim.Spec.Resources.Requests)
}

func storage(list corev1.ResourceList) resource.Quantity { return list[corev1.ResourceStorage] }

// sizeOf returns the size of a PersistentVolume in GiB, rounded up as Cinder does.
func sizeOf(q resource.Quantity) int64 {
	const gib = 1 << 30
	return q.Value()/gib + min(q.Value()%gib, 1)
}

// isGrown reports whether an operator has noted that the filesystem has the size of the
// volume.
func isGrown(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	said, err := resource.ParseQuantity(claim.Annotations[AnnotationGrown])
	return err == nil && said.Cmp(storage(pv.Spec.Capacity)) == 0
}

// isRefused reports whether an operator has noted a filesystem size that the volume
// does not have. A note about an earlier growth stays on the claim and is still true.
func isRefused(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	text := claim.Annotations[AnnotationGrown]
	if text == "" || isGrown(claim, pv) {
		return false
	}
	said, err := resource.ParseQuantity(text)
	return err != nil || said.Sign() <= 0 || said.Cmp(storage(claim.Status.Capacity)) > 0
}
