package backends

import (
	"fmt"
	"maps"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

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
