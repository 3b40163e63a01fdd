package mapping

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// AccessModeMistake says which access mode no source of any protocol can honor;
// it is empty if there is none.
func AccessModeMistake(modes []corev1.PersistentVolumeAccessMode, block bool) string {
	for _, mode := range modes {
		switch mode {
		case corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteOncePod:
		case corev1.ReadWriteMany:
			if !block {
				return "access mode ReadWriteMany is for volumeMode Block only, because a Cinder volume is a disk, and its filesystem breaks when two nodes mount it for writing; use ReadWriteOnce or ReadOnlyMany"
			}
		default:
			return fmt.Sprintf("access mode %q is unknown; use ReadWriteOnce or ReadOnlyMany", mode)
		}
	}
	return ""
}
