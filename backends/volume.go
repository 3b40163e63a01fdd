package backends

import (
	"maps"
	"strings"
	"time"
)

// Volume is what Cinder says of one volume, in the fields the program needs.
type Volume struct {
	ID          string
	Name        string
	Status      Status
	SizeGiB     int64
	Type        string
	Zone        string
	Encrypted   bool
	MultiAttach bool // several hosts may use it at once; from its type
	Metadata    map[string]string
	Attachments []Attachment
	CreatedAt   time.Time // one-second resolution, the server's clock
}

// Attachment is one entry of a volume's attachments.
type Attachment struct {
	ID       string
	Host     string // host_name given to os-attach; empty unless we are administrator
	ServerID string // a Nova instance, which we never are
	// Status is the attachment's own, known of those that the attachments API
	// lists.
	Status AttachmentStatus
}

// AttachmentStatus is the state of an attachment
// (cinder/objects/fields.py, VolumeAttachStatus).
type AttachmentStatus string

// An attachment is reserved until the volume is exported for it, and attached
// when it is completed.
const (
	attachmentReserved AttachmentStatus = "reserved"
	attachmentAttached AttachmentStatus = "attached"
)

// Status is Cinder's volume status.
// The full list is in cinder/objects/fields.py, VolumeStatus.
type Status string

// The states that a volume of ours passes through or may be found in.
const (
	StatusCreating       Status = "creating"
	StatusAvailable      Status = "available"
	StatusAttaching      Status = "attaching"
	StatusReserved       Status = "reserved"
	StatusInUse          Status = "in-use"
	StatusDetaching      Status = "detaching"
	StatusDeleting       Status = "deleting"
	StatusError          Status = "error"
	StatusErrorDeleting  Status = "error_deleting"
	StatusErrorExtending Status = "error_extending"
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

// The metadata keys that Cinder itself writes with os-attach. The second goes
// with os-detach, the first stays.
const (
	cinderReadOnly     = "readonly"
	cinderAttachedMode = "attached_mode"
)

// Metadata renders the stamp over the operator's own metadata; the stamp wins.
// Cinder's own keys are left to Cinder: they tell whether a volume was ever
// attached.
func (s Stamp) Metadata(own map[string]string) map[string]string {
	metadata := make(map[string]string, len(own)+7)
	maps.Copy(metadata, own)
	delete(metadata, cinderReadOnly)
	delete(metadata, cinderAttachedMode)
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
func StampOf(v Volume) Stamp {
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
func (s Stamp) Owns(v Volume) bool {
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
func (v Volume) EverAttached() bool {
	_, attached := v.Metadata[cinderReadOnly]
	_, marked := v.Metadata[stampAttached]
	return attached || marked || v.Status == StatusInUse
}

// workflow is how the volume was connected, or is to be.
func (v Volume) workflow() Workflow {
	if v.Metadata[stampWorkflow] == string(WorkflowAttachment) {
		return WorkflowAttachment
	}
	return WorkflowReserve
}

// copyAfter is how much later than its request a volume may come into being.
// Both times are by Cinder's clock, and the request has a time-out.
const copyAfter = 15 * time.Minute

// IsCopy reports whether a volume carries the stamp of another that it was made
// from: Cinder restores a backup together with the metadata of the volume that
// was backed up (put_metadata in cinder/backup/driver.py). Such a volume is
// somebody's rescued data, and younger than the request that the stamp tells of.
func (v Volume) IsCopy() bool {
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
func looksHistoric(v Volume) bool {
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
