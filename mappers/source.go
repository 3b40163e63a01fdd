package mappers

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Limits of the CSI specification (section "Size Limits"), which drivers may
// rely on, and of Kubernetes' validation of driver names.
const (
	longestCSIDriver     = 63
	longestVolumeHandle  = 128
	largestCSIAttributes = 4096
)

var (
	csiDriverPattern  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	flexDriverPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

// checkSource refuses what the API server or a driver would refuse later, when
// nobody looks at the claim any more. Native sources are made valid by their
// mappers; of the others the operator has written the fields.
func checkSource(source corev1.PersistentVolumeSource) error {
	switch {
	case source.CSI != nil:
		return checkCSI(source.CSI)
	case source.FlexVolume != nil:
		return checkFlexVolume(source.FlexVolume)
	}
	return nil
}

func checkCSI(csi *corev1.CSIPersistentVolumeSource) error {
	if len(csi.Driver) > longestCSIDriver || !csiDriverPattern.MatchString(strings.ToLower(csi.Driver)) {
		return refuse(InvalidMapping, "driver %q cannot be the name of a CSI driver; correct the backend's mapping", csi.Driver)
	}
	switch length := len(csi.VolumeHandle); {
	case length == 0:
		return refuse(InvalidMapping, "volumeHandle comes out empty, but it names the volume to the CSI driver; correct the backend's mapping")
	case length > longestVolumeHandle:
		return refuse(InvalidMapping, "volumeHandle is %d bytes long, but CSI allows %d; use a shorter name of the volume in the backend's mapping", length, longestVolumeHandle)
	}
	size := 0
	for key, value := range csi.VolumeAttributes {
		size += len(key) + len(value)
	}
	if size > largestCSIAttributes {
		return refuse(InvalidMapping, "the volume attributes are %d bytes in all, but CSI allows %d; shorten the attributes in the backend's mapping", size, largestCSIAttributes)
	}
	for name, reference := range map[string]*corev1.SecretReference{
		"nodeStageSecretRef": csi.NodeStageSecretRef, "nodePublishSecretRef": csi.NodePublishSecretRef, "nodeExpandSecretRef": csi.NodeExpandSecretRef,
		"controllerPublishSecretRef": csi.ControllerPublishSecretRef, "controllerExpandSecretRef": csi.ControllerExpandSecretRef,
	} {
		if err := checkReference(name, reference); err != nil {
			return err
		}
	}
	return nil
}

func checkFlexVolume(flex *corev1.FlexPersistentVolumeSource) error {
	if !flexDriverPattern.MatchString(flex.Driver) {
		return refuse(InvalidMapping, "driver %q cannot be the name of a FlexVolume driver, which is vendor/driver; correct the backend's mapping", flex.Driver)
	}
	for key := range flex.Options {
		if reservedOption(key) {
			return refuse(InvalidMapping, "option %q is in a namespace reserved for Kubernetes; rename it in the backend's mapping", key)
		}
	}
	return checkReference("secretRef", flex.SecretRef)
}

// reservedOption follows validateFlexPersistentVolumeSource of Kubernetes.
func reservedOption(key string) bool {
	namespace, _, _ := strings.Cut(key, "/")
	namespace = "." + strings.ToLower(namespace)
	return slices.ContainsFunc([]string{".kubernetes.io", ".k8s.io"}, func(suffix string) bool { return strings.HasSuffix(namespace, suffix) })
}

func checkReference(name string, reference *corev1.SecretReference) error {
	if reference != nil && (reference.Name == "" || reference.Namespace == "") {
		return refuse(InvalidMapping, "%s needs a name and a namespace; complete it in the backend's mapping", name)
	}
	return nil
}
