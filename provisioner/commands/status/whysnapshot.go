package status

import (
	"cmp"
	"context"
	"errors"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// explainSnapshot says what a VolumeSnapshot waits for.
func (q *inquiry) explainSnapshot(ctx context.Context) error {
	snapshot, err := q.snapshots.SnapshotV1().VolumeSnapshots(q.Namespace).Get(ctx, q.Name, metav1.GetOptions{})
	// A server without the kind has no answer of its own.
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return errors.New("the API server has no VolumeSnapshots: the snapshot CRDs are not installed")
	}
	if err != nil {
		return err
	}
	status := snapshot.Status
	if status == nil {
		status = &snapshotv1.VolumeSnapshotStatus{}
	}
	waits := q.explainTaken(ctx, "VolumeSnapshot", snapshot, status.ReadyToUse, status.Error)
	if group := objects.OwnerGroup(snapshot.OwnerReferences); group != nil && waits {
		q.because("it belongs to VolumeGroupSnapshot %s: kubectl cinder why vgs/%s -n %s", group.Name, group.Name, q.Namespace)
	}
	if of := snapshot.Spec.Source.PersistentVolumeClaimName; of != nil && waits {
		q.explainSourceOf(ctx, *of)
	}
	q.explainContent(ctx, snapshot, status)
	q.explainByEvents()
	return nil
}

// explainTaken says what VolumeSnapshots and VolumeGroupSnapshots have in common, and returns
// whether the object waits for its snapshots.
func (q *inquiry) explainTaken(ctx context.Context, kind string, object metav1.Object, isReady *bool, failure *snapshotv1.VolumeSnapshotError) (waits bool) {
	ready, deleting := isReady != nil && *isReady, object.GetDeletionTimestamp() != nil
	q.Phase = "Pending"
	switch {
	case deleting:
		q.Phase = "Deleting"
		q.explainDeletionOf(object)
	case ready:
		q.Phase = "Ready"
		q.because("it is ready")
	}
	if !ready || deleting {
		q.askProgramOfSnapshot(ctx, kind)
	}
	newest := q.readEvents(ctx, kind, q.Namespace, q.Name, object.GetUID())
	if newest != nil && !q.Explained {
		q.because("the program's last warning, of %s, says: %s: %s", at(newest.Time), newest.Reason, newest.Message)
	}
	// The snapshot-controller writes an error about each native volume that has no class.
	if failure != nil && failure.Message != nil && !q.Explained {
		q.because("the last attempt failed: %s", *failure.Message)
	}
	return !ready && !deleting
}

// askProgramOfSnapshot adds what the program reports about the object or its content.
func (q *inquiry) askProgramOfSnapshot(ctx context.Context, kind string) {
	report := q.reportAbout(ctx, selection{namespace: q.Namespace})
	if report == nil || report.Snapshots == nil {
		return
	}
	for i, pending := range report.Snapshots.Pending {
		if pending.Namespace == q.Namespace && pending.Name == q.Name && (pending.Kind == objects.GroupKind) == (kind == objects.GroupKind) {
			q.explainWaiting(&report.Snapshots.Pending[i])
		}
	}
}

// explainSourceOf says whether the claim of a snapshot can be snapshotted.
func (q *inquiry) explainSourceOf(ctx context.Context, name string) {
	claim, err := q.client.CoreV1().PersistentVolumeClaims(q.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("claim %s, which it is to be taken of, does not exist", name)
	case err != nil:
		q.note("claim %s cannot be read: %s", name, err)
	case claim.Spec.VolumeName == "":
		q.because("claim %s has no volume yet: kubectl cinder why %s -n %s", name, name, q.Namespace)
	}
}

// explainContent says how far the content of a snapshot is.
func (q *inquiry) explainContent(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot, status *snapshotv1.VolumeSnapshotStatus) {
	named := snapshot.Spec.Source.VolumeSnapshotContentName
	name := cmp.Or(ptr.Deref(status.BoundVolumeSnapshotContentName, ""), ptr.Deref(named, ""))
	if name == "" {
		if !q.Explained && status.Error == nil {
			q.note("no VolumeSnapshotContent has been made for it since %s; if that lasts, does the snapshot-controller run?", at(snapshot.CreationTimestamp.Time))
			q.explainSnapshotClass(ctx, snapshot)
		}
		return
	}
	content, err := q.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err) && q.Explained:
		// Whoever only has snapshots does without.
	case apierrors.IsNotFound(err) && named != nil:
		q.because("it names VolumeSnapshotContent %s, which does not exist", name)
	case err != nil:
		q.note("VolumeSnapshotContent %s cannot be read: %s", name, err)
	case !objects.IsServed(content.Spec.Driver, q.provisionerName):
		q.because("its VolumeSnapshotContent %s belongs to another driver, %s", name, content.Spec.Driver)
	case content.Status != nil && content.Status.Error != nil && content.Status.Error.Message != nil:
		q.because("its VolumeSnapshotContent %s says: %s", name, *content.Status.Error.Message)
	case !q.Explained:
		q.because("the snapshot is being taken since %s (VolumeSnapshotContent %s)", at(content.CreationTimestamp.Time), name)
	}
}

// explainSnapshotClass says whether the class of a snapshot keeps it waiting.
func (q *inquiry) explainSnapshotClass(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) {
	name := ptr.Deref(snapshot.Spec.VolumeSnapshotClassName, "")
	if name == "" {
		q.note("it names no VolumeSnapshotClass, so it needs one that is the default of its claim's driver")
		return
	}
	class, err := q.snapshots.SnapshotV1().VolumeSnapshotClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("VolumeSnapshotClass %s does not exist", name)
	case err != nil:
		q.note("VolumeSnapshotClass %s cannot be read: %s", name, err)
	case !objects.IsServed(class.Driver, q.provisionerName):
		q.because("VolumeSnapshotClass %s belongs to another driver, %s", name, class.Driver)
	}
}
