package record

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/paging"
)

// Records is what a cluster knows about volumes, for an audit.
type Records struct {
	Volumes []Volume
	// Claims are all claims of the cluster, of every provisioner, by UID.
	Claims  map[string]Claim
	Secrets []Secret
	// Names are those of all PersistentVolumes of the cluster, of every
	// provisioner.
	Names map[string]bool
	// NeededSecrets are the names of the Secrets that PersistentVolumes refer to.
	NeededSecrets map[string]bool
	// Attachments are the VolumeAttachments of the CSI driver, by the name of the
	// PersistentVolume; they are read if it has any.
	Attachments map[string][]Attachment
}

// RecordedBy is the PersistentVolume that names a volume, empty if there is
// none.
func (r Records) RecordedBy(v cinder.Volume) string {
	for _, record := range r.Volumes {
		if record.VolumeID == v.ID {
			return record.PVName
		}
	}
	return ""
}

// Volume is a PersistentVolume of this program. That of Read has no connector.
type Volume struct {
	Origin
	// Damage is what is wrong with the annotations; nil if nothing is.
	Damage    error
	Released  bool
	CreatedAt time.Time
}

// Claim is the part of a claim that matters to a volume.
type Claim struct {
	// Elsewhere means that it is bound to a PersistentVolume not made for it.
	Elsewhere bool
}

// Secret is a Secret that this program made, for one PersistentVolume or for
// those that share it on a backend.
type Secret struct {
	Name      string
	PV        string
	SharedBy  string
	Cluster   string
	CreatedAt time.Time
}

// Stamp is the stamp that the record's volume must carry.
func (r Volume) Stamp() stamps.Volume { return r.Target().Stamp }

// ClusterUID is the UID of namespace kube-system, the default clusterID.
func ClusterUID(ctx context.Context, client kubernetes.Interface) (string, error) {
	system, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("cannot read namespace %s, whose UID is the default clusterID: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}

// Read reads what a cluster knows about the volumes of a provisioner. It only
// lists. The Secrets are those in the program's own namespace.
//
// It reads claims before PersistentVolumes: a volume that is recorded in
// between then shows as recorded.
func Read(ctx context.Context, client kubernetes.Interface, provisionerName, namespace string) (Records, error) {
	records := Records{Claims: map[string]Claim{}, Names: map[string]bool{}, NeededSecrets: map[string]bool{}}
	type claimed struct {
		uid string
		Claim
	}
	claims, _, err := ListClaims(ctx, client, func(claim *corev1.PersistentVolumeClaim) claimed {
		return claimed{string(claim.UID), Claim{Elsewhere: BoundElsewhere(claim) && !HasOwnPV(claim)}}
	})
	if err != nil {
		return records, err
	}
	secrets, err := ListSecrets(ctx, client, namespace)
	if err != nil {
		return records, err
	}
	type found struct {
		name, secret string
		record       *Volume // nil if the volume is not this program's
	}
	// A cluster has few backends, tenants and places, and each object its own copy of
	// their names.
	texts := map[string]string{}
	share := func(shared ...*string) {
		for _, text := range shared {
			known, ok := texts[*text]
			if !ok {
				known = *text
				texts[known] = known
			}
			*text = known
		}
	}
	volumes, err := ListPersistentVolumes(ctx, client, func(pv *corev1.PersistentVolume) found {
		f := found{name: pv.Name}
		if pv.Annotations[AnnotationSecretNamespace] == namespace {
			f.secret = pv.Annotations[AnnotationSecret]
		}
		if pv.Annotations[AnnotationProvisionedBy] == provisionerName && IsOurs(pv) {
			origin, damage := OriginOf(pv)
			share(&origin.Backend, &origin.Tenant, &origin.Protocol, &origin.Cluster, &origin.SecretNamespace, &origin.Place.Endpoint, &origin.Place.Project)
			origin.Connector = cinder.Connector{} // an audit disconnects nothing
			f.record = &Volume{
				Origin: origin, Damage: damage, Released: pv.Status.Phase == corev1.VolumeReleased, CreatedAt: pv.CreationTimestamp.Time,
			}
		}
		return f
	})
	if err != nil {
		return records, err
	}
	for _, claim := range claims {
		records.Claims[claim.uid] = claim.Claim
	}
	records.Secrets = secrets
	ours := 0
	for _, f := range volumes {
		if f.record != nil {
			ours++
		}
	}
	records.Volumes = make([]Volume, 0, ours)
	for _, f := range volumes {
		records.Names[f.name] = true
		if f.secret != "" {
			records.NeededSecrets[f.secret] = true
		}
		if f.record != nil {
			records.Volumes = append(records.Volumes, *f.record)
		}
	}
	if slices.ContainsFunc(records.Volumes, func(v Volume) bool { return v.CSI }) {
		records.Attachments, err = listAttachments(ctx, client)
	}
	return records, err
}

// ListSecrets lists the Secrets that this program made for volumes, without
// their values.
func ListSecrets(ctx context.Context, client kubernetes.Interface, namespace string) ([]Secret, error) {
	return paging.List(ctx, "Secrets in "+namespace, func(ctx context.Context, options metav1.ListOptions) ([]Secret, string, error) {
		options.LabelSelector = LabelManagedBy + "=" + ManagedBy
		list, err := client.CoreV1().Secrets(namespace).List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		var records []Secret
		for i := range list.Items {
			secret := &list.Items[i]
			record := Secret{
				Name: secret.Name, PV: secret.Annotations[AnnotationForPV], SharedBy: secret.Annotations[AnnotationSharedBy],
				Cluster: secret.Annotations[AnnotationCluster], CreatedAt: secret.CreationTimestamp.Time,
			}
			if record.PV != "" || record.SharedBy != "" {
				records = append(records, record)
			}
		}
		return records, list.Continue, nil
	})
}
