package cinder

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// Microversions of the attachments API: the first that completes attachments, and the
// first with read-only ones (Block Storage API, microversion history, 3.44 and 3.54).
const (
	microversionAttachments = 44
	microversionAttachMode  = 54
)

// attachmentDocument is an attachment in the API's JSON form.
type attachmentDocument struct {
	ID         string          `json:"id"`
	Status     string          `json:"status"`
	Instance   *string         `json:"instance"`
	VolumeID   string          `json:"volume_id"`
	Connection json.RawMessage `json:"connection_info"`
}

// CreateAttachment reserves an available volume, exports it to the connector,
// and returns the attachment with its connection document, whose fields are
// next to driver_volume_type. The document may contain credentials. It names no
// instance: Cinder would then let only Nova delete the attachment
// (CVE-2023-2088). gophercloud's own request always names one.
func (c attachmentClient) CreateAttachment(ctx context.Context, volumeID string, connector Connector, readOnly bool) (attachmentID string, document []byte, err error) {
	const operation = "attachment.create"
	wanted, minor := map[string]any{"volume_uuid": volumeID, "connector": connector.document()}, microversionAttachments
	if readOnly {
		newest, err := c.MaxMicroversion(ctx)
		if err != nil {
			return "", nil, WithoutEffect(err)
		}
		// Without the mode, Cinder would allow writes, and only the nodes would prevent
		// them.
		if newest >= microversionAttachMode {
			wanted["mode"], minor = "ro", microversionAttachMode
		}
	}
	answer, err := c.attachment(ctx, volumeID, request{operation: operation, method: http.MethodPost, path: []string{"attachments"}, minor: minor, body: map[string]any{"attachment": wanted}})
	if err == nil && answer.VolumeID != volumeID {
		err = c.unusable(operation, "the answer is about an attachment of another volume")
	}
	if err != nil {
		return "", nil, err
	}
	document, err = c.connectionOf(operation, answer)
	return answer.ID, document, err
}

// AttachmentDocument reads the connection document of an attachment; nil if it
// has none.
func (c attachmentClient) AttachmentDocument(ctx context.Context, attachmentID string) ([]byte, error) {
	const operation = "attachment.get"
	answer, err := c.attachment(ctx, attachmentID, request{operation: operation, path: []string{"attachments", attachmentID}, minor: microversionAttachments})
	if err == nil && answer.ID != attachmentID {
		err = c.wrong(operation, "the answer is about another attachment")
	}
	if err != nil {
		return nil, err
	}
	if text := string(bytes.TrimSpace(answer.Connection)); text == "" || text == "null" || text == "{}" {
		return nil, nil
	}
	return c.connectionOf(operation, answer)
}

// attachment sends a request about the object with an ID that returns an attachment.
func (c attachmentClient) attachment(ctx context.Context, id string, r request) (attachmentDocument, error) {
	var answer struct {
		Attachment *attachmentDocument `json:"attachment"`
	}
	r.answer, r.codes = &answer, []int{http.StatusOK}
	if err := c.about(ctx, id, r); err != nil {
		return attachmentDocument{}, err
	}
	if answer.Attachment == nil || !usableID.MatchString(answer.Attachment.ID) {
		return attachmentDocument{}, c.unusable(r.operation, "the answer names no attachment")
	}
	return *answer.Attachment, nil
}

func (c attachmentClient) connectionOf(operation string, answer attachmentDocument) ([]byte, error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(answer.Connection, &fields) != nil || len(fields) == 0 {
		return nil, c.unusable(operation, "the attachment has no connection_info")
	}
	return answer.Connection, nil
}

// Attachments lists a volume's attachments, in any state and of any project: an
// administrator, and so every user in noauth mode, finds volumes of other projects by ID.
// It lists all projects only if the current one has no attachment, since Cinder returns
// nothing to a member who requests all.
func (c attachmentClient) Attachments(ctx context.Context, volumeID string) ([]Attachment, error) {
	found, err := c.listAttachments(ctx, volumeID, url.Values{"volume_id": {volumeID}})
	if err == nil && len(found) == 0 {
		found, err = c.listAttachments(ctx, volumeID, url.Values{"volume_id": {volumeID}, "all_tenants": {"1"}})
	}
	return found, err
}

// listAttachments makes one request. It rejects the answer of a server that ignores the
// filter: that list may be incomplete.
func (c attachmentClient) listAttachments(ctx context.Context, volumeID string, query url.Values) ([]Attachment, error) {
	const operation = "attachment.list"
	var answer struct {
		Attachments []attachmentDocument `json:"attachments"`
	}
	err := c.about(ctx, volumeID, request{operation: operation, path: []string{"attachments"}, query: query, minor: microversionAttachments, answer: &answer})
	if err != nil {
		return nil, absenceOfNothing(err)
	}
	if answer.Attachments == nil {
		return nil, c.wrong(operation, "the answer has no list of attachments")
	}
	var found []Attachment
	for _, a := range answer.Attachments {
		if a.VolumeID != volumeID {
			return nil, c.wrong(operation, "the list of one volume's attachments contains those of other volumes")
		}
		if !usableID.MatchString(a.ID) || a.Status == "" {
			// An attachment without a status would look failed, and would be deleted.
			return nil, c.wrong(operation, "the list has an attachment without an id or a status")
		}
		attachment := Attachment{ID: a.ID, Status: AttachmentStatus(a.Status)}
		if a.Instance != nil {
			attachment.ServerID = *a.Instance
		}
		found = append(found, attachment)
	}
	return found, nil
}

// CompleteAttachment moves the volume of an attachment to in-use; repeating it
// changes nothing.
func (c attachmentClient) CompleteAttachment(ctx context.Context, attachmentID string) error {
	return c.about(ctx, attachmentID, request{operation: "attachment.complete", method: http.MethodPost, path: []string{"attachments", attachmentID, "action"},
		minor: microversionAttachments, body: map[string]any{"os-complete": nil}, codes: []int{http.StatusNoContent}})
}

// DeleteAttachment removes the connector's access and the attachment; if it was
// the last, the volume becomes available.
func (c attachmentClient) DeleteAttachment(ctx context.Context, attachmentID string) error {
	return c.about(ctx, attachmentID, request{operation: "attachment.delete", method: http.MethodDelete, path: []string{"attachments", attachmentID},
		minor: microversionAttachments, codes: []int{http.StatusOK}})
}
