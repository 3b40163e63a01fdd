package backends

import (
	"context"
	"fmt"
	"regexp"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Retype gives the target's volume another type in place: it is never migrated to
// another storage backend. It may be called again after any interruption: a volume
// that has the type stays as it is. Cinder also accepts changes that no storage can
// make, and then leaves the volume as it was (KindVolumeFailed).
func (l *Lifecycle) Retype(ctx context.Context, target Target, volumeType string) (cinder.Volume, error) {
	return serialized(ctx, l, target.key(), func(at *owners) (cinder.Volume, error) { return at.changer.retype(ctx, target, volumeType) })
}

func (e changer) retype(ctx context.Context, target Target, volumeType string) (cinder.Volume, error) {
	v, err := e.existing(ctx, target)
	requested, name := cinder.Volume{}, "" // requested is the volume when its change was requested
	for range maxMoves {
		switch {
		case err != nil:
			return cinder.Volume{}, err
		case ctx.Err() != nil:
			return cinder.Volume{}, ctx.Err()
		}
		switch v.Status {
		case cinder.StatusRetyping:
			var gone bool
			v, gone, err = e.awaitEnd(ctx, requested, v, e.timeouts().Create)
			switch {
			case err != nil:
			case gone:
				v, err = e.existing(ctx, target)
			case !target.owns(v):
				err = e.notOurs(v, target)
			}
		case cinder.StatusAvailable, cinder.StatusInUse:
			if name == "" && v.Type != volumeType {
				if name, err = e.typeName(ctx, volumeType); err != nil {
					return v, err
				}
			}
			if v.Type == volumeType || v.Type == name {
				return v, nil
			}
			if requested.ID != "" {
				return v, e.failure(KindVolumeFailed, "Cinder accepted the change of volume %s to type %q, but it still has type %q: its storage cannot change it in place, or the type is that of another storage; see the log of cinder-scheduler",
					v.ID, volumeType, v.Type)
			}
			requested = v
			v, err = e.requestRetype(ctx, v, target, volumeType)
		default:
			return v, e.failure(cinder.KindConflict, "volume %s is %s; waiting for that operation to finish", v.ID, v.Status)
		}
	}
	return v, e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", target.VolumeID)
}

var typeID = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// typeName returns the name that Cinder shows as the type of a volume. Requests may
// name a type by its name or its ID.
func (e changer) typeName(ctx context.Context, volumeType string) (string, error) {
	if !typeID.MatchString(volumeType) {
		return volumeType, nil
	}
	var found cinder.VolumeType
	err := read(ctx, e.session, func(ctx context.Context, client changeRequests) (err error) {
		found, err = client.VolumeType(ctx, volumeType)
		return err
	})
	if cinder.IsKind(err, cinder.KindNotFound) {
		// A name may look like an ID. If it is neither, Cinder says so later.
		return volumeType, nil
	}
	return found.Name, err
}

// requestRetype requests the type. After a conflict it reads the volume: if an
// earlier request whose answer was lost changes it, that is just as good.
func (e changer) requestRetype(ctx context.Context, v cinder.Volume, target Target, volumeType string) (cinder.Volume, error) {
	err := change(ctx, e.session, target.Permit.on(ctx, v), func(ctx context.Context, client changeRequests) error {
		return client.RetypeVolume(ctx, v.ID, volumeType)
	})
	if err == nil {
		v.Status = cinder.StatusRetyping
		return v, nil
	}
	switch cinder.KindOf(err) {
	case cinder.KindConflict:
		again, lookErr := e.existing(ctx, target)
		if lookErr != nil {
			return cinder.Volume{}, lookErr
		}
		if again.Status == v.Status && again.Type == v.Type {
			return cinder.Volume{}, err
		}
		return again, nil
	case cinder.KindNotFound:
		// The 404 may be about the volume or about the type.
		if _, lookErr := e.existing(ctx, target); lookErr != nil {
			return cinder.Volume{}, lookErr
		}
		return cinder.Volume{}, e.failure(cinder.KindInvalid, "there is no volume type %q, or the project may not use it", volumeType)
	case cinder.KindOverQuota:
		return cinder.Volume{}, fmt.Errorf("volume %s cannot have type %q: %w", v.ID, volumeType, err)
	}
	return cinder.Volume{}, err
}
