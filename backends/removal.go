package backends

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/steps"
)

// Target is a volume to change or remove, with the proof of ownership.
type Target struct {
	VolumeID string
	Stamp    stamps.Volume
	// Historic means that the historic provisioner, whose volumes have no stamp, wrote
	// the PersistentVolume.
	Historic bool
	// Connector is what the volume was connected with.
	Connector cinder.Connector
	// Permit is called before every change; nil permits all.
	Permit Permit
	// Place is where the volume lives, if recorded.
	Place cinder.Place
	// Found is called before the first change if the volume is found, with its stamp, at
	// a place other than the recorded one. It must record that place, so that a later
	// attempt can interpret the volume's absence; its error ends the removal. Nil records
	// nothing.
	Found func(ctx context.Context, at cinder.Place) error

	// RecordedAt is when the PersistentVolume was created, by the API server's clock, and
	// PVUID its UID; zero and empty if unknown. An older listing does not show whether
	// the volume is complete. See stamps.IsRestored.
	RecordedAt time.Time
	PVUID      string
	// Undecided means that Kubernetes has neither bound nor released the PersistentVolume
	// yet, so it is unclear whether it is wanted.
	Undecided bool

	// unreferenced means that no PersistentVolume names the volume. It is not removed if
	// it was ever attached, since a PersistentVolume must have named it then.
	unreferenced bool
}

// Permit decides whether a volume, in its last known state, may be taken a step towards
// its removal. It is called twice for every change: before the request enters the queue,
// when it may be slow, and again when the turn has come, perhaps minutes later. The
// second call delays other requests to the backend, so it should not make requests. Its
// error is returned unchanged and ends the operation.
type Permit func(ctx context.Context, v cinder.Volume) error

// permission is asked before one change and again when its turn has come; nil permits it.
type permission func() error

// on returns the permission for changes of a volume in its last known state.
func (p Permit) on(ctx context.Context, v cinder.Volume) permission {
	if p == nil {
		return nil
	}
	return func() error { return p(ctx, v) }
}

// permissionOf returns the permission for changes of something other than a volume.
func permissionOf(ctx context.Context, permit func(ctx context.Context) error) permission {
	if permit == nil {
		return nil
	}
	return func() error { return permit(ctx) }
}

// key identifies operations that must not overlap.
func (t Target) key() string { return cmp.Or(t.Stamp.ClaimUID, t.VolumeID) }

// owns reports whether the volume is provably the target's.
func (t Target) owns(v cinder.Volume) bool {
	if t.Historic {
		return stamps.LooksHistoric(v)
	}
	return t.Stamp.Owns(v)
}

// isRestored reports whether the PersistentVolume was re-created and not seen in use
// before its release.
func (t Target) isRestored(v cinder.Volume) bool {
	return !t.Historic && stamps.IsRestored(v, t.PVUID, t.RecordedAt)
}

// isOfAnother reports whether a volume belongs to another cluster with the same ID: that
// cluster created or imported it, and this one has not imported it since.
func (t Target) isOfAnother(v cinder.Volume) bool {
	has := stamps.Of(v).ClusterUID
	return t.Stamp.ClusterUID != "" && has != "" && has != t.Stamp.ClusterUID
}

// attachedBy reports whether an attachment was made by this program, with this connector
// or for one of the cluster's nodes, or by the historic provisioner. Cinder shows the
// host only to administrators (cinder/api/v2/views/volumes.py); an attachment with
// neither host nor instance, on a volume with the target's stamp, counts as this
// program's.
func (t Target) attachedBy(a cinder.Attachment) bool {
	if a.ServerID != "" {
		return false
	}
	return a.Host == "" || a.Host == t.Connector.Host || t.Historic && a.Host == stamps.HistoricHost || strings.HasSuffix(a.Host, stamps.NodeHostSuffix(t.Stamp.Cluster))
}

