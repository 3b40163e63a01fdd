package backends

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// The metadata keys of a stamp. Claim and PersistentVolume use the keys that
// the Kubernetes CSI sidecars established, so that existing chargeback tools
// can read them; the others have this project's prefix.
const (
	StampPrefix       = "standalone-cinder.openstack.org/"
	stampCluster      = StampPrefix + "cluster"
	stampClusterUID   = StampPrefix + "kube-system-uid"
	stampClaimUID     = StampPrefix + "claim-uid"
	stampTenant       = StampPrefix + "tenant"
	stampStorageClass = StampPrefix + "storage-class"
	stampRequested    = StampPrefix + "requested-at"
	// stampRequest records the request; see Spec.request.
	stampRequest  = StampPrefix + "requested"
	stampWorkflow = StampPrefix + "workflow"
	// StampMode says that nodes get the volume each for itself, by its value ModeCSI.
	// Without it, all nodes of the cluster share one connection.
	StampMode = StampPrefix + "mode"
	// NodeRecordPrefix and a node's key are the key under which a volume of mode csi
	// records the attachment that was handed out to that node; see NodeRecord.
	NodeRecordPrefix = StampPrefix + "node."
	// uncleanPrefix and a node's key are the key of a note that the node may still write
	// to the volume; see Unclean.
	uncleanPrefix = StampPrefix + "unclean."
	// stampFilesystemUUIDs is the first of the keys under which a volume of mode csi
	// records the UUIDs that its filesystem may have; see FilesystemUUIDsOf.
	stampFilesystemUUIDs = StampPrefix + "filesystem-uuids"
	// stampAttached is written before an attachment is completed. Cinder itself
	// leaves such a mark only with os-attach.
	stampAttached = StampPrefix + "attached"
	// stampContested is not empty on a volume that another party reserved while it
	// was being imported.
	stampContested = StampPrefix + "contested"
	stampNamespace = "csi.storage.k8s.io/pvc/namespace"
	stampClaim     = "csi.storage.k8s.io/pvc/name"
	stampPV        = "csi.storage.k8s.io/pv/name"
)

// ModeCSI is the value of StampMode.
const ModeCSI = "csi"

// isOurKey selects the metadata that the lifecycle reads: what it writes itself,
// and Cinder's marks.
func isOurKey(key string) bool {
	switch key {
	case stampNamespace, stampClaim, stampPV, cinder.MetadataReadOnly, cinder.MetadataAttachedMode,
		stampSnapshotNamespace, stampSnapshot, stampSnapshotContent:
		return true
	}
	return strings.HasPrefix(key, StampPrefix)
}

// Stamp identifies the cluster, claim and PersistentVolume that a volume
// belongs to. The create request contains it, so that none of the program's
// volumes exists without it.
type Stamp struct {
	Cluster string
	// ClusterUID is the UID of the cluster's namespace kube-system. Cluster is
	// configured, and may be the same for two clusters by mistake.
	ClusterUID   string
	Namespace    string // the claim's
	Claim        string
	ClaimUID     string
	PV           string
	Tenant       string
	StorageClass string
}

// Metadata adds the stamp to the operator's metadata; the stamp wins. It leaves
// Cinder's own keys to Cinder: they show whether a volume was ever attached.
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

// StampOf reads a volume's stamp; missing keys give empty fields.
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
// and PersistentVolume. It ignores tenant and StorageClass, which may be
// renamed in the policy during a volume's life.
func (s Stamp) Owns(v cinder.Volume) bool {
	other := StampOf(v)
	return s.Cluster != "" && s.Cluster == other.Cluster &&
		s.ClaimUID != "" && s.ClaimUID == other.ClaimUID &&
		s.PV != "" && s.PV == other.PV
}

// EverAttached reports whether the volume is or was in use. It is brought into
// use only after a PersistentVolume that names it was seen, so that a volume
// that was never in use was never recorded. For os-attach see attach_volume in
// Cinder's cinder/volume/manager.py; Cinder leaves no mark when an attachment
// is completed, so the program writes its own before.
func EverAttached(v cinder.Volume) bool {
	_, attached := v.Metadata[cinder.MetadataReadOnly]
	_, marked := v.Metadata[stampAttached]
	return attached || marked || v.Status == cinder.StatusInUse
}

// attachedMark is written on a volume that is about to be in use.
func attachedMark() map[string]string { return map[string]string{stampAttached: "true"} }

// IsCSI reports whether the CSI driver attaches the volume to each node that uses
// it. Such a volume is available while no node does, and is never connected to the
// nodes' shared connector.
func IsCSI(v cinder.Volume) bool { return v.Metadata[StampMode] == ModeCSI }

// FilesystemUUIDsOf are the UUIDs that the filesystem of a volume may have besides the
// volume's own ID, as far as they are recorded on the volume: by the program, when it made
// the volume as a copy or imported it, or by an administrator of the project. What is not
// a UUID names no filesystem, and is left out.
func FilesystemUUIDsOf(v cinder.Volume) []string {
	var found []string
	for n := 0; ; n++ {
		recorded, exists := v.Metadata[filesystemsKey(n)]
		if !exists {
			return found
		}
		for text := range strings.SplitSeq(recorded, ",") {
			if id, err := uuid.Parse(strings.TrimSpace(text)); err == nil && id != uuid.Nil && !slices.Contains(found, id.String()) {
				found = append(found, id.String())
			}
		}
	}
}

// filesystemsKey is the nth key of those for filesystem UUIDs.
func filesystemsKey(n int) string {
	if n == 0 {
		return stampFilesystemUUIDs
	}
	return stampFilesystemUUIDs + "." + strconv.Itoa(n)
}

