package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
)

// The CSI driver's sidecar, csi-snapshotter, requests snapshots of volumes in mode csi.
// The snapshot-controller makes their contents, with the driver's name, and the sidecar
// writes their status and removes them. Policy, ledger, stamps, and the record on the
// content before the request to Cinder are the same as for every snapshot.

// ownParameters is the prefix of the keys that the sidecar adds to those of a class.
const ownParameters = "csi.storage.k8s.io/"

// Sidecar answers the sidecar's calls.
type Sidecar struct{ *Controller }

// Taken is a snapshot of a volume in mode csi.
type Taken struct {
	cinder.Snapshot
	Backend string
	// Group is the handle of the group that it was taken with; empty without one.
	Group string
}

// Take takes the snapshot that a VolumeSnapshotContent of the CSI driver
// requests by name, or finds the one that an earlier call has taken. It returns when
// the snapshot is ready.
func (c Sidecar) Take(ctx context.Context, pv *corev1.PersistentVolume, name string, parameters map[string]string) (Taken, error) {
	task := c.Monitor.Begin("the sidecar's snapshot "+name, c.MaxWorkTime)
	defer task.End()
	t, class, err := c.asked(task.In(ctx), pv, name, parameters)
	if err != nil {
		return Taken{}, err
	}
	backend, err := c.answering(Shelf{Backend: t.origin.Backend})
	if err != nil {
		return Taken{}, err
	}
	ctx, requests := requestids.WithRequestIDs(task.In(ctx))
	ctx = c.Caller(ctx, t.origin.Tenant)
	// Nothing new is begun for a content that is being deleted. But if something may
	// have been begun, the sidecar waits for its end.
	if begun := objects.IsSnapshotRecorded(t.content); !begun {
		if err := t.place(backend.Place()); err != nil {
			return Taken{}, err
		}
		if t.content.DeletionTimestamp == nil {
			if err := t.admitForSidecar(ctx, class); err != nil {
				return Taken{}, err
			}
		}
	}
	if backend, err = c.Backends.Snapshots(shelfOf(t.origin)); err != nil {
		return Taken{}, err
	}
	taken, err := t.takeForSidecar(ctx, backend, requests)
	return Taken{Snapshot: taken, Backend: t.origin.Backend}, objects.WithSnapshotRemedy(err, t.origin)
}

// asked checks a request against the content that it is about.
func (c Sidecar) asked(ctx context.Context, pv *corev1.PersistentVolume, name string, parameters map[string]string) (*taking, *snapshotv1.VolumeSnapshotClass, error) {
	if err := c.isReady(); err != nil {
		return nil, nil, err
	}
	uid := types.UID(strings.TrimPrefix(name, objects.SnapshotName("")))
	if uid == "" || objects.SnapshotName(uid) != name {
		return nil, nil, &refusal{"Damaged", fmt.Sprintf("%q is not the name that the csi-snapshotter gives the snapshot of a VolumeSnapshot, %s and its UID", name, objects.SnapshotName(""))}
	}
	of, err := objects.OriginOf(pv)
	if err != nil {
		return nil, nil, &refusal{"Damaged", err.Error()}
	}
	content, err := c.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, objects.SnapshotContentName(uid), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s of snapshot %s does not exist", objects.SnapshotContentName(uid), name)}
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read VolumeSnapshotContent %s: %w", objects.SnapshotContentName(uid), err)
	}
	reference, handle := content.Spec.VolumeSnapshotRef, content.Spec.Source.VolumeHandle
	switch {
	case !objects.IsCSISnapshot(content) || reference.UID != uid || handle == nil:
		return nil, nil, &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s is not for a new snapshot by the CSI driver; delete it", content.Name)}
	case *handle != pv.Spec.CSI.VolumeHandle:
		return nil, nil, &refusal{"AlreadyExists", fmt.Sprintf("according to VolumeSnapshotContent %s, snapshot %s belongs to volume %s", content.Name, name, *handle)}
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != reference.Namespace:
		return nil, nil, &refusal{"Denied", fmt.Sprintf("PersistentVolume %s is not bound to a claim in namespace %s, which has the VolumeSnapshot", pv.Name, reference.Namespace)}
	}
	t := &taking{
		// Outside the loop: it takes no turn, since the sidecar waits.
		Controller: c.Controller, content: content, attempt: c.loop.Attempt(item{snapshotItem, reference.Namespace, reference.Name}),
		snapshot: &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: reference.Namespace, Name: reference.Name, UID: uid}},
	}
	t.originate(&source{pv, of})
	if objects.IsSnapshotRecorded(content) {
		// The policy decided at that time.
		recorded, err := objects.SnapshotOriginOf(content)
		if err != nil {
			return nil, nil, &refusal{"Damaged", err.Error()}
		}
		switch {
		case recorded.VolumeID != of.VolumeID || recorded.Backend != of.Backend:
			return nil, nil, &refusal{"AlreadyExists", fmt.Sprintf("according to VolumeSnapshotContent %s, snapshot %s belongs to volume %s", content.Name, name, recorded.VolumeID)}
		case recorded.Tenant != of.Tenant:
			return nil, nil, &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s records tenant %q, but its volume belongs to tenant %q", content.Name, recorded.Tenant, of.Tenant)}
		}
		t.origin = recorded
	}
	return t, classWith(parameters), nil
}

