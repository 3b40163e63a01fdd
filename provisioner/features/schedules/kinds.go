package schedules

import (
	"context"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// kind is a kind of objects that schedules make, at the API server.
type kind interface {
	// String returns its name.
	String() string
	list(ctx context.Context, of target) ([]*shot, error)
	get(ctx context.Context, namespace, name string) (*shot, error)
	create(ctx context.Context, of series, class, name string) error
	delete(ctx context.Context, old *shot, options metav1.DeleteOptions) error
	// exists reports whether a target still exists.
	exists(ctx context.Context, of target) (bool, error)
}

func (c *Controller) kindOf(of target) kind {
	if of.isGroup() {
		return ofGroups{c}
	}
	return ofClaims{c}
}

// ofClaims are VolumeSnapshots.
type ofClaims struct{ *Controller }

func (ofClaims) String() string { return "VolumeSnapshot" }

func (k ofClaims) list(ctx context.Context, of target) (all []*shot, err error) {
	list, err := k.Client.SnapshotV1().VolumeSnapshots(of.namespace).List(ctx, with(objects.LabelClaimUID, string(of.uid)))
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, shotOf(&list.Items[i]))
	}
	return all, nil
}

func (k ofClaims) get(ctx context.Context, namespace, name string) (*shot, error) {
	one, err := k.Client.SnapshotV1().VolumeSnapshots(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return shotOf(one), nil
}

func (k ofClaims) create(ctx context.Context, of series, class, name string) error {
	made := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: of.namespace, Labels: objects.ScheduleLabels(of.schedule, of.uid)},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &of.claim}},
	}
	if class != "" {
		made.Spec.VolumeSnapshotClassName = &class
	}
	_, err := k.Client.SnapshotV1().VolumeSnapshots(of.namespace).Create(ctx, made, metav1.CreateOptions{})
	return err
}

func (k ofClaims) delete(ctx context.Context, old *shot, options metav1.DeleteOptions) error {
	return k.Client.SnapshotV1().VolumeSnapshots(old.namespace).Delete(ctx, old.name, options)
}

func (k ofClaims) exists(ctx context.Context, of target) (bool, error) {
	claim, err := k.Kubernetes.CoreV1().PersistentVolumeClaims(of.namespace).Get(ctx, of.claim, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && claim.UID == of.uid && claim.DeletionTimestamp == nil, err
}

// shotOf describes a VolumeSnapshot; it belongs to no series if no schedule made it.
func shotOf(s *snapshotv1.VolumeSnapshot) *shot {
	one := newShot(s)
	one.ready = s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
	one.copies = []string{s.Name}
	if schedule, claim := objects.ScheduleOf(s.Labels); schedule != "" && s.Spec.Source.PersistentVolumeClaimName != nil {
		one.series = series{target{namespace: s.Namespace, claim: *s.Spec.Source.PersistentVolumeClaimName, uid: claim}, schedule}
		one.holds = []string{string(claim)}
	}
	return one
}

// ofGroups are VolumeGroupSnapshots.
type ofGroups struct{ *Controller }

func (ofGroups) String() string { return objects.GroupKind }

func (k ofGroups) list(ctx context.Context, of target) (all []*shot, err error) {
	list, err := k.Client.GroupsnapshotV1().VolumeGroupSnapshots(of.namespace).List(ctx, with(objects.LabelProtectGroup, of.group))
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, k.shotOfGroup(&list.Items[i]))
	}
	return all, nil
}

func (k ofGroups) get(ctx context.Context, namespace, name string) (*shot, error) {
	one, err := k.Client.GroupsnapshotV1().VolumeGroupSnapshots(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return k.shotOfGroup(one), nil
}

func (k ofGroups) create(ctx context.Context, of series, class, name string) error {
	_, err := k.Client.GroupsnapshotV1().VolumeGroupSnapshots(of.namespace).Create(ctx, &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: of.namespace, Labels: objects.GroupScheduleLabels(of.schedule, of.group)},
		Spec: groupv1.VolumeGroupSnapshotSpec{
			Source:                       groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{objects.LabelProtectGroup: of.group}}},
			VolumeGroupSnapshotClassName: &class,
		},
	}, metav1.CreateOptions{})
	return err
}

func (k ofGroups) delete(ctx context.Context, old *shot, options metav1.DeleteOptions) error {
	return k.Client.GroupsnapshotV1().VolumeGroupSnapshots(old.namespace).Delete(ctx, old.name, options)
}

// exists reports whether a VolumeGroupSnapshot would select any claim. That claims have come
// or gone does not matter: see isReplacedBy.
func (k ofGroups) exists(ctx context.Context, of target) (bool, error) {
	some := with(objects.LabelProtectGroup, of.group)
	some.Limit = 100
	list, err := k.Kubernetes.CoreV1().PersistentVolumeClaims(of.namespace).List(ctx, some)
	return err == nil && slices.ContainsFunc(list.Items, func(claim corev1.PersistentVolumeClaim) bool { return claim.DeletionTimestamp == nil }), err
}

// shotOfGroup describes a VolumeGroupSnapshot. Its volumes cannot change, so it does not matter
// if a late cache shows them.
func (c *Controller) shotOfGroup(g *groupv1.VolumeGroupSnapshot) *shot {
	one, volumes := newShot(g), c.Snapshots.VolumesOfGroup(g.UID)
	one.ready = g.Status != nil && g.Status.ReadyToUse != nil && *g.Status.ReadyToUse
	one.holds, one.lost = volumes, !one.ready && c.isOneGone(volumes)
	for _, handle := range volumes {
		one.copies = append(one.copies, objects.SnapshotName(objects.MemberUID(g.UID, handle)))
	}
	if schedule, group := objects.GroupScheduleOf(g.Labels); schedule != "" {
		one.series = series{target{namespace: g.Namespace, group: group}, schedule}
	}
	return one
}

// isOneGone reports whether no PersistentVolume names one of these volumes.
func (c *Controller) isOneGone(handles []string) bool {
	if len(handles) == 0 {
		return false
	}
	all, err := c.PersistentVolumes.List(labels.Everything())
	return err == nil && slices.ContainsFunc(handles, func(handle string) bool {
		return !slices.ContainsFunc(all, func(pv *corev1.PersistentVolume) bool { return objects.Names(pv, handle) })
	})
}

func newShot(o metav1.Object) *shot {
	return &shot{
		name: o.GetName(), uid: o.GetUID(), version: o.GetResourceVersion(),
		created: o.GetCreationTimestamp().Time, deleting: o.GetDeletionTimestamp() != nil,
	}
}

func with(label, value string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{label: value}).String()}
}
