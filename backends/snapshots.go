package backends

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// SnapshotSpec is the snapshot, or the backup, that a VolumeSnapshot wants.
type SnapshotSpec struct {
	Name     string            // derived from the VolumeSnapshot's UID
	Metadata map[string]string // the operator's; the stamp is added
	Stamp    stamps.Snapshot
	// Source is the volume, with the proof that it is the claim's.
	Source Target
	// Place is where the VolumeSnapshotContent says the snapshot is. The snapshot is
	// never taken elsewhere, because it could not be found there.
	Place cinder.Place
	// CSI marks the snapshot as the CSI driver's; see IsCSISnapshot.
	CSI bool
	// Incremental asks for a backup of only what has changed since an earlier one.
	Incremental bool

	// forBackup means that a backup is to be made from the snapshot.
	forBackup bool
}

// owns reports whether a snapshot is the one that the spec wants. That of a backup never is
// the VolumeSnapshot's own.
func (s SnapshotSpec) owns(snapshot cinder.Snapshot) bool {
	return s.Stamp.Owns(snapshot) && stamps.IsForBackup(snapshot) == s.forBackup
}

// metadata is what the snapshot says of itself.
func (s SnapshotSpec) metadata() map[string]string {
	metadata := s.Stamp.Metadata(s.Metadata)
	if s.CSI {
		metadata[stamps.KeyMode] = stamps.ModeCSI
	}
	return metadata
}

// SnapshotTarget is a snapshot to remove, with the proof that it may be removed.
type SnapshotTarget struct {
	SnapshotID string
	Stamp      stamps.Snapshot
	// Place is where the snapshot lives.
	Place cinder.Place
	// Permit is called before the request to delete, like the Permit of a
	// Target; nil permits it.
	Permit func(ctx context.Context) error
	// Unrecorded keeps a snapshot that was recorded (KindRecorded).
	Unrecorded bool
}

// Snapshots manages the snapshots of one backend besides its volumes, or its backups.
type Snapshots struct {
	*Lifecycle
	of func(*owners) *snapshots
}

// Snapshots returns what manages the backend's snapshots.
func (l *Lifecycle) Snapshots() Snapshots {
	return Snapshots{l, func(at *owners) *snapshots { return at.snapshots }}
}

// snapshots owns the snapshots at an endpoint, or the backups.
type snapshots struct {
	*endpoint
	taken    *stock[cinder.Snapshot]
	requests func(client Cinder) snapshotRequests
	// service is the one whose log says why something failed.
	service string

	// source owns the snapshots from which backups are made; nil if these are no backups.
	source *snapshots
	// groups owns the groups that snapshots were taken of; nil if these are backups.
	groups *groups
	// failed is the set of VolumeSnapshots whose last incremental backup failed, by UID;
	// doubted is when the backup of one was last doubted.
	failed, doubted sync.Map
}

type snapshotCreation interface {
	CreateSnapshot(ctx context.Context, request cinder.NewSnapshot) (cinder.Snapshot, error)
}

// snapshotRequests are the requests about what exists.
type snapshotRequests interface {
	Snapshot(ctx context.Context, id string) (cinder.Snapshot, error)
	ListSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error
	DeleteSnapshot(ctx context.Context, id string) error
	UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error
}

func newSnapshots(l *Lifecycle, at *endpoint) *snapshots {
	e := &snapshots{endpoint: at, service: "cinder-volume", requests: func(client Cinder) snapshotRequests { return client.(snapshotRequests) }}
	e.taken = newSnapshotStock(l, at, "snapshot", e.requests)
	return e
}

func newSnapshotStock(l *Lifecycle, at *endpoint, noun string, requests func(client Cinder) snapshotRequests) *stock[cinder.Snapshot] {
	return newStock(l, at, kind[cinder.Snapshot]{
		noun: noun, owner: "VolumeSnapshot",
		read: func(ctx context.Context, client Cinder, id string) (cinder.Snapshot, error) {
			return requests(client).Snapshot(ctx, id)
		},
		list: func(ctx context.Context, client Cinder, query cinder.Query, yield func([]cinder.Snapshot) bool) error {
			return requests(client).ListSnapshots(ctx, query, yield)
		},
		ownerOf: func(s cinder.Snapshot) string {
			if s.Metadata[stamps.KeyCluster] != at.cluster {
				return ""
			}
			return s.Metadata[stamps.KeySnapshotUID]
		},
		share: stamps.ShareSnapshot,
	})
}

