package backends

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// Complete takes the last step, to in-use; a volume for the CSI driver is only marked as
// recorded. The caller must have seen the PersistentVolume in the API server. A volume
// connected in this term costs one request; one connected in an earlier term is looked up
// in the listing that serves all of these. For a missing volume, the error is of
// KindNotFound, or of KindElsewhere if its absence here proves nothing.
func (l *Lifecycle) Complete(ctx context.Context, target Target, readOnly bool) error {
	return l.serialized(ctx, target.key(), func(at *owners) error { return at.completer.complete(ctx, target, readOnly) })
}

// completer brings the volumes of recorded PersistentVolumes into use.
type completer struct{ connections }

func (e completer) complete(ctx context.Context, target Target, readOnly bool) error {
	err := e.attach(ctx, target, readOnly)
	if cinder.IsKind(err, cinder.KindNotFound) {
		if elsewhere := e.absent(ctx, target); elsewhere != nil {
			return elsewhere
		}
	}
	if err != nil {
		return err
	}
	e.known.ForgetSeen(target.VolumeID)
	return nil
}

// IsComplete reports whether the term's listing shows that Complete has nothing to do. It
// never lists.
func (l *Lifecycle) IsComplete(target Target) bool {
	e := l.current()
	if _, seen := e.known.LastSeen(target.VolumeID); seen || e.completer.isOlder(target) {
		return false // what this term saw or will see is newer
	}
	return slices.ContainsFunc(e.inventory.Listed(target.Stamp.ClaimUID), func(v cinder.Volume) bool {
		return v.ID == target.VolumeID && target.IsCompletedBy(v)
	})
}

// IsCompletedBy reports whether a volume is as Complete would leave the target's.
func (t Target) IsCompletedBy(v cinder.Volume) bool {
	switch {
	case !t.owns(v), t.isRestored(v):
		return false
	case stamps.IsCSI(v):
		return stamps.EverAttached(v)
	}
	return v.Status == cinder.StatusInUse && len(t.foreign(v)) == 0
}

// Mark marks a volume as recorded without bringing it into use, since its
// PersistentVolume is gone again. Later checks then cannot take it for a volume that was
// never recorded.
func (l *Lifecycle) Mark(ctx context.Context, target Target) error {
	return l.serialized(ctx, target.key(), func(at *owners) error {
		v, err := at.stamped(ctx, target)
		if err != nil {
			return err
		}
		return at.mark(ctx, v)
	})
}

// stamped reads the target's volume, which must carry its stamp.
func (e *endpoint) stamped(ctx context.Context, target Target) (cinder.Volume, error) {
	v, err := e.get(ctx, target.VolumeID)
	if cinder.IsKind(err, cinder.KindNotFound) {
		if elsewhere := e.absent(ctx, target); elsewhere != nil {
			return cinder.Volume{}, elsewhere
		}
	}
	if err == nil && !target.owns(v) {
		err = e.notOurs(v, target)
	}
	return v, err
}

func (e *endpoint) mark(ctx context.Context, v cinder.Volume) error {
	if stamps.EverAttached(v) {
		return nil
	}
	return e.record(ctx, nil, v, stamps.AttachedMark())
}

// record writes metadata that must not get lost, so it waits until Cinder no longer may end
// by writing all metadata back as it was.
func (e *endpoint) record(ctx context.Context, permitted permission, v cinder.Volume, metadata map[string]string) error {
	if v.Status == cinder.StatusRetyping || v.Status == cinder.StatusMaintenance {
		return e.failure(cinder.KindConflict, "volume %s is %s, and Cinder may write back its former metadata at the end; waiting for that", v.ID, v.Status)
	}
	return e.updateMetadata(ctx, permitted, v.ID, metadata)
}

// Rebind stamps the target's volume for its new claim, in one request. The volume's
// identity stays. The volume is also marked as recorded, so that no check takes it for a
// volume that was never handed out. Rebind may be repeated after any interruption, and
// does nothing to a volume that already carries the stamp. It calls the target's Permit
// with the volume as it was before. own returns the operator's metadata for a volume with
// that stamp. Rebind returns the volume as stamped.
func (l *Lifecycle) Rebind(ctx context.Context, target Target, to stamps.Volume, own func(before stamps.Volume) map[string]string) (cinder.Volume, error) {
	return serialized(ctx, l, target.key(), func(at *owners) (cinder.Volume, error) { return at.changer.rebind(ctx, target, to, own) })
}

func (e changer) rebind(ctx context.Context, target Target, to stamps.Volume, own func(before stamps.Volume) map[string]string) (cinder.Volume, error) {
	v, err := e.stamped(ctx, target)
	if err != nil {
		return cinder.Volume{}, err
	}
	stamp := to.Metadata(own(stamps.Of(v)))
	maps.Copy(stamp, stamps.AttachedMark())
	stamp[stamps.KeyPVUID] = target.PVUID
	after := v
	after.Metadata = maps.Clone(v.Metadata)
	maps.Copy(after.Metadata, stamp)
	if maps.Equal(after.Metadata, v.Metadata) {
		return v, nil
	}
	err = e.record(ctx, target.Permit.on(ctx, v), v, stamp)
	if err != nil {
		return cinder.Volume{}, err
	}
	if seen, known := e.known.LastSeen(v.ID); known && seen.ID != "" {
		e.known.See(v.ID, after)
	}
	return after, nil
}