// foreign names the hosts and instances to which other programs have attached the volume.
func (t Target) foreign(v cinder.Volume) []string {
	var foreign []string
	for _, attachment := range v.Attachments {
		if !t.attachedBy(attachment) {
			foreign = append(foreign, cmp.Or(attachment.ServerID, cmp.Or(attachment.Host, attachment.ID)))
		}
	}
	return foreign
}

// Remove undoes everything that was done for a volume, in any state: disconnect, detach
// or unreserve, delete, and wait until it is gone. A volume missing from its own place is
// already removed; its absence elsewhere proves nothing (KindElsewhere). Remove leaves a
// volume alone if its stamp does not match (KindNotOurs) or if it is in use elsewhere
// (KindInUse).
func (l *Lifecycle) Remove(ctx context.Context, target Target) error {
	return l.serialized(ctx, target.key(), func(at *owners) error { return at.remover.removeAndForget(ctx, target) })
}

// remover removes volumes.
type remover struct {
	connections
	snapshots *snapshots
}

type removalRequests interface {
	DeleteVolume(ctx context.Context, id string) error
	ForceDeleteVolume(ctx context.Context, id string) error
}

func (e remover) removeAndForget(ctx context.Context, target Target) error {
	err := e.remove(ctx, target)
	if err == nil {
		e.forgetOne(target.Stamp.ClaimUID, target.VolumeID)
	}
	return err
}

// Abandon removes a claim's unrecorded leftovers at the backend. It keeps a volume that
// was ever attached or that looks like a restored backup. The permit must check the rest
// at Kubernetes.
func (l *Lifecycle) Abandon(ctx context.Context, stamp stamps.Volume, connector cinder.Connector, permit Permit) error {
	return l.serialized(ctx, stamp.ClaimUID, func(at *owners) error { return at.maker.abandon(ctx, stamp, connector, permit) })
}

func (e finder) abandon(ctx context.Context, stamp stamps.Volume, connector cinder.Connector, permit Permit) error {
	v, err := e.look(ctx, stamp, connector, permit)
	if err != nil {
		return err
	}
	if v.ID == "" {
		return e.leftBehind(stamp.ClaimUID)
	}
	for _, id := range e.known.RivalsOf(stamp.ClaimUID, v.ID) {
		err := e.removeUnrecorded(ctx, id, stamp, connector, permit)
		switch {
		case cinder.IsKind(err, KindInUse), cinder.IsKind(err, KindRecorded), cinder.IsKind(err, KindNotOurs):
			e.logger.Warn("A duplicate volume of one claim is not removed", "volume", id, "error", err)
			e.known.DropRival(stamp.ClaimUID, id)
		case err != nil:
			return err
		}
	}
	return e.removeUnrecorded(ctx, v.ID, stamp, connector, permit)
}

// RemoveUnrecorded removes one volume that a listing showed and that no PersistentVolume
// names: an orphan, or a duplicate of a claim's volume. It keeps the same volumes as
// Abandon.
func (l *Lifecycle) RemoveUnrecorded(ctx context.Context, volumeID string, stamp stamps.Volume, connector cinder.Connector, permit Permit) error {
	return l.serialized(ctx, stamp.ClaimUID, func(at *owners) error { return at.remover.removeUnrecorded(ctx, volumeID, stamp, connector, permit) })
}

func (e remover) removeUnrecorded(ctx context.Context, volumeID string, stamp stamps.Volume, connector cinder.Connector, permit Permit) error {
	return e.removeAndForget(ctx, Target{VolumeID: volumeID, Stamp: stamp, Connector: connector, Permit: permit, unreferenced: true})
}

