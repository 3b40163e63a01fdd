package backends

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/steps"
)

// Spec is the volume that a claim wants.
type Spec struct {
	Name    string // derived from the claim's UID
	SizeGiB int64
	Type    string
	Zone    string
	// Zones are where an earlier attempt's volume, or the source, may be. If there are
	// none, a volume must have been requested in Zone, and a source may be in any zone.
	Zones []string
	// Source is where the content is copied from; zero for an empty volume.
	Source    Source
	Metadata  map[string]string // the operator's; the stamp is added
	Stamp     stamps.Volume
	Connector cinder.Connector
	// ReadOnly requests a connection that does not allow writes.
	ReadOnly bool
	// Block means that the claim's pods get the volume as a raw device.
	Block bool
	// CSI requests a volume for the CSI driver: Connect waits until it is available and
	// does not connect it.
	CSI bool
	// NewKey makes the record of a new volume's key, if nodes are to encrypt the volume; nil
	// if they are not. A copy inherits its source's record. The record is part of the create
	// request, so a volume has either its key, or none ever; see stamps.KeyEncryption.
	NewKey func(ctx context.Context) (stamps.EncryptionRecord, error)
	// FilesystemUUIDs are those that a copy's filesystem may have. In mode csi, the
	// volume records them: once its PersistentVolume is gone, they are stored nowhere
	// else.
	FilesystemUUIDs []string
	// Permit is called before a volume of the claim is removed because it failed or
	// because another one is kept; nil permits every removal.
	Permit Permit
}

// request returns the part of the spec that determines how a volume is created, in a form
// for comparison and for humans. Cinder may create something else: arrays round sizes up,
// the type may be given by its ID, and zone and type may be left to defaults. So a
// request is compared with a request, never with the volume.
func (s Spec) request() string {
	request := fmt.Sprintf("%d GiB, type %q, zone %q%s", s.SizeGiB, s.Type, s.Zone, s.Source)
	if len(request) > stamps.LongestValue {
		return fingerprint.Of(request)
	}
	return request
}

// requestedIn reports whether a volume was requested as the spec requests it, and in
// which zone. Volumes of earlier versions do not record their request, and Cinder has
// dropped that of a volume restored from a backup.
func (s Spec) requestedIn(v cinder.Volume) (zone string, fits bool) {
	if stamps.IsUnstamped(v) {
		return s.Zone, true
	}
	if _, encrypted := v.Metadata[stamps.KeyEncryption]; stamps.IsCSI(v) != s.CSI || encrypted != (s.NewKey != nil) {
		return "", false
	}
	request, known := v.Metadata[stamps.KeyRequest]
	if !known || request == s.request() {
		return s.Zone, true
	}
	for _, zone := range s.Zones {
		s.Zone = zone
		if request == s.request() {
			return zone, true
		}
	}
	return "", false
}

// Connected is a volume and how a node reaches it. A volume for the CSI driver has no
// document: each node gets its own when the volume is attached to it.
type Connected struct {
	Volume cinder.Volume
	// Document is Cinder's connection document; it may contain credentials.
	Document []byte
	// Fresh means that Cinder has just written the document. Otherwise it is the one
	// stored with the attachment, and its credentials may be outdated.
	Fresh bool
	// AttachmentID is the attachment's ID; empty with the volume actions.
	AttachmentID string
	// Place is where the volume lives.
	Place cinder.Place
}

// Connect brings the claim's volume to the state in which its connection is known or, for
// the CSI driver, to the state in which it is available. It creates the volume if there
// is none, and otherwise adopts what an earlier attempt left. The volume does not reach
// in-use: Complete takes that step after the PersistentVolume is recorded, so "attaching
// or earlier" proves that the volume was never recorded.
func (l *Lifecycle) Connect(ctx context.Context, spec Spec) (Connected, error) {
	return serialized(ctx, l, spec.Stamp.ClaimUID, func(at *owners) (Connected, error) {
		return at.placed(at.maker.connect(ctx, spec))
	})
}

// placed adds the volume's place to the result.
func (e *endpoint) placed(connected Connected, err error) (Connected, error) {
	if err != nil {
		return Connected{}, err
	}
	connected.Place = e.place()
	return connected, nil
}

// maker creates and connects a claim's volume.
type maker struct {
	finder
	backups *snapshots
}

