package stamps

import (
	"fmt"
	"maps"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// The metadata keys of a snapshot's stamp, besides those of a volume's. Names and content
// use the keys established by the Kubernetes CSI sidecars.
const (
	KeySnapshotUID       = Prefix + "snapshot-uid"
	KeySnapshotNamespace = "csi.storage.k8s.io/volumesnapshot/namespace"
	KeySnapshot          = "csi.storage.k8s.io/volumesnapshot/name"
	KeySnapshotContent   = "csi.storage.k8s.io/volumesnapshotcontent/name"
	// KeyRecorded is written before a VolumeSnapshotContent names the snapshot.
	KeyRecorded = Prefix + "recorded"
	// KeyForBackup marks a snapshot that exists only until a backup is made from it. It has
	// the stamp of the backup.
	KeyForBackup = Prefix + "for-backup"
	// KeyGroupUID is on the snapshots of a VolumeGroupSnapshot.
	KeyGroupUID = Prefix + "group-uid"
)

// Snapshot identifies the cluster, VolumeSnapshot and VolumeSnapshotContent
// that a snapshot belongs to.
type Snapshot struct {
	Cluster     string
	ClusterUID  string
	Namespace   string // the VolumeSnapshot's
	Snapshot    string
	SnapshotUID string
	Content     string
	Tenant      string
	// StorageClass is that of the snapshot's volume.
	StorageClass string
	// Group is the UID of the VolumeGroupSnapshot that the snapshot belongs to. Its owner
	// has no UID when it is taken; SnapshotUID is derived from Group and the volume.
	Group string
}

// Metadata adds the stamp to the operator's metadata; the stamp wins.
func (s Snapshot) Metadata(own map[string]string) map[string]string {
	metadata := make(map[string]string, len(own)+8)
	maps.Copy(metadata, own)
	delete(metadata, KeyRecorded)
	metadata[KeyCluster] = s.Cluster
	if s.ClusterUID != "" {
		metadata[KeyClusterUID] = s.ClusterUID
	}
	metadata[KeySnapshotNamespace] = s.Namespace
	metadata[KeySnapshot] = s.Snapshot
	metadata[KeySnapshotUID] = s.SnapshotUID
	metadata[KeySnapshotContent] = s.Content
	metadata[KeyTenant] = s.Tenant
	metadata[KeyStorageClass] = s.StorageClass
	if s.Group != "" {
		metadata[KeyGroupUID] = s.Group
	}
	return metadata
}

// OfSnapshot reads a snapshot's stamp; missing keys give empty fields.
func OfSnapshot(s cinder.Snapshot) Snapshot {
	return Snapshot{
		Cluster:      s.Metadata[KeyCluster],
		ClusterUID:   s.Metadata[KeyClusterUID],
		Namespace:    s.Metadata[KeySnapshotNamespace],
		Snapshot:     s.Metadata[KeySnapshot],
		SnapshotUID:  s.Metadata[KeySnapshotUID],
		Content:      s.Metadata[KeySnapshotContent],
		Tenant:       s.Metadata[KeyTenant],
		StorageClass: s.Metadata[KeyStorageClass],
		Group:        s.Metadata[KeyGroupUID],
	}
}

// Owns reports whether the snapshot provably belongs to the same cluster and
// VolumeSnapshot. It ignores the tenant, which may be renamed in the policy.
func (s Snapshot) Owns(snapshot cinder.Snapshot) bool {
	other := OfSnapshot(snapshot)
	return s.Cluster != "" && s.Cluster == other.Cluster &&
		s.SnapshotUID != "" && s.SnapshotUID == other.SnapshotUID &&
		s.Content != "" && s.Content == other.Content
}

// WasRecorded reports whether a VolumeSnapshotContent may name, or have named, the
// snapshot. A snapshot without the mark was provably never handed out.
func WasRecorded(s cinder.Snapshot) bool { return s.Metadata[KeyRecorded] != "" }

// IsForBackup reports whether a snapshot exists only until a backup is made from it.
func IsForBackup(s cinder.Snapshot) bool { return s.Metadata[KeyForBackup] != "" }

// Key identifies operations that must not overlap.
func (s Snapshot) Key() string { return "snapshot/" + s.SnapshotUID }

// Describe names the snapshot's owner, for an error.
func (s Snapshot) Describe() string {
	if s.Cluster == "" && s.Content == "" {
		return "with nothing"
	}
	return fmt.Sprintf("cluster %q, VolumeSnapshotContent %q, VolumeSnapshot UID %q", s.Cluster, s.Content, s.SnapshotUID)
}

// IsCSISnapshot reports whether a snapshot was taken for the CSI driver's sidecar.
func IsCSISnapshot(s cinder.Snapshot) bool { return s.Metadata[KeyMode] == ModeCSI }
