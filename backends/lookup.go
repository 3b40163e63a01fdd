package backends

import (
	"context"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/knowledge"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// HasVolumeOf reports whether the backend has a volume of the claim, in any state. It
// makes requests only if the term does not know the answer.
func (l *Lifecycle) HasVolumeOf(ctx context.Context, stamp stamps.Volume) (bool, error) {
	e := l.current()
	id, since := e.known.Of(stamp.ClaimUID)
	if id != "" {
		return true, nil
	}
	found, err := e.inventory.Find(ctx, stamp.ClaimUID, stamp.Owns, since)
	return len(found) > 0, err
}

// KnownVolumeOf returns the ID of the claim's volume if this term knows it; it makes no
// request.
func (l *Lifecycle) KnownVolumeOf(stamp stamps.Volume) string {
	id, _ := l.current().known.Of(stamp.ClaimUID)
	return id
}

// Find reads a volume by its ID, regardless of owner.
func (l *Lifecycle) Find(ctx context.Context, id string) (v cinder.Volume, found bool, err error) {
	return l.current().find(ctx, id)
}

// Volumes lists the cluster's volumes as of this term's last complete listing. It makes
// requests only the first time.
func (l *Lifecycle) Volumes(ctx context.Context) ([]cinder.Volume, error) {
	return l.current().inventory.All(ctx, time.Time{})
}

// Relist lists the cluster's volumes again. It records duplicates of volumes of claims in
// flight; they are removed when those claims are completed.
func (l *Lifecycle) Relist(ctx context.Context) ([]cinder.Volume, error) {
	e := l.current()
	all, err := e.inventory.All(ctx, time.Now())
	if err == nil {
		e.observe(all)
	}
	return all, err
}

// LastUncertain returns when this term last requested a volume without learning the
// result, or the backend's endpoint changed; zero if neither happened. A network may
// deliver such a request late, after the claim got another volume, and volumes may remain
// at the earlier place.
func (l *Lifecycle) LastUncertain() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastUncertain
}

// ReadLag returns how long Cinder has taken to show what it had acknowledged; 0 if it
// always did at once.
func (l *Lifecycle) ReadLag() time.Duration { return l.current().unshown.Lag() }

// finder finds a claim's only volume, and removes the claim's others.
type finder struct{ remover }

// look finds the claim's only volume. The zero Volume means that there is provably none.
func (e finder) look(ctx context.Context, stamp stamps.Volume, connector cinder.Connector, permit Permit) (cinder.Volume, error) {
	v, err := e.only(ctx, stamp.ClaimUID, stamp.Owns, func(found []cinder.Volume) (string, error) {
		chosen, err := e.keepOne(ctx, found, stamp, connector, permit)
		return chosen.ID, err
	})
	if err == nil && v.ID != "" && !stamp.Holds(v) {
		return cinder.Volume{}, e.failure(KindNotOurs, "volume %s, which was made for this claim, has been given to another claim", v.ID)
	}
	return v, err
}

// lookAgain finds the claim's volume after another party removed the known one.
func (e finder) lookAgain(ctx context.Context, id string, spec Spec) (cinder.Volume, error) {
	e.forget(spec.Stamp.ClaimUID, id)
	e.known.Doubt(spec.Stamp.ClaimUID)
	return e.look(ctx, spec.Stamp, spec.Connector, spec.Permit)
}

// place returns where this endpoint points; zero before the first login.
func (e *endpoint) place() cinder.Place { return e.session.where() }

// Place returns where the backend points; zero before the term's first login.
func (l *Lifecycle) Place() cinder.Place { return l.current().place() }

// absent evaluates Cinder's answer that a target does not exist, and returns nil if the
// volume is gone. The answer is proof only at the place where the volume was. If no
// PersistentVolume records that place, a place counts if it has shown this term a volume
// of the cluster, unless the term knew the volume at another place: credentials of
// another project show none.
func (e *endpoint) absent(ctx context.Context, target Target) error {
	present := e.place()
	switch {
	case target.unreferenced:
		return e.leftBehind(target.Stamp.ClaimUID)
	case target.Place.IsKnown() && target.Place == present:
		return nil
	case target.Place.IsKnown():
		return e.elsewhere("volume %s was recorded at %s, but the backend points to %s, where it does not exist", target.VolumeID, target.Place, present)
	case !e.shown.Load():
		if _, err := e.inventory.All(ctx, time.Time{}); err != nil {
			return err
		}
	}
	if e.shown.Load() {
		return e.leftBehind(target.Stamp.ClaimUID)
	}
	return e.elsewhere("volume %s does not exist at %s, but it may never have been there: its PersistentVolume does not record where it was created, "+
		"and there is no other volume of this cluster", target.VolumeID, present)
}

