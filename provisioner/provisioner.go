package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Volumes is the life of one backend's volumes; *backends.Lifecycle is it.
type Volumes interface {
	Connect(ctx context.Context, spec backends.Spec) (backends.Connected, error)
	Complete(ctx context.Context, target backends.Target, readOnly bool) error
	Remove(ctx context.Context, target backends.Target) error
	Abandon(ctx context.Context, stamp backends.Stamp, connector backends.Connector) error
	Holds(ctx context.Context, stamp backends.Stamp) (bool, error)
	Has(ctx context.Context, volumeID string) (bool, error)
	Volumes(ctx context.Context) ([]backends.Volume, error)
	// Untouched says that this term provably made nothing for the claim.
	Untouched(stamp backends.Stamp) bool
	// Health is nil while the backend answers.
	Health() error
}

// Backends gives the volumes of a backend for this term.
type Backends interface {
	// Volumes returns an error when no backend of that name is configured.
	Volumes(name string) (Volumes, error)
	// Connector is what the backend's volumes are connected to.
	Connector(name string) (backends.Connector, error)
	// Mappings says, by protocol, what the backend's connections become.
	Mappings(name string) map[string]mappers.Mapping
	// Names lists every configured backend.
	Names() []string
}

// Options configure a Provisioner.
type Options struct {
	// Name is what StorageClasses and PersistentVolumes call the program.
	Name string
	// Cluster is stamped on every volume.
	Cluster string
	// Namespace is the program's own; its Secrets live there.
	Namespace string

	// Policy returns the policy in force.
	Policy   func() *policy.Policy
	Backends Backends
	Mappers  *mappers.Registry

	Client            kubernetes.Interface
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	Namespaces        corelisters.NamespaceLister
	Classes           storagelisters.StorageClassLister
	Recorder          record.EventRecorder

	// Workers is how many claims, and as many deletions, are worked on at once;
	// the library must have as many.
	Workers int

	// Hold ends when the term is lost; undoing work goes on until then.
	Hold context.Context
	// Stopping is closed when the replica was told to hand over: no new work
	// is taken, and waits are parked for the next leader.
	Stopping <-chan struct{}

	Logger  *slog.Logger
	Metrics *Metrics
}

// Provisioner implements the provisioning library's interfaces for one term.
type Provisioner struct {
	Options
	limiter *RetryLimiter
	ledger  *Ledger
	// freed holds a token while room was freed that nobody was offered yet.
	freed chan struct{}
	// requeue puts objects back in front of the library; see TermInformer.
	requeue Requeue
	paces   *paces
	// leftover hands a claim that is gone to the follow-up, stray a volume of a
	// claim that counts on another backend.
	leftover func(types.UID)
	stray    func(beginning)

	claimTurns  *Turns // by claim UID
	volumeTurns *Turns // by PersistentVolume name
	// waitingClaims wait for a turn; failing ones for their next try; heldBack
	// are deletions that wait for their backend.
	waitingClaims  *objects[*corev1.PersistentVolumeClaim]
	failingClaims  *objects[*corev1.PersistentVolumeClaim]
	failingVolumes *objects[*corev1.PersistentVolume]
	heldBack       *objects[*corev1.PersistentVolume]
	// toldHeldBack are those whose authors were told so.
	toldHeldBack *objects[*corev1.PersistentVolume]
	counting     *counting
	// helpedDenied and helpedFailed count what could help; see news.
	helpedDenied atomic.Uint64
	helpedFailed atomic.Uint64

	mu sync.Mutex
	// full holds what Cinder's own quotas have no room for.
	full map[fullAt]fullness
	// denied holds the claims that are turned away, said what each was told
	// last.
	denied map[types.UID]denial
	said   map[types.UID]said
	// removed holds PersistentVolumes, by UID, whose volumes are gone. Until
	// the object is gone too, the library may ask again at every change of it.
	removed map[types.UID]bool
	// begun holds claims for which a volume may exist while no
	// PersistentVolume is recorded yet.
	begun map[types.UID]beginning
}

