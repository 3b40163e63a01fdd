package cinder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"
)

// The operations that change a snapshot, as named in metrics.
const (
	OperationSnapshotMetadata = "snapshot.metadata.update"
	OperationSnapshotCreate   = "snapshot.create"
	OperationSnapshotDelete   = "snapshot.delete"
)

// NewSnapshot is a request for a snapshot.
type NewSnapshot struct {
	Name     string
	VolumeID string
	Metadata map[string]string
}

// CreateSnapshot requests a snapshot of a volume, in use or not; it returns before the
// snapshot is available. Cinder accepts a second snapshot of the same name, so the caller
// must look before it creates. The snapshot of a volume in use is crash-consistent.
func (c snapshotClient) CreateSnapshot(ctx context.Context, request NewSnapshot) (Snapshot, error) {
	const operation = OperationSnapshotCreate
	if err := c.checkID(operation, request.VolumeID); err != nil {
		return Snapshot{}, err
	}
	s, err := c.snapshot(ctx, http.MethodPost, operation, c.service.ServiceURL("snapshots"), map[string]any{"snapshot": map[string]any{
		"volume_id": request.VolumeID,
		"name":      request.Name,
		"metadata":  request.Metadata,
		// Without it, Cinder refuses a volume in use before microversion 3.66.
		"force": true,
	}})
	if err == nil && !request.describes(s) {
		return Snapshot{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, EffectUnknown: true,
			Message: fmt.Sprintf("the answer is about snapshot %s, which is not the one requested", s.ID)}
	}
	return s, err
}

// describes reports whether a snapshot is the one that was requested.
func (r NewSnapshot) describes(s Snapshot) bool {
	for key, value := range r.Metadata {
		if s.Metadata[key] != value {
			return false
		}
	}
	return s.Name == r.Name && s.VolumeID == r.VolumeID
}

// Snapshot reads one snapshot. A 404 without Cinder's own fault must be
// confirmed by a listing (more requests), as for volumes.
func (c snapshotClient) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	const operation = "snapshot.get"
	if err := c.checkID(operation, id); err != nil {
		return Snapshot{}, err
	}
	s, err := c.snapshot(ctx, http.MethodGet, operation, c.service.ServiceURL("snapshots", id), nil)
	if err == nil && s.ID != id {
		return Snapshot{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal,
			Message: fmt.Sprintf("the answer is about snapshot %s, not about %s", s.ID, id)}
	}
	if statusOf(err) != http.StatusNotFound || IsKind(err, KindNotFound) {
		return s, err
	}
	listed := false
	listErr := c.ListSnapshots(ctx, SnapshotQuery{AllProjects: true, PageSize: defaultPageSize}, func(page []Snapshot) bool {
		for _, s := range page {
			listed = listed || s.ID == id
		}
		return !listed
	})
	if listErr != nil || listed {
		return Snapshot{}, err
	}
	return Snapshot{}, &Error{Backend: c.backend, Operation: operation, Kind: KindNotFound, Status: http.StatusNotFound,
		Message: fmt.Sprintf("snapshot %s is not in the list of snapshots", id)}
}

// snapshot makes a request that returns a snapshot.
func (c snapshotClient) snapshot(ctx context.Context, method, operation, address string, body any) (Snapshot, error) {
	var answer struct {
		Snapshot *snapshotDocument `json:"snapshot"`
	}
	options := &gophercloud.RequestOpts{JSONResponse: &answer, OkCodes: []int{http.StatusOK, http.StatusAccepted}}
	if body != nil {
		options.JSONBody = body
	}
	if _, err := c.service.Request(c.outgoing(ctx, operation), method, address, options); err != nil {
		return Snapshot{}, translate(c.backend, operation, err)
	}
	if answer.Snapshot == nil {
		return Snapshot{}, c.unusable(operation, "the answer names no snapshot")
	}
	s, odd := answer.Snapshot.snapshot(nil)
	if err := c.checkAnswer(operation, "snapshot", s.ID, s.Status, odd); err != nil {
		return Snapshot{}, err
	}
	return s, nil
}

// DeleteSnapshot requests a snapshot's deletion, which is complete when the snapshot is
// gone. On Ceph, a snapshot with volumes created from it may silently become available
// again.
func (c snapshotClient) DeleteSnapshot(ctx context.Context, id string) error {
	return c.about(ctx, OperationSnapshotDelete, id, func(ctx context.Context) error {
		_, err := c.service.Delete(ctx, c.service.ServiceURL("snapshots", id), &gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}})
		return err
	})
}

// UpdateSnapshotMetadata writes metadata on a snapshot; other keys stay.
func (c snapshotClient) UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return c.post(ctx, OperationSnapshotMetadata, id, 0, map[string]any{"metadata": metadata}, http.StatusOK, "snapshots", "metadata")
}

// SnapshotQuery narrows a listing of snapshots. As for volumes, the caller filters again,
// and infers absence only from a listing without a filter.
type SnapshotQuery struct {
	// VolumeID selects one volume's snapshots; empty means all volumes.
	VolumeID string
	Status   Status
	// AllProjects includes the snapshots of other projects, if the account may see them.
	AllProjects bool
	PageSize    int
	// Keep selects the metadata keys that the snapshots have in the result; nil
	// keeps all of them.
	Keep func(key string) bool
}

// ListSnapshots calls yield with every page until it returns false or the list
// ends, as ListVolumes does.
func (c snapshotClient) ListSnapshots(ctx context.Context, query SnapshotQuery, yield func(page []Snapshot) (more bool)) error {
	values := url.Values{}
	if query.VolumeID != "" {
		values.Set("volume_id", query.VolumeID)
	}
	if query.Status != "" {
		values.Set("status", string(query.Status))
	}
	if query.AllProjects {
		values.Set("all_tenants", "1")
	}
	return readList(ctx, listing[Snapshot]{
		client: c.requests, operation: "snapshot.list", collection: "snapshots", pageSize: query.PageSize,
		id: func(s Snapshot) string { return s.ID },
		read: func(decoder *json.Decoder) (Snapshot, error) {
			var document snapshotDocument
			if err := decoder.Decode(&document); err != nil {
				return Snapshot{}, err
			}
			s, odd := document.snapshot(query.Keep)
			err := checkEntry("snapshot", s.ID, s.Metadata, &s.Status, odd)
			return s, err
		},
	}, values, yield)
}
