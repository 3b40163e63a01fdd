package objects

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// ReadExisting reads the claims and PersistentVolumes of a provisioner from a
// cluster, for review.Of. It omits those of other provisioners.
//
// It reads claims before PersistentVolumes: a claim bound in between then shows as a
// pending claim with a volume, which is fine. In the other order, it would show as a
// bound claim whose volume is missing.
func ReadExisting(ctx context.Context, client kubernetes.Interface, provisionerName string) (review.Existing, error) {
	var existing review.Existing
	trimmer := NewTrimmer()
	claims, _, err := ListClaims(ctx, client, func(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		trimmer.Claim(claim)
		return claim
	})
	if err != nil {
		return existing, err
	}
	sources := listedSources{claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}}
	byUID := make(map[string]*corev1.PersistentVolumeClaim, len(claims))
	for _, claim := range claims {
		sources.claims[claim.Namespace+"/"+claim.Name] = claim
		byUID[string(claim.UID)] = claim
	}
	for _, claim := range claims {
		sources.want(claim)
	}
	volumes, err := ListPersistentVolumes(ctx, client, func(pv *corev1.PersistentVolume) *review.Volume {
		if _, wanted := sources.volumes[pv.Name]; wanted {
			sources.volumes[pv.Name] = pv
		}
		historic := pv.Annotations[HistoricIdentity] != "" || pv.Annotations[HistoricVolume] != ""
		if pv.Annotations[AnnotationProvisionedBy] != provisionerName || !IsOurs(pv) && !historic {
			return nil
		}
		volume := existingVolume(pv)
		return &volume
	})
	if err != nil {
		return existing, err
	}
	namespaces, err := paging.List(ctx, "Namespaces", client.CoreV1().Namespaces().List, func(page *corev1.NamespaceList) []corev1.Namespace { return page.Items })
	if err != nil {
		return existing, err
	}
	classes, err := paging.List(ctx, "StorageClasses", client.StorageV1().StorageClasses().List, func(page *storagev1.StorageClassList) []storagev1.StorageClass { return page.Items })
	if err != nil {
		return existing, err
	}

	labels := map[string]map[string]string{}
	for i := range namespaces {
		labels[namespaces[i].Name] = namespaces[i].Labels
		if namespaces[i].Name == metav1.NamespaceSystem {
			existing.Cluster = string(namespaces[i].UID)
		}
	}
	byName := map[string]*storagev1.StorageClass{}
	for i := range classes {
		byName[classes[i].Name] = &classes[i]
		if IsServed(classes[i].Provisioner, provisionerName) {
			existing.Classes = append(existing.Classes, admission.ClassOf(&classes[i]))
		}
	}
	slices.SortFunc(claims, byAge)
	for _, claim := range claims {
		class := byName[ClassName(claim)]
		if !IsServed(servedBy(claim, class), provisionerName) {
			continue
		}
		described := existingClaim(claim, class, labels[claim.Namespace], sources)
		if _, isPopulators := policy.PopulatedUID(claim.Name); isPopulators {
			// The policy decides whether the namespace is a populator's.
			target, missing := admission.PopulatedClaim(claim, func(uid string) *corev1.PersistentVolumeClaim { return byUID[uid] })
			described.Request.Populated = admission.PopulatedOf(target, nil, missing)
			described.Request.Populated.NamespaceLabels = labels[described.Request.Populated.Namespace]
		}
		if err := readAttributes(ctx, client, &described); err != nil {
			return existing, err
		}
		existing.Claims = append(existing.Claims, described)
	}
	for _, volume := range volumes {
		if volume != nil {
			existing.Volumes = append(existing.Volumes, *volume)
		}
	}
	return existing, nil
}

// readAttributes reads the VolumeAttributesClass that a claim without a volume names. A
// bound claim needs none: the rule no longer decides its volume's type.
func readAttributes(ctx context.Context, client kubernetes.Interface, claim *review.Claim) error {
	named := claim.Request.Attributes
	if named == nil || claim.Bound {
		claim.Request.Attributes = nil
		return nil
	}
	class, err := client.StorageV1().VolumeAttributesClasses().Get(ctx, named.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		claim.Request.Attributes = admission.AttributesClassOf(class)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read VolumeAttributesClass %s of claim %s/%s: %w", named.Name, claim.Request.Namespace, claim.Name, err)
	}
	return nil
}

