package cinder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v2/volumes"
)

// Reserve marks an available volume as being attached.
func (c actionClient) Reserve(ctx context.Context, id string) error {
	return c.about(ctx, "volume.os-reserve", id, func(ctx context.Context) error { return volumes.Reserve(ctx, c.service, id).Err })
}

// Unreserve cancels a reservation; it has no effect on an available or in-use volume.
func (c actionClient) Unreserve(ctx context.Context, id string) error {
	return c.about(ctx, "volume.os-unreserve", id, func(ctx context.Context) error { return volumes.Unreserve(ctx, c.service, id).Err })
}

// InitializeConnection exports the volume to the connector and returns Cinder's
// connection document unchanged: {"driver_volume_type", "data"}. It is idempotent. The
// document may contain credentials; keep it out of logs.
func (c actionClient) InitializeConnection(ctx context.Context, id string, connector Connector) ([]byte, error) {
	const operation = "volume.os-initialize_connection"
	var result gophercloud.Result
	err := c.about(ctx, operation, id, func(ctx context.Context) error {
		_, err := c.service.Post(ctx, c.service.ServiceURL("volumes", id, "action"), connectorBody("os-initialize_connection", connector), &result.Body,
			&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusCreated, http.StatusAccepted}})
		return err
	})
	if err != nil {
		return nil, err
	}
	var answer struct {
		ConnectionInfo json.RawMessage `json:"connection_info"`
	}
	if err := result.ExtractInto(&answer); err != nil || len(answer.ConnectionInfo) == 0 || string(answer.ConnectionInfo) == "null" {
		return nil, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, Message: "the answer has no connection_info"}
	}
	return answer.ConnectionInfo, nil
}

// TerminateConnection removes the connector's access. If the volume was
// reserved and never attached, Cinder also cancels the reservation.
func (c actionClient) TerminateConnection(ctx context.Context, id string, connector Connector) error {
	return c.post(ctx, "volume.os-terminate_connection", id, 0, connectorBody("os-terminate_connection", connector), http.StatusAccepted, "volumes", "action")
}

// Attach moves a volume to in-use. It never names an instance: Cinder would
// then let only Nova delete the attachment (CVE-2023-2088).
func (c actionClient) Attach(ctx context.Context, id, host string, readOnly bool) error {
	options := volumes.AttachOpts{HostName: host, MountPoint: "/dev/standalone-cinder", Mode: volumes.ReadWrite}
	if readOnly {
		options.Mode = volumes.ReadOnly
	}
	return c.about(ctx, "volume.os-attach", id, func(ctx context.Context) error { return volumes.Attach(ctx, c.service, id, options).Err })
}

// Detach ends one attachment; if a volume has several, Cinder requires the ID.
// Detaching removes the export.
func (c actionClient) Detach(ctx context.Context, id, attachmentID string) error {
	return c.about(ctx, "volume.os-detach", id, func(ctx context.Context) error {
		return volumes.Detach(ctx, c.service, id, volumes.DetachOpts{AttachmentID: attachmentID}).Err
	})
}

// connectorBody is the body of the two connection actions. gophercloud's options lack the
// NQN.
func connectorBody(action string, connector Connector) map[string]any {
	return map[string]any{action: map[string]any{"connector": connector.request()}}
}

// microversionExtendInUse is the first that extends a volume in use (Block Storage API,
// microversion history, 3.42).
const microversionExtendInUse = 42

// OperationExtend is a volume's extension, as named in metrics.
const OperationExtend = "volume.os-extend"

// ExtendVolume requests a larger size. The extension is complete when the volume has left
// the status extending; a volume in use needs microversion 3.42.
func (c actionClient) ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error {
	const operation = OperationExtend
	minor := 0
	if inUse {
		newest, err := c.maxMicroversion(ctx)
		if err != nil {
			return WithoutEffect(err)
		}
		if newest < microversionExtendInUse {
			return &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Unsent: true, Message: fmt.Sprintf(
				"extending a volume in use needs microversion 3.%d, but the endpoint offers only up to 3.%d", microversionExtendInUse, newest)}
		}
		minor = microversionExtendInUse
	}
	return c.post(ctx, operation, id, minor, map[string]any{"os-extend": map[string]any{"new_size": sizeGiB}}, http.StatusAccepted, "volumes", "action")
}

// OperationRetype is the change of a volume's type, as named in metrics.
const OperationRetype = "volume.os-retype"

// RetypeVolume requests another volume type, without migration to another storage
// backend. Cinder accepts the request even if no storage can change the volume: the
// request is complete when the volume has left the status retyping, and only its type
// then shows whether it succeeded.
func (c actionClient) RetypeVolume(ctx context.Context, id, volumeType string) error {
	body := map[string]any{"os-retype": map[string]any{"new_type": volumeType, "migration_policy": "never"}}
	return c.post(ctx, OperationRetype, id, 0, body, http.StatusAccepted, "volumes", "action")
}
