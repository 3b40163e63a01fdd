package backends

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// Swaps gives volumes of one backend to other PersistentVolumes. It runs in a command,
// beside the leader, and keeps the leader away from a volume in two ways: the mark makes
// it nobody's, and the reservation makes Cinder refuse to attach, extend, snapshot or
// delete it. Every step may be repeated.
type Swaps struct{ *Lifecycle }

// Volume reads a volume; the zero Volume means that Cinder shows none of that ID.
func (s Swaps) Volume(ctx context.Context, id string) (cinder.Volume, cinder.Place, error) {
	v, found, err := s.Find(ctx, id)
	if err != nil || !found {
		return cinder.Volume{}, s.Place(), err
	}
	return v, s.Place(), nil
}

// Begin marks a volume as being swapped with that of another PersistentVolume, and
// reserves it. It fails if the volume is in use, or in another swap. If the answer to the
// reservation is lost, it may still arrive, so the mark must stay until it cannot.
func (s Swaps) Begin(ctx context.Context, id, with string) error {
	at := s.current()
	v, err := at.get(ctx, id)
	if err != nil {
		return err
	}
	switch other := v.Metadata[stamps.KeySwap]; {
	case other != "" && other != with:
		return at.failure(cinder.KindConflict, "volume %s is being swapped with that of PersistentVolume %s", id, other)
	case other == with:
		if reserved, err := s.isReserved(ctx, v); err != nil || reserved {
			return err // an earlier run has reserved it
		}
	default:
		if err := s.mustBeFree(v); err != nil {
			return err
		}
		if err := s.settle(ctx, v); err != nil {
			return err
		}
		if v, err = at.writeMetadata(ctx, id, map[string]string{stamps.KeySwap: with}); err != nil {
			return err
		}
	}
	// Somebody may have attached it meanwhile, and Cinder reserves one for several nodes even
	// then.
	if err := s.mustBeFree(v); err != nil {
		return err
	}
	if err := change(ctx, at.session, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, id) }); err != nil {
		return err
	}
	if v, err = at.get(ctx, id); err != nil {
		return err
	}
	reserved, err := s.isReserved(ctx, v)
	// Another run may have taken the mark back meanwhile.
	if err == nil && (!reserved || v.Metadata[stamps.KeySwap] != with) {
		err = errors.Join(at.failure(cinder.KindConflict, "volume %s was attached, or its swap taken back, while it was reserved", id), s.unreserve(ctx, id))
	}
	return err
}

// settle removes what would make a volume its first claim's again that was restored from a
// backup: the description (see stamps.Settled), which nothing has removed if Cinder kept the
// stamp of the volume. A request of a leader that is gone to stamp it again, which replaces
// all metadata, must have arrived.
func (s Swaps) settle(ctx context.Context, v cinder.Volume) error {
	if at, err := time.Parse(time.RFC3339, v.Metadata[stamps.KeyStampedAt]); err == nil && time.Since(at) < lateStamp {
		return s.current().failure(cinder.KindConflict, "volume %s was restored from a backup a moment ago; try again in %s", v.ID, lateStamp)
	}
	if !stamps.IsDescribed(v) {
		return nil
	}
	return change(ctx, s.current().session, nil, func(ctx context.Context, client interface {
		RemoveDescription(ctx context.Context, id string) error
	}) error {
		return client.RemoveDescription(ctx, v.ID)
	})
}

// isReserved reports whether a volume that has the mark is reserved by a swap. While a node
// is getting a volume, its status is the same, but then there is an attachment.
func (s Swaps) isReserved(ctx context.Context, v cinder.Volume) (bool, error) {
	if v.Status != cinder.StatusAttaching || len(v.Attachments) > 0 {
		return false, nil
	}
	var all []cinder.Attachment
	err := read(ctx, s.current().session, func(ctx context.Context, client attachmentRequests) (err error) {
		all, err = client.Attachments(ctx, v.ID)
		return err
	})
	return err == nil && len(all) == 0, err
}

func (s Swaps) unreserve(ctx context.Context, id string) error {
	return change(ctx, s.current().session, nil, func(ctx context.Context, client connectionRequests) error { return client.Unreserve(ctx, id) })
}

// mustBeFree refuses a volume that somebody has or is getting.
func (s Swaps) mustBeFree(v cinder.Volume) error {
	if v.Status == cinder.StatusAvailable && len(v.Attachments) == 0 {
		return nil
	}
	return s.current().failure(cinder.KindConflict, "volume %s is %s and has %d attachments; only an available volume can be swapped", v.ID, v.Status, len(v.Attachments))
}

// Restamp gives a volume that is being swapped the stamp of another PersistentVolume, of
// which pvUID is the UID.
func (s Swaps) Restamp(ctx context.Context, id string, stamp stamps.Volume, pvUID string) error {
	metadata := stamp.Metadata(nil)
	metadata[stamps.KeyReboundTo] = stamp.ReboundTo
	// Otherwise a volume older than its PersistentVolume would count as restored.
	metadata[stamps.KeyPVUID] = pvUID
	at := s.current()
	v, err := at.get(ctx, id)
	if err != nil {
		return err
	}
	reserved, err := s.isReserved(ctx, v)
	switch {
	case err != nil:
		return err
	case v.Metadata[stamps.KeySwap] != stamp.PV || !reserved:
		return at.failure(cinder.KindConflict, "volume %s is no longer reserved for its swap: it is %s and has %d attachments", id, v.Status, len(v.Attachments))
	case maps.Equal(v.Metadata, merged(v.Metadata, metadata)):
		return nil
	}
	_, err = at.writeMetadata(ctx, id, metadata)
	return err
}

// End makes a volume available again, and then takes the mark away. Nothing happens to a
// volume without the mark of this swap.
func (s Swaps) End(ctx context.Context, id, with string) error {
	at := s.current()
	v, err := at.get(ctx, id)
	if cinder.IsKind(err, cinder.KindNotFound) {
		return nil
	}
	if err != nil || v.Metadata[stamps.KeySwap] != with {
		return err
	}
	reserved, err := s.isReserved(ctx, v)
	if err == nil && reserved {
		err = s.unreserve(ctx, id)
	}
	if err != nil {
		return err
	}
	_, err = at.writeMetadata(ctx, id, map[string]string{stamps.KeySwap: ""})
	return err
}

// shownWithin bounds how long Cinder may take to show what it has acknowledged.
const shownWithin = 15 * time.Second

// writeMetadata writes metadata on a volume, and returns the volume once Cinder shows it.
func (e *owners) writeMetadata(ctx context.Context, id string, metadata map[string]string) (cinder.Volume, error) {
	if err := e.updateMetadata(ctx, nil, id, metadata); err != nil {
		return cinder.Volume{}, err
	}
	for began := time.Now(); ; {
		v, err := e.get(ctx, id)
		switch {
		case err != nil:
			return cinder.Volume{}, err
		case maps.Equal(v.Metadata, merged(v.Metadata, metadata)):
			return v, nil
		case time.Since(began) > shownWithin:
			return cinder.Volume{}, e.failure(KindNotShown, "Cinder does not show yet what was written on volume %s: its database answers reads from before the last writes", id)
		}
		if err := e.session.wait(ctx, time.Second); err != nil {
			return cinder.Volume{}, err
		}
	}
}

// merged returns metadata with changes.
func merged(metadata, changes map[string]string) map[string]string {
	all := make(map[string]string, len(metadata)+len(changes))
	maps.Copy(all, metadata)
	maps.Copy(all, changes)
	return all
}
