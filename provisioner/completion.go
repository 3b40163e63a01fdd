package provisioner

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// Followup does what is left after the library is done with an object:
// completing volumes whose PersistentVolume has reached the API server, and
// undoing what was begun for claims that were deleted too early. It runs under
// the same lease and as long as the same term.
type Followup struct {
	provisioner *Provisioner
	workers     int
	queue       workqueue.TypedRateLimitingInterface[followup]
	turns       *Turns

	mu        sync.Mutex
	completed map[types.UID]bool // PersistentVolumes, by UID
	waiting   map[string]followup
	strays    map[followup]astray
}

// followup is one thing to do: complete a PersistentVolume by name, undo for a
// claim by UID, or remove what a claim has astray on a backend.
type followup struct {
	pv     string
	claim  types.UID
	astray string
}

// NewFollowup makes the follow-up of a term, with so many workers. They must
// not fall far behind the workers that serve claims.
func NewFollowup(p *Provisioner, workers int) *Followup {
	f := &Followup{
		provisioner: p,
		workers:     workers,
		queue:       workqueue.NewTypedRateLimitingQueue[followup](followupLimiter{p.limiter}),
		completed:   map[types.UID]bool{},
		waiting:     map[string]followup{},
		strays:      map[followup]astray{},
	}
	f.turns = NewTurns(workers, func(string) int { return 0 }, f.invite)
	p.leftover = f.ClaimGone
	p.stray = f.volumeAstray
	return f
}

// VolumeSeen notes that a PersistentVolume is in the API server.
func (f *Followup) VolumeSeen(pv *corev1.PersistentVolume) {
	f.provisioner.countRecorded(pv)
	if f.provisioner.isMine(pv) {
		f.provisioner.finish(types.UID(pv.Annotations[annotationClaimUID]))
	}
	if _, void := f.provisioner.voidRecord(pv); void || f.wantsCompletion(pv) {
		f.queue.Add(followup{pv: pv.Name})
	}
}

// VolumeGone forgets a PersistentVolume.
func (f *Followup) VolumeGone(pv *corev1.PersistentVolume) {
	f.provisioner.volumeGone(pv)
	if f.provisioner.isMine(pv) {
		f.provisioner.release(types.UID(pv.Annotations[annotationClaimUID]))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.completed, pv.UID)
}

// ClaimGone notes that a claim was deleted.
func (f *Followup) ClaimGone(uid types.UID) {
	f.queue.Add(followup{claim: uid})
}

// ClaimChanged notes that a claim was bound. One that was bound to a
// PersistentVolume not made for it leaves the library's care without a word.
func (f *Followup) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case before.Spec.VolumeName == after.Spec.VolumeName:
	case boundElsewhere(after):
		f.ClaimGone(after.UID)
	default:
		f.provisioner.forgetDenial(after.UID)
	}
}

// astray is a volume of a claim that counts on another backend.
type astray struct {
	volumeID string
	beginning
}

// volumeAstray notes a volume of a claim that counts on another backend.
func (f *Followup) volumeAstray(found astray) {
	item := followup{claim: types.UID(found.stamp.ClaimUID), astray: found.backend}
	f.mu.Lock()
	f.strays[item] = found
	f.mu.Unlock()
	f.queue.Add(item)
}

// wantsCompletion is false for volumes on their way out: completing one would
// only have to be undone.
func (f *Followup) wantsCompletion(pv *corev1.PersistentVolume) bool {
	if !f.provisioner.isMine(pv) || pv.DeletionTimestamp != nil || pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed {
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
	if !f.beginTurn(item) {
		return true
	}
	defer f.turns.End(item.key())
	err := f.do(ctx, item)
	switch {
	case err == nil:
		f.queue.Forget(item)
	case f.provisioner.stopping():
	default:
		f.provisioner.Logger.Warn("Follow-up failed and is tried again", "persistentVolume", item.pv, "claimUID", item.claim, "error", err)
		f.provisioner.limiter.Failed(item.key(), retryFor(err))
		f.queue.AddRateLimited(item)
	}
	return true
}

// beginTurn keeps a backend that does not answer from keeping every worker.
func (f *Followup) beginTurn(item followup) bool {
	tenant, backend := f.lane(item)
	f.mu.Lock()
	f.waiting[item.key()] = item
	f.mu.Unlock()
	if !f.turns.Begin(item.key(), tenant, backend) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, item.key())
	return true
}

