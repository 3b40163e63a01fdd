package cinder

import (
	"encoding/json"
	"time"
)

// Snapshot is Cinder's record of one snapshot, with the fields that the program
// needs.
type Snapshot struct {
	ID       string
	Name     string
	VolumeID string
	// Status is one of a volume's that also snapshots have: creating, available,
	// deleting, error, error_deleting (cinder/objects/fields.py, SnapshotStatus).
	Status Status
	// SizeGiB is the size of the volume when the snapshot was made.
	SizeGiB   int64
	Metadata  map[string]string
	CreatedAt time.Time // by the server's clock
}

// snapshotDocument is a snapshot as the API writes it.
type snapshotDocument struct {
	ID        text            `json:"id"`
	Name      text            `json:"name"`
	VolumeID  text            `json:"volume_id"`
	Status    text            `json:"status"`
	Size      number          `json:"size"`
	Metadata  json.RawMessage `json:"metadata"`
	CreatedAt text            `json:"created_at"`
}

// snapshot returns the snapshot, and whether a field that the program acts on
// has a wrong type. Its metadata is nil if it cannot be read, so that it is
// unknown whose snapshot it is.
func (d snapshotDocument) snapshot(keep func(key string) bool) (s Snapshot, odd bool) {
	metadata, err := readMetadata(d.Metadata, keep)
	if err != nil {
		metadata = nil
	}
	s = Snapshot{
		ID:        d.ID.value,
		Name:      d.Name.value,
		VolumeID:  d.VolumeID.value,
		Status:    Status(d.Status.value),
		SizeGiB:   d.Size.value,
		Metadata:  metadata,
		CreatedAt: parseTime(d.CreatedAt.value),
	}
	return s, d.ID.odd || d.VolumeID.odd || d.Status.odd || d.Size.odd || err != nil
}
