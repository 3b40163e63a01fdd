package backends

import (
	"maps"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// The metadata keys of a stamp. Claim and PersistentVolume use the keys that
// the Kubernetes CSI sidecars made common, so that existing chargeback tools
// read them; the rest is under this project's own prefix.
const (
	StampPrefix       = "standalone-cinder.openstack.org/"
	stampCluster      = StampPrefix + "cluster"
	stampClusterUID   = StampPrefix + "kube-system-uid"
	stampClaimUID     = StampPrefix + "claim-uid"
	stampTenant       = StampPrefix + "tenant"
	stampStorageClass = StampPrefix + "storage-class"
	stampRequested    = StampPrefix + "requested-at"
	// stampRequest is what was asked for; see Spec.request.
	stampRequest  = StampPrefix + "requested"
	stampWorkflow = StampPrefix + "workflow"
	// stampAttached is written before an attachment is completed. Cinder itself
	// leaves such a mark with os-attach only.
	stampAttached  = StampPrefix + "attached"
	stampNamespace = "csi.storage.k8s.io/pvc/namespace"
	stampClaim     = "csi.storage.k8s.io/pvc/name"
	stampPV        = "csi.storage.k8s.io/pv/name"
)

// Stamp says to which cluster, claim and PersistentVolume a volume belongs.
// It is written with the create request, so that no volume of ours exists
// without it.
type Stamp struct {
	Cluster string
	// ClusterUID is the UID of the cluster's namespace kube-system. Cluster is
	// configured, and two clusters may have been given the same one.
	ClusterUID   string
	Namespace    string // the claim's
	Claim        string
	ClaimUID     string
	PV           string
	Tenant       string
	StorageClass string
}

// Metadata renders the stamp over the operator's own metadata; the stamp wins.
// Cinder's own keys are left to Cinder: they tell whether a volume was ever
// attached.
func (s Stamp) Metadata(own map[string]string) map[string]string {
	metadata := make(map[string]string, len(own)+7)
	maps.Copy(metadata, own)
	delete(metadata, cinder.MetadataReadOnly)
	delete(metadata, cinder.MetadataAttachedMode)
	metadata[stampCluster] = s.Cluster
	if s.ClusterUID != "" {
		metadata[stampClusterUID] = s.ClusterUID
	}
	metadata[stampNamespace] = s.Namespace
	metadata[stampClaim] = s.Claim
	metadata[stampClaimUID] = s.ClaimUID
	metadata[stampPV] = s.PV
	metadata[stampTenant] = s.Tenant
	metadata[stampStorageClass] = s.StorageClass
	return metadata
}

// StampOf reads a volume's stamp; absent keys give empty fields.
func StampOf(v cinder.Volume) Stamp {
	return Stamp{
		Cluster:      v.Metadata[stampCluster],
		ClusterUID:   v.Metadata[stampClusterUID],
		Namespace:    v.Metadata[stampNamespace],
		Claim:        v.Metadata[stampClaim],
		ClaimUID:     v.Metadata[stampClaimUID],
		PV:           v.Metadata[stampPV],
		Tenant:       v.Metadata[stampTenant],
		StorageClass: v.Metadata[stampStorageClass],
	}
}

// Owns reports whether the volume provably belongs to the same cluster, claim
// and PersistentVolume. Tenant and StorageClass take no part: they may be
// renamed in the policy during a volume's life.
func (s Stamp) Owns(v cinder.Volume) bool {
	other := StampOf(v)
	return s.Cluster != "" && s.Cluster == other.Cluster &&
		s.ClaimUID != "" && s.ClaimUID == other.ClaimUID &&
		s.PV != "" && s.PV == other.PV
}

// EverAttached reports whether the volume is or was in use. It is brought into
// use only when a PersistentVolume was seen that names it, so that one that
// never was in use was never recorded. For os-attach see attach_volume in
// Cinder's cinder/volume/manager.py; completing an attachment leaves no mark of
// Cinder's, so that one of ours is written before.
func EverAttached(v cinder.Volume) bool {
	_, attached := v.Metadata[cinder.MetadataReadOnly]
	_, marked := v.Metadata[stampAttached]
	return attached || marked || v.Status == cinder.StatusInUse
}

// attachedMark is written on a volume that is about to be in use.
func attachedMark() map[string]string { return map[string]string{stampAttached: "true"} }

// workflowOf is how the volume was connected, or is to be.
func workflowOf(v cinder.Volume) cinder.Workflow {
	if v.Metadata[stampWorkflow] == string(cinder.WorkflowAttachment) {
		return cinder.WorkflowAttachment
	}
	return cinder.WorkflowReserve
}

// copyAfter is how much later than its request a volume may come into being.
// Both times are by Cinder's clock, and the request has a time-out.
const copyAfter = 15 * time.Minute

// IsCopy reports whether a volume carries the stamp of another that it was made
// from: Cinder restores a backup together with the metadata of the volume that
// was backed up (put_metadata in cinder/backup/driver.py). Such a volume is
// somebody's rescued data, and younger than the request that the stamp tells of.
func IsCopy(v cinder.Volume) bool {
	at, err := time.Parse(time.RFC3339, v.Metadata[stampRequested])
	return err == nil && v.CreatedAt.Sub(at) > copyAfter
}

// Marks of a volume made by the historic provisioner, which wrote no stamp.
const (
	historicNamePrefix = "cinder-dynamic-pvc-"
	historicHost       = "standalone-cinder.k8s.io"
)

// looksHistoric reports whether a volume carries the marks of the historic
// provisioner and is attached to nobody else. The caller must also hold a
// PersistentVolume that names this volume and that provisioner.
func looksHistoric(v cinder.Volume) bool {
	if !strings.HasPrefix(v.Name, historicNamePrefix) || StampOf(v).Cluster != "" {
		return false
	}
	for _, attachment := range v.Attachments {
		if attachment.ServerID != "" || attachment.Host != "" && attachment.Host != historicHost {
			return false
		}
	}
	return true
}
