package cindersim

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// deleteRule is what Cinder requires of a volume before its deletion.
const deleteRule = "must not be migrating, attached, belong to a group, have snapshots, awaiting a transfer, " +
	"or be disassociated from snapshots after volume transfer."

// minorStrictBodies is the microversion from which a body must contain no
// unknown field, and an update at least one known field.
const minorStrictBodies = 53

// find looks up a volume for the caller: another project's volume does not
// exist, except for an administrator, which every user is in noauth mode.
func (c *cloud) find(q *call, id string) (*volume, error) {
	v := c.volumes[id]
	if v == nil || !q.admin && v.project != q.project {
		return nil, volumeNotFound(id)
	}
	return v, nil
}

func (c *cloud) createVolume(q *call, now time.Time) (*reply, error) {
	body, err := q.entity("volume")
	if err != nil {
		return nil, err
	}
	if q.minor >= minorStrictBodies {
		if err := fields.Only("volume", body, "name", "description", "display_name", "display_description", "volume_type", "metadata",
			"snapshot_id", "source_volid", "consistencygroup_id", "group_id", "backup_id", "size", "availability_zone", "multiattach",
			"image_id", "imageRef"); err != nil {
			return nil, err
		}
	}
	v := &volume{project: q.project, user: q.user, created: now, status: statusCreating, attachStatus: attachStatusDetached}
	v.size, err = fields.Size(body, "size", true)
	v.name = fields.Read(&err, fields.Name, body, "name")
	v.description = fields.Read(&err, fields.Name, body, "description")
	v.metadata = fields.Read(&err, fields.NullableMetadata, body, "metadata")
	if err != nil {
		return nil, err
	}
	if multiattach, _ := fields.Truth(python.Text(body["multiattach"])); multiattach {
		return nil, refuse(http.StatusBadRequest, "multiattach parameter has been removed. The default behavior is to use multiattach enabled "+
			"volume types. Contact your administrator to create a multiattach enabled volume type and use it to create multiattach volumes.")
	}
	if v.kind, err = c.requestedType(body); err != nil {
		return nil, err
	}
	if err := c.source(q, body, v); err != nil {
		return nil, err
	}
	if v.zone, err = c.requestedZone(body, v); err != nil {
		return nil, err
	}
	if err := c.admitVolume(q.project, v.kind, v.size); err != nil {
		return nil, err
	}
	v.id = c.ids.UUID()
	q.volumeID = v.id
	c.newKey(v)
	c.insert(v)
	c.place(v, now, q.broken)
	return c.volumeReply(http.StatusAccepted, q, v, false), nil
}

// requestedType returns the type that a create names, or nil.
func (c *cloud) requestedType(body map[string]any) (*drivers.VolumeType, error) {
	name, err := fields.Text(body, "volume_type")
	if err != nil || name == nil || *name == "" {
		return nil, err
	}
	kind := c.typeIndex[*name]
	if kind == nil {
		return nil, refuse(http.StatusNotFound, "Volume type with name %s could not be found.", *name)
	}
	return kind, nil
}

// source resolves the snapshot or volume that a create copies, and with it the
// size and the type.
func (c *cloud) source(q *call, body map[string]any, v *volume) error {
	var err error
	v.snapshotID = fields.Read(&err, fields.OptionalUUID, body, "snapshot_id")
	v.sourceID = fields.Read(&err, fields.OptionalUUID, body, "source_volid")
	if err != nil {
		return err
	}
	if q.minor >= minorRestore {
		if v.backupID, err = fields.OptionalUUID(body, "backup_id"); err != nil {
			return err
		}
	}
	var original *drivers.VolumeType
	switch {
	case v.snapshotID != "":
		s, err := c.findSnapshot(q, v.snapshotID)
		if err != nil {
			return err
		}
		if v.kind != nil && v.kind != s.kind {
			return refuse(http.StatusBadRequest, "Invalid input received: Invalid volume_type provided: %s "+
				"(requested type is not compatible; recommend omitting the type argument).", v.kind.ID)
		}
		if s.status != statusAvailable {
			return refuse(http.StatusBadRequest, "Invalid snapshot: Originating snapshot status must be one of 'available' values")
		}
		v.size = cmp.Or(v.size, s.size)
		if v.size < s.size {
			return refuse(http.StatusBadRequest, "Invalid input received: Volume size '%d'GB cannot be smaller than the "+
				"snapshot size %dGB. They must be >= original snapshot size.", v.size, s.size)
		}
		original = s.kind
	case v.sourceID != "":
		parent, err := c.find(q, v.sourceID)
		if err != nil {
			return err
		}
		if v.kind != nil && v.kind != parent.kind {
			return refuse(http.StatusBadRequest, "Invalid input received: Invalid volume_type provided: %s "+
				"(requested type is not compatible; either match source volume, or omit type argument).", v.kind.ID)
		}
		if parent.status != statusAvailable && parent.status != statusInUse {
			return refuse(http.StatusBadRequest, "Invalid volume: Originating source volume status must be one of 'available, in-use' values")
		}
		v.size = cmp.Or(v.size, parent.size)
		if v.size < parent.size {
			return refuse(http.StatusBadRequest, "Invalid input received: Volume size '%d'GB cannot be smaller than "+
				"original volume size  %dGB. They must be >= original volume size.", v.size, parent.size)
		}
		original = parent.kind
	case v.backupID != "":
		b, err := c.findBackup(q, v.backupID)
		if err != nil {
			return err
		}
		if b.status != statusAvailable {
			return refuse(http.StatusBadRequest, "Invalid backup: Originating backup status must be one of 'available' values")
		}
		v.size = cmp.Or(v.size, b.size)
		if v.size < b.size {
			return refuse(http.StatusBadRequest, "Invalid input received: Volume size %dGB cannot be smaller than the backup size %dGB. "+
				"It must be >= backup size.", v.size, b.size)
		}
		original = c.typeIndex[c.options.DefaultType]
	case v.size == 0:
		// Cinder compares the missing size with a number and reports nothing
		// better.
		return refuse(http.StatusBadRequest, messageMalformed)
	default:
		original = c.typeIndex[c.options.DefaultType]
	}
	if v.kind == nil {
		v.kind = original
	}
	return nil
}

