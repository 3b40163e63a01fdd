package cinder

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// The operations that change a volume, as named in metrics.
const (
	OperationCreate         = "volume.create"
	OperationUpdate         = "volume.update"
	OperationExtend         = "volume.os-extend"
	OperationMetadata       = "metadata.update"
	OperationMetadataDelete = "metadata.delete"
	OperationDelete         = "volume.delete"
	OperationForceDelete    = "volume.force-delete"
)

// NewVolume is a create request.
type NewVolume struct {
	Name     string            `json:"name,omitempty"`
	SizeGiB  int64             `json:"size"`
	Type     string            `json:"volume_type,omitempty"`
	Zone     string            `json:"availability_zone,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Description is what Cinder keeps, with the name, when it restores a backup.
	Description string `json:"description,omitempty"`
	// SourceVolumeID, SnapshotID or BackupID is where the volume's content is copied from; empty
	// for an empty volume. All are in the same project.
	SourceVolumeID string `json:"source_volid,omitempty"`
	SnapshotID     string `json:"snapshot_id,omitempty"`
	BackupID       string `json:"backup_id,omitempty"`
}

// CreateVolume requests a volume; it returns before the volume is available.
// Cinder accepts a second volume of the same name, so the caller must look
// before it creates.
func (c volumeClient) CreateVolume(ctx context.Context, wanted NewVolume) (Volume, error) {
	if wanted.SizeGiB < 1 {
		return Volume{}, &Error{Backend: c.backend, Operation: OperationCreate, Kind: KindInvalid, Message: fmt.Sprintf("%d GiB is not a valid size", wanted.SizeGiB)}
	}
	minor := 0
	if wanted.BackupID != "" {
		minor = microversionRestore
		if err := c.needs(ctx, OperationCreate, minor, "volumes with the content of a backup"); err != nil {
			return Volume{}, err
		}
	}
	return c.create(ctx, minor, map[string]any{"volume": wanted}, func(v Volume) bool {
		return v.Name == wanted.Name && v.SourceVolumeID == wanted.SourceVolumeID && v.SnapshotID == wanted.SnapshotID && hasAll(v.Metadata, wanted.Metadata)
	})
}

// Volume reads one volume. If a 404 lacks Cinder's own fault, a listing must confirm it
// (more requests): the program stops caring for a volume that is gone. The listing covers
// all projects, since administrators, and every user in noauth mode, can read others'
// volumes by ID.
func (c volumeClient) Volume(ctx context.Context, id string) (Volume, error) { return c.get(ctx, id) }

// ListVolumes calls yield with every page until it returns false or the list
// ends. Pages are newest first if the server honors the order. A volume that
// exists throughout the listing is on one of them; no volume comes twice.
func (c volumeClient) ListVolumes(ctx context.Context, query Query, yield func(page []Volume) (more bool)) error {
	return c.list(ctx, query, yield)
}

// DeleteVolume requests a volume's deletion. The deletion is complete when the
// volume is gone, not when this returns.
func (c volumeClient) DeleteVolume(ctx context.Context, id string) error {
	return c.about(ctx, id, request{operation: OperationDelete, method: http.MethodDelete, path: []string{"volumes", id}})
}

// ForceDeleteVolume requests a deletion in any state; administrators only. It
// is the only way out of error_deleting.
func (c volumeClient) ForceDeleteVolume(ctx context.Context, id string) error {
	r := actionOf(id, "os-force_delete", "")
	r.operation = OperationForceDelete
	return c.about(ctx, id, r)
}

// ReplaceMetadata replaces all metadata of a volume, and removes its description.
func (c volumeClient) ReplaceMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return c.about(ctx, id, request{operation: OperationUpdate, method: http.MethodPut, path: []string{"volumes", id}, body: map[string]any{"volume": map[string]any{"metadata": metadata, "description": ""}}, codes: []int{http.StatusOK}})
}

// RemoveDescription removes a volume's description.
func (c volumeClient) RemoveDescription(ctx context.Context, id string) error {
	return c.about(ctx, id, request{operation: OperationUpdate, method: http.MethodPut, path: []string{"volumes", id}, body: map[string]any{"volume": map[string]any{"description": ""}}, codes: []int{http.StatusOK}})
}

// UpdateMetadata writes metadata on a volume; other keys stay.
func (c volumeClient) UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return c.updateMetadata(ctx, OperationMetadata, id, metadata)
}

// DeleteMetadata deletes one key of a volume's metadata. The key must have no slash,
// since Cinder cannot find one that does.
func (c volumeClient) DeleteMetadata(ctx context.Context, id, key string) error {
	return c.about(ctx, id, request{operation: OperationMetadataDelete, method: http.MethodDelete, path: []string{"volumes", id, "metadata", key}, codes: []int{http.StatusOK}})
}

// Microversions of the messages API: the first that has it, and the first that filters it
// and sorts it newest first (Block Storage API, microversion history, 3.3 and 3.5).
const (
	MicroversionMessages       = 3
	microversionMessagesFilter = 5
)

// FailureReason reads from Cinder's messages API why a volume went to error. It only
// improves the event's text, so on any failure it returns "".
func (c volumeClient) FailureReason(ctx context.Context, id string) string {
	newest, err := c.MaxMicroversion(ctx)
	if err != nil || newest < MicroversionMessages {
		return ""
	}
	var answer struct {
		Messages []struct {
			Resource string `json:"resource_uuid"`
			Text     string `json:"user_message"`
		} `json:"messages"`
	}
	err = c.send(ctx, request{operation: "message.list", path: []string{"messages"}, query: url.Values{"resource_uuid": {id}}, minor: min(newest, microversionMessagesFilter), answer: &answer})
	if err != nil {
		return ""
	}
	for _, message := range answer.Messages {
		if message.Resource == id {
			return sentence(message.Text)
		}
	}
	return ""
}
