package backends

import (
	"context"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// connections connects volumes to the connector of all nodes, and disconnects them, by
// the workflow that each volume has. Attachments are also those of single nodes.
type connections struct{ *endpoint }

// connectionRequests are the volume actions that connect a volume by the workflow reserve.
type connectionRequests interface {
	Reserve(ctx context.Context, id string) error
	Unreserve(ctx context.Context, id string) error
	InitializeConnection(ctx context.Context, id string, connector cinder.Connector) ([]byte, error)
	TerminateConnection(ctx context.Context, id string, connector cinder.Connector) error
	Attach(ctx context.Context, id, host string, readOnly bool) error
	Detach(ctx context.Context, id, attachmentID string) error
}

// attachmentRequests connect a volume by the workflow attachment.
type attachmentRequests interface {
	CreateAttachment(ctx context.Context, volumeID string, connector cinder.Connector, readOnly bool) (attachmentID string, document []byte, err error)
	Attachments(ctx context.Context, volumeID string) ([]cinder.Attachment, error)
	AttachmentDocument(ctx context.Context, attachmentID string) (document []byte, err error)
	CompleteAttachment(ctx context.Context, attachmentID string) error
	DeleteAttachment(ctx context.Context, attachmentID string) error
}

// openAttachment creates the volume's attachment, or finds one from an earlier attempt,
// and returns its connection. If it returns neither a connection nor an error, it took a
// step, and the caller must read the volume again.
func (e connections) openAttachment(ctx context.Context, v cinder.Volume, connector cinder.Connector, readOnly bool) (Connected, error) {
	if err := e.attachedElsewhere(v, Target{Connector: connector}); err != nil {
		return Connected{}, err
	}
	if v.Status == cinder.StatusAvailable {
		id, document, err := e.createAttachment(ctx, nil, v, connector, readOnly)
		if err != nil || id == "" {
			return Connected{}, err
		}
		return e.opened(v, id, document, true), nil
	}
	kept, err := e.keepOneAttachment(ctx, v)
	if err != nil || kept.ID == "" {
		return Connected{}, err
	}
	// An attachment with a connection is used as is: a PersistentVolume being saved may
	// name it. It is never connected again: a request whose answer is lost may arrive
	// when the volume is in use, and would return it to attaching.
	var document []byte
	if kept.Status != cinder.AttachmentReserved {
		if document, err = e.document(ctx, kept.ID); err != nil {
			return Connected{}, err
		}
	}
	switch {
	case document == nil && kept.Status == cinder.AttachmentAttached:
		return Connected{}, e.failure(cinder.KindConflict, "attachment %s of volume %s is complete but has no connection information", kept.ID, v.ID)
	case document == nil:
		return Connected{}, e.deleteAttachment(ctx, nil, kept.ID)
	case kept.Status == cinder.AttachmentAttached:
		// A PersistentVolume of the same claim once had it in use.
		return Connected{Volume: v, Document: document, AttachmentID: kept.ID}, nil
	}
	return e.opened(v, kept.ID, document, false), nil
}

// createAttachment creates an attachment. It returns neither an ID nor an error if an
// earlier request, whose answer was lost, may have won.
func (e connections) createAttachment(ctx context.Context, permitted permission, v cinder.Volume, connector cinder.Connector, readOnly bool) (id string, document []byte, err error) {
	err = change(ctx, e.session, permitted, func(ctx context.Context, client attachmentRequests) (err error) {
		id, document, err = client.CreateAttachment(ctx, v.ID, connector, readOnly)
		return err
	})
	if cinder.IsKind(err, cinder.KindConflict) {
		if again, lookErr := e.get(ctx, v.ID); lookErr == nil && again.Status != v.Status {
			return "", nil, nil
		}
	}
	return id, document, err
}

// document reads the connection document of an attachment; nil if it has none.
func (e connections) document(ctx context.Context, attachmentID string) (document []byte, err error) {
	err = read(ctx, e.session, func(ctx context.Context, client attachmentRequests) (err error) {
		document, err = client.AttachmentDocument(ctx, attachmentID)
		return err
	})
	return document, err
}

// opened records what the completion needs, so that it need not reread the volume.
func (e connections) opened(v cinder.Volume, attachmentID string, document []byte, fresh bool) Connected {
	v.Status = cinder.StatusAttaching
	v.Attachments = []cinder.Attachment{{ID: attachmentID}}
	e.known.See(v.ID, v)
	return Connected{Volume: v, Document: document, Fresh: fresh, AttachmentID: attachmentID}
}

// keepOneAttachment returns the attachment to continue with and deletes the others, which
// overlapping leaders may have created. It returns none if the step left the volume
// without an attachment: os-reserve reserved the volume, or an attachment failed.
func (e connections) keepOneAttachment(ctx context.Context, v cinder.Volume) (cinder.Attachment, error) {
	attachments, err := e.attachments(ctx, v)
	if err != nil {
		return cinder.Attachment{}, err
	}
	if len(attachments) == 0 {
		return cinder.Attachment{}, e.unreserve(ctx, nil, v)
	}
	slices.SortStableFunc(attachments, func(a, b cinder.Attachment) int { return attachmentRank(b) - attachmentRank(a) })
	kept, others := attachments[0], attachments[1:]
	if attachmentRank(kept) == 0 {
		kept, others = cinder.Attachment{}, attachments
	}
	for _, other := range others {
		if err := e.deleteAttachment(ctx, nil, other.ID); err != nil {
			return cinder.Attachment{}, err
		}
	}
	return kept, nil
}

// attachmentRank orders attachments by how much depends on them; 0 means failed.
func attachmentRank(a cinder.Attachment) int {
	switch a.Status {
	case cinder.AttachmentAttached:
		return 3
	case "attaching":
		return 2
	case cinder.AttachmentReserved:
		return 1
	}
	return 0
}

// attachments lists a volume's attachments in any state, except those of Nova instances,
// which never belong to this program.
func (e connections) attachments(ctx context.Context, v cinder.Volume) (attachments []cinder.Attachment, err error) {
	err = read(ctx, e.session, func(ctx context.Context, client attachmentRequests) (err error) {
		attachments, err = client.Attachments(ctx, v.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return attachments, e.attachedElsewhere(cinder.Volume{ID: v.ID, Attachments: attachments}, Target{})
}

// completeAttachment brings an attaching volume into use. It writes the mark first:
// Cinder leaves none, and a volume that was in use must be distinguishable from one that
// never was.
func (e connections) completeAttachment(ctx context.Context, v cinder.Volume) error {
	attachments := v.Attachments
	if len(attachments) != 1 {
		kept, err := e.keepOneAttachment(ctx, v)
		if err != nil {
			return err
		}
		if kept.ID == "" {
			return e.failure(cinder.KindConflict, "volume %s is %s and has no attachment", v.ID, v.Status)
		}
		attachments = []cinder.Attachment{kept}
	}
	if err := e.mark(ctx, v); err != nil {
		return err
	}
	return e.completeOne(ctx, nil, attachments[0].ID)
}

func (e connections) completeOne(ctx context.Context, permitted permission, attachmentID string) error {
	return change(ctx, e.session, permitted, func(ctx context.Context, client attachmentRequests) error {
		return client.CompleteAttachment(ctx, attachmentID)
	})
}

// detachAll deletes every attachment; access list entry and export disappear with the last.
func (e connections) detachAll(ctx context.Context, permitted permission, v cinder.Volume, _ Target) error {
	attachments := v.Attachments
	if v.Status != cinder.StatusInUse || len(attachments) == 0 {
		var err error
		// A volume lists completed attachments only.
		if attachments, err = e.attachments(ctx, v); err != nil {
			return err
		}
	}
	if len(attachments) == 0 {
		return e.unreserve(ctx, permitted, v)
	}
	for _, attachment := range attachments {
		if err := e.deleteAttachment(ctx, permitted, attachment.ID); err != nil {
			return err
		}
	}
	return nil
}

func (e connections) deleteAttachment(ctx context.Context, permitted permission, id string) error {
	err := change(ctx, e.session, permitted, func(ctx context.Context, client attachmentRequests) error { return client.DeleteAttachment(ctx, id) })
	if cinder.IsKind(err, cinder.KindNotFound) {
		return nil
	}
	return err
}

// unreserve makes a volume without attachments available again.
func (e connections) unreserve(ctx context.Context, permitted permission, v cinder.Volume) error {
	if v.Status == cinder.StatusInUse || v.Status == cinder.StatusDetaching {
		return e.detach(ctx, permitted, v.ID, "")
	}
	return change(ctx, e.session, permitted, func(ctx context.Context, client connectionRequests) error { return client.Unreserve(ctx, v.ID) })
}
