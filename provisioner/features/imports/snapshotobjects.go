package imports

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// SnapshotWish describes the objects that an operator wants, which make the running
// program import a snapshot.
type SnapshotWish struct {
	// Snapshot is the ID of a snapshot, or its name.
	Snapshot string
	// Namespace and Name are those of the VolumeSnapshot.
	Namespace, Name string
	StorageClass    string
	// Driver is the provisioner's name. The content of a snapshot that was taken of a
	// volume in mode csi names the CSI driver instead, if the policy uses that mode.
	Driver         string
	DeletionPolicy snapshotv1.DeletionPolicy
	VolumeMode     corev1.PersistentVolumeMode
}

// SnapshotObjects are the objects of an import that nothing prevents, as far as can be
// known before any change.
type SnapshotObjects struct {
	Content  *snapshotv1.VolumeSnapshotContent
	Snapshot *snapshotv1.VolumeSnapshot
	// Steps are the changes to come, as sentences; none if both objects exist.
	Steps []string
}

// PlanObjects finds the snapshot among those of a backend, and checks what the
// running program will check.
func (i *SnapshotImporter) PlanObjects(ctx context.Context, all []cinder.Snapshot, wish SnapshotWish) (*SnapshotObjects, error) {
	found, err := findOne(all, "snapshot", "the backend", wish.Snapshot, func(s cinder.Snapshot) (string, string) { return s.ID, s.Name })
	if err != nil {
		return nil, err
	}
	if stamps.IsCSISnapshot(found) && i.Policy.UsesCSI() {
		wish.Driver = policy.CSIDriver
	}
	id, pair := found.ID, &SnapshotObjects{}
	if err := i.findObjects(ctx, pair, id, wish); err != nil {
		return nil, err
	}
	request := SnapshotRequest{ID: id, Namespace: wish.Namespace, Name: wish.Name, Content: objects.ImportedSnapshotContentName(id), StorageClass: wish.StorageClass}
	if pair.Snapshot != nil {
		request.UID = string(pair.Snapshot.UID)
	}
	plan, err := i.Plan(ctx, request)
	if err != nil {
		return nil, err
	}
	if pair.Content == nil {
		pair.Content = plan.Content(wish.Driver, wish.DeletionPolicy, wish.VolumeMode)
		pair.Steps = append(pair.Steps, fmt.Sprintf("create VolumeSnapshotContent %s for snapshot %s (%s, %d GiB) of backend %s, with the deletionPolicy %s",
			pair.Content.Name, id, plan.Snapshot.Name, plan.Snapshot.SizeGiB, plan.Backend, wish.DeletionPolicy))
	}
	if pair.Snapshot == nil {
		pair.Snapshot = newSnapshot(wish, pair.Content.Name)
		pair.Steps = append(pair.Steps, fmt.Sprintf("create VolumeSnapshot %s/%s, for which the running program imports the snapshot (tenant %s, %s)",
			wish.Namespace, wish.Name, plan.Decision.Tenant, plan.Decision.Rule))
	}
	return pair, nil
}

// findObjects reads the objects that exist. They must belong to an earlier run of this
// import.
func (i *SnapshotImporter) findObjects(ctx context.Context, pair *SnapshotObjects, id string, wish SnapshotWish) error {
	contents, err := i.SnapshotClient.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cannot list VolumeSnapshotContents (are the snapshot CRDs installed?): %w", err)
	}
	name := objects.ImportedSnapshotContentName(id)
	for n := range contents.Items {
		content := &contents.Items[n]
		reference := content.Spec.VolumeSnapshotRef
		isOurs := content.Name == name && objects.ImportedHandleOf(content) == id && content.Spec.Driver == wish.Driver && content.DeletionTimestamp == nil &&
			reference.Namespace == wish.Namespace && reference.Name == wish.Name
		switch {
		case isOurs && content.Annotations[objects.AnnotationStorageClass] != wish.StorageClass:
			return refused("VolumeSnapshotContent %s exists for StorageClass %q, not for %q", name, content.Annotations[objects.AnnotationStorageClass], wish.StorageClass)
		case isOurs:
			pair.Content = content
		case content.Name == name, slices.Contains(objects.SnapshotHandlesOf(content), id):
			return refused("VolumeSnapshotContent %s, of VolumeSnapshot %s/%s, has snapshot %s; delete both, with the deletionPolicy Retain, if nothing needs them", content.Name, reference.Namespace, reference.Name, id)
		}
	}
	snapshot, err := i.SnapshotClient.SnapshotV1().VolumeSnapshots(wish.Namespace).Get(ctx, wish.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read VolumeSnapshot %s/%s: %w", wish.Namespace, wish.Name, err)
	case snapshot.DeletionTimestamp != nil:
		return refused("VolumeSnapshot %s/%s is being deleted; wait until it is gone", wish.Namespace, wish.Name)
	}
	if from := snapshot.Spec.Source.VolumeSnapshotContentName; from == nil || *from != name {
		return refused("VolumeSnapshot %s/%s exists, and is not for VolumeSnapshotContent %s", wish.Namespace, wish.Name, name)
	}
	pair.Snapshot = snapshot
	return nil
}

func newSnapshot(wish SnapshotWish, content string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		TypeMeta:   metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot"},
		ObjectMeta: metav1.ObjectMeta{Namespace: wish.Namespace, Name: wish.Name},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content}},
	}
}

// ApplyObjects creates the objects that do not exist yet. The content comes first: its
// name is derived from the snapshot, so of two imports of one snapshot, the second
// fails.
func (i *SnapshotImporter) ApplyObjects(ctx context.Context, pair *SnapshotObjects) error {
	if pair.Content.UID == "" {
		made, err := i.SnapshotClient.SnapshotV1().VolumeSnapshotContents().Create(ctx, pair.Content, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("cannot create VolumeSnapshotContent %s: %w", pair.Content.Name, err)
		}
		made.TypeMeta, pair.Content = pair.Content.TypeMeta, made
	}
	if pair.Snapshot.UID == "" {
		made, err := i.SnapshotClient.SnapshotV1().VolumeSnapshots(pair.Snapshot.Namespace).Create(ctx, pair.Snapshot, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("cannot create VolumeSnapshot %s/%s: %w", pair.Snapshot.Namespace, pair.Snapshot.Name, err)
		}
		made.TypeMeta, pair.Snapshot = pair.Snapshot.TypeMeta, made
	}
	return nil
}
