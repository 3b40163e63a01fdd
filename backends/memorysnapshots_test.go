package backends

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

type memorySnapshot struct {
	cinder.Snapshot
	left   int           // reads until the change ends
	end    cinder.Status // status after the change; empty: gone
	number int           // order of creation
}

func snapshotNotFound(operation, id string) error {
	return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindNotFound, Status: 404, Message: "Snapshot " + id + " could not be found"}
}

// snapshotsOf returns the snapshots of a volume. The caller must hold the lock.
func (m *memoryCinder) snapshotsOf(volume string) []*memorySnapshot {
	var found []*memorySnapshot
	for _, s := range m.snapshots {
		if s.VolumeID == volume {
			found = append(found, s)
		}
	}
	return found
}

func (m memoryClient) CreateSnapshot(ctx context.Context, request cinder.NewSnapshot) (created cinder.Snapshot, err error) {
	err = m.action(ctx, "snapshot.create", request.VolumeID, func(v *memoryVolume) error {
		if v.Status != cinder.StatusAvailable && v.Status != cinder.StatusInUse {
			return conflict("snapshot.create", "Volume status must be available or in-use, but current status is: "+string(v.Status))
		}
		created = m.putSnapshot(cinder.Snapshot{Name: request.Name, VolumeID: v.ID, SizeGiB: v.SizeGiB, Metadata: maps.Clone(request.Metadata)})
		if m.created != nil {
			m.snapshots[created.ID].end = m.created(request.Name)
		}
		return nil
	})
	return created, err
}

// putSnapshot adds a snapshot that is being created. The caller must hold the
// lock.
func (m *memoryCinder) putSnapshot(s cinder.Snapshot) cinder.Snapshot {
	m.ids++
	s.ID, s.Status = fmt.Sprintf("snapshot-%d", m.ids), cinder.StatusCreating
	s.CreatedAt = m.clock.Add(time.Duration(m.ids/2) * time.Second)
	m.snapshots[s.ID] = &memorySnapshot{Snapshot: s, left: m.looks, end: cinder.StatusAvailable, number: m.ids}
	return s
}

// lookAtSnapshot reads a snapshot, and brings its change one read closer to its
// end.
func (m *memoryCinder) lookAtSnapshot(s *memorySnapshot) (cinder.Snapshot, bool) {
	if s.Status == cinder.StatusCreating || s.Status == cinder.StatusDeleting {
		switch {
		case s.left > 0:
			s.left--
		case s.end == "":
			delete(m.snapshots, s.ID)
			return cinder.Snapshot{}, false
		default:
			s.Status = s.end
		}
	}
	shown := s.Snapshot
	shown.Metadata = maps.Clone(s.Metadata)
	return shown, true
}

func (m memoryClient) onSnapshot(ctx context.Context, operation, id string, effect func(s *memorySnapshot) error) error {
	return m.call(ctx, operation, id, func() error {
		s, ok := m.snapshots[id]
		if !ok {
			return snapshotNotFound(operation, id)
		}
		return effect(s)
	})
}

func (m memoryClient) Snapshot(ctx context.Context, id string) (found cinder.Snapshot, err error) {
	err = m.onSnapshot(ctx, "snapshot.get", id, func(s *memorySnapshot) error {
		shown, ok := m.lookAtSnapshot(s)
		if !ok {
			return snapshotNotFound("snapshot.get", id)
		}
		found = shown
		return nil
	})
	return found, err
}

