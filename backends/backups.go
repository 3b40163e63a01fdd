package backends

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// A backup is taken, recorded and removed as a snapshot is. It differs in how it is made:
// from a snapshot of the volume, which exists only until then. So the volume can be
// attached, grown and detached during the hours that a backup may take, and the backup
// shows it at one moment.

// backupPrefix begins the IDs of backups wherever the program records or compares them:
// snapshots, too, have UUIDs.
const backupPrefix = "backup:"

// IsBackup reports whether an ID in a record is a backup's, and not a snapshot's.
func IsBackup(id string) bool { return strings.HasPrefix(id, backupPrefix) }

// patience is how long an operation waits for a backup that it has requested, or for its
// content. After that, the error is KindPending, and later attempts only look: workers must
// not wait for hours, nor, for a hundred backups, spend all their time on it.
const patience = 10 * time.Second

// Backups returns what manages the backend's backups.
func (l Snapshots) Backups() Snapshots {
	return Snapshots{l.Lifecycle, func(at *owners) *snapshots { return at.backups }}
}

func newBackups(l *Lifecycle, at *endpoint, from *snapshots) *snapshots {
	e := &snapshots{endpoint: at, service: "cinder-backup", source: from, requests: func(client Cinder) snapshotRequests { return asSnapshots{client.(backupRequests)} }}
	e.taken = newSnapshotStock(l, at, "backup", e.requests)
	return e
}

type backupRequests interface {
	CreateBackup(ctx context.Context, request cinder.NewBackup) (cinder.Snapshot, error)
	Backup(ctx context.Context, id string) (cinder.Snapshot, error)
	ListBackups(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error
	DeleteBackup(ctx context.Context, id string) error
	UpdateBackupMetadata(ctx context.Context, id string, metadata map[string]string) error
}

// asSnapshots makes the requests about backups, under the IDs that the program records.
type asSnapshots struct{ backupRequests }

func (c asSnapshots) Snapshot(ctx context.Context, id string) (cinder.Snapshot, error) {
	return recorded(c.Backup(ctx, cinderID(id)))
}

func (c asSnapshots) ListSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error {
	return c.ListBackups(ctx, query, func(page []cinder.Snapshot) bool {
		for i := range page {
			page[i].ID = backupPrefix + page[i].ID
		}
		return yield(page)
	})
}

func (c asSnapshots) DeleteSnapshot(ctx context.Context, id string) error {
	return c.DeleteBackup(ctx, cinderID(id))
}

func (c asSnapshots) UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return c.UpdateBackupMetadata(ctx, cinderID(id), metadata)
}

// cinderID returns Cinder's ID of a snapshot or a backup.
func cinderID(id string) string { return strings.TrimPrefix(id, backupPrefix) }

func recorded(b cinder.Snapshot, err error) (cinder.Snapshot, error) {
	if err == nil {
		b.ID = backupPrefix + b.ID
	}
	return b, err
}

// longestChain is how many backups of a volume may depend on one another, with the full one.
// Cinder lets each depend on the latest, and deletes none before those that depend on it. So
// without an end, a schedule would delete none, ever.
const longestChain = 7

// createBackup makes the snapshot, or finds it, and then the backup. If Cinder has no
// backup that an incremental one could depend on, the last attempt at one failed, or the
// chain is long enough, the backup is a full one.
func (e *snapshots) createBackup(ctx context.Context, spec SnapshotSpec) (b cinder.Snapshot, err error) {
	uid := spec.Stamp.SnapshotUID
	defer func() {
		if cinder.IsKind(err, cinder.KindConflict) {
			e.doubt(uid)
		}
	}()
	from, err := e.source.takeSnapshot(ctx, spec.sourceOfBackup())
	if err != nil {
		return cinder.Snapshot{}, err
	}
	wanted := cinder.NewBackup{Name: spec.Name, VolumeID: spec.Source.VolumeID, SnapshotID: from.ID, Incremental: spec.Incremental, Metadata: spec.metadata()}
	if _, failed := e.failed.Load(uid); failed {
		wanted.Incremental = false
	}
	if wanted.Incremental {
		latest, err := e.latestIncremental(ctx, wanted.VolumeID)
		if err != nil {
			return cinder.Snapshot{}, err
		}
		wanted.Incremental = latest < longestChain-1
	}
	for {
		e.taken.known.Doubt(uid)
		err = change(ctx, e.session, spec.Source.Permit.on(ctx, cinder.Volume{ID: spec.Source.VolumeID}), func(ctx context.Context, client backupRequests) (err error) {
			b, err = recorded(client.CreateBackup(ctx, wanted))
			return err
		})
		e.taken.created(uid, b.ID, err)
		if !wanted.Incremental || !cinder.IsKind(err, cinder.KindConflict) {
			return b, err
		}
		wanted.Incremental = false
	}
}

// doubtEvery is how often a listing may show whether the snapshot of a backup is backing-up
// because of a backup that this term does not know. Perhaps there is none, until somebody
// resets the snapshot.
const doubtEvery = 10 * time.Minute

func (e *snapshots) doubt(uid string) {
	if last, doubted := e.doubted.Load(uid); doubted && time.Since(last.(time.Time)) < doubtEvery {
		return
	}
	e.doubted.Store(uid, time.Now())
	e.taken.known.Doubt(uid)
}

// latestIncremental counts the incremental backups of a volume since its latest full one. It
// trusts the server's filter, since its result decides only how much a backup costs.
func (e *snapshots) latestIncremental(ctx context.Context, volumeID string) (count int, err error) {
	all, err := everyOne(ctx, e.taken, cinder.Query{VolumeID: volumeID}, func(b cinder.Snapshot) bool { return b.VolumeID == volumeID })
	if err != nil {
		return 0, err
	}
	slices.SortFunc(all, func(a, b cinder.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	if full := slices.IndexFunc(all, func(b cinder.Snapshot) bool { return !b.Incremental }); full >= 0 {
		return full, nil
	}
	return len(all), nil
}

// sourceOfBackup returns the snapshot from which a backup is to be made.
func (s SnapshotSpec) sourceOfBackup() SnapshotSpec {
	s.Metadata, s.CSI, s.forBackup = map[string]string{stamps.KeyForBackup: "true"}, false, true
	return s
}

// refuseBackup returns an error if a volume's content is encrypted: a backup would hold it
// as it is, without a record of the key that opens it.
func (e *snapshots) refuseBackup(v cinder.Volume) error {
	if _, byNodes := v.Metadata[stamps.KeyEncryption]; byNodes || v.Encrypted {
		return e.failure(cinder.KindInvalid, "volume %s is encrypted, and backups of encrypted volumes are not supported; take snapshots, or back up its files", v.ID)
	}
	return nil
}
