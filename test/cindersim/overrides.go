package cindersim

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// The actions in this file overwrite flags, statuses and volume types.

func updateReadonly(v *volume, parameters map[string]any, now time.Time) (*reply, error) {
	if _, given := parameters["readonly"]; !given {
		return nil, fields.Invalid("os-update_readonly_flag", parameters, "'readonly' is a required property")
	}
	readonly, err := fields.Boolean(parameters, "readonly")
	if err != nil {
		return nil, err
	}
	if v.status != statusAvailable {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume %s status must be available to update readonly flag, "+
			"but current status is: %s.", v.id, v.status)
	}
	if v.adminMetadata == nil {
		v.adminMetadata = make(map[string]string)
	}
	v.adminMetadata["readonly"] = python.Repr(readonly)
	v.changed(now)
	v.index()
	return accepted(), nil
}

// volumeStatuses returns the statuses that os-reset_status accepts.
func volumeStatuses() []any {
	return []any{
		"creating", "available", "deleting", "error", "error_deleting", "error_managing", "managing", "attaching", "in-use",
		"detaching", "maintenance", "restoring-backup", "error_restoring", "reserved", "awaiting-transfer", "backing-up",
		"error_backing-up", "error_extending", "downloading", "uploading", "retyping", "extending",
	}
}

func readReset(parameters map[string]any) (status, attachStatus string, err error) {
	for field, target := range map[string]*string{"status": &status, "attach_status": &attachStatus} {
		text, err := fields.Text(parameters, field)
		if err != nil {
			return "", "", err
		}
		if text != nil {
			*target = strings.ToLower(*text)
		}
	}
	migration, err := fields.Text(parameters, "migration_status")
	if err != nil {
		return "", "", err
	}
	switch {
	case status == "" && attachStatus == "" && (migration == nil || *migration == ""):
		err = refuse(http.StatusBadRequest, "Must specify 'status', 'attach_status' or 'migration_status' for update.")
	case status != "" && !slices.Contains(volumeStatuses(), any(status)):
		valid := strings.Trim(python.Repr(volumeStatuses()), "[]")
		err = refuse(http.StatusBadRequest, "Volume status: %s is invalid, valid statuses are: (%s).", status, valid)
	case attachStatus != "" && attachStatus != attachStatusAttached && attachStatus != attachStatusDetached:
		err = refuse(http.StatusBadRequest, "Volume attach status: %s is invalid, valid statuses are: ['attached', 'detached'].", attachStatus)
	}
	return status, attachStatus, err
}

// resetStatus overwrites a volume's statuses; detached also forgets all its
// attachments.
func (c *cloud) resetStatus(v *volume, status, attachStatus string, now time.Time) (*reply, error) {
	if status == statusDeleting {
		return nil, refuse(http.StatusBadRequest, "Cannot reset-state to %s", status)
	}
	if status == statusInUse && len(v.attachments) == 0 {
		return nil, refuse(http.StatusBadRequest, "Cannot reset-state to in-use because volume does not have any attachments.")
	}
	if status != "" {
		v.status = status
	}
	if attachStatus != "" {
		v.attachStatus = attachStatus
	}
	if attachStatus == attachStatusDetached {
		for len(v.attachments) > 0 {
			c.detach(v, v.attachments[0].id, now)
		}
		delete(v.adminMetadata, "attached_mode")
		v.index()
		if status != "" {
			v.status = status
		}
	}
	v.changed(now)
	return accepted(), nil
}

// readRetype reads the name of the new type, and whether the volume may be migrated.
func readRetype(parameters map[string]any) (name string, mayMigrate bool, err error) {
	value, given := parameters["new_type"]
	if !given {
		return "", false, fields.Invalid("os-retype", parameters, "'new_type' is a required property")
	}
	name, isText := value.(string)
	if !isText {
		return "", false, fields.Invalid("new_type", value, "%s is not of type 'string'", python.Repr(value))
	}
	if policy, given := parameters["migration_policy"]; given && policy != nil {
		text, _ := policy.(string)
		if mayMigrate = text == "on-demand"; !mayMigrate && text != "never" {
			return "", false, fields.Invalid("migration_policy", policy, "%s is not one of ['on-demand', 'never']", python.Repr(policy))
		}
	}
	return name, mayMigrate, nil
}

// retypeVolume changes a volume's type, as cinder/volume/api.py and the scheduler do. If
// the type is not one of the volume's storage backend, the volume is migrated if it may be
// and can be; otherwise it ends as it was.
func (c *cloud) retypeVolume(q *call, v *volume, name string, mayMigrate bool, now time.Time) (*reply, error) {
	kind := c.typeIndex[name]
	if kind == nil {
		return nil, refuse(http.StatusNotFound, "Volume type with name %s could not be found.", name)
	}
	if kind.Multiattach != v.kind.Multiattach && v.status != statusAvailable {
		return nil, refuse(http.StatusBadRequest, "Invalid input received: Invalid volume_type passed, retypes affecting multiattach are only "+
			"allowed on available volumes, the specified volume however currently has a status of: %s.", v.status)
	}
	if err := c.admitRetype(v, kind); err != nil {
		return nil, err
	}
	if v.status != statusAvailable && v.status != statusInUse || v.groupID != "" || kind == v.kind || v.status == statusInUse && !maps.Equal(kind.QoS, v.kind.QoS) {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Retype needs volume to be in available or in-use state, not be part of an active "+
			"migration or a consistency group, requested type has to be different that the one from the volume, and for in-use "+
			"volumes front-end qos specs cannot change.")
	}
	v.previousStatus, v.status = v.status, statusRetyping
	v.changed(now)
	broken := q.broken
	c.laterService(now, c.options.ExtendDelay, func(now time.Time) {
		if v.gone || v.status != statusRetyping {
			return
		}
		if mayMigrate && !sameBackend(v.kind, kind) && len(v.attachments) == 0 && v.snapshots == 0 && v.size <= kind.CapacityGiB {
			c.migrate(v, kind, now, broken)
			return
		}
		v.status = v.previousStatus
		if !broken && sameBackend(v.kind, kind) {
			c.charge(v.project, v.kind, -1, -v.size)
			v.kind = kind
			c.charge(v.project, v.kind, 1, v.size)
		}
		v.changed(now)
	})
	return accepted(), nil
}

func sameBackend(a, b *drivers.VolumeType) bool { return a.Backend == b.Backend }

// admitRetype checks the quotas of the new type alone, since the project has the
// volume already.
func (c *cloud) admitRetype(v *volume, kind *drivers.VolumeType) error {
	if kind == v.kind {
		return nil
	}
	name, limit, consumed, over := c.exceeded(v.project, map[string]int{"volumes_" + kind.Name: 1, "gigabytes_" + kind.Name: v.size})
	switch {
	case !over:
		return nil
	case name == "volumes_"+kind.Name:
		return overLimit("VolumeLimitExceeded: Maximum number of volumes allowed (%d) exceeded for quota '%s'.", limit, name)
	}
	return sizeOverLimit(name, v.size, limit, consumed)
}
