package expand

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientretry "k8s.io/client-go/util/retry"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// The volumes of the CSI driver grow when its sidecar, csi-resizer, asks for it. It
// follows the protocol of KEP-1790 on the claims; policy, ledger and backend are the
// same as for every expansion. The sidecar marks a claim before anything is decided,
// and leaves the mark while a quota has no room. So its mark proves less than this
// controller's own: a reservation that is held because of it is compared with Cinder
// before it admits anything.

// isBySidecar reports whether a sidecar requests the expansions of a volume.
func (c *Controller) isBySidecar(pv *corev1.PersistentVolume) bool {
	return c.Sidecar && objects.IsCSI(pv)
}

// ExpandVolume makes the volume of a claim at least as large as requested, and returns
// its size. It may be called again after any interruption. Calls for one volume must
// come one after the other.
func (c *Controller) ExpandVolume(ctx context.Context, pv *corev1.PersistentVolume, bytes int64) (sizeGiB int64, err error) {
	task := c.Monitor.Begin("the sidecar's expansion of PersistentVolume "+pv.Name, c.MaxWorkTime)
	defer task.End()
	e := &expansion{c: c, pv: pv}
	if e.origin, err = objects.OriginOf(pv); err != nil {
		return 0, &refusal{kind: "Damaged", message: err.Error()}
	}
	e.backend = e.origin.Backend
	if err := e.askedFor(task.In(ctx), bytes); err != nil {
		return 0, err
	}
	if !c.calls.begin(e.claim.UID) {
		return 0, &cinder.Error{Backend: e.backend, Kind: cinder.KindConflict, Message: fmt.Sprintf("the outcome of an earlier expansion of volume %s is not known yet", e.origin.VolumeID)}
	}
	defer func() {
		if c.calls.end(e.claim.UID) {
			c.loop.Queue.Add(e.key)
		}
	}()
	started := time.Now()
	ctx, span := c.Tracer.Start(task.In(ctx), string(e.claim.UID), "expand", tracing.Namespace.String(e.claim.Namespace), tracing.Claim.String(e.claim.Name),
		tracing.Tenant.String(e.origin.Tenant), tracing.Backend.String(e.backend))
	ctx = c.OnBehalfOf(e.collect(ctx), e.origin.Tenant)
	if sizeGiB, err = e.expandForSidecar(ctx); e.forCaller {
		err = e.recordForCaller(ctx, sizeGiB, err)
	}
	span.End(err)
	if e.worked {
		outcome := "success"
		if err != nil {
			outcome = retry.For(err).Outcome
		}
		c.Metrics.expanded(e.backend, outcome, time.Since(started))
	}
	if err != nil {
		return 0, objects.WithRemedy(err, e.origin)
	}
	c.Logger.Info("Expanded a volume", "tenant", e.origin.Tenant, "claim", e.key, "claimUID", e.claim.UID, "persistentVolume", pv.Name,
		"backend", e.backend, "volume", e.origin.VolumeID, "protocol", e.origin.Protocol, "sizeGiB", sizeGiB, "beforeGiB", sizeOf(storage(pv.Spec.Capacity)),
		"requestID", e.requests.OfExtend(), "durationSeconds", time.Since(started).Seconds())
	return sizeGiB, nil
}

