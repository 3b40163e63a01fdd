package objects

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// PVNameOf returns the library's name for the PersistentVolume of a claim.
func PVNameOf(claim *corev1.PersistentVolumeClaim) string { return PVNameFor(string(claim.UID)) }

// PVNameFor returns the name of a claim's own PersistentVolume.
func PVNameFor(claimUID string) string { return PVNamePrefix + claimUID }

// PVNamePrefix is the prefix that the provisioning library uses.
const PVNamePrefix = "pvc-"

// RequestOf describes a claim to the policy. The class is nil if it does not exist. A
// VolumeAttributesClass counts as missing until the caller has looked it up.
func RequestOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, namespaceLabels map[string]string) policy.Request {
	request := policy.Request{
		Namespace:       claim.Namespace,
		NamespaceLabels: namespaceLabels,
		Claim:           claim.Name,
		StorageClass:    ClassName(claim),
		VolumeMode:      policy.Filesystem,
		Attributes:      admission.AttributesOf(claim),
	}
	if class != nil {
		request.StorageClass, request.Parameters = class.Name, class.Parameters
		request.Topologies = admission.ClassOf(class).Topologies
		request.Driver = DriverOf(class)
	}
	if IsBlock(claim) {
		request.VolumeMode = policy.Block
	}
	if size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		request.Bytes = policy.Bytes(size)
	}
	if limit, ok := claim.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
		request.LimitBytes = policy.Bytes(limit)
	}
	return request
}

// RequestToHold describes, for the policy's DecideHolder, a claim that a PersistentVolume
// is bound to, regardless of what the claim requests.
func RequestToHold(namespace, claim string, namespaceLabels map[string]string, pv *corev1.PersistentVolume) policy.Request {
	request := policy.Request{
		Namespace: namespace, NamespaceLabels: namespaceLabels, Claim: claim, StorageClass: pv.Spec.StorageClassName,
		VolumeMode: policy.Filesystem, Bytes: policy.Bytes(pv.Spec.Capacity[corev1.ResourceStorage]),
	}
	if IsBlockVolume(pv) {
		request.VolumeMode = policy.Block
	}
	return request
}

// ProvisionerOf returns the provisioner that is to serve the claim: the PersistentVolume
// controller names one after it has found no suitable PersistentVolume, and an admission
// policy, or the claim's author, may do so before.
//
// See docs/decisions.md, "The provisioning library and events".
func ProvisionerOf(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[AnnotationStorageProvisioner]; ok {
		return name
	}
	return claim.Annotations[AnnotationBetaStorageProvisioner]
}

// ClassName returns the claim's StorageClass; a claim may have none.
func ClassName(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// IsBlock reports whether the claim requests a raw block volume.
func IsBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// IsFinished reports whether a pod's containers have ended for good.
func IsFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Uses reports whether a pod uses a claim, or will once it has a node.
func Uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return !IsFinished(pod) && NamesClaim(pod, claim)
}

// NamesClaim reports whether a pod uses a claim, will, or has.
func NamesClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name ||
			v.Ephemeral != nil && pod.Name+"-"+v.Name == claim.Name && metav1.IsControlledBy(claim, pod)
	})
}

// BoundElsewhere reports whether a claim uses a PersistentVolume that was not created for
// it, so it needs none of its own.
func BoundElsewhere(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && claim.Spec.VolumeName != PVNameOf(claim)
}

// ClaimOf reads from the API server the claim that a stamp names as its volume's holder.
// It returns nil if the claim is gone.
func ClaimOf(ctx context.Context, client kubernetes.Interface, stamp stamps.Volume) (*corev1.PersistentVolumeClaim, error) {
	claim, err := client.CoreV1().PersistentVolumeClaims(stamp.Namespace).Get(ctx, stamp.Claim, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && string(claim.UID) != stamp.Holder() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether claim %s/%s exists: %w", stamp.Namespace, stamp.Claim, err)
	}
	return claim, nil
}

// IsForeign reports whether a PersistentVolume belongs to another provisioner. One that
// names no provisioner may be ours.
func IsForeign(pv *corev1.PersistentVolume, provisionerName string) bool {
	by := pv.Annotations[AnnotationProvisionedBy]
	return !IsOurs(pv) && by != "" && by != provisionerName
}
