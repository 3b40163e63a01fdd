package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// importedPrefix begins the name of every imported volume's PersistentVolume. It differs
// from the library's prefix, so that rules about the library's unfinished work do not
// apply to such volumes.
const importedPrefix = "imported-"

// ImportedPVName returns the name of an imported volume's PersistentVolume. It is derived
// only from the volume's ID, so a second object for the same volume cannot be created.
func ImportedPVName(volumeID string) string { return importedPrefix + volumeID }

// AnnotationImported holds the volume's ID. It is written on a claim when the
// PersistentVolume of its imported volume exists.
const AnnotationImported = Prefix + "imported"

// NoteImported writes AnnotationImported. Kubernetes reconsiders a claim only when the
// claim itself changes, not when the PersistentVolume that it names appears.
func NoteImported(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, volumeID string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, "annotations": map[string]string{AnnotationImported: volumeID}}})
	if err != nil {
		// Maps of strings always encode.
		panic(err)
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot annotate claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// AnnotationImport is what a tenant writes on a claim for an existing Cinder volume: its
// ID or name.
const AnnotationImport = admission.ImportAnnotation

// AsksForImport reports whether a claim's author requests an existing Cinder volume.
func AsksForImport(claim *corev1.PersistentVolumeClaim) bool {
	_, asks := admission.ImportOf(claim)
	return asks
}

// HasOwnPV reports whether a claim uses, or waits for, a PersistentVolume created for it,
// by the library or an import.
func HasOwnPV(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == PVNameOf(claim) || strings.HasPrefix(claim.Spec.VolumeName, importedPrefix)
}

// AwaitsImport reports whether a claim may be waiting for an import's PersistentVolume.
func AwaitsImport(claim *corev1.PersistentVolumeClaim) bool {
	return strings.HasPrefix(claim.Spec.VolumeName, importedPrefix) && claim.Status.Phase != corev1.ClaimBound
}

// IsPVNameOf reports whether a stamp with this claim and volume names the
// PersistentVolume that this program creates for them.
func IsPVNameOf(pv, claimUID, volumeID string) bool {
	return pv == PVNameFor(claimUID) || pv == ImportedPVName(volumeID)
}

// Names reports whether a PersistentVolume, of any provisioner, names a volume by its ID.
func Names(pv *corev1.PersistentVolume, volumeID string) bool {
	return slices.Contains(VolumeIDs(pv), volumeID)
}

// VolumeIDs lists possible Cinder volume IDs in a PersistentVolume of any provisioner.
func VolumeIDs(pv *corev1.PersistentVolume) []string {
	ids := []string{volumeOf(pv)}
	if csi := pv.Spec.CSI; csi != nil {
		ids = append(ids, csi.VolumeHandle)
	}
	if cinder := pv.Spec.Cinder; cinder != nil {
		ids = append(ids, cinder.VolumeID)
	}
	return slices.DeleteFunc(ids, func(id string) bool { return id == "" })
}