func (e remover) remove(ctx context.Context, target Target) error {
	v, err := e.owned(ctx, target)
	if at := e.place(); err == nil && v.ID != "" {
		if target.Place != at && target.Found != nil {
			err = target.Found(ctx, at)
		}
		// The volume was seen here, so its absence is proof from here on.
		target.Place = at
	}
	for range maxMoves {
		if err != nil {
			return err
		}
		if v.ID == "" {
			return nil
		}
		v, err = e.moveTowardsGone(ctx, target.Permit.on(ctx, v), v, target)
		if cinder.IsKind(err, cinder.KindNotFound) {
			// It disappeared between the read and the step.
			v, err = e.owned(ctx, target)
		}
	}
	if err != nil {
		return err
	}
	return e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", target.VolumeID)
}

// owned reads the target's volume and checks the proof of ownership. The zero
// Volume means that it is gone.
func (e *endpoint) owned(ctx context.Context, target Target) (cinder.Volume, error) {
	v, err := e.watcher.See(ctx, target.VolumeID, e.timeouts().Request)
	switch {
	case cinder.IsKind(err, cinder.KindNotFound):
		return cinder.Volume{}, e.absent(ctx, target)
	case err != nil:
		return cinder.Volume{}, err
	}
	return v, e.removable(v, target)
}

// existing reads the target's volume, which must exist, and checks the proof of
// ownership.
func (e *endpoint) existing(ctx context.Context, target Target) (cinder.Volume, error) {
	v, err := e.owned(ctx, target)
	if err == nil && v.ID == "" {
		return cinder.Volume{}, e.failure(cinder.KindNotFound, "volume %s does not exist", target.VolumeID)
	}
	return v, err
}

// removable returns an error unless the volume may be removed in its current state.
func (e *endpoint) removable(v cinder.Volume, target Target) error {
	switch {
	case !target.owns(v):
		return e.notOurs(v, target)
	case target.isOfAnother(v):
		return e.failure(KindNotOurs, "volume %s carries the UID %q of another cluster's namespace kube-system, and the same clusterID: that cluster created it, or imported it after a restore; it is not removed here", v.ID, stamps.Of(v).ClusterUID)
	case stamps.EverAttached(v) && target.isRestored(v):
		return e.failure(KindRestored, "volume %s (%s) was in use before PersistentVolume %s was created, which has not been bound since: it was restored from a backup or an export. The volume is kept; bind the PersistentVolume to a claim, or, if the data is not needed, set the reclaim policy to Retain, delete the PersistentVolume, and delete the volume at Cinder", v.ID, v.Status, target.Stamp.PV)
	case target.unreferenced && stamps.IsCopy(v):
		return e.failure(KindNotOurs, "volume %s (%s) carries the stamp of claim UID %q but is younger than that claim's volume: it looks like a restored backup and is not removed", v.ID, v.Status, target.Stamp.ClaimUID)
	case target.unreferenced && stamps.EverAttached(v):
		return e.failure(KindRecorded, "volume %s (%s) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume", v.ID, v.Status)
	}
	return e.attachedElsewhere(v, target)
}

// attachedElsewhere returns an error if another party has attached the volume.
func (e *endpoint) attachedElsewhere(v cinder.Volume, target Target) error {
	foreign := target.foreign(v)
	if len(foreign) == 0 {
		return nil
	}
	return e.failure(KindInUse, "volume %s is attached elsewhere (%s); detach it there first", v.ID, strings.Join(slices.Compact(slices.Sorted(slices.Values(foreign))), ", "))
}

