package backends

import (
	"context"
	"slices"
)

// openAttachment makes the volume's attachment, or finds the one that an earlier
// attempt made, and returns its connection. Without a connection and without an
// error the volume is to be looked at again: a step was taken.
func (e *endpoint) openAttachment(ctx context.Context, v Volume, spec Spec) (Connected, error) {
	if err := e.attachedElsewhere(v, Target{Connector: spec.Connector}); err != nil {
		return Connected{}, err
	}
	if v.Status == StatusAvailable {
		var id string
		var document []byte
		err := e.cinder.change(ctx, func(ctx context.Context, cinder api) (err error) {
			id, document, err = cinder.CreateAttachment(ctx, v.ID, spec.Connector, spec.ReadOnly)
			return err
		})
		if IsKind(err, KindConflict) {
			// Another attempt's request may have come first.
			if again, lookErr := e.get(ctx, v.ID); lookErr != nil || again.Status == v.Status {
				return Connected{}, err
			}
			return Connected{}, nil
		}
		if err != nil {
			return Connected{}, err
		}
		return e.opened(v, id, document, true), nil
	}
	kept, err := e.keepOneAttachment(ctx, v)
	if err != nil || kept.ID == "" {
		return Connected{}, err
	}
	// An attachment that has its connection is taken as it is: a
	// PersistentVolume may name it that is on its way. It is never connected once
	// more, since a request of which the answer is lost may come when the volume
	// is in use, and would take it back to attaching.
	var document []byte
	if kept.Status != attachmentReserved {
		err = e.cinder.read(ctx, func(ctx context.Context, cinder api) (err error) {
			document, err = cinder.AttachmentDocument(ctx, kept.ID)
			return err
		})
		if err != nil {
			return Connected{}, err
		}
	}
	switch {
	case document == nil && kept.Status == attachmentAttached:
		return Connected{}, e.failure(KindConflict, "attachment %s of volume %s is complete and has no connection", kept.ID, v.ID)
	case document == nil:
		return Connected{}, e.deleteAttachment(ctx, kept.ID)
	case kept.Status == attachmentAttached:
		// A PersistentVolume of the same claim once had it in use.
		return Connected{Volume: v, Document: document, AttachmentID: kept.ID}, nil
	}
	return e.opened(v, kept.ID, document, false), nil
}

// opened notes what the completion needs, so that it costs no look.
func (e *endpoint) opened(v Volume, attachmentID string, document []byte, fresh bool) Connected {
	v.Status = StatusAttaching
	v.Attachments = []Attachment{{ID: attachmentID}}
	e.see(v.ID, v)
	return Connected{Volume: v, Document: document, Fresh: fresh, AttachmentID: attachmentID}
}

// keepOneAttachment returns the attachment to go on with, and ends the others,
// which leaders that overlapped may have made. None is returned after a step
// that leaves the volume without any: it is reserved by os-reserve then, or an
// attachment failed.
func (e *endpoint) keepOneAttachment(ctx context.Context, v Volume) (Attachment, error) {
	attachments, err := e.attachments(ctx, v)
	if err != nil {
		return Attachment{}, err
	}
	if len(attachments) == 0 {
		return Attachment{}, e.unreserve(ctx, v)
	}
	slices.SortStableFunc(attachments, func(a, b Attachment) int { return attachmentRank(b) - attachmentRank(a) })
	kept, others := attachments[0], attachments[1:]
	if attachmentRank(kept) == 0 {
		kept, others = Attachment{}, attachments
	}
	for _, other := range others {
		if err := e.deleteAttachment(ctx, other.ID); err != nil {
			return Attachment{}, err
		}
	}
	return kept, nil
}

// attachmentRank orders attachments by how much depends on them; 0 is one that
// failed.
func attachmentRank(a Attachment) int {
	switch a.Status {
	case attachmentAttached:
		return 3
	case "attaching":
		return 2
	case attachmentReserved:
		return 1
	}
	return 0
}

// attachments lists a volume's attachments, in whatever state. One of a Nova
// instance is never ours.
func (e *endpoint) attachments(ctx context.Context, v Volume) (attachments []Attachment, err error) {
	err = e.cinder.read(ctx, func(ctx context.Context, cinder api) (err error) {
		attachments, err = cinder.Attachments(ctx, v.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return attachments, e.attachedElsewhere(Volume{ID: v.ID, Attachments: attachments}, Target{})
}

// completeAttachment brings an attaching volume into use. The mark comes first:
// Cinder leaves none, and a volume that was in use must be told from one that
// never was.
func (e *endpoint) completeAttachment(ctx context.Context, v Volume) error {
	attachments := v.Attachments
	if len(attachments) != 1 {
		kept, err := e.keepOneAttachment(ctx, v)
		if err != nil {
			return err
		}
		if kept.ID == "" {
			return e.failure(KindConflict, "volume %s is %s and has no attachment", v.ID, v.Status)
		}
		attachments = []Attachment{kept}
	}
	if !v.EverAttached() {
		if err := e.cinder.change(ctx, func(ctx context.Context, cinder api) error { return cinder.MarkAttached(ctx, v.ID) }); err != nil {
			return err
		}
	}
	return e.cinder.change(ctx, func(ctx context.Context, cinder api) error {
		return cinder.CompleteAttachment(ctx, attachments[0].ID)
	})
}

// detachAll ends every attachment; the array's access list and the export go
// with the last.
func (e *endpoint) detachAll(ctx context.Context, v Volume, _ Target) error {
	attachments := v.Attachments
	if v.Status != StatusInUse || len(attachments) == 0 {
		var err error
		// A volume shows completed attachments only.
		if attachments, err = e.attachments(ctx, v); err != nil {
			return err
		}
	}
	if len(attachments) == 0 {
		return e.unreserve(ctx, v)
	}
	for _, attachment := range attachments {
		if err := e.deleteAttachment(ctx, attachment.ID); err != nil {
			return err
		}
	}
	return nil
}

func (e *endpoint) deleteAttachment(ctx context.Context, id string) error {
	err := e.cinder.change(ctx, func(ctx context.Context, cinder api) error { return cinder.DeleteAttachment(ctx, id) })
	if IsKind(err, KindNotFound) {
		return nil
	}
	return err
}

// unreserve makes a volume available again that has no attachment.
func (e *endpoint) unreserve(ctx context.Context, v Volume) error {
	if v.Status == StatusInUse || v.Status == StatusDetaching {
		return e.detach(ctx, v.ID, "")
	}
	return e.cinder.change(ctx, func(ctx context.Context, cinder api) error { return cinder.Unreserve(ctx, v.ID) })
}