// SnapshotsOf names snapshots of a volume that the project can see, or none.
func (l Snapshots) SnapshotsOf(ctx context.Context, volumeID string) (names []string, err error) {
	found, err := l.current().snapshots.snapshotsOf(ctx, volumeID)
	for _, s := range found {
		names = append(names, nameOfSnapshot(s))
	}
	return names, err
}

// TakeSnapshot creates the snapshot that a VolumeSnapshot wants, or adopts one from an
// earlier attempt, and waits until it is available. The error is KindElsewhere if the
// backend points to another place.
func (l Snapshots) TakeSnapshot(ctx context.Context, spec SnapshotSpec) (cinder.Snapshot, error) {
	return serialized(ctx, l.Lifecycle, spec.Stamp.Key(), func(at *owners) (cinder.Snapshot, error) { return l.of(at).takeSnapshot(ctx, spec) })
}

func (e *snapshots) takeSnapshot(ctx context.Context, spec SnapshotSpec) (cinder.Snapshot, error) {
	if e.place().IsKnown() {
		if err := e.mustTakeAt(spec.Place); err != nil {
			return cinder.Snapshot{}, err
		}
	}
	s, err := e.lookForSnapshot(ctx, spec)
	if err == nil {
		// By now the endpoint knows its place, which does not change.
		err = e.mustTakeAt(spec.Place)
	}
	requested := false
	for range maxMoves {
		if err != nil {
			return cinder.Snapshot{}, err
		}
		if s.ID == "" {
			s, err = e.create(ctx, spec)
			requested = true
			continue
		}
		switch s.Status {
		case cinder.StatusAvailable, cinder.StatusBackupRestoring:
			return s, e.removeSource(ctx, spec)
		case cinder.StatusCreating, cinder.StatusDeleting:
			waitedFor := s
			var gone bool
			if s, gone, err = e.await(ctx, s, requested); gone {
				e.taken.forget(spec.Stamp.SnapshotUID, waitedFor.ID)
				e.taken.known.Doubt(spec.Stamp.SnapshotUID)
				s, err = e.lookForSnapshot(ctx, spec)
			}
		case cinder.StatusError:
			return cinder.Snapshot{}, e.discardSnapshot(ctx, s, spec)
		case cinder.StatusBackingUp:
			// It stays so if there was no backup service to make the backup
			// (create_backup in cinder/scheduler/manager.py).
			return cinder.Snapshot{}, e.failure(cinder.KindConflict, "%s is %s; waiting until its backup is made; if none is being made, an OpenStack administrator must run: cinder snapshot-reset-state --state available %s", e.name(s.ID), s.Status, s.ID)
		default:
			return cinder.Snapshot{}, e.failure(cinder.KindConflict, "%s is %s; waiting for that operation to finish", e.name(s.ID), s.Status)
		}
	}
	if err != nil {
		return cinder.Snapshot{}, err
	}
	return cinder.Snapshot{}, e.failure(cinder.KindConflict, "%s keeps changing state; something else is modifying it", e.name(s.ID))
}

// name names a snapshot or a backup in a message, as Cinder knows it.
func (e *snapshots) name(id string) string { return e.taken.kind.noun + " " + cinderID(id) }

// await waits until a snapshot that is being created or deleted no longer is. For a backup
// that is being made, it waits only if this attempt has requested it, and with patience.
func (e *snapshots) await(ctx context.Context, s cinder.Snapshot, requested bool) (after cinder.Snapshot, gone bool, err error) {
	switch {
	case s.Status == cinder.StatusDeleting:
		return e.taken.watcher.Await(ctx, s.ID, s.Status, e.timeouts().Delete)
	case e.source == nil:
		return e.taken.watcher.Await(ctx, s.ID, s.Status, e.timeouts().Create)
	}
	if requested {
		after, gone, err = e.taken.watcher.Await(ctx, s.ID, s.Status, patience)
	}
	if !requested || cinder.IsKind(err, KindTimeout) {
		err = e.failure(KindPending, "%s is being made, which may take hours", e.name(s.ID))
	}
	return after, gone, err
}

// create requests what the spec wants.
func (e *snapshots) create(ctx context.Context, spec SnapshotSpec) (cinder.Snapshot, error) {
	if e.source != nil {
		return e.createBackup(ctx, spec)
	}
	return e.createSnapshot(ctx, spec)
}

// removeSource removes the snapshot from which a backup was made.
func (e *snapshots) removeSource(ctx context.Context, spec SnapshotSpec) error {
	if e.source == nil {
		return nil
	}
	e.forgetTrouble(spec.Stamp.SnapshotUID)
	_, err := e.source.abandon(ctx, SnapshotTarget{Stamp: spec.Stamp, Place: spec.Place, Unrecorded: true})
	return err
}

