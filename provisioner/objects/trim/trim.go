// Package trim shrinks objects before they are cached.
package trim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

// Trimmer shrinks objects before an informer caches them. It drops what no code reads,
// and lets thousands of objects share equal values.
//
// The library sees the trimmed objects, too. It sends only a patch of a
// PersistentVolume's finalizers, made from the difference between the cached object and
// a copy of it, so what both lack is not in the patch. It would update a whole claim
// only if Provision returned ProvisioningReschedule, which it never does.
type Trimmer struct {
	options Options

	mu         sync.Mutex
	texts      shared[string]
	quantities shared[corev1.ResourceList]
	modes      shared[[]corev1.PersistentVolumeAccessMode]
	finalizers shared[[]string]
	// annotations are the claims' annotations, which are equal on most.
	annotations shared[map[string]string]
	// pointers and volumeModes hold the values of optional fields.
	pointers    shared[*string]
	volumeModes shared[*corev1.PersistentVolumeMode]
}

// Options describe which annotations are needed.
type Options struct {
	// IsRead reports whether code reads an annotation of claims, and IsReadFinalizer
	// whether it reads a finalizer of claims.
	IsRead, IsReadFinalizer func(key string) bool
	// ReadLabels are the labels of claims that code reads.
	ReadLabels []string
	// KeepOnVolumes reports whether to keep an annotation of PersistentVolumes.
	KeepOnVolumes func(key string) bool
	// IsUnique reports whether an annotation's value is unique to an object.
	IsUnique func(key string) bool
}

// New returns a Trimmer for all informers of the process.
func New(options Options) *Trimmer {
	return &Trimmer{
		options:     options,
		texts:       shared[string]{},
		quantities:  shared[corev1.ResourceList]{},
		modes:       shared[[]corev1.PersistentVolumeAccessMode]{},
		finalizers:  shared[[]string]{},
		annotations: shared[map[string]string]{},
		pointers:    shared[*string]{},
		volumeModes: shared[*corev1.PersistentVolumeMode]{},
	}
}

// Trim is a cache.TransformFunc. It is idempotent.
func (t *Trimmer) Trim(object any) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		t.trimClaim(o)
	case *corev1.PersistentVolume:
		t.volume(o)
	case *corev1.Namespace:
		// Labels stay, because they select tenants.
		o.ManagedFields, o.Annotations = nil, nil
	case *storagev1.StorageClass:
		o.ManagedFields, o.Annotations, o.Labels = nil, nil, nil
	case *storagev1.VolumeAttributesClass:
		o.ManagedFields, o.Annotations, o.Labels = nil, nil, nil
	}
	return object, nil
}

// Claim trims a claim. It keeps only what is read, and a bounded part of each text:
// tenants may write 1.5 MiB into a claim, in almost any field.
func (t *Trimmer) Claim(claim *corev1.PersistentVolumeClaim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trimClaim(claim)
}

func (t *Trimmer) trimClaim(claim *corev1.PersistentVolumeClaim) {
	claim.GenerateName, claim.OwnerReferences = "", nil
	claim.Labels = t.readLabels(claim.Labels)
	var finalizers []string
	for _, name := range claim.Finalizers {
		if t.options.IsReadFinalizer(name) {
			finalizers = append(finalizers, name)
		}
	}
	claim.Finalizers = finalizers
	t.metadata(&claim.ObjectMeta, t.options.IsRead)
	for key, value := range claim.Annotations {
		claim.Annotations[key] = bound.Text(value)
	}
	// Sprintf prints maps in the order of their keys.
	claim.Annotations = t.annotations.same(fmt.Sprintf("%q", claim.Annotations), claim.Annotations)
	t.share(&claim.Namespace)
	// Most PersistentVolumes are named after the UID of their claim.
	shorten(&claim.UID, claim.Spec.VolumeName)
	claim.Spec.VolumeName = bound.Text(claim.Spec.VolumeName)
	if claim.Spec.Selector != nil {
		claim.Spec.Selector = &metav1.LabelSelector{} // such a claim is refused
	}
	if source := claim.Spec.DataSource; source != nil {
		boundReference(source.APIGroup, &source.Kind, nil, &source.Name)
	}
	if source := claim.Spec.DataSourceRef; source != nil {
		boundReference(source.APIGroup, &source.Kind, source.Namespace, &source.Name)
	}
	claim.Spec.StorageClassName = t.optional(claim.Spec.StorageClassName)
	claim.Spec.VolumeMode = t.volumeMode(claim.Spec.VolumeMode)
	claim.Spec.AccessModes = t.accessModes(claim.Spec.AccessModes)
	claim.Spec.Resources.Requests = t.resources(onlyStorage(claim.Spec.Resources.Requests))
	claim.Spec.Resources.Limits = t.resources(onlyStorage(claim.Spec.Resources.Limits))
	claim.Status = corev1.PersistentVolumeClaimStatus{
		Phase: claim.Status.Phase, Capacity: t.resources(claim.Status.Capacity),
		// Only claims that were ever expanded have these.
		AllocatedResources: t.resources(claim.Status.AllocatedResources), AllocatedResourceStatuses: claim.Status.AllocatedResourceStatuses,
	}
	shareText(t, &claim.Status.Phase)
}

// readLabels keeps what code reads of a claim's labels.
func (t *Trimmer) readLabels(labels map[string]string) map[string]string {
	var read map[string]string
	for _, name := range t.options.ReadLabels {
		if value, has := labels[name]; has {
			if read == nil {
				read = map[string]string{}
			}
			read[name] = t.texts.same(value, value)
		}
	}
	return read
}

// boundReference bounds the texts of a reference, of which some may be nil.
func boundReference(texts ...*string) {
	for _, text := range texts {
		if text != nil {
			*text = bound.Text(*text)
		}
	}
}