// moveTowardsGone takes one step and returns the volume after it. If Cinder answers a
// step only when it is complete, the next state is assumed; if that is wrong, Cinder
// rejects the next step and the volume is read again.
func (e remover) moveTowardsGone(ctx context.Context, permitted permission, v cinder.Volume, target Target) (cinder.Volume, error) {
	next := steps.StepToDelete(v, stamps.WorkflowOf(v))
	if next == steps.Delete && len(v.Attachments) > 0 {
		// It failed while in use, and Cinder does not delete attached volumes.
		next = steps.Disconnect
		if stamps.WorkflowOf(v) == cinder.WorkflowAttachment {
			next = steps.DetachAll
		}
	}
	switch next {
	case steps.AwaitCreated:
		if stamps.IsRestoring(v) {
			return v, e.failure(KindPending, "volume %s is being restored from a backup, which may take hours, and is deleted after that", v.ID)
		}
		after, gone, err := e.watcher.Await(ctx, v.ID, v.Status, e.timeouts().Create)
		if gone || err != nil {
			return cinder.Volume{}, err
		}
		return after, e.removable(after, target)
	case steps.Disconnect, steps.Release, steps.DetachAll:
		end := map[steps.Step]func(context.Context, permission, cinder.Volume, Target) error{
			steps.Disconnect: e.disconnect, steps.Release: e.release, steps.DetachAll: e.detachAll,
		}[next]
		if err := end(ctx, permitted, v, target); err != nil {
			return v, err
		}
		v.Status, v.Attachments = cinder.StatusAvailable, nil
		return v, nil
	case steps.Delete:
		err := change(ctx, e.session, permitted, func(ctx context.Context, client removalRequests) error { return client.DeleteVolume(ctx, v.ID) })
		if cinder.IsKind(err, cinder.KindConflict) {
			again, lookErr := e.owned(ctx, target)
			if lookErr != nil || again.Status != v.Status {
				return again, lookErr
			}
			return v, e.dependents(ctx, permitted, v)
		}
		if err != nil {
			return v, err
		}
		return cinder.Volume{}, e.awaitGone(ctx, v.ID, true)
	case steps.AwaitGone:
		return cinder.Volume{}, e.awaitGone(ctx, v.ID, false)
	case steps.ForceDelete:
		return cinder.Volume{}, e.forceDelete(ctx, permitted, v)
	}
	return v, e.failure(cinder.KindConflict, "volume %s is %s; waiting for that operation to finish", v.ID, v.Status)
}

// disconnect takes a volume out of use: first it ends the array's access, then the
// attachment, since detaching removes the export. If overlapping leaders left several
// attachments, Cinder rejects the termination until only one remains
// (attachment_deletion_allowed in cinder/volume/api.py).
func (e connections) disconnect(ctx context.Context, permitted permission, v cinder.Volume, target Target) error {
	attachments := v.Attachments
	for len(attachments) > 1 {
		if err := e.detach(ctx, permitted, v.ID, attachments[0].ID); err != nil {
			return err
		}
		attachments = attachments[1:]
	}
	if err := e.terminate(ctx, permitted, v, target); err != nil {
		return err
	}
	if len(attachments) == 0 {
		return e.detach(ctx, permitted, v.ID, "")
	}
	return e.detach(ctx, permitted, v.ID, attachments[0].ID)
}

// detach ends an attachment; a missing one counts as ended.
func (e connections) detach(ctx context.Context, permitted permission, id, attachment string) error {
	err := change(ctx, e.session, permitted, func(ctx context.Context, client connectionRequests) error { return client.Detach(ctx, id, attachment) })
	if attachment != "" && cinder.IsKind(err, cinder.KindNotFound) {
		return nil
	}
	return err
}

// release cancels a reservation. On most backends, terminating the connection already
// does that; the unreserve ensures it and is otherwise harmless.
func (e connections) release(ctx context.Context, permitted permission, v cinder.Volume, target Target) error {
	if err := e.terminate(ctx, permitted, v, target); err != nil {
		return err
	}
	return e.unreserve(ctx, permitted, v)
}

func (e connections) terminate(ctx context.Context, permitted permission, v cinder.Volume, target Target) error {
	return change(ctx, e.session, permitted, func(ctx context.Context, client connectionRequests) error {
		return client.TerminateConnection(ctx, v.ID, target.Connector)
	})
}

