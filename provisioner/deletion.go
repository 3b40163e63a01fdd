package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// deletions removes the volumes of released PersistentVolumes.
type deletions struct {
	identity
	*ending
	parkedVolumes *parkedVolumes
	tasks         *tasks
	journal       *journal.Journal
	secrets       *secrets.Keeper
	placement     *placement.Placer
	rates         *tenantRates
	backends      Backends
	nodes         Nodes
	client        kubernetes.Interface
	cachedPVs     corelisters.PersistentVolumeLister
	metrics       *Metrics
	tracer        tracing.Tracer
	logger        *slog.Logger
}

// ShouldDelete keeps the library from starting a deletion while the replica is handing
// over, while the backend does not answer, and while a node uses the volume.
func (d *deletions) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	if d.stopping() || d.journal.IsDeleted(pv.UID) {
		return false
	}
	turn := d.parkedVolumes.loop.Attempt(pv.Name)
	d.parkedVolumes.lot.Take(pv.UID, parking.Blocked)
	origin, err := objects.OriginOf(pv)
	if !mayRelease(pv) || err != nil || d.journal.IsRemoved(pv.UID) {
		// The library repeats this check, or Delete reports what is wrong.
		return true
	}
	if unhealthy := d.placement.Health(origin.Backend); unhealthy != nil {
		d.parkForBackend(turn, pv, origin.Backend, unhealthy)
	} else if used := d.usedBy(pv); used != nil {
		d.parkForNodes(turn, pv, used)
	} else {
		return true
	}
	d.parkedVolumes.loop.Turns.Leave(pv.Name)
	return false
}

// mayRelease reports whether a PersistentVolume is released with the policy
// Delete.
func mayRelease(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// Delete removes everything behind a released PersistentVolume, then the object itself.
// It relies only on the PersistentVolume; the current policy plays no role. It never
// returns nil for a saved PersistentVolume, since the library would then delete the
// object again.
func (d *deletions) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.UID == "" {
		// The library could not save this object and wants its volume removed. The object
		// may be saved anyway, with only the answer lost, so the volume stays: the next
		// attempt adopts it, or finds the object.
		return nil
	}
	err := error(errObjectDeleted)
	d.parkedVolumes.loop.Make(ctx, pv.Name, "the worker that deletes PersistentVolume "+pv.Name, func(ctx context.Context, turn *turn) worker.Outcome {
		one := &deletion{deletions: d, turn: turn, pv: pv, started: time.Now()}
		ctx, one.requests = requestids.WithRequestIDs(ctx)
		ctx, span := d.tracer.Start(ctx, string(objects.MadeFor(pv)), "delete", tracing.PersistentVolume.String(pv.Name))
		failed := one.run(ctx)
		span.Note(tracing.Tenant.String(one.origin.Tenant), tracing.Backend.String(one.origin.Backend), tracing.Volume.String(one.origin.VolumeID))
		endSpan(span, failed)
		outcome, failed := d.settle(one, one.started, failed)
		if failed != nil {
			err = failed
		}
		return outcome
	})
	return err
}

// errObjectDeleted ends a deletion that has succeeded.
var errObjectDeleted = &controller.IgnoredError{Reason: "the volume and the PersistentVolume are deleted"}

// deletion is one attempt to remove the volume of one PersistentVolume.
type deletion struct {
	*deletions
	turn     *turn
	pv       *corev1.PersistentVolume
	started  time.Time
	origin   objects.Origin
	requests *requestids.RequestIDs
}

// run takes a deletion through all its steps, one line for each.
func (d *deletion) run(ctx context.Context) (err error) {
	if d.origin, err = objects.OriginOf(d.pv); err != nil {
		return err
	}
	if err := d.mayDelete(d.pv, d.origin, d.cachedPVs); err != nil {
		return err
	}
	if !d.turn.Begin(d.origin.Tenant, d.origin.Backend) {
		return errNoTurn
	}
	ctx = d.rates.OnBehalfOf(ctx, d.origin.Tenant)
	if !d.journal.IsRemoved(d.pv.UID) {
		if err := d.remove(ctx); err != nil {
			return err
		}
		d.journal.NoteRemoved(d.pv.UID)
		d.logRemoved()
	}
	if err := objects.Delete(ctx, d.client, d.pv); err != nil {
		return err
	}
	d.journal.NoteDeleted(d.pv.UID)
	d.parkedVolumes.lot.Forget(d.pv.UID)
	return nil
}

