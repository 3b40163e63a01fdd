package backends

import (
	"context"
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Extend makes the target's volume at least as large as requested, and returns
// it. It may be called again after any interruption: a volume that is large
// enough is not extended. The storage backend's failure (KindVolumeFailed)
// leaves the volume with its old size in error_extending, from which only an
// OpenStack administrator can take it.
func (l *Lifecycle) Extend(ctx context.Context, target Target, sizeGiB int64) (cinder.Volume, error) {
	return serialized(ctx, l, target.key(), func(at *owners) (cinder.Volume, error) { return at.changer.extend(ctx, target, sizeGiB) })
}

// changer changes what volumes are: their size, their type and the claim that has them.
type changer struct{ *endpoint }

type changeRequests interface {
	// ExtendVolume requests a larger size; inUse is whether the volume is in use.
	ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error
	// RetypeVolume requests another type, without a migration.
	RetypeVolume(ctx context.Context, id, volumeType string) error
	// VolumeType reads a volume type by its ID.
	VolumeType(ctx context.Context, id string) (cinder.VolumeType, error)
}

func (e changer) extend(ctx context.Context, target Target, sizeGiB int64) (cinder.Volume, error) {
	v, err := e.existing(ctx, target)
	requested := cinder.Volume{} // the volume when its extension was requested
	for range maxMoves {
		switch {
		case err != nil:
			return cinder.Volume{}, err
		case ctx.Err() != nil:
			return cinder.Volume{}, ctx.Err()
		}
		switch v.Status {
		case cinder.StatusExtending:
			var gone bool
			v, gone, err = e.awaitEnd(ctx, requested, v, e.timeouts().Create)
			switch {
			case err != nil:
			case gone:
				v, err = e.existing(ctx, target)
			case !target.owns(v):
				err = e.notOurs(v, target)
			}
		case cinder.StatusErrorExtending:
			return v, e.failure(KindVolumeFailed, "the storage backend failed to extend volume %s to %d GiB; it still has %d GiB, and an OpenStack administrator must set its status: cinder reset-state --state %s %s",
				v.ID, sizeGiB, v.SizeGiB, statusBefore(v), v.ID)
		case cinder.StatusAvailable, cinder.StatusInUse:
			if v.SizeGiB >= sizeGiB {
				return v, nil
			}
			if requested.ID != "" {
				return v, e.failure(KindVolumeFailed, "Cinder accepted the extension of volume %s to %d GiB, but it still has %d GiB", v.ID, sizeGiB, v.SizeGiB)
			}
			requested = v
			v, err = e.requestExtension(ctx, v, target, sizeGiB)
		default:
			return v, e.failure(cinder.KindConflict, "volume %s is %s; waiting for that operation to finish", v.ID, v.Status)
		}
	}
	return v, e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", target.VolumeID)
}

// requestExtension requests the size. After a conflict it reads the volume: if
// an earlier request whose answer was lost extends it, that is just as good.
func (e changer) requestExtension(ctx context.Context, v cinder.Volume, target Target, sizeGiB int64) (cinder.Volume, error) {
	err := change(ctx, e.session, target.Permit.on(ctx, v), func(ctx context.Context, client changeRequests) error {
		return client.ExtendVolume(ctx, v.ID, sizeGiB, v.Status == cinder.StatusInUse)
	})
	switch {
	case err == nil:
		v.Status = cinder.StatusExtending
		return v, nil
	case cinder.IsKind(err, cinder.KindConflict):
		again, lookErr := e.existing(ctx, target)
		if lookErr != nil {
			return cinder.Volume{}, lookErr
		}
		if again.Status == v.Status && again.SizeGiB == v.SizeGiB {
			return cinder.Volume{}, err
		}
		return again, nil
	case cinder.IsKind(err, cinder.KindOverQuota):
		return cinder.Volume{}, fmt.Errorf("volume %s cannot grow from %d to %d GiB: %w", v.ID, v.SizeGiB, sizeGiB, err)
	}
	return cinder.Volume{}, err
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

// statusBefore returns the status that a volume had before its extension
// failed.
func statusBefore(v cinder.Volume) cinder.Status {
	if len(v.Attachments) > 0 {
		return cinder.StatusInUse
	}
	return cinder.StatusAvailable
}
