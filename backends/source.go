package backends

import (
	"context"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Source is the volume or the snapshot that a new volume's content is copied
// from, with the proof that it is this cluster's; zero for an empty volume.
type Source struct {
	Volume   *Target
	Snapshot *SnapshotTarget
}

// String is the source as a part of a request's text.
func (s Source) String() string {
	switch {
	case s.Volume != nil:
		return ", content of volume " + s.volumeID()
	case s.Snapshot != nil:
		return ", content of snapshot " + s.snapshotID()
	}
	return ""
}

func (s Source) volumeID() string {
	if s.Volume == nil {
		return ""
	}
	return s.Volume.VolumeID
}

func (s Source) snapshotID() string {
	if s.Snapshot == nil {
		return ""
	}
	return s.Snapshot.SnapshotID
}

// checkSource returns an error unless the source carries the stamp that it must
// have: a project may have volumes of other clusters and of people.
func (e *endpoint) checkSource(ctx context.Context, source Source) error {
	switch {
	case source.Volume != nil:
		_, err := e.existing(ctx, *source.Volume)
		return err
	case source.Snapshot != nil:
		s, err := e.getSnapshot(ctx, source.Snapshot.SnapshotID)
		switch {
		case err != nil:
			return err
		case !source.Snapshot.Stamp.Owns(s):
			return e.snapshotNotOurs(s, source.Snapshot.Stamp)
		case s.Status != cinder.StatusAvailable:
			return e.failure(cinder.KindConflict, "snapshot %s is %s; waiting until it is available", s.ID, s.Status)
		}
	}
	return nil
}