// remove removes what is behind the PersistentVolume.
func (d *deletion) remove(ctx context.Context) error {
	if err := d.locate(ctx); err != nil {
		return err
	}
	volumes, err := d.backends.Recorded(d.origin.Backend)
	if err != nil {
		return fmt.Errorf("PersistentVolume %s: %w", d.pv.Name, err)
	}
	if err := d.removeVolume(ctx, volumes); err != nil {
		return err
	}
	d.tasks.removeDuplicates(volumes, d.origin)
	// The Secret goes last: while the volume exists, a node may still need the
	// credentials to log out, and the PersistentVolume must not refer to a missing
	// Secret.
	return d.secrets.VolumeRemoved(ctx, d.origin)
}

// locate finds the backend of a volume that the historic provisioner created.
func (d *deletion) locate(ctx context.Context) error {
	if !d.origin.Historic || d.origin.Backend != "" {
		return nil
	}
	backend, err := d.locateHistoric(ctx, &d.origin)
	if err != nil {
		return err
	}
	return d.pinHistoric(ctx, d.pv, &d.origin, backend)
}

// locateHistoric finds the backend of a volume that the historic provisioner created.
// That provisioner knew only one backend and recorded none. Only a volume that is found
// can be deleted: that no backend has it proves nothing, because its backend may be
// missing from the policy.
func (d *deletions) locateHistoric(ctx context.Context, origin *objects.Origin) (string, error) {
	names := d.backends.Names()
	var silent []error
	for _, name := range names {
		volumes, err := d.backends.Recorded(name)
		has := false
		if err == nil {
			_, has, err = volumes.Find(ctx, origin.VolumeID)
		}
		if has {
			// If several backends of the policy share one Cinder, any of them will do.
			return name, nil
		}
		silent = append(silent, err)
	}
	if err := errors.Join(silent...); err != nil {
		return "", fmt.Errorf("looking for volume %s of the historic provisioner: %w", origin.VolumeID, err)
	}
	return "", &objects.DamagedError{Message: fmt.Sprintf(
		"volume %s of the historic provisioner is at none of the policy's backends (%s); add its backend, or, if the volume is gone, remove PersistentVolume %s by hand",
		origin.VolumeID, strings.Join(names, ", "), origin.PVName)}
}

// pinHistoric records on the PersistentVolume where its volume was found, before
// anything is deleted. A later attempt that does not find the volume there knows
// that it is gone.
func (d *deletions) pinHistoric(ctx context.Context, pv *corev1.PersistentVolume, origin *objects.Origin, backend string) error {
	volumes, err := d.backends.Recorded(backend)
	if err != nil {
		return err
	}
	at := volumes.Place()
	annotations := map[string]string{objects.AnnotationBackend: backend}
	maps.Copy(annotations, objects.PlaceAnnotations(at))
	if err := objects.Annotate(ctx, d.client, pv, annotations); err != nil {
		return fmt.Errorf("cannot record backend %s on PersistentVolume %s: %w", backend, pv.Name, err)
	}
	origin.Backend, origin.Place = backend, at
	return nil
}

// removeVolume removes the volume once it has the proof that it may.
func (d *deletion) removeVolume(ctx context.Context, volumes Recorded) error {
	release := d.releaseOf(d.pv, d.origin.VolumeID)
	target := d.targetOf(d.pv, d.origin)
	target.Permit = release.Permit
	target.Found = func(ctx context.Context, at cinder.Place) error {
		return objects.NotePlace(ctx, d.client, d.pv, at)
	}
	if err := volumes.Remove(ctx, target); err != nil {
		return objects.WithRemedy(err, d.origin)
	}
	if release.IsProven() {
		return nil
	}
	// Without anything to change, Remove did not request the permit.
	return release.Permit(ctx, cinder.Volume{})
}

func (d *deletion) health() error { return d.placement.Health(d.origin.Backend) }

// logRemoved writes the line of the audit trail. The volume is gone, even if Kubernetes
// does not answer what became of the object.
func (d *deletion) logRemoved() {
	d.logger.Info("Deleted a volume", "tenant", d.origin.Tenant, "claim", requestids.ClaimOf(d.pv), "claimUID", d.origin.ClaimUID,
		"persistentVolume", d.pv.Name, "backend", d.origin.Backend, "volume", d.origin.VolumeID, "protocol", d.origin.Protocol, "sizeGiB", requestids.SizeOf(d.pv),
		"requestID", d.requests.OfDelete(), "durationSeconds", time.Since(d.started).Seconds())
}

