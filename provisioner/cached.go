package provisioner

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/trim"
)

// NewTrimmer makes what trims objects before an informer of the process caches
// them.
func NewTrimmer() *trim.Trimmer {
	return trim.New(trim.Options{IsRead: isReadOnClaims, IsOfOne: isOfOne, ClaimUID: annotationClaimUID, Secret: annotationSecret})
}

// isReadOnClaims names the annotations of claims that this program and the
// library read.
func isReadOnClaims(key string) bool {
	switch key {
	case annotationStorageProvisioner, annotationBetaStorageProvisioner, corev1.BetaStorageClassAnnotation, historicAnnotationClone,
		"volume.kubernetes.io/selected-node", "volume.alpha.kubernetes.io/selected-node":
		return true
	}
	return false
}

// isOfOne names the annotations whose value no two objects share.
func isOfOne(key string) bool {
	switch key {
	case annotationVolume, annotationClaimUID, annotationSecret, annotationAttachment, historicAnnotationVolume:
		return true
	}
	return false
}

// byVolume is the index of PersistentVolumes by the volume that they name.
const byVolume = "volume"

// RecordIndexers are the indexes that the cache of PersistentVolumes must have.
func RecordIndexers() cache.Indexers {
	return cache.Indexers{byVolume: func(object any) ([]string, error) {
		pv, ok := object.(*corev1.PersistentVolume)
		if !ok {
			return nil, fmt.Errorf("a cache of PersistentVolumes holds a %T", object)
		}
		if id := cmp.Or(pv.Annotations[annotationVolume], pv.Annotations[historicAnnotationVolume]); id != "" {
			return []string{id}, nil
		}
		return nil, nil
	}}
}
