package mappers

import corev1 "k8s.io/api/core/v1"

// Limits of the CSI specification (section "Size Limits"), which drivers may
// rely on.
const (
	maxVolumeHandleLength = 128
	maxCSIAttributesSize  = 4096
)

// checkSource rejects what a CSI driver would reject later, when the claim is already
// bound. Mapping.Check has checked the fields that the operator wrote, but the results of
// templates are only known now.
func checkSource(source corev1.PersistentVolumeSource) error {
	csi := source.CSI
	if csi == nil {
		return nil
	}
	switch length := len(csi.VolumeHandle); {
	case length == 0:
		return refuse(InvalidMapping, "volumeHandle evaluates to an empty string, but it must identify the volume to the CSI driver; correct the backend's mapping")
	case length > maxVolumeHandleLength:
		return refuse(InvalidMapping, "volumeHandle is %d bytes long, but CSI allows %d; use a shorter name of the volume in the backend's mapping", length, maxVolumeHandleLength)
	}
	size := 0
	for key, value := range csi.VolumeAttributes {
		size += len(key) + len(value)
	}
	if size > maxCSIAttributesSize {
		return refuse(InvalidMapping, "the volume attributes are %d bytes in all, but CSI allows %d; shorten the attributes in the backend's mapping", size, maxCSIAttributesSize)
	}
	return nil
}
