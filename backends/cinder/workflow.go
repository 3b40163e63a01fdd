package cinder

import (
	"context"
	"fmt"
)

// Workflow is the sequence of requests that connects a volume. It is fixed when the
// volume is created.
type Workflow string

const (
	// WorkflowReserve uses the volume actions os-reserve,
	// os-initialize_connection and os-attach.
	WorkflowReserve Workflow = "reserve"
	// WorkflowAttachment uses the attachments API (microversion 3.44).
	WorkflowAttachment Workflow = "attachment"
	// WorkflowAuto uses the attachments API if the endpoint has it.
	WorkflowAuto Workflow = "auto"
)

// OffersAttachments returns an error unless the endpoint has the attachments API,
// regardless of the workflow configured for volumes that all nodes share.
func (c *Client) OffersAttachments(ctx context.Context) error {
	newest, err := c.MaxMicroversion(ctx)
	switch {
	case err != nil:
		return err
	case newest < microversionAttachments:
		return &Error{Backend: c.backend, Kind: KindConfig, Message: fmt.Sprintf(
			"attaching volumes to nodes one by one needs microversion 3.%d, but the endpoint offers only up to 3.%d; use mode native for this backend", microversionAttachments, newest)}
	}
	return nil
}

// Workflow determines how new volumes are connected. An endpoint that does not
// list its microversions is assumed to have none.
func (c *Client) Workflow(ctx context.Context) (Workflow, error) {
	if c.workflow == "" || c.workflow == WorkflowReserve {
		return WorkflowReserve, nil
	}
	newest, err := c.MaxMicroversion(ctx)
	switch {
	case IsKind(err, KindUnavailable), IsKind(err, KindRateLimited), IsKind(err, KindUnauthorized):
		return "", err
	case err == nil && newest >= microversionAttachments:
		return WorkflowAttachment, nil
	case c.workflow == WorkflowAttachment && err != nil:
		return "", err
	case c.workflow == WorkflowAttachment:
		return "", &Error{Backend: c.backend, Kind: KindConfig, Message: fmt.Sprintf(
			"workflow attachment needs microversion 3.%d, but the endpoint offers only up to 3.%d; use workflow reserve or auto", microversionAttachments, newest)}
	}
	return WorkflowReserve, nil
}
