// Package expand makes volumes larger when their claims ask for more, and follows the
// protocol of KEP-1790 on the claims, as external-resizer does for CSI drivers.
//
// The steps of an expansion are: the policy admits the new size (decide.go), the quotas
// have room for the difference, the claim says that it is being resized, Cinder extends
// the volume, the PersistentVolume gets the new size, and so does the claim. The next
// step follows from claim, PersistentVolume and volume alone (plan.go), so that a new
// leader continues where the last one stopped.
package expand

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// Volumes extends the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	Extend(ctx context.Context, target backends.Target, sizeGiB int64) (cinder.Volume, error)
}

// Room places the growth of volumes; *placement.Placer implements it.
type Room interface {
	// Grow reserves room for a volume's growth.
	Grow(ctx context.Context, claim types.UID, d ledger.Decided) (*placement.Denial, error)
	// Health returns nil while a backend answers; Unanswered returns the denial if it
	// does not.
	Health(backend string) error
	Unanswered(backend string, unhealthy error) *placement.Denial
}

// Growths counts the growth of volumes; *ledger.Ledger implements it.
type Growths interface {
	// HoldGrowth reserves, until SettleGrowth and regardless of quotas, room for a growth
	// that may have been requested from Cinder.
	HoldGrowth(claim types.UID, sizeGiB int64)
	// IsGrowing reports whether anything is reserved.
	IsGrowing(claim types.UID) bool
	// GiveUpGrowth frees what is reserved. It returns false if the reservation is held.
	GiveUpGrowth(claim types.UID) bool
	// SettleGrowth ends the reservation in any case, when nothing extends the volume
	// any more. The size is the one that Cinder shows, or 0 if it refused.
	SettleGrowth(claim types.UID, sizeGiB int64)
}

// Options configure a Controller.
type Options struct {
	// Name is the provisioner's name in PersistentVolumes; Cluster is the ID that is
	// stamped on volumes.
	Name, Cluster string

	// Policy returns the policy in force.
	Policy  func() *policy.Policy
	Room    Room
	Growths Growths
	// Volumes returns an error if no backend of that name is configured.
	Volumes func(backend string) (Volumes, error)
	// OnBehalfOf marks requests to Cinder as a tenant's.
	OnBehalfOf func(ctx context.Context, tenant string) context.Context

	Client            kubernetes.Interface
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	Namespaces        corelisters.NamespaceLister
	Recorder          eventrecord.EventRecorder

	// Sidecar means that the CSI driver's sidecar requests the expansion of volumes in
	// mode csi.
	Sidecar bool
	// TrustParameters means that a caller of the driver may expand the volumes of
	// claims that were made for it, although the claims do not ask for it.
	TrustParameters bool

	// Workers is how many volumes are extended at once. No backend and no tenant
	// occupies more of them than are still free.
	Workers int

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait
	// for, except turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound

	// Board is where the term publishes what may unblock work.
	Board   *parking.Board
	Logger  *slog.Logger
	Metrics *Metrics
	Tracer  tracing.Tracer
}

// Controller expands volumes for one term.
type Controller struct {
	Options
	// loop works on the keys of claims.
	loop *worker.Loop[string]
	// parked are the claims that wait, with the events about them.
	parked *parking.Lot[*corev1.PersistentVolumeClaim]
	// gone holds the claims that were deleted while their volumes were growing.
	gone goneClaims
	// calls holds the claims whose volumes a sidecar's call, or look, is asking Cinder
	// about.
	calls calls
}

type attempt = worker.Attempt[string]

// New makes the controller of one term.
func New(options Options) *Controller {
	c := &Controller{Options: options, parked: parking.NewLot[*corev1.PersistentVolumeClaim]()}
	c.loop = worker.New(worker.Options[string]{
		Name: "expansions", Workers: options.Workers, Do: c.do, OwnTurns: func(tenant string) int { return c.Policy().ConcurrencyOf(tenant) },
		Describe: func(key string) string { return "the worker that expands the volume of claim " + key },
		Board:    options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return c
}

// Parked returns the claims whose volumes cannot grow now.
func (c *Controller) Parked() *parking.Lot[*corev1.PersistentVolumeClaim] { return c.parked }

// Run works until the context ends, and returns when nothing is running.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

// ClaimChanged records that a claim was seen first (before is nil), changed, is to be
// checked again, or is gone (after is nil). It ignores changes that this controller wrote
// itself.
func (c *Controller) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case before == nil:
		c.claimSeen(after)
	case after == nil:
		c.claimGone(before)
	case before.ResourceVersion == after.ResourceVersion || relevantFields(before) != relevantFields(after):
		c.consider(after)
	}
}

// claimSeen lets the volume of a claim count with its new size from now on if an earlier
// leader may have had it extended.
func (c *Controller) claimSeen(claim *corev1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName == "" {
		return
	}
	if claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimControllerResizeInProgress {
		c.Growths.HoldGrowth(c.countedAs(claim), sizeOf(storage(claim.Status.AllocatedResources)))
	}
	c.consider(claim)
}

// relevantFields returns the parts of a claim that can begin, change or end an
// expansion.
func relevantFields(claim *corev1.PersistentVolumeClaim) [6]string {
	wanted, limit, has := requested(claim), storage(claim.Spec.Resources.Limits), storage(claim.Status.Capacity)
	deleted := ""
	if claim.DeletionTimestamp != nil {
		deleted = "deleted"
	}
	return [6]string{wanted.String(), limit.String(), has.String(), claim.Annotations[AnnotationGrown], claim.Spec.VolumeName + " " + string(claim.Status.Phase), deleted}
}