// ListClaims reads all claims and keeps only what record extracts from each: it drops
// each page's objects before it reads the next. It also returns the list's resource
// version.
func ListClaims[R any](ctx context.Context, client kubernetes.Interface, record func(*corev1.PersistentVolumeClaim) R) (records []R, version string, err error) {
	records, err = paging.List(ctx, "PersistentVolumeClaims", client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List, func(page *corev1.PersistentVolumeClaimList) []R {
		version = page.ResourceVersion
		return recordsOf(page.Items, record)
	})
	return records, version, err
}

// ListPersistentVolumes does for PersistentVolumes what ListClaims does for claims.
func ListPersistentVolumes[R any](ctx context.Context, client kubernetes.Interface, record func(*corev1.PersistentVolume) R) ([]R, error) {
	return paging.List(ctx, "PersistentVolumes", client.CoreV1().PersistentVolumes().List, func(page *corev1.PersistentVolumeList) []R {
		return recordsOf(page.Items, record)
	})
}

func recordsOf[T, R any](page []T, record func(*T) R) []R {
	records := make([]R, len(page))
	for i := range page {
		records[i] = record(&page[i])
	}
	return records
}

// byAge orders claims as they get freed room, oldest first.
func byAge(a, b *corev1.PersistentVolumeClaim) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
	)
}

// servedBy returns the provisioner that a claim is for. Kubernetes writes its name on the
// claim when a volume is wanted. A claim that waits for a pod, or was bound to an
// existing volume, lacks it, so its StorageClass decides.
func servedBy(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if name := ProvisionerOf(claim); name != "" || class == nil {
		return name
	}
	return class.Provisioner
}

func existingClaim(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, namespaceLabels map[string]string, sources listedSources) review.Claim {
	request := RequestOf(claim, class, namespaceLabels)
	existing := review.Claim{
		Request:     request,
		Name:        claim.Name,
		UID:         string(claim.UID),
		ClassExists: class != nil,
		Bound:       claim.Status.Phase == corev1.ClaimBound,
		Volume:      claim.Spec.VolumeName,
		OnePod:      slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod),
		Refusal:     admission.Refusal(claim, request.Parameters),
		Asks:        AsksForImport(claim) && (claim.Spec.VolumeName == "" || strings.HasPrefix(claim.Spec.VolumeName, importedPrefix)),
		Import:      claim.Annotations[AnnotationImport],
	}
	if named, _ := admission.DataSourceOf(claim, request.Parameters); named != nil && named.Kind == admission.ClaimKind && existing.Refusal == nil {
		// The only error of listedSources is NotFound, which becomes a denial.
		source, denial, _ := SourceOf(claim, named, "", sources)
		if existing.Refusal = denial; source != nil {
			existing.Request.Source = &source.Decided
		}
	}
	return existing
}

// listedSources are the claims of a listing, and the PersistentVolumes of those that
// others copy.
type listedSources struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
}

// want records the PersistentVolume whose content a claim requests.
func (l listedSources) want(claim *corev1.PersistentVolumeClaim) {
	// The parameters do not matter: a superfluous PersistentVolume is harmless.
	named, _ := admission.DataSourceOf(claim, map[string]string{"smartclone": "true"})
	if named == nil || named.Kind != admission.ClaimKind {
		return
	}
	if source, err := l.Claim(claim.Namespace, named.Name); err == nil && source.Spec.VolumeName != "" {
		l.volumes[source.Spec.VolumeName] = nil
	}
}

func (l listedSources) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	if claim := l.claims[namespace+"/"+name]; claim != nil {
		return claim, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
}

func (l listedSources) PersistentVolume(name string) (*corev1.PersistentVolume, error) {
	if pv := l.volumes[name]; pv != nil {
		return pv, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumes"), name)
}

// existingVolume reads what a PersistentVolume records. Like the ledger, it reports
// damaged parts and uses the rest.
func existingVolume(pv *corev1.PersistentVolume) review.Volume {
	origin, err := OriginOf(pv)
	volume := review.Volume{
		Name:         pv.Name,
		Backend:      origin.Backend,
		Place:        review.Place(origin.Place),
		Tenant:       pv.Annotations[AnnotationTenant],
		StorageClass: pv.Spec.StorageClassName,
		GiB:          SizeGiB(pv),
		Cluster:      origin.Cluster,
		ClaimUID:     origin.ClaimUID,
		Retain:       pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain,
		Historic:     !IsOurs(pv),
		Encrypted:    EncryptedOf(pv) != "",
	}
	if err != nil {
		volume.Damage = err.Error()
	}
	return volume
}
