package objects

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A trusted caller of the CSI driver may name volumes and snapshots with any text of up
// to 128 bytes, which may not be a valid Kubernetes name. The object that is made for
// it gets a name derived from the text, and the text itself in an annotation.

// NameForCaller returns the name of the claim or VolumeSnapshot that is made for a
// trusted caller, from the name that the caller uses.
func NameForCaller(named string) string {
	sum := sha256.Sum256([]byte(named))
	return "csi-" + hex.EncodeToString(sum[:16])
}

// IsForCaller reports whether a claim or a VolumeSnapshot was made for a trusted
// caller. The annotation alone proves little, because anybody may copy it to another
// object. So the object's own name must be derived from it.
func IsForCaller(object metav1.Object) bool {
	for _, key := range []string{AnnotationVolumeName, AnnotationSnapshotName} {
		if named := object.GetAnnotations()[key]; named != "" && object.GetName() == NameForCaller(named) {
			return true
		}
	}
	return false
}
