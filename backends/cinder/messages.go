package cinder

import (
	"context"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"
)

// The microversions of the messages API: the first that has it, and the first
// that filters it and sorts it newest first (Block Storage API, microversion
// history, 3.3 and 3.5).
const (
	microversionMessages       = 3
	microversionMessagesFilter = 5
)

// FailureReason reads from Cinder's messages API why a volume went to error. It
// only helps the reader of the event: if the endpoint lacks the API, or on any
// failure, it returns an empty string.
func (c *Client) FailureReason(ctx context.Context, id string) string {
	newest, err := c.maxMicroversion(ctx)
	if err != nil || newest < microversionMessages {
		return ""
	}
	var answer struct {
		Messages []struct {
			Resource string `json:"resource_uuid"`
			Text     string `json:"user_message"`
		} `json:"messages"`
	}
	address := c.service.ServiceURL("messages") + "?" + url.Values{"resource_uuid": {id}}.Encode()
	_, err = c.service.Get(withOperation(ctx, "message.list"), address, &answer, &gophercloud.RequestOpts{
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
