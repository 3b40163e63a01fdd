package objects

import (
	"encoding/json"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Provisioned is what is known about a claim's new volume.
type Provisioned struct {
	// Name is the name of the PersistentVolume.
	Name    string
	Claim   *corev1.PersistentVolumeClaim
	Class   *storagev1.StorageClass
	Cluster string
	// Tenant, Rule and Revision are the policy's decision.
	Tenant, Rule, Revision string

	Backend string
	// Connector is nil for a CSI volume, which does not use the shared connector.
	Connector *cinder.Connector
	// NodeLabels select the nodes that the volume is exported to; empty selects
	// all.
	NodeLabels map[string]string
	Connected  backends.Connected

	Protocol string
	Mapped   mappers.Result
	// SecretNamespace is the namespace of the mapper's Secret, if any.
	SecretNamespace string
	// SecretUID is empty for a shared Secret, or if unknown.
	SecretUID types.UID
}

// NewPersistentVolume describes a volume to Kubernetes. The capacity is the volume's
// actual size, which may exceed the claim's request.
func NewPersistentVolume(of Provisioned) *corev1.PersistentVolume {
	annotations := map[string]string{
		AnnotationVolume:   of.Connected.Volume.ID,
		AnnotationBackend:  of.Backend,
		AnnotationTenant:   of.Tenant,
		AnnotationRule:     of.Rule,
		AnnotationProtocol: of.Protocol,
		AnnotationCluster:  of.Cluster,
		AnnotationClaimUID: string(of.Claim.UID),
		AnnotationRevision: of.Revision,
	}
	if of.Connector != nil {
		connector, err := json.Marshal(of.Connector)
		if err != nil {
			// Encoding a struct of strings and a bool never fails.
			panic(err)
		}
		annotations[AnnotationConnector] = string(connector)
	}
	maps.Copy(annotations, PlaceAnnotations(of.Connected.Place))
	if of.Connected.AttachmentID != "" {
		annotations[AnnotationAttachment] = of.Connected.AttachmentID
	}
	if of.Mapped.Secret != nil {
		annotations[AnnotationSecret] = of.Mapped.Secret.Name
		annotations[AnnotationSecretNamespace] = of.SecretNamespace
		if of.SecretUID != "" {
			annotations[AnnotationSecretUID] = string(of.SecretUID)
		}
	}
	reclaim := corev1.PersistentVolumeReclaimDelete
	if of.Class.ReclaimPolicy != nil {
		reclaim = *of.Class.ReclaimPolicy
	}
	var attributes *string
	if named := of.Claim.Spec.VolumeAttributesClassName; named != nil && *named != "" {
		attributes = named
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: of.Name, Annotations: annotations, Labels: pvLabels(of.Tenant, of.Backend)},
		Spec: PersistentVolumeSpec(of.Mapped, corev1.PersistentVolumeSpec{
			Capacity:                      capacity(of.Connected.Volume.SizeGiB),
			AccessModes:                   writableFirst(of.Claim.Spec.AccessModes),
			PersistentVolumeReclaimPolicy: reclaim,
			MountOptions:                  of.Class.MountOptions,
			VolumeMode:                    of.Claim.Spec.VolumeMode,
			NodeAffinity:                  nodeAffinity(of.NodeLabels),
			VolumeAttributesClassName:     attributes,
		}),
	}
}

// pvLabels select the PersistentVolumes of a tenant or of a backend. Nothing in the program
// relies on them.
func pvLabels(tenant, backend string) map[string]string {
	return map[string]string{AnnotationTenant: tenant, AnnotationBackend: backend}
}

// writableFirst moves ReadOnlyMany behind the other access modes. They are a set, but a
// kubelet passes only the first one to a CSI driver.
func writableFirst(modes []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	reading := func(mode corev1.PersistentVolumeAccessMode) int {
		if mode == corev1.ReadOnlyMany {
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(modes), func(a, b corev1.PersistentVolumeAccessMode) int { return reading(a) - reading(b) })
}

// nodeAffinity binds a PersistentVolume to the nodes that its volume is
// exported to; nil means all nodes.
func nodeAffinity(labels map[string]string) *corev1.VolumeNodeAffinity {
	if len(labels) == 0 {
		return nil
	}
	var requirements []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		requirements = append(requirements, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{labels[key]}})
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}}}}
}

// SizeGiB returns the size of a PersistentVolume, rounded up to whole GiB as Cinder
// does.
func SizeGiB(pv *corev1.PersistentVolume) int64 {
	const gib = 1 << 30
	bytes := policy.Bytes(pv.Spec.Capacity[corev1.ResourceStorage])
	return bytes/gib + min(bytes%gib, 1)
}

func capacity(gib int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(gib<<30, resource.BinarySI)}
}

// PersistentVolumeSpec combines the claim's and the StorageClass's fields of a
// PersistentVolume with its mapped connection.
func PersistentVolumeSpec(mapped mappers.Result, spec corev1.PersistentVolumeSpec) corev1.PersistentVolumeSpec {
	spec.PersistentVolumeSource = mapped.Source
	spec.MountOptions = slices.Clone(spec.MountOptions)
	for _, option := range mapped.MountOptions {
		if !slices.Contains(spec.MountOptions, option) {
			spec.MountOptions = append(spec.MountOptions, option)
		}
	}
	return spec
}

// ReadOnly reports whether the PersistentVolume prevents all writing.
func ReadOnly(pv *corev1.PersistentVolume) bool { return AllReadOnly(pv.Spec.AccessModes) }

// AllReadOnly reports whether the access modes allow no writing.
func AllReadOnly(modes []corev1.PersistentVolumeAccessMode) bool {
	for _, mode := range modes {
		if mode != corev1.ReadOnlyMany {
			return false
		}
	}
	return len(modes) > 0
}
