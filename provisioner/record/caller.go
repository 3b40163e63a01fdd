package record

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A trusted caller of the CSI driver names volumes and snapshots by any text of 128
// bytes, which is no name in Kubernetes. What is made for it has a name made of the
// text, and the text itself in an annotation.

// NameForCaller is the name of the claim, or the VolumeSnapshot, for what a trusted
// caller names so.
func NameForCaller(named string) string {
	sum := sha256.Sum256([]byte(named))
	return "csi-" + hex.EncodeToString(sum[:16])
}

// IsForCaller reports whether a claim or a VolumeSnapshot was made for a trusted caller.
// The annotation alone says little: anybody may copy it from one object to another. So
// the object's own name must follow from it.
func IsForCaller(object metav1.Object) bool {
	for _, key := range []string{AnnotationVolumeName, AnnotationSnapshotName} {
		if named := object.GetAnnotations()[key]; named != "" && object.GetName() == NameForCaller(named) {
			return true
		}
	}
	return false
}
