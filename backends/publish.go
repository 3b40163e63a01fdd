package backends

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// PublishRequest is the request to attach a volume to one node. Publish returns the errors
// of its functions unchanged.
type PublishRequest struct {
	// Node is the node's name, and Key its short form in the volume's metadata.
	Node, Key string
	// Connector identifies this node alone to Cinder.
	Connector cinder.Connector
	// ReadOnly requests an attachment that does not allow writes.
	ReadOnly bool
	// Shared means that other nodes may have the volume at the same time, if Cinder
	// allows it, too (multiattach).
	Shared bool
	// Admit decides about a new attachment before it is created.
	Admit func(ctx context.Context) error
	// Release decides whether another node may lose its recorded attachment, which keeps
	// the volume from this one. False means that the other node still holds it
	// legitimately.
	Release func(ctx context.Context, node, key string) (bool, error)
	// HandOut gives the connection to the node. Publish calls it before it completes the
	// attachment, and again on every repeated Publish. It must write what the node needs
	// beyond the answer.
	HandOut func(ctx context.Context, published Published) error
}

// Published is a volume attached to a node.
type Published struct {
	Volume       cinder.Volume
	AttachmentID string
	// Document is Cinder's connection document; it may contain credentials.
	Document []byte
	// ReadOnly means that a read-only attachment was requested, regardless of whether
	// Cinder is new enough to enforce it.
	ReadOnly bool
}

// Publish attaches a volume of mode csi to one node, and returns how the node reaches it.
// Before it hands out the connection, it records the attachment and its node in the
// volume's metadata. So an attachment that was never completed was never handed out.
// Publish deletes it instead of adopting it, because the node's initiator names in it are
// unknown. For an attachment that is recorded and completed, Publish returns the same
// answer again.
//
// An unrecorded completed attachment may have been handed out: a late request that wrote
// or cleared its record may have overwritten a later one. If Cinder shows that it is this
// node's, Publish hands it out again. Otherwise it refuses to attach the volume.
func (l *Lifecycle) Publish(ctx context.Context, target Target, to PublishRequest) (Published, error) {
	return serialized(ctx, l, target.key(), func(at *owners) (Published, error) { return at.nodes.publish(ctx, target, to) })
}

// nodes attaches volumes of mode csi to single nodes.
type nodes struct{ connections }

type nodeRequests interface {
	OffersAttachments(ctx context.Context) error
	DeleteMetadata(ctx context.Context, id, key string) error
}

func (e nodes) publish(ctx context.Context, target Target, to PublishRequest) (Published, error) {
	for move := range maxMoves {
		v, err := e.ofNodes(ctx, target)
		if err != nil {
			return Published{}, err
		}
		if v.ID == "" {
			return Published{}, e.failure(cinder.KindNotFound, "volume %s does not exist", target.VolumeID)
		}
		if move == 0 {
			if err := read(ctx, e.session, func(ctx context.Context, client nodeRequests) error { return client.OffersAttachments(ctx) }); err != nil {
				return Published{}, err
			}
		}
		published, err := e.moveTowardsPublished(ctx, target.Permit.on(ctx, v), v, to)
		if err != nil && !cinder.IsKind(err, cinder.KindNotFound) || published.AttachmentID != "" {
			return published, err
		}
		// A step was taken, or its object is gone.
	}
	return Published{}, e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", target.VolumeID)
}

// ofNodes reads the target's volume and checks that nodes attach it individually. The
// zero Volume means that it is gone.
func (e nodes) ofNodes(ctx context.Context, target Target) (cinder.Volume, error) {
	e.known.ForgetSeen(target.VolumeID)
	v, err := e.owned(ctx, target)
	if (err == nil || cinder.IsKind(err, KindInUse)) && v.ID != "" && !stamps.IsCSI(v) {
		// Its attachment, if any, belongs to all nodes and is not recorded.
		return cinder.Volume{}, e.failure(KindNotOurs, "volume %s was not created for a CSI PersistentVolume, so the program does not attach or detach it", v.ID)
	}
	if err != nil && !cinder.IsKind(err, KindInUse) || v.ID == "" {
		return v, err
	}
	// An attachment that this term completed is not left over from an interrupted call,
	// even if Cinder still shows the volume's earlier state.
	for _, id := range e.unshown.ExpectedOf(v.ID) {
		if !stamps.NodeRecordsOf(v).Name(id) || !isAmong(v.Attachments, id) {
			return cinder.Volume{}, e.notShown("attachment", id)
		}
		e.unshown.Shown(id)
	}
	return v, err
}

