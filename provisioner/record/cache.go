package record

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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
		admission.SelectedNodeAnnotation, admission.AlphaSelectedNodeAnnotation:
		return true
	}
	return false
}

// isOfOne names the annotations whose value no two objects share.
func isOfOne(key string) bool {
	switch key {
	case AnnotationVolume, AnnotationClaimUID, AnnotationSecret, AnnotationAttachment, HistoricVolume:
		return true
	}
	return false
}

// ByVolume is the index of PersistentVolumes by the volume that they name.
const ByVolume = "volume"

// Indexers are the indexes that the cache of PersistentVolumes must have.
func Indexers() cache.Indexers {
	return cache.Indexers{ByVolume: func(object any) ([]string, error) {
		pv, ok := object.(*corev1.PersistentVolume)
		if !ok {
			return nil, fmt.Errorf("a cache of PersistentVolumes holds a %T", object)
		}
		if id := cmp.Or(pv.Annotations[AnnotationVolume], pv.Annotations[HistoricVolume]); id != "" {
			return []string{id}, nil
		}
		return nil, nil
	}}
}
