package stamps

import (
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// When Cinder restores a backup to a new volume, it replaces the volume's metadata, and
// with it the stamp, by those of the volume that was backed up. It leaves the description
// of a volume that has a name (_restore_vol_base_meta in cinder/backup/driver.py). So the
// create request also writes there for whom the volume is made, and from which backup. Only
// Cinder's own mark of that very backup makes the description count: a volume that
// somebody restored by hand, from whichever backup, has the mark of another.

// keyUnstamped is on a volume as Settled returns it, and never at Cinder,
// which refuses such a key.
const keyUnstamped = "*unstamped"

const restoredFrom = "restored by standalone-cinder from backup "

// RestoredFrom returns the description of a volume to be made with the content of a backup.
func (s Volume) RestoredFrom(backupID string) string {
	return fmt.Sprintf("%s%s for claim %s of cluster %s", restoredFrom, backupID, s.ClaimUID, s.Cluster)
}

// Settled returns a volume as every reader must see it. One that Cinder has just restored
// for a claim belongs to that claim, was never attached, and lacks the rest of its stamp
// (IsUnstamped). The description is dropped, since nothing else reads it.
func Settled(v cinder.Volume) cinder.Volume {
	text, isOurs := strings.CutPrefix(v.Description, restoredFrom)
	v.Description = ""
	backupID, text, _ := strings.Cut(text, " for claim ")
	claimUID, cluster, whole := strings.Cut(text, " of cluster ")
	if !isOurs || !whole || backupID != v.Metadata[cinder.MetadataSourceBackup] || claimUID == v.Metadata[KeyClaimUID] {
		return v
	}
	v.Metadata = map[string]string{KeyCluster: cluster, KeyClaimUID: claimUID, KeyPV: v.Name, keyUnstamped: "true"}
	return v
}

// IsUnstamped reports whether a volume's stamp must be written again; see Settled.
func IsUnstamped(v cinder.Volume) bool { return v.Metadata[keyUnstamped] != "" }