type makingRequests interface {
	volumeRequests
	CreateVolume(ctx context.Context, request cinder.NewVolume) (cinder.Volume, error)
	FailureReason(ctx context.Context, id string) string
	ReplaceMetadata(ctx context.Context, id string, metadata map[string]string) error
}

func (e maker) connect(ctx context.Context, spec Spec) (Connected, error) {
	v, err := e.look(ctx, spec.Stamp, spec.Connector, spec.Permit)
	if err != nil {
		return Connected{}, err
	}
	requested := false
	for range maxMoves {
		if stamps.IsUnstamped(v) && v.Status == cinder.StatusAvailable {
			if v, err = e.stampAgain(ctx, v, spec); err != nil {
				return Connected{}, err
			}
		}
		next := steps.StepToConnect(v, stamps.WorkflowOf(v))
		if spec.CSI {
			next = steps.StepToAttachable(v)
		}
		switch next {
		case steps.AwaitCreated, steps.Reserve, steps.Connect, steps.Attach, steps.None:
			if _, fits := spec.requestedIn(v); !fits {
				if v, err = e.replace(ctx, v, spec); err != nil {
					return Connected{}, err
				}
				continue
			}
			if next != steps.AwaitCreated && v.SizeGiB < spec.SizeGiB {
				return Connected{}, e.failure(cinder.KindConflict, "volume %s has %d GiB, but the claim requests %d GiB", v.ID, v.SizeGiB, spec.SizeGiB)
			}
		}
		switch next {
		case steps.Create:
			v, err = e.create(ctx, spec)
			requested = true
		case steps.AwaitCreated:
			if backup := spec.Source.backupID(); backup != "" && !requested {
				return Connected{}, e.restoring(v, backup)
			}
			v, err = e.awaitCreated(ctx, v, spec)
		case steps.Reserve:
			v, err = e.reserve(ctx, v)
		case steps.Connect:
			return e.initialize(ctx, v, spec.Connector)
		case steps.Attach:
			var connected Connected
			if connected, err = e.openAttachment(ctx, v, spec.Connector, spec.ReadOnly); err == nil && connected.Document != nil {
				return connected, nil
			}
			if err == nil {
				v, err = e.get(ctx, v.ID)
			}
		case steps.None:
			// Recording it later then needs no read of the volume.
			e.known.See(v.ID, v)
			return Connected{Volume: v}, nil
		case steps.Discard:
			return Connected{}, e.discard(ctx, v, spec)
		case steps.AwaitGone:
			if err = e.awaitGone(ctx, v.ID, false); err == nil {
				v, err = e.lookAgain(ctx, v.ID, spec)
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

// initialize requests the connection of a volume that is attaching, or that a
// PersistentVolume of the same claim once brought into use. It rejects a volume that is
// attached elsewhere, which would get writes from two sides.
func (e connections) initialize(ctx context.Context, v cinder.Volume, connector cinder.Connector) (Connected, error) {
	if err := e.attachedElsewhere(v, Target{Connector: connector}); err != nil {
		return Connected{}, err
	}
	var document []byte
	e.known.See(v.ID, cinder.Volume{}) // if it fails, Cinder removes the export
	err := change(ctx, e.session, nil, func(ctx context.Context, client connectionRequests) (err error) {
		document, err = client.InitializeConnection(ctx, v.ID, connector)
		return err
	})
	if err != nil {
		return Connected{}, err
	}
	e.known.See(v.ID, v)
	return Connected{Volume: v, Document: document, Fresh: true}, nil
}

// create creates the volume. If the answer is lost, the next attempt looks for the
// volume; the request is never repeated.
func (e maker) create(ctx context.Context, spec Spec) (v cinder.Volume, err error) {
	uid := spec.Stamp.ClaimUID
	source, err := e.checkSource(ctx, spec)
	var key string
	if err == nil {
		key, err = e.keyFor(ctx, source, spec)
	}
	if err != nil {
		return cinder.Volume{}, err
	}
	// Recorded before the request is sent: a panic between effect and answer must not
	// make the volume unknown.
	e.known.Doubt(uid)
	err = change(ctx, e.session, nil, func(ctx context.Context, client makingRequests) error {
		workflow, err := client.Workflow(ctx)
		if err != nil {
			return cinder.WithoutEffect(err)
		}
		if spec.CSI && workflow != cinder.WorkflowAttachment {
			return e.needsAttachments()
		}
		metadata := spec.metadata(workflow, client.Now())
		if key != "" {
			stamps.InheritEncryption(metadata, source)
			metadata[stamps.KeyEncryption] = key
		}
		wanted := cinder.NewVolume{Name: spec.Name, SizeGiB: spec.SizeGiB, Type: spec.Type, Zone: spec.Zone, Metadata: metadata}
		switch source := spec.Source; {
		case source.Volume != nil:
			wanted.SourceVolumeID = source.Volume.VolumeID
		case source.backupID() != "":
			wanted.BackupID, wanted.Description = source.backupID(), spec.Stamp.RestoredFrom(source.backupID())
		case source.Snapshot != nil:
			wanted.SnapshotID = source.Snapshot.SnapshotID
		}
		v, err = client.CreateVolume(ctx, wanted)
		return err
	})
	if e.created(uid, v.ID, err) {
		e.answerLost()
	}
	if err != nil {
		return cinder.Volume{}, err
	}
	return v, e.correctRequestTime(ctx, v)
}

// metadata returns the metadata of a new volume, without the record of a key.
func (s Spec) metadata(workflow cinder.Workflow, requested time.Time) map[string]string {
	metadata := s.Stamp.Metadata(s.Metadata)
	metadata[stamps.KeyRequest] = s.request()
	metadata[stamps.KeyRequestedAt] = requested.UTC().Format(time.RFC3339)
	if workflow == cinder.WorkflowAttachment {
		metadata[stamps.KeyWorkflow] = string(workflow)
	}
	if s.Block {
		metadata[stamps.KeyVolumeMode] = stamps.VolumeModeBlock
	}
	if s.CSI {
		metadata[stamps.KeyMode] = stamps.ModeCSI
		stamps.RecordFilesystems(metadata, s.FilesystemUUIDs)
	}
	return metadata
}

// stampAgain writes the stamp on a volume that Cinder restored from a backup, together with
// the metadata of the volume that was backed up; see stamps.Settled. The encryption of a
// source is refused, so there is no record of a key. The request replaces all metadata: if
// an earlier one arrived after the volume came into use, the mark of that would be lost.
func (e maker) stampAgain(ctx context.Context, v cinder.Volume, spec Spec) (cinder.Volume, error) {
	if at, lost := e.stamping.Load(v.ID); lost && time.Since(at.(time.Time)) < lateStamp {
		return cinder.Volume{}, e.failure(cinder.KindConflict, "volume %s was restored from a backup; waiting until the request to stamp it again, whose answer was lost, has arrived", v.ID)
	}
	err := change(ctx, e.session, nil, func(ctx context.Context, client makingRequests) error {
		workflow, err := client.Workflow(ctx)
		if err != nil {
			return cinder.WithoutEffect(err)
		}
		metadata := spec.metadata(workflow, v.CreatedAt)
		metadata[stamps.KeyStampedAt] = time.Now().UTC().Format(time.RFC3339)
		return client.ReplaceMetadata(ctx, v.ID, metadata)
	})
	if failed, ok := errors.AsType[*cinder.Error](err); ok && failed.EffectUnknown {
		e.stamping.Store(v.ID, time.Now())
	}
	if err != nil {
		return cinder.Volume{}, fmt.Errorf("volume %s was restored from a backup and cannot be stamped again: %w", v.ID, err)
	}
	e.stamping.Delete(v.ID)
	return e.get(ctx, v.ID)
}

// lateStamp is how long a request to stamp a restored volume may be under way.
const lateStamp = 2 * time.Minute

// correctRequestTime corrects the request time on a volume that looks like a copy in the
// answer to its own create request: the clock behind the stamp, a Date header, was wrong.
// Left alone, the volume could never be removed.
func (e maker) correctRequestTime(ctx context.Context, v cinder.Volume) error {
	if !stamps.IsCopy(v) {
		return nil
	}
	e.logger.Warn("The Date headers of the endpoint differ from Cinder's clock; fix the clock of Cinder or of the proxy in front of it", "volume", v.ID, "createdAt", v.CreatedAt, "requestedAt", v.Metadata[stamps.KeyRequestedAt])
	return e.updateMetadata(ctx, nil, v.ID, map[string]string{stamps.KeyRequestedAt: v.CreatedAt.UTC().Format(time.RFC3339)})
}

// awaitCreated waits until the volume has left `creating`, then ensures that it is the
// claim's only one.
func (e maker) awaitCreated(ctx context.Context, v cinder.Volume, spec Spec) (cinder.Volume, error) {
	stamp := spec.Stamp
	timeout, backup := e.timeouts().Create, spec.Source.backupID()
	if backup != "" {
		timeout = patience
	}
	after, gone, err := e.watcher.Await(ctx, v.ID, cinder.StatusCreating, timeout)
	if backup != "" && cinder.IsKind(err, KindTimeout) {
		err = e.restoring(v, backup)
	}
	if cinder.IsKind(err, KindNotShown) && e.otherThan(ctx, v.ID, stamp.ClaimUID, stamp.Owns) {
		return e.look(ctx, stamp, spec.Connector, spec.Permit)
	}
	if err != nil {
		return cinder.Volume{}, err
	}
	if gone {
		return e.lookAgain(ctx, v.ID, spec)
	}
	if !stamp.Owns(after) {
		return cinder.Volume{}, e.lost(stamp.ClaimUID, v.ID)
	}
	rivals := e.known.RivalsOf(stamp.ClaimUID, v.ID)
	if len(rivals) == 0 {
		return after, nil
	}
	found := []cinder.Volume{after}
	for _, id := range rivals {
		found = append(found, cinder.Volume{ID: id})
	}
	chosen, err := e.keepOne(ctx, found, stamp, spec.Connector, spec.Permit)
	if err != nil {
		return cinder.Volume{}, err
	}
	e.known.Settle(stamp.ClaimUID, chosen.ID)
	return chosen, nil
}

func (e maker) restoring(v cinder.Volume, backup string) *cinder.Error {
	return e.failure(KindPending, "volume %s is being restored from backup %s, which may take hours", v.ID, backup)
}

// reserve marks the volume as being attached.
func (e connections) reserve(ctx context.Context, v cinder.Volume) (cinder.Volume, error) {
	err := change(ctx, e.session, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, v.ID) })
	if err != nil {
		return e.afterConflict(ctx, v, err)
	}
	v.Status = cinder.StatusAttaching
	return v, nil
}

// replace removes an earlier attempt's volume whose request differs from the current one,
// and returns the claim's volume after that, usually none. A volume created by this call
// matches the spec, so no call replaces its own volume.
func (e maker) replace(ctx context.Context, v cinder.Volume, spec Spec) (cinder.Volume, error) {
	made, wanted := v.Metadata[stamps.KeyRequest], spec.request()
	_, encrypted := v.Metadata[stamps.KeyEncryption]
	switch {
	case encrypted != (spec.NewKey != nil):
		made, wanted = fmt.Sprintf("%s, encrypted by nodes: %t", made, encrypted), fmt.Sprintf("%s, encrypted by nodes: %t", wanted, !encrypted)
	case spec.CSI && !stamps.IsCSI(v):
		made, wanted = made+", mode native", wanted+", mode csi"
	case !spec.CSI && stamps.IsCSI(v):
		made, wanted = made+", mode csi", wanted+", mode native"
	}
	e.logger.Info("Removing a volume of an earlier attempt: the policy now requests a different one", "volume", v.ID, "claimUID", spec.Stamp.ClaimUID, "requested", made, "wanted", wanted)
	if err := e.removeUnrecorded(ctx, v.ID, spec.Stamp, spec.Connector, spec.Permit); err != nil {
		return cinder.Volume{}, fmt.Errorf("volume %s was created for a different request (%s) than the current one (%s) and cannot be removed: %w", v.ID, made, wanted, err)
	}
	return e.lookAgain(ctx, v.ID, spec)
}

// discard deletes a volume that Cinder failed to create and reports why. The next attempt
// creates a new one.
func (e maker) discard(ctx context.Context, v cinder.Volume, spec Spec) error {
	reason := ""
	ask(ctx, e.session, func(ctx context.Context, client makingRequests) { reason = client.FailureReason(ctx, v.ID) })
	reason = cmp.Or(reason, "Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume")
	if err := e.removeUnrecorded(ctx, v.ID, spec.Stamp, spec.Connector, spec.Permit); err != nil {
		return fmt.Errorf("volume %s went to %s (%s) and cannot be removed: %w", v.ID, v.Status, reason, err)
	}
	failed := e.failure(KindVolumeFailed, "volume %s went to %s and was removed: %s", v.ID, v.Status, reason)
	zone, fits := spec.requestedIn(v)
	if v.Status != cinder.StatusError || !fits {
		// The failure says nothing about the spec.
		return failed
	}
	return &NotMadeError{Zone: zone, Reason: reason, Failure: failed}
}
