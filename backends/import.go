package backends

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/steps"
)

// Import is an existing volume at the backend for a claim.
type Import struct {
	VolumeID string
	// Stamp is the volume's new stamp.
	Stamp     stamps.Volume
	Metadata  map[string]string // the operator's
	Connector cinder.Connector
	// ReadOnly requests a connection that does not allow writes.
	ReadOnly bool
	// Block means that the claim's pods get the volume as a raw device.
	Block bool
	// Unclaimed is called before the stamp of another claim of this cluster is
	// replaced. Its error, returned unchanged, means that something still needs
	// the volume.
	Unclaimed func(ctx context.Context, v cinder.Volume) error
	// Granted is asked before the volume is stamped and before every later step, since
	// the volume's name and metadata may change at any time. It precedes all other checks,
	// whose errors reveal something about the volume; its error is returned unchanged.
	Granted func(v cinder.Volume) error
	// Unattended means that no user reads the error and decides whether to continue, and
	// that no other process runs this import. A reservation by another party is then
	// recorded on the volume, so that no later run mistakes it for its own. Contested
	// means that an earlier run met one.
	Unattended bool
	Contested  bool
	// CSI means that the volume is for the CSI driver: it is stamped, and stays available.
	CSI bool
	// FilesystemUUIDs are those that the filesystem of a volume for the CSI driver may
	// have; the volume records them.
	FilesystemUUIDs []string
}

// All lists the volumes of the backend's project, regardless of owner.
func (l *Lifecycle) All(ctx context.Context) ([]cinder.Volume, error) { return l.current().all(ctx) }

// Look reads a target's volume, regardless of owner, and returns where it looked. The
// zero Volume means that it is provably gone, and KindElsewhere that the backend may
// point to another place.
func (l *Lifecycle) Look(ctx context.Context, target Target) (cinder.Volume, cinder.Place, error) {
	e := l.current()
	v, err := e.get(ctx, target.VolumeID)
	if cinder.IsKind(err, cinder.KindNotFound) {
		return cinder.Volume{}, e.place(), e.absent(ctx, target)
	}
	return v, e.place(), err
}

// Importable returns an error unless a volume may be imported under a stamp in its
// current state: it is available and unstamped, it already carries the stamp, or it
// carries that of another claim of this cluster, which kept it. Only Kubernetes knows
// whether that claim still needs it. For the CSI driver (csi), the volume must be
// available in any case.
func (l *Lifecycle) Importable(v cinder.Volume, stamp stamps.Volume, connector cinder.Connector, csi bool) error {
	return l.current().importer.importable(v, stamp, connector, csi)
}

func (e importer) importable(v cinder.Volume, stamp stamps.Volume, connector cinder.Connector, csi bool) error {
	other := stamps.Of(v)
	switch {
	case stamp.Holds(v):
	case other.Cluster == "":
		if v.Status != cinder.StatusAvailable || len(v.Attachments) > 0 {
			return e.failure(cinder.KindConflict, "volume %s is %s and has %d attachments, but only an available volume without any can be imported; detach it first", v.ID, v.Status, len(v.Attachments))
		}
	case other.Cluster != stamp.Cluster || other.ClusterUID != "" && other.ClusterUID != stamp.ClusterUID:
		return e.failure(KindNotOurs, "volume %s carries the stamp of cluster %q, claim %s/%s; if that cluster no longer needs it, remove the stamp: openstack volume unset --property %s %s",
			v.ID, other.Cluster, other.Namespace, other.Claim, stamps.KeyCluster, v.ID)
	case other.ClusterUID == "" && other.Cluster != stamp.ClusterUID:
		return e.failure(KindNotOurs, "volume %s was made by an earlier version, whose stamps do not distinguish two clusters with the same clusterID; if no other cluster needs it, remove the stamp: openstack volume unset --property %s %s",
			v.ID, stamps.KeyCluster, v.ID)
	case !stamps.EverAttached(v) && !stamps.IsCopy(v):
		// Until it is recorded, a volume belongs to the leader's attempt, which may be
		// removing it.
		return e.failure(KindNotOurs, "volume %s was made for claim %s/%s and was never in use, so it is empty; the program or its audit will remove it", v.ID, other.Namespace, other.Claim)
	}
	if csi || stamps.IsCSI(v) && v.Status != cinder.StatusAvailable {
		return e.freeOfNodes(v)
	}
	switch v.Status {
	case cinder.StatusReserved, cinder.StatusAttaching:
		if !stamp.Holds(v) {
			// A reservation does not show who made it.
			return e.failure(cinder.KindConflict, "volume %s is %s, possibly for another program; if it is not in use, free it with: openstack volume set --state available %s", v.ID, v.Status, v.ID)
		}
		fallthrough
	case cinder.StatusAvailable, cinder.StatusInUse:
		return e.attachedElsewhere(v, Target{Connector: connector})
	}
	return e.failure(cinder.KindConflict, "volume %s is %s, which cannot be imported", v.ID, v.Status)
}

