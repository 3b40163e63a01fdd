package provisioner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner/paging"
)

// Records is what a cluster knows of volumes, for an audit.
type Records struct {
	Volumes []VolumeRecord
	// Claims is every claim of the cluster, whoever serves it, by UID.
	Claims  map[string]ClaimRecord
	Secrets []SecretRecord
	// Names holds every PersistentVolume of the cluster, whoever made it.
	Names map[string]bool
	// NeededSecrets are the names of those that PersistentVolumes refer to.
	NeededSecrets map[string]bool
}

// RecordedBy is the PersistentVolume that names a volume, empty if there is none.
func (r Records) RecordedBy(v backends.Volume) string {
	for _, record := range r.Volumes {
		if record.VolumeID == v.ID {
			return record.PVName
		}
	}
	return ""
}

// VolumeRecord is a PersistentVolume of this program.
type VolumeRecord struct {
	Origin
	// Damage is what is wrong with the annotations; nil if nothing is.
	Damage    error
	Released  bool
	CreatedAt time.Time
}

// ClaimRecord is a claim as far as it matters to a volume.
type ClaimRecord struct {
	Namespace, Name string
	// Elsewhere says that it is bound to a PersistentVolume not made for it.
	Elsewhere bool
}

// SecretRecord is a Secret that this program made, for one PersistentVolume or
// for those that share it on a backend.
type SecretRecord struct {
	Name      string
	PV        string
	SharedBy  string
	Cluster   string
	CreatedAt time.Time
}

// Stamp is the stamp that the record's volume must carry.
func (r VolumeRecord) Stamp() backends.Stamp { return r.target().Stamp }

// PVNameFor is the name of the PersistentVolume that is made for a claim.
func PVNameFor(claimUID string) string { return pvNameFor(claimUID) }

// ClusterUID is the UID of namespace kube-system, the default clusterID.
func ClusterUID(ctx context.Context, client kubernetes.Interface) (string, error) {
	system, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("cannot read namespace %s, whose UID serves as clusterID: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}

// ReadRecords reads what a cluster knows of the volumes of a provisioner. It
// only lists. The Secrets are those in the program's own namespace.
//
// Claims are read before PersistentVolumes: whatever is recorded in between then
// shows as recorded.
func ReadRecords(ctx context.Context, client kubernetes.Interface, provisionerName, namespace string) (Records, error) {
	records := Records{Claims: map[string]ClaimRecord{}, Names: map[string]bool{}, NeededSecrets: map[string]bool{}}
	type claimed struct {
		uid string
		ClaimRecord
	}
	claims, _, err := listClaims(ctx, client, func(claim *corev1.PersistentVolumeClaim) claimed {
		return claimed{string(claim.UID), ClaimRecord{Namespace: claim.Namespace, Name: claim.Name, Elsewhere: boundElsewhere(claim)}}
	})
	if err != nil {
		return records, err
	}
	secrets, err := listSecrets(ctx, client, namespace)
	if err != nil {
		return records, err
	}
	type found struct {
		name, secret string
		record       *VolumeRecord // nil if the volume is not this program's
	}
	volumes, err := listPersistentVolumes(ctx, client, func(pv *corev1.PersistentVolume) found {
		f := found{name: pv.Name}
		if pv.Annotations[annotationSecretNamespace] == namespace {
			f.secret = pv.Annotations[annotationSecret]
		}
		if pv.Annotations[annotationProvisionedBy] == provisionerName && isOurs(pv) {
			origin, damage := originOf(pv)
			f.record = &VolumeRecord{
				Origin: origin, Damage: damage, Released: pv.Status.Phase == corev1.VolumeReleased, CreatedAt: pv.CreationTimestamp.Time,
			}
		}
		return f
	})
	if err != nil {
		return records, err
	}
	for _, claim := range claims {
		records.Claims[claim.uid] = claim.ClaimRecord
	}
	records.Secrets = secrets
	for _, f := range volumes {
		records.Names[f.name] = true
		if f.secret != "" {
			records.NeededSecrets[f.secret] = true
		}
		if f.record != nil {
			records.Volumes = append(records.Volumes, *f.record)
		}
	}
	return records, nil
}

// listSecrets lists the Secrets that this program made for volumes, without
// their values.
func listSecrets(ctx context.Context, client kubernetes.Interface, namespace string) ([]SecretRecord, error) {
	return paging.List(ctx, "Secrets in "+namespace, func(ctx context.Context, options metav1.ListOptions) ([]SecretRecord, string, error) {
		options.LabelSelector = labelManagedBy + "=" + managedBy
		list, err := client.CoreV1().Secrets(namespace).List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		var records []SecretRecord
		for i := range list.Items {
			secret := &list.Items[i]
			record := SecretRecord{
				Name: secret.Name, PV: secret.Annotations[annotationForPV], SharedBy: secret.Annotations[annotationSharedBy],
				Cluster: secret.Annotations[annotationCluster], CreatedAt: secret.CreationTimestamp.Time,
			}
			if record.PV != "" || record.SharedBy != "" {
				records = append(records, record)
			}
		}
		return records, list.Continue, nil
	})
}
