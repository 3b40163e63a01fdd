// Package imports gives volumes that exist at Cinder to claims. It runs in a command,
// beside the leader and with the rights of an operator, and in the leader, for the
// claims of tenants that ask for a volume (provisioner/features/imports/claims).
//
// The claim comes first. The claim of a command names its PersistentVolume
// (spec.volumeName), whose name is derived from the volume's ID. So Kubernetes
// provisions nothing for the claim, the stamp contains its UID, and another import of
// the same volume sees it. The claim of a tenant has an annotation instead, which the
// leader knows. The PersistentVolume comes last, and names the claim.
package imports

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
)

// Volumes are the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	All(ctx context.Context) ([]cinder.Volume, error)
	Importable(v cinder.Volume, stamp stamps.Volume, connector cinder.Connector, csi bool) error
	Import(ctx context.Context, spec backends.Import) (backends.Connected, error)
	CancelImport(ctx context.Context, target backends.Target) error
}

// Nodes determines which nodes use a volume; *nodeuse.Tracker implements it.
type Nodes interface {
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	// Known answers from the caches.
	Known(v nodeuse.Volume) ([]string, error)
}

// Site is the cluster to which volumes are imported, and what works there.
type Site struct {
	Client kubernetes.Interface
	// Caches are those of the leader. A command has none, and lists the objects.
	Caches objects.Objects
	// Secrets writes the Secret of a claim's PersistentVolume.
	Secrets *secrets.Keeper
	Mappers *mappers.Registry
	Nodes   Nodes
	// ProvisionerName is the name in StorageClasses; Cluster and ClusterUID, the UID of
	// namespace kube-system, are stamped on volumes; Namespace is where their Secrets are.
	ProvisionerName, Cluster, ClusterUID, Namespace string
}

// Importer imports volumes of one backend.
type Importer struct {
	Site
	Policy    *policy.Policy
	Backend   *policy.Backend
	Connector cinder.Connector
	Volumes   Volumes

	// onlyCached is set by FromCaches.
	onlyCached bool
}

// FromCaches returns an importer whose plans request nothing. What they refuse needs no
// look at the API server; what they do not refuse must be planned again.
func (i *Importer) FromCaches() *Importer {
	cached := *i
	cached.onlyCached = true
	return &cached
}

// read reads an object, by its key in the cache.
func read[T any](ctx context.Context, i *Importer, from cache.Indexer, key string, live func(context.Context, string, metav1.GetOptions) (T, error)) (object T, err error) {
	_, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil || !i.onlyCached {
		return live(ctx, name, metav1.GetOptions{})
	}
	object, ok := objects.Cached[T](from, key)
	if !ok {
		return object, apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	return object, nil
}

// objects returns the objects of the cluster, with their indexes.
func (i *Importer) objects(ctx context.Context) (objects.Objects, error) {
	if i.Caches.Claims != nil {
		return i.Caches, nil
	}
	return objects.ReadObjects(ctx, i.Client)
}

// Request is what an operator asks for.
type Request struct {
	// Volume is the ID of a volume, or its name, unless OnlyID is set.
	Volume string
	// OnlyID means that Volume was not written by a person: a volume whose name is the ID
	// of another one must not be taken for it.
	OnlyID           bool
	Namespace, Claim string
	StorageClass     string
	// Size is what the claim requests; nil means the volume's size.
	Size *resource.Quantity
	// AccessModes are those of the claim; empty means ReadWriteOnce.
	AccessModes   []corev1.PersistentVolumeAccessMode
	VolumeMode    corev1.PersistentVolumeMode
	ReclaimPolicy corev1.PersistentVolumeReclaimPolicy
	// FilesystemUUIDs are the UUIDs that the volume's filesystem may have, in mode csi.
	FilesystemUUIDs []string
}

// Plan is an import that nothing prevents, as far as can be known before any change.
type Plan struct {
	Volume cinder.Volume
	// Claim is the existing claim, or the one that will be created.
	Claim *corev1.PersistentVolumeClaim
	// PersistentVolume lacks the UID of a claim that is still to be created and, in
	// mode native, the source, which depends on the connection.
	PersistentVolume *corev1.PersistentVolume
	Class            *storagev1.StorageClass
	// Decision is that of the policy.
	Decision policy.Decision
	// Done means that the PersistentVolume exists.
	Done bool
	// Steps are the changes to come, as sentences.
	Steps []string
	// Warnings are full sentences.
	Warnings []string

	objects objects.Objects
	// wanted is what a tenant's claim asks for; empty for an operator's import.
	wanted string
	// contested is passed on in backends.Import.
	contested bool
	// given are the UUIDs that the operator gave; filesystemUUIDs are all those that
	// the filesystem of a volume for the CSI driver may have.
	given, filesystemUUIDs []string
	// encrypted is that of wire.Volume.
	encrypted string
	// nodeLabels are the labels of the nodes that use the volume, which depend on its
	// zone.
	nodeLabels map[string]string
	reclaim    corev1.PersistentVolumeReclaimPolicy
}

// pvName returns the name of the PersistentVolume.
func (p *Plan) pvName() string { return objects.ImportedPVName(p.Volume.ID) }

// RefusedError means that a volume must not be imported as requested.
type RefusedError struct {
	message string
	// Denial is the policy's denial if the policy denies the claim.
	Denial *policy.Denial
	// Why says more about a snapshot that counts as missing. No tenant may read it.
	Why string
	// Content and Snapshot name a VolumeSnapshotContent and a VolumeSnapshot
	// (namespace/name) whose end may permit the import of a snapshot.
	Content, Snapshot string
}

func (e *RefusedError) Error() string { return e.message }

func refusedBy(denial *policy.Denial) error {
	return &RefusedError{message: denial.Message, Denial: denial}
}

func refused(format string, arguments ...any) error {
	return &RefusedError{message: fmt.Sprintf(format, arguments...)}
}

// stamp returns the stamp that the volume gets for a claim. Its UID is empty until the
// claim exists.
func (i *Importer) stamp(plan *Plan) stamps.Volume {
	return stamps.Volume{
		Cluster:      i.Cluster,
		ClusterUID:   i.ClusterUID,
		Namespace:    plan.Claim.Namespace,
		Claim:        plan.Claim.Name,
		ClaimUID:     string(plan.Claim.UID),
		PV:           plan.pvName(),
		Tenant:       plan.Decision.Tenant,
		StorageClass: plan.Class.Name,
	}
}

// findOne finds a volume or a snapshot by its ID or its name.
func findOne[T any](all []T, kind, where, wanted string, of func(T) (id, name string)) (one T, err error) {
	var named []T
	var ids []string
	for _, candidate := range all {
		switch id, name := of(candidate); wanted {
		case id:
			return candidate, nil
		case name:
			named, ids = append(named, candidate), append(ids, id)
		}
	}
	switch len(named) {
	case 0:
		return one, refused("%s has no %s with the ID or the name %q in its project; see standalone-cinder %[2]s list", where, kind, wanted)
	case 1:
		return named[0], nil
	}
	return one, refused("%d %ss of %s have the name %q: %s; give the ID of one", len(named), kind, where, wanted, strings.Join(ids, ", "))
}

// owner says in a few words whose volume or snapshot it is, by the object of this
// cluster that names it, and by the stamp.
func owner(object, stamped, cluster string) string {
	switch {
	case object != "" && stamped != "":
		return stamped + " (" + object + ")"
	case object != "":
		return object
	case cluster != "":
		return fmt.Sprintf("%s of cluster %s", stamped, cluster)
	}
	return "nobody"
}