// leftBehind returns an error if the term saw a volume of the claim at another place
// before the backend's endpoint changed.
func (e *endpoint) leftBehind(claimUID string) error {
	at, known := e.known.EarlierPlace(claimUID)
	if present := e.place(); known && at != present {
		return e.elsewhere("claim UID %q has a volume at %s, but the backend points to %s", claimUID, at, present)
	}
	return nil
}

func (e *endpoint) elsewhere(format string, arguments ...any) *cinder.Error {
	failed := e.failure(KindElsewhere, format, arguments...)
	failed.Place = e.place()
	return failed
}

// IsGone reports whether the term's last listing lacks a volume, or the volume has gone
// since. It never lists; without a listing, it returns false.
func (l *Lifecycle) IsGone(volumeID string) bool { return l.current().inventory.IsGone(volumeID) }

// keepOne picks which of several volumes with one stamp to keep, and removes the rest. A
// volume that a PersistentVolume may name wins, then a connected one, then the oldest. If
// PersistentVolumes may name several, it removes none.
func (e finder) keepOne(ctx context.Context, found []cinder.Volume, stamp stamps.Volume, connector cinder.Connector, permit Permit) (cinder.Volume, error) {
	if len(found) == 1 {
		return found[0], nil
	}
	// The listing may be hours old, and of some, only the IDs are known.
	var present []cinder.Volume
	copies := 0
	for _, listed := range found {
		v, err := e.get(ctx, listed.ID)
		if cinder.IsKind(err, cinder.KindNotFound) {
			e.inventory.Forget(listed.ID)
			continue
		}
		if err != nil {
			return cinder.Volume{}, err
		}
		switch {
		case !stamp.Owns(v):
		case stamps.IsCopy(v):
			copies++
		default:
			present = append(present, v)
		}
	}
	switch {
	case len(present) == 0 && copies > 0:
		return cinder.Volume{}, e.failure(KindNotOurs, "%d volumes carry the stamp of claim UID %q, and all of them look like restored backups; none is removed", copies, stamp.ClaimUID)
	case len(present) == 0:
		e.known.Doubt(stamp.ClaimUID)
		return cinder.Volume{}, e.failure(cinder.KindConflict, "the volumes of claim UID %q disappeared while they were being compared; something else is deleting them", stamp.ClaimUID)
	}
	chosen := Preferred(present)
	for _, v := range present {
		if v.ID == chosen.ID {
			continue
		}
		if stamps.EverAttached(v) {
			return cinder.Volume{}, e.failure(KindRecorded, "volumes %s and %s of one claim have both been attached; keep one and delete the other by hand", chosen.ID, v.ID)
		}
		e.logger.Warn("Removing a duplicate volume of one claim", "volume", v.ID, "kept", chosen.ID, "status", v.Status)
		if err := e.removeUnrecorded(ctx, v.ID, stamp, connector, permit); err != nil {
			return cinder.Volume{}, err
		}
	}
	return chosen, nil
}

// Preferred returns which of several volumes with one stamp to keep.
func Preferred(present []cinder.Volume) cinder.Volume {
	return slices.MinFunc(present, func(a, b cinder.Volume) int {
		if difference := rank(b) - rank(a); difference != 0 {
			return difference
		}
		return knowledge.ByAge(a, b)
	})
}

// rank orders volumes by how much depends on them.
func rank(v cinder.Volume) int {
	if stamps.EverAttached(v) {
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

// Duplicates lists the duplicates of the volume that the claim's PersistentVolume names,
// and forgets them: the caller must now remove them with RemoveUnrecorded. It makes no
// request.
func (l *Lifecycle) Duplicates(claimUID, recorded string) []string {
	e := l.current()
	duplicates := e.known.RivalsOf(claimUID, recorded)
	for _, id := range duplicates {
		e.known.DropRival(claimUID, id)
	}
	return duplicates
}

// observe looks for duplicates of claims in flight on a page that was read for another
// purpose, so every claim is checked after its create request at no cost.
func (e *endpoint) observe(page []cinder.Volume) { e.known.NoteRivals(page, stamps.ClaimOf(e.cluster)) }