// beginning is what it takes to undo a claim's provisioning.
type beginning struct {
	backend   string
	stamp     backends.Stamp
	connector backends.Connector
}

var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
	_ controller.DeletionGuard    = (*Provisioner)(nil)
)

// New makes the provisioner of one term.
func New(options Options) *Provisioner {
	p := &Provisioner{
		Options: options,
		limiter: NewRetryLimiter(),
		ledger:  NewLedger(options.Policy),
		freed:   make(chan struct{}, 1),
		requeue: Requeue{Claim: func(*corev1.PersistentVolumeClaim) {}, Volume: func(*corev1.PersistentVolume) {}},
		paces:   newPaces(options.Policy),

		leftover: func(types.UID) {},
		stray:    func(beginning) {},

		waitingClaims:  newObjects[*corev1.PersistentVolumeClaim](),
		failingClaims:  newObjects[*corev1.PersistentVolumeClaim](),
		failingVolumes: newObjects[*corev1.PersistentVolume](),
		heldBack:       newObjects[*corev1.PersistentVolume](),
		toldHeldBack:   newObjects[*corev1.PersistentVolume](),
		counting:       newCounting(),

		full:    map[fullAt]fullness{},
		denied:  map[types.UID]denial{},
		said:    map[types.UID]said{},
		begun:   map[types.UID]beginning{},
		removed: map[types.UID]bool{},
	}
	p.claimTurns = NewTurns(options.Workers, p.ownTurns, p.inviteClaim)
	p.volumeTurns = NewTurns(options.Workers, p.ownTurns, p.inviteVolume)
	return p
}

// Limiter is the retry delays of this term, for the library's queues.
func (p *Provisioner) Limiter() *RetryLimiter { return p.limiter }

// SupportsBlock says that raw block claims are served.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// ShouldDelete keeps the library from starting deletions while handing over,
// while the backend does not answer, and while others have their turn.
func (p *Provisioner) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	if p.stopping() {
		return false
	}
	news := p.news()
	released := pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	origin, err := originOf(pv)
	if !released || err != nil || p.isRemoved(pv.UID) {
		// The library sees that too, or Delete says what is wrong.
		return true
	}
	if unhealthy := p.health(origin.Backend); unhealthy != nil {
		p.volumeTurns.End(pv.Name)
		p.holdVolumeBack(pv, unhealthy, news)
		return false
	}
	return p.volumeTurns.Take(pv.Name, origin.Tenant, origin.Backend)
}

func (p *Provisioner) stopping() bool {
	select {
	case <-p.Stopping:
		return true
	default:
		return p.Hold.Err() != nil
	}
}

// handingOver is returned instead of an error when work is parked: the library
// then neither writes an event nor retries.
func handingOver() error {
	return &controller.IgnoredError{Reason: "this replica hands over; the next leader goes on"}
}