// awaitGone waits for the end of a deletion that Cinder has accepted, just now or earlier.
func (e remover) awaitGone(ctx context.Context, id string, now bool) error {
	v, gone, err := e.stock.awaitGone(ctx, id, now)
	switch {
	case err != nil || gone:
		return err
	case v.Status == cinder.StatusErrorDeleting:
		return e.failure(KindVolumeFailed, "the storage backend failed to delete volume %s (error_deleting)", id)
	}
	// Cinder's RBD driver does this to a volume whose snapshot has a clone.
	return e.failure(KindInUse, "Cinder canceled the deletion of volume %s (status %s): something may still depend on it", id, v.Status)
}

// forceDelete deletes a volume in any state. It is the only way out of error_deleting,
// and works only for administrators and noauth.
func (e remover) forceDelete(ctx context.Context, permitted permission, v cinder.Volume) error {
	err := change(ctx, e.session, permitted, func(ctx context.Context, client removalRequests) error { return client.ForceDeleteVolume(ctx, v.ID) })
	if cinder.IsKind(err, cinder.KindForbidden) {
		return e.failure(cinder.KindForbidden, "volume %s is in error_deleting; an OpenStack administrator must repair it and run: cinder force-delete %s", v.ID, v.ID)
	}
	if err != nil {
		return err
	}
	return e.awaitGone(ctx, v.ID, true)
}

// dependents explains a DELETE that was rejected because of something that must be
// deleted first. Cinder's own message lists every possible reason but names nothing.
func (e remover) dependents(ctx context.Context, permitted permission, v cinder.Volume) error {
	if snapshots, err := e.snapshots.snapshotsOf(ctx, v.ID); err == nil && len(snapshots) > 0 {
		var names []string
		for _, s := range snapshots[:min(len(snapshots), maxNamed)] {
			names = append(names, nameOfSnapshot(s))
		}
		kind := KindHasSnapshots
		if slices.ContainsFunc(snapshots, func(s cinder.Snapshot) bool { return stamps.OfSnapshot(s).Cluster != e.cluster }) {
			kind = KindInUse
		}
		return e.failure(kind, "volume %s cannot be deleted until its snapshots (%d) are deleted: %s", v.ID, len(snapshots), strings.Join(names, ", "))
	}
	if found, err := e.snapshots.groups.release(ctx, v, permitted); found {
		return err
	}
	return e.failure(KindInUse, "Cinder refused to delete volume %s (status %s): it may have snapshots or dependent volumes, or be part of a group or a migration; remove those first", v.ID, v.Status)
}

// maxNamed is how many snapshots an error names.
const maxNamed = 5

// nameOfSnapshot names a snapshot by its VolumeSnapshot, if it has one.
func nameOfSnapshot(s cinder.Snapshot) string {
	if stamps.IsUnneeded(s) {
		return fmt.Sprintf("%s, which Cinder deletes only with the others of group snapshot %s", s.ID, stamps.GroupSnapshotOf(s))
	}
	if stamp := stamps.OfSnapshot(s); stamp.Snapshot != "" {
		return fmt.Sprintf("VolumeSnapshot %s/%s (%s)", stamp.Namespace, stamp.Snapshot, s.ID)
	}
	if s.Name == "" {
		return s.ID
	}
	return fmt.Sprintf("%s (%s)", s.Name, s.ID)
}

func (e *endpoint) notOurs(v cinder.Volume, target Target) *cinder.Error {
	if target.Historic {
		return e.failure(KindNotOurs, "volume %s (%q) does not look like a volume of the historic provisioner; it is not touched", v.ID, v.Name)
	}
	if stamps.IsBeingSwapped(v) {
		return e.failure(KindNotOurs, "volume %s is being swapped with that of PersistentVolume %s; it is not touched until standalone-cinder volume swap, run again, has finished", v.ID, v.Metadata[stamps.KeySwap])
	}
	found := stamps.Of(v)
	return e.failure(KindNotOurs, "volume %s is stamped %s, expected %s; it is not touched", v.ID, found.Describe(), target.Stamp.Describe())
}