// onlyStorage drops resources that volumes do not have.
func onlyStorage(list corev1.ResourceList) corev1.ResourceList {
	size, has := list[corev1.ResourceStorage]
	if !has {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: size}
}

// volume keeps a PersistentVolume's specification: the program reads Secret references
// of every kind of source, and the fields by which nodes identify CSI volumes.
func (t *Trimmer) volume(pv *corev1.PersistentVolume) {
	pv.Labels = nil
	t.metadata(&pv.ObjectMeta, t.options.KeepOnVolumes)
	pv.Spec.Capacity = t.resources(pv.Spec.Capacity)
	pv.Spec.AccessModes = t.accessModes(pv.Spec.AccessModes)
	pv.Spec.VolumeMode = t.volumeMode(pv.Spec.VolumeMode)
	t.share(&pv.Spec.StorageClassName)
	shareText(t, &pv.Spec.PersistentVolumeReclaimPolicy)
	shareText(t, &pv.Status.Phase)
	claim, iscsi, csi := pv.Spec.ClaimRef, pv.Spec.ISCSI, pv.Spec.CSI
	if claim != nil {
		t.share(&claim.Kind)
		t.share(&claim.APIVersion)
		t.share(&claim.Namespace)
	}
	if iscsi != nil {
		t.share(&iscsi.TargetPortal)
		t.share(&iscsi.ISCSIInterface)
		t.share(&iscsi.FSType)
		iscsi.InitiatorName = t.optional(iscsi.InitiatorName)
		t.secretNamespace(iscsi.SecretRef)
	}
	if csi != nil {
		t.share(&csi.Driver)
		t.share(&csi.FSType)
		t.secretNamespace(csi.NodeStageSecretRef)
	}
	t.shareWithin(pv)
}

func (t *Trimmer) secretNamespace(reference *corev1.SecretReference) {
	if reference != nil {
		t.share(&reference.Namespace)
	}
}

// shareWithin lets this PersistentVolume's own texts share memory: the name of its Secret
// contains its own name, which contains the claim's UID, and the target or handle
// contains the volume's ID.
func (t *Trimmer) shareWithin(pv *corev1.PersistentVolume) {
	wholes := make([]string, 0, 4)
	if iscsi := pv.Spec.ISCSI; iscsi != nil {
		wholes = append(wholes, iscsi.IQN)
		if iscsi.SecretRef != nil {
			wholes = append(wholes, iscsi.SecretRef.Name)
		}
	}
	if csi := pv.Spec.CSI; csi != nil {
		wholes = append(wholes, csi.VolumeHandle)
		if csi.NodeStageSecretRef != nil {
			wholes = append(wholes, csi.NodeStageSecretRef.Name)
		}
	}
	shorten(&pv.Name, wholes...)
	wholes = append(wholes, pv.Name)
	if claim := pv.Spec.ClaimRef; claim != nil {
		shorten(&claim.UID, wholes...)
	}
	for key, value := range pv.Annotations {
		if t.options.IsUnique(key) {
			shorten(&value, wholes...)
			pv.Annotations[key] = value
		}
	}
}

// shorten replaces a text by the equal part of the first whole that contains it, so that
// it takes no memory of its own.
func shorten[T ~string](text *T, wholes ...string) {
	for _, whole := range wholes {
		if at := strings.Index(whole, string(*text)); at >= 0 {
			*text = T(whole[at : at+len(*text)])
			return
		}
	}
}

func (t *Trimmer) metadata(object *metav1.ObjectMeta, kept func(key string) bool) {
	object.ManagedFields = nil
	annotations := map[string]string{}
	for key, value := range object.Annotations {
		if !kept(key) {
			continue
		}
		if !t.options.IsUnique(key) {
			t.share(&value)
		}
		t.share(&key)
		annotations[key] = value
	}
	object.Annotations = annotations
	if len(object.Finalizers) > 0 {
		// Clip it, because the library appends to the slice of a cached object.
		object.Finalizers = t.finalizers.same(strings.Join(object.Finalizers, ","), slices.Clip(object.Finalizers))
	}
}

func (t *Trimmer) resources(list corev1.ResourceList) corev1.ResourceList {
	size, ok := list[corev1.ResourceStorage]
	if !ok || len(list) > 1 {
		return list
	}
	return t.quantities.same(size.String(), list)
}

func (t *Trimmer) accessModes(modes []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	// There are four, and the API server accepts any number of equal ones.
	if len(modes) > 4 {
		modes = slices.Clone(slices.Compact(slices.Sorted(slices.Values(modes))))
	}
	if len(modes) != 1 {
		return modes
	}
	return t.modes.same(string(modes[0]), slices.Clip(modes))
}

func (t *Trimmer) optional(text *string) *string {
	if text == nil {
		return nil
	}
	return t.pointers.same(*text, text)
}

func (t *Trimmer) volumeMode(mode *corev1.PersistentVolumeMode) *corev1.PersistentVolumeMode {
	if mode == nil {
		return nil
	}
	return t.volumeModes.same(string(*mode), mode)
}

func (t *Trimmer) share(text *string) { shareText(t, text) }

func shareText[T ~string](t *Trimmer, text *T) {
	*text = T(t.texts.same(string(*text), string(*text)))
}

// shared keeps one copy of every value that many objects have.
type shared[V any] map[string]V

// Bounds of the number and length of values, because they may all be different. After the
// table has been emptied, shared values soon return.
const (
	maxShared       = 8192
	maxSharedLength = 512
)

func (s shared[V]) same(key string, value V) V {
	if known, ok := s[key]; ok {
		return known
	}
	if len(key) > maxSharedLength {
		return value
	}
	if len(s) >= maxShared {
		clear(s)
	}
	s[key] = value
	return value
}
