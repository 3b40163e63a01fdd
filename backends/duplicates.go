package backends

import (
	"context"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// keepOne picks, of several volumes with one stamp, the volume to keep, and
// removes the rest. A volume that a PersistentVolume may name wins, then one
// that is connected, then the oldest. If PersistentVolumes may name several, it
// touches none.
func (e *endpoint) keepOne(ctx context.Context, found []cinder.Volume, stamp Stamp, connector cinder.Connector, permit Permit) (cinder.Volume, error) {
	if len(found) == 1 {
		return found[0], nil
	}
	// What the listing showed may be hours old.
	var present []cinder.Volume
	copies := 0
	for _, listed := range found {
		v, err := e.get(ctx, listed.ID)
		if cinder.IsKind(err, cinder.KindNotFound) {
			e.inventory.forget(listed.ID)
			continue
		}
		if err != nil {
			return cinder.Volume{}, err
		}
		switch {
		case !stamp.Owns(v):
		case IsCopy(v):
			copies++
		default:
			present = append(present, v)
		}
	}
	if len(present) == 0 && copies > 0 {
		return cinder.Volume{}, e.failure(KindNotOurs, "%d volumes carry the stamp of claim UID %q, and all of them look like restored backups; none is removed", copies, stamp.ClaimUID)
	}
	if len(present) == 0 {
		e.known.doubt(stamp.ClaimUID)
		return cinder.Volume{}, e.failure(cinder.KindConflict, "the volumes of claim UID %q disappeared while they were being compared; something else is deleting them", stamp.ClaimUID)
	}
	chosen := slices.MinFunc(present, func(a, b cinder.Volume) int {
		if difference := rank(b) - rank(a); difference != 0 {
			return difference
		}
		return elder(a, b)
	})
	for _, v := range present {
		if v.ID == chosen.ID {
			continue
		}
		if EverAttached(v) {
			return cinder.Volume{}, e.failure(KindRecorded, "volumes %s and %s of one claim have both been attached; keep one and delete the other by hand", chosen.ID, v.ID)
		}
		e.logger.Warn("Removing a duplicate volume of one claim", "volume", v.ID, "kept", chosen.ID, "status", v.Status)
		if err := e.removeUnrecorded(ctx, v.ID, stamp, connector, permit); err != nil {
			return cinder.Volume{}, err
		}
	}
	return chosen, nil
}

// rank orders volumes by how much depends on them.
func rank(v cinder.Volume) int {
	if EverAttached(v) {
		return 3
	}
	switch v.Status {
	case cinder.StatusAttaching:
		return 2
	case cinder.StatusError, cinder.StatusErrorDeleting, cinder.StatusDeleting:
		return 0
	}
	return 1
}

// forgetOne forgets a volume that is gone, but not the claim's others.
func (e *endpoint) forgetOne(uid, id string) {
	e.inventory.forget(id)
	e.known.forgetVolume(uid, id)
}

// Duplicates lists the duplicates of the volume that a PersistentVolume of the
// claim names, and forgets them: the caller must now remove them with
// RemoveUnrecorded. It costs no request.
func (l *Lifecycle) Duplicates(claimUID, recorded string) []string {
	e := l.current()
	duplicates := e.known.rivalsOf(claimUID, recorded)
	for _, id := range duplicates {
		e.known.dropRival(claimUID, id)
	}
	return duplicates
}

// observe searches a page that was read for another purpose for duplicates of
// claims in flight. So every claim is checked after its create request at no
// cost.
func (e *endpoint) observe(page []cinder.Volume) { e.known.noteRivals(page, e.cluster) }