// requestedZone returns the zone that a create names, otherwise that of its
// source, otherwise the default zone.
func (c *cloud) requestedZone(body map[string]any, v *volume) (string, error) {
	zone, err := fields.Text(body, "availability_zone")
	if err != nil {
		return "", err
	}
	if zone != nil && *zone == "" {
		return "", fields.Invalid("availability_zone", "", "'' is too short")
	}
	if zone == nil {
		if parent := c.volumes[v.sourceID]; parent != nil {
			return parent.zone, nil
		}
		return c.options.Zones[0], nil
	}
	if !slices.Contains(c.options.Zones, *zone) {
		return "", refuse(http.StatusBadRequest, "Availability zone '%s' is invalid.", *zone)
	}
	return *zone, nil
}

// place schedules what follows an accepted create: the scheduler chooses a host,
// the backend makes the volume, or one of them fails.
func (c *cloud) place(v *volume, now time.Time, broken bool) {
	c.later(now, c.options.PlacementDelay, func(now time.Time) {
		if v.gone || v.status != statusCreating {
			return
		}
		if v.size > v.kind.CapacityGiB || c.fullZones[v.zone] {
			v.status = statusError
			v.changed(now)
			c.tellNoHost(v, now)
			return
		}
		v.host = "cinder@" + v.kind.Backend + "#" + v.kind.Backend
		v.changed(now)
		remaining := max(0, c.options.CreateDelay-c.options.PlacementDelay)
		c.laterService(now, remaining, func(now time.Time) {
			if v.gone || v.status != statusCreating {
				return
			}
			if v.backupID != "" && !v.kind.FailCreate {
				c.restore(v, now, broken)
				return
			}
			if v.kind.FailCreate || broken {
				// Cinder tries a create three times.
				for range 3 {
					c.tell(now, v.project, "VOLUME", v.id, "VOLUME_VOLUME_008_012",
						"create volume from backend storage:Driver failed to create the volume.")
				}
				c.tellNoHost(v, now)
				v.status, v.host = statusError, ""
			} else {
				v.status = statusAvailable
				v.serviceID = c.serviceID(v.kind.Backend)
			}
			v.changed(now)
		})
	})
}

func (c *cloud) tellNoHost(v *volume, now time.Time) {
	c.tell(now, v.project, "VOLUME", v.id, "VOLUME_VOLUME_001_003",
		"schedule allocate volume:Could not find any available weighted backend.")
}

// serviceID returns a stable id of a backend's volume service.
func (c *cloud) serviceID(backend string) string {
	if c.services[backend] == "" {
		c.services[backend] = c.ids.UUID()
	}
	return c.services[backend]
}

func (c *cloud) showVolume(q *call, id string) (*reply, error) {
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	return c.volumeReply(http.StatusOK, q, v, true), nil
}

