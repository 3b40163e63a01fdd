package record

import (
	"cmp"
	"fmt"
	"hash/fnv"
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
	return trim.New(trim.Options{IsRead: isReadOnClaims, IsReadOnVolumes: isReadOnVolumes, IsOfOne: isOfOne})
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

// isReadOnVolumes is false for the annotations of PersistentVolumes that only people
// and the commands read. With them, a map takes twice the memory.
func isReadOnVolumes(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, AnnotationRule, AnnotationRevision, AnnotationAttachment:
		return false
	}
	return true
}

// isOfOne names the annotations whose value no two objects share.
func isOfOne(key string) bool {
	switch key {
	case AnnotationVolume, AnnotationClaimUID, AnnotationSecret, AnnotationSecretUID, HistoricVolume:
		return true
	}
	return false
}

// The names of indexes. An index keeps a set of objects for each value, which takes more
// memory than the object if it is its only one. So these have groups of values, and whoever
// looks an object up in its group compares the value itself.
const (
	byVolume   = "volume-group"
	byClaimUID = "uid-group"
	// byHandle lacks volumeHandles that are the volume's ID anyway.
	byHandle = "handle-group"
)

// groupOf is one of 4096 groups of values.
func groupOf(value string) string {
	if value == "" {
		return ""
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(value)) // never fails
	sum := hash.Sum32()
	return string([]byte{byte(sum>>8) & 0xf, byte(sum)})
}

// Indexers are the indexes that the cache of PersistentVolumes must have.
func Indexers() cache.Indexers {
	return cache.Indexers{
		byVolume: indexer(func(pv *corev1.PersistentVolume) string { return groupOf(volumeOf(pv)) }),
		byHandle: indexer(func(pv *corev1.PersistentVolume) string {
			if csi := pv.Spec.CSI; csi != nil && csi.VolumeHandle != volumeOf(pv) {
				return groupOf(csi.VolumeHandle)
			}
			return ""
		}),
	}
}

// ClaimIndexers are the indexes that the cache of claims must have.
func ClaimIndexers() cache.Indexers {
	return cache.Indexers{byClaimUID: func(object any) ([]string, error) {
		claim, ok := object.(*corev1.PersistentVolumeClaim)
		if !ok {
			return nil, fmt.Errorf("a cache of claims holds a %T", object)
		}
		return []string{groupOf(string(claim.UID))}, nil
	}}
}

// ClaimByUID returns the claim with a UID, nil if the cache has none.
func ClaimByUID(claims cache.Indexer, uid types.UID) *corev1.PersistentVolumeClaim {
	for _, object := range lookUp(claims, byClaimUID, groupOf(string(uid))) {
		if claim := object.(*corev1.PersistentVolumeClaim); claim.UID == uid {
			return claim
		}
	}
	return nil
}

// WithVolume returns the PersistentVolumes that name a volume by its ID; there is one,
// unless somebody copied it.
func WithVolume(pvs cache.Indexer, id string) []*corev1.PersistentVolume {
	var found []*corev1.PersistentVolume
	for _, object := range lookUp(pvs, byVolume, groupOf(id)) {
		if pv := object.(*corev1.PersistentVolume); volumeOf(pv) == id {
			found = append(found, pv)
		}
	}
	return found
}

// lookUp panics if the cache lacks the index, which every test would notice. An error
// could be taken for the proof that there is no such object.
func lookUp(objects cache.Indexer, index, value string) []any {
	found, err := objects.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return found
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
func WithHandle(pvs cache.Indexer, source corev1.PersistentVolumeSource, except string) string {
	if source.CSI == nil {
		return ""
	}
	found := WithVolume(pvs, source.CSI.VolumeHandle)
	for _, object := range lookUp(pvs, byHandle, groupOf(source.CSI.VolumeHandle)) {
		found = append(found, object.(*corev1.PersistentVolume))
	}
	for _, pv := range found {
		if pv.Name != except && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == source.CSI.Driver && pv.Spec.CSI.VolumeHandle == source.CSI.VolumeHandle {
			return pv.Name
		}
	}
	return ""
}

// WithSource returns the PersistentVolumes that a CSI driver finds by a volumeHandle
// other than the volume's ID; there is one, unless somebody copied it.
func WithSource(pvs cache.Indexer, driver, handle string) []*corev1.PersistentVolume {
	var found []*corev1.PersistentVolume
	for _, object := range lookUp(pvs, byHandle, groupOf(handle)) {
		if pv := object.(*corev1.PersistentVolume); pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver && pv.Spec.CSI.VolumeHandle == handle {
			found = append(found, pv)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return found
}
