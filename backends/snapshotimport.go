package backends

import (
	"context"
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// SnapshotImport is an existing snapshot at the backend for a VolumeSnapshotContent.
type SnapshotImport struct {
	SnapshotID string
	// Stamp is the snapshot's new stamp.
	Stamp stamps.Snapshot
	// CSI marks the snapshot as the CSI driver's, or clears that mark.
	CSI bool
	// Place is where the VolumeSnapshotContent says the snapshot is. A snapshot elsewhere
	// is not stamped.
	Place cinder.Place
	// Unclaimed is called before the stamp of another VolumeSnapshot of this cluster is
	// replaced. Its error, returned unchanged, means that something still needs the
	// snapshot.
	Unclaimed func(ctx context.Context, s cinder.Snapshot) error
	// Granted is asked before and after the snapshot is stamped: its name and metadata
	// may change at any time. Its error is returned unchanged.
	Granted func(s cinder.Snapshot) error
	// Permit is called just before the stamp is written.
	Permit func(ctx context.Context) error
}

// AllSnapshots lists the snapshots of the backend's project, regardless of owner.
func (l Snapshots) AllSnapshots(ctx context.Context) ([]cinder.Snapshot, error) {
	return l.of(l.current()).taken.all(ctx)
}

// ImportableSnapshot returns an error unless a snapshot may be imported under a stamp in
// its current state: it is available and unstamped, it already carries the stamp, or it
// carries that of another VolumeSnapshot of this cluster, which was ready once. Only
// Kubernetes knows whether anything still needs the snapshot.
func (l Snapshots) ImportableSnapshot(s cinder.Snapshot, stamp stamps.Snapshot) error {
	return l.of(l.current()).importableSnapshot(s, stamp)
}

func (e *snapshots) importableSnapshot(s cinder.Snapshot, stamp stamps.Snapshot) error {
	other := stamps.OfSnapshot(s)
	switch {
	case stamps.IsUnneeded(s):
		return e.failure(KindNotOurs, "%s was deleted, and goes with the others of its group snapshot", e.name(s.ID))
	case stamp.Owns(s), other.Cluster == "":
	case other.Cluster != stamp.Cluster || other.ClusterUID != "" && other.ClusterUID != stamp.ClusterUID:
		return e.failure(KindNotOurs, "%s carries the stamp of cluster %q, VolumeSnapshot %s/%s; if that cluster no longer needs it, remove the stamp: openstack volume %s unset --property %s %s",
			e.name(s.ID), other.Cluster, other.Namespace, other.Snapshot, e.taken.kind.noun, stamps.KeyCluster, cinderID(s.ID))
	case !stamps.WasRecorded(s):
		// Until it is recorded, a snapshot belongs to the leader, which may be removing it.
		return e.failure(KindNotOurs, "%s was taken for VolumeSnapshot %s/%s and was never ready; the program or its audit will remove it", e.name(s.ID), other.Namespace, other.Snapshot)
	}
	if s.Status != cinder.StatusAvailable {
		return e.failure(cinder.KindConflict, "%s is %s, and only an available one can be imported", e.name(s.ID), s.Status)
	}
	return nil
}

// ImportSnapshot stamps a snapshot and marks it as recorded, with one request, so it can
// then be removed only through a VolumeSnapshotContent. It may be repeated after any
// interruption. Cinder has no step that only one party can take. So if two clusters
// import one snapshot at the same moment, the one whose stamp stays may delete it, and
// the other finds that it no longer owns it.
func (l Snapshots) ImportSnapshot(ctx context.Context, spec SnapshotImport) (cinder.Snapshot, error) {
	// The lock is by snapshot: of two contents that name it, the second must see the
	// first one's stamp.
	return serialized(ctx, l.Lifecycle, "import of snapshot "+spec.SnapshotID, func(at *owners) (cinder.Snapshot, error) { return l.of(at).importSnapshot(ctx, spec) })
}

func (e *snapshots) importSnapshot(ctx context.Context, spec SnapshotImport) (cinder.Snapshot, error) {
	s, err := e.taken.get(ctx, spec.SnapshotID)
	// By now the endpoint knows its place, which does not change.
	if here := e.place(); err == nil && here != spec.Place {
		err = e.elsewhere("%s was to be imported at %s, but the backend points to %s", e.name(spec.SnapshotID), spec.Place, here)
	}
	if err != nil {
		return cinder.Snapshot{}, err
	}
	if !spec.Stamp.Owns(s) || !stamps.WasRecorded(s) || stamps.IsCSISnapshot(s) != spec.CSI {
		if err := e.writeSnapshotStamp(ctx, s, spec); err != nil {
			return cinder.Snapshot{}, err
		}
		if s, err = e.taken.get(ctx, spec.SnapshotID); err != nil {
			return cinder.Snapshot{}, err
		}
	}
	if err := spec.Granted(s); err != nil {
		return cinder.Snapshot{}, err
	}
	if !spec.Stamp.Owns(s) {
		return cinder.Snapshot{}, e.failure(KindNotOurs, "%s was stamped by another import at the same time: %s; it is not imported", e.name(s.ID), stamps.OfSnapshot(s).Describe())
	}
	if err := e.importableSnapshot(s, spec.Stamp); err != nil {
		return cinder.Snapshot{}, err
	}
	return s, nil
}

// writeSnapshotStamp writes the stamp on a snapshot that may be imported.
func (e *snapshots) writeSnapshotStamp(ctx context.Context, s cinder.Snapshot, spec SnapshotImport) error {
	// This check comes first, since all other errors reveal something about the snapshot.
	if err := spec.Granted(s); err != nil {
		return err
	}
	if err := e.importableSnapshot(s, spec.Stamp); err != nil {
		return err
	}
	if stamps.OfSnapshot(s).Cluster != "" && !spec.Stamp.Owns(s) {
		if err := spec.Unclaimed(ctx, s); err != nil {
			return err
		}
	}
	metadata := spec.Stamp.Metadata(nil)
	metadata[stamps.KeyRecorded] = "true"
	switch {
	case spec.CSI:
		metadata[stamps.KeyMode] = stamps.ModeCSI
	case stamps.IsCSISnapshot(s):
		metadata[stamps.KeyMode] = ""
	}
	if err := e.writeMetadata(ctx, permissionOf(ctx, spec.Permit), s.ID, metadata); err != nil {
		return fmt.Errorf("%s cannot be stamped: %w", e.name(s.ID), err)
	}
	return nil
}
