package backends

import (
	"context"
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
// reserves it. It fails if the volume is in use, or in another swap.
func (s Swaps) Begin(ctx context.Context, id, with string) error {
	at := s.current()
	v, err := at.get(ctx, id)
	if err != nil {
		return err
	}
	if other := v.Metadata[stamps.KeySwap]; other != "" && other != with {
		return at.failure(cinder.KindConflict, "volume %s is being swapped with that of PersistentVolume %s", id, other)
	}
	if v.Metadata[stamps.KeySwap] == "" {
		if v.Status != cinder.StatusAvailable || len(v.Attachments) > 0 {
			return at.failure(cinder.KindConflict, "volume %s is %s and has %d attachments; only an available volume can be swapped", id, v.Status, len(v.Attachments))
		}
		if v, err = at.writeMetadata(ctx, id, map[string]string{stamps.KeySwap: with}); err != nil {
			return err
		}
	}
	if v.Status == cinder.StatusAttaching && len(v.Attachments) == 0 {
		return nil
	}
	// Cinder reserves no volume that somebody has attached meanwhile.
	return change(ctx, at.session, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, id) })
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
	switch {
	case err != nil:
		return err
	case !stamps.IsBeingSwapped(v) || v.Status != cinder.StatusAttaching || len(v.Attachments) > 0:
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
	if err != nil || v.Metadata[stamps.KeySwap] != with {
		return err
	}
	if v.Status == cinder.StatusAttaching && len(v.Attachments) == 0 {
		if err := change(ctx, at.session, nil, func(ctx context.Context, client connectionRequests) error { return client.Unreserve(ctx, id) }); err != nil {
			return err
		}
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
