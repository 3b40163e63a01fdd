package provisioner

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// attempts provisions claims.
type attempts struct {
	*claims
	orphans  *orphans
	rates    *tenantRates
	backends Backends
	mappers  *mappers.Registry
	// nodesRefuse is Options.NodesRefuse.
	nodesRefuse func(backend, volumeType string) error
	metrics     *Metrics
	tracer      tracing.Tracer
}

// Provision creates or adopts the volume of a claim and returns the PersistentVolume for
// it. An earlier attempt, by this leader or another, may have completed any of its steps.
//
// It always reports ProvisioningFinished, although a volume may exist: the journal and
// Cinder remember what an unfinished attempt leaves behind, whereas the library's memory
// ends with the process.
func (a *attempts) Provision(ctx context.Context, options controller.ProvisionOptions) (pv *corev1.PersistentVolume, _ controller.ProvisioningState, err error) {
	claim := options.PVC
	defer a.cleanUpIfGone(claim)
	a.parkedClaims.loop.Make(ctx, string(claim.UID), "the worker of claim "+claim.Namespace+"/"+claim.Name, func(ctx context.Context, turn *turn) (outcome worker.Outcome) {
		one := &attempt{attempts: a, turn: turn, claim: claim, class: options.StorageClass, pvName: options.PVName, started: time.Now()}
		ctx, one.requests = requestids.WithRequestIDs(ctx)
		ctx, span := a.tracer.Start(ctx, string(claim.UID), "provision", tracing.Namespace.String(claim.Namespace), tracing.Claim.String(claim.Name))
		pv, err = one.run(ctx)
		span.Note(tracing.Tenant.String(one.decision.Tenant), tracing.Backend.String(one.backend), tracing.Volume.String(one.made.ID))
		endSpan(span, err)
		outcome, err = a.settle(one, one.started, err)
		return outcome
	})
	return pv, controller.ProvisioningFinished, err
}

// attempt is one try to provision one claim.
type attempt struct {
	*attempts
	turn    *turn
	claim   *corev1.PersistentVolumeClaim
	class   *storagev1.StorageClass
	pvName  string
	started time.Time

	decision ledger.Decided
	backend  string
	// passedOver explains why the rule's earlier backends were not chosen.
	passedOver []ledger.PassedOver
	protocol   string
	stamp      stamps.Volume
	connector  cinder.Connector
	// source is where the volume's content is copied from; zero for an empty volume.
	source objects.Source
	// made is the volume, once connected.
	made     cinder.Volume
	requests *requestids.RequestIDs
	// goesOn means that Cinder could not create the volume but another location can be
	// tried at once; rescheduled means that the scheduler picks another node instead.
	goesOn, rescheduled bool
}

