package objects

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Two claims of the CSI driver can swap their volumes. The handle of a PersistentVolume
// never changes, and neither do its attributes, so from then on the handle is only the
// name by which Kubernetes and the nodes know the volume. Where the volume is, and what
// nodes must know about it, is what the PersistentVolume records.

// AnnotationSwapped is on a PersistentVolume whose volume is not, or not necessarily, the
// one that its handle names. It holds a Swapped as JSON.
const AnnotationSwapped = Prefix + "swapped"

// Swapped replaces the attributes of a PersistentVolume that got another volume.
type Swapped struct {
	// Handle is that of the PersistentVolume. A copy of the annotation on another
	// PersistentVolume does not count.
	Handle string `json:"handle"`
	// With are the PersistentVolumes with which it has swapped, the last one last, without
	// those with which it has swapped back.
	With []string `json:"with,omitempty"`
	wire.Volume
}

// Last returns the PersistentVolume with which the last swap was; empty if it was swapped
// back.
func (s *Swapped) Last() string {
	if len(s.With) == 0 {
		return ""
	}
	return s.With[len(s.With)-1]
}

// SwappedOf returns the record of a swap; nil if the volume is the one that the handle
// names. A record that cannot be read makes the PersistentVolume a damaged one.
func SwappedOf(pv *corev1.PersistentVolume) (*Swapped, error) {
	text := pv.Annotations[AnnotationSwapped]
	if text == "" {
		return nil, nil
	}
	var s Swapped
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, Damaged(pv, AnnotationSwapped, "is not JSON")
	}
	if pv.Spec.CSI == nil || s.Handle != pv.Spec.CSI.VolumeHandle {
		return nil, Damaged(pv, AnnotationSwapped, "was copied from another PersistentVolume")
	}
	return &s, nil
}

// IsSwapped reports whether a PersistentVolume got another volume.
func IsSwapped(pv *corev1.PersistentVolume) bool { return pv.Annotations[AnnotationSwapped] != "" }

// VolumeContextOf returns what nodes must know about the volume of a PersistentVolume of
// the driver. Of a volume whose record cannot be read, nothing may be formatted.
func VolumeContextOf(pv *corev1.PersistentVolume) wire.Volume {
	context := wire.ParseVolumeContext(pv.Spec.CSI.VolumeAttributes)
	swapped, err := SwappedOf(pv)
	switch {
	case err != nil:
		context.FilesystemUUIDs, context.NeverFormat = nil, true
	case swapped != nil:
		context = swapped.Volume
	}
	return context
}

// LocationOf returns where the volume of a PersistentVolume of the driver is. It is what
// the handle says unless the volume was swapped.
func LocationOf(pv *corev1.PersistentVolume) (wire.Handle, error) {
	recorded := wire.Handle{Backend: pv.Annotations[AnnotationBackend], ID: pv.Annotations[AnnotationVolume]}
	if !IsOurs(pv) {
		return wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
	}
	swapped, err := SwappedOf(pv)
	if err == nil && swapped == nil && recorded.String() != pv.Spec.CSI.VolumeHandle {
		err = Damaged(pv, AnnotationVolume, fmt.Sprintf("and %s make the handle %q, but spec.csi.volumeHandle has %q", AnnotationBackend, recorded, pv.Spec.CSI.VolumeHandle))
	}
	return recorded, err
}
