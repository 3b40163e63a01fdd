package cindersim

import (
	"net/http"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
)

// minorSnapshotInUse is the microversion from which a snapshot of an attached
// volume needs no force.
const minorSnapshotInUse = 66

func (c *cloud) findSnapshot(q *call, id string) (*snapshot, error) {
	s := c.snapshots[id]
	if s == nil || !q.admin && s.project != q.project {
		return nil, refuse(http.StatusNotFound, "Snapshot %s could not be found.", id)
	}
	return s, nil
}

func (c *cloud) snapshotsOf(v *volume) []*snapshot {
	if v.snapshots == 0 {
		return nil
	}
	var found []*snapshot
	for _, s := range c.snapshots {
		if s.volumeID == v.id {
			found = append(found, s)
		}
	}
	return found
}

func (s *snapshot) view(minor int, stored, detail bool) map[string]any {
	view := map[string]any{
		"id": s.id, "created_at": s.created.Format(timeLayout), "updated_at": stampOrNull(s.updated),
		"name": s.name, "description": s.description, "volume_id": s.volumeID, "status": s.status,
		"size": s.size, "metadata": s.metadata,
	}
	if stored {
		view["created_at"] = stamp(s.created)
	}
	if minor >= minorGroupSnapshots && detail {
		view["group_snapshot_id"] = nilIfEmpty(s.groupSnapshotID)
	}
	if stored && detail {
		view["os-extended-snapshot-attributes:project_id"] = s.project
		view["os-extended-snapshot-attributes:progress"] = s.progress
	}
	return view
}

func (c *cloud) createSnapshot(q *call, now time.Time) (*reply, error) {
	body, err := q.entity("snapshot")
	if err != nil {
		return nil, err
	}
	if _, given := body["volume_id"]; !given {
		return nil, fields.Invalid("snapshot", body, "'volume_id' is a required property")
	}
	s := &snapshot{project: q.project, user: q.user, status: statusCreating, progress: "0%", created: now}
	if s.volumeID, err = fields.OptionalUUID(body, "volume_id"); err != nil {
		return nil, err
	}
	if s.volumeID == "" {
		return nil, volumeNotFound("None")
	}
	s.name = fields.Read(&err, fields.Name, body, "name")
	s.description = fields.Read(&err, fields.Name, body, "description")
	s.metadata = fields.Read(&err, fields.NullableMetadata, body, "metadata")
	force := fields.Read(&err, fields.Boolean, body, "force")
	if err != nil {
		return nil, err
	}
	v, err := c.find(q, s.volumeID)
	if err != nil {
		return nil, err
	}
	if err := snapshotAllowed(v, force || q.minor >= minorSnapshotInUse); err != nil {
		return nil, err
	}
	if err := c.admitSnapshot(q.project, v.kind, v.size); err != nil {
		return nil, err
	}
	if s.metadata == nil {
		s.metadata = map[string]string{}
	}
	s.id, s.kind, s.size = c.ids.UUID(), v.kind, v.size
	c.snapshots[s.id] = s
	v.snapshots++
	c.chargeSnapshot(s.project, s.kind, 1, s.size)
	broken := q.broken
	c.laterService(now, c.options.SnapshotDelay, func(now time.Time) {
		if s.gone || s.status != statusCreating {
			return
		}
		s.status, s.progress, s.updated = statusAvailable, "100%", now
		if broken {
			s.status, s.progress = statusError, "0%"
		}
	})
	return success(http.StatusAccepted, map[string]any{"snapshot": s.view(q.minor, false, true)}), nil
}

func snapshotAllowed(v *volume, inUse bool) error {
	switch {
	case v.host == "":
		return refuse(http.StatusBadRequest, "Invalid volume: The snapshot cannot be created because volume has not been "+
			"scheduled to any host.")
	case v.status == statusError:
		return refuse(http.StatusBadRequest, "Invalid volume: The snapshot cannot be created when the volume is in error status.")
	case v.status == statusAvailable || inUse && v.status == statusInUse:
		return nil
	}
	expected := "available"
	if inUse {
		expected = "available, in-use"
	}
	return refuse(http.StatusBadRequest, "Invalid volume: Volume %s status must be %s, but current status is: %s.", v.id, expected, v.status)
}

func (c *cloud) showSnapshot(q *call, id string) (*reply, error) {
	s, err := c.findSnapshot(q, id)
	if err != nil {
		return nil, err
	}
	return success(http.StatusOK, map[string]any{"snapshot": s.view(q.minor, true, true)}), nil
}

func (c *cloud) listSnapshots(q *call, detail bool) (*reply, error) {
	allTenants, err := q.flag("all_tenants")
	if err != nil {
		return nil, err
	}
	var found []listed
	for _, s := range c.snapshots {
		if q.shows(s.project, allTenants, map[string]string{"volume_id": s.volumeID, "status": s.status, "name": stringOf(s.name)}) {
			found = append(found, listed{s.id, s.created, func() map[string]any { return s.view(q.minor, true, detail) }})
		}
	}
	return c.paged(q, collection{"snapshots", "snapshots_links", "Snapshot"}, detail, found)
}

// mergeSnapshotMetadata adds entries to a snapshot's metadata, in any state.
func (c *cloud) mergeSnapshotMetadata(q *call, id string, now time.Time) (*reply, error) {
	metadata, err := q.entries("metadata")
	if err != nil {
		return nil, err
	}
	s, err := c.findSnapshot(q, id)
	if err != nil {
		return nil, err
	}
	s.metadata, s.updated = mergeMetadata(s.metadata, metadata), now
	return success(http.StatusOK, map[string]any{"metadata": s.metadata}), nil
}

func (c *cloud) deleteSnapshot(q *call, id string, now time.Time) (*reply, error) {
	s, err := c.findSnapshot(q, id)
	if err != nil {
		return nil, err
	}
	if s.status != statusAvailable && s.status != statusError || s.groupSnapshotID != "" {
		return nil, refuse(http.StatusBadRequest, "Invalid snapshot: Snapshot status must be available or error and must not be part of a group.")
	}
	s.status, s.updated = statusDeleting, now
	broken := q.broken
	c.laterService(now, c.options.SnapshotDelay, func(now time.Time) {
		switch {
		case s.gone || s.status != statusDeleting:
		case s.kind.PinnedSnapshots && c.hasChildren(s):
			// The backend cannot remove it yet. Cinder reports that only
			// through the messages API.
			s.status, s.updated = statusAvailable, now
			c.tell(now, s.project, "VOLUME_SNAPSHOT", s.id, "VOLUME_VOLUME_SNAPSHOT_010_015", "delete snapshot:Snapshot is busy.")
		case broken:
			s.status, s.updated = statusErrorDeleting, now
		default:
			c.destroySnapshot(s)
		}
	})
	return deletion(http.StatusAccepted), nil
}

func (c *cloud) hasChildren(s *snapshot) bool {
	for _, v := range c.volumes {
		if v.snapshotID == s.id {
			return true
		}
	}
	return false
}

func (c *cloud) destroySnapshot(s *snapshot) {
	if s.gone {
		return
	}
	s.gone = true
	delete(c.snapshots, s.id)
	if v := c.volumes[s.volumeID]; v != nil {
		v.snapshots--
	}
	c.chargeSnapshot(s.project, s.kind, -1, s.size)
}
