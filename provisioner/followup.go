package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/tracing"
)

// Followup finishes what the library leaves unfinished: it completes volumes whose
// PersistentVolume has reached the API server, and removes unrecorded volumes that
// nothing needs. Deleted claims, listings and completions all feed its one queue, in
// which each item has its own delays. It runs for one term, under the same lease.
type Followup struct {
	provisioner *Provisioner
	loop        *work.Loop[task]

	mu sync.Mutex
	// listed are the backends that were listed, or could not be, since the term began;
	// unlisted holds the names of the PersistentVolumes that wait for the others.
	listed    map[string]bool
	unlisted  map[string]map[string]bool
	completed map[types.UID]bool // PersistentVolumes, by UID
}

// task is a followup in eight bytes. If a large backend is silent as the term begins,
// one task is queued for each of its PersistentVolumes, and the tables of the queue and
// of the turns never shrink again.
type task = unique.Handle[followup]

// followup is what a task does. completionOf, rebindOf, misstampedOf, undoOf, removalOf and
// markOf make one.
type followup struct {
	kind    followupKind
	pv      string
	claim   types.UID
	backend string
	volume  string
	place   cinder.Place
}

type followupKind string

const (
	completion followupKind = "complete" // a PersistentVolume's volume: pv
	rebind     followupKind = "rebind"   // a PersistentVolume that has another claim: pv; or whose volume's stamp has: pv, volume
	undo       followupKind = "undo"     // what was begun for a claim: claim
	removeOne  followupKind = "remove"   // one volume of a claim: claim, backend, volume
	mark       followupKind = "mark"     // one volume of a claim: as for removeOne, and place
)

func completionOf(pvName string) task { return unique.Make(followup{kind: completion, pv: pvName}) }

func undoOf(claim types.UID) task { return unique.Make(followup{kind: undo, claim: claim}) }

func removalOf(claim types.UID, backend, volumeID string) task {
	return unique.Make(followup{kind: removeOne, claim: claim, backend: backend, volume: volumeID})
}

func markOf(origin objects.Origin) task {
	return unique.Make(followup{kind: mark, claim: types.UID(origin.ClaimUID), backend: origin.Backend, volume: origin.VolumeID, place: origin.Place})
}

func newFollowup(p *Provisioner, workers int) *Followup {
	f := &Followup{provisioner: p, listed: map[string]bool{}, unlisted: map[string]map[string]bool{}, completed: map[types.UID]bool{}}
	f.loop = work.New(work.Options[task]{
		Name: "followup", Workers: workers, Do: f.attempt,
		Describe: func(key task) string { return "the worker of " + key.Value().String() },
		Board:    p.Board, Monitor: p.Monitor, MaxWorkTime: p.MaxWorkTime,
	})
	return f
}

// VolumeSeen records that the API server has a PersistentVolume.
func (f *Followup) VolumeSeen(pv *corev1.PersistentVolume) {
	f.provisioner.countRecorded(pv)
	if ref := pv.Spec.ClaimRef; ref != nil {
		f.provisioner.SourceChanged(ref.Namespace, ref.Name)
	}
	if !mayRelease(pv) {
		// The volume is in use or retained, so earlier node usage no longer matters.
		f.provisioner.Nodes.Forget(pv.UID)
	}
	switch ref := pv.Spec.ClaimRef; {
	case f.provisioner.isMine(pv):
		f.provisioner.finish(objects.MadeFor(pv))
	case ref == nil:
	default:
		// Another provisioner serves the claim, perhaps with a PersistentVolume of that
		// name.
		if _, begun := f.provisioner.journal.Beginning(ref.UID); begun {
			f.loop.Queue.Add(undoOf(ref.UID))
		}
	}
	if _, stale := f.provisioner.staleRecord(pv); stale || slices.Contains(pv.Finalizers, objects.Finalizer) ||
		f.wantsCompletion(pv) && !f.awaitListing(pv) && !f.isComplete(pv) {
		f.loop.Queue.Add(completionOf(pv.Name))
	}
	if f.provisioner.isRebound(pv) {
		f.loop.Queue.Add(rebindOf(pv.Name))
	}
	f.provisioner.reportNeverBound(pv)
}

// awaitListing leaves a PersistentVolume to the first listing of its backend, which
// shows that nearly all volumes need nothing. If it fails, every one is completed, of
// whatever age. See docs/decisions.md, "Proof before an unrecorded volume is removed".
func (f *Followup) awaitListing(pv *corev1.PersistentVolume) bool {
	backend := pv.Annotations[objects.AnnotationBackend]
	if f.provisioner.placement.IsCounted(backend) || !slices.Contains(f.provisioner.Backends.Names(), backend) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listed[backend] {
		return false
	}
	if f.unlisted[backend] == nil {
		f.unlisted[backend] = map[string]bool{}
	}
	f.unlisted[backend][pv.Name] = true
	return true
}

