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

// RecordedKey is the record of the key of a volume or a snapshot.
type RecordedKey struct {
	ID         string
	IsSnapshot bool
	// Text is what the metadata says, whether or not it can be read.
	Text string
}

// Recorded lists the records on the cluster's volumes and snapshots.
func (k Keys) Recorded(ctx context.Context) ([]RecordedKey, error) {
	at := k.current()
	volumes, err := at.inventory.All(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	snapshots, err := at.snapshots.taken.inventory.All(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	var found []RecordedKey
	for _, v := range volumes {
		if text, has := v.Metadata[stamps.KeyEncryption]; has && v.Metadata[stamps.KeyCluster] == at.cluster {
			found = append(found, RecordedKey{ID: v.ID, Text: text})
		}
	}
	for _, s := range snapshots {
		if text, has := s.Metadata[stamps.KeyEncryption]; has && s.Metadata[stamps.KeyCluster] == at.cluster {
			found = append(found, RecordedKey{ID: s.ID, IsSnapshot: true, Text: text})
		}
	}
	return found, nil
}

// Replace replaces a record in one request, so that there is the former one or the next at
// any moment. It reads the record first, and replaces no other one. It is done once the
// metadata shows the next one, and no operation of Cinder's can bring the former one back.
// What is gone meanwhile needs none.
func (k Keys) Replace(ctx context.Context, former RecordedKey, next string) error {
	at := k.current()
	now, err := at.recordedKey(ctx, former)
	switch {
	case cinder.IsKind(err, cinder.KindNotFound):
		return nil
	case err != nil:
		return err
	case now == next:
		return nil
	case now != former.Text:
		return at.failure(cinder.KindConflict, "the record of the key of %s was changed meanwhile; it stays as it is", former)
	}
	metadata := map[string]string{stamps.KeyEncryption: next}
	if former.IsSnapshot {
		err = change(ctx, at.session, nil, func(ctx context.Context, client snapshotRequests) error {
			return client.UpdateSnapshotMetadata(ctx, former.ID, metadata)
		})
	} else {
		err = at.updateMetadata(ctx, nil, former.ID, metadata)
	}
	if err != nil {
		return err
	}
	switch now, err = at.recordedKey(ctx, former); {
	case err != nil:
		return err
	case now != next:
		return at.failure(cinder.KindConflict, "Cinder does not show the record that was written on %s, but one of %d characters; run the command again, and keep both entries until it is done", former, len(now))
	}
	return nil
}

// writesBack are the states in which Cinder may end by writing all metadata as it was at the
// beginning: a retype or migration to another pool swaps it with that of the volume made there
// (finish_volume_migration in cinder/objects/volume.py), drivers return it with what they
// made, and a restored backup brings its own.
var writesBack = []cinder.Status{cinder.StatusCreating, cinder.StatusRetyping, cinder.StatusMaintenance, cinder.StatusRestoring}

// recordedKey reads the present record.
func (e *owners) recordedKey(ctx context.Context, of RecordedKey) (text string, err error) {
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
	case slices.Contains(writesBack, status):
		err = e.failure(cinder.KindConflict, "%s is %s, and Cinder may write back the former record of its key at the end; run the command again after that", of, status)
	}
	return metadata[stamps.KeyEncryption], err
}

// String names the volume or the snapshot.
func (k RecordedKey) String() string {
	if k.IsSnapshot {
		return "snapshot " + k.ID
	}
	return "volume " + k.ID
}