// countedAs returns the UID under which a claim's volume counts: that of the claim that
// it was made for. Anybody may name a PersistentVolume in a claim, and Kubernetes calls
// that Lost if an annotation says that it was bound; only Bound means that the claim has it.
func (c *Controller) countedAs(claim *corev1.PersistentVolumeClaim) types.UID {
	if claim.Status.Phase != corev1.ClaimBound {
		return claim.UID
	}
	if pv, err := c.PersistentVolumes.Get(claim.Spec.VolumeName); err == nil && objects.MadeFor(pv) != "" {
		return objects.MadeFor(pv)
	}
	// The cache does not have it yet, or no longer.
	return cmp.Or(objects.ClaimInName(claim.Spec.VolumeName), claim.UID)
}

// VolumeChanged records that a PersistentVolume was seen first (before is nil), changed,
// or is gone (after is nil).
func (c *Controller) VolumeChanged(before, after *corev1.PersistentVolume) {
	if after == nil {
		return
	}
	ref := after.Spec.ClaimRef
	if ref == nil || before != nil && before.Status.Phase == after.Status.Phase && sizeOf(storage(before.Spec.Capacity)) == sizeOf(storage(after.Spec.Capacity)) {
		return
	}
	if claim, err := c.Claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil && claim.UID == ref.UID {
		c.consider(claim)
	}
}

// claimGone forgets a claim, once nothing extends its volume.
func (c *Controller) claimGone(claim *corev1.PersistentVolumeClaim) {
	if c.Growths.IsGrowing(c.countedAs(claim)) {
		c.gone.add(claim)
	}
	c.over(claim)
}

// consider queues a claim that wants more, and forgets one that no longer does.
func (c *Controller) consider(claim *corev1.PersistentVolumeClaim) {
	pv, err := c.PersistentVolumes.Get(claim.Spec.VolumeName)
	if err == nil && wants(claim, pv) && c.isMine(pv) && !c.isBySidecar(pv) {
		c.loop.Queue.Add(keyOf(claim))
		return
	}
	c.over(claim)
}

// isMine reports whether this program wrote the object under its present name for
// this cluster, or the historic provisioner did.
func (c *Controller) isMine(pv *corev1.PersistentVolume) bool {
	if pv.Annotations[objects.AnnotationProvisionedBy] != c.Name {
		return false
	}
	return pv.Annotations[objects.AnnotationCluster] == c.Cluster || isHistoric(pv)
}

func isHistoric(pv *corev1.PersistentVolume) bool {
	return !objects.IsOurs(pv) && pv.Annotations[objects.HistoricVolume] != ""
}

// over forgets a claim that wants nothing more. It leaves the room of the claim's
// growth to the worker that has the key (see end), because an attempt may be running.
func (c *Controller) over(claim *corev1.PersistentVolumeClaim) {
	c.parked.Forget(claim.UID)
	c.loop.Forget(keyOf(claim))
	if c.Growths.IsGrowing(c.countedAs(claim)) {
		c.loop.Queue.Add(keyOf(claim))
	}
}

// do takes the claim's turn, and one step.
func (c *Controller) do(ctx context.Context, a *attempt) worker.Outcome {
	namespace, name, err := cache.SplitMetaNamespaceKey(a.Key)
	if err != nil {
		return worker.Outcome{}
	}
	claim, isGone := c.gone.first(a.Key)
	if !isGone {
		if claim, err = c.Claims.PersistentVolumeClaims(namespace).Get(name); err != nil {
			return worker.Outcome{Done: true} // ClaimGone follows, or was called already
		}
	}
	pv, err := c.PersistentVolumes.Get(claim.Spec.VolumeName)
	step := (*expansion).run
	if isGone || err != nil || !wants(claim, pv) || !c.isMine(pv) || c.isBySidecar(pv) {
		if !c.calls.begin(claim.UID) {
			return worker.Outcome{} // the call ends what it began
		}
		defer c.calls.end(claim.UID)
		if c.end(claim, pv, err) {
			return worker.Outcome{}
		}
		step = (*expansion).look
	}
	tenant, backend := pv.Annotations[objects.AnnotationTenant], pv.Annotations[objects.AnnotationBackend]
	if !a.Begin(tenant, backend) {
		return worker.Outcome{}
	}
	c.parked.Take(claim.UID)
	started := time.Now()
	e := &expansion{c: c, attempt: a, key: a.Key, backend: backend}
	ctx, span := c.Tracer.Start(ctx, string(claim.UID), "expand", tracing.Namespace.String(namespace), tracing.Claim.String(name),
		tracing.Tenant.String(tenant), tracing.Backend.String(backend))
	err = step(e, c.OnBehalfOf(e.collect(ctx), tenant), claim)
	span.End(err)
	outcome := c.settle(ctx, e, claim, time.Since(started), err)
	if now, err := c.Claims.PersistentVolumeClaims(namespace).Get(name); !isGone && (apierrors.IsNotFound(err) || err == nil && now.UID != claim.UID) {
		// ClaimGone may have been called before the attempt reserved anything.
		c.claimGone(claim)
	}
	return outcome
}

func keyOf(claim *corev1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }
