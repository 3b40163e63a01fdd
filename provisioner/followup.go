package provisioner

import (
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Followup finishes what the library leaves unfinished: it completes volumes whose
// PersistentVolume has reached the API server, and removes unrecorded volumes that
// nothing needs. Deleted claims, listings and completions all feed its one queue, in
// which each item has its own delays. It runs for one term, under the same lease.
type Followup struct {
	identity
	*tasks
	board         *parking.Board
	policy        func() *policy.Policy
	placement     *placement.Placer
	parkedClaims  *parkedClaims
	parkedVolumes *parkedVolumes
	claimTimes    *claimTimes
	rates         *tenantRates
	cleaner       removal.Cleaner
	nodes         Nodes
	client        kubernetes.Interface
	cachedClaims  corelisters.PersistentVolumeClaimLister
	recorder      eventrecord.EventRecorder

	mu sync.Mutex
	// listed holds the backends whose listing succeeded or failed since the term began;
	// unlisted holds the names of the PersistentVolumes that wait for the others.
	listed    map[string]bool
	unlisted  map[string]map[string]bool
	completed map[types.UID]bool // PersistentVolumes, by UID
}

func newFollowup(f *Followup) *Followup {
	f.listed, f.unlisted, f.completed = map[string]bool{}, map[string]map[string]bool{}, map[types.UID]bool{}
	f.handle(completion, func(ctx context.Context, item followup) error { return f.complete(ctx, item.pv) })
	f.handle(rebind, func(ctx context.Context, item followup) error { return f.rebind(ctx, item.pv, item.volume != "") })
	return f
}

// VolumeSeen records that the API server has a PersistentVolume.
func (f *Followup) VolumeSeen(pv *corev1.PersistentVolume) {
	f.countRecorded(pv)
	if ref := pv.Spec.ClaimRef; ref != nil {
		f.board.Publish(parking.SourceClaim(ref.Namespace, ref.Name))
	}
	if !mayRelease(pv) {
		// The volume is in use or retained, so earlier node usage no longer matters.
		f.nodes.Forget(pv.UID)
	}
	switch ref := pv.Spec.ClaimRef; {
	case f.isMine(pv):
		f.journal.Finish(objects.MadeFor(pv))
	case ref == nil:
	default:
		// Another provisioner serves the claim, perhaps with a PersistentVolume of that
		// name.
		if _, begun := f.journal.Beginning(ref.UID); begun {
			f.loop.Queue.Add(undoOf(ref.UID))
		}
	}
	if _, stale := f.staleRecord(pv); stale || slices.Contains(pv.Finalizers, objects.Finalizer) ||
		f.wantsCompletion(pv) && !f.awaitListing(pv) && !f.isComplete(pv) {
		f.loop.Queue.Add(completionOf(pv.Name))
	}
	if f.isRebound(pv) {
		f.loop.Queue.Add(rebindOf(pv.Name))
	}
	f.reportNeverBound(pv)
}

// awaitListing leaves a PersistentVolume to the first listing of its backend, which shows
// that nearly all volumes need nothing. If the listing fails, all of them are completed,
// regardless of age.
// See docs/decisions.md, "Proof before an unrecorded volume is removed".
func (f *Followup) awaitListing(pv *corev1.PersistentVolume) bool {
	backend := pv.Annotations[objects.AnnotationBackend]
	if f.placement.IsCounted(backend) || !slices.Contains(f.backends.Names(), backend) {
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

// backendListed queues the PersistentVolumes that waited for the first listing of their
// backend, or for its failure.
func (f *Followup) backendListed(backend string) {
	f.mu.Lock()
	names := f.unlisted[backend]
	delete(f.unlisted, backend)
	f.listed[backend] = true
	f.mu.Unlock()
	for name := range names {
		if pv, err := f.cachedPVs.Get(name); err == nil && f.wantsCompletion(pv) && !f.isComplete(pv) {
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
	volumes, err := f.backends.Recorded(origin.Backend)
	if err != nil || !volumes.IsComplete(f.targetOf(pv, origin)) {
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
	removed := f.volumeGone(pv)
	origin, err := objects.OriginOf(pv)
	for _, item := range []task{completionOf(pv.Name), rebindOf(pv.Name), misstampedOf(pv.Name, origin.VolumeID)} {
		f.loop.Forget(item)
	}
	f.mu.Lock()
	completed := f.completed[pv.UID]
	delete(f.completed, pv.UID)
	delete(f.unlisted[pv.Annotations[objects.AnnotationBackend]], pv.Name)
	f.mu.Unlock()
	if removed || err != nil || !f.isMine(pv) {
		return
	}
	f.logger.Info("Kept the volume of a PersistentVolume that was deleted", "tenant", origin.Tenant, "claim", requestids.ClaimOf(pv), "claimUID", origin.ClaimUID,
		"persistentVolume", pv.Name, "backend", origin.Backend, "volume", origin.VolumeID, "protocol", origin.Protocol, "sizeGiB", requestids.SizeOf(pv))
	if !completed {
		f.loop.Queue.Add(markOf(origin))
	}
}

// ClaimGone records that a claim was deleted.
func (f *Followup) ClaimGone(claim *corev1.PersistentVolumeClaim) {
	f.placement.NoteGone(claim)
	f.loop.Queue.Add(undoOf(claim.UID))
	f.holderChanged(claim)
}

// ClaimChanged records that a claim was bound, or has lost its PersistentVolume. The
// library silently drops a claim that is bound to a PersistentVolume that was not created
// for it.
func (f *Followup) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	f.claimTimes.measure(before, after)
	if before.Status.Phase != after.Status.Phase || before.Spec.VolumeName != after.Spec.VolumeName {
		f.holderChanged(after)
	}
	switch {
	case before.Spec.VolumeName == after.Spec.VolumeName:
	case objects.BoundElsewhere(after):
		f.ClaimGone(after)
	default:
		f.parkedClaims.admitted(after.UID)
	}
}

// wantsCompletion returns false for volumes about to be removed, because the removal
// would only undo the completion. All others are completed, in any phase of the
// PersistentVolume, because a later leader would take a volume that was never in use for
// an unrecorded one.
func (f *Followup) wantsCompletion(pv *corev1.PersistentVolume) bool {
	over := pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
	if !f.isMine(pv) || over && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.completed[pv.UID]
}

// complete brings the volume of a saved PersistentVolume into use. If the volume was
// undone before the PersistentVolume was saved, complete removes the PersistentVolume
// instead.
func (f *Followup) complete(ctx context.Context, name string) error {
	pv, err := f.cachedPVs.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if undone, stale := f.staleRecord(pv); stale {
		if removed, err := f.removeStale(ctx, pv, undone); err != nil || removed {
			return err
		}
	}
	if !f.isMine(pv) {
		return nil // its finalizer may be another installation's
	}
	if !f.wantsCompletion(pv) {
		return objects.RemoveFinalizer(ctx, f.client, pv)
	}
	origin, err := objects.OriginOf(pv)
	if err != nil {
		return err
	}
	volumes, err := f.backends.Recorded(origin.Backend)
	if err != nil {
		return err
	}
	if pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed {
		// No pod uses it, and an administrator may have detached it on purpose.
		err = volumes.Mark(f.rates.OnBehalfOf(ctx, origin.Tenant), origin.Target())
	} else {
		err = volumes.Complete(f.rates.OnBehalfOf(ctx, origin.Tenant), f.targetOf(pv, origin), objects.ReadOnly(pv))
	}
	switch cinder.KindOf(err) {
	case "":
		if err == nil {
			f.removeDuplicates(volumes, origin)
		}
	case backends.KindElsewhere:
		err = objects.WithRemedy(err, origin)
		f.recorder.Event(pv, corev1.EventTypeWarning, "VolumeElsewhere", err.Error())
	case cinder.KindNotFound:
		f.recorder.Eventf(pv, corev1.EventTypeWarning, "VolumeMissing", "volume %s no longer exists at backend %s; its data is lost unless the storage array has a copy", origin.VolumeID, origin.Backend)
		err = nil
	}
	if err != nil {
		if failed := objects.AddFinalizer(ctx, f.client, pv); failed != nil {
			return errors.Join(err, failed)
		}
		if cinder.IsKind(err, backends.KindRestored) {
			return &waitError{message: err.Error()} // its next phase queues it again
		}
		return err
	}
	if err := objects.RemoveFinalizer(ctx, f.client, pv); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed[pv.UID] = true
	return nil
}
