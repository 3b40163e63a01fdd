package cindersim

import (
	"maps"
	"net/http"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
)

// minorBackupMetadata is the microversion from which backups have metadata, minorRestore
// that from which a volume can be created from one.
const (
	minorBackupMetadata = 43
	minorRestore        = 47
)

// sourceBackupKey is what Cinder writes on a volume that it restored from a backup of
// another.
const sourceBackupKey = "src_backup_id"

type backup struct {
	id, project, user string
	name, description *string
	volumeID          string
	snapshotID        string
	parent            string
	size              int
	status            string
	failReason        *string
	metadata          map[string]string
	created, updated  time.Time
	// data is when the volume had the content.
	data time.Time
	// dependents counts the finished backups that depend on this one.
	dependents int
	// of is the metadata of the volume, which is stored with its content.
	of map[string]string
}

func (c *cloud) findBackup(q *call, id string) (*backup, error) {
	b := c.backups[id]
	if b == nil || !q.admin && b.project != q.project {
		return nil, refuse(http.StatusNotFound, "Backup %s could not be found.", id)
	}
	return b, nil
}

func (b *backup) view(q *call, detail bool) map[string]any {
	view := map[string]any{"id": b.id, "name": b.name, "links": []map[string]string{{"rel": "self", "href": q.href("backups") + "/" + b.id}}}
	if !detail {
		return view
	}
	maps.Copy(view, map[string]any{
		"status": b.status, "size": b.size, "object_count": 0, "availability_zone": "nova", "container": nil, "description": b.description,
		"created_at": stamp(b.created), "updated_at": stampOrNull(b.updated), "fail_reason": b.failReason, "volume_id": b.volumeID,
		"is_incremental": b.parent != "", "has_dependent_backups": b.dependents > 0, "snapshot_id": nilIfEmpty(b.snapshotID), "data_timestamp": stamp(b.data),
	})
	if q.minor >= minorBackupMetadata {
		view["metadata"] = b.metadata
	}
	return view
}

func nilIfEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func (c *cloud) createBackup(q *call, now time.Time) (*reply, error) {
	body, err := q.entity("backup")
	if err != nil {
		return nil, err
	}
	if _, given := body["volume_id"]; !given {
		return nil, fields.Invalid("backup", body, "'volume_id' is a required property")
	}
	known := []string{"volume_id", "container", "description", "incremental", "force", "name", "snapshot_id"}
	if q.minor >= minorBackupMetadata {
		known = append(known, "metadata")
	}
	if err := fields.Only("backup", body, known...); err != nil {
		return nil, err
	}
	b := &backup{project: q.project, user: q.user, status: statusCreating, created: now, data: now, metadata: map[string]string{}}
	b.volumeID = fields.Read(&err, fields.UUID, body, "volume_id")
	b.snapshotID = fields.Read(&err, fields.OptionalUUID, body, "snapshot_id")
	b.name = fields.Read(&err, fields.Name, body, "name")
	b.description = fields.Read(&err, fields.Name, body, "description")
	maps.Copy(b.metadata, fields.Read(&err, fields.NullableMetadata, body, "metadata"))
	incremental := fields.Read(&err, fields.Boolean, body, "incremental")
	force := fields.Read(&err, fields.Boolean, body, "force")
	if err != nil {
		return nil, err
	}
	v, err := c.find(q, b.volumeID)
	if err != nil {
		return nil, err
	}
	var from *snapshot
	switch {
	case b.snapshotID != "":
		if from, err = c.findSnapshot(q, b.snapshotID); err != nil {
			return nil, err
		}
		if from.volumeID != v.id {
			return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume %s does not match with snapshot.volume_id %s.", v.id, from.volumeID)
		}
		if from.status != statusAvailable {
			return nil, refuse(http.StatusBadRequest, "Invalid snapshot: Snapshot to be backed up must be available, but the current status is %q.", from.status)
		}
		b.data = from.created
	case v.status != statusAvailable && v.status != statusInUse:
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume to be backed up must be available or in-use, but the current status is %q.", v.status)
	case v.status == statusInUse && !force:
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Backing up an in-use volume must use the force flag.")
	}
	b.size = v.size
	if err := c.admitBackup(q.project, b.size); err != nil {
		return nil, err
	}
	if incremental {
		parent := c.parentOf(b)
		switch {
		case parent == nil:
			return nil, refuse(http.StatusBadRequest, "Invalid backup: No backups available to do an incremental backup.")
		case parent.status != statusAvailable:
			return nil, refuse(http.StatusBadRequest, "Invalid backup: The parent backup must be available for incremental backup.")
		}
		b.parent = parent.id
	}
	b.id = c.ids.UUID()
	c.backups[b.id] = b
	c.chargeBackup(b.project, 1, b.size)
	previous := v.status
	if from != nil {
		from.status, from.updated = statusBackingUp, now
	} else {
		v.status = statusBackingUp
		v.changed(now)
	}
	broken := q.broken
	c.laterService(now, c.options.BackupDelay, func(now time.Time) {
		if from != nil {
			from.status, from.updated = statusAvailable, now
		} else if !v.gone {
			v.status = previous
			v.changed(now)
		}
		if c.backups[b.id] == nil || b.status != statusCreating {
			return
		}
		b.status, b.updated, b.of = statusAvailable, now, maps.Clone(v.metadata)
		if broken {
			b.status, b.failReason = statusError, new("the backup driver failed")
			return
		}
		if parent := c.backups[b.parent]; parent != nil {
			parent.dependents++
		}
	})
	return success(http.StatusAccepted, map[string]any{"backup": b.view(q, false)}), nil
}

