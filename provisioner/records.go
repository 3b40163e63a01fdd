package provisioner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
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
	claims, err := listClaims(ctx, client)
	if err != nil {
		return records, err
	}
	secrets, err := listSecrets(ctx, client, namespace)
	if err != nil {
		return records, err
	}
	volumes, err := listPersistentVolumes(ctx, client)
	if err != nil {
		return records, err
	}
	for i := range claims {
		records.Claims[string(claims[i].UID)] = ClaimRecord{
			Namespace: claims[i].Namespace, Name: claims[i].Name, Elsewhere: boundElsewhere(&claims[i]),
		}
	}
	records.Secrets = secrets
	for i := range volumes {
		pv := &volumes[i]
		records.Names[pv.Name] = true
		if secret := pv.Annotations[annotationSecret]; secret != "" && pv.Annotations[annotationSecretNamespace] == namespace {
			records.NeededSecrets[secret] = true
		}
		if pv.Annotations[annotationProvisionedBy] != provisionerName || !isOurs(pv) {
			continue
		}
		origin, damage := originOf(pv)
		records.Volumes = append(records.Volumes, VolumeRecord{
			Origin: origin, Damage: damage, Released: pv.Status.Phase == corev1.VolumeReleased, CreatedAt: pv.CreationTimestamp.Time,
		})
	}
	return records, nil
}

// listSecrets lists the Secrets that this program made for volumes, without
// their values.
func listSecrets(ctx context.Context, client kubernetes.Interface, namespace string) ([]SecretRecord, error) {
	return listAll(ctx, "Secrets in "+namespace, func(ctx context.Context, options metav1.ListOptions) ([]SecretRecord, string, error) {
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
