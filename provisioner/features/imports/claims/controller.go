// Package claims gives volumes that exist at Cinder to the claims of tenants
// that ask for one with an annotation, if the policy's rule grants it.
//
// The hub leaves such claims alone. Of the hub and this controller, the first to
// reserve a claim's room in the ledger works on it: if a new volume was begun before
// the claim's author asked for an import, the claim keeps the new volume. The plan and
// the steps are those of the command (provisioner/features/imports). All state is in the stamp
// on the volume and the PersistentVolume. From these the next leader continues, or ends
// what was begun for a claim that is gone.
package claims

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// Volumes are the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	imports.Volumes
	// Look reads a single volume, and returns where. The zero Volume means that it is gone;
	// where the backend may lead to another place, nothing is.
	Look(ctx context.Context, target backends.Target) (cinder.Volume, cinder.Place, error)
}

// Options configure a Controller.
type Options struct {
	imports.Site

	// Policy returns the policy in force.
	Policy func() *policy.Policy
	Room   *placement.Placer
	// Volumes and Connector return an error if no backend of that name is configured.
	Volumes   func(backend string) (Volumes, error)
	Connector func(backend string) (cinder.Connector, error)
	// OnBehalfOf marks requests to Cinder as a tenant's.
	OnBehalfOf func(ctx context.Context, tenant string) context.Context
	// Provision brings back a claim that is to get a new volume.
	Provision func(claim *corev1.PersistentVolumeClaim)
	Recorder  eventrecord.EventRecorder

	// Workers is how many volumes are imported at once. No backend and no tenant
	// occupies more of them than are still free.
	Workers int
	// ShareListings is how long a listing of a backend may serve other claims.
	ShareListings time.Duration

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait
	// for, except turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound

	// Board is where the term publishes what may unblock work.
	Board  *parking.Board
	Logger *slog.Logger
	Tracer tracing.Tracer
	// Count counts an attempt by its outcome.
	Count func(outcome string)
}

// Controller imports volumes for one term.
type Controller struct {
	Options
	// loop works on the keys of claims, and on those of leftovers.
	loop *worker.Loop[string]
	// parked are the claims that wait, with the events about them.
	parked *parking.Lot[*corev1.PersistentVolumeClaim]

	// busy holds the IDs of the volumes that a worker works on, alone; contested, those that
	// another party reserved in the meantime, which it may be impossible to note on the
	// volume; places, where the volumes of imports under way are, by the claims' UIDs.
	busy, contested, places sync.Map

	mu       sync.Mutex
	left     map[types.UID]leftover
	listings map[string]*listing
}

// leftover is what the import for a claim that is now gone may have begun.
type leftover struct {
	backend, volume, tenant string
	place                   cinder.Place // unknown if only a listing has shown it
}

// leftKey begins the keys of leftovers. No namespace has a space.
const leftKey = "left by "

// turn is an attempt at a key of the loop.
type turn = worker.Attempt[string]

// New makes the controller of one term.
func New(options Options) *Controller {
	c := &Controller{
		Options: options, parked: parking.NewLot[*corev1.PersistentVolumeClaim](), left: map[types.UID]leftover{}, listings: map[string]*listing{},
	}
	c.loop = worker.New(worker.Options[string]{
		Name: "imports", Workers: options.Workers, Do: c.do, OwnTurns: func(tenant string) int { return c.Policy().ConcurrencyOf(tenant) }, Describe: describe,
		Board: options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return c
}

func describe(key string) string {
	if claim, isLeft := strings.CutPrefix(key, leftKey); isLeft {
		return "the worker that ends the import for claim UID " + claim
	}
	return "the worker that imports a volume for claim " + key
}

// Parked returns the claims that wait, with the reasons.
func (c *Controller) Parked() *parking.Lot[*corev1.PersistentVolumeClaim] { return c.parked }

// Run works until the context ends, and returns when nothing is running.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

// Consider queues a claim that waits for an import, and forgets one that no longer
// waits.
func (c *Controller) Consider(claim *corev1.PersistentVolumeClaim) {
	switch {
	case !c.wants(claim):
		c.over(claim)
	case c.parked.Holds(claim.UID):
		// Its author may write in a loop. Until the next listing, the answer is known.
		c.loop.Queue.AddAfter(keyOf(claim), c.ShareListings)
	default:
		c.loop.Queue.Add(keyOf(claim))
	}
}

// wants reports whether a claim waits for an import. An import that was begun goes on
// even without the annotation.
func (c *Controller) wants(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return false
	}
	position, counts := c.Room.Ledger.PositionOf(claim.UID)
	return objects.AsksForImport(claim) || counts && position.Imported
}

// ClaimChanged records that a claim was seen first (before is nil), changed, is to be
// checked again, or is gone (after is nil).
func (c *Controller) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case after == nil:
		c.claimGone(before)
	case before == nil || before.ResourceVersion == after.ResourceVersion || relevantFields(before) != relevantFields(after):
		c.Consider(after)
	}
}