func (e *snapshots) forgetTrouble(uid string) {
	e.failed.Delete(uid)
	e.doubted.Delete(uid)
}

func (e *snapshots) mustTakeAt(wanted cinder.Place) error {
	if here := e.place(); here != wanted {
		return e.elsewhere("the %s was to be taken at %s, but the backend points to %s", e.taken.kind.noun, wanted, here)
	}
	return nil
}

// lookForSnapshot finds the snapshot of a VolumeSnapshot. The zero Snapshot means
// that there is provably none.
func (e *snapshots) lookForSnapshot(ctx context.Context, spec SnapshotSpec) (cinder.Snapshot, error) {
	return e.taken.only(ctx, spec.Stamp.SnapshotUID, spec.owns, func(found []cinder.Snapshot) (string, error) {
		return e.keepOneSnapshot(ctx, found, spec)
	})
}

// keepOneSnapshot picks which of several snapshots with one stamp to keep: the recorded
// one, or else the oldest, which every leader picks. It removes the others, which nothing
// names. If several were recorded, it removes none, since a VolumeSnapshotContent may
// name any of them.
func (e *snapshots) keepOneSnapshot(ctx context.Context, found []cinder.Snapshot, spec SnapshotSpec) (id string, err error) {
	id = found[0].ID
	var recorded []string
	for _, s := range found {
		if stamps.WasRecorded(s) {
			recorded = append(recorded, s.ID)
		}
	}
	if len(recorded) > 0 {
		id = recorded[0]
	}
	if len(recorded) > 1 {
		// A user must delete all but one, which only another listing shows.
		e.taken.known.Doubt(spec.Stamp.SnapshotUID)
		return "", e.failure(KindRecorded, "%ss %s of one VolumeSnapshot were all recorded; keep one and delete the others by hand", e.taken.kind.noun, strings.Join(recorded, ", "))
	}
	for _, s := range found {
		if s.ID == id {
			continue
		}
		e.logger.Warn("Removing a duplicate "+e.taken.kind.noun+" of one VolumeSnapshot", "id", s.ID, "kept", id, "status", s.Status)
		if err := e.removeSnapshot(ctx, SnapshotTarget{SnapshotID: s.ID, Stamp: spec.Stamp, Place: e.place(), Unrecorded: true}); err != nil {
			if cinder.IsKind(err, KindRecorded) {
				// It was marked after the listing.
				e.taken.known.Doubt(spec.Stamp.SnapshotUID)
			}
			return "", err
		}
	}
	return id, nil
}

// createSnapshot creates the snapshot. If the answer is lost, the next attempt looks for
// the snapshot; the request is never repeated.
func (e *snapshots) createSnapshot(ctx context.Context, spec SnapshotSpec) (s cinder.Snapshot, err error) {
	source, err := e.existing(ctx, spec.Source)
	if err != nil {
		return cinder.Snapshot{}, err
	}
	if spec.forBackup {
		if err := e.refuseBackup(source); err != nil {
			return cinder.Snapshot{}, err
		}
	}
	metadata := spec.metadata()
	stamps.InheritEncryption(metadata, source.Metadata)
	uid := spec.Stamp.SnapshotUID
	e.taken.known.Doubt(uid)
	err = change(ctx, e.session, spec.Source.Permit.on(ctx, source), func(ctx context.Context, client snapshotCreation) (err error) {
		s, err = client.CreateSnapshot(ctx, cinder.NewSnapshot{Name: spec.Name, VolumeID: source.ID, Metadata: metadata})
		return err
	})
	e.taken.created(uid, s.ID, err)
	return s, err
}

// discardSnapshot deletes a snapshot that Cinder failed to create, and reports it. The
// next attempt creates a new one. A recorded snapshot was ready once, so its content is
// worth a repair.
func (e *snapshots) discardSnapshot(ctx context.Context, s cinder.Snapshot, spec SnapshotSpec) error {
	if stamps.WasRecorded(s) {
		return e.failure(KindVolumeFailed, "%s went to error after it was recorded, so it is kept; an OpenStack administrator must repair it, or delete the VolumeSnapshot", e.name(s.ID))
	}
	if err := e.removeSnapshot(ctx, SnapshotTarget{SnapshotID: s.ID, Stamp: spec.Stamp, Place: e.place(), Unrecorded: true}); err != nil {
		return fmt.Errorf("%s went to error and cannot be removed: %w", e.name(s.ID), err)
	}
	e.logger.Warn("A "+e.taken.kind.noun+" went to error and was removed", "id", s.ID, "reason", s.FailReason)
	if s.Incremental {
		e.failed.Store(spec.Stamp.SnapshotUID, true)
	}
	return e.failure(KindVolumeFailed, "%s went to error and was removed; see the log of %s", e.name(s.ID), e.service)
}

