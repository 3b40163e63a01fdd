package objects

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// Records is what a cluster records about volumes, for an audit.
type Records struct {
	Volumes []*Volume
	// Claims are all claims of the cluster, of every provisioner, by UID.
	Claims  map[string]Claim
	Secrets []Secret
	// Names are the names of all PersistentVolumes of the cluster, of every
	// provisioner.
	Names map[string]bool
	// NeededSecrets are the names of the Secrets that PersistentVolumes refer to.
	NeededSecrets map[string]bool
	// Attachments are the VolumeAttachments of the CSI driver, by the name of the
	// PersistentVolume. They are read only if the cluster has volumes of the driver.
	Attachments map[string][]Attachment
}

// RecordedBy returns the name of the PersistentVolume that names a volume; empty if
// there is none.
func (r Records) RecordedBy(v cinder.Volume) string {
	for _, record := range r.Volumes {
		if record.VolumeID == v.ID {
			return record.PVName
		}
	}
	return ""
}

// Volume is a PersistentVolume of this program. Read omits its connector.
type Volume struct {
	Origin
	// Damage is what is wrong with the annotations; nil if nothing is.
	Damage   error
	Released bool
	// Deleted means that it is released with the policy Delete, so its volume is deleted,
	// and then the PersistentVolume.
	Deleted   bool
	CreatedAt time.Time
}

// Claim is the part of a claim that matters to a volume.
type Claim struct {
	// Elsewhere means that it is bound to a PersistentVolume not created for it.
	Elsewhere bool
}

// Secret is a Secret of this program, for one PersistentVolume or shared by those of a
// backend.
type Secret struct {
	Name      string
	PV        string
	SharedBy  string
	Cluster   string
	CreatedAt time.Time
	// UnneededSince is zero if a leader did not find a shared Secret unneeded.
	UnneededSince time.Time
}

// Stamp returns the stamp that the volume must carry.
func (r Volume) Stamp() stamps.Volume { return r.Target().Stamp }