// Import stamps a volume and connects it. It may be repeated after any interruption. Like
// Connect, it leaves the step to in-use to Complete.
//
// The first request writes the whole stamp and marks the volume as recorded, so it can
// then be removed only through a PersistentVolume.
func (l *Lifecycle) Import(ctx context.Context, spec Import) (Connected, error) {
	return serialized(ctx, l, spec.Stamp.ClaimUID, func(at *owners) (Connected, error) {
		return at.placed(at.importer.importVolume(ctx, spec))
	})
}

// importer imports existing volumes.
type importer struct{ connections }

func (e importer) importVolume(ctx context.Context, spec Import) (Connected, error) {
	v, err := e.get(ctx, spec.VolumeID)
	if err != nil {
		return Connected{}, err
	}
	if spec.CSI {
		return e.importForNodes(ctx, v, spec)
	}
	// contested means that another party may also see the volume as free, since others do
	// not look at stamps.
	contested := v.Status == cinder.StatusAvailable
	if spec.Unattended && spec.Stamp.Holds(v) {
		if err := e.settleContest(ctx, v, spec); err != nil {
			return Connected{}, err
		}
	}
	if !spec.Stamp.Holds(v) || stamps.IsCSI(v) {
		if v, err = e.writeStamp(ctx, v, spec); err != nil {
			return Connected{}, err
		}
	}
	for range maxMoves {
		if contested && v.Status != cinder.StatusAvailable && spec.Stamp.Holds(v) {
			return Connected{}, e.takenAway(ctx, v, spec)
		}
		if err := e.stampedFor(v, spec); err != nil {
			return Connected{}, err
		}
		switch steps.StepToConnect(v, stamps.WorkflowOf(v)) {
		case steps.Reserve:
			v, err = e.reserveImported(ctx, v, spec, contested)
			contested = false
		case steps.Connect:
			return e.initialize(ctx, v, spec.Connector)
		case steps.Attach:
			connected, attachErr := e.openAttachment(ctx, v, spec.Connector, spec.ReadOnly)
			if attachErr != nil {
				return Connected{}, attachErr
			}
			if v, err = e.get(ctx, v.ID); err != nil {
				return Connected{}, err
			}
			if connected.Document != nil {
				return connected, e.stampedFor(v, spec)
			}
		default:
			return Connected{}, e.failure(cinder.KindConflict, "volume %s is %s; waiting for that operation to finish", v.ID, v.Status)
		}
		if err != nil {
			return Connected{}, err
		}
	}
	return Connected{}, e.failure(cinder.KindConflict, "volume %s keeps changing state; something else is modifying it", v.ID)
}

// writeStamp stamps a volume that may be imported, and returns the stamped volume.
func (e importer) writeStamp(ctx context.Context, v cinder.Volume, spec Import) (cinder.Volume, error) {
	if err := spec.Granted(v); err != nil {
		return cinder.Volume{}, err
	}
	if err := e.importable(v, spec.Stamp, spec.Connector, spec.CSI); err != nil {
		return cinder.Volume{}, err
	}
	if spec.CSI {
		if err := e.unattached(ctx, v); err != nil {
			return cinder.Volume{}, err
		}
	}
	if stamps.Of(v).Cluster != "" && !spec.Stamp.Holds(v) {
		if err := spec.Unclaimed(ctx, v); err != nil {
			return cinder.Volume{}, err
		}
	}
	err := change(ctx, e.session, nil, func(ctx context.Context, client volumeRequests) error {
		workflow, err := client.Workflow(ctx)
		if err != nil {
			return cinder.WithoutEffect(err)
		}
		metadata := spec.Stamp.Metadata(spec.Metadata)
		// Cinder keeps keys that are not written, so those of an earlier stamp are
		// overwritten.
		metadata[stamps.KeyRequest] = fmt.Sprintf("import of %d GiB", v.SizeGiB)
		metadata[stamps.KeyRequestedAt] = client.Now().UTC().Format(time.RFC3339)
		metadata[stamps.KeyWorkflow] = string(workflow)
		if v.Status != cinder.StatusAvailable {
			// The volume stays connected as it is.
			metadata[stamps.KeyWorkflow] = string(stamps.WorkflowOf(v))
		}
		metadata[stamps.KeyAttached] = stamps.AttachedMark()[stamps.KeyAttached]
		if spec.Block {
			metadata[stamps.KeyVolumeMode] = stamps.VolumeModeBlock
		}
		switch {
		case spec.CSI && workflow != cinder.WorkflowAttachment:
			return e.needsAttachments()
		case spec.CSI:
			spec.describeForNodes(v, metadata)
		case stamps.IsCSI(v):
			metadata[stamps.KeyMode] = ""
		}
		for _, key := range []string{stamps.KeyContested, stamps.KeyReboundTo} {
			if v.Metadata[key] != "" {
				metadata[key] = ""
			}
		}
		return client.UpdateMetadata(ctx, v.ID, metadata)
	})
	if err != nil {
		return cinder.Volume{}, err
	}
	return e.get(ctx, v.ID)
}