// MarkSnapshot marks a snapshot as recorded, before a VolumeSnapshotContent names it.
// Later checks then cannot take it for one that was never handed out.
func (l Snapshots) MarkSnapshot(ctx context.Context, s cinder.Snapshot) error {
	if stamps.WasRecorded(s) {
		return nil
	}
	return l.of(l.current()).writeMetadata(ctx, nil, s.ID, map[string]string{stamps.KeyRecorded: "true"})
}

func (e *snapshots) writeMetadata(ctx context.Context, permitted permission, id string, metadata map[string]string) error {
	return change(ctx, e.session, permitted, func(ctx context.Context, client Cinder) error {
		return e.requests(client).UpdateSnapshotMetadata(ctx, id, metadata)
	})
}

// AbandonSnapshots deletes all snapshots of a VolumeSnapshot whose content names
// none; the target has no ID. It returns the IDs of those that it kept, because
// they were recorded and the target is Unrecorded.
func (l Snapshots) AbandonSnapshots(ctx context.Context, target SnapshotTarget) (kept []string, err error) {
	return serialized(ctx, l.Lifecycle, target.Stamp.Key(), func(at *owners) ([]string, error) { return l.of(at).abandon(ctx, target) })
}

func (e *snapshots) abandon(ctx context.Context, target SnapshotTarget) (kept []string, err error) {
	_, since := e.taken.known.Of(target.Stamp.SnapshotUID)
	found, err := e.taken.inventory.Find(ctx, target.Stamp.SnapshotUID, target.Stamp.Owns, since)
	if err != nil {
		return nil, err
	}
	if here := e.place(); target.Place != here {
		return nil, e.elsewhere("the %s of VolumeSnapshot UID %q was to be made at %s, but the backend points to %s", e.taken.kind.noun, target.Stamp.SnapshotUID, target.Place, here)
	}
	if id, _ := e.taken.known.Of(target.Stamp.SnapshotUID); id != "" && !slices.ContainsFunc(found, func(s cinder.Snapshot) bool { return s.ID == id }) {
		found = append(found, cinder.Snapshot{ID: id})
	}
	for _, s := range found {
		target.SnapshotID = s.ID
		switch err := e.removeSnapshot(ctx, target); {
		case cinder.IsKind(err, KindRecorded):
			kept = append(kept, s.ID)
		case err != nil:
			return nil, err
		}
	}
	if e.source != nil {
		e.forgetTrouble(target.Stamp.SnapshotUID)
		target.Unrecorded = true
		_, err = e.source.abandon(ctx, target)
	}
	return kept, err
}

// RemoveSnapshot deletes a snapshot, in any state, and waits until it is gone. It
// does nothing to a snapshot whose stamp does not match (KindNotOurs).
func (l Snapshots) RemoveSnapshot(ctx context.Context, target SnapshotTarget) error {
	return l.serialized(ctx, target.Stamp.Key(), func(at *owners) error { return l.of(at).removeSnapshot(ctx, target) })
}