// run takes a claim through all steps of an attempt.
func (a *attempt) run(ctx context.Context) (pv *corev1.PersistentVolume, err error) {
	if err := a.stillWanted(); err != nil {
		return nil, err
	}
	if err := a.decide(ctx, a.askerOf(a.claim)); err != nil {
		return nil, err
	}
	if err := a.takeTurn(); err != nil {
		return nil, err
	}
	ctx = a.rates.OnBehalfOf(ctx, a.decision.Tenant)
	volumes, err := a.chooseBackend(ctx)
	if err != nil {
		return nil, err
	}
	if first := a.journal.Begin(a.claim.UID, journal.Beginning{Backend: a.backend, Stamp: a.stamp, Connector: a.connector}); first {
		a.recorder.Eventf(a.claim, corev1.EventTypeNormal, "BackendChosen", "tenant %s, rule %s: %d GiB on backend %s%s%s",
			a.decision.Tenant, a.decision.Rule, a.decision.Volume.SizeGiB, a.backend, a.zoneText(), placement.PassedOverText(a.decision.Decision, slices.Concat(a.failedBefore(), a.passedOver)))
	}
	// If the claim was deleted before the journal had this attempt, claimGone found
	// nothing to undo. If it is deleted now, claimGone may run before anything is
	// created. Either way, this attempt must undo what it created.
	defer func() {
		if err != nil {
			err = a.undoIfGone(ctx, err)
		}
	}()
	if err := a.stillWanted(); err != nil {
		return nil, err
	}
	if err := a.checkUnrecorded(ctx); err != nil {
		return nil, err
	}
	if err := a.checkClaimExists(ctx); err != nil {
		return nil, err
	}
	if err := a.sources.Confirm(ctx, a.claim, a.askerOf(a.claim)); err != nil {
		return nil, err
	}
	if err := a.confirmSource(ctx); err != nil {
		return nil, err
	}
	connected, err := volumes.Connect(ctx, a.spec())
	if err != nil {
		a.releaseIfNothing(ctx)
		return nil, a.noteFailure(ctx, err)
	}
	a.made = connected.Volume
	if err := a.checkKey(ctx); err != nil {
		return nil, err
	}
	nodeLabels, err := a.nodeLabels()
	if err != nil {
		return nil, a.undoMade(ctx, err)
	}
	mapped, err := a.mapVolume(connected)
	if err == nil {
		err = a.checkHandle(mapped)
	}
	if err != nil {
		return nil, a.undoRefused(ctx, err)
	}
	var secret types.UID
	if mapped.Secret != nil {
		if secret, err = a.secrets.Keep(ctx, a.pvName, a.backend, *mapped.Secret, connected.Fresh); err != nil {
			return nil, err
		}
	}
	if err := a.stillWanted(); err != nil {
		return nil, err
	}
	for _, warning := range mapped.Warnings {
		a.recorder.Event(a.claim, corev1.EventTypeWarning, "ConnectionWarning", warning)
	}
	connector := &a.connector
	if a.isCSI() {
		connector = nil
	}
	pv = objects.NewPersistentVolume(objects.Provisioned{
		Name: a.pvName, Claim: a.claim, Class: a.class, Cluster: a.cluster,
		Tenant: a.decision.Tenant, Rule: a.decision.Rule, Revision: a.decision.Revision,
		Backend: a.backend, Connector: connector, NodeLabels: nodeLabels,
		Connected: connected, Protocol: a.protocol, Mapped: mapped, SecretNamespace: a.namespace, SecretUID: secret,
	})
	objects.Hold(pv)
	a.journal.HandOver(a.claim.UID, pv)
	a.succeeded()
	return pv, nil
}

// checkUnrecorded ends the attempt if the claim's PersistentVolume is saved but had not
// reached the cache when the library looked. Connecting again is idempotent, but if it
// fails, Cinder removes the volume's export (initialize_connection in
// cinder/volume/manager.py). The check costs a request only if an earlier attempt may
// have gotten this far.
func (a *attempt) checkUnrecorded(ctx context.Context) error {
	begun, _ := a.journal.Beginning(a.claim.UID)
	if position, _ := a.ledger.PositionOf(a.claim.UID); begun.HandedOver == nil && position.NothingSeen {
		return nil
	}
	pv, err := a.orphans.cleaner.Record(ctx, a.pvName)
	if err == nil && pv != nil {
		return errSaved
	}
	return err
}

// checkClaimExists ends the attempt if the claim is gone, even if the cache still shows
// it. If its volume has already been created and removed, another one would be an orphan.
// The check costs a request only if that is possible.
func (a *attempt) checkClaimExists(ctx context.Context) error {
	if a.placement.CreatedInTerm(a.claim) && !a.journal.HasOutlived(a.claim.UID) {
		return nil
	}
	claim, err := objects.ClaimOf(ctx, a.client, a.stamp)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return errClaimGone
	case objects.BoundElsewhere(claim):
		return errBoundToOther
	}
	return nil
}