// ClusterUID returns the UID of namespace kube-system, the default clusterID.
func ClusterUID(ctx context.Context, client kubernetes.Interface) (string, error) {
	system, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("cannot read namespace %s, whose UID is the default clusterID: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}

// Read reads what a cluster records about a provisioner's volumes. It only lists. The
// Secrets are those in the program's own namespace.
//
// It reads claims before PersistentVolumes, so that a volume recorded in between shows as
// recorded.
func Read(ctx context.Context, client kubernetes.Interface, provisionerName, namespace string) (Records, error) {
	r := newReader(provisionerName, namespace)
	claims, _, err := ListClaims(ctx, client, r.claim)
	if err != nil {
		return Records{}, err
	}
	secrets, err := ListSecrets(ctx, client, namespace)
	if err != nil {
		return Records{}, err
	}
	volumes, err := ListPersistentVolumes(ctx, client, r.volume)
	if err != nil {
		return Records{}, err
	}
	return r.records(ctx, client, claims, secrets, volumes)
}

// Caches are a replica's caches of a cluster.
type Caches struct {
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
}

// ReadCached is like Read, but takes claims and PersistentVolumes, nearly all of what
// Read lists, from a replica's caches. Caches may lag, so findings based on them must be
// confirmed with Read.
func ReadCached(ctx context.Context, client kubernetes.Interface, caches Caches, provisionerName, namespace string) (Records, error) {
	r := newReader(provisionerName, namespace)
	claims, err := caches.Claims.List(labels.Everything())
	if err != nil {
		return Records{}, err
	}
	secrets, err := ListSecrets(ctx, client, namespace)
	if err != nil {
		return Records{}, err
	}
	volumes, err := caches.PersistentVolumes.List(labels.Everything())
	if err != nil {
		return Records{}, err
	}
	return r.records(ctx, client, each(claims, r.claim), secrets, each(volumes, r.volume))
}

func each[T, R any](all []T, record func(T) R) []R {
	records := make([]R, len(all))
	for i, one := range all {
		records[i] = record(one)
	}
	return records
}

// reader turns objects into Records.
type reader struct {
	provisionerName, namespace string
	// texts holds each text once. A cluster has few backends, tenants and places, but
	// each object has its own copy of their names.
	texts map[string]string
}

func newReader(provisionerName, namespace string) *reader {
	return &reader{provisionerName: provisionerName, namespace: namespace, texts: map[string]string{}}
}

type readClaim struct {
	uid string
	Claim
}

func (r *reader) claim(claim *corev1.PersistentVolumeClaim) readClaim {
	return readClaim{string(claim.UID), Claim{Elsewhere: BoundElsewhere(claim) && !HasOwnPV(claim)}}
}

type readVolume struct {
	name, secret string
	record       *Volume // nil if the volume is not this program's
}

func (r *reader) volume(pv *corev1.PersistentVolume) readVolume {
	read := readVolume{name: pv.Name}
	if pv.Annotations[AnnotationSecretNamespace] == r.namespace {
		read.secret = pv.Annotations[AnnotationSecret]
	}
	if pv.Annotations[AnnotationProvisionedBy] == r.provisionerName && IsOurs(pv) {
		origin, damage := OriginOf(pv)
		r.share(&origin.Backend, &origin.Tenant, &origin.Protocol, &origin.Cluster, &origin.SecretNamespace, &origin.Place.Endpoint, &origin.Place.Project)
		origin.Connector = cinder.Connector{} // an audit disconnects nothing
		read.record = &Volume{
			Origin: origin, Damage: damage, Released: pv.Status.Phase == corev1.VolumeReleased,
			Deleted:   pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete,
			CreatedAt: pv.CreationTimestamp.Time,
		}
	}
	return read
}

func (r *reader) share(texts ...*string) {
	for _, text := range texts {
		known, ok := r.texts[*text]
		if !ok {
			known = *text
			r.texts[known] = known
		}
		*text = known
	}
}

// records also lists the VolumeAttachments if a volume may have any.
func (r *reader) records(ctx context.Context, client kubernetes.Interface, claims []readClaim, secrets []Secret, volumes []readVolume) (Records, error) {
	records := Records{Claims: make(map[string]Claim, len(claims)), Names: make(map[string]bool, len(volumes)), NeededSecrets: map[string]bool{}, Secrets: secrets}
	for _, claim := range claims {
		records.Claims[claim.uid] = claim.Claim
	}
	ours := 0
	for _, volume := range volumes {
		if volume.record != nil {
			ours++
		}
	}
	records.Volumes = make([]*Volume, 0, ours)
	for _, volume := range volumes {
		records.Names[volume.name] = true
		if volume.secret != "" {
			records.NeededSecrets[volume.secret] = true
		}
		if volume.record != nil {
			records.Volumes = append(records.Volumes, volume.record)
		}
	}
	var err error
	if slices.ContainsFunc(records.Volumes, func(v *Volume) bool { return v.CSI }) {
		records.Attachments, err = listAttachments(ctx, client)
	}
	return records, err
}

// ListSecrets lists this program's Secrets for volumes, without their values.
func ListSecrets(ctx context.Context, client kubernetes.Interface, namespace string) ([]Secret, error) {
	list := func(ctx context.Context, options metav1.ListOptions) (*corev1.SecretList, error) {
		options.LabelSelector = LabelManagedBy + "=" + ManagedBy
		return client.CoreV1().Secrets(namespace).List(ctx, options)
	}
	return paging.List(ctx, "Secrets in "+namespace, list, func(page *corev1.SecretList) (records []Secret) {
		for i := range page.Items {
			secret := &page.Items[i]
			record := Secret{
				Name: secret.Name, PV: secret.Annotations[AnnotationForPV], SharedBy: secret.Annotations[AnnotationSharedBy],
				Cluster: secret.Annotations[AnnotationCluster], CreatedAt: secret.CreationTimestamp.Time, UnneededSince: UnneededSince(secret),
			}
			if record.PV != "" || record.SharedBy != "" {
				records = append(records, record)
			}
		}
		return records
	})
}