// endAttachment deletes an attachment of a volume of mode csi. Regardless of the answer,
// it must not be handed out again: Cinder may show it for a while, and the request may
// arrive late.
func (e nodes) endAttachment(ctx context.Context, permitted permission, volumeID, id string) error {
	e.ended.Expect(id, volumeID, time.Now().Add(e.timeouts().Create))
	return e.deleteAttachment(ctx, permitted, id)
}

// moveTowardsPublished takes one step, or all remaining ones. If it returns neither an
// attachment nor an error, the caller must read the volume again.
func (e nodes) moveTowardsPublished(ctx context.Context, permitted permission, v cinder.Volume, to PublishRequest) (Published, error) {
	switch v.Status {
	case cinder.StatusAvailable, cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse:
	default:
		return Published{}, e.failure(cinder.KindConflict, "volume %s is %s; waiting for that operation to finish", v.ID, v.Status)
	}
	for _, id := range e.ended.ExpectedOf(v.ID) {
		if !isAmong(v.Attachments, id) {
			continue
		}
		if err := e.endAttachment(ctx, permitted, v.ID, id); err != nil {
			return Published{}, err
		}
		return Published{}, e.failure(KindNotShown, "Cinder deleted attachment %s but still shows it: its database answers reads from before the last writes; with Galera, set wsrep_sync_wait", id)
	}
	records := stamps.NodeRecordsOf(v)
	mine := records[to.Key].AttachmentID
	// The volume is not shown as in use while another node's attachment is incomplete.
	if mine != "" && v.Status != cinder.StatusAvailable && isAmong(v.Attachments, mine) {
		return e.handOutAgain(ctx, v, records[to.Key], to)
	}
	delete(records, to.Key)
	if unnamed := completedFor(v, to.Connector.Host, records); unnamed != "" {
		own := stamps.NodeRecord{AttachmentID: unnamed, Node: to.Node, ReadOnly: to.ReadOnly}
		if err := e.writeRecord(ctx, permitted, v, to.Key, own); err != nil {
			return Published{}, err
		}
		return e.handOutAgain(ctx, v, own, to)
	}
	if v.Status != cinder.StatusAvailable || len(records) > 0 {
		if moved, err := e.clearTheWay(ctx, permitted, v, records, to); moved || err != nil {
			return Published{}, err
		}
	}
	return e.attachToNode(ctx, permitted, v, to)
}

// handOutAgain answers a repeated publish.
func (e nodes) handOutAgain(ctx context.Context, v cinder.Volume, recorded stamps.NodeRecord, to PublishRequest) (Published, error) {
	document, err := e.document(ctx, recorded.AttachmentID)
	if err == nil && document == nil {
		err = e.failure(cinder.KindConflict, "attachment %s of volume %s is complete but has no connection information", recorded.AttachmentID, v.ID)
	}
	if err != nil {
		return Published{}, err
	}
	published := Published{Volume: v, AttachmentID: recorded.AttachmentID, Document: document, ReadOnly: recorded.ReadOnly}
	if err := to.HandOut(ctx, published); err != nil {
		return Published{}, err
	}
	return published, nil
}

// clearTheWay removes leftovers of interrupted calls: attachments that no other node can
// have, and other nodes' records without an attachment. It refuses a volume that another
// node has, or may have, unless both may have it; then an incomplete attachment is
// removed, too, since Cinder creates no second one beside it.
func (e nodes) clearTheWay(ctx context.Context, permitted permission, v cinder.Volume, others stamps.NodeRecords, to PublishRequest) (moved bool, err error) {
	listed, err := e.attachments(ctx, v)
	if err != nil {
		return false, err
	}
	present := map[string]bool{}
	shared := to.Shared && v.MultiAttach
	for _, a := range listed {
		present[a.ID] = !shared || a.Status == cinder.AttachmentAttached
	}
	recorded := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(others)) {
		other := others[key]
		recorded[other.AttachmentID] = present[other.AttachmentID]
		if present[other.AttachmentID] && !shared {
			released, err := to.Release(ctx, other.Node, key)
			if err != nil {
				return false, err
			}
			if !released {
				return false, e.onOtherNode(v, other.Node, to)
			}
			if err := e.endAttachment(ctx, permitted, v.ID, other.AttachmentID); err != nil {
				return false, err
			}
			return true, e.clearRecord(ctx, permitted, v, key)
		}
	}
	for _, a := range listed {
		if a.Status != cinder.AttachmentAttached || recorded[a.ID] {
			continue
		}
		host := hostOf(v, a.ID)
		if host == "" {
			return false, e.failure(KindOnOtherNode, "volume %s has attachment %s, and no record says which node has it; it is removed when the volume is detached from its node", v.ID, a.ID)
		}
		return false, e.onOtherNode(v, strings.TrimSuffix(host, stamps.NodeHostSuffix(e.cluster)), to)
	}
	if len(listed) == 0 && v.Status != cinder.StatusAvailable {
		return false, e.failure(cinder.KindConflict, "volume %s is %s without an attachment; another party reserved it, or an OpenStack administrator set its status", v.ID, v.Status)
	}
	for _, a := range listed {
		if !recorded[a.ID] {
			if err := e.endAttachment(ctx, permitted, v.ID, a.ID); err != nil {
				return false, err
			}
			moved = true
		}
	}
	for key, other := range others {
		if !present[other.AttachmentID] {
			if err := e.clearRecord(ctx, permitted, v, key); err != nil {
				return false, err
			}
			moved = true
		}
	}
	return moved, nil
}

