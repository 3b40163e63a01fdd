package backends

import (
	"context"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// Source is the volume, snapshot or backup from which a new volume's content is copied, with the
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

// backupID returns Cinder's ID of the backup whose content is copied; empty if it is none.
func (s Source) backupID() string {
	if s.Snapshot == nil || !IsBackup(s.Snapshot.SnapshotID) {
		return ""
	}
	return cinderID(s.Snapshot.SnapshotID)
}

// checkSource returns the source's metadata, and an error unless the source carries the
// expected stamp: a project may contain volumes of other clusters and of users. Cinder
// copies a volume within its zone, which the new volume must be able to use.
func (e maker) checkSource(ctx context.Context, spec Spec) (metadata map[string]string, err error) {
	switch source := spec.Source; {
	case source.Volume != nil:
		v, err := e.existing(ctx, *source.Volume)
		if err != nil {
			return nil, err
		}
		return v.Metadata, e.checkSourceZone(v, spec)
	case source.Snapshot != nil:
		from, isBackup := e.snapshots, IsBackup(source.Snapshot.SnapshotID)
		if isBackup {
			from = e.backups
		}
		s, err := from.taken.get(ctx, source.Snapshot.SnapshotID)
		if here := e.place(); isBackup && source.Snapshot.Place != here {
			return nil, e.elsewhere("%s is at %s, but the backend points to %s", from.name(source.Snapshot.SnapshotID), source.Snapshot.Place, here)
		}
		switch {
		case err != nil:
			return nil, err
		case !source.Snapshot.Stamp.Owns(s):
			return nil, from.snapshotNotOurs(s, source.Snapshot.Stamp)
		case s.Status != cinder.StatusAvailable:
			return nil, e.failure(cinder.KindConflict, "%s is %s; waiting until it is available", from.name(s.ID), s.Status)
		}
		if len(spec.Zones) == 0 || isBackup {
			return s.Metadata, nil
		}
		v, err := e.get(ctx, s.VolumeID)
		if err != nil {
			return nil, err
		}
		return s.Metadata, e.checkSourceZone(v, spec)
	}
	return nil, nil
}

// keyFor returns the record of a new volume's key; empty if nodes do not encrypt it. The
// content of a copy is encrypted, or not, as its source is, whatever the spec asks for. A
// record that cannot be read is copied as it is: nothing else opens the copy.
func (e maker) keyFor(ctx context.Context, source map[string]string, spec Spec) (string, error) {
	inherited, encrypted := source[stamps.KeyEncryption]
	switch isCopy := spec.Source != (Source{}); {
	case encrypted && !spec.CSI:
		return "", e.failure(cinder.KindInvalid, "the source is encrypted by the CSI driver, and so would be its copy, but the claim's volume would be one of mode native; use a StorageClass whose rule has mode csi and encrypt")
	case encrypted && spec.NewKey == nil:
		return "", e.failure(cinder.KindInvalid, "the source is encrypted by nodes, and so would be its copy, but the rule has no encrypt; use a StorageClass whose rule has it")
	case isCopy && inherited == "" && spec.NewKey != nil:
		return "", e.failure(cinder.KindInvalid, "the source's metadata has no record of a key (%s), but the rule encrypts its volumes; if the source is encrypted, restore the record from a copy of it, else use a StorageClass whose rule has no encrypt", stamps.KeyEncryption)
	case isCopy || spec.NewKey == nil:
		return inherited, nil
	}
	record, err := spec.NewKey(ctx)
	if err != nil {
		return "", err
	}
	return record.String(), record.Check()
}

func (e maker) checkSourceZone(v cinder.Volume, spec Spec) error {
	if len(spec.Zones) == 0 || slices.Contains(spec.Zones, v.Zone) {
		return nil
	}
	return e.failure(cinder.KindInvalid, "the source volume %s is in availability zone %q, but the claim can use only %s; Cinder copies within one zone",
		v.ID, v.Zone, strings.Join(spec.Zones, ", "))
}
