package cinder

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gophercloud/gophercloud/v2"
)

// microversionExtendInUse is the first in which a volume in use can be extended
// (Block Storage API, microversion history, 3.42).
const microversionExtendInUse = 42

// OperationExtend is the extension of a volume, as in metrics.
const OperationExtend = "volume.os-extend"

// ExtendVolume requests a larger size. The extension is complete when the volume
// has left the status extending; a volume in use needs an endpoint with
// microversion 3.42.
func (c *Client) ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error {
	const operation = OperationExtend
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	options := &gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}}
	if inUse {
		newest, err := c.maxMicroversion(ctx)
		if err != nil {
			return WithoutEffect(err)
		}
		if newest < microversionExtendInUse {
			return &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Unsent: true, Message: fmt.Sprintf(
				"a volume in use can be extended from microversion 3.%d on, but the endpoint offers only up to 3.%d", microversionExtendInUse, newest)}
		}
		options.MoreHeaders = microversion(microversionExtendInUse)
	}
	_, err := c.service.Post(withOperation(ctx, operation), c.service.ServiceURL("volumes", id, "action"),
		map[string]any{"os-extend": map[string]any{"new_size": sizeGiB}}, nil, options)
	return translate(c.backend, operation, err)
}