// stampedFor returns an error unless the volume is still granted, carries the stamp, and
// has not been attached by another party.
func (e importer) stampedFor(v cinder.Volume, spec Import) error {
	if err := spec.Granted(v); err != nil {
		return err
	}
	if !spec.Stamp.Holds(v) {
		other := stamps.Of(v)
		return e.failure(KindNotOurs, "volume %s was stamped for claim %s/%s of cluster %q at the same time, and is not imported", v.ID, other.Namespace, other.Claim, other.Cluster)
	}
	return e.attachedElsewhere(v, Target{Connector: spec.Connector})
}

// reserveImported reserves a volume and rereads it: Cinder lets only one party reserve
// it, and the stamp shows which. A conflict about a contested volume means that the other
// party was first; otherwise an earlier request of this import may have been.
func (e importer) reserveImported(ctx context.Context, v cinder.Volume, spec Import, contested bool) (cinder.Volume, error) {
	err := change(ctx, e.session, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, v.ID) })
	switch {
	case contested && cinder.IsKind(err, cinder.KindConflict):
		return cinder.Volume{}, e.takenAway(ctx, v, spec)
	case err != nil:
		return e.afterConflict(ctx, v, err)
	}
	return e.get(ctx, v.ID)
}

// takenAway returns the error about a volume that another party reserved between the look
// and the reservation.
func (e importer) takenAway(ctx context.Context, v cinder.Volume, spec Import) error {
	if spec.Unattended {
		return e.noteContest(ctx, v)
	}
	return e.failure(cinder.KindConflict, "volume %s was reserved while it was being imported: by another run of this import, which is fine, by another cluster, or by Nova; find out by which, and import it again only if it is free", v.ID)
}

// settleContest returns an error if another party reserved the volume during an earlier
// run. The contest is over once the volume is available again.
func (e importer) settleContest(ctx context.Context, v cinder.Volume, spec Import) error {
	noted := v.Metadata[stamps.KeyContested] != ""
	switch {
	case v.Status != cinder.StatusAvailable && noted:
		return e.contested(v)
	case v.Status != cinder.StatusAvailable && spec.Contested:
		return e.noteContest(ctx, v)
	case noted && v.Status == cinder.StatusAvailable:
		return e.updateMetadata(ctx, nil, v.ID, map[string]string{stamps.KeyContested: ""})
	}
	return nil
}

func (e importer) noteContest(ctx context.Context, v cinder.Volume) error {
	contested := e.contested(v)
	err := e.updateMetadata(ctx, nil, v.ID, map[string]string{stamps.KeyContested: "true"})
	if err != nil {
		return fmt.Errorf("%w (which could not be recorded on the volume: %s)", contested, err.Error())
	}
	return contested
}

func (e importer) contested(v cinder.Volume) error {
	return e.failure(KindContested, "volume %s was reserved by another cluster or by Nova while it was being imported; if it is not in use, free it with: openstack volume set --state available %s", v.ID, v.ID)
}

// CancelImport disconnects a volume that Import connected and that cannot be used. The
// stamp stays, and with it the proof that the volume must be kept. A volume in use stays
// connected, and one that another party reserved stays reserved. A volume for the CSI
// driver stays as it is, since Import does not connect it.
func (l *Lifecycle) CancelImport(ctx context.Context, target Target) error {
	return l.serialized(ctx, target.key(), func(at *owners) error { return at.importer.cancel(ctx, target) })
}

func (e importer) cancel(ctx context.Context, target Target) error {
	v, err := e.existing(ctx, target)
	if err != nil {
		return err
	}
	if v.Metadata[stamps.KeyContested] != "" || stamps.IsCSI(v) {
		return nil
	}
	switch steps.StepToDelete(v, stamps.WorkflowOf(v)) {
	case steps.Release:
		return e.release(ctx, nil, v, target)
	case steps.DetachAll:
		if v.Status != cinder.StatusInUse {
			return e.detachAll(ctx, nil, v, target)
		}
	}
	return nil
}

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
	var nodes []string
	for _, record := range stamps.NodeRecordsOf(v) {
		nodes = append(nodes, record.Node)
	}
	switch {
	case v.Status == cinder.StatusAvailable && len(v.Attachments) == 0:
		return nil
	case v.Status == cinder.StatusAvailable || !stamps.IsCSI(v):
		// Only a connection shows which nodes use a native volume, and a reserved volume
		// does not show for whom.
		return e.failure(cinder.KindConflict, "volume %s is %s and has %d attachments, but only an available volume without any can be imported in mode csi; detach it first, or import it in mode native", v.ID, v.Status, len(v.Attachments))
	case len(nodes) == 0:
		return e.failure(KindInUse, "volume %s (mode csi) is %s, so a node may have it; detach it there first", v.ID, v.Status)
	}
	return e.failure(KindInUse, "volume %s (mode csi) is %s and recorded as attached to node %s; detach it there first", v.ID, v.Status, strings.Join(slices.Sorted(slices.Values(nodes)), ", "))
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
		if value != "" && strings.HasPrefix(key, stamps.NodeRecordPrefix) {
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
