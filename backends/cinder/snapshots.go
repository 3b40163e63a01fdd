package cinder

import (
	"context"
	"net/http"
)

// The operations that change a snapshot, as named in metrics.
const (
	OperationSnapshotMetadata = "snapshot.metadata.update"
	OperationSnapshotCreate   = "snapshot.create"
	OperationSnapshotDelete   = "snapshot.delete"
)

// NewSnapshot is a request for a snapshot.
type NewSnapshot struct {
	Name     string            `json:"name"`
	VolumeID string            `json:"volume_id"`
	Metadata map[string]string `json:"metadata"`
}

// CreateSnapshot requests a snapshot of a volume, in use or not; it returns before the
// snapshot is available. Cinder accepts a second snapshot of the same name, so the caller
// must look before it creates. The snapshot of a volume in use is crash-consistent.
func (c snapshotClient) CreateSnapshot(ctx context.Context, wanted NewSnapshot) (Snapshot, error) {
	if err := c.checkID(OperationSnapshotCreate, wanted.VolumeID); err != nil {
		return Snapshot{}, err
	}
	forced := struct {
		NewSnapshot
		// Without it, Cinder refuses a volume in use before microversion 3.66.
		Force bool `json:"force"`
	}{wanted, true}
	return c.create(ctx, 0, map[string]any{"snapshot": forced}, func(s Snapshot) bool {
		return s.Name == wanted.Name && s.VolumeID == wanted.VolumeID && hasAll(s.Metadata, wanted.Metadata)
	})
}

// Snapshot reads one snapshot, as Volume does.
func (c snapshotClient) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	return c.get(ctx, id)
}

// ListSnapshots lists snapshots, as ListVolumes does.
func (c snapshotClient) ListSnapshots(ctx context.Context, query Query, yield func(page []Snapshot) (more bool)) error {
	return c.list(ctx, query, yield)
}

// DeleteSnapshot requests a snapshot's deletion, which is complete when the snapshot is
// gone. On Ceph, a snapshot with volumes created from it may silently become available
// again.
func (c snapshotClient) DeleteSnapshot(ctx context.Context, id string) error {
	return c.about(ctx, id, request{operation: OperationSnapshotDelete, method: http.MethodDelete, path: []string{"snapshots", id}, codes: []int{http.StatusAccepted}})
}

// UpdateSnapshotMetadata writes metadata on a snapshot; other keys stay.
func (c snapshotClient) UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return c.updateMetadata(ctx, OperationSnapshotMetadata, id, metadata)
}
