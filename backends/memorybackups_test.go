package backends

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

type memoryBackup struct {
	cinder.Snapshot
	from, parent string
	left         int           // reads until the change ends
	end          cinder.Status // status after the change; empty: gone
	number       int           // order of creation
	// of is the volume's metadata, which is stored with its content.
	of map[string]string
}

func backupNotFound(operation, id string) error {
	return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindNotFound, Status: 404, Message: "Backup " + id + " could not be found"}
}

func (m memoryClient) CreateBackup(ctx context.Context, request cinder.NewBackup) (created cinder.Snapshot, err error) {
	operation := "backup.create"
	if request.Incremental {
		operation = "backup.create incremental"
	}
	err = m.call(ctx, operation, request.SnapshotID, func() error {
		from, ok := m.snapshots[request.SnapshotID]
		switch {
		case !ok:
			return snapshotNotFound("backup.create", request.SnapshotID)
		case from.VolumeID != request.VolumeID:
			return conflict("backup.create", "Volume does not match with snapshot.volume_id")
		case from.Status != cinder.StatusAvailable:
			return conflict("backup.create", "Snapshot to be backed up must be available, but the current status is "+string(from.Status))
		}
		m.ids++
		b := &memoryBackup{from: from.ID, left: m.looks, end: cinder.StatusAvailable, number: m.ids}
		if request.Incremental {
			for _, other := range m.backups {
				if other.VolumeID == request.VolumeID && (b.parent == "" || other.number > m.backups[b.parent].number) {
					b.parent = other.ID
				}
			}
			if b.parent == "" || m.backups[b.parent].Status != cinder.StatusAvailable {
				return conflict("backup.create", "No backups available to do an incremental backup")
			}
		}
		b.Snapshot = cinder.Snapshot{
			ID: fmt.Sprintf("backup-%d", m.ids), Name: request.Name, VolumeID: request.VolumeID, Status: cinder.StatusCreating, SizeGiB: from.SizeGiB,
			Metadata: maps.Clone(request.Metadata), CreatedAt: m.clock.Add(time.Duration(m.ids/2) * time.Second), Incremental: request.Incremental,
		}
		if m.slowBackups {
			b.left = math.MaxInt
		}
		if m.created != nil {
			b.end = m.created(operation)
		}
		from.Status = cinder.StatusBackingUp
		m.backups[b.ID] = b
		created = b.Snapshot
		created.Metadata, created.SizeGiB = maps.Clone(b.Metadata), 0
		return nil
	})
	return created, err
}

// lookAtBackup reads a backup, and brings its change one read closer to its end.
func (m *memoryCinder) lookAtBackup(b *memoryBackup) (cinder.Snapshot, bool) {
	if b.Status == cinder.StatusCreating || b.Status == cinder.StatusDeleting {
		switch {
		case b.left > 0:
			b.left--
		case b.end == "":
			delete(m.backups, b.ID)
			return cinder.Snapshot{}, false
		default:
			if from := m.snapshots[b.from]; b.Status == cinder.StatusCreating && from != nil {
				from.Status = cinder.StatusAvailable
			}
			if v := m.volumes[b.VolumeID]; b.Status == cinder.StatusCreating && v != nil {
				b.of = maps.Clone(v.Metadata)
			}
			b.Status = b.end
		}
	}
	shown := b.Snapshot
	shown.Metadata = maps.Clone(b.Metadata)
	for _, other := range m.backups {
		shown.HasDependents = shown.HasDependents || other.parent == b.ID && other.Status != cinder.StatusCreating
	}
	return shown, true
}

func (m memoryClient) onBackup(ctx context.Context, operation, id string, effect func(b *memoryBackup) error) error {
	return m.call(ctx, operation, id, func() error {
		b, ok := m.backups[id]
		if !ok {
			return backupNotFound(operation, id)
		}
		return effect(b)
	})
}

func (m memoryClient) Backup(ctx context.Context, id string) (found cinder.Snapshot, err error) {
	err = m.onBackup(ctx, "backup.get", id, func(b *memoryBackup) error {
		shown, ok := m.lookAtBackup(b)
		if !ok {
			return backupNotFound("backup.get", id)
		}
		found = shown
		return nil
	})
	return found, err
}

func (m memoryClient) ListBackups(ctx context.Context, query cinder.Query, yield func([]cinder.Snapshot) bool) error {
	var all []cinder.Snapshot
	err := m.call(ctx, "backup.list", strings.TrimSpace(string(query.Status)+" "+query.VolumeID), func() error {
		all = nil
		for _, b := range slices.SortedFunc(maps.Values(m.backups), func(a, b *memoryBackup) int { return b.number - a.number }) {
			if !m.ignoreFilter && (query.Status != "" && b.Status != query.Status || query.VolumeID != "" && b.VolumeID != query.VolumeID) {
				continue
			}
			if shown, ok := m.lookAtBackup(b); ok {
				all = append(all, shown)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for page := range slices.Chunk(all, max(query.PageSize, 1)) {
		if !yield(page) {
			return nil
		}
	}
	return nil
}

func (m memoryClient) DeleteBackup(ctx context.Context, id string) error {
	return m.onBackup(ctx, "backup.delete", id, func(b *memoryBackup) error {
		for _, other := range m.backups {
			if other.parent == id {
				return conflict("backup.delete", "Incremental backups exist for this backup")
			}
		}
		if b.Status != cinder.StatusAvailable && b.Status != cinder.StatusError {
			return conflict("backup.delete", "Backup status must be available or error")
		}
		b.Status, b.left, b.end = cinder.StatusDeleting, m.looks, ""
		if m.snapshotDeleted != "" {
			b.end = m.snapshotDeleted
		}
		return nil
	})
}

func (m memoryClient) UpdateBackupMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return m.onBackup(ctx, "backup.update", id, func(b *memoryBackup) error {
		b.Metadata = maps.Clone(b.Metadata)
		maps.Copy(b.Metadata, metadata)
		return nil
	})
}

// restore gives a volume what its backup has. The mark of the backup comes last, and not at
// all if the restore fails at its end.
func (m *memoryCinder) restore(v *memoryVolume) {
	b := m.backups[v.backup]
	if b == nil || v.Status == cinder.StatusError {
		return
	}
	if v.Metadata = maps.Clone(b.of); v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if v.Status == cinder.StatusCreating {
		return
	}
	b.Status, v.backup = cinder.StatusAvailable, ""
	if v.Status == cinder.StatusAvailable {
		v.Metadata[cinder.MetadataSourceBackup] = b.ID
	}
}

func (m memoryClient) ReplaceMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return m.action(ctx, "volume.update", id, func(v *memoryVolume) error {
		v.Metadata, v.Description = maps.Clone(metadata), ""
		return nil
	})
}

func (m memoryClient) RemoveDescription(ctx context.Context, id string) error {
	return m.action(ctx, "volume.update", id, func(v *memoryVolume) error {
		v.Description = ""
		return nil
	})
}