// Provision makes, or finds again, the volume of a claim and returns the
// PersistentVolume for it. Any step may have been done by an earlier attempt,
// of this leader or another.
func (p *Provisioner) Provision(ctx context.Context, options controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	started := time.Now()
	claim := options.PVC
	attempt := &attempt{p: p, claim: claim, class: options.StorageClass, pvName: options.PVName, news: p.news()}
	defer p.claimTurns.End(string(claim.UID))
	defer p.leaveIfGone(claim)
	pv, err := attempt.run(ctx)
	switch {
	case err == nil:
		p.failingClaims.take(claim.UID)
		p.forgetSaid(claim.UID)
		p.limiter.Succeeded(string(claim.UID))
		p.Metrics.provisioned(attempt.backend, attempt.protocol, "success", time.Since(started))
		return pv, controller.ProvisioningFinished, nil
	case p.stopping() || errors.Is(err, errNothingToDo):
		return nil, controller.ProvisioningFinished, ignored(err)
	}
	if unhealthy := p.health(attempt.backend); unhealthy != nil {
		p.Metrics.provisioned(attempt.backend, attempt.protocol, "held_back", time.Since(started))
		p.deny(claim, *unavailable([]PassedOver{{attempt.backend, unhealthy.Error()}}), attempt.news)
		return nil, controller.ProvisioningFinished, &controller.IgnoredError{Reason: unhealthy.Error()}
	}
	if backends.IsKind(err, backends.KindOverQuota) {
		p.noteFull(attempt.backend, attempt.decision.Volume, err)
		if p.couldGoElsewhere(claim.UID, attempt.decision) {
			p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
			return nil, controller.ProvisioningFinished, &controller.IgnoredError{Reason: err.Error()}
		}
	}
	retry := retryFor(err)
	p.limiter.Failed(string(claim.UID), retry)
	p.failingClaims.add(claim, 0)
	if p.news().failed != attempt.news.failed {
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
	p.Metrics.provisioned(attempt.backend, attempt.protocol, retry.outcome, time.Since(started))
	// Finished, although the volume may be there: what an unfinished attempt
	// leaves is remembered in begun and at Cinder, not in the library, whose
	// memory ends with the process.
	return nil, controller.ProvisioningFinished, err
}

func ignored(err error) error {
	if errors.Is(err, errNothingToDo) {
		return &controller.IgnoredError{Reason: err.Error()}
	}
	return handingOver()
}

// errNothingToDo ends an attempt for which there is no reason any more.
var errNothingToDo = errors.New("the claim is gone or no longer granted")

// Delete removes everything behind a released PersistentVolume. It reads only
// the PersistentVolume: no rule of the current policy takes part.
func (p *Provisioner) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.UID == "" {
		// The library could not save this object and wants its volume gone. An
		// answer that was lost may still mean that the object is saved, so the
		// volume stays: the next attempt adopts it, or finds the object.
		return nil
	}
	if p.isRemoved(pv.UID) {
		return nil
	}
	started, news := time.Now(), p.news()
	origin, err := originOf(pv)
	if err == nil {
		err = p.mayDelete(pv, origin)
	}
	if err == nil {
		if !p.volumeTurns.Begin(pv.Name, origin.Tenant, origin.Backend) {
			return &controller.IgnoredError{Reason: "others have their turn"}
		}
		defer p.volumeTurns.End(pv.Name)
		err = p.remove(p.onBehalfOf(ctx, origin.Tenant), pv, &origin)
	}
	switch {
	case err == nil:
		p.noteRemoved(pv.UID, true)
		p.failingVolumes.take(pv.UID)
		p.limiter.Succeeded(pv.Name)
		p.Metrics.deleted(origin.Backend, origin.Protocol, "success", time.Since(started))
		return nil
	case p.stopping():
		return handingOver()
	}
	if unhealthy := p.health(origin.Backend); unhealthy != nil {
		p.Metrics.deleted(origin.Backend, origin.Protocol, "held_back", time.Since(started))
		p.holdVolumeBack(pv, unhealthy, news)
		return &controller.IgnoredError{Reason: unhealthy.Error()}
	}
	retry := retryFor(err)
	p.limiter.Failed(pv.Name, retry)
	p.failingVolumes.add(pv, 0)
	if p.news().failed != news.failed {
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
	p.Metrics.deleted(origin.Backend, origin.Protocol, retry.outcome, time.Since(started))
	return err
}

// mayDelete refuses objects whose volume somebody else may use: one that came
// here from another cluster, by a backup perhaps, and one without a stamp that a
// second object names.
func (p *Provisioner) mayDelete(pv *corev1.PersistentVolume, origin Origin) error {
	if !origin.Historic {
		if origin.Cluster != p.Cluster {
			return damaged(pv, annotationCluster, fmt.Sprintf("is %q, but this cluster's id is %q: the volume is the other cluster's", origin.Cluster, p.Cluster))
		}
		return nil
	}
	all, err := p.PersistentVolumes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.UID != pv.UID && (other.Annotations[historicAnnotationVolume] == origin.VolumeID || other.Annotations[annotationVolume] == origin.VolumeID) {
			return damaged(pv, historicAnnotationVolume, fmt.Sprintf("names volume %s, and so does PersistentVolume %s", origin.VolumeID, other.Name))
		}
	}
	return nil
}