// uuidsPerKey is how many UUIDs, with commas between them, a value has room for.
const uuidsPerKey = (longestMetadata + 1) / 37

// recordFilesystems adds the record of UUIDs to a volume's metadata.
func recordFilesystems(metadata map[string]string, uuids []string) {
	n := 0
	for some := range slices.Chunk(uuids, uuidsPerKey) {
		metadata[filesystemsKey(n)] = strings.Join(some, ",")
		n++
	}
}

// workflowOf is how the volume was or will be connected.
func workflowOf(v cinder.Volume) cinder.Workflow {
	if v.Metadata[stampWorkflow] == string(cinder.WorkflowAttachment) || v.Metadata[StampMode] == ModeCSI {
		return cinder.WorkflowAttachment
	}
	return cinder.WorkflowReserve
}

// copyAfter is how much later than its request a volume may be created. Both
// times are by Cinder's clock, and the request has a timeout.
const copyAfter = 15 * time.Minute

// IsCopy reports whether a volume carries the stamp of the volume that it was
// made from: Cinder restores a backup together with the original's metadata
// (put_metadata in cinder/backup/driver.py). Such a volume contains a user's
// rescued data, and is younger than the request that the stamp records.
func IsCopy(v cinder.Volume) bool {
	at, err := time.Parse(time.RFC3339, v.Metadata[stampRequested])
	return err == nil && v.CreatedAt.Sub(at) > copyAfter
}

// Marks of a volume made by the historic provisioner, which wrote no stamp.
const (
	historicNamePrefix = "cinder-dynamic-pvc-"
	historicHost       = "standalone-cinder.k8s.io"
)

// looksHistoric reports whether a volume carries the historic provisioner's
// marks and is attached nowhere else. The caller must also have a
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

// The metadata keys of a snapshot's stamp, besides those of a volume's. Names and
// content use the keys that the Kubernetes CSI sidecars established.
const (
	stampSnapshotUID       = StampPrefix + "snapshot-uid"
	stampSnapshotNamespace = "csi.storage.k8s.io/volumesnapshot/namespace"
	stampSnapshot          = "csi.storage.k8s.io/volumesnapshot/name"
	stampSnapshotContent   = "csi.storage.k8s.io/volumesnapshotcontent/name"
	// stampRecorded is written before a VolumeSnapshotContent names the snapshot.
	stampRecorded = StampPrefix + "recorded"
)

// SnapshotStamp identifies the cluster, VolumeSnapshot and VolumeSnapshotContent
// that a snapshot belongs to.
type SnapshotStamp struct {
	Cluster     string
	ClusterUID  string
	Namespace   string // the VolumeSnapshot's
	Snapshot    string
	SnapshotUID string
	Content     string
	Tenant      string
	// StorageClass is the volume's.
	StorageClass string
}

// Metadata adds the stamp to the operator's metadata; the stamp wins.
func (s SnapshotStamp) Metadata(own map[string]string) map[string]string {
	metadata := make(map[string]string, len(own)+8)
	maps.Copy(metadata, own)
	delete(metadata, stampRecorded)
	metadata[stampCluster] = s.Cluster
	if s.ClusterUID != "" {
		metadata[stampClusterUID] = s.ClusterUID
	}
	metadata[stampSnapshotNamespace] = s.Namespace
	metadata[stampSnapshot] = s.Snapshot
	metadata[stampSnapshotUID] = s.SnapshotUID
	metadata[stampSnapshotContent] = s.Content
	metadata[stampTenant] = s.Tenant
	metadata[stampStorageClass] = s.StorageClass
	return metadata
}

// SnapshotStampOf reads a snapshot's stamp; missing keys give empty fields.
func SnapshotStampOf(s cinder.Snapshot) SnapshotStamp {
	return SnapshotStamp{
		Cluster:      s.Metadata[stampCluster],
		ClusterUID:   s.Metadata[stampClusterUID],
		Namespace:    s.Metadata[stampSnapshotNamespace],
		Snapshot:     s.Metadata[stampSnapshot],
		SnapshotUID:  s.Metadata[stampSnapshotUID],
		Content:      s.Metadata[stampSnapshotContent],
		Tenant:       s.Metadata[stampTenant],
		StorageClass: s.Metadata[stampStorageClass],
	}
}

// Owns reports whether the snapshot provably belongs to the same cluster and
// VolumeSnapshot. It ignores the tenant, which may be renamed in the policy.
func (s SnapshotStamp) Owns(snapshot cinder.Snapshot) bool {
	other := SnapshotStampOf(snapshot)
	return s.Cluster != "" && s.Cluster == other.Cluster &&
		s.SnapshotUID != "" && s.SnapshotUID == other.SnapshotUID &&
		s.Content != "" && s.Content == other.Content
}

// WasRecorded reports whether a VolumeSnapshotContent may name the snapshot, or
// have named it. A snapshot without the mark was provably never handed out.
func WasRecorded(s cinder.Snapshot) bool { return s.Metadata[stampRecorded] != "" }

// key identifies operations that must not overlap.
func (s SnapshotStamp) key() string { return "snapshot/" + s.SnapshotUID }

func (s SnapshotStamp) describe() string {
	if s.Cluster == "" && s.Content == "" {
		return "with nothing"
	}
	return fmt.Sprintf("cluster %q, VolumeSnapshotContent %q, VolumeSnapshot UID %q", s.Cluster, s.Content, s.SnapshotUID)
}
