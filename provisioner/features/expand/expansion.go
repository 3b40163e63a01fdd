package expand

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
)

// The reasons of the events about expansions. Kubernetes' own components use the first
// three for the same purpose.
const (
	reasonFinished   = "VolumeResizeSuccessful"
	reasonFailed     = "VolumeResizeFailed"
	reasonFilesystem = "FileSystemResizeRequired"
	reasonRefused    = "FilesystemSizeRefused"
)

// expansion is one attempt to give a claim what it asks for.
type expansion struct {
	c        *Controller
	attempt  *attempt // nil in a call of the sidecar
	key      string
	backend  string
	claim    *corev1.PersistentVolumeClaim
	pv       *corev1.PersistentVolume
	origin   objects.Origin
	requests *requestids.RequestIDs
	// worked means that Cinder was asked to extend the volume, and that this does not count
	// yet.
	worked bool
	// forCaller means that a trusted caller of the CSI driver asks, rather than the
	// claim.
	forCaller bool
}

// collect collects the IDs of the requests to Cinder.
func (e *expansion) collect(ctx context.Context) context.Context {
	ctx, e.requests = requestids.WithRequestIDs(ctx)
	return ctx
}

// errChanged ends an expansion whose claim has changed during the attempt. The change
// brings the claim back.
var errChanged = errors.New("the claim has changed while its volume was being expanded")

// run does what the claim needs now. It reads both objects from the API server, because
// the caches may be late and do not keep all of their fields.
func (e *expansion) run(ctx context.Context, cached *corev1.PersistentVolumeClaim) (err error) {
	if e.claim, e.pv, err = e.read(ctx, cached); err != nil || e.claim == nil {
		return err
	}
	if e.origin, err = objects.OriginOf(e.pv); err != nil {
		return err
	}
	if plan(e.claim, e.pv) == extend {
		if err := e.extend(ctx); err != nil {
			return err
		}
	}
	switch plan(e.claim, e.pv) {
	case finish:
		return e.finish(ctx)
	case refuseFS:
		e.report(corev1.EventTypeWarning, reasonRefused, fmt.Sprintf("annotation %s is %q, but the volume has %s; once the filesystem has grown, set the annotation to that size",
			AnnotationGrown, e.claim.Annotations[AnnotationGrown], e.capacity()))
		return e.awaitFilesystem(ctx)
	case awaitFS:
		return e.awaitFilesystem(ctx)
	default:
		return nil
	}
}

// read returns nil objects if one of them is gone, or if another has taken its name.
func (e *expansion) read(ctx context.Context, cached *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, err := e.c.Client.CoreV1().PersistentVolumeClaims(cached.Namespace).Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.UID != cached.UID {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read claim %s: %w", e.key, err)
	}
	pv, err := e.c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !e.c.isMine(pv) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	return claim, pv, nil
}

// extend has Cinder extend the volume, and records its size on the
// PersistentVolume.
func (e *expansion) extend(ctx context.Context) error {
	started, before := time.Now(), sizeOf(storage(e.pv.Spec.Capacity))
	permit := e.begin()
	if denied := e.admit(ctx); denied != nil {
		var policyDenied *deniedError
		if !errors.As(denied, &policyDenied) || policyDenied.isUnavailable() || !isBegun(e.claim) || isHistoric(e.pv) {
			return denied
		}
		// If Cinder has extended the volume for an earlier attempt, that is recorded.
		// Nothing new begins.
		permit = func(context.Context, cinder.Volume) error { return denied }
	}
	volumes, err := e.c.Volumes(e.origin.Backend)
	if err != nil {
		return fmt.Errorf("PersistentVolume %s: %w", e.pv.Name, err)
	}
	e.worked = true
	target := e.origin.Target()
	target.Permit = permit
	wanted := sizeOf(requested(e.claim))
	v, err := volumes.Extend(ctx, target, wanted)
	if err != nil {
		return objects.WithRemedy(err, e.origin)
	}
	e.c.Growths.SettleGrowth(e.c.countedAs(e.claim), v.SizeGiB)
	if e.pv, err = objects.SetCapacity(ctx, e.c.Client, e.pv, v.SizeGiB); err != nil {
		return err
	}
	// Whatever happens to the writes that follow, the volume has grown.
	e.worked = false
	e.c.Metrics.expanded(e.backend, "success", time.Since(started))
	e.c.Logger.Info("Expanded a volume", "tenant", e.origin.Tenant, "claim", e.key, "claimUID", e.claim.UID, "persistentVolume", e.pv.Name,
		"backend", e.origin.Backend, "volume", e.origin.VolumeID, "protocol", e.origin.Protocol, "sizeGiB", v.SizeGiB, "beforeGiB", before,
		"requestID", e.requests.OfExtend(), "durationSeconds", time.Since(started).Seconds())
	return nil
}

// begin permits the request to Cinder. Before the request enters the queue, begin
// writes on the claim that its volume is being resized: if this replica dies, the next
// one counts the new size. When the turn of the request comes, the claim must still
// want it.
func (e *expansion) begin() backends.Permit {
	begun := false
	return func(ctx context.Context, _ cinder.Volume) error {
		if begun {
			now, err := e.c.Claims.PersistentVolumeClaims(e.claim.Namespace).Get(e.claim.Name)
			if err != nil || now.UID != e.claim.UID || now.DeletionTimestamp != nil {
				return errChanged
			}
			return nil
		}
		claim, err := inProgress(requested(e.claim)).write(ctx, e.c.Client, e.claim)
		if err == nil {
			begun, e.claim = true, claim
			e.c.Growths.HoldGrowth(e.c.countedAs(claim), sizeOf(requested(claim)))
		}
		return err
	}
}

// finish ends the expansion: pods may use all of the volume.
func (e *expansion) finish(ctx context.Context) error {
	size := storage(e.pv.Spec.Capacity)
	message := "annotation " + AnnotationGrown + " records that the filesystem has " + size.String()
	if objects.IsBlock(e.claim) {
		message = seenAfterRescan(e.pv)
	}
	if err := e.write(ctx, finished(size)); err != nil {
		return err
	}
	e.c.Recorder.Event(e.claim, corev1.EventTypeNormal, reasonFinished, message)
	return nil
}

// awaitFilesystem leaves the rest to the node. It reports once how that is done.
func (e *expansion) awaitFilesystem(ctx context.Context) error {
	if e.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizeInProgress {
		return nil // kubelet is growing the filesystem
	}
	allocated := requested(e.claim)
	if isOnNode(e.claim) {
		// The user may ask for less now, but the volume stays as it is.
		allocated = storage(e.claim.Status.AllocatedResources)
	}
	to := onNode(allocated, howToGrow(e.claim, e.pv))
	if to.isOn(e.claim) {
		return nil
	}
	if err := e.write(ctx, to); err != nil {
		return err
	}
	e.c.Recorder.Event(e.claim, corev1.EventTypeNormal, reasonFilesystem, to.condition.Message)
	return nil
}

// write writes the claim's status.
func (e *expansion) write(ctx context.Context, to status) error {
	claim, err := to.write(ctx, e.c.Client, e.claim)
	if err == nil {
		e.claim = claim
	}
	return err
}

func (e *expansion) capacity() string {
	size := storage(e.pv.Spec.Capacity)
	return size.String()
}
