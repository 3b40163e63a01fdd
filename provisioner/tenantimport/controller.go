// Package tenantimport gives volumes that exist at Cinder to the claims of tenants
// that ask for one with an annotation, if the policy's rule grants it.
//
// The hub leaves such claims alone. Of the hub and this controller, the first to
// reserve a claim's room in the ledger works on it: if a new volume was begun before
// the claim's author asked for an import, the claim keeps the new volume. The plan and
// the steps are those of the command (provisioner/imports). All state is in the stamp
// on the volume and the PersistentVolume. From these the next leader continues, or ends
// what was begun for a claim that is gone.
package tenantimport

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	eventrecord "k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/fairshare"
	"github.com/standalone-cinder/standalone-cinder/provisioner/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/tracing"
	"github.com/standalone-cinder/standalone-cinder/provisioner/trail"
)

// Volumes are the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	imports.Volumes
	// Volume reads a single volume.
	Volume(ctx context.Context, id string) (cinder.Volume, error)
}

// Options configure a Controller.
type Options struct {
	// Name is the provisioner's name in StorageClasses; Cluster and ClusterUID are
	// stamped on volumes; Namespace is where their Secrets are.
	Name, Cluster, ClusterUID, Namespace string

	// Policy returns the policy in force.
	Policy func() *policy.Policy
	Room   *placement.Placer
	// Volumes and Connector return an error if no backend of that name is configured.
	Volumes   func(backend string) (Volumes, error)
	Connector func(backend string) (cinder.Connector, error)
	Mappers   *mappers.Registry
	Nodes     imports.Nodes
	// KeepSecret writes the Secret of a claim's PersistentVolume, and remembers it for
	// the claim until the PersistentVolume is seen, or DropSecrets is called.
	KeepSecret  func(ctx context.Context, claim types.UID, pvName, backend string, secret mappers.Secret, fresh bool) error
	DropSecrets func(ctx context.Context, claim types.UID, pvName, backend string) error
	// OnBehalfOf marks requests to Cinder as a tenant's.
	OnBehalfOf func(ctx context.Context, tenant string) context.Context
	// Provision brings back a claim that is to get a new volume.
	Provision func(claim *corev1.PersistentVolumeClaim)

	Client   kubernetes.Interface
	Caches   record.Objects
	Recorder eventrecord.EventRecorder

	// Workers is how many volumes are imported at once. No backend and no tenant
	// occupies more of them than are still free.
	Workers int
	// ShareListings is how long a listing of a backend may serve other claims.
	ShareListings time.Duration

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait
	// for, except turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound

	Logger *slog.Logger
	Tracer tracing.Tracer
	// Count counts an attempt by its outcome.
	Count func(outcome string)
}

// Controller imports volumes for one term.
type Controller struct {
	Options
	// queue holds the keys of claims, and those of leftovers.
	queue   workqueue.TypedRateLimitingInterface[string]
	limiter *backoff.Limiter
	turns   *fairshare.Turns[string]
	// parked are the claims that wait for a trigger, with the events about them.
	parked  *parking.Lot[*corev1.PersistentVolumeClaim]
	history *parking.History

	mu sync.Mutex
	// busy holds the IDs of the volumes that are being worked on; contested, those that
	// another party reserved in the meantime.
	busy, contested map[string]bool
	left            map[types.UID]leftover
	listings        map[string]*listing
}

// leftover is what the import for a claim that is now gone may have begun.
type leftover struct{ backend, volume, tenant string }

// leftKey begins the keys of leftovers. No namespace has a space.
const leftKey = "left by "

// New makes the controller of one term.
func New(options Options) *Controller {
	c := &Controller{
		Options: options, limiter: backoff.New(retry.For(nil)), parked: parking.NewLot[*corev1.PersistentVolumeClaim](), history: parking.NewHistory(),
		busy: map[string]bool{}, contested: map[string]bool{}, left: map[types.UID]leftover{}, listings: map[string]*listing{},
	}
	c.queue = workqueue.NewTypedRateLimitingQueueWithConfig[string](c.limiter, workqueue.TypedRateLimitingQueueConfig[string]{Name: "imports"})
	c.turns = fairshare.New(options.Workers, func(string) int { return 0 }, c.queue.Add)
	return c
}

// Parked returns the claims that wait, with the reasons.
func (c *Controller) Parked() *parking.Lot[*corev1.PersistentVolumeClaim] { return c.parked }

// Run works until the context ends, and returns when nothing is running.
func (c *Controller) Run(ctx context.Context) {
	var group sync.WaitGroup
	for range c.Workers {
		group.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	group.Go(func() { c.Monitor.Follow(ctx, "the queue of imports", c.MaxWorkTime, c.turns.Progress) })
	<-ctx.Done()
	c.queue.ShutDown()
	group.Wait()
}

// Consider queues a claim that waits for an import, and forgets one that no longer
// waits.
func (c *Controller) Consider(claim *corev1.PersistentVolumeClaim) {
	switch {
	case !c.wants(claim):
		c.over(claim)
	case c.parked.Holds(claim.UID):
		// Its author may write in a loop. Until the next listing, the answer is known.
		c.queue.AddAfter(keyOf(claim), c.ShareListings)
	default:
		c.queue.Add(keyOf(claim))
	}
}

// wants reports whether a claim waits for an import. An import that was begun goes on
// even without the annotation.
func (c *Controller) wants(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return false
	}
	position, counts := c.Room.Ledger.PositionOf(claim.UID)
	return record.AsksForImport(claim) || counts && position.Imported
}

// ClaimChanged records that a claim changed, or is to be checked again.
func (c *Controller) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	if before.ResourceVersion == after.ResourceVersion || relevantFields(before) != relevantFields(after) {
		c.Consider(after)
	}
}

