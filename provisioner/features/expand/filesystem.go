package expand

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// grower says who grows the filesystem of a volume.
type grower int

const (
	byOperator grower = iota
	byKubelet
)

// grownBy returns who grows the filesystem of a PersistentVolume. Kubelet can do it
// only for CSI drivers and FlexVolume drivers.
func grownBy(pv *corev1.PersistentVolume) grower {
	if pv.Spec.CSI != nil || pv.Spec.FlexVolume != nil {
		return byKubelet
	}
	return byOperator
}

// howToGrow says who grows the filesystem, and how. The text is the message of a
// condition and of an event, so it must fit into the 1024 bytes of an event.
func howToGrow(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) string {
	size := storage(pv.Spec.Capacity)
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		return fmt.Sprintf("the volume has %s, and the kubelet and CSI driver %s grow its filesystem when a pod uses it; if the driver cannot, %s",
			size.String(), source.CSI.Driver, byHand(claim, size))
	case source.FlexVolume != nil:
		return fmt.Sprintf("the volume has %s, and the kubelet and FlexVolume driver %s grow its filesystem when a pod uses it; if the driver cannot, %s",
			size.String(), source.FlexVolume.Driver, byHand(claim, size))
	}
	return fmt.Sprintf("the volume has %s, but the kubelet does not grow the filesystem of such a volume; run kubectl cinder grow, or on the node where it is mounted %s, then %s",
		size.String(), rescan(pv), byHand(claim, size))
}

// rescan returns the command that makes a node see the new size of its device.
func rescan(pv *corev1.PersistentVolume) string {
	const device = "echo 1 > /sys/class/block/DEVICE/device/rescan"
	const multipath = "if it has several paths, multipathd resize map MAP"
	if iscsi := pv.Spec.ISCSI; iscsi != nil {
		return fmt.Sprintf("iscsiadm -m node -T %s -R (or, for each device, %s), and %s", iscsi.IQN, device, multipath)
	}
	return fmt.Sprintf("%s for each device, and %s", device, multipath)
}

// byHand returns what an operator must do once the device has its size.
func byHand(claim *corev1.PersistentVolumeClaim, size resource.Quantity) string {
	return fmt.Sprintf("grow the filesystem (resize2fs DEVICE, or xfs_growfs MOUNTPOINT), and record that: kubectl annotate pvc -n %s %s --overwrite %s=%s",
		claim.Namespace, claim.Name, AnnotationGrown, size.String())
}

// seenAfterRescan says when a node sees the new size of a raw block volume.
func seenAfterRescan(pv *corev1.PersistentVolume) string {
	size := storage(pv.Spec.Capacity)
	if grownBy(pv) == byKubelet {
		return fmt.Sprintf("the volume has %s", size.String())
	}
	return fmt.Sprintf("the volume has %s; a node that uses it shows the new size after %s", size.String(), rescan(pv))
}