// onOtherNode returns the failure for a volume that another node has.
func (e nodes) onOtherNode(v cinder.Volume, other string, to PublishRequest) error {
	why := ""
	if to.Shared && !v.MultiAttach {
		why = "; for several nodes at once it needs a volume type with multiattach"
	}
	return e.failure(KindOnOtherNode, "volume %s is attached to node %s, and must be detached there before it can be attached to node %s%s", v.ID, other, to.Node, why)
}

// completedFor returns a completed attachment for a host that no other node's record
// names; empty if there is none.
func completedFor(v cinder.Volume, host string, others stamps.NodeRecords) string {
	for _, a := range v.Attachments {
		if a.Host == host && !others.Name(a.ID) {
			return a.ID
		}
	}
	return ""
}

// hostOf returns the host of a completed attachment, which Cinder shows only to
// administrators.
func hostOf(v cinder.Volume, attachmentID string) string {
	if i := slices.IndexFunc(v.Attachments, func(a cinder.Attachment) bool { return a.ID == attachmentID }); i >= 0 {
		return v.Attachments[i].Host
	}
	return ""
}

// attachToNode creates an attachment, records it, hands it out and completes it.
func (e nodes) attachToNode(ctx context.Context, permitted permission, v cinder.Volume, to PublishRequest) (Published, error) {
	if err := to.Admit(ctx); err != nil {
		return Published{}, err
	}
	if !stamps.EverAttached(v) {
		// From here on a node may have the volume.
		if err := e.updateMetadata(ctx, permitted, v.ID, stamps.AttachedMark()); err != nil {
			return Published{}, err
		}
	}
	id, document, err := e.createAttachment(ctx, permitted, v, to.Connector, to.ReadOnly)
	if err != nil || id == "" {
		return Published{}, err
	}
	published := Published{Volume: v, AttachmentID: id, Document: document, ReadOnly: to.ReadOnly}
	if err := e.handOutNew(ctx, permitted, v, published, to); err != nil {
		// The next call must find the attachment.
		_ = e.session.wait(context.WithoutCancel(ctx), e.session.readLag)
		return Published{}, err
	}
	e.expect(published.AttachmentID, v.ID)
	return published, nil
}

// handOutNew records an attachment, hands it out, and completes it.
func (e nodes) handOutNew(ctx context.Context, permitted permission, v cinder.Volume, made Published, to PublishRequest) error {
	if err := e.writeRecord(ctx, permitted, v, to.Key, stamps.NodeRecord{AttachmentID: made.AttachmentID, Node: to.Node, ReadOnly: to.ReadOnly}); err != nil {
		return err
	}
	if err := to.HandOut(ctx, made); err != nil {
		return err
	}
	return e.completeOne(ctx, permitted, made.AttachmentID)
}

// UnpublishRequest is the request to detach a volume from one node, or from all.
type UnpublishRequest struct {
	// Node is the node's name, and Key its short form in the volume's metadata. If both
	// are empty, Unpublish detaches the volume from all nodes.
	Node, Key string
	// Others are the keys of other nodes that the volume stays attached to.
	Others []string
	// Attached means that Kubernetes shows the volume as attached to the node, so an
	// unrecorded completed attachment may be the node's. Otherwise Unpublish leaves such
	// an attachment alone, because another program may have created it.
	Attached bool
}

// Unpublish detaches a volume of mode csi from a node, or from all. It deletes the
// attachment, and with it the node's access at the array, and clears the record. It also
// deletes unrecorded attachments that no other node is known to have. It does not trust a
// record alone: it deletes only attachments that Cinder shows as this volume's. A missing
// volume or attachment counts as detached. After any other failure, the node may still
// have access.
func (l *Lifecycle) Unpublish(ctx context.Context, target Target, from UnpublishRequest) error {
	return l.serialized(ctx, target.key(), func(at *owners) error { return at.nodes.unpublish(ctx, target, from) })
}

