package createvolume

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Snapshots of volumes that were made for trusted callers are requested as tenants
// request theirs, by VolumeSnapshots. The snapshot-controller and csi-snapshotter
// process these, and call the driver for each: by the policy, counted, and only once.

// ParameterSnapshotClass is the only parameter of a trusted caller's CreateSnapshot.
const ParameterSnapshotClass = "volumeSnapshotClass"

// Snapshots reads the snapshot objects of the cluster; *snapshot.Controller implements
// it.
type Snapshots interface {
	VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error)
	VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error)
	VolumeSnapshotClass(name string) (*snapshotv1.VolumeSnapshotClass, error)
	// ContentsOf returns the VolumeSnapshotContents that name a snapshot by its ID at Cinder.
	ContentsOf(id string) ([]*snapshotv1.VolumeSnapshotContent, error)
}

// MakesSnapshot reports whether a call of CreateSnapshot comes from a trusted caller.
// The sidecar passes on the parameters of a class, and TakeSnapshot uses only classes
// without parameters. So the sidecar's own call is not taken for a caller's.
func (m *Maker) MakesSnapshot(parameters map[string]string) bool {
	_, has := parameters[ParameterSnapshotClass]
	return m.TrustParameters && has
}

// TakeSnapshot implements controller.Maker. It waits until the VolumeSnapshot that it
// makes, or finds, is ready.
func (m *Maker) TakeSnapshot(ctx context.Context, volume wire.Handle, name string, parameters map[string]string) (controller.Snapshot, error) {
	class, err := m.snapshotClass(parameters)
	if err != nil {
		return controller.Snapshot{}, err
	}
	claim, err := m.claimForCaller(ctx, volume)
	if err != nil {
		return controller.Snapshot{}, err
	}
	wanted, err := m.ownSnapshot(ctx, claim, class, name)
	if err != nil {
		return controller.Snapshot{}, err
	}
	described := fmt.Sprintf("VolumeSnapshot %s/%s", wanted.Namespace, wanted.Name)
	taken, ready, err := await(ctx, func() (controller.Snapshot, bool, error) { return m.readySnapshot(wanted, volume) }, func() error { return nil })
	if err != nil || ready {
		return taken, err
	}
	why := "the snapshot-controller and the csi-snapshotter have not finished it"
	if content, err := m.Snapshots.VolumeSnapshotContent(objects.SnapshotContentName(wanted.UID)); err == nil && content.Status != nil && content.Status.Error != nil && content.Status.Error.Message != nil {
		why = *content.Status.Error.Message
	}
	return controller.Snapshot{}, failure(conflict, "%s is not ready: %s", described, why)
}

// snapshotClass returns the class that the caller names. A class with parameters might
// ask for anything, and one that keeps snapshots would leave what the driver is to
// delete.
func (m *Maker) snapshotClass(parameters map[string]string) (string, error) {
	for key := range parameters {
		if key != ParameterSnapshotClass {
			return "", failure(invalid, "unknown parameter %q; only %s is supported", key, ParameterSnapshotClass)
		}
	}
	name := parameters[ParameterSnapshotClass]
	class, err := m.Snapshots.VolumeSnapshotClass(name)
	switch {
	case apierrors.IsNotFound(err):
		return "", failure(invalid, "VolumeSnapshotClass %q does not exist", name)
	case err != nil:
		return "", err
	case class.Driver != wire.DriverName:
		return "", failure(invalid, "VolumeSnapshotClass %q is not the driver's", name)
	case class.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete:
		return "", failure(invalid, "VolumeSnapshotClass %q keeps snapshots, so the driver could not delete them", name)
	case len(class.Parameters) > 0:
		return "", failure(invalid, "VolumeSnapshotClass %q has parameters, but the driver takes none", name)
	}
	return name, nil
}

// claimForCaller returns the claim of a volume if it was made for a trusted caller.
func (m *Maker) claimForCaller(ctx context.Context, volume wire.Handle) (*corev1.PersistentVolumeClaim, error) {
	found := objects.ByHandle(m.PersistentVolumes, wire.DriverName, volume.String())
	switch {
	case len(found) == 0:
		return nil, failure(notFound, "no PersistentVolume has the handle %s", volume)
	case len(found) > 1:
		return nil, failure(controller.Damaged, "PersistentVolumes %s and %s name volume %s", found[0].Name, found[1].Name, volume)
	}
	pv := found[0]
	if ref := pv.Spec.ClaimRef; ref != nil && pv.Annotations[objects.AnnotationCluster] == m.Cluster {
		claim, err := m.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return nil, err
		case err == nil && claim.UID == ref.UID && claim.DeletionTimestamp == nil && objects.IsForCaller(claim):
			return claim, nil
		}
	}
	return nil, failure(controller.Denied, "volume %s was not made for a caller of the driver; to get a snapshot, create a VolumeSnapshot in the namespace of its claim", volume)
}