func (m memoryClient) ListSnapshots(ctx context.Context, query cinder.Query, yield func([]cinder.Snapshot) bool) error {
	var all []cinder.Snapshot
	err := m.call(ctx, "snapshot.list", strings.TrimSpace(string(query.Status)+" "+query.VolumeID), func() error {
		all = nil
		for _, s := range slices.SortedFunc(maps.Values(m.snapshots), func(a, b *memorySnapshot) int { return b.number - a.number }) {
			if !m.ignoreFilter && (query.Status != "" && s.Status != query.Status || query.VolumeID != "" && s.VolumeID != query.VolumeID) {
				continue
			}
			if shown, ok := m.lookAtSnapshot(s); ok {
				all = append(all, shown)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	size := query.PageSize
	if size == 0 {
		size = 1000
	}
	for page := range slices.Chunk(all, size) {
		if !yield(page) {
			return nil
		}
	}
	return nil
}

func (m memoryClient) DeleteSnapshot(ctx context.Context, id string) error {
	return m.onSnapshot(ctx, "snapshot.delete", id, func(s *memorySnapshot) error {
		if s.Status != cinder.StatusAvailable && s.Status != cinder.StatusError {
			return conflict("snapshot.delete", "Snapshot status must be available or error")
		}
		s.Status, s.left, s.end = cinder.StatusDeleting, m.looks, ""
		if m.snapshotDeleted != "" {
			s.end = m.snapshotDeleted
		}
		return nil
	})
}

func (m memoryClient) UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return m.onSnapshot(ctx, "snapshot.metadata.update", id, func(s *memorySnapshot) error {
		changed := maps.Clone(metadata)
		for key, value := range s.Metadata {
			if _, written := metadata[key]; !written {
				changed[key] = value
			}
		}
		s.Metadata = changed
		return nil
	})
}

func (m memoryClient) ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error {
	return m.action(ctx, "volume.os-extend", id, func(v *memoryVolume) error {
		switch {
		case sizeGiB <= v.SizeGiB:
			return &cinder.Error{Backend: "gold", Operation: "volume.os-extend", Kind: cinder.KindInvalid, Status: 400, Message: "New size for extend must be greater than current size"}
		case v.Status != cinder.StatusAvailable && (v.Status != cinder.StatusInUse || !inUse):
			return conflict("volume.os-extend", "Volume status must be available to extend, currently "+string(v.Status))
		}
		v.change(m.looks, v.Status)
		v.Status, v.growsTo = cinder.StatusExtending, sizeGiB
		if m.extended != "" {
			v.end, v.growsTo = m.extended, v.SizeGiB
		}
		return nil
	})
}

// quickID is the ID of the type quick; no other type has one.
const quickID, quickType = "8b0f4b43-8d4e-4f3b-9d3f-6a116f3d7f7c", "quick"

func (m memoryClient) VolumeType(ctx context.Context, id string) (found cinder.VolumeType, err error) {
	err = m.call(ctx, "type.get", id, func() error {
		if id != quickID {
			return notFound("type.get", id)
		}
		found = cinder.VolumeType{ID: quickID, Name: quickType}
		return nil
	})
	return found, err
}

func (m memoryClient) VolumeTypes(ctx context.Context) (found []cinder.VolumeType, err error) {
	err = m.call(ctx, "type.list", "", func() error {
		found = []cinder.VolumeType{{ID: quickID, Name: quickType}}
		return nil
	})
	return found, err
}

// unknownType is a volume type that does not exist.
const unknownType = "unknown"

// limitedType is a volume type with front-end QoS, which no other has.
const limitedType = "limited"

// RetypeVolume changes nothing if the type is one that the volume cannot have.
func (m memoryClient) RetypeVolume(ctx context.Context, id, volumeType string, mayMigrate bool) error {
	impossible := m.unchangeable
	if mayMigrate {
		impossible = m.unreachable
	}
	if volumeType == quickID {
		volumeType = quickType
	}
	return m.action(ctx, "volume.os-retype", id, func(v *memoryVolume) error {
		switch {
		case volumeType == unknownType:
			return &cinder.Error{Backend: "gold", Operation: "volume.os-retype", Kind: cinder.KindNotFound, Status: 404, Message: "Volume type with name unknown could not be found"}
		case volumeType == limitedType && v.Status == cinder.StatusInUse:
			return conflict("volume.os-retype", "for in-use volumes front-end qos specs cannot change")
		case v.Status != cinder.StatusAvailable && v.Status != cinder.StatusInUse, v.Type == volumeType:
			return conflict("volume.os-retype", "Retype needs volume to be in available or in-use state")
		}
		v.change(m.looks, v.Status)
		v.Status, v.becomes = cinder.StatusRetyping, volumeType
		if volumeType == impossible {
			v.becomes = v.Type
		}
		return nil
	})
}
