package backends

import (
	"context"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// keepOne picks, of several volumes with one stamp, the volume that stays, and
// removes the rest. A volume that a PersistentVolume may know comes first, then
// one that is connected, then the eldest; of several that may be known none is
// touched.
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
		return cinder.Volume{}, e.failure(KindNotOurs, "%d volumes carry the stamp of claim UID %q, and all of them look like restored backups; they are not touched", copies, stamp.ClaimUID)
	}
	if len(present) == 0 {
		e.known.doubt(stamp.ClaimUID)
		return cinder.Volume{}, e.failure(cinder.KindConflict, "the volumes of claim UID %q vanished while they were looked at; somebody else works on them", stamp.ClaimUID)
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
		e.logger.Warn("Removing a second volume of one claim", "volume", v.ID, "kept", chosen.ID, "status", v.Status)
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

// forgetOne forgets a volume that is gone, and nothing of the claim's others.
func (e *endpoint) forgetOne(uid, id string) {
	e.inventory.forget(id)
	e.known.forgetVolume(uid, id)
}

// Duplicates lists the volumes that were seen beside the one that a
// PersistentVolume of the claim names, and forgets them: they are the caller's
// now, for RemoveUnrecorded. It costs no request.
func (l *Lifecycle) Duplicates(claimUID, recorded string) []string {
	e := l.current()
	seconds := e.known.rivalsOf(claimUID, recorded)
	for _, id := range seconds {
		e.known.dropRival(claimUID, id)
	}
	return seconds
}

// observe looks through a page of volumes that was read for another purpose
// for second volumes of claims in flight. After a create request every claim
// is looked up this way at no cost.
func (e *endpoint) observe(page []cinder.Volume) { e.known.noteRivals(page, e.inventory.cluster) }
