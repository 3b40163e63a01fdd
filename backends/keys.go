package backends

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// Keys finds and replaces the records of the keys of one backend's volumes and snapshots;
// see stamps.KeyEncryption.
type Keys struct{ *Lifecycle }

// RecordedKey has the records of the keys of a volume or a snapshot.
type RecordedKey struct {
	ID         string
	IsSnapshot bool
	// KeyRecords are what the metadata says, whether or not it can be read.
	stamps.KeyRecords
}

// KeyedVolume is a volume with a record of its key.
type KeyedVolume struct {
	RecordedKey
	Volume cinder.Volume
	// IsBeingCopied means that Cinder shows a copy of it that is not complete, or not stamped
	// yet, or makes a backup of it, which gets its metadata when it ends.
	IsBeingCopied bool
}

// list lists volumes and snapshots, with and without records.
func (k Keys) list(ctx context.Context) (volumes []cinder.Volume, snapshots []cinder.Snapshot, err error) {
	at := k.current()
	if volumes, err = at.inventory.All(ctx, time.Now()); err == nil {
		snapshots, err = at.snapshots.taken.inventory.All(ctx, time.Now())
	}
	return volumes, snapshots, err
}

// hasRecord reports whether metadata is of this cluster and has a record.
func (k Keys) hasRecord(metadata map[string]string) bool {
	_, has := metadata[stamps.KeyEncryption]
	return has && metadata[stamps.KeyCluster] == k.options.Cluster
}

// Volumes lists the cluster's volumes with records.
func (k Keys) Volumes(ctx context.Context) ([]KeyedVolume, error) {
	volumes, snapshots, err := k.list(ctx)
	if err != nil {
		return nil, err
	}
	copied, err := k.current().groups.unstamped(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		if v.Status == cinder.StatusCreating {
			copied[v.SourceVolumeID] = true
		}
	}
	for _, s := range snapshots {
		if s.Status == cinder.StatusCreating {
			copied[s.VolumeID] = true
		}
	}
	var found []KeyedVolume
	for _, v := range volumes {
		if k.hasRecord(v.Metadata) {
			found = append(found, KeyedVolume{RecordedKey{ID: v.ID, KeyRecords: stamps.KeyRecordsOf(v.Metadata)}, v, copied[v.ID] || v.Status == cinder.StatusBackingUp})
		}
	}
	return found, nil
}

// Recorded lists the records on the cluster's volumes and snapshots.
func (k Keys) Recorded(ctx context.Context) ([]RecordedKey, error) {
	volumes, snapshots, err := k.list(ctx)
	if err != nil {
		return nil, err
	}
	var found []RecordedKey
	for _, v := range volumes {
		if k.hasRecord(v.Metadata) {
			found = append(found, RecordedKey{ID: v.ID, KeyRecords: stamps.KeyRecordsOf(v.Metadata)})
		}
	}
	for _, s := range snapshots {
		if k.hasRecord(s.Metadata) {
			found = append(found, RecordedKey{ID: s.ID, IsSnapshot: true, KeyRecords: stamps.KeyRecordsOf(s.Metadata)})
		}
	}
	return found, nil
}

// Replace replaces records in one request, so that there are the former ones or the next at
// any moment: Cinder writes all keys of a request in one transaction. It reads the records
// first, and replaces no other ones. It is done once the metadata shows the next ones, and no
// operation of Cinder's can bring the former ones back. What is gone meanwhile needs none.
func (k Keys) Replace(ctx context.Context, former RecordedKey, next stamps.KeyRecords) error {
	at := k.current()
	read := time.Now()
	now, err := at.recordedKey(ctx, former)
	switch {
	case cinder.IsKind(err, cinder.KindNotFound):
		return nil
	case err != nil:
		return err
	case now == next:
		return nil
	case now != former.KeyRecords:
		return at.failure(cinder.KindConflict, "the record of the key of %s was changed meanwhile; it stays as it is", former)
	}
	// Cinder knows no conditions, and another run may make the next step after
	// stamps.Settling.
	permitted := func() error {
		if time.Since(read) > replaceWithin || time.Since(read) < 0 {
			return at.failure(cinder.KindConflict, "the request for the record of the key of %s had to wait for too long; run the command again", former)
		}
		return nil
	}
	metadata := now.Changes(next)
	if former.IsSnapshot {
		err = change(ctx, at.session, permitted, func(ctx context.Context, client snapshotRequests) error {
			return client.UpdateSnapshotMetadata(ctx, former.ID, metadata)
		})
	} else {
		err = at.updateMetadata(ctx, permitted, former.ID, metadata)
	}
	if err != nil {
		return err
	}
	switch now, err = at.recordedKey(ctx, former); {
	case err != nil:
		return err
	case now != next:
		return at.failure(cinder.KindConflict, "Cinder does not show the record that was written on %s, but one of %d characters; run the command again, and keep both entries until it is done", former, len(now.Main))
	}
	return nil
}

// replaceWithin bounds the time from reading a record to replacing it. It is much less than
// stamps.Settling.
const replaceWithin = 5 * time.Minute

// writesBack are the states in which Cinder may end by writing all metadata as it was at the
// beginning: a retype or migration to another pool swaps it with that of the volume made there
// (finish_volume_migration in cinder/objects/volume.py), drivers return it with what they
// made, and a restored backup brings its own.
var writesBack = []cinder.Status{cinder.StatusCreating, cinder.StatusRetyping, cinder.StatusMaintenance, cinder.StatusRestoring}

// recordedKey reads the present records.
func (e *owners) recordedKey(ctx context.Context, of RecordedKey) (records stamps.KeyRecords, err error) {
	var metadata map[string]string
	var status cinder.Status
	unmarked := false
	if of.IsSnapshot {
		var s cinder.Snapshot
		s, err = e.snapshots.taken.get(ctx, of.ID)
		metadata, status, unmarked = s.Metadata, s.Status, !stamps.WasRecorded(s)
	} else {
		var v cinder.Volume
		v, err = e.get(ctx, of.ID)
		metadata, status = v.Metadata, v.Status
	}
	switch {
	case err != nil:
	case metadata[stamps.KeyCluster] != e.cluster:
		err = errors.New(of.String() + " has no stamp of this cluster any more; it is not touched")
	case unmarked:
		// Of two requests at once for the metadata of a snapshot, Cinder takes back the keys of
		// one (update_snapshot_metadata in cinder/volume/api.py), and without the mark, a
		// snapshot is taken for one that nothing names.
		err = e.failure(cinder.KindConflict, "%s is being taken, or was never ready; run the command again once it is ready or gone", of)
	case metadata[stamps.KeySwap] != "":
		// Of two requests at once for metadata, Cinder may take back the keys of one.
		err = e.failure(cinder.KindConflict, "%s is being swapped; run the command again after that", of)
	case slices.Contains(writesBack, status):
		err = e.failure(cinder.KindConflict, "%s is %s, and Cinder may write back the former record of its key at the end; run the command again after that", of, status)
	}
	return stamps.KeyRecordsOf(metadata), err
}

// String names the volume or the snapshot.
func (k RecordedKey) String() string {
	if k.IsSnapshot {
		return "snapshot " + k.ID
	}
	return "volume " + k.ID
}
