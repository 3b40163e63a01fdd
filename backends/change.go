package backends

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// changer changes a volume's size, type or claim.
type changer struct{ *endpoint }

type changeRequests interface {
	ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error
	RetypeVolume(ctx context.Context, id, volumeType string, mayMigrate bool) error
	VolumeType(ctx context.Context, id string) (cinder.VolumeType, error)
	VolumeTypes(ctx context.Context) ([]cinder.VolumeType, error)
}

// inPlace is a change that Cinder makes to a volume in place.
type inPlace struct {
	// during is the volume's status during the change, failed the one after a failure;
	// empty if there is none.
	during, failed cinder.Status
	// timeout is how long the change may take; 0 means as long as a creation.
	timeout time.Duration
	// part returns what changes.
	part func(v cinder.Volume) any
	// isMade reports whether the change has been made.
	isMade  func(ctx context.Context, v cinder.Volume) (bool, error)
	request func(ctx context.Context, client changeRequests, v cinder.Volume) error
	// explain returns the error for a rejected request; unmade describes a request that
	// Cinder accepted without changing the volume.
	explain func(ctx context.Context, v cinder.Volume, err error) error
	unmade  func(v cinder.Volume) string
}

// Extend makes the target's volume at least as large as requested, and returns it. It may
// be repeated after any interruption: a volume that is large enough is not extended. A
// failure of the storage backend (KindVolumeFailed) leaves the volume at its old size in
// error_extending, which only an OpenStack administrator can repair.
func (l *Lifecycle) Extend(ctx context.Context, target Target, sizeGiB int64) (cinder.Volume, error) {
	return serialized(ctx, l, target.key(), func(at *owners) (cinder.Volume, error) {
		return at.changer.change(ctx, target, inPlace{
			during: cinder.StatusExtending,
			failed: cinder.StatusErrorExtending,
			part:   func(v cinder.Volume) any { return v.SizeGiB },
			isMade: func(_ context.Context, v cinder.Volume) (bool, error) { return v.SizeGiB >= sizeGiB, nil },
			request: func(ctx context.Context, client changeRequests, v cinder.Volume) error {
				return client.ExtendVolume(ctx, v.ID, sizeGiB, v.Status == cinder.StatusInUse)
			},
			explain: func(_ context.Context, v cinder.Volume, err error) error {
				if cinder.IsKind(err, cinder.KindOverQuota) {
					return fmt.Errorf("volume %s cannot grow from %d to %d GiB: %w", v.ID, v.SizeGiB, sizeGiB, err)
				}
				return err
			},
			unmade: func(v cinder.Volume) string {
				if v.Status != cinder.StatusErrorExtending {
					return fmt.Sprintf("Cinder accepted the extension of volume %s to %d GiB, but it still has %d GiB", v.ID, sizeGiB, v.SizeGiB)
				}
				before := cinder.StatusAvailable
				if len(v.Attachments) > 0 {
					before = cinder.StatusInUse
				}
				return fmt.Sprintf("the storage backend failed to extend volume %s to %d GiB; it still has %d GiB, and an OpenStack administrator must set its status: cinder reset-state --state %s %s",
					v.ID, sizeGiB, v.SizeGiB, before, v.ID)
			},
		})
	})
}

// longestMigration is how long a copy to another storage may take.
const longestMigration = 24 * time.Hour

