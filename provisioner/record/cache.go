package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/trim"
)

// NewTrimmer makes the Trimmer for objects that an informer of the process
// caches.
func NewTrimmer() *trim.Trimmer {
	return trim.New(trim.Options{IsRead: isReadOnClaims, IsOfOne: isOfOne, ClaimUID: AnnotationClaimUID, Secret: AnnotationSecret})
}

// isReadOnClaims names the annotations of claims that this program and the
// library read.
func isReadOnClaims(key string) bool {
	switch key {
	case AnnotationStorageProvisioner, AnnotationBetaStorageProvisioner, corev1.BetaStorageClassAnnotation, HistoricClone,
		admission.SelectedNodeAnnotation, admission.AlphaSelectedNodeAnnotation, AnnotationFilesystemGrown, AnnotationImport:
		return true
	}
	return false
}

// isOfOne names the annotations whose value no two objects share.
func isOfOne(key string) bool {
	switch key {
	case AnnotationVolume, AnnotationClaimUID, AnnotationSecret, AnnotationSecretUID, AnnotationAttachment, HistoricVolume:
		return true
	}
	return false
}

// ByVolume is the index of PersistentVolumes by the volume that they name.
const ByVolume = "volume"

// byHandle is the index of PersistentVolumes by their volumeHandle, for those
// whose handle is not the volume's ID anyway: most have it in ByVolume, and an
// index takes memory for each.
const byHandle = "handle"

// Indexers are the indexes that the cache of PersistentVolumes must have.
func Indexers() cache.Indexers {
	return cache.Indexers{
		ByVolume: indexer(volumeOf),
		byHandle: indexer(func(pv *corev1.PersistentVolume) string {
			if csi := pv.Spec.CSI; csi != nil && csi.VolumeHandle != volumeOf(pv) {
				return csi.VolumeHandle
			}
			return ""
		}),
	}
}

// byUID is the index of claims by their UID, under the name that the library gives its
// own.
const byUID = "uid"

// ClaimIndexers are the indexes that the cache of claims must have.
func ClaimIndexers() cache.Indexers {
	return cache.Indexers{byUID: func(object any) ([]string, error) {
		claim, ok := object.(*corev1.PersistentVolumeClaim)
		if !ok {
			return nil, fmt.Errorf("a cache of claims holds a %T", object)
		}
		return []string{string(claim.UID)}, nil
	}}
}

// ClaimByUID returns the claim with a UID, nil if the cache has none.
func ClaimByUID(claims cache.Indexer, uid types.UID) *corev1.PersistentVolumeClaim {
	// An error would mean that the cache lacks the index, and panics in every test.
	found, err := claims.ByIndex(byUID, string(uid))
	if err != nil {
		panic(err)
	}
	if len(found) == 0 {
		return nil
	}
	return found[0].(*corev1.PersistentVolumeClaim)
}

// indexer indexes PersistentVolumes by a key, or not if it is empty.
func indexer(keyOf func(*corev1.PersistentVolume) string) cache.IndexFunc {
	return func(object any) ([]string, error) {
		pv, ok := object.(*corev1.PersistentVolume)
		if !ok {
			return nil, fmt.Errorf("a cache of PersistentVolumes holds a %T", object)
		}
		if key := keyOf(pv); key != "" {
			return []string{key}, nil
		}
		return nil, nil
	}
}

func volumeOf(pv *corev1.PersistentVolume) string {
	return cmp.Or(pv.Annotations[AnnotationVolume], pv.Annotations[HistoricVolume], handleVolume(pv))
}

// WithHandle returns the name of a PersistentVolume, other than the named one,
// that has the CSI driver and volumeHandle of a source; empty if there is none.
// Kubelet identifies volumes by both, whoever made their objects, and gives two
// that share them one mount.
func WithHandle(pvs cache.Indexer, source corev1.PersistentVolumeSource, except string) (string, error) {
	if source.CSI == nil {
		return "", nil
	}
	for _, index := range []string{ByVolume, byHandle} {
		found, err := pvs.ByIndex(index, source.CSI.VolumeHandle)
		if err != nil {
			return "", err
		}
		for _, object := range found {
			pv, ok := object.(*corev1.PersistentVolume)
			if ok && pv.Name != except && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == source.CSI.Driver && pv.Spec.CSI.VolumeHandle == source.CSI.VolumeHandle {
				return pv.Name, nil
			}
		}
	}
	return "", nil
}

// WithSource returns the PersistentVolumes that a CSI driver finds by a volumeHandle
// other than the volume's ID; there is one, unless somebody copied it.
func WithSource(pvs cache.Indexer, driver, handle string) ([]*corev1.PersistentVolume, error) {
	objects, err := pvs.ByIndex(byHandle, handle)
	if err != nil {
		return nil, err
	}
	var found []*corev1.PersistentVolume
	for _, object := range objects {
		if pv, ok := object.(*corev1.PersistentVolume); ok && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver {
			found = append(found, pv)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}