// lane is the tenant and the backend of what is to be done.
func (f *Followup) lane(item followup) (tenant, backend string) {
	if item.astray != "" {
		return "", item.astray
	}
	if item.claim != "" {
		begun, _ := f.provisioner.beginningOf(item.claim)
		return begun.stamp.Tenant, begun.backend
	}
	pv, err := f.provisioner.PersistentVolumes.Get(item.pv)
	if err != nil {
		return "", ""
	}
	return pv.Annotations[annotationTenant], pv.Annotations[annotationBackend]
}

// invite brings back what waited for its turn.
func (f *Followup) invite(key string) {
	f.mu.Lock()
	item, ok := f.waiting[key]
	delete(f.waiting, key)
	f.mu.Unlock()
	if ok {
		f.queue.Add(item)
	}
}

func (f *Followup) do(ctx context.Context, item followup) error {
	switch {
	case item.astray != "":
		return f.removeStray(ctx, item)
	case item.claim != "":
		return f.provisioner.ClaimGone(ctx, item.claim)
	}
	return f.complete(ctx, item.pv)
}

// removeStray removes a second volume of a claim, which the backend refuses for
// one that was ever attached. Two backends of the policy may lead to the same
// project at Cinder, and then show the same volumes: one that the claim's own
// backend shows too is the claim's own.
func (f *Followup) removeStray(ctx context.Context, item followup) error {
	f.mu.Lock()
	found, ok := f.strays[item]
	f.mu.Unlock()
	held, counts := f.provisioner.ledger.Holds(item.claim)
	if !ok || !counts || held.backend == item.astray {
		return nil
	}
	p := f.provisioner
	own, err := p.Backends.Volumes(held.backend)
	if err != nil {
		return err
	}
	same, err := own.Has(ctx, found.volumeID)
	if err != nil {
		return err
	}
	if !same {
		volumes, err := p.Backends.Volumes(found.backend)
		if err != nil {
			return err
		}
		p.Logger.Warn("A claim has volumes on two backends; the one where it does not count is removed",
			"claimUID", found.stamp.ClaimUID, "volume", found.volumeID, "backend", found.backend, "elsewhere", held.backend)
		if err := volumes.RemoveUnrecorded(p.onBehalfOf(ctx, found.stamp.Tenant), found.volumeID, found.stamp, found.connector); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.strays, item)
	return nil
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
	if undone, void := p.voidRecord(pv); void {
		if err := p.removeVoid(ctx, pv, undone); err != nil {
			return err
		}
	}
	if !f.wantsCompletion(pv) {
		return nil
	}
	origin, err := originOf(pv)
	if err != nil {
		return err
	}
	volumes, err := p.Backends.Volumes(origin.Backend)
	if err != nil {
		return err
	}
	err = volumes.Complete(p.onBehalfOf(ctx, origin.Tenant), origin.target(), readOnly(pv))
	switch backends.KindOf(err) {
	case backends.KindElsewhere:
		err = withRemedy(err, origin)
		p.Recorder.Event(pv, corev1.EventTypeWarning, "VolumeElsewhere", err.Error())
	case backends.KindNotFound:
		p.Recorder.Eventf(pv, corev1.EventTypeWarning, "VolumeMissing", "volume %s does not exist at backend %s any more; its data is lost unless the storage array has a copy", origin.VolumeID, origin.Backend)
		err = nil
	}
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.completed[pv.UID] = true
	}
	return err
}

func (i followup) key() string { return "followup " + i.pv + string(i.claim) + " " + i.astray }

// followupLimiter lets follow-ups share the table of retry delays.
type followupLimiter struct{ limiter *RetryLimiter }

func (l followupLimiter) When(item followup) time.Duration { return l.limiter.When(item.key()) }
func (l followupLimiter) Forget(item followup)             { l.limiter.Forget(item.key()) }
func (l followupLimiter) NumRequeues(item followup) int    { return l.limiter.NumRequeues(item.key()) }