func (e nodes) unpublish(ctx context.Context, target Target, from UnpublishRequest) error {
	v, err := e.ofNodes(ctx, target)
	// Another program's attachment stays, and is not the node's.
	if err != nil && !cinder.IsKind(err, KindInUse) || v.ID == "" {
		return err
	}
	permitted := target.Permit.on(ctx, v)
	records := stamps.NodeRecordsOf(v)
	attached := v.Attachments
	unknown := v.Status != cinder.StatusAvailable && !onlyRecorded(v, records)
	if unknown || v.Status == cinder.StatusAvailable && len(records) > 0 {
		if attached, err = e.attachments(ctx, v); err != nil && !cinder.IsKind(err, KindInUse) {
			return err
		}
	}
	hadAttachment := isAmong(attached, records[from.Key].AttachmentID)
	_, recorded := records[from.Key]
	settled := map[string]bool{} // attachments that have ended, or belong to another program
	for _, of := range slices.Sorted(maps.Keys(records)) {
		if from.Key != "" && of != from.Key {
			continue
		}
		// The metadata of a restored backup names attachments of the original volume.
		if id := records[of].AttachmentID; isAmong(attached, id) {
			if err := e.endAttachment(ctx, permitted, v.ID, id); err != nil {
				return err
			}
			settled[id] = true
		}
		err := e.clearRecord(ctx, permitted, v, of)
		if cinder.IsKind(err, cinder.KindNotFound) {
			// The volume has gone meanwhile, or is no longer shown.
			return e.goneFromNodes(ctx, target)
		}
		if err != nil {
			return err
		}
		delete(records, of)
	}
	if !unknown {
		return nil
	}
	for _, a := range slices.Concat(v.Attachments, attached) {
		settled[a.ID] = settled[a.ID] || !target.attachedBy(a)
	}
	for _, a := range attached {
		if settled[a.ID] || records.Name(a.ID) {
			continue
		}
		if other := unrecorded(from.Others, records); other && a.Status == cinder.AttachmentAttached && hostOf(v, a.ID) == "" {
			if hadAttachment {
				continue // another node's: it has an attachment, and no record says which
			}
			return e.failure(cinder.KindConflict, "volume %s has attachment %s, and no record says whether node %s or another one has it; it is removed when the volume is detached from the others", v.ID, a.ID, from.Node)
		}
		switch host := hostOf(v, a.ID); {
		case from.Key != "" && host != "" && host != stamps.NodeHost(from.Node, e.cluster):
			continue // another node's, whose record was lost
		case host == "" && a.Status == cinder.AttachmentAttached && !from.Attached && !recorded:
			continue // another program's; the audit reports it
		}
		if err := e.endAttachment(ctx, permitted, v.ID, a.ID); err != nil {
			return err
		}
	}
	return nil
}

// isAmong reports whether an attachment is one of several.
func isAmong(attachments []cinder.Attachment, id string) bool {
	return slices.ContainsFunc(attachments, func(a cinder.Attachment) bool { return a.ID == id })
}

// unrecorded reports whether any of the keys' nodes has no record.
func unrecorded(keys []string, records stamps.NodeRecords) bool {
	return slices.ContainsFunc(keys, func(key string) bool { _, found := records[key]; return !found })
}

// goneFromNodes returns nil if the volume is gone.
func (e nodes) goneFromNodes(ctx context.Context, target Target) error {
	v, err := e.ofNodes(ctx, target)
	if err == nil && v.ID != "" {
		return e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", v.ID)
	}
	return err
}

// onlyRecorded reports whether the volume is in use and its completed attachments, as its
// document shows them, are exactly the recorded ones.
func onlyRecorded(v cinder.Volume, records stamps.NodeRecords) bool {
	if v.Status != cinder.StatusInUse || len(v.Attachments) != len(records) {
		return false
	}
	return !slices.ContainsFunc(v.Attachments, func(a cinder.Attachment) bool { return !records.Name(a.ID) })
}

func (e nodes) writeRecord(ctx context.Context, permitted permission, v cinder.Volume, key string, record stamps.NodeRecord) error {
	return e.updateMetadata(ctx, permitted, v.ID, map[string]string{stamps.NodeRecordPrefix + key: record.String()})
}

// clearRecord clears a node's record. It deletes the key; otherwise a volume would
// accumulate one for each node that ever had it.
func (e nodes) clearRecord(ctx context.Context, permitted permission, v cinder.Volume, key string) error {
	if _, exists := v.Metadata[stamps.NodeRecordPrefix+key]; !exists {
		return nil
	}
	err := change(ctx, e.session, permitted, func(ctx context.Context, client nodeRequests) error {
		return client.DeleteMetadata(ctx, v.ID, stamps.NodeRecordPrefix+key)
	})
	if cinder.IsKind(err, cinder.KindNotFound) {
		// If the volume exists, an earlier request deleted the key, and its answer was
		// lost.
		_, err = e.get(ctx, v.ID)
	}
	return err
}