func (p *Provisioner) remove(ctx context.Context, pv *corev1.PersistentVolume, origin *Origin) error {
	if origin.Historic && origin.Backend == "" {
		backend, err := p.locateHistoric(ctx, origin)
		if err != nil {
			return err
		}
		if err := p.pinHistoric(ctx, pv, backend); err != nil {
			return err
		}
		origin.Backend = backend
	}
	volumes, err := p.Backends.Volumes(origin.Backend)
	if err != nil {
		return fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
	}
	if err := volumes.Remove(ctx, origin.target()); err != nil {
		return err
	}
	// Only now: while the volume exists a node may still need the credentials
	// to log out, and the PersistentVolume must not refer to nothing.
	return p.deleteSecret(ctx, *origin)
}

func (p *Provisioner) isRemoved(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removed[uid]
}

func (p *Provisioner) noteRemoved(uid types.UID, removed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if removed {
		p.removed[uid] = true
		return
	}
	delete(p.removed, uid)
}

// volumeGone forgets a PersistentVolume.
func (p *Provisioner) volumeGone(pv *corev1.PersistentVolume) {
	p.noteRemoved(pv.UID, false)
	p.failingVolumes.take(pv.UID)
	p.heldBack.take(pv.UID)
	p.toldHeldBack.take(pv.UID)
	p.limiter.Gone(pv.Name)
	p.volumeTurns.End(pv.Name)
}

// ClaimGone undoes what was begun for a claim that was deleted before its
// PersistentVolume was recorded. The error says that it must be tried again.
func (p *Provisioner) ClaimGone(ctx context.Context, uid types.UID) error {
	p.forgetDenial(uid)
	p.forgetSaid(uid)
	p.limiter.Gone(string(uid))
	p.failingClaims.take(uid)
	p.waitingClaims.take(uid)
	p.claimTurns.End(string(uid))
	begun, ok := p.beginningOf(uid)
	if !ok {
		p.giveBack(uid)
		return nil
	}
	return p.undo(p.onBehalfOf(ctx, begun.stamp.Tenant), uid, begun)
}

func (p *Provisioner) beginningOf(uid types.UID) (beginning, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	begun, ok := p.begun[uid]
	return begun, ok
}

// isRecorded asks the API server itself whether a PersistentVolume exists: one
// that was saved a moment ago may not be in the cache yet.
func (p *Provisioner) isRecorded(ctx context.Context, name string) (bool, error) {
	if _, err := p.PersistentVolumes.Get(name); err == nil {
		return true, nil
	}
	_, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", name, err)
	}
	return true, nil
}

// undo removes the volume and Secret of an attempt, on a context that the
// end of the attempt does not cut short. It does nothing once a
// PersistentVolume is recorded: its reclaim policy decides then, and Delete
// does the rest.
func (p *Provisioner) undo(ctx context.Context, uid types.UID, begun beginning) error {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(p.Hold, cancel)()
	recorded, err := p.isRecorded(lasting, begun.stamp.PV)
	if err != nil {
		return err
	}
	if recorded {
		p.finish(uid)
		return nil
	}
	volumes, err := p.Backends.Volumes(begun.backend)
	if err != nil {
		return err
	}
	if err := volumes.Abandon(lasting, begun.stamp, begun.connector); err != nil {
		return err
	}
	if err := p.deleteOwnSecret(lasting, begun.stamp.PV); err != nil {
		return err
	}
	p.finish(uid)
	p.release(uid)
	p.Logger.Info("Undid what was begun for a claim", "claimUID", uid, "backend", begun.backend)
	return nil
}

// begin remembers an attempt, and reports whether it is the term's first.
func (p *Provisioner) begin(uid types.UID, b beginning) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, before := p.begun[uid]
	p.begun[uid] = b
	return !before
}

func (p *Provisioner) finish(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.begun, uid)
}