// confirmSource reads the source of the claim from the API server and protects it. The
// decision was based on the caches, which may show a claim that was replaced.
func (a *attempt) confirmSource(ctx context.Context) error {
	source, denial, err := a.sources.Live(ctx, a.claim, a.class)
	switch {
	case err != nil:
		return err
	case denial != nil:
		return fmt.Errorf("%w: %s", errSourceChanged, denial.Message)
	case source == nil:
		return nil
	}
	decision := a.decideAbout(a.claim, a.class, a.askerOf(a.claim), source)
	if decision.Denial != nil || decision.Tenant != a.decision.Tenant || !slices.Contains(decision.Backends, a.backend) {
		return errSourceChanged
	}
	a.source = *source
	return nil
}

// stillWanted returns errClaimGone if the claim was deleted or replaced after the library
// queued it, and another error if it needs no volume, or another one.
func (a *attempt) stillWanted() error {
	current, err := a.cachedClaims.PersistentVolumeClaims(a.claim.Namespace).Get(a.claim.Name)
	switch {
	case apierrors.IsNotFound(err) || err == nil && (current.UID != a.claim.UID || current.DeletionTimestamp != nil):
		return errClaimGone
	case err == nil && objects.BoundElsewhere(current):
		return errBoundToOther
	case err == nil && a.isImport(current):
		a.leaveToImport(current)
		return errImport
	case err == nil && !reflect.DeepEqual(admission.AttributesOf(current), admission.AttributesOf(a.claim)):
		return errAttributesChanged
	}
	return err
}

// decide applies the policy. If the claim is no longer admitted, it undoes what was
// begun.
func (a *attempt) decide(ctx context.Context, by copies.Asker) error {
	a.decision = a.attempts.decide(a.claim, a.class, by)
	if a.decision.Denial != nil {
		if err := a.undoBegun(ctx); err != nil {
			return err
		}
		a.denyOnNode(ctx, a.turn, a.claim, a.class, a.denialOf(a.claim, a.class, a.decision))
		return errDenied
	}
	a.stamp = stamps.Volume{
		Cluster:      a.cluster,
		ClusterUID:   a.clusterUID,
		Namespace:    a.claim.Namespace,
		Claim:        a.claim.Name,
		ClaimUID:     string(a.claim.UID),
		PV:           a.pvName,
		Tenant:       a.decision.Tenant,
		StorageClass: a.class.Name,
	}
	return nil
}

// takeTurn starts the claim's turn, which counts against the first candidate backend
// until one is chosen.
func (a *attempt) takeTurn() error {
	if !a.turn.Begin(a.decision.Tenant, a.backendFor(a.claim.UID, a.decision)) {
		a.parkedClaims.lot.Park(a.claim, parking.Waiting)
		return errNoTurn
	}
	a.parkedClaims.lot.Take(a.claim.UID, parking.Waiting)
	return nil
}

func (a *attempt) health() error { return a.placement.Health(a.backend) }

// succeeded forgets why the claim waited and logs to the audit trail.
func (a *attempt) succeeded() {
	a.parkedClaims.lot.Forget(a.claim.UID)
	a.placement.Forget(a.claim.UID)
	a.reschedules.Forget(a.claim.UID)
	a.logger.Info("Provisioned a volume", "tenant", a.decision.Tenant, "claim", a.claim.Namespace+"/"+a.claim.Name, "claimUID", a.claim.UID,
		"persistentVolume", a.pvName, "backend", a.backend, "volume", a.made.ID, "protocol", a.protocol, "sizeGiB", a.made.SizeGiB, "requestID", a.requests.OfCreate(), "durationSeconds", time.Since(a.started).Seconds())
}

func (a *attempt) observe(outcome string, took time.Duration) {
	a.metrics.provisioned(a.backend, a.protocol, outcome, took)
}

