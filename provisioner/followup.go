package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/fairshare"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
)

// Followup does what is left after the library is done with an object:
// completing volumes whose PersistentVolume has reached the API server, and
// removing what no PersistentVolume records and nobody needs. Each thing has one
// queue and its own delays, whoever finds it: a claim's end, a listing, or a
// volume's completion. It runs under the same lease and as long as the same
// term.
type Followup struct {
	provisioner *Provisioner
	workers     int
	queue       workqueue.TypedRateLimitingInterface[followup]
	turns       *fairshare.Turns[followup]

	mu        sync.Mutex
	completed map[types.UID]bool // PersistentVolumes, by UID
	// failing holds what failed, with the backend whose help it awaits.
	failing map[followup]string
}

// followup is one thing to do: complete a PersistentVolume by name, undo for a
// claim by UID, or, with backend and volume, remove that volume of a claim or
// mark it as one that was recorded.
type followup struct {
	pv      string
	claim   types.UID
	backend string
	volume  string
	mark    bool
	place   backends.Place // of the volume to be marked
}

func newFollowup(p *Provisioner, workers int) *Followup {
	f := &Followup{
		provisioner: p,
		workers:     workers,
		queue:       workqueue.NewTypedRateLimitingQueue[followup](followupLimiter{p.limiter}),
		completed:   map[types.UID]bool{},
		failing:     map[followup]string{},
	}
	f.turns = fairshare.New(workers, func(string) int { return 0 }, f.queue.Add)
	return f
}

// VolumeSeen notes that a PersistentVolume is in the API server.
func (f *Followup) VolumeSeen(pv *corev1.PersistentVolume) {
	f.provisioner.countRecorded(pv)
	if !mayRelease(pv) {
		// It is in use, or to be kept: what nodes did before does not count.
		f.provisioner.Nodes.Forget(pv.UID)
	}
	switch ref := pv.Spec.ClaimRef; {
	case f.provisioner.isMine(pv):
		f.provisioner.finish(types.UID(pv.Annotations[record.AnnotationClaimUID]))
	case ref == nil:
	default:
		// Somebody else serves the claim, perhaps under the same name.
		if _, begun := f.provisioner.journal.beginning(ref.UID); begun {
			f.queue.Add(followup{claim: ref.UID})
		}
	}
	if _, stale := f.provisioner.staleRecord(pv); stale || f.wantsCompletion(pv) || slices.Contains(pv.Finalizers, record.Finalizer) {
		f.queue.Add(followup{pv: pv.Name})
	}
	f.provisioner.reportNeverBound(pv)
}

// VolumeGone forgets a PersistentVolume. Its volume goes on counting unless it
// was removed, and is marked as one that was recorded, should it not have been
// brought into use yet.
func (f *Followup) VolumeGone(pv *corev1.PersistentVolume) {
	removed := f.provisioner.volumeGone(pv)
	f.mu.Lock()
	completed := f.completed[pv.UID]
	delete(f.completed, pv.UID)
	f.mu.Unlock()
	if removed || !f.provisioner.isMine(pv) {
		return
	}
	if origin, err := record.OriginOf(pv); err == nil && !completed {
		f.queue.Add(followup{claim: types.UID(origin.ClaimUID), backend: origin.Backend, volume: origin.VolumeID, mark: true, place: origin.Place})
	}
}

// ClaimGone notes that a claim was deleted.
func (f *Followup) ClaimGone(claim *corev1.PersistentVolumeClaim) {
	f.provisioner.placement.noteGone(claim)
	f.queue.Add(followup{claim: claim.UID})
}

// ClaimChanged notes that a claim was bound. One that was bound to a
// PersistentVolume not made for it leaves the library's care without a word.
func (f *Followup) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case before.Spec.VolumeName == after.Spec.VolumeName:
	case record.BoundElsewhere(after):
		f.ClaimGone(after)
	default:
		f.provisioner.parked.granted(after.UID)
	}
}

// wantsCompletion is false for volumes that are about to be removed: completing
// one would only have to be undone. Any other is completed whatever its phase:
// a volume that was never in use counts as one that was never recorded.
func (f *Followup) wantsCompletion(pv *corev1.PersistentVolume) bool {
	over := pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
	if !f.provisioner.isMine(pv) || over && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.completed[pv.UID]
}

// Run works until the context ends, and returns when the last item in work is
// done.
func (f *Followup) Run(ctx context.Context) {
	var group sync.WaitGroup
	for range f.workers {
		group.Go(func() {
			for f.next(ctx) {
			}
		})
	}
	group.Go(func() { f.provisioner.offerFreedRoom(ctx) })
	<-ctx.Done()
	f.queue.ShutDown()
	group.Wait()
	// A follower turns nobody away.
	f.provisioner.Metrics.deniedClaims(0)
	f.provisioner.Metrics.waitingClaims(0)
}