// noteSeen records on the volume of a PersistentVolume that was created well after it
// that Kubernetes has used this PersistentVolume, so a later deletion of it is genuine.
func (e completer) noteSeen(ctx context.Context, v cinder.Volume, target Target) (cinder.Volume, error) {
	if !target.owns(v) || !target.isRestored(v) {
		return v, nil
	}
	if target.Undecided {
		return v, e.failure(KindRestored, "volume %s is left alone until Kubernetes has bound or released PersistentVolume %s, which was created well after it", v.ID, target.Stamp.PV)
	}
	seen := map[string]string{stamps.KeyPVUID: target.PVUID}
	if target.Stamp.ClusterUID != "" {
		seen[stamps.KeyClusterUID] = target.Stamp.ClusterUID // it may have been restored in another cluster
	}
	err := e.record(ctx, nil, v, seen)
	if err == nil {
		v.Metadata = maps.Clone(v.Metadata)
		maps.Copy(v.Metadata, seen)
	}
	return v, err
}

func (e completer) attach(ctx context.Context, target Target, readOnly bool) error {
	v, connected, err := e.lastSeen(ctx, target)
	if err != nil {
		return err
	}
	if v, err = e.noteSeen(ctx, v, target); err != nil {
		return err
	}
	for looked := false; ; looked = true {
		if !target.owns(v) {
			return e.notOurs(v, target)
		}
		var failed error
		tried := false
		switch {
		case stamps.IsCSI(v):
			return e.mark(ctx, v)
		case v.Status == cinder.StatusInUse:
			return e.attachedElsewhere(v, target)
		case v.Status == cinder.StatusAttaching:
			tried = true
			if !connected {
				failed = e.exportAgain(ctx, v, target)
			}
			if failed == nil {
				connected = true
				failed = e.markInUse(ctx, v, target, readOnly)
			}
			if failed == nil {
				return nil
			}
		default:
			failed = e.failure(cinder.KindConflict, "volume %s is %s, expected attaching", v.ID, v.Status)
		}
		if looked {
			return failed
		}
		// Either the known state is outdated, or the answer was lost after the effect.
		// Repeating os-attach would not tell: Cinder answers a project's member with 500
		// if the host is already attached.
		e.known.See(target.VolumeID, cinder.Volume{})
		if v, err = e.get(ctx, target.VolumeID); err != nil {
			return errors.Join(failed, err)
		}
		if cinder.IsKind(failed, cinder.KindNotFound) {
			failed = e.failure(cinder.KindConflict, "volume %s exists, but its connection was not found: %s", v.ID, failed)
		}
		if tried && v.Status == cinder.StatusAttaching {
			if connected {
				e.known.See(target.VolumeID, v)
			}
			return failed
		}
	}
}

// exportAgain connects an attaching volume that this term did not connect, or failed to:
// Cinder removes the export of a volume when a connect fails, and the PersistentVolume may
// be older than that. An attachment with a connection is never connected again.
func (e connections) exportAgain(ctx context.Context, v cinder.Volume, target Target) error {
	if stamps.WorkflowOf(v) == cinder.WorkflowAttachment {
		return nil
	}
	_, err := e.initialize(ctx, v, target.Connector)
	return err
}

// markInUse takes the volume from attaching to in-use.
func (e connections) markInUse(ctx context.Context, v cinder.Volume, target Target, readOnly bool) error {
	if stamps.WorkflowOf(v) == cinder.WorkflowAttachment {
		return e.completeAttachment(ctx, v)
	}
	return change(ctx, e.session, nil, func(ctx context.Context, client connectionRequests) error {
		return client.Attach(ctx, v.ID, target.Connector.Host, readOnly)
	})
}

// isOlder reports whether the last listing, if there was one, predates the volume's
// record: the volume may have been detached before it was recorded again.
func (e completer) isOlder(target Target) bool {
	started := e.inventory.Started()
	return !started.IsZero() && started.Before(target.RecordedAt)
}

// lastSeen returns the last known state of a volume, or reads it, and whether this term
// connected it last.
func (e completer) lastSeen(ctx context.Context, target Target) (v cinder.Volume, connected bool, err error) {
	v, ok := e.known.LastSeen(target.VolumeID)
	if ok && target.owns(v) {
		// A different stamp is outdated: the volume was imported for another claim.
		return v, true, nil
	}
	if !ok && !e.isOlder(target) {
		found, err := e.inventory.Find(ctx, target.Stamp.ClaimUID, target.Stamp.Owns, time.Time{})
		if err != nil {
			return cinder.Volume{}, false, err
		}
		for _, v := range found {
			if v.ID == target.VolumeID {
				return v, false, nil
			}
		}
	}
	v, err = e.get(ctx, target.VolumeID)
	return v, false, err
}