func (d *deletion) observe(outcome string, took time.Duration) {
	d.metrics.deleted(d.origin.Backend, d.origin.Protocol, outcome, took)
}

// setAside ends deletions that a user has called off, and parks those that wait for a
// node or for the volume's snapshots.
func (d *deletion) setAside(err error) (outcome string, isSetAside bool) {
	var changed *removal.ChangedError
	var used *removal.StillUsedError
	switch {
	case errors.As(err, &changed):
		d.parkedVolumes.report(d.pv, nil, corev1.EventTypeNormal, "DeletionStopped", changed.Error())
		return "stopped", true
	case errors.As(err, &used) && d.nodes.Watches():
		d.parkForNodes(d.turn, d.pv, used)
		return "in_use", true
	case cinder.IsKind(err, backends.KindHasSnapshots):
		d.parkedVolumes.report(d.pv, nil, corev1.EventTypeWarning, "VolumeHasSnapshots", err.Error())
		d.parkedVolumes.park(d.turn, d.pv, parking.Blocked, append(triggersAt(d.origin.Backend), parking.Trigger{Kind: parking.Snapshots, Name: d.origin.VolumeID}))
		return "has_snapshots", true
	}
	return "", false
}

func (d *deletion) parkForBackend(unhealthy error) {
	d.deletions.parkForBackend(d.turn, d.pv, d.origin.Backend, unhealthy)
}

func (d *deletion) parkForRetry(failure error) {
	d.parkedVolumes.lot.NoteFailure(d.pv.UID, failure.Error())
	d.parkedVolumes.park(d.turn, d.pv, parking.Failing, triggersAt(d.origin.Backend))
}

// parkForBackend parks a deletion until its backend answers again.
func (d *deletions) parkForBackend(turn *turn, pv *corev1.PersistentVolume, backend string, unhealthy error) {
	d.parkedVolumes.report(pv, nil, corev1.EventTypeWarning, placement.ReasonBackendUnavailable, unhealthy.Error())
	d.parkedVolumes.park(turn, pv, parking.Blocked, triggersAt(backend))
}

// triggersAt lists what may unblock a deletion or a follow-up at a backend.
func triggersAt(backend string) []parking.Trigger {
	return []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Credentials, Name: backend}, {Kind: parking.Backend, Name: backend}}
}

// releaseTakes is how long nodes take to release a volume on ordinary days.
const releaseTakes = time.Minute

// parkForNodes parks a deletion until the nodes have released the volume. Only if that
// takes long does it need a person.
func (d *deletions) parkForNodes(turn *turn, pv *corev1.PersistentVolume, used *removal.StillUsedError) {
	if d.parkedVolumes.lot.Lasts(pv.UID, used.Reason, releaseTakes) {
		d.parkedVolumes.report(pv, nil, corev1.EventTypeWarning, used.Reason, used.Error())
	} else {
		d.parkedVolumes.report(pv, nil, corev1.EventTypeNormal, used.Reason, used.Wait)
		turn.LookAgain(releaseTakes)
	}
	triggers := make([]parking.Trigger, len(used.Nodes))
	for i, node := range used.Nodes {
		triggers[i] = parking.Trigger{Kind: parking.Node, Name: node}
	}
	d.parkedVolumes.park(turn, pv, parking.Blocked, triggers)
}

// usedBy returns why a volume may not be removed according to the caches; nil if they
// show no node that uses it. They may not show every user. Delete reads them from the API
// server before the first change, and reports errors.
func (d *deletions) usedBy(pv *corev1.PersistentVolume) *removal.StillUsedError {
	if objects.IsCSI(pv) {
		if attachments, _, err := d.nodes.KnownAttachments(pv.Name); err == nil && len(attachments) > 0 {
			return removal.Attached(attachments)
		}
	}
	if users, err := d.nodes.Known(nodeuse.VolumeOf(pv)); err == nil && len(users) > 0 {
		return removal.InUse(pv.Name, users)
	}
	return nil
}

// releaseOf begins the proof that the program may remove a released volume.
func (d *deletions) releaseOf(pv *corev1.PersistentVolume, volumeID string) *removal.Release {
	return removal.NewRelease(removal.ReleaseOptions{Client: d.client, PersistentVolumes: d.cachedPVs, Nodes: d.nodes, Attachments: d.nodes}, pv, volumeID)
}
