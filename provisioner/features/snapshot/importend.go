package snapshot

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// keepImported releases a content whose snapshot stays.
func (r *removing) keepImported(ctx context.Context) error {
	r.reportKept(r.content)
	return r.letGo(ctx)
}

// reportKept says that a snapshot outlives a content that should have deleted it.
func (c *Controller) reportKept(content *snapshotv1.VolumeSnapshotContent) {
	if content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		c.report("SnapshotKept", fmt.Sprintf("snapshot %s is kept at Cinder: it does not carry the stamp of an import by VolumeSnapshotContent %s",
			objects.ImportedHandleOf(content), content.Name), content)
	}
}

// findLost finds the snapshot of a content without a record: the snapshot-controller
// replaces all annotations of a content with those that it has read. The snapshot
// carries the stamp of an import by this very content.
func (r *removing) findLost(ctx context.Context) (bool, error) {
	id, reference := objects.ImportedHandleOf(r.content), r.content.Spec.VolumeSnapshotRef
	for _, name := range r.Backends.Names() {
		backend, err := r.Backends.Snapshots(Shelf{name, backends.IsBackup(id)})
		if err != nil || r.Backends.Health(name) != nil {
			continue // usually nothing was begun, and no outage may delay its end
		}
		place := backend.Place()
		s, found, err := backend.FindSnapshot(ctx, id)
		if err != nil {
			return false, err
		}
		if found && r.isOf(s, r.content) {
			stamp := stamps.OfSnapshot(s)
			r.origin = objects.SnapshotOrigin{
				Content: r.content.Name, SnapshotID: id, VolumeID: s.VolumeID, Backend: name, Place: place, Tenant: stamp.Tenant, Cluster: stamp.Cluster,
				StorageClass: stamp.StorageClass, Namespace: reference.Namespace, Name: reference.Name, UID: reference.UID,
			}
			if backends.IsBackup(id) {
				r.origin.Backup = policy.FullBackup
			}
			return true, nil
		}
	}
	return false, nil
}

// leaveToSidecar makes sure that the sidecar can end the deletion of a content of the CSI
// driver. It waits for the snapshot-controller's request, which never comes if the
// VolumeSnapshot went before that controller had protected it. And it deletes what the
// status names, which may be a snapshot that the content never got.
func (r *removing) leaveToSidecar(ctx context.Context) error {
	if _, marked := r.content.Annotations[objects.AnnotationSnapshotBeingDeleted]; !marked {
		if why, err := r.whyNotRequested(ctx); err != nil || why != nil {
			return errors.Join(err, asError(why))
		}
		changed, err := r.patchContent(ctx, r.content, map[string]any{"metadata": map[string]any{
			"uid": r.content.UID, "annotations": map[string]any{objects.AnnotationSnapshotBeingDeleted: "yes"},
		}})
		if err != nil {
			return fmt.Errorf("cannot request the deletion of VolumeSnapshotContent %s from the sidecar: %w", r.content.Name, err)
		}
		r.content = changed
	}
	handle, err := objects.ImportedHandle(r.content)
	if err != nil || r.content.Status == nil || r.content.Status.SnapshotHandle == nil {
		return nil
	}
	r.origin.Backend = handle.Backend
	backend, err := r.Backends.Snapshots(Shelf{handle.Backend, backends.IsBackup(handle.ID)})
	if err != nil {
		return nil // the sidecar is told
	}
	if unhealthy := r.Backends.Health(handle.Backend); unhealthy != nil {
		return unhealthy
	}
	if !r.Begin(r.content.Annotations[objects.AnnotationTenant], handle.Backend) {
		return nil // its turn brings it back
	}
	s, found, err := backend.FindSnapshot(ctx, handle.ID)
	if err != nil || !found || r.isOf(s, r.content) {
		return err
	}
	r.reportKept(r.content)
	return r.writeStatus(ctx, map[string]any{"snapshotHandle": nil, "readyToUse": false})
}
