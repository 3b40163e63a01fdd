package objects

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// SecretName returns the name of a PersistentVolume's own Secret.
func SecretName(pvName string) string { return pvName + "-credentials" }

// IsSecretOf reports whether this program made the Secret for the PersistentVolume.
func IsSecretOf(secret *corev1.Secret, pvName string) bool {
	return secret.Labels[LabelManagedBy] == ManagedBy && secret.Annotations[AnnotationForPV] == pvName
}

// IsSharedSecret reports whether this program created the Secret for the volumes of a
// backend of this cluster.
func IsSharedSecret(secret *corev1.Secret, backend, cluster string) bool {
	return secret.Labels[LabelManagedBy] == ManagedBy && secret.Annotations[AnnotationSharedBy] == backend && secret.Annotations[AnnotationCluster] == cluster && backend != ""
}

// UnneededKept is how long a shared Secret stays after a leader found that nothing
// needs it.
const UnneededKept = time.Hour

// UnneededSince returns when a leader found that nothing needs a shared Secret; zero if
// no leader did, or somebody has needed it since.
func UnneededSince(secret *corev1.Secret) time.Time {
	since, _ := time.Parse(time.RFC3339, secret.Annotations[AnnotationUnneededSince])
	return since
}

// RefersTo reports whether a PersistentVolume, of any provisioner, names a Secret.
func RefersTo(pv *corev1.PersistentVolume, namespace, name string) bool {
	if pv.Annotations[AnnotationSecret] == name {
		return true
	}
	source := pv.Spec.PersistentVolumeSource
	var references []*corev1.SecretReference
	if csi := source.CSI; csi != nil {
		references = append(references, csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.NodeExpandSecretRef, csi.ControllerPublishSecretRef, csi.ControllerExpandSecretRef)
	}
	if source.RBD != nil {
		references = append(references, source.RBD.SecretRef)
	}
	if source.FlexVolume != nil {
		references = append(references, source.FlexVolume.SecretRef)
	}
	return slices.ContainsFunc(references, func(r *corev1.SecretReference) bool {
		return r != nil && r.Name == name && r.Namespace == namespace
	})
}