// classWith returns a class with the parameters that are not the sidecar's own.
func classWith(parameters map[string]string) *snapshotv1.VolumeSnapshotClass {
	class := &snapshotv1.VolumeSnapshotClass{Parameters: maps.Clone(parameters)}
	maps.DeleteFunc(class.Parameters, func(key, _ string) bool { return strings.HasPrefix(key, ownParameters) })
	return class
}

// isReady returns an error until every content has been counted.
func (c *Caches) isReady() error {
	if c.shown() == nil || slices.ContainsFunc(c.haveSynced(), func(synced cache.InformerSynced) bool { return !synced() }) {
		return &refusal{string(cinder.KindUnavailable), "the VolumeSnapshotContents are not read yet, so it is not known what counts"}
	}
	return nil
}

// admitForSidecar reserves room, and records on the content where the snapshot will be
// taken. From then on the content counts.
func (t *taking) admitForSidecar(ctx context.Context, class *snapshotv1.VolumeSnapshotClass) error {
	if err := t.admit(ctx, class); err != nil {
		return err
	}
	if err := t.annotate(ctx); err != nil {
		t.release(t.origin.UID, t.Ledger.ReleaseSnapshotReservation)
		return err
	}
	return nil
}

// annotate writes the origin on the content, unless the content has it already.
func (t *taking) annotate(ctx context.Context) error {
	if objects.IsSnapshotRecorded(t.content) {
		return nil
	}
	made, err := t.patchContent(ctx, t.content, map[string]any{"metadata": map[string]any{"uid": t.content.UID, "annotations": t.origin.Annotations()}})
	if err != nil {
		return fmt.Errorf("cannot write the origin on VolumeSnapshotContent %s: %w", t.origin.Content, err)
	}
	t.content = made
	return nil
}

func (t *taking) takeForSidecar(ctx context.Context, backend Snapshots, requests *requestids.RequestIDs) (cinder.Snapshot, error) {
	started := time.Now()
	spec := t.spec(t.stillWanted)
	spec.CSI = true
	taken, err := backend.TakeSnapshot(ctx, spec)
	if err == nil && taken.VolumeID != t.origin.VolumeID {
		return cinder.Snapshot{}, &refusal{"AlreadyExists", fmt.Sprintf("snapshot %s belongs to volume %s", taken.ID, taken.VolumeID)}
	}
	if err == nil {
		err = backend.MarkSnapshot(ctx, taken)
	}
	if err == nil {
		err = t.annotateAgain(ctx)
	}
	if errors.As(err, new(*changedError)) {
		return cinder.Snapshot{}, asRefusal(err)
	}
	t.Metrics.took(t.origin.Backend, outcomeOf(err), time.Since(started))
	if err != nil {
		return cinder.Snapshot{}, err
	}
	t.took(taken, requests, started)
	return taken, nil
}

// annotateAgain writes the origin again if it is gone, because others replace all
// annotations of a content with those that they have read.
func (t *taking) annotateAgain(ctx context.Context) error {
	live, err := t.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, t.origin.Content, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != t.content.UID:
		return nil // nothing leads to the snapshot, so a sweep finds it as a leftover
	case err != nil:
		return fmt.Errorf("cannot read VolumeSnapshotContent %s: %w", t.origin.Content, err)
	}
	t.content = live
	return t.annotate(ctx)
}

// refusal says why a sidecar's request is refused.
type refusal struct{ kind, message string }

// asRefusal turns the end of work that is no longer wanted into a refusal, which tells the
// sidecar that there is nothing to delete.
func asRefusal(err error) error {
	if changed := new(changedError); errors.As(err, &changed) {
		return &refusal{"Damaged", changed.Error()}
	}
	return err
}

func (r *refusal) Error() string { return r.message }

// FailureKind returns the kind of the failure for the CSI driver.
func (r *refusal) FailureKind() string { return r.kind }

// FailureKind returns the kind of the failure for the CSI driver.
func (d *denied) FailureKind() string {
	switch d.reason {
	case string(policy.QuotaExceeded):
		return "NoRoom"
	case placement.ReasonBackendUnavailable:
		return string(cinder.KindUnavailable)
	}
	return "Denied"
}