// relevantFields returns the parts of a claim that can begin, change or end an import.
func relevantFields(claim *corev1.PersistentVolumeClaim) [5]string {
	volume, asks := claim.Annotations[record.AnnotationImport]
	if asks {
		volume = "asks for " + volume
	}
	deleted := ""
	if claim.DeletionTimestamp != nil {
		deleted = "deleted"
	}
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return [5]string{volume, deleted, claim.Spec.VolumeName, requested.String(), record.ClassName(claim)}
}

// ClaimGone ends what was begun for a claim that was deleted.
func (c *Controller) ClaimGone(claim *corev1.PersistentVolumeClaim) {
	c.over(claim)
	if position, counts := c.Room.Ledger.PositionOf(claim.UID); counts && position.Imported {
		c.end(claim.UID, leftover{backend: position.Backend, volume: position.VolumeID, tenant: position.Tenant})
	}
}

// Left ends what was begun for a claim that is gone and whose volume a listing showed.
// A volume that is available or in use has been left behind, and stays as it is.
func (c *Controller) Left(backend string, v cinder.Volume) {
	if v.Status == cinder.StatusAvailable || v.Status == cinder.StatusInUse {
		return
	}
	stamp := stamps.Of(v)
	c.end(types.UID(stamp.ClaimUID), leftover{backend: backend, volume: v.ID, tenant: stamp.Tenant})
}

func (c *Controller) end(claim types.UID, left leftover) {
	c.mu.Lock()
	c.left[claim] = left
	c.mu.Unlock()
	c.queue.Add(leftKey + string(claim))
}

// over forgets a claim that no longer waits for an import.
func (c *Controller) over(claim *corev1.PersistentVolumeClaim) {
	c.parked.Forget(claim.UID)
	c.limiter.Gone(keyOf(claim))
	c.turns.Leave(keyOf(claim))
}

// Wake continues the imports that any of the triggers may unblock.
func (c *Controller) Wake(triggers []parking.Trigger) {
	c.history.Note(triggers)
	for _, claim := range c.parked.TriggeredBy(triggers) {
		c.queue.Add(keyOf(claim))
	}
}

// park keeps a claim until a trigger fires. If one has fired since the given moment,
// the claim comes back at once.
func (c *Controller) park(claim *corev1.PersistentVolumeClaim, reason parking.Reason, triggers []parking.Trigger, since parking.Moment) {
	c.parked.Park(claim, reason, triggers)
	if c.history.Since(since, triggers) {
		c.queue.Add(keyOf(claim))
	}
}

// next works on one key, and returns false when the queue is shut down.
func (c *Controller) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if ctx.Err() != nil {
		return true // drain the queue; the next leader sees the same objects
	}
	if claim, isLeft := strings.CutPrefix(key, leftKey); isLeft {
		task := c.Monitor.Begin("the worker that ends the import for claim UID "+claim, c.MaxWorkTime)
		defer task.End()
		c.workOnLeft(task.In(ctx), key, types.UID(claim))
		return true
	}
	task := c.Monitor.Begin("the worker that imports a volume for claim "+key, c.MaxWorkTime)
	defer task.End()
	c.work(task.In(ctx), key)
	return true
}

// work takes the claim's turn. A claim without a turn is invited back.
func (c *Controller) work(ctx context.Context, key string) {
	since := c.history.Now()
	claim, ok := record.Cached[*corev1.PersistentVolumeClaim](c.Caches.Claims, key)
	if !ok {
		return // ClaimGone follows, or was called already
	}
	if !c.wants(claim) {
		c.over(claim)
		return
	}
	class, ok := record.Cached[*storagev1.StorageClass](c.Caches.Classes, record.ClassName(claim))
	if !ok || !record.IsServed(class.Provisioner, c.Name) {
		// If the class is missing, the hub reports that, and returns the claim.
		return
	}
	a := &attempt{c: c, key: key, cached: claim, class: class.Name, driver: record.DriverOf(class), since: since}
	if denial := a.decide(); denial != nil {
		c.settle(ctx, a, &deniedError{placement.DenialOf(denial)})
		return
	}
	if !c.turns.Begin(key, a.decision.Tenant, a.decision.Backends[0]) {
		return
	}
	defer c.turns.End(key)
	c.parked.Take(claim.UID)
	ctx, span := c.Tracer.Start(ctx, string(claim.UID), "import", tracing.Namespace.String(claim.Namespace), tracing.Claim.String(claim.Name), tracing.Tenant.String(a.decision.Tenant))
	started := time.Now()
	ctx, a.requests = trail.WithRequestIDs(ctx)
	err := a.run(c.OnBehalfOf(ctx, a.decision.Tenant))
	a.took = time.Since(started)
	span.Note(tracing.Backend.String(a.backend), tracing.Volume.String(a.volume.ID))
	span.End(err)
	c.settle(ctx, a, err)
	if now, ok := record.Cached[*corev1.PersistentVolumeClaim](c.Caches.Claims, key); !ok || now.UID != claim.UID {
		// ClaimGone may have been called before the attempt reserved anything.
		c.ClaimGone(claim)
	}
}

// hold keeps other workers from a volume, and returns false if one already has it.
func (c *Controller) hold(volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[volume] {
		return false
	}
	c.busy[volume] = true
	return true
}

func (c *Controller) letGo(volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, volume)
}

// noteContest remembers that another party reserved a volume, because it may be
// impossible to note that on the volume.
func (c *Controller) noteContest(volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contested[volume] = true
}

func (c *Controller) isContested(v cinder.Volume) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.Status == cinder.StatusAvailable {
		delete(c.contested, v.ID)
	}
	return c.contested[v.ID]
}

func keyOf(claim *corev1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }
