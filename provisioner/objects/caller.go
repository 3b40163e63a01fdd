package objects

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A trusted caller of the CSI driver may name volumes and snapshots with any text of up
// to 128 bytes, which may not be a valid Kubernetes name. So the object's name is derived
// from the text, and an annotation holds the text itself.

// NameForCaller returns the name of a trusted caller's claim or VolumeSnapshot, from the
// name that the caller uses.
func NameForCaller(named string) string {
	sum := sha256.Sum256([]byte(named))
	return "csi-" + hex.EncodeToString(sum[:16])
}

// IsForCaller reports whether a claim or a VolumeSnapshot was made for a trusted caller.
// The annotation alone proves little, because any user may copy it to another object. So
// the object's own name must be derived from it.
func IsForCaller(object metav1.Object) bool {
	for _, key := range []string{AnnotationVolumeName, AnnotationSnapshotName} {
		if named := object.GetAnnotations()[key]; named != "" && object.GetName() == NameForCaller(named) {
			return true
		}
	}
	return false
}
