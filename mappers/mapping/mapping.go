// Package mapping defines and checks what a policy may decide about the connections of
// one protocol. The policy checks mappings with it when a file is read, and the mappers
// apply them. It imports only mappers/template from this module. Callers pass in what is
// known about each protocol.
package mapping

import (
	corev1 "k8s.io/api/core/v1"
)

// Form is the kind of PersistentVolumeSource that a connection becomes.
type Form string

const (
	// Default leaves the choice to the protocol's mapper. A policy always chooses.
	Default Form = ""
	// CSI is a pre-provisioned volume of a CSI driver.
	CSI Form = "csi"
	// Native is a source that kubelet mounts by itself.
	Native Form = "native"
	// FlexVolume is a volume of a FlexVolume driver on the nodes.
	FlexVolume Form = "flexVolume"
)

// Forms lists the forms that a policy may choose.
func Forms() []Form { return []Form{CSI, Native, FlexVolume} }

// Mapping is an operator's settings for one protocol of one backend. The zero Mapping
// gives the protocol's defaults. Fields called templates are in the language of the
// package mappers/template.
type Mapping struct {
	// As is the form of the source.
	As Form `json:"as"`
	// Driver is the name of the CSI or FlexVolume driver.
	Driver string `json:"driver"`
	// VolumeHandle is the template of a CSI source's volumeHandle. If it is empty,
	// Cinder's volume ID is used, and rbd is mapped to ceph-csi.
	VolumeHandle string `json:"volumeHandle"`
	// FSType replaces the filesystem of the claim's rule.
	FSType string `json:"fsType"`
	// ReadOnly forbids writing.
	ReadOnly bool `json:"readOnly"`
	// Discard adds the mount option discard if Cinder says that the array reclaims
	// discarded blocks.
	Discard bool `json:"discard"`
	// Attributes are templates for the volume attributes of a CSI source, Options for the
	// options of a FlexVolume source.
	Attributes map[string]string `json:"attributes"`
	Options    map[string]string `json:"options"`
	// Secret is created for each volume.
	Secret *Secret `json:"secret"`
	// Secrets that the operator keeps for a CSI driver.
	NodeStageSecretRef         *corev1.SecretReference `json:"nodeStageSecretRef"`
	NodePublishSecretRef       *corev1.SecretReference `json:"nodePublishSecretRef"`
	NodeExpandSecretRef        *corev1.SecretReference `json:"nodeExpandSecretRef"`
	ControllerPublishSecretRef *corev1.SecretReference `json:"controllerPublishSecretRef"`
	ControllerExpandSecretRef  *corev1.SecretReference `json:"controllerExpandSecretRef"`
	// SecretRef is a Secret that the operator keeps for a FlexVolume source or
	// the native source of rbd.
	SecretRef *corev1.SecretReference `json:"secretRef"`
	// ClusterID is ceph-csi's name for the Ceph cluster, a key of its
	// ceph-csi-config ConfigMap.
	ClusterID string `json:"clusterID"`
	// ClusterName is Cinder's name for the mapping's Ceph cluster. Connections to another
	// are refused; by default none are.
	ClusterName string `json:"clusterName"`
	// ImageFeatures are RBD image features as ceph-csi spells them, separated
	// by commas.
	ImageFeatures string `json:"imageFeatures"`
	// Interface is the open-iscsi interface of a native iscsi source.
	Interface string `json:"interface"`
	// OmitInitiatorName leaves the initiator out of a native iscsi source. Nodes
	// then log in under their own InitiatorName, which must be the connector's.
	OmitInitiatorName bool `json:"omitInitiatorName"`
	// WWID is the template of a page-83 identifier, by which nodes find the disk of a
	// native fc source, instead of by target names and LUN.
	WWID string `json:"wwid"`
}

// Secret describes the Secret created for each volume, the only place for credentials of
// its connection.
type Secret struct {
	// Type is the type of the Secret. The default is Opaque, or the driver for a
	// FlexVolume, since kubelet gives it no other Secrets.
	Type string `json:"type"`
	// Data holds a template for each key.
	Data map[string]string `json:"data"`
	// References are the keys of a CSI source that refer to the Secret. The
	// default is nodeStageSecretRef.
	References []string `json:"references"`
}

// SecretReferenceKeys lists the keys of a CSI source that refer to Secrets.
func SecretReferenceKeys() []string {
	return []string{"nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef", "controllerPublishSecretRef", "controllerExpandSecretRef"}
}

// secretReferences returns the Secrets of a CSI source by their keys.
func (m Mapping) secretReferences() map[string]*corev1.SecretReference {
	return map[string]*corev1.SecretReference{
		"nodeStageSecretRef": m.NodeStageSecretRef, "nodePublishSecretRef": m.NodePublishSecretRef, "nodeExpandSecretRef": m.NodeExpandSecretRef,
		"controllerPublishSecretRef": m.ControllerPublishSecretRef, "controllerExpandSecretRef": m.ControllerExpandSecretRef,
	}
}