// ownSnapshot makes the VolumeSnapshot for a trusted caller, or finds it.
func (m *Maker) ownSnapshot(ctx context.Context, claim *corev1.PersistentVolumeClaim, class, named string) (*snapshotv1.VolumeSnapshot, error) {
	snapshots := m.SnapshotClient.SnapshotV1().VolumeSnapshots(claim.Namespace)
	made, err := snapshots.Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: objects.NameForCaller(named), Annotations: map[string]string{objects.AnnotationSnapshotName: named}},
		Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim.Name}},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	present, err := snapshots.Get(ctx, objects.NameForCaller(named), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && present.DeletionTimestamp != nil:
		return nil, failure(conflict, "an earlier snapshot %q is being deleted", named)
	case err != nil:
		return nil, err
	case present.Annotations[objects.AnnotationSnapshotName] != named:
		return nil, failure(controller.AlreadyExists, "VolumeSnapshot %s/%s was not made for a snapshot of that name", present.Namespace, present.Name)
	}
	source, of := present.Spec.Source.PersistentVolumeClaimName, present.Spec.VolumeSnapshotClassName
	if source == nil || *source != claim.Name || of == nil || *of != class {
		return nil, failure(controller.AlreadyExists, "the snapshot %q was requested of another volume, or with another VolumeSnapshotClass", named)
	}
	return present, nil
}

// readySnapshot describes the snapshot once its objects are ready.
func (m *Maker) readySnapshot(wanted *snapshotv1.VolumeSnapshot, volume wire.Handle) (taken controller.Snapshot, ready bool, err error) {
	content, err := m.Snapshots.VolumeSnapshotContent(objects.SnapshotContentName(wanted.UID))
	switch {
	case apierrors.IsNotFound(err):
		return taken, false, nil
	case err != nil:
		return taken, false, err
	case content.Spec.Source.VolumeHandle == nil || *content.Spec.Source.VolumeHandle != volume.String():
		return taken, false, failure(controller.AlreadyExists, "VolumeSnapshot %s/%s is of another volume", wanted.Namespace, wanted.Name)
	}
	snapshot, err := m.Snapshots.VolumeSnapshot(wanted.Namespace, wanted.Name)
	if apierrors.IsNotFound(err) {
		return taken, false, nil
	}
	if err != nil || snapshot.UID != wanted.UID || snapshot.Status == nil || snapshot.Status.ReadyToUse == nil || !*snapshot.Status.ReadyToUse {
		return taken, false, err
	}
	of := content.Status
	if of == nil || of.SnapshotHandle == nil || of.CreationTime == nil || of.RestoreSize == nil {
		return taken, false, nil
	}
	if taken.Handle, err = wire.ParseHandle(*of.SnapshotHandle); err != nil {
		return taken, false, failure(controller.Damaged, "VolumeSnapshotContent %s: %s", content.Name, err)
	}
	taken.Volume, taken.Bytes, taken.Created = volume, *of.RestoreSize, time.Unix(0, *of.CreationTime)
	return taken, true, nil
}

// RemoveSnapshot implements controller.Maker. It deletes the VolumeSnapshot that was
// made for a trusted caller, and waits until its content, and with it the snapshot, is
// gone. If the snapshot is not a trusted caller's, or its content is already being
// deleted, it does nothing.
func (m *Maker) RemoveSnapshot(ctx context.Context, snapshot wire.Handle) (removed bool, err error) {
	if !m.TrustParameters {
		return false, nil
	}
	contents, err := m.Snapshots.ContentsOf(snapshot.ID)
	if err != nil || len(contents) != 1 || contents[0].DeletionTimestamp != nil || !objects.IsCSISnapshot(contents[0]) {
		return false, err
	}
	content := contents[0]
	if status := content.Status; status == nil || status.SnapshotHandle == nil || *status.SnapshotHandle != snapshot.String() {
		return false, nil
	}
	reference := content.Spec.VolumeSnapshotRef
	asked, err := m.SnapshotClient.SnapshotV1().VolumeSnapshots(reference.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && (asked.UID != reference.UID || !objects.IsForCaller(asked)):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := deleteObject(ctx, asked, m.SnapshotClient.SnapshotV1().VolumeSnapshots(asked.Namespace).Delete); err != nil {
		return false, err
	}
	removed, ended, err := await(ctx, func() (gone, ended bool, err error) {
		now, err := m.Snapshots.VolumeSnapshotContent(content.Name)
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.UID != content.UID:
			return true, true, nil
		case err != nil:
			return false, false, err
		}
		// This may be the sidecar's call that follows from the caller's deletion.
		return false, asked.DeletionTimestamp != nil && now.DeletionTimestamp != nil, nil
	}, func() error { return nil })
	if err == nil && !ended {
		err = failure(conflict, "snapshot %s has not been removed yet: VolumeSnapshot %s/%s is being deleted", snapshot, asked.Namespace, asked.Name)
	}
	return removed, err
}
