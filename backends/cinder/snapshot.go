package cinder

import (
	"encoding/json"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// Snapshot is Cinder's record of what it keeps of a volume, a snapshot or a backup, with
// the fields that the program needs.
type Snapshot struct {
	ID       string
	Name     string
	VolumeID string
	// Status is one of the statuses that volumes and snapshots share: creating,
	// available, deleting, error, error_deleting (cinder/objects/fields.py,
	// SnapshotStatus), and for a backup restoring (BackupStatus).
	Status Status
	// SizeGiB is the size of the volume when the snapshot was made.
	SizeGiB   int64
	Metadata  map[string]string
	CreatedAt time.Time // by the server's clock
	// GroupSnapshotID is the group snapshot that it belongs to; known only to
	// ListGroupedSnapshots.
	GroupSnapshotID string

	// Incremental means that a backup holds only what has changed since an earlier one;
	// HasDependents that later ones depend on it. FailReason is why it went to error, for
	// administrators.
	Incremental, HasDependents bool
	FailReason                 string
}

// State implements Object.
func (s Snapshot) State() (string, Status, time.Time) { return s.ID, s.Status, s.CreatedAt }

// snapshotDocument is a snapshot in the API's JSON form.
type snapshotDocument struct {
	ID        jsonstream.Text   `json:"id"`
	Name      jsonstream.Text   `json:"name"`
	VolumeID  jsonstream.Text   `json:"volume_id"`
	Status    jsonstream.Text   `json:"status"`
	Size      jsonstream.Number `json:"size"`
	Metadata  json.RawMessage   `json:"metadata"`
	CreatedAt jsonstream.Text   `json:"created_at"`
	Group     jsonstream.Text   `json:"group_snapshot_id"`
}

// readSnapshot decodes a snapshot, as readVolume does a volume.
func readSnapshot(decode func(document any) error, keep func(key string) bool) (s Snapshot, odd bool, err error) {
	var d snapshotDocument
	if err := decode(&d); err != nil {
		return Snapshot{}, false, err
	}
	s, odd = d.snapshot(keep)
	return s, odd, nil
}

func (d snapshotDocument) snapshot(keep func(key string) bool) (s Snapshot, odd bool) {
	metadata, metadataErr := readMetadata(d.Metadata, keep)
	if metadataErr != nil {
		metadata = nil
	}
	s = Snapshot{
		ID:        d.ID.Value,
		Name:      d.Name.Value,
		VolumeID:  d.VolumeID.Value,
		Status:    Status(d.Status.Value),
		SizeGiB:   d.Size.Value,
		Metadata:  metadata,
		CreatedAt: parseTime(d.CreatedAt.Value),

		GroupSnapshotID: d.Group.Value,
	}
	return s, d.Group.Odd || d.ID.Odd || d.VolumeID.Odd || d.Status.Odd || d.Size.Odd || metadataErr != nil
}
