package backends

import (
	"context"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// importForNodes stamps a volume for the CSI driver. Each node gets its own attachment
// later, so the volume is not reserved and stays available: in any other state, another
// party has it, regardless of the stamp.
func (e importer) importForNodes(ctx context.Context, v cinder.Volume, spec Import) (Connected, error) {
	if !spec.Stamp.Holds(v) || !stamps.IsCSI(v) || len(unrecordedUUIDs(v, spec.FilesystemUUIDs)) > 0 {
		var err error
		if v, err = e.writeStamp(ctx, v, spec); err != nil {
			return Connected{}, err
		}
	}
	// Without a reservation, only rereading the stamp shows which of two clusters has the
	// volume. Only that one can attach it.
	if err := e.stampedFor(v, spec); err != nil {
		return Connected{}, err
	}
	if err := e.freeOfNodes(v); err != nil {
		return Connected{}, err
	}
	// Recording it later then needs no read of the volume.
	e.known.See(v.ID, v)
	return Connected{Volume: v}, nil
}

// freeOfNodes returns an error if a volume that is, or is meant, for the CSI driver is not
// available: its attachment belongs to one node, and Cinder may not show which.
func (e importer) freeOfNodes(v cinder.Volume) error {
	records := stamps.NodeRecordsOf(v)
	switch {
	case v.Status != cinder.StatusAvailable && stamps.IsCSI(v) && len(records) > 0:
		var nodes []string
		for _, record := range records {
			nodes = append(nodes, record.Node)
		}
		return e.failure(KindInUse, "volume %s (mode csi) is %s and recorded as attached to node %s; detach it there first", v.ID, v.Status, strings.Join(slices.Sorted(slices.Values(nodes)), ", "))
	case v.Status != cinder.StatusAvailable && stamps.IsCSI(v):
		return e.failure(KindInUse, "volume %s (mode csi) is %s, so a node may have it; detach it there first", v.ID, v.Status)
	case v.Status != cinder.StatusAvailable || len(v.Attachments) > 0:
		// Only a connection shows which nodes use a native volume, and a reserved volume
		// does not show for whom.
		return e.failure(cinder.KindConflict, "volume %s is %s and has %d attachments, but only an available volume without any can be imported in mode csi; detach it first, or import it in mode native", v.ID, v.Status, len(v.Attachments))
	}
	return nil
}

// unattached returns an error if Cinder lists an attachment of a volume. The volume's own
// document shows only completed ones, and an administrator may have set the status.
func (e importer) unattached(ctx context.Context, v cinder.Volume) error {
	listed, err := e.attachments(ctx, v)
	if err != nil {
		return err
	}
	if len(listed) == 0 {
		return nil
	}
	for _, record := range stamps.NodeRecordsOf(v) {
		if isAmong(listed, record.AttachmentID) {
			return e.failure(KindInUse, "volume %s is %s but has attachment %s of node %s; detach it there first", v.ID, v.Status, record.AttachmentID, record.Node)
		}
	}
	return e.failure(KindInUse, "volume %s is %s but has attachment %s, and no record names its node; if no node has it, delete the attachment", v.ID, v.Status, listed[0].ID)
}

// describeForNodes adds the metadata that a volume for the CSI driver carries besides its
// stamp.
func (spec Import) describeForNodes(v cinder.Volume, metadata map[string]string) {
	metadata[stamps.KeyMode] = stamps.ModeCSI
	metadata[stamps.KeyWorkflow] = string(cinder.WorkflowAttachment)
	// No attachment is left, so the records of nodes are from interrupted calls, or came
	// with a backup.
	for key, value := range v.Metadata {
		if value != "" && (strings.HasPrefix(key, stamps.NodeRecordPrefix) || strings.HasPrefix(key, stamps.EarlierNodeRecordPrefix)) {
			metadata[key] = ""
		}
	}
	if added := unrecordedUUIDs(v, spec.FilesystemUUIDs); len(added) > 0 {
		stamps.RecordFilesystems(metadata, append(stamps.FilesystemUUIDsOf(v), added...))
	}
}

// unrecordedUUIDs returns the UUIDs that a volume's metadata lacks.
func unrecordedUUIDs(v cinder.Volume, uuids []string) []string {
	recorded := stamps.FilesystemUUIDsOf(v)
	return slices.DeleteFunc(slices.Clone(uuids), func(id string) bool { return slices.Contains(recorded, id) })
}

func (e *endpoint) needsAttachments() error {
	return e.failure(cinder.KindConfig, "mode csi needs the attachments API, which the endpoint does not offer; use mode native")
}