// updateVolume changes name, description or metadata (which it replaces).
func (c *cloud) updateVolume(q *call, id string, now time.Time) (*reply, error) {
	body, err := q.entity("volume")
	if err != nil {
		return nil, err
	}
	if err := fields.Only("volume", body, "name", "description", "display_name", "display_description", "metadata"); err != nil {
		return nil, err
	}
	if len(body) == 0 && q.minor >= minorStrictBodies {
		return nil, fields.Invalid("volume", body, "{} is not valid under any of the given schemas")
	}
	texts := make(map[string]*string)
	for _, field := range []string{"name", "display_name", "description", "display_description"} {
		texts[field] = fields.Read(&err, fields.Name, body, field)
	}
	metadata := fields.Read(&err, fields.Metadata, body, "metadata")
	if err != nil {
		return nil, err
	}
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	for field, text := range texts {
		if _, given := body[field]; !given {
			continue
		}
		if strings.HasSuffix(field, "name") {
			v.name = text
		} else {
			v.description = text
		}
	}
	if metadata != nil {
		v.metadata = metadata
	}
	v.changed(now)
	v.index()
	return c.volumeReply(http.StatusOK, q, v, false), nil
}

// deletable reports whether a DELETE accepts a volume's status.
func deletable(status string) bool {
	switch status {
	case statusAvailable, statusError, "error_restoring", statusErrorExtending, "error_managing":
		return true
	}
	return false
}

func (c *cloud) deleteVolume(q *call, id string, now time.Time) (*reply, error) {
	cascade, err := q.flag("cascade")
	if err != nil {
		return nil, err
	}
	force := false
	if q.minor >= 23 {
		if force, err = q.flag("force"); err != nil {
			return nil, err
		}
	}
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	if force && !q.admin {
		return nil, forbidden("volume:force_delete")
	}
	if err := c.remove(v, now, force, cascade, q.broken); err != nil {
		return nil, err
	}
	return deletion(http.StatusAccepted), nil
}

// remove accepts or rejects the deletion of a volume and schedules the work.
func (c *cloud) remove(v *volume, now time.Time, force, cascade, broken bool) error {
	if v.host == "" {
		// It is on no backend yet, so it is removed at once.
		c.destroy(v)
		return nil
	}
	allowed := v.attachStatus != attachStatusAttached && v.groupID == "" && (force || deletable(v.status)) && !strings.HasPrefix(v.migration, migrationTargetOf)
	for _, s := range c.snapshotsOf(v) {
		allowed = allowed && cascade && (force || s.status == statusAvailable || s.status == statusError)
	}
	if !allowed {
		condition := ""
		if !force {
			condition = "status must be available or error or error_restoring or error_extending or error_managing and"
		}
		return refuse(http.StatusBadRequest, "Invalid volume: Volume %s %s", condition, deleteRule)
	}
	v.status = statusDeleting
	v.changed(now)
	for _, s := range c.snapshotsOf(v) {
		s.status, s.updated = statusDeleting, now
	}
	c.laterService(now, c.options.DeleteDelay, func(now time.Time) {
		if v.gone || v.status != statusDeleting {
			return
		}
		if broken {
			v.status = statusErrorDeleting
			v.changed(now)
			return
		}
		for _, s := range c.snapshotsOf(v) {
			c.destroySnapshot(s)
		}
		c.destroy(v)
	})
	return nil
}

// extendVolume performs os-extend. An attached volume can grow from microversion
// 3.42 on.
func (c *cloud) extendVolume(q *call, v *volume, parameters map[string]any, now time.Time) (*reply, error) {
	if _, given := parameters["new_size"]; !given {
		return nil, fields.Invalid("os-extend", parameters, "'new_size' is a required property")
	}
	size, err := fields.Size(parameters, "new_size", false)
	if err != nil {
		return nil, err
	}
	expected := statusAvailable
	if q.minor >= 42 && v.status == statusInUse {
		expected = statusInUse
	}
	if size <= v.size {
		return nil, refuse(http.StatusBadRequest, "Invalid input received: New size for extend must be greater than "+
			"current size. (current: %d, extended: %d).", v.size, size)
	}
	if v.status != expected {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume %s status must be '{'status': '%s'}' to extend, "+
			"currently %s.", v.id, expected, v.status)
	}
	if err := c.admitExtend(v, size); err != nil {
		return nil, err
	}
	growth := size - v.size
	v.previousStatus, v.status = v.status, statusExtending
	v.changed(now)
	c.reserve(v, growth)
	broken := q.broken
	c.laterService(now, c.options.ExtendDelay, func(now time.Time) {
		c.reserve(v, -growth)
		if v.gone || v.status != statusExtending {
			return
		}
		switch {
		case broken:
			v.status = statusErrorExtending
			c.tell(now, v.project, "VOLUME", v.id, "VOLUME_VOLUME_007_010", "extend volume:Volume Driver failed to extend volume.")
		case size > v.kind.CapacityGiB:
			v.status = v.previousStatus
		default:
			v.size, v.status = size, v.previousStatus
			c.charge(v.project, v.kind, 0, growth)
		}
		v.changed(now)
	})
	return accepted(), nil
}
