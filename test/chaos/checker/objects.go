package checker

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// PVOf reads an object as operators read it.
func PVOf(pv *corev1.PersistentVolume) PV {
	annotation := func(name string) string { return pv.Annotations[policy.StampPrefix+name] }
	out := PV{
		UID:      string(pv.UID),
		Name:     pv.Name,
		ClaimUID: annotation("claim-uid"),
		VolumeID: annotation("volume-id"),
		Created:  pv.CreationTimestamp.Time,
		Retain:   pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain,
		Secret:   annotation("secret"),

		ReboundTo: annotation("rebound-to"),
		Tenant:    annotation("tenant"),

		Attachment: annotation("attachment-id"),
		Deleting:   pv.DeletionTimestamp != nil,
		Place:      annotation("project-id"),
		GiB:        int(pv.Spec.Capacity.Storage().Value() >> 30),
	}
	if ref := pv.Spec.ClaimRef; ref != nil {
		out.Holder = string(ref.UID)
	}
	if iscsi := pv.Spec.ISCSI; iscsi != nil {
		out.Target = iscsi.IQN
		if iscsi.SecretRef != nil {
			out.Secret = iscsi.SecretRef.Name
		}
	}
	if driver := pv.Spec.CSI; driver != nil {
		out.CSI = true
		if driver.NodeStageSecretRef != nil {
			out.Secret = driver.NodeStageSecretRef.Name
		}
	}
	return out
}
