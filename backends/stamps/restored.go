package stamps

import (
	"fmt"
	"maps"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// When Cinder restores a backup to a new volume, it replaces the volume's metadata, and
// with it the stamp, by those of the volume that was backed up. It leaves the description
// of a volume that has a name (_restore_vol_base_meta in cinder/backup/driver.py). So the
// create request also writes there for whom the volume is made, and from which backup. The
// description goes when the stamp is written again. Until then, it counts while the volume
// is being made, and if that failed: Cinder writes its mark of the backup last, and not at
// all if it could not detach the volume. Afterwards, only that mark of that very backup
// makes it count.

// These keys are on a volume as Settled returns it, and never at Cinder, which refuses them.
const (
	keyUnstamped = "*unstamped"
	keyRestoring = "*restoring"
	keyDescribed = "*described"
)

const restoredFrom = "restored by standalone-cinder from backup "

// RestoredFrom returns the description of a volume to be made with the content of a backup.
// Cinder's limit is 255 characters.
func (s Volume) RestoredFrom(backupID string) string {
	return fmt.Sprintf("%s%s for claim %s of cluster %s, UID %s", restoredFrom, backupID, s.ClaimUID, s.Cluster, s.ClusterUID)
}

// Settled returns a volume as every reader must see it. One that Cinder restores, or has
// just restored, for a claim belongs to that claim, was never attached, and lacks the rest
// of its stamp (IsUnstamped). The description is dropped, since nothing else reads it.
func Settled(v cinder.Volume) cinder.Volume {
	text, isOurs := strings.CutPrefix(v.Description, restoredFrom)
	v.Description = ""
	backupID, text, _ := strings.Cut(text, " for claim ")
	claimUID, text, _ := strings.Cut(text, " of cluster ")
	cluster, clusterUID, whole := strings.Cut(text, ", UID ")
	if !isOurs || !whole {
		return v
	}
	metadata := map[string]string{keyDescribed: "true"}
	if v.Status == cinder.StatusCreating {
		metadata[keyRestoring] = "true"
	}
	if claimUID == v.Metadata[KeyClaimUID] || !isUnfinished(v) && backupID != v.Metadata[cinder.MetadataSourceBackup] {
		maps.Copy(metadata, v.Metadata)
	} else {
		maps.Copy(metadata, map[string]string{KeyCluster: cluster, KeyClusterUID: clusterUID, KeyClaimUID: claimUID, KeyPV: v.Name, keyUnstamped: "true"})
	}
	v.Metadata = metadata
	return v
}

// isUnfinished reports whether Cinder has not made a volume with its content.
func isUnfinished(v cinder.Volume) bool {
	switch v.Status {
	case cinder.StatusCreating, cinder.StatusError, cinder.StatusErrorRestoring:
		return true
	}
	return false
}

// IsUnstamped reports whether a volume's stamp must be written again; see Settled.
func IsUnstamped(v cinder.Volume) bool { return v.Metadata[keyUnstamped] != "" }

// IsDescribed reports whether a volume has the description by which it may be its first
// claim's again; see Settled.
func IsDescribed(v cinder.Volume) bool { return v.Metadata[keyDescribed] != "" }

// IsRestoring reports whether Cinder is copying a backup's content to a volume, which may
// take hours.
func IsRestoring(v cinder.Volume) bool { return v.Metadata[keyRestoring] != "" }
