package stamps

import (
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Group identifies the VolumeGroupSnapshot for which a group at Cinder exists. Neither groups
// nor group snapshots have metadata, so the description of both has the stamp.
type Group struct {
	Cluster    string
	ClusterUID string
	// UID is the VolumeGroupSnapshot's.
	UID string
}

const groupStamp = "made by standalone-cinder for VolumeGroupSnapshot "

// Description returns the stamp as text. Cinder's limit is 255 characters.
func (g Group) Description() string {
	return fmt.Sprintf("%s%s of cluster %s, UID %s", groupStamp, g.UID, g.Cluster, g.ClusterUID)
}

// OfGroup reads the stamp in a description; zero if there is none.
func OfGroup(description string) Group {
	text, isOurs := strings.CutPrefix(description, groupStamp)
	uid, text, _ := strings.Cut(text, " of cluster ")
	cluster, clusterUID, whole := strings.Cut(text, ", UID ")
	if !isOurs || !whole {
		return Group{}
	}
	return Group{cluster, clusterUID, uid}
}

// SameCluster reports whether the stamp is of the same cluster as another.
func (g Group) SameCluster(other Group) bool {
	return g.Cluster != "" && g.Cluster == other.Cluster && g.ClusterUID == other.ClusterUID
}

// Key identifies operations that must not overlap.
func (g Group) Key() string { return "group/" + g.UID }

// Cinder deletes the snapshots of a group snapshot only together.
const (
	// KeyGroupSnapshot is the ID of the group snapshot that a snapshot belongs to.
	KeyGroupSnapshot = Prefix + "group-snapshot"
	// KeyUnneeded is on a snapshot whose deletion was requested while others of its group
	// snapshot are needed.
	KeyUnneeded = Prefix + "unneeded"
)

// GroupSnapshotOf returns the ID of the group snapshot that a snapshot belongs to; empty if
// it was taken alone.
func GroupSnapshotOf(s cinder.Snapshot) string { return s.Metadata[KeyGroupSnapshot] }

// IsUnneeded reports whether a snapshot waits for the deletion of the others of its group
// snapshot. It is deleted to all but quotas, and the deletion of its volume.
func IsUnneeded(s cinder.Snapshot) bool { return s.Metadata[KeyUnneeded] != "" }
