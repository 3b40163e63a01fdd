package cindersim

import (
	"maps"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

// A migration's state, as an administrator sees it (migration_status).
const (
	migrating         = "migrating"
	migrationSuccess  = "success"
	migrationError    = "error"
	migrationTargetOf = "target:" // and the ID of the volume that is copied
)

// Migrate does what an administrator's "cinder migrate" without --lock-volume does: the status
// of the volume stays, and whoever is no administrator sees nothing of it (migrate_volume in
// cinder/volume/api.py).
func (s *Simulator) Migrate(id, volumeType string) error {
	return s.change("migrate", id, func(v *volume, now time.Time) {
		v.previousStatus = v.status
		s.cloud.migrate(v, s.cloud.typeIndex[volumeType], now, false)
	})
}

// migrate copies a volume to the storage of another type, as _migrate_volume_generic of
// cinder/volume/manager.py does. The copy is a volume of its own with the same name and
// metadata, which only administrators see. At the end, the two swap what they are: the
// volume keeps its ID, and the former content is deleted under the ID of the copy.
func (c *cloud) migrate(v *volume, kind *drivers.VolumeType, now time.Time, broken bool) {
	target := &volume{
		id: c.ids.UUID(), project: v.project, user: v.user, name: v.name, description: v.description, size: v.size, zone: v.zone,
		kind: kind, status: statusCreating, attachStatus: attachStatusDetached, metadata: maps.Clone(v.metadata),
		created: now, migration: migrationTargetOf + v.id, temporary: true,
	}
	v.migration = migrating
	v.changed(now)
	c.newKey(target)
	c.insert(target)
	c.laterService(now, c.options.CreateDelay, func(now time.Time) {
		target.host, target.status = "cinder@"+kind.Backend+"#"+kind.Backend, statusAvailable
		if kind.FailCreate || broken {
			c.destroy(target)
			v.status, v.migration = v.previousStatus, migrationError
			v.changed(now)
			return
		}
		target.changed(now)
		c.laterService(now, c.options.MigrationDelay, func(now time.Time) { c.migrated(v, target, now) })
	})
}

// migrated ends a migration. What was written to the volume's metadata meanwhile is lost.
func (c *cloud) migrated(v, target *volume, now time.Time) {
	if v.gone || v.migration != migrating {
		c.destroy(target)
		return
	}
	c.charge(v.project, v.kind, -1, -v.size)
	v.kind, target.kind = target.kind, v.kind
	c.charge(v.project, v.kind, 1, v.size)
	v.host, target.host = target.host, v.host
	v.keyID, target.keyID = target.keyID, v.keyID
	v.metadata, target.metadata = target.metadata, v.metadata
	v.serviceID = c.serviceID(v.kind.Backend)
	v.status, v.migration, v.exported = v.previousStatus, migrationSuccess, false
	source := "migration src for " + v.id
	target.description, target.status, target.migration = &source, statusDeleting, statusDeleting
	v.changed(now)
	v.index()
	target.changed(now)
	target.index()
	c.laterService(now, c.options.DeleteDelay, func(time.Time) { c.destroy(target) })
}