// setAside moves a claim to another location at once if Cinder could not create its
// volume, and to another backend if Cinder's own quota on this one is full. If the
// backend does not answer, settle parks the claim until it does.
func (a *attempt) setAside(err error) (outcome string, isSetAside bool) {
	if a.goesOn {
		a.parkedClaims.requeue(a.claim.UID)
	}
	if a.goesOn || a.rescheduled {
		return retry.For(err).Outcome, true
	}
	if !cinder.IsKind(err, cinder.KindOverQuota) || a.placement.Health(a.backend) != nil {
		return "", false
	}
	a.placement.NoteFull(a.backend, a.decision.Volume, err)
	if !a.placement.CouldGoElsewhere(a.claim.UID, a.decision) {
		return "", false
	}
	a.parkedClaims.requeue(a.claim.UID)
	return "", true
}

func (a *attempt) parkForBackend(unhealthy error) {
	passedOver := []ledger.PassedOver{{Backend: a.backend, Why: unhealthy.Error()}}
	a.deny(a.turn, a.claim, *a.placement.Unavailable(passedOver, a.decision.Backends))
}

func (a *attempt) parkForRetry(failure error) {
	a.placement.Forget(a.claim.UID)
	a.parkedClaims.lot.NoteFailure(a.claim.UID, failure.Error())
	a.parkedClaims.park(a.turn, a.claim, parking.Failing, a.triggers())
}

// triggers lists what may unblock a failed attempt.
func (a *attempt) triggers() []parking.Trigger {
	triggers := []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Class, Name: a.class.Name}}
	for _, name := range append([]string{a.backend}, a.decision.Backends...) {
		triggers = append(triggers, parking.Trigger{Kind: parking.Backend, Name: name}, parking.Trigger{Kind: parking.Credentials, Name: name})
	}
	return triggers
}

// maxDecisions bounds how often policy and labels may change during an attempt.
const maxDecisions = 5

// chooseBackend reserves room on a backend. Choosing may take a while, so it then
// rechecks everything that the decision is based on.
func (a *attempt) chooseBackend(ctx context.Context) (Unrecorded, error) {
	for range maxDecisions {
		if a.denyGivenAway(a.turn, a.claim) {
			return nil, errDenied
		}
		if err := a.undoMisplaced(ctx); err != nil {
			return nil, err
		}
		chosen, err := a.choose(ctx, a.claim, a.class.Name, a.decision)
		if err != nil && !errors.Is(err, ledger.ErrPolicyChanged) {
			return nil, err
		}
		if position, _ := a.ledger.PositionOf(a.claim.UID); position.Imported {
			// An import has reserved the room, perhaps in an earlier term.
			a.leaveToImport(a.claim)
			return nil, errImport
		}
		if a.denyGivenAway(a.turn, a.claim) {
			// Choosing has counted the backend.
			return nil, errDenied
		}
		if chosen.Denial != nil {
			a.deny(a.turn, a.claim, *chosen.Denial)
			return nil, errDenied
		}
		stands, confirmErr := a.confirm(ctx)
		if confirmErr != nil {
			return nil, confirmErr
		}
		if err != nil || !stands || a.isMisplaced() {
			continue
		}
		a.backend, a.passedOver = chosen.Backend, chosen.PassedOver
		a.parkedClaims.admitted(a.claim.UID)
		a.turn.Begin(a.decision.Tenant, a.backend)
		if a.connector, err = a.backends.Connector(a.backend); err != nil {
			return nil, err
		}
		return a.backends.Unrecorded(a.backend)
	}
	return nil, fmt.Errorf("the policy or the namespace's labels changed %d times while a backend was being chosen", maxDecisions)
}

// confirm decides again, and reports whether tenant, rule and policy are still the same.
// If labels assign the namespace to the tenant, it reads them from the API server: the
// cache may still show removed labels, or a namespace that another user has since
// recreated.
func (a *attempt) confirm(ctx context.Context) (stands bool, err error) {
	before := a.decision
	by := a.askerOf(a.claim)
	if a.selectsByLabels(before.Tenant) {
		if by.Labels, err = a.askerLabelsNow(ctx, by); err != nil {
			return false, err
		}
	}
	if err := a.decide(ctx, by); err != nil {
		return false, err
	}
	return a.decision.Tenant == before.Tenant && a.decision.Rule == before.Rule && a.decision.Revision == before.Revision, nil
}

