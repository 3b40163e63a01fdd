package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/trim"
)

// NewTrimmer returns the Trimmer for objects in the process's informer caches.
func NewTrimmer() *trim.Trimmer {
	return trim.New(trim.Options{
		IsRead: isReadOnClaims, IsReadFinalizer: func(name string) bool { return name == CopyFinalizer }, ReadLabels: []string{LabelProtect, LabelProtectGroup, LabelCopy}, KeepOnVolumes: keepOnVolumes, IsUnique: isUnique,
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

// keepOnVolumes reports whether to cache an annotation of PersistentVolumes. Those read
// only by users and the commands would double the memory of the map.
func keepOnVolumes(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, AnnotationRule, AnnotationRevision, AnnotationAttachment:
		return false
	}
	return true
}

// isUnique reports whether an annotation's value is unique to an object.
func isUnique(key string) bool {
	switch key {
	case AnnotationVolume, AnnotationClaimUID, AnnotationReboundTo, AnnotationSecret, AnnotationSecretUID, HistoricVolume:
		return true
	}
	return false
}

// Names of indexes. An index keeps a set of objects for each value, and a set of one
// takes more memory than the object itself. So these indexes group values, and look-ups
// must compare the value itself.
const (
	byVolume   = "volume-group"
	byClaimUID = "uid-group"
	// byImport omits claims that name no PersistentVolume of an imported volume.
	byImport = "import-group"
	// byTaker has the PersistentVolumes that claims may take: by their StorageClasses, or
	// in the groups of the claims that they are meant for. It is as good as empty where
	// volumes are made for claims.
	byTaker = "taker"
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
		byVolume: volumeIndex(func(pv *corev1.PersistentVolume) (groups []string) {
			for _, id := range VolumeIDs(pv) {
				if group := groupOf(id); !slices.Contains(groups, group) {
					groups = append(groups, group)
				}
			}
			return groups
		}),
		byTaker: volumeIndex(takersOf),
	}
}

func volumeIndex(valuesOf func(*corev1.PersistentVolume) []string) cache.IndexFunc {
	return func(object any) ([]string, error) {
		pv, ok := object.(*corev1.PersistentVolume)
		if !ok {
			return nil, fmt.Errorf("a cache of PersistentVolumes holds a %T", object)
		}
		return valuesOf(pv), nil
	}
}

// takersOf returns whose claims may take a PersistentVolume, at once or as soon as the
// PersistentVolume controller has looked at it. One that names a claim may be meant for it
// by an administrator, or be half bound to it.
func takersOf(pv *corev1.PersistentVolume) []string {
	switch of := pv.Spec.ClaimRef; {
	case of != nil && pv.Name != PVNameFor(string(of.UID)):
		return []string{groupOf(of.Namespace + "/" + of.Name)}
	case of == nil && slices.Contains([]corev1.PersistentVolumePhase{"", corev1.VolumePending, corev1.VolumeAvailable}, pv.Status.Phase):
		return []string{storagehelpers.GetPersistentVolumeClass(pv)}
	}
	return nil
}

// MayBeTaken reports whether a claim may take a PersistentVolume that was not made for it.
func MayBeTaken(pv *corev1.PersistentVolume) bool { return len(takersOf(pv)) > 0 }

// AvailableFor returns a PersistentVolume that the PersistentVolume controller would bind
// to a claim instead of provisioning one, or nil: findByClaim in
// pkg/controller/volume/persistentvolume/index.go of Kubernetes.
func AvailableFor(pvs cache.Indexer, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	if claim.Spec.Selector != nil {
		return nil // the policy refuses it, and the cache holds no labels
	}
	var fitting []*corev1.PersistentVolume
	for _, object := range slices.Concat(lookUp(pvs, byTaker, ClassName(claim)), lookUp(pvs, byTaker, groupOf(claim.Namespace+"/"+claim.Name))) {
		if pv := object.(*corev1.PersistentVolume); storagehelpers.CheckAccessModes(claim, pv) {
			soon := *pv
			soon.Status.Phase = corev1.VolumeAvailable
			fitting = append(fitting, &soon)
		}
	}
	pv, _ := storagehelpers.FindMatchingVolume(claim, fitting, nil, nil, false, true) // only a selector may be invalid
	return pv
}

// ClaimIndexers returns the indexes that the cache of claims must have.
func ClaimIndexers() cache.Indexers {
	return cache.Indexers{
		byClaimUID: claimIndex(func(claim *corev1.PersistentVolumeClaim) string { return string(claim.UID) }),
		byImport: claimIndex(func(claim *corev1.PersistentVolumeClaim) string {
			if strings.HasPrefix(claim.Spec.VolumeName, importedPrefix) {
				return claim.Spec.VolumeName
			}
			return ""
		}),
	}
}

// claimIndex indexes claims by a value, and omits those whose value is empty.
func claimIndex(valueOf func(*corev1.PersistentVolumeClaim) string) cache.IndexFunc {
	return func(object any) ([]string, error) {
		claim, ok := object.(*corev1.PersistentVolumeClaim)
		if !ok {
			return nil, fmt.Errorf("a cache of claims holds a %T", object)
		}
		if value := valueOf(claim); value != "" {
			return []string{groupOf(value)}, nil
		}
		return nil, nil
	}
}

// Objects are what caches hold of a cluster: the leader's, or those that a command fills
// once.
type Objects struct {
	// Claims has the indexes of ClaimIndexers, and PersistentVolumes those of Indexers.
	Claims, PersistentVolumes cache.Indexer
	// Classes and Namespaces are nil in a command.
	Classes, Namespaces cache.Indexer
}

// Cached returns the object with a key from a cache, if it is there.
func Cached[T any](from cache.Indexer, key string) (object T, ok bool) {
	found, exists, err := from.GetByKey(key)
	if err != nil || !exists {
		return object, false
	}
	return found.(T), true
}

// ReadObjects lists the claims and PersistentVolumes of a cluster, claims first, so that
// a volume whose import finishes in between shows as recorded.
func ReadObjects(ctx context.Context, client kubernetes.Interface) (Objects, error) {
	read := Objects{Claims: cache.NewIndexer(cache.MetaNamespaceKeyFunc, ClaimIndexers()), PersistentVolumes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, Indexers())}
	trimmer := NewTrimmer()
	added, _, err := ListClaims(ctx, client, func(claim *corev1.PersistentVolumeClaim) error {
		trimmer.Claim(claim)
		return read.Claims.Add(claim)
	})
	if err != nil {
		return Objects{}, err
	}
	more, err := ListPersistentVolumes(ctx, client, func(pv *corev1.PersistentVolume) error { return read.PersistentVolumes.Add(pv) })
	return read, cmp.Or(err, errors.Join(append(added, more...)...))
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

// ClaimsFor returns the claims that name the PersistentVolume of an imported volume.
func ClaimsFor(claims cache.Indexer, pv string) []*corev1.PersistentVolumeClaim {
	var found []*corev1.PersistentVolumeClaim
	for _, object := range lookUp(claims, byImport, groupOf(pv)) {
		if claim := object.(*corev1.PersistentVolumeClaim); claim.Spec.VolumeName == pv {
			found = append(found, claim)
		}
	}
	return found
}

// ByVolumeID returns the PersistentVolumes that record a volume by its ID: one, unless a
// user copied it.
func ByVolumeID(pvs cache.Indexer, id string) []*corev1.PersistentVolume {
	return having(pvs, id, func(pv *corev1.PersistentVolume) bool { return volumeOf(pv) == id })
}

// Naming returns the PersistentVolumes, of any provisioner, that name a volume by its ID.
func Naming(pvs cache.Indexer, id string) []*corev1.PersistentVolume {
	return having(pvs, id, func(pv *corev1.PersistentVolume) bool { return Names(pv, id) })
}

// having returns the accepted PersistentVolumes with an ID or volumeHandle, ordered by
// name.
func having(pvs cache.Indexer, id string, accepted func(*corev1.PersistentVolume) bool) []*corev1.PersistentVolume {
	var found []*corev1.PersistentVolume
	for _, object := range lookUp(pvs, byVolume, groupOf(id)) {
		if pv := object.(*corev1.PersistentVolume); accepted(pv) {
			found = append(found, pv)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// lookUp panics if the cache lacks the index, which every test would catch. An error
// could be mistaken for proof that there is no such object.
func lookUp(objects cache.Indexer, index, value string) []any {
	found, err := objects.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return found
}

func volumeOf(pv *corev1.PersistentVolume) string {
	return cmp.Or(pv.Annotations[AnnotationVolume], pv.Annotations[HistoricVolume], handleVolume(pv))
}

// OtherByHandle returns the name of a PersistentVolume, other than except, with the CSI
// driver and volumeHandle of a source; empty if there is none. Kubelet identifies volumes
// by these two, regardless of provisioner, and mounts volumes that share them only once.
func OtherByHandle(pvs cache.Indexer, source corev1.PersistentVolumeSource, except string) string {
	if source.CSI == nil {
		return ""
	}
	for _, pv := range ByHandle(pvs, source.CSI.Driver, source.CSI.VolumeHandle) {
		if pv.Name != except {
			return pv.Name
		}
	}
	return ""
}

// ByHandle returns the PersistentVolumes with a CSI driver and a volumeHandle: one,
// unless a user copied it.
func ByHandle(pvs cache.Indexer, driver, handle string) []*corev1.PersistentVolume {
	return having(pvs, handle, func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver && pv.Spec.CSI.VolumeHandle == handle
	})
}
