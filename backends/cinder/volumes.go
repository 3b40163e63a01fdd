package cinder

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v2/volumes"
)

// The operations that change a volume, as named in metrics.
const (
	OperationCreate      = "volume.create"
	OperationDelete      = "volume.delete"
	OperationForceDelete = "volume.force-delete"
)

// NewVolume is a create request.
type NewVolume struct {
	Name     string
	SizeGiB  int64
	Type     string
	Zone     string
	Metadata map[string]string
	// SourceVolumeID or SnapshotID is where the volume's content is copied from; empty
	// for an empty volume. Both are in the same project.
	SourceVolumeID string
	SnapshotID     string
}

// CreateVolume requests a volume; it returns before the volume is available.
// Cinder accepts a second volume of the same name, so the caller must look
// before it creates.
func (c volumeClient) CreateVolume(ctx context.Context, request NewVolume) (Volume, error) {
	const operation = OperationCreate
	size, err := strconv.Atoi(strconv.FormatInt(request.SizeGiB, 10))
	if err != nil || size < 1 {
		return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%d GiB is not a valid size", request.SizeGiB)}
	}
	result := volumes.Create(c.outgoing(ctx, operation), c.service, volumes.CreateOpts{
		Name:             request.Name,
		Size:             size,
		VolumeType:       request.Type,
		AvailabilityZone: request.Zone,
		Metadata:         request.Metadata,
		SourceVolID:      request.SourceVolumeID,
		SnapshotID:       request.SnapshotID,
	}, nil)
	v, err := c.volume(operation, result.Err, result.ExtractInto)
	if err == nil && !request.describes(v) {
		return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, EffectUnknown: true,
			Message: fmt.Sprintf("the answer is about volume %s, which is not the one requested", v.ID)}
	}
	return v, err
}

// describes reports whether a volume has the name, metadata and source of the request.
// Trusting an answer about another volume would make the program use that one.
func (r NewVolume) describes(v Volume) bool {
	for key, value := range r.Metadata {
		if v.Metadata[key] != value {
			return false
		}
	}
	return v.Name == r.Name && v.SourceVolumeID == r.SourceVolumeID && v.SnapshotID == r.SnapshotID
}

// Volume reads one volume. If a 404 lacks Cinder's own fault, a listing must confirm it
// (more requests): the program stops caring for a volume that is gone. The listing covers
// all projects, since administrators, and every user in noauth mode, can read others'
// volumes by ID.
func (c volumeClient) Volume(ctx context.Context, id string) (Volume, error) {
	const operation = "volume.get"
	if err := c.checkID(operation, id); err != nil {
		return Volume{}, err
	}
	result := volumes.Get(c.outgoing(ctx, operation), c.service, id)
	v, err := c.volume(operation, result.Err, result.ExtractInto)
	if err == nil && v.ID != id {
		return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal,
			Message: fmt.Sprintf("the answer is about volume %s, not about %s", v.ID, id)}
	}
	if statusOf(err) != http.StatusNotFound || IsKind(err, KindNotFound) {
		return v, err
	}
	listed := false
	listErr := c.ListVolumes(ctx, VolumeQuery{AllProjects: true, PageSize: 1000}, func(page []Volume) bool {
		listed = slices.ContainsFunc(page, func(v Volume) bool { return v.ID == id })
		return !listed
	})
	if listErr != nil || listed {
		return Volume{}, err
	}
	return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindNotFound, Status: http.StatusNotFound,
		Message: fmt.Sprintf("volume %s is not in the list of volumes", id)}
}

func (c volumeClient) volume(operation string, err error, extract func(any) error) (Volume, error) {
	if err != nil {
		return Volume{}, translate(c.backend, operation, err)
	}
	var document volumeDocument
	if err := extract(&document); err != nil {
		return Volume{}, c.unusable(operation, notDescribed)
	}
	v, odd := document.volume(nil)
	if v.ID == "" && !odd {
		return Volume{}, c.unusable(operation, "the answer names no volume")
	}
	if err := c.checkAnswer(operation, "volume", v.ID, v.Status, odd); err != nil {
		return Volume{}, err
	}
	return v, nil
}

// DeleteVolume requests a volume's deletion. The deletion is complete when the
// volume is gone, not when this returns.
func (c volumeClient) DeleteVolume(ctx context.Context, id string) error {
	return c.about(ctx, OperationDelete, id, func(ctx context.Context) error { return volumes.Delete(ctx, c.service, id, nil).Err })
}

// ForceDeleteVolume requests a deletion in any state; administrators only. It
// is the only way out of error_deleting.
func (c volumeClient) ForceDeleteVolume(ctx context.Context, id string) error {
	return c.about(ctx, OperationForceDelete, id, func(ctx context.Context) error { return volumes.ForceDelete(ctx, c.service, id).Err })
}

// OperationMetadata is a change of a volume's metadata, as named in metrics.
const OperationMetadata = "metadata.update"

// UpdateMetadata writes metadata on a volume; other keys stay.
func (c volumeClient) UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return c.post(ctx, OperationMetadata, id, 0, map[string]any{"metadata": metadata}, http.StatusOK, "volumes", "metadata")
}

// OperationMetadataDelete is the deletion of a metadata key, as named in metrics.
const OperationMetadataDelete = "metadata.delete"

// DeleteMetadata deletes one key of a volume's metadata. The key must have no slash,
// since Cinder cannot find one that does.
func (c volumeClient) DeleteMetadata(ctx context.Context, id, key string) error {
	return c.about(ctx, OperationMetadataDelete, id, func(ctx context.Context) error {
		_, err := c.service.Delete(ctx, c.service.ServiceURL("volumes", id, "metadata", key), &gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}})
		return err
	})
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
	newest, err := c.maxMicroversion(ctx)
	if err != nil || newest < MicroversionMessages {
		return ""
	}
	var answer struct {
		Messages []struct {
			Resource string `json:"resource_uuid"`
			Text     string `json:"user_message"`
		} `json:"messages"`
	}
	address := c.service.ServiceURL("messages") + "?" + url.Values{"resource_uuid": {id}}.Encode()
	_, err = c.service.Get(c.outgoing(ctx, "message.list"), address, &answer, &gophercloud.RequestOpts{
		MoreHeaders: microversion(min(newest, microversionMessagesFilter)),
	})
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
