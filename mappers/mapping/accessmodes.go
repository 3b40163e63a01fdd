package mapping

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AccessModeMistake describes an access mode that no source of any protocol can honor; it
// is empty if there is none.
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

// ParseAccessMode reads an access mode by its short or long name, in any case.
func ParseAccessMode(name string) (mode corev1.PersistentVolumeAccessMode, ok bool) {
	for short, mode := range map[string]corev1.PersistentVolumeAccessMode{
		"RWO":  corev1.ReadWriteOnce,
		"ROX":  corev1.ReadOnlyMany,
		"RWX":  corev1.ReadWriteMany,
		"RWOP": corev1.ReadWriteOncePod,
	} {
		if strings.EqualFold(name, short) || strings.EqualFold(name, string(mode)) {
			return mode, true
		}
	}
	return "", false
}
