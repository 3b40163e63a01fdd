package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// writeContent creates the content, or writes the origin on the one that the
// snapshot-controller made, as it does for a volume with a CSI source. Then it makes
// sure that the VolumeSnapshot still exists; otherwise nobody would ever ask for the
// content's deletion.
func (t *taking) writeContent(ctx context.Context, class *snapshotv1.VolumeSnapshotClass) error {
	if err := t.setClass(ctx, class); err != nil {
		return err
	}
	contents := t.Snapshots.SnapshotV1().VolumeSnapshotContents()
	made, err := contents.Create(ctx, objects.NewSnapshotContent(t.origin, class, t.mode), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = contents.Get(ctx, t.origin.Content, metav1.GetOptions{})
		if err == nil {
			made, err = t.adopt(ctx, made)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write VolumeSnapshotContent %s: %w", t.origin.Content, err)
	}
	t.content = made
	live, err := t.liveSnapshot(ctx, t.snapshot.Namespace, t.snapshot.Name, t.snapshot.UID)
	if err != nil || live != nil {
		return err
	}
	if err := t.deleteContent(ctx, made); err != nil {
		return err
	}
	return &changedError{fmt.Sprintf("VolumeSnapshot %s was deleted before its snapshot was taken", t.Key)}
}

// setClass writes the default class on a VolumeSnapshot without one. The
// snapshot-controller does so only for volumes with a CSI source, and leaves a
// VolumeSnapshot without a class alone.
func (t *taking) setClass(ctx context.Context, class *snapshotv1.VolumeSnapshotClass) error {
	if t.snapshot.Spec.VolumeSnapshotClassName != nil {
		return nil
	}
	_, err := t.Snapshots.SnapshotV1().VolumeSnapshots(t.snapshot.Namespace).Patch(ctx, t.snapshot.Name, types.MergePatchType, patch(map[string]any{
		"metadata": map[string]any{"uid": t.snapshot.UID, "resourceVersion": t.snapshot.ResourceVersion},
		"spec":     map[string]any{"volumeSnapshotClassName": class.Name},
	}), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cannot write the default class on VolumeSnapshot %s: %w", t.Key, err)
	}
	return nil
}

// adopt takes over a content that exists already.
func (t *taking) adopt(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
	reference := content.Spec.VolumeSnapshotRef
	switch {
	case content.Spec.Driver != t.Name, content.Spec.Source.VolumeHandle == nil, reference.UID != t.snapshot.UID:
		return nil, &denied{reason: "SnapshotContentConflict", message: fmt.Sprintf("VolumeSnapshotContent %s exists and is not for this VolumeSnapshot; delete it", content.Name)}
	case content.DeletionTimestamp != nil:
		return nil, &changedError{fmt.Sprintf("VolumeSnapshotContent %s is being deleted", content.Name)}
	case objects.IsSnapshotRecorded(content):
		return content, nil
	}
	annotations := maps.Clone(content.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, t.origin.Annotations())
	metadata := map[string]any{"annotations": annotations, "resourceVersion": content.ResourceVersion}
	if !slices.Contains(content.Finalizers, objects.SnapshotFinalizer) {
		metadata["finalizers"] = append(slices.Clone(content.Finalizers), objects.SnapshotFinalizer)
	}
	return t.patchContent(ctx, content, map[string]any{"metadata": metadata})
}

// writeStatus writes the snapshot's ID and size into the status of its content.
func (t *taking) writeStatus(ctx context.Context, s cinder.Snapshot) error {
	_, err := t.patchContent(ctx, t.content, map[string]any{"metadata": map[string]any{"uid": t.content.UID}, "status": objects.SnapshotStatus(s, s.ID)}, "status")
	if err != nil {
		return fmt.Errorf("cannot write the status of VolumeSnapshotContent %s: %w", t.content.Name, err)
	}
	return nil
}

func (c *Controller) patchContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, change map[string]any, subresources ...string) (*snapshotv1.VolumeSnapshotContent, error) {
	return c.Snapshots.SnapshotV1().VolumeSnapshotContents().Patch(ctx, content.Name, types.MergePatchType, patch(change), metav1.PatchOptions{}, subresources...)
}

func patch(change map[string]any) []byte {
	encoded, err := json.Marshal(change)
	if err != nil {
		// Maps, lists and these structs always encode.
		panic(err)
	}
	return encoded
}

// deleteContent requests the deletion of the content, but not of another one of its
// name.
func (c *Controller) deleteContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	err := c.Snapshots.SnapshotV1().VolumeSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &content.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot delete VolumeSnapshotContent %s, whose VolumeSnapshot is gone: %w", content.Name, err)
	}
	return nil
}

// liveSnapshot reads a VolumeSnapshot from the API server. It returns nil if the object
// is gone or being deleted.
func (c *Controller) liveSnapshot(ctx context.Context, namespace, name string, uid types.UID) (*snapshotv1.VolumeSnapshot, error) {
	live, err := c.existingSnapshot(ctx, namespace, name, uid)
	if live != nil && live.DeletionTimestamp != nil {
		return nil, nil
	}
	return live, err
}

// existingSnapshot reads a VolumeSnapshot from the API server. It returns nil if the
// object is gone. An object that is being deleted exists until its last finalizer is
// removed.
func (c *Controller) existingSnapshot(ctx context.Context, namespace, name string, uid types.UID) (*snapshotv1.VolumeSnapshot, error) {
	live, err := c.Snapshots.SnapshotV1().VolumeSnapshots(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != uid:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot tell whether VolumeSnapshot %s/%s is there: %w", namespace, name, err)
	}
	return live, nil
}

// changedError ends work that is no longer wanted.
type changedError struct{ because string }

func (e *changedError) Error() string { return e.because }
