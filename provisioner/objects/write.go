package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Annotate writes annotations on a PersistentVolume. The UID makes the patch fail if
// another object has since taken the name.
func Annotate(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume, annotations map[string]string) error {
	return patchMetadata(ctx, client, pv.Name, map[string]any{"uid": pv.UID, "annotations": annotations})
}

// Rebind records a volume's claim and size on a PersistentVolume that has not changed
// since it was read, and returns the updated object. A capacity never shrinks.
func Rebind(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume, gib int64, annotations map[string]string) (*corev1.PersistentVolume, error) {
	changes := map[string]any{"metadata": map[string]any{"uid": pv.UID, "resourceVersion": pv.ResourceVersion, "annotations": annotations,
		"labels": pvLabels(annotations[AnnotationTenant], pv.Annotations[AnnotationBackend])}}
	if size := pv.Spec.Capacity[corev1.ResourceStorage]; size.Value() < gib<<30 {
		changes["spec"] = map[string]any{"capacity": capacity(gib)}
	}
	saved, err := patch(ctx, client, pv.Name, changes)
	if err != nil {
		return nil, fmt.Errorf("cannot record the volume's claim on PersistentVolume %s: %w", pv.Name, err)
	}
	return saved, nil
}

// NotePlace records on a PersistentVolume where its volume was found. Call it before the
// volume's removal, so that a later attempt knows that "not found" means gone.
func NotePlace(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume, at cinder.Place) error {
	if err := Annotate(ctx, client, pv, PlaceAnnotations(at)); err != nil {
		return fmt.Errorf("cannot record on PersistentVolume %s that its volume is at %s: %w", pv.Name, at, err)
	}
	return nil
}

// SetCapacity records its volume's size on a PersistentVolume that has not changed since
// it was read, and returns the updated object.
func SetCapacity(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume, gib int64) (*corev1.PersistentVolume, error) {
	grown, err := patch(ctx, client, pv.Name, map[string]any{
		"metadata": map[string]any{"uid": pv.UID, "resourceVersion": pv.ResourceVersion},
		"spec":     map[string]any{"capacity": capacity(gib)},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot record on PersistentVolume %s that its volume has %d GiB: %w", pv.Name, gib, err)
	}
	return grown, nil
}

// Hold adds this program's finalizer to a PersistentVolume that is about to be saved with
// the reclaim policy Retain. The library saves its own with it, but removes that from
// these objects as soon as it sees them, perhaps long before the volume is in use.
func Hold(pv *corev1.PersistentVolume) {
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		pv.Finalizers = append(pv.Finalizers, Finalizer)
	}
}

// AddFinalizer adds this program's finalizer to a PersistentVolume with the reclaim
// policy Retain. The library adds its own to all others. If the object has changed since
// it was cached, the request fails, and the next attempt repeats it.
func AddFinalizer(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) error {
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete || pv.DeletionTimestamp != nil || slices.Contains(pv.Finalizers, Finalizer) {
		return nil
	}
	err := patchMetadata(ctx, client, pv.Name, map[string]any{"finalizers": append(slices.Clone(pv.Finalizers), Finalizer), "resourceVersion": pv.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot add a finalizer to PersistentVolume %s: %w", pv.Name, err)
	}
	return nil
}

// RemoveFinalizer removes this program's finalizer, if present.
func RemoveFinalizer(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) error {
	if !slices.Contains(pv.Finalizers, Finalizer) {
		return nil
	}
	err := removeFinalizer(ctx, client, pv, Finalizer)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot remove the finalizer of PersistentVolume %s, whose volume is in use: %w", pv.Name, err)
	}
	return nil
}

// removeFinalizer does not depend on the cache: unlike a list of all finalizers, its patch
// cannot restore one that another program has just removed.
func removeFinalizer(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume, finalizer string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pv.UID, "$deleteFromPrimitiveList/finalizers": []string{finalizer}}})
	if err == nil {
		_, err = client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// LibraryFinalizer is the finalizer that the provisioning library adds to the
// PersistentVolumes that it saves, so that none disappears before its volume.
const LibraryFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// Delete removes a PersistentVolume whose volume is gone: first the library's finalizer,
// which the object may have although the cache does not show it, then the object, which
// stays until Kubernetes removes its own finalizer. It fails if another object has taken
// the name.
func Delete(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) error {
	err := removeFinalizer(ctx, client, pv, LibraryFinalizer)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot remove the finalizer of PersistentVolume %s, whose volume is gone: %w", pv.Name, err)
	}
	err = client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot delete PersistentVolume %s, whose volume is gone: %w", pv.Name, err)
	}
	return nil
}

func patchMetadata(ctx context.Context, client kubernetes.Interface, name string, metadata map[string]any) error {
	_, err := patch(ctx, client, name, map[string]any{"metadata": metadata})
	return err
}

func patch(ctx context.Context, client kubernetes.Interface, name string, of map[string]any) (*corev1.PersistentVolume, error) {
	patch, err := json.Marshal(of)
	if err != nil {
		// Maps and lists of strings and quantities always encode.
		panic(err)
	}
	return client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
}