func (a *attempt) spec() backends.Spec {
	volume := a.decision.VolumeOn(a.backend)
	zones, _ := a.decision.PlacementOn(a.backend)
	return backends.Spec{
		// The name is for humans; the stamp identifies the volume.
		Name:      a.pvName,
		SizeGiB:   volume.SizeGiB,
		Type:      volume.Type,
		Zone:      volume.AvailabilityZone,
		Zones:     zones.Names(),
		Metadata:  volume.Metadata,
		Stamp:     a.stamp,
		Connector: a.connector,
		ReadOnly:  objects.AllReadOnly(a.claim.Spec.AccessModes),
		Block:     objects.IsBlock(a.claim),
		Source:    a.source.Content,
		CSI:       volume.Mode == policy.ModeCSI,

		FilesystemUUIDs: a.source.FilesystemUUIDs,
		NewKey:          a.newKey(volume.Encrypt),

		Permit: a.orphans.cleaner.Permit(a.orphans.cleaner.IsUnrecorded),
	}
}

// isCSI reports whether the CSI driver will attach the volume to nodes.
func (a *attempt) isCSI() bool { return a.decision.ModeOn(a.backend) == policy.ModeCSI }

// mapVolume returns how nodes reach the volume: through its connection or through the CSI
// driver.
func (a *attempt) mapVolume(connected backends.Connected) (mappers.Result, error) {
	if !a.isCSI() {
		return a.mapConnection(connected)
	}
	a.protocol = objects.ProtocolCSI
	encrypted := a.keyOrigin()
	if encrypted != "" && connected.Volume.Encrypted {
		return mappers.Result{}, mappers.EncryptedTwice(connected.Volume.Type)
	}
	if a.nodesRefuse != nil {
		if err := a.nodesRefuse(a.backend, connected.Volume.Type); err != nil {
			return mappers.Result{}, err
		}
	}
	return objects.MapCSI(objects.CSIVolume{
		PVName: a.pvName, Backend: a.backend, VolumeID: connected.Volume.ID, SecretNamespace: a.namespace,
		AccessModes: a.claim.Spec.AccessModes, Block: objects.IsBlock(a.claim), FSType: a.decision.Volume.FSType,
		FilesystemUUIDs: a.source.FilesystemUUIDs, NeverFormat: a.source.NeverFormat,
		Encrypted: encrypted, MultiAttach: connected.Volume.MultiAttach,
	})
}

func (a *attempt) mapConnection(connected backends.Connected) (mappers.Result, error) {
	connection, err := mappers.ParseConnection(connected.Document)
	if err != nil {
		return mappers.Result{}, err
	}
	a.protocol = connection.Protocol()
	request := objects.MapClaimRequest(connection, a.pvName, a.connector, a.claim, connected.Volume)
	request.FSType = a.decision.Volume.FSType
	request.MountOptions = a.class.MountOptions
	if a.source.Content != (backends.Source{}) {
		request.SourceGiB = a.source.Decided.SizeGiB
	}
	request.Backend = a.backend
	request.Mappings = a.backends.Mappings(a.backend)
	request.Tenant = a.decision.Tenant
	return a.mappers.Map(request)
}

// checkHandle rejects a volume that nodes would confuse with another one. The cache shows
// saved PersistentVolumes, the journal those about to be saved. This claim's own
// PersistentVolume does not count, because an earlier attempt may have saved it.
func (a *attempt) checkHandle(mapped mappers.Result) error {
	csi := mapped.Source.CSI
	if csi == nil {
		return nil
	}
	holder := a.journal.ReserveHandle(a.claim.UID, journal.Handle{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle})
	if holder != "" {
		return mappers.HandleTaken(a.protocol, csi, objects.PVNameFor(string(holder)))
	}
	if taken := objects.OtherByHandle(a.records, mapped.Source, a.pvName); taken != "" {
		return mappers.HandleTaken(a.protocol, csi, taken)
	}
	return nil
}
