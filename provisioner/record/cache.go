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

// NewTrimmer makes the Trimmer for the objects in the process's informer caches.
func NewTrimmer() *trim.Trimmer {
	return trim.New(trim.Options{
		IsRead: isReadOnClaims, IsReadFinalizer: func(name string) bool { return name == CopyFinalizer }, KeepOnVolumes: keepOnVolumes, IsUnique: isUnique,
	})
}

// isReadOnClaims reports whether this program or the library reads an annotation of
// claims.
func isReadOnClaims(key string) bool {
	switch key {
	case AnnotationStorageProvisioner, AnnotationBetaStorageProvisioner, corev1.BetaStorageClassAnnotation, HistoricClone,
		admission.SelectedNodeAnnotation, admission.AlphaSelectedNodeAnnotation, AnnotationFilesystemGrown, AnnotationImport:
		return true
	}
	return false
}

// keepOnVolumes reports whether to cache an annotation of PersistentVolumes. Those
// that only people and the commands read would double the memory that a map takes.
func keepOnVolumes(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, AnnotationRule, AnnotationRevision, AnnotationAttachment:
		return false
	}
	return true
}

// isUnique reports whether no two objects share the value of an annotation.
func isUnique(key string) bool {
	switch key {
	case AnnotationVolume, AnnotationClaimUID, AnnotationReboundTo, AnnotationSecret, AnnotationSecretUID, HistoricVolume:
		return true
	}
	return false
}

// Names of indexes. An index keeps a set of objects for each value, and a set of one
// takes more memory than the object itself. So these indexes have groups of values, and
// whoever looks up an object in its group must compare the value itself.
const (
	byVolume   = "volume-group"
	byClaimUID = "uid-group"
	// byHandle omits volumeHandles that equal the volume's ID.
	byHandle = "handle-group"
)

// groupOf returns the group of a value; there are 4096.
func groupOf(value string) string {
	if value == "" {
		return ""
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(value)) // never fails
	sum := hash.Sum32()
	return string([]byte{byte(sum>>8) & 0xf, byte(sum)})
}

// Indexers returns the indexes that the cache of PersistentVolumes must have.
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

// ClaimIndexers returns the indexes that the cache of claims must have.
func ClaimIndexers() cache.Indexers {
	return cache.Indexers{byClaimUID: func(object any) ([]string, error) {
		claim, ok := object.(*corev1.PersistentVolumeClaim)
		if !ok {
			return nil, fmt.Errorf("a cache of claims holds a %T", object)
		}
		return []string{groupOf(string(claim.UID))}, nil
	}}
}

// ClaimByUID returns the claim with a UID, or nil if the cache has none.
func ClaimByUID(claims cache.Indexer, uid types.UID) *corev1.PersistentVolumeClaim {
	for _, object := range lookUp(claims, byClaimUID, groupOf(string(uid))) {
		if claim := object.(*corev1.PersistentVolumeClaim); claim.UID == uid {
			return claim
		}
	}
	return nil
}

// ByVolumeID returns the PersistentVolumes that name a volume by its ID. There is one,
// unless somebody copied it.
func ByVolumeID(pvs cache.Indexer, id string) []*corev1.PersistentVolume {
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

// indexer indexes PersistentVolumes by a key, and omits those whose key is empty.
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

// OtherByHandle returns the name of a PersistentVolume, other than except, that has the
// CSI driver and volumeHandle of a source; empty if there is none. Kubelet identifies
// volumes by these two, whoever made their objects, and mounts volumes that share them
// only once.
func OtherByHandle(pvs cache.Indexer, source corev1.PersistentVolumeSource, except string) string {
	if source.CSI == nil {
		return ""
	}
	found := ByVolumeID(pvs, source.CSI.VolumeHandle)
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

// ByHandle returns the PersistentVolumes with a CSI driver and a volumeHandle that is
// not the volume's ID. There is one, unless somebody copied it. Unlike OtherByHandle, it
// finds no PersistentVolume whose volumeHandle is the volume's ID.
func ByHandle(pvs cache.Indexer, driver, handle string) []*corev1.PersistentVolume {
	var found []*corev1.PersistentVolume
	for _, object := range lookUp(pvs, byHandle, groupOf(handle)) {
		if pv := object.(*corev1.PersistentVolume); pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver && pv.Spec.CSI.VolumeHandle == handle {
			found = append(found, pv)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return found
}