// backendListed takes up the PersistentVolumes that waited for the first listing of
// their backend, or for its failure.
func (f *Followup) backendListed(backend string) {
	f.mu.Lock()
	names := f.unlisted[backend]
	delete(f.unlisted, backend)
	f.listed[backend] = true
	f.mu.Unlock()
	for name := range names {
		if pv, err := f.provisioner.PersistentVolumes.Get(name); err == nil && f.wantsCompletion(pv) && !f.isComplete(pv) {
			f.loop.Queue.Add(completionOf(name))
		}
	}
}

// hasListed reports whether a backend's PersistentVolumes no longer wait for a listing.
func (f *Followup) hasListed(backend string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listed[backend]
}

// isComplete notes that a PersistentVolume's volume is in use if the term's listing
// shows it.
func (f *Followup) isComplete(pv *corev1.PersistentVolume) bool {
	origin, err := objects.OriginOf(pv)
	if err != nil {
		return false
	}
	volumes, err := f.provisioner.Backends.Volumes(origin.Backend)
	if err != nil || !volumes.IsComplete(f.provisioner.targetOf(pv, origin)) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed[pv.UID] = true
	return true
}

// VolumeGone forgets a PersistentVolume. Unless its volume was removed, the
// volume continues to count, and is marked as recorded if it was not brought
// into use yet.
func (f *Followup) VolumeGone(pv *corev1.PersistentVolume) {
	removed := f.provisioner.volumeGone(pv)
	origin, err := objects.OriginOf(pv)
	for _, item := range []task{completionOf(pv.Name), rebindOf(pv.Name), misstampedOf(pv.Name, origin.VolumeID)} {
		f.loop.Forget(item)
	}
	f.mu.Lock()
	completed := f.completed[pv.UID]
	delete(f.completed, pv.UID)
	delete(f.unlisted[pv.Annotations[objects.AnnotationBackend]], pv.Name)
	f.mu.Unlock()
	if removed || err != nil || !f.provisioner.isMine(pv) {
		return
	}
	f.provisioner.Logger.Info("Kept the volume of a PersistentVolume that was deleted", "tenant", origin.Tenant, "claim", requestids.ClaimOf(pv), "claimUID", origin.ClaimUID,
		"persistentVolume", pv.Name, "backend", origin.Backend, "volume", origin.VolumeID, "protocol", origin.Protocol, "sizeGiB", requestids.SizeOf(pv))
	if !completed {
		f.loop.Queue.Add(markOf(origin))
	}
}

// ClaimGone records that a claim was deleted.
func (f *Followup) ClaimGone(claim *corev1.PersistentVolumeClaim) {
	f.provisioner.placement.NoteGone(claim)
	if objects.AwaitsImport(claim) {
		f.provisioner.secrets.ImportEnded()
	}
	f.loop.Queue.Add(undoOf(claim.UID))
	f.holderChanged(claim)
}

// ClaimChanged records that a claim was bound, or has lost its PersistentVolume. The
// library silently drops a claim that is bound to a PersistentVolume that was not created
// for it.
func (f *Followup) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	f.provisioner.measureClaim(before, after)
	if before.Status.Phase != after.Status.Phase || before.Spec.VolumeName != after.Spec.VolumeName {
		f.holderChanged(after)
	}
	switch {
	case before.Spec.VolumeName == after.Spec.VolumeName:
	case objects.BoundElsewhere(after):
		f.ClaimGone(after)
	default:
		f.provisioner.parkedClaims.admitted(after.UID)
	}
}

// wantsCompletion returns false for volumes that are about to be removed, because the
// removal would only undo the completion. All others are completed in every phase of
// the PersistentVolume, because a later leader takes a volume that was never in use for
// an unrecorded one.
func (f *Followup) wantsCompletion(pv *corev1.PersistentVolume) bool {
	over := pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
	if !f.provisioner.isMine(pv) || over && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.completed[pv.UID]
}

// Run works until the context ends, and returns when the last running item is
// done.
func (f *Followup) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { f.provisioner.offerFreedRoom(ctx) })
	f.loop.Run(ctx)
	group.Wait()
}

// attempt does an item when its turn comes. A backend that does not answer must not keep
// every worker busy.
func (f *Followup) attempt(ctx context.Context, a *work.Attempt[task]) work.Outcome {
	item := a.Key.Value()
	tenant, backend := f.tenantAndBackend(item)
	if backend != "" && item.kind != rebind && !slices.Contains(f.provisioner.Backends.Names(), backend) {
		// Only another policy can unblock it. The policy itself says so of a rebind.
		f.provisioner.Logger.Warn("A follow-up waits because its backend is not in the policy", "backend", backend, "persistentVolume", item.pv, "claimUID", item.claim)
		a.Await(triggersAt(backend)...)
		return work.Outcome{Done: true}
	}
	if !a.Begin(tenant, backend) {
		return work.Outcome{}
	}
	err := f.do(ctx, item)
	var waits *waitError
	switch {
	case err == nil:
		return work.Outcome{Done: true}
	case f.provisioner.stopping():
		return work.Outcome{}
	case errors.As(err, &waits):
		f.provisioner.Logger.Info("A follow-up waits", "persistentVolume", item.pv, "claimUID", item.claim, "reason", err)
		a.Await(waits.triggers...)
		return work.Outcome{Done: true}
	}
	f.provisioner.Logger.Warn("Follow-up failed and will be retried", "persistentVolume", item.pv, "claimUID", item.claim, "volume", item.volume, "error", err)
	a.Await(triggersAt(backend)...)
	return work.Outcome{Retry: new(retry.For(err))}
}