// relevantFields returns the parts of a claim that can begin, change or end an import.
func relevantFields(claim *corev1.PersistentVolumeClaim) [5]string {
	volume, asks := claim.Annotations[objects.AnnotationImport]
	if asks {
		volume = "asks for " + volume
	}
	deleted := ""
	if claim.DeletionTimestamp != nil {
		deleted = "deleted"
	}
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return [5]string{volume, deleted, claim.Spec.VolumeName, requested.String(), objects.ClassName(claim)}
}

// claimGone ends what was begun for a claim that was deleted.
func (c *Controller) claimGone(claim *corev1.PersistentVolumeClaim) {
	place := c.placeOf(claim.UID)
	c.over(claim)
	if position, counts := c.Room.Ledger.PositionOf(claim.UID); counts && position.Imported {
		c.end(claim.UID, leftover{position.Backend, position.VolumeID, position.Tenant, place})
	}
}

// Left ends what was begun for a claim that is gone and whose volume a listing showed.
// A volume that is in use, or was imported a while ago and is available, has been left
// behind. It stays as it is, with its Secrets.
func (c *Controller) Left(backend string, v cinder.Volume) {
	if v.Status == cinder.StatusInUse || v.Status == cinder.StatusAvailable && stamps.IsWellAfterRequest(v, time.Now()) {
		return
	}
	stamp := stamps.Of(v)
	c.end(types.UID(stamp.ClaimUID), leftover{backend: backend, volume: v.ID, tenant: stamp.Tenant})
}

func (c *Controller) end(claim types.UID, left leftover) {
	c.mu.Lock()
	c.left[claim] = left
	c.mu.Unlock()
	c.loop.Queue.Add(leftKey + string(claim))
}

// over forgets a claim that no longer waits for an import.
func (c *Controller) over(claim *corev1.PersistentVolumeClaim) {
	c.parked.Forget(claim.UID)
	c.loop.Forget(keyOf(claim))
	c.places.Delete(claim.UID)
}

// placeOf returns where the volume of a claim's import is; zero if that is not known.
func (c *Controller) placeOf(claim types.UID) cinder.Place {
	place, _ := c.places.Load(claim)
	known, _ := place.(cinder.Place)
	return known
}

// do takes a claim's turn, or a leftover's.
func (c *Controller) do(ctx context.Context, at *turn) worker.Outcome {
	if claim, isLeft := strings.CutPrefix(at.Key, leftKey); isLeft {
		return c.doLeft(ctx, at, types.UID(claim))
	}
	claim, ok := objects.Cached[*corev1.PersistentVolumeClaim](c.Caches.Claims, at.Key)
	if !ok {
		return worker.Outcome{Done: true} // ClaimGone follows, or was called already
	}
	if !c.wants(claim) {
		c.over(claim)
		return worker.Outcome{}
	}
	class, ok := objects.Cached[*storagev1.StorageClass](c.Caches.Classes, objects.ClassName(claim))
	if !ok || !objects.IsServed(class.Provisioner, c.ProvisionerName) {
		// If the class is missing, the hub reports that, and returns the claim, unless that
		// was here when the class went.
		at.Await(parking.Trigger{Kind: parking.Class, Name: objects.ClassName(claim)})
		return worker.Outcome{}
	}
	a := &attempt{c: c, turn: at, cached: claim, class: class.Name, driver: objects.DriverOf(class)}
	if denial := a.decide(); denial != nil {
		return c.settle(ctx, a, &deniedError{placement.DenialOf(denial)})
	}
	if !at.Begin(a.decision.Tenant, a.decision.Backends[0]) {
		return worker.Outcome{}
	}
	c.parked.Take(claim.UID)
	ctx, span := c.Tracer.Start(ctx, string(claim.UID), "import", tracing.Namespace.String(claim.Namespace), tracing.Claim.String(claim.Name), tracing.Tenant.String(a.decision.Tenant))
	started := time.Now()
	ctx, a.requests = requestids.WithRequestIDs(ctx)
	err := a.run(c.OnBehalfOf(ctx, a.decision.Tenant))
	a.took = time.Since(started)
	span.Note(tracing.Backend.String(a.backend), tracing.Volume.String(a.volume.ID))
	span.End(err)
	outcome := c.settle(ctx, a, err)
	if now, ok := objects.Cached[*corev1.PersistentVolumeClaim](c.Caches.Claims, at.Key); !ok || now.UID != claim.UID {
		// ClaimGone may have been called before the attempt reserved anything.
		c.claimGone(claim)
	}
	return outcome
}

func (c *Controller) isContested(v cinder.Volume) bool {
	if v.Status == cinder.StatusAvailable {
		c.contested.Delete(v.ID)
	}
	_, contested := c.contested.Load(v.ID)
	return contested
}

func keyOf(claim *corev1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }
