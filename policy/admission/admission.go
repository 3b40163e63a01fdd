// Package admission decides which claims the provisioner refuses before it consults any
// policy, and which parts of a StorageClass matter to a policy. The running program and
// policy explain share it, so that explanations match reality.
package admission

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Annotations with the node that the scheduler selected for a claim's pod.
const (
	SelectedNodeAnnotation      = "volume.kubernetes.io/selected-node"
	AlphaSelectedNodeAnnotation = "volume.alpha.kubernetes.io/selected-node"
)

// ImportAnnotation is the annotation by which a claim's author requests an existing
// Cinder volume: its ID or its name.
const ImportAnnotation = "standalone-cinder.openstack.org/import-volume"

// ImportOf returns the volume that a claim requests, and whether it requests one. A claim
// served by a populator requests none, regardless of its annotations.
func ImportOf(claim *corev1.PersistentVolumeClaim) (volume string, asks bool) {
	volume, asks = claim.Annotations[ImportAnnotation]
	return volume, asks && PopulatorOf(claim) == ""
}

// The reasons of a refusal.
const (
	UnsupportedDataSource policy.Reason = "UnsupportedDataSource"
	UnsupportedSelector   policy.Reason = "UnsupportedSelector"
	UnsupportedAccessMode policy.Reason = "UnsupportedAccessMode"
)

// Refusal explains why a claim is denied if it asks for something that this
// program cannot honor with any Cinder volume; otherwise it returns nil. Such a
// claim must not get an ordinary, empty volume instead.
//
// parameters are those of the claim's StorageClass.
func Refusal(claim *corev1.PersistentVolumeClaim, parameters map[string]string) *policy.Denial {
	spec := claim.Spec
	if _, refused := DataSourceOf(claim, parameters); refused != nil {
		return refused
	}
	if spec.Selector != nil {
		return &policy.Denial{
			Reason:  UnsupportedSelector,
			Message: "spec.selector cannot be honored for a volume that is yet to be created; remove the selector, or bind an existing PersistentVolume with spec.volumeName",
		}
	}
	block := spec.VolumeMode != nil && *spec.VolumeMode == corev1.PersistentVolumeBlock
	if mistake := mapping.AccessModeMistake(spec.AccessModes, block); mistake != "" {
		return &policy.Denial{Reason: UnsupportedAccessMode, Message: mistake}
	}
	return nil
}

// SelectedNode returns the name of the node that the scheduler selected for the
// claim's pod; empty if it selected none.
func SelectedNode(claim *corev1.PersistentVolumeClaim) string {
	if name := claim.Annotations[SelectedNodeAnnotation]; name != "" {
		return name
	}
	return claim.Annotations[AlphaSelectedNodeAnnotation]
}

// AttributesOf returns the VolumeAttributesClass that a claim names, without checking
// whether it exists. It is nil if the claim names none.
//
// Kubernetes binds a claim only to a PersistentVolume with the same class
// (FindMatchingVolume in k8s.io/component-helpers/storage/volume), and rejects a
// PersistentVolume with a native source and a class.
func AttributesOf(claim *corev1.PersistentVolumeClaim) *policy.AttributesClass {
	if name := claim.Spec.VolumeAttributesClassName; name != nil && *name != "" {
		return &policy.AttributesClass{Name: *name, Missing: true}
	}
	return nil
}

// AttributesClassOf describes a VolumeAttributesClass to the policy.
func AttributesClassOf(class *storagev1.VolumeAttributesClass) *policy.AttributesClass {
	return &policy.AttributesClass{Name: class.Name, Driver: class.DriverName, Parameters: class.Parameters}
}

// ClassOf describes a StorageClass to the policy.
func ClassOf(class *storagev1.StorageClass) policy.StorageClass {
	described := policy.StorageClass{
		Name:        class.Name,
		WaitsForPod: class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer,
		Expandable:  class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion,
	}
	for _, term := range class.AllowedTopologies {
		topology := policy.Topology{}
		for _, expression := range term.MatchLabelExpressions {
			topology[expression.Key] = expression.Values
		}
		described.Topologies = append(described.Topologies, topology)
	}
	return described
}