func (f *Followup) next(ctx context.Context) bool {
	item, shutdown := f.queue.Get()
	if shutdown {
		return false
	}
	defer f.queue.Done(item)
	if ctx.Err() != nil {
		return true // drains the queue; the next leader sees the same objects
	}
	// A backend that does not answer must not keep every worker. What gets no turn
	// now is invited back.
	since := f.provisioner.parked.helped.Now()
	tenant, backend := f.tenantAndBackend(item)
	if backend != "" && !slices.Contains(f.provisioner.Backends.Names(), backend) {
		// Only another policy helps.
		f.provisioner.Logger.Warn("A backend is not in the policy; what is to be done there waits", "backend", backend, "persistentVolume", item.pv, "claimUID", item.claim)
		f.provisioner.limiter.Gone(item.key())
		f.awaitHelp(item, since)
		return true
	}
	if !f.turns.Begin(item, tenant, backend) {
		return true
	}
	defer f.turns.End(item)
	err := f.do(ctx, item)
	switch {
	case err == nil:
		f.mu.Lock()
		delete(f.failing, item)
		f.mu.Unlock()
		f.provisioner.limiter.Gone(item.key())
	case f.provisioner.stopping():
	default:
		f.provisioner.Logger.Warn("Follow-up failed and is tried again", "persistentVolume", item.pv, "claimUID", item.claim, "volume", item.volume, "error", err)
		f.provisioner.limiter.Failed(item.key(), retry.For(err))
		f.queue.AddRateLimited(item)
		f.awaitHelp(item, since)
	}
	return true
}

// awaitHelp has something that failed tried again as soon as its backend is
// helped, or at once if it was since the moment.
func (f *Followup) awaitHelp(item followup, since parking.Moment) {
	_, backend := f.tenantAndBackend(item)
	f.mu.Lock()
	f.failing[item] = backend
	f.mu.Unlock()
	if helps := helpsAt(backend); f.provisioner.parked.helped.Since(since, helps) {
		f.help(helps)
	}
}

// help brings back what failed and has been helped.
func (f *Followup) help(helps []parking.Help) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for item, backend := range f.failing {
		if slices.ContainsFunc(helpsAt(backend), func(one parking.Help) bool { return slices.Contains(helps, one) }) {
			delete(f.failing, item)
			f.queue.Add(item)
		}
	}
}

// add has something done soon.
func (f *Followup) add(item followup) { f.queue.Add(item) }

// lane is the tenant and the backend of what is to be done.
func (f *Followup) tenantAndBackend(item followup) (tenant, backend string) {
	if item.claim != "" {
		position, _ := f.provisioner.placement.PositionOf(item.claim)
		return position.Tenant, cmp.Or(item.backend, position.Backend)
	}
	pv, err := f.provisioner.PersistentVolumes.Get(item.pv)
	if err != nil {
		return "", ""
	}
	return pv.Annotations[record.AnnotationTenant], pv.Annotations[record.AnnotationBackend]
}

func (f *Followup) do(ctx context.Context, item followup) error {
	switch {
	case item.mark:
		return f.provisioner.markRecorded(ctx, item)
	case item.volume != "":
		return f.provisioner.removeDuplicate(ctx, item)
	case item.claim != "":
		return f.provisioner.claimGone(ctx, item.claim)
	}
	return f.complete(ctx, item.pv)
}

// complete takes the volume to in-use now that its PersistentVolume is known
// to be recorded, unless it was recorded only after it had been undone: then the
// PersistentVolume goes.
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
		return record.RemoveFinalizer(ctx, p.Client, pv)
	}
	origin, err := record.OriginOf(pv)
	if err != nil {
		return err
	}
	volumes, err := p.Backends.Volumes(origin.Backend)
	if err != nil {
		return err
	}
	if pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed {
		// Nobody uses it, and somebody may have detached it on purpose.
		err = volumes.Mark(p.onBehalfOf(ctx, origin.Tenant), origin.Target())
	} else {
		err = volumes.Complete(p.onBehalfOf(ctx, origin.Tenant), origin.Target(), record.ReadOnly(pv))
	}
	switch backends.KindOf(err) {
	case "":
		if err == nil {
			p.removeDuplicates(volumes, origin)
		}
	case backends.KindElsewhere:
		err = record.WithRemedy(err, origin)
		p.Recorder.Event(pv, corev1.EventTypeWarning, "VolumeElsewhere", err.Error())
	case backends.KindNotFound:
		p.Recorder.Eventf(pv, corev1.EventTypeWarning, "VolumeMissing", "volume %s does not exist at backend %s any more; its data is lost unless the storage array has a copy", origin.VolumeID, origin.Backend)
		err = nil
	}
	if err != nil {
		return errors.Join(err, record.AddFinalizer(ctx, p.Client, pv))
	}
	if err := record.RemoveFinalizer(ctx, p.Client, pv); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed[pv.UID] = true
	return nil
}

func (i followup) key() string {
	return fmt.Sprintf("followup %s%s %s %s %t", i.pv, i.claim, i.backend, i.volume, i.mark)
}

// followupLimiter lets follow-ups share the table of retry delays.
type followupLimiter struct{ limiter *backoff.Limiter }

func (l followupLimiter) When(item followup) time.Duration { return l.limiter.When(item.key()) }
func (l followupLimiter) Forget(item followup)             { l.limiter.Forget(item.key()) }
func (l followupLimiter) NumRequeues(item followup) int    { return l.limiter.NumRequeues(item.key()) }