// Retype changes the type of the target's volume: in place, or, if it may be migrated and is
// attached nowhere, by Cinder's copying it to the storage of the type; it keeps its ID and its
// stamp. Retype may be repeated after any interruption: a volume that has the type stays as
// it is. Cinder also accepts changes that no storage can make, and then leaves the volume
// unchanged (KindVolumeFailed).
func (l *Lifecycle) Retype(ctx context.Context, target Target, volumeType string, mayMigrate bool) (cinder.Volume, error) {
	var timeout time.Duration
	unmade := "its storage cannot change it in place, or the type is that of another storage; see the log of cinder-scheduler"
	if mayMigrate {
		timeout = longestMigration
		unmade = "Cinder could not copy it to a storage of that type, or the volume has snapshots; see the logs of cinder-scheduler and cinder-volume"
	}
	return serialized(ctx, l, target.key(), func(at *owners) (cinder.Volume, error) {
		name := ""
		return at.changer.change(ctx, target, inPlace{
			during: cinder.StatusRetyping, timeout: timeout,
			part: func(v cinder.Volume) any { return v.Type },
			isMade: func(ctx context.Context, v cinder.Volume) (made bool, err error) {
				if name == "" && v.Type != volumeType {
					name, err = at.changer.typeName(ctx, volumeType)
				}
				made = v.Type == volumeType || v.Type == name
				if err == nil && !made && mayMigrate && v.Status == cinder.StatusInUse {
					err = at.failure(cinder.KindConflict, "volume %s is in-use, and Cinder may copy it only while it is available; stop the pods that use it", v.ID)
				}
				return made, err
			},
			request: func(ctx context.Context, client changeRequests, v cinder.Volume) error {
				return client.RetypeVolume(ctx, v.ID, volumeType, mayMigrate)
			},
			explain: func(ctx context.Context, v cinder.Volume, err error) error {
				switch cinder.KindOf(err) {
				case cinder.KindNotFound:
					// The 404 may be about the volume or about the type.
					if _, lookErr := at.existing(ctx, target); lookErr != nil {
						return lookErr
					}
					return at.failure(cinder.KindInvalid, "there is no volume type %q, or the project may not use it", volumeType)
				case cinder.KindOverQuota:
					return fmt.Errorf("volume %s cannot have type %q: %w", v.ID, volumeType, err)
				}
				// The whole of cinder/volume/api.py's answer names every reason, so it proves none.
				if v.Status == cinder.StatusInUse && strings.Contains(err.Error(), "front-end qos specs cannot change") {
					return fmt.Errorf("if the front-end QoS of the types differs, stop the pods that use volume %s, and change its type while it is attached nowhere: %w", v.ID, err)
				}
				return err
			},
			unmade: func(v cinder.Volume) string {
				return fmt.Sprintf("Cinder accepted the change of volume %s to type %q, but it still has type %q: %s",
					v.ID, volumeType, v.Type, unmade)
			},
		})
	})
}

// HasType reports whether the project may use a volume type of that name or ID.
func (l *Lifecycle) HasType(ctx context.Context, volumeType string) (has bool, err error) {
	err = read(ctx, l.current().session, func(ctx context.Context, client changeRequests) error {
		types, err := client.VolumeTypes(ctx)
		has = slices.ContainsFunc(types, func(t cinder.VolumeType) bool {
			return t.Name == volumeType || strings.EqualFold(t.ID, volumeType)
		})
		return err
	})
	return has, err
}

// change requests a change unless it has already been made, and waits for its end.
func (e changer) change(ctx context.Context, target Target, c inPlace) (cinder.Volume, error) {
	v, err := e.existing(ctx, target)
	requested := cinder.Volume{} // the volume when its change was requested
	for range maxMoves {
		if err != nil {
			return cinder.Volume{}, err
		}
		switch v.Status {
		case c.during:
			var gone bool
			v, gone, err = e.awaitEnd(ctx, v.ID, c.during, cmp.Or(c.timeout, e.timeouts().Create), func(after cinder.Volume) bool {
				return after.ID == requested.ID && after.Status == requested.Status && c.part(after) == c.part(requested)
			})
			switch {
			case err != nil:
			case gone:
				v, err = e.existing(ctx, target)
			case !target.owns(v):
				err = e.notOurs(v, target)
			}
		case c.failed:
			return v, e.failure(KindVolumeFailed, "%s", c.unmade(v))
		case cinder.StatusAvailable, cinder.StatusInUse:
			made, madeErr := c.isMade(ctx, v)
			switch {
			case made || madeErr != nil:
				return v, madeErr
			case requested.ID != "":
				return v, e.failure(KindVolumeFailed, "%s", c.unmade(v))
			}
			requested = v
			v, err = e.request(ctx, v, target, c)
		default:
			return v, e.failure(cinder.KindConflict, "volume %s is %s; waiting for that operation to finish", v.ID, v.Status)
		}
	}
	return v, e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", target.VolumeID)
}

// request requests a change. After a conflict it rereads the volume: an earlier request
// whose answer was lost is just as good.
func (e changer) request(ctx context.Context, v cinder.Volume, target Target, c inPlace) (cinder.Volume, error) {
	err := change(ctx, e.session, target.Permit.on(ctx, v), func(ctx context.Context, client changeRequests) error { return c.request(ctx, client, v) })
	switch {
	case err == nil:
		v.Status = c.during
		return v, nil
	case !cinder.IsKind(err, cinder.KindConflict):
		return cinder.Volume{}, c.explain(ctx, v, err)
	}
	again, lookErr := e.existing(ctx, target)
	switch {
	case lookErr != nil:
		return cinder.Volume{}, lookErr
	case again.Status == v.Status && c.part(again) == c.part(v):
		return cinder.Volume{}, c.explain(ctx, v, err)
	}
	return again, nil
}

var typeID = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// typeName returns the name that Cinder shows as a volume's type. Requests may name a
// type by its name or ID.
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
		// A name may look like an ID. If it is neither, Cinder rejects it later.
		return volumeType, nil
	}
	return found.Name, err
}