// askedFor reads the claim. The claim must ask for the size, or have asked for it,
// because the sidecar finishes what it began. A claim that was made for a trusted
// caller need not ask: the size allocated in its status is one that an earlier call of
// that caller began.
func (e *expansion) askedFor(ctx context.Context, bytes int64) error {
	ref := e.pv.Spec.ClaimRef
	if ref == nil || !e.c.isMine(e.pv) {
		return &refusal{kind: "Damaged", message: fmt.Sprintf("PersistentVolume %s is not bound to a claim, or is not this cluster's", e.pv.Name)}
	}
	claim, err := e.c.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (claim.UID != ref.UID || claim.DeletionTimestamp != nil):
		return &refusal{kind: "Damaged", message: fmt.Sprintf("claim %s/%s of PersistentVolume %s is gone, or is being deleted", ref.Namespace, ref.Name, e.pv.Name)}
	case err != nil:
		return fmt.Errorf("cannot read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	asked := storage(claim.Spec.Resources.Requests)
	if allocated := storage(claim.Status.AllocatedResources); allocated.Cmp(asked) > 0 {
		asked = allocated
	}
	wanted := sizeOf(*resource.NewQuantity(bytes, resource.BinarySI))
	e.forCaller = sizeOf(requested(claim)) < wanted && e.c.TrustParameters && objects.IsForCaller(claim)
	if sizeOf(asked) < wanted && !e.forCaller {
		return &cinder.Error{Backend: e.backend, Kind: cinder.KindConflict, Message: fmt.Sprintf("claim %s/%s asks for %s, not for %d bytes", ref.Namespace, ref.Name, asked.String(), bytes)}
	}
	// The policy decides about the size that is being made now.
	e.claim, e.key = claim.DeepCopy(), keyOf(claim)
	e.claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
	return nil
}

// expandForSidecar extends the volume if nothing denies it. A volume that already has
// the size needs no admission.
func (e *expansion) expandForSidecar(ctx context.Context) (int64, error) {
	growths, uid, size := e.c.Growths, e.c.countedAs(e.claim), requested(e.claim)
	wanted := sizeOf(size)
	volumes, err := e.c.Volumes(e.backend)
	if err != nil {
		return 0, fmt.Errorf("PersistentVolume %s: %w", e.pv.Name, err)
	}
	if growths.IsGrowing(uid) {
		// A call in this term or an earlier one may have begun the growth, or a quota
		// may have had no room for it.
		shown, err := e.settleShown(ctx, volumes, wanted)
		if err != nil || shown >= wanted {
			return shown, err
		}
	}
	if err := e.admit(ctx); err != nil {
		var denied *deniedError
		if !errors.As(err, &denied) || denied.isUnavailable() {
			return 0, err
		}
		if shown, lookErr := e.settleShown(ctx, volumes, wanted); lookErr == nil && shown >= wanted {
			return shown, nil
		}
		return 0, err
	}
	e.worked = true
	target := e.origin.Target()
	target.Permit = func(ctx context.Context, _ cinder.Volume) error {
		now, err := e.c.PersistentVolumes.Get(e.pv.Name)
		if err != nil || now.UID != e.pv.UID || now.DeletionTimestamp != nil || now.Spec.ClaimRef == nil || now.Spec.ClaimRef.UID != e.claim.UID {
			return errChanged
		}
		if e.forCaller {
			if err := e.writeForCaller(ctx, inProgress(size)); err != nil {
				return err
			}
		}
		growths.HoldGrowth(uid, wanted)
		return nil
	}
	v, err := volumes.Extend(ctx, target, wanted)
	switch {
	case err == nil:
		growths.SettleGrowth(uid, v.SizeGiB)
		return v.SizeGiB, nil
	case isInfeasible(err):
		growths.SettleGrowth(uid, 0)
	default:
		// A growth that was requested from Cinder counts until it is known what became
		// of it.
		growths.GiveUpGrowth(uid)
	}
	return 0, err
}

// recordForCaller records how the expansion for a trusted caller ended. No sidecar does
// that, because the claim asks for nothing. Before the request, the claim was marked as
// being resized, so that the next leader counts the new size.
func (e *expansion) recordForCaller(ctx context.Context, sizeGiB int64, failure error) error {
	var denied *deniedError
	switch {
	case failure == nil:
		var live *corev1.PersistentVolume
		if err := clientretry.RetryOnConflict(clientretry.DefaultRetry, func() (err error) {
			if live, err = e.c.Client.CoreV1().PersistentVolumes().Get(ctx, e.pv.Name, metav1.GetOptions{}); err != nil {
				return fmt.Errorf("cannot read PersistentVolume %s: %w", e.pv.Name, err)
			}
			if objects.SizeGiB(live) < sizeGiB {
				live, err = objects.SetCapacity(ctx, e.c.Client, live, sizeGiB)
			}
			return err
		}); err != nil {
			return err
		}
		return e.writeForCaller(ctx, finished(storage(live.Spec.Capacity)))
	case isInfeasible(failure), errors.As(failure, &denied) && !e.c.Growths.IsGrowing(e.c.countedAs(e.claim)):
		// Nothing extends the volume any more.
		return errors.Join(failure, e.writeForCaller(ctx, status{}))
	}
	return failure
}

// writeForCaller writes the status of a claim that was made for a trusted caller. Another
// writer, such as the controller that binds claims, does not end the call, because not
// every caller repeats it.
func (e *expansion) writeForCaller(ctx context.Context, to status) error {
	return clientretry.RetryOnConflict(clientretry.DefaultRetry, func() error {
		conflict := e.write(ctx, to)
		if !apierrors.IsConflict(conflict) {
			return conflict
		}
		live, err := e.c.Client.CoreV1().PersistentVolumeClaims(e.claim.Namespace).Get(ctx, e.claim.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("cannot read claim %s: %w", e.key, err)
		}
		if live.UID != e.claim.UID || live.DeletionTimestamp != nil {
			return errChanged
		}
		e.claim = live
		return conflict
	})
}

// settleShown waits until nothing extends the volume, and counts the size that it then
// has.
func (e *expansion) settleShown(ctx context.Context, volumes Volumes, wanted int64) (shown int64, err error) {
	target := e.origin.Target()
	target.Permit = func(_ context.Context, v cinder.Volume) error {
		shown = v.SizeGiB
		return errLooked
	}
	v, err := volumes.Extend(ctx, target, wanted)
	switch {
	case err == nil:
		shown = v.SizeGiB
	case !errors.Is(err, errLooked):
		return 0, err
	}
	e.c.Growths.SettleGrowth(e.c.countedAs(e.claim), shown)
	return shown, nil
}

// refusal says why nothing is done about a volume.
type refusal struct{ kind, message string }

func (r *refusal) Error() string { return r.message }

// FailureKind returns the kind of the failure for the CSI driver.
func (r *refusal) FailureKind() string { return r.kind }

// FailureKind returns the kind of the failure for the CSI driver.
func (e *deniedError) FailureKind() string {
	switch policy.Reason(e.Reason) {
	case policy.QuotaExceeded:
		return "NoRoom"
	case policy.VolumeTooLarge, policy.VolumeTooSmall, policy.ClaimLimitTooSmall:
		return "OutOfRange"
	case placement.ReasonBackendUnavailable:
		return string(cinder.KindUnavailable)
	}
	return "Denied"
}

// calls holds the claims whose volumes are being requested from Cinder.
type calls struct {
	mu sync.Mutex
	// turnedAway reports whether another call was turned away meanwhile.
	turnedAway map[types.UID]bool
}

func (c *calls) begin(claim types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, busy := c.turnedAway[claim]; busy {
		c.turnedAway[claim] = true
		return false
	}
	if c.turnedAway == nil {
		c.turnedAway = map[types.UID]bool{}
	}
	c.turnedAway[claim] = false
	return true
}

// end reports whether another call was turned away meanwhile.
func (c *calls) end(claim types.UID) (turnedAway bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turnedAway = c.turnedAway[claim]
	delete(c.turnedAway, claim)
	return turnedAway
}
