package cinder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// act sends a volume action. Without an answer, only 202 is success: a page of a proxy
// must not count.
func (c actionClient) act(ctx context.Context, id, action string, arguments any) error {
	return c.about(ctx, id, actionOf(id, action, arguments))
}

func actionOf(id, action string, arguments any) request {
	return request{operation: "volume." + action, method: http.MethodPost, path: []string{"volumes", id, "action"}, body: map[string]any{action: arguments}, codes: []int{http.StatusAccepted}}
}

// Reserve marks an available volume as being attached.
func (c actionClient) Reserve(ctx context.Context, id string) error {
	return c.act(ctx, id, "os-reserve", struct{}{})
}

// Unreserve cancels a reservation; it has no effect on an available or in-use volume.
func (c actionClient) Unreserve(ctx context.Context, id string) error {
	return c.act(ctx, id, "os-unreserve", struct{}{})
}

// InitializeConnection exports the volume to the connector and returns Cinder's
// connection document unchanged: {"driver_volume_type", "data"}. It is idempotent. The
// document may contain credentials; keep it out of logs.
func (c actionClient) InitializeConnection(ctx context.Context, id string, connector Connector) ([]byte, error) {
	var answer struct {
		ConnectionInfo json.RawMessage `json:"connection_info"`
	}
	r := actionOf(id, "os-initialize_connection", map[string]any{"connector": connector.document()})
	r.answer, r.codes = &answer, []int{http.StatusOK, http.StatusCreated, http.StatusAccepted}
	if err := c.about(ctx, id, r); err != nil {
		return nil, err
	}
	if len(answer.ConnectionInfo) == 0 || string(answer.ConnectionInfo) == "null" {
		return nil, c.wrong(r.operation, "the answer has no connection_info")
	}
	return answer.ConnectionInfo, nil
}

// TerminateConnection removes the connector's access. If the volume was
// reserved and never attached, Cinder also cancels the reservation.
func (c actionClient) TerminateConnection(ctx context.Context, id string, connector Connector) error {
	return c.act(ctx, id, "os-terminate_connection", map[string]any{"connector": connector.document()})
}

// Attach moves a volume to in-use. It never names an instance: Cinder would
// then let only Nova delete the attachment (CVE-2023-2088).
func (c actionClient) Attach(ctx context.Context, id, host string, readOnly bool) error {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	return c.act(ctx, id, "os-attach", map[string]any{"host_name": host, "mountpoint": "/dev/standalone-cinder", "mode": mode})
}

// Detach ends one attachment; if a volume has several, Cinder requires the ID.
// Detaching removes the export.
func (c actionClient) Detach(ctx context.Context, id, attachmentID string) error {
	arguments := map[string]any{}
	if attachmentID != "" {
		arguments["attachment_id"] = attachmentID
	}
	return c.act(ctx, id, "os-detach", arguments)
}

// microversionExtendInUse is the first that extends a volume in use (Block Storage API,
// microversion history, 3.42).
const microversionExtendInUse = 42

// ExtendVolume requests a larger size. The extension is complete when the volume has left
// the status extending; a volume in use needs microversion 3.42.
func (c actionClient) ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error {
	r := actionOf(id, "os-extend", map[string]any{"new_size": sizeGiB})
	if inUse {
		newest, err := c.MaxMicroversion(ctx)
		if err != nil {
			return WithoutEffect(err)
		}
		if newest < microversionExtendInUse {
			return &Error{Backend: c.backend, Operation: r.operation, Kind: KindInvalid, Unsent: true, Message: fmt.Sprintf(
				"extending a volume in use needs microversion 3.%d, but the endpoint offers only up to 3.%d", microversionExtendInUse, newest)}
		}
		r.minor = microversionExtendInUse
	}
	return c.about(ctx, id, r)
}

// RetypeVolume requests another volume type. If the volume may be migrated, Cinder copies it,
// attached nowhere, to the storage of the type if its present one cannot have that; it keeps
// its ID, but what is written to its metadata meanwhile may be lost (finish_volume_migration
// in cinder/objects/volume.py). Cinder accepts the request even if no storage can change the
// volume: the request is complete when the volume has left the status retyping, and only its
// type then shows whether it succeeded.
func (c actionClient) RetypeVolume(ctx context.Context, id, volumeType string, mayMigrate bool) error {
	policy := "never"
	if mayMigrate {
		policy = "on-demand"
	}
	return c.act(ctx, id, "os-retype", map[string]any{"new_type": volumeType, "migration_policy": policy})
}
