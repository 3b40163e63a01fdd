package backends

import (
	"context"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Source is the volume or snapshot from which a new volume's content is copied, with the
// proof that it belongs to this cluster; zero for an empty volume.
type Source struct {
	Volume   *Target
	Snapshot *SnapshotTarget
}

// String returns the source as part of a request's text.
func (s Source) String() string {
	switch {
	case s.Volume != nil:
		return ", content of volume " + s.Volume.VolumeID
	case s.Snapshot != nil:
		return ", content of snapshot " + s.Snapshot.SnapshotID
	}
	return ""
}

// checkSource returns an error unless the source carries the expected stamp: a project
// may contain volumes of other clusters and of users. Cinder copies a volume within its
// zone, which the new volume must be able to use.
func (e maker) checkSource(ctx context.Context, spec Spec) error {
	switch source := spec.Source; {
	case source.Volume != nil:
		v, err := e.existing(ctx, *source.Volume)
		if err != nil {
			return err
		}
		return e.checkSourceZone(v, spec)
	case source.Snapshot != nil:
		s, err := e.snapshots.taken.get(ctx, source.Snapshot.SnapshotID)
		switch {
		case err != nil:
			return err
		case !source.Snapshot.Stamp.Owns(s):
			return e.snapshots.snapshotNotOurs(s, source.Snapshot.Stamp)
		case s.Status != cinder.StatusAvailable:
			return e.failure(cinder.KindConflict, "snapshot %s is %s; waiting until it is available", s.ID, s.Status)
		}
		if len(spec.Zones) == 0 {
			return nil
		}
		v, err := e.get(ctx, s.VolumeID)
		if err != nil {
			return err
		}
		return e.checkSourceZone(v, spec)
	}
	return nil
}

func (e maker) checkSourceZone(v cinder.Volume, spec Spec) error {
	if len(spec.Zones) == 0 || slices.Contains(spec.Zones, v.Zone) {
		return nil
	}
	return e.failure(cinder.KindInvalid, "the source volume %s is in availability zone %q, but the claim can use only %s; Cinder copies within one zone",
		v.ID, v.Zone, strings.Join(spec.Zones, ", "))
}