// add queues an item.
func (f *Followup) add(item task) { f.loop.Queue.Add(item) }

// tenantAndBackend returns what an item's turn counts against.
func (f *Followup) tenantAndBackend(item followup) (tenant, backend string) {
	if item.pv == "" {
		position, _ := f.provisioner.ledger.PositionOf(item.claim)
		return position.Tenant, cmp.Or(item.backend, position.Backend)
	}
	pv, err := f.provisioner.PersistentVolumes.Get(item.pv)
	if err != nil {
		return "", ""
	}
	return pv.Annotations[objects.AnnotationTenant], pv.Annotations[objects.AnnotationBackend]
}

func (f *Followup) do(ctx context.Context, item followup) (err error) {
	claim := cmp.Or(string(item.claim), strings.TrimPrefix(item.pv, objects.PVNamePrefix))
	ctx, span := f.provisioner.Tracer.Start(ctx, claim, string(item.kind), tracing.PersistentVolume.String(objects.PVNameFor(claim)))
	defer func() { endSpan(span, err) }()
	switch item.kind {
	case mark:
		return f.provisioner.markRecorded(ctx, item)
	case removeOne:
		return f.provisioner.removeDuplicate(ctx, item)
	case undo:
		return f.provisioner.claimGone(ctx, item.claim)
	case rebind:
		return f.rebind(ctx, item.pv, item.volume != "")
	default:
		return f.complete(ctx, item.pv)
	}
}

// complete brings the volume of a saved PersistentVolume into use. If the volume was
// undone before the PersistentVolume was saved, complete removes the PersistentVolume
// instead.
func (f *Followup) complete(ctx context.Context, name string) error {
	p := f.provisioner
	pv, err := p.PersistentVolumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if undone, stale := p.staleRecord(pv); stale {
		if removed, err := p.removeStale(ctx, pv, undone); err != nil || removed {
			return err
		}
	}
	if !f.wantsCompletion(pv) {
		return objects.RemoveFinalizer(ctx, p.Client, pv)
	}
	origin, err := objects.OriginOf(pv)
	if err != nil {
		return err
	}
	volumes, err := p.Backends.Volumes(origin.Backend)
	if err != nil {
		return err
	}
	if pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed {
		// No pod uses it, and an administrator may have detached it on purpose.
		err = volumes.Mark(p.OnBehalfOf(ctx, origin.Tenant), origin.Target())
	} else {
		err = volumes.Complete(p.OnBehalfOf(ctx, origin.Tenant), p.targetOf(pv, origin), objects.ReadOnly(pv))
	}
	switch cinder.KindOf(err) {
	case "":
		if err == nil {
			p.removeDuplicates(volumes, origin)
		}
	case backends.KindElsewhere:
		err = objects.WithRemedy(err, origin)
		p.Recorder.Event(pv, corev1.EventTypeWarning, "VolumeElsewhere", err.Error())
	case cinder.KindNotFound:
		p.Recorder.Eventf(pv, corev1.EventTypeWarning, "VolumeMissing", "volume %s no longer exists at backend %s; its data is lost unless the storage array has a copy", origin.VolumeID, origin.Backend)
		err = nil
	}
	if err != nil {
		if failed := objects.AddFinalizer(ctx, p.Client, pv); failed != nil {
			return errors.Join(err, failed)
		}
		if cinder.IsKind(err, backends.KindRestored) {
			return &waitError{message: err.Error()} // its next phase brings it back
		}
		return err
	}
	if err := objects.RemoveFinalizer(ctx, p.Client, pv); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed[pv.UID] = true
	return nil
}

func (p *Provisioner) targetOf(pv *corev1.PersistentVolume, origin objects.Origin) backends.Target {
	target := origin.Target()
	target.Stamp.ClusterUID = p.ClusterUID
	target.RecordedAt, target.PVUID = pv.CreationTimestamp.Time, string(pv.UID)
	target.Undecided = pv.Status.Phase == "" || pv.Status.Phase == corev1.VolumePending
	return target
}

func (i followup) String() string {
	return fmt.Sprintf("followup %s %s%s %s %s", i.kind, i.pv, i.claim, i.backend, i.volume)
}