// parentOf returns the backup on which an incremental one would depend: the one with the
// latest content among those older than its own or, if there is none, any.
func (c *cloud) parentOf(b *backup) *backup {
	var parent *backup
	for _, other := range c.backups {
		if other.volumeID != b.volumeID || other.project != b.project {
			continue
		}
		if parent == nil || b.rank(other).After(b.rank(parent)) {
			parent = other
		}
	}
	return parent
}

func (b *backup) rank(other *backup) time.Time {
	if b.snapshotID == "" || other.data.Truncate(time.Second).Before(b.data.Truncate(time.Second)) {
		return other.data.Truncate(time.Second)
	}
	return time.Time{}
}

func (c *cloud) showBackup(q *call, id string) (*reply, error) {
	b, err := c.findBackup(q, id)
	if err != nil {
		return nil, err
	}
	return success(http.StatusOK, map[string]any{"backup": b.view(q, true)}), nil
}

func (c *cloud) listBackups(q *call, detail bool) (*reply, error) {
	allTenants, err := q.flag("all_tenants")
	if err != nil {
		return nil, err
	}
	var found []listed
	for _, b := range c.backups {
		if q.shows(b.project, allTenants, map[string]string{"volume_id": b.volumeID, "status": b.status, "name": stringOf(b.name)}) {
			found = append(found, listed{b.id, b.created, func() map[string]any { return b.view(q, detail) }})
		}
	}
	return c.paged(q, collection{"backups", "backups_links", "Backup"}, detail, found)
}

// updateBackup changes a backup's name, description or metadata, which it replaces.
func (c *cloud) updateBackup(q *call, id string, now time.Time) (*reply, error) {
	body, err := q.entity("backup")
	if err != nil {
		return nil, err
	}
	known := []string{"name", "description"}
	if q.minor >= minorBackupMetadata {
		known = append(known, "metadata")
	}
	if err := fields.Only("backup", body, known...); err != nil {
		return nil, err
	}
	metadata := fields.Read(&err, fields.Metadata, body, "metadata")
	name := fields.Read(&err, fields.Name, body, "name")
	if err != nil {
		return nil, err
	}
	b, err := c.findBackup(q, id)
	if err != nil {
		return nil, err
	}
	if _, given := body["metadata"]; given {
		b.metadata = metadata
	}
	if name != nil {
		b.name = name
	}
	b.updated = now
	return success(http.StatusOK, map[string]any{"backup": b.view(q, false)}), nil
}

func (c *cloud) deleteBackup(q *call, id string, now time.Time) (*reply, error) {
	b, err := c.findBackup(q, id)
	if err != nil {
		return nil, err
	}
	if b.status != statusAvailable && b.status != statusError {
		return nil, refuse(http.StatusBadRequest, "Invalid backup: Backup status must be available or error")
	}
	for _, other := range c.backups {
		if other.parent == b.id {
			return nil, refuse(http.StatusBadRequest, "Invalid backup: Incremental backups exist for this backup.")
		}
	}
	b.status, b.updated = statusDeleting, now
	broken := q.broken
	c.laterService(now, c.options.BackupDelay, func(now time.Time) {
		switch {
		case c.backups[b.id] == nil || b.status != statusDeleting:
		case broken:
			b.status, b.updated, b.failReason = statusError, now, new("the backup driver failed")
		default:
			c.destroyBackup(b)
		}
	})
	return deletion(http.StatusAccepted), nil
}

func (c *cloud) destroyBackup(b *backup) {
	delete(c.backups, b.id)
	c.chargeBackup(b.project, -1, b.size)
	if parent := c.backups[b.parent]; parent != nil && parent.dependents > 0 {
		parent.dependents--
	}
}

// restore gives a new volume the content of its backup, and the metadata of the volume
// that was backed up. Cinder's mark of the backup comes last, and not at all if the volume
// cannot be detached from the backup service.
func (c *cloud) restore(v *volume, now time.Time, broken bool) {
	b := c.backups[v.backupID]
	if b == nil || b.status != statusAvailable {
		v.status = statusError
		v.changed(now)
		return
	}
	b.status, b.updated = statusRestoring, now
	c.laterService(now, c.options.BackupDelay, func(now time.Time) {
		if !v.gone && v.status == statusCreating {
			v.serviceID = c.serviceID(v.kind.Backend)
			if v.metadata = maps.Clone(b.of); v.metadata == nil {
				v.metadata = map[string]string{}
			}
			v.changed(now)
			v.index()
		}
		c.laterService(now, c.options.BackupDelay/4, func(now time.Time) { c.restored(v, b, now, broken) })
	})
}

// restored ends a restore.
func (c *cloud) restored(v *volume, b *backup, now time.Time, broken bool) {
	b.status, b.updated = statusAvailable, now
	switch {
	case v.gone || v.status != statusCreating:
		return
	case broken:
		v.status = statusErrorRestoring
	default:
		v.status = statusAvailable
		if b.volumeID != v.id {
			v.metadata[sourceBackupKey] = b.id
		}
	}
	v.changed(now)
	v.index()
}
