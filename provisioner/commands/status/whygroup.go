package status

import (
	"cmp"
	"context"
	"errors"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// explainGroup says what a VolumeGroupSnapshot waits for.
func (q *inquiry) explainGroup(ctx context.Context) error {
	group, err := q.snapshots.GroupsnapshotV1().VolumeGroupSnapshots(q.Namespace).Get(ctx, q.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return errors.New("the API server has no VolumeGroupSnapshots: their CRDs are not installed")
	}
	if err != nil {
		return err
	}
	status := ptr.Deref(group.Status, groupv1.VolumeGroupSnapshotStatus{})
	if waits := q.explainTaken(ctx, objects.GroupKind, group, status.ReadyToUse, status.Error); waits && group.Spec.Source.Selector != nil {
		q.explainMembersOf(ctx, group.Spec.Source.Selector)
	}
	q.explainGroupContent(ctx, group, status)
	q.explainByEvents()
	return nil
}

// explainMembersOf says whether the claims of a group can be snapshotted.
func (q *inquiry) explainMembersOf(ctx context.Context, selector *metav1.LabelSelector) {
	claims, err := q.client.CoreV1().PersistentVolumeClaims(q.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		q.note("its claims cannot be read: %s", err)
		return
	}
	if len(claims.Items) == 0 {
		q.because("its selector %s selects no claim", metav1.FormatLabelSelector(selector))
	}
	shown := 0
	for _, claim := range claims.Items {
		if claim.Spec.VolumeName == "" && shown < maxListed {
			q.because("claim %s has no volume yet: kubectl cinder why %s -n %s", claim.Name, claim.Name, q.Namespace)
			shown++
		}
	}
}

// explainGroupContent says how far the content of a group is.
func (q *inquiry) explainGroupContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot, status groupv1.VolumeGroupSnapshotStatus) {
	named := group.Spec.Source.VolumeGroupSnapshotContentName
	// The content of native volumes is there before the group names it.
	name := cmp.Or(ptr.Deref(status.BoundVolumeGroupSnapshotContentName, ""), ptr.Deref(named, ""), objects.GroupContentName(group.UID))
	content, err := q.snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err) && q.Explained:
		// Whoever only has groups does without.
	case apierrors.IsNotFound(err) && named != nil:
		q.because("it names VolumeGroupSnapshotContent %s, which does not exist", name)
	case apierrors.IsNotFound(err) && q.Explained:
	case apierrors.IsNotFound(err):
		q.note("no VolumeGroupSnapshotContent has been made for it since %s; if that lasts, does the snapshot-controller run, with its feature gate CSIVolumeGroupSnapshot?", at(group.CreationTimestamp.Time))
		q.explainGroupClass(ctx, ptr.Deref(group.Spec.VolumeGroupSnapshotClassName, ""))
	case err != nil:
		q.note("VolumeGroupSnapshotContent %s cannot be read: %s", name, err)
	case !objects.IsServed(content.Spec.Driver, q.provisionerName):
		q.because("its VolumeGroupSnapshotContent %s belongs to another driver, %s", name, content.Spec.Driver)
	case content.Status != nil && content.Status.Error != nil && content.Status.Error.Message != nil:
		q.because("its VolumeGroupSnapshotContent %s says: %s", name, *content.Status.Error.Message)
	case !q.Explained:
		q.because("its snapshots are being taken since %s (VolumeGroupSnapshotContent %s)", at(content.CreationTimestamp.Time), name)
	}
}

// explainGroupClass says whether the class of a group keeps it waiting.
func (q *inquiry) explainGroupClass(ctx context.Context, name string) {
	if name == "" {
		q.note("it names no VolumeGroupSnapshotClass, which native volumes need; in mode csi, one must be the default")
		return
	}
	class, err := q.snapshots.GroupsnapshotV1().VolumeGroupSnapshotClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("VolumeGroupSnapshotClass %s does not exist", name)
	case err != nil:
		q.note("VolumeGroupSnapshotClass %s cannot be read: %s", name, err)
	case !objects.IsServed(class.Driver, q.provisionerName):
		q.because("VolumeGroupSnapshotClass %s belongs to another driver, %s", name, class.Driver)
	}
}