func (e *snapshots) removeSnapshot(ctx context.Context, target SnapshotTarget) error {
	for range maxMoves {
		s, err := e.taken.get(ctx, target.SnapshotID)
		switch {
		case cinder.IsKind(err, cinder.KindNotFound):
			if here := e.place(); target.Place != here {
				return e.elsewhere("%s was recorded at %s, but the backend points to %s, where it does not exist", e.name(target.SnapshotID), target.Place, here)
			}
			e.taken.forgetOne(target.Stamp.SnapshotUID, target.SnapshotID)
			return nil
		case err != nil:
			return err
		case !target.Stamp.Owns(s):
			return e.snapshotNotOurs(s, target.Stamp)
		case target.Unrecorded && stamps.WasRecorded(s):
			return e.failure(KindRecorded, "%s was recorded in a VolumeSnapshotContent; it is not touched", e.name(s.ID))
		}
		// It was seen here, so its absence here is proof from now on.
		target.Place = e.place()
		if e.isDeletedWithOthers(s) {
			if isMember, err := e.groups.removeMember(ctx, s, permissionOf(ctx, target.Permit)); isMember {
				return err
			}
		}
		switch s.Status {
		case cinder.StatusCreating:
			_, _, err = e.await(ctx, s, false)
		case cinder.StatusAvailable, cinder.StatusError:
			if s.HasDependents {
				return e.failure(KindHasBackups, "incremental backups depend on %s; it is deleted after them", e.name(s.ID))
			}
			err = change(ctx, e.session, permissionOf(ctx, target.Permit), func(ctx context.Context, client Cinder) error {
				return e.requests(client).DeleteSnapshot(ctx, s.ID)
			})
			if err == nil {
				err = e.awaitSnapshotGone(ctx, s.ID, true)
			} else {
				_, err = e.taken.afterConflict(ctx, s, err)
			}
		case cinder.StatusDeleting:
			err = e.awaitSnapshotGone(ctx, s.ID, false)
		case cinder.StatusErrorDeleting:
			err = e.failure(KindVolumeFailed, "the storage backend failed to delete %s (error_deleting); an OpenStack administrator must repair it and run: cinder %s-reset-state --state available %s", e.name(s.ID), e.taken.kind.noun, cinderID(s.ID))
		default:
			err = e.failure(cinder.KindConflict, "%s is %s; waiting for that operation to finish", e.name(s.ID), s.Status)
		}
		if err != nil && !cinder.IsKind(err, cinder.KindNotFound) {
			return err
		}
	}
	return e.failure(cinder.KindConflict, "%s keeps changing state; something else is modifying it", e.name(target.SnapshotID))
}

// isDeletedWithOthers reports whether Cinder deletes a snapshot, in its present state, only with
// the others of its group snapshot.
func (e *snapshots) isDeletedWithOthers(s cinder.Snapshot) bool {
	return stamps.GroupSnapshotOf(s) != "" && e.groups != nil &&
		slices.Contains([]cinder.Status{cinder.StatusAvailable, cinder.StatusError, cinder.StatusErrorDeleting, cinder.StatusDeleted}, s.Status)
}

func (e *snapshots) snapshotNotOurs(s cinder.Snapshot, expected stamps.Snapshot) *cinder.Error {
	return e.failure(KindNotOurs, "%s is stamped %s, expected %s; it is not touched", e.name(s.ID), stamps.OfSnapshot(s).Describe(), expected.Describe())
}

// awaitSnapshotGone waits for the end of a deletion that Cinder has accepted, just now or
// earlier.
func (e *snapshots) awaitSnapshotGone(ctx context.Context, id string, now bool) error {
	s, gone, err := e.taken.awaitGone(ctx, id, now)
	switch {
	case err != nil || gone:
		return err
	case s.Status == cinder.StatusError && e.source != nil:
		e.logger.Warn("Cinder failed to delete a backup", "id", s.ID, "reason", s.FailReason)
		return e.failure(KindVolumeFailed, "Cinder failed to delete %s; see the log of %s", e.name(s.ID), e.service)
	case s.Status != cinder.StatusAvailable:
		return nil
	}
	// Cinder's RBD driver does this to a snapshot from which a volume was made.
	return e.failure(KindInUse, "Cinder canceled the deletion of %s: volumes that were made from it depend on it", e.name(id))
}

// Snapshots lists the cluster's snapshots as of the last complete listing of this
// term. It costs requests only the first time.
func (l Snapshots) Snapshots(ctx context.Context) ([]cinder.Snapshot, error) {
	return l.of(l.current()).taken.inventory.All(ctx, time.Time{})
}

// RelistSnapshots lists the cluster's snapshots again.
func (l Snapshots) RelistSnapshots(ctx context.Context) ([]cinder.Snapshot, error) {
	return l.of(l.current()).taken.inventory.All(ctx, time.Now())
}

// FindSnapshot reads a snapshot by its ID, regardless of owner.
func (l Snapshots) FindSnapshot(ctx context.Context, id string) (s cinder.Snapshot, found bool, err error) {
	s, found, err = l.of(l.current()).taken.find(ctx, id)
	return s, found && !stamps.IsUnneeded(s), err
}

// snapshotsOf lists a volume's snapshots, regardless of owner. It trusts the server's
// filter even for absence, so its result is fit only for messages.
func (e *snapshots) snapshotsOf(ctx context.Context, volumeID string) (found []cinder.Snapshot, err error) {
	err = e.taken.list(ctx, cinder.Query{VolumeID: volumeID, PageSize: 100}, func(page []cinder.Snapshot) bool {
		for _, s := range page {
			if s.VolumeID == volumeID {
				found = append(found, s)
			}
		}
		return len(found) == 0
	})
	return found, err
}
