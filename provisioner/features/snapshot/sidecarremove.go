package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Remove removes a snapshot of the CSI driver whose VolumeSnapshotContent is
// being deleted. It succeeds if the snapshot is gone already.
func (c Sidecar) Remove(ctx context.Context, backendName, id string) error {
	task := c.Monitor.Begin("the sidecar's deletion of snapshot "+id, c.MaxWorkTime)
	defer task.End()
	ctx = task.In(ctx)
	if err := c.isReady(); err != nil {
		return err
	}
	backend, err := c.Backends.Snapshots(Shelf{backendName, backends.IsBackup(id)})
	if err != nil {
		return err
	}
	content, err := c.deletedContentOf(ctx, id)
	if err != nil {
		return err
	}
	err = c.removeFor(ctx, backend, backendName, id, content)
	if err != nil && content != nil {
		objects := []metav1.Object{content}
		if snapshot := c.snapshotOf(content); snapshot != nil {
			objects = append(objects, snapshot)
		}
		// The sidecar's own event does not say why.
		c.report("SnapshotFailedDelete", err.Error(), objects...)
	}
	return err
}

func (c Sidecar) removeFor(ctx context.Context, backend Snapshots, backendName, id string, content *snapshotv1.VolumeSnapshotContent) error {
	started := time.Now()
	// Read the place first. If the backend moves meanwhile, the snapshot's absence at the
	// new place proves nothing.
	place := backend.Place()
	s, found, err := backend.FindSnapshot(ctx, id)
	if err != nil {
		return err
	}
	stamp := stamps.OfSnapshot(s)
	target := backends.SnapshotTarget{SnapshotID: id, Stamp: stamp, Place: place}
	switch {
	case content == nil && !found:
		return c.namedByNone(ctx, id)
	case content == nil:
		return &refusal{"Damaged", fmt.Sprintf("no VolumeSnapshotContent asks for the deletion of snapshot %s", id)}
	case found && objects.ImportedHandleOf(content) != "" && !c.isOf(s, content):
		// The content never got the snapshot, so it may go.
		c.reportKept(content)
		return nil
	case found && stamp.Group != "" && c.isOurs(stamp):
		return &refusal{string(backends.KindInUse), fmt.Sprintf("snapshot %s belongs to VolumeGroupSnapshot %s; it is deleted with that", id, stamp.Group)}
	case found && (!stamps.IsCSISnapshot(s) || !c.isOurs(stamp) && !c.isImported(stamp, s)):
		return &refusal{string(backends.KindNotOurs), fmt.Sprintf("snapshot %s does not carry the stamp of this cluster's CSI driver; it is not touched", id)}
	}
	origin, recordedErr := objects.SnapshotOriginOf(content)
	origin.Backend = cmp.Or(origin.Backend, backendName)
	switch {
	case recordedErr == nil:
		// The backend compares the stamp with the snapshot's.
		target.Place, target.Stamp = origin.Place, c.stampOf(origin)
	case found && stamp.SnapshotUID != string(objects.SnapshotOwner(content)):
		return &refusal{string(backends.KindNotOurs), fmt.Sprintf("snapshot %s carries the stamp of a VolumeSnapshot other than that of VolumeSnapshotContent %s; it is not touched", id, content.Name)}
	case !found && c.isRemoved(content):
		return nil
	case !found:
		// Only at its own place does its absence prove that the snapshot is gone.
		if target.Place = cmp.Or(origin.Place, c.placeOfSource(content)); !target.Place.IsKnown() {
			present := backend.Place()
			return &refusal{"Damaged", fmt.Sprintf("%v; snapshot %s does not exist at %s, but it may have been taken elsewhere; %s", recordedErr, id, present, origin.Remedy(present))}
		}
	}
	target.Permit = func(ctx context.Context) error { return c.stillDeleted(ctx, content, id) }
	ctx, requests := requestids.WithRequestIDs(c.Caller(ctx, target.Stamp.Tenant))
	err = backend.RemoveSnapshot(ctx, target)
	c.Metrics.deleted(backendName, outcomeOf(err), time.Since(started))
	if err != nil {
		return asRefusal(objects.WithSnapshotRemedy(err, origin))
	}
	c.noteRemoved(content)
	c.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: cmp.Or(s.VolumeID, origin.VolumeID)})
	c.Logger.Info("Deleted a snapshot", "tenant", target.Stamp.Tenant, "snapshot", target.Stamp.Namespace+"/"+target.Stamp.Snapshot, "snapshotUID", target.Stamp.SnapshotUID,
		"backend", backendName, "volume", s.VolumeID, "id", id, "requestID", requests.OfDelete(), "durationSeconds", time.Since(started).Seconds())
	return nil
}

// placeOfSource returns where the volume of a content lives, which is where its
// snapshots are. The place is zero unless a single PersistentVolume records it.
func (c Sidecar) placeOfSource(content *snapshotv1.VolumeSnapshotContent) cinder.Place {
	if content.Spec.Source.VolumeHandle == nil {
		return cinder.Place{}
	}
	found := objects.ByHandle(c.PersistentVolumes, content.Spec.Driver, *content.Spec.Source.VolumeHandle)
	if len(found) != 1 {
		return cinder.Place{}
	}
	return objects.PlaceOf(found[0])
}

// ContentsOf returns the contents that name a snapshot.
func (c *Controller) ContentsOf(id string) ([]*snapshotv1.VolumeSnapshotContent, error) {
	if err := c.isReady(); err != nil {
		return nil, err
	}
	all, err := c.shown().contents.List(everything)
	if err != nil {
		return nil, err
	}
	var found []*snapshotv1.VolumeSnapshotContent
	for _, content := range all {
		if slices.Contains(objects.SnapshotHandlesOf(content), id) {
			found = append(found, content)
		}
	}
	slices.SortFunc(found, func(a, b *snapshotv1.VolumeSnapshotContent) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// deletedContentOf returns the content whose deletion asks for the deletion of a
// snapshot; nil if no content names the snapshot. If several contents name it, it
// stays.
func (c Sidecar) deletedContentOf(ctx context.Context, id string) (*snapshotv1.VolumeSnapshotContent, error) {
	found, err := c.ContentsOf(id)
	if err != nil {
		return nil, err
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], c.stillDeleted(ctx, found[0], id)
	}
	return nil, &refusal{string(backends.KindInUse), severalName(found[0].Name, found[1].Name, id)}
}

// namedByNone returns an error if the API server has a content that names a snapshot,
// which the cache does not show yet. Such a content may belong to another installation of
// the driver, or record that the snapshot is elsewhere.
func (c Sidecar) namedByNone(ctx context.Context, id string) error {
	found, err := c.liveContentsOf(ctx, id)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("VolumeSnapshotContent %s names snapshot %s, but the cache does not show it yet", found[0].Name, id)
	}
	return err
}

// liveContentsOf does what ContentsOf does, at the API server.
func (c Sidecar) liveContentsOf(ctx context.Context, id string) ([]*snapshotv1.VolumeSnapshotContent, error) {
	return paging.List(ctx, "VolumeSnapshotContents", c.Snapshots.SnapshotV1().VolumeSnapshotContents().List, func(page *snapshotv1.VolumeSnapshotContentList) (found []*snapshotv1.VolumeSnapshotContent) {
		for i := range page.Items {
			if slices.Contains(objects.SnapshotHandlesOf(&page.Items[i]), id) {
				found = append(found, &page.Items[i])
			}
		}
		return found
	})
}

// severalName says why a snapshot is not deleted. The same problem has the same text.
func severalName(one, other, id string) string {
	return fmt.Sprintf("VolumeSnapshotContents %s and %s both name snapshot %s; it is kept as long as one of them does", min(one, other), max(one, other), id)
}

// stillDeleted checks at the API server whether a content still asks for the deletion
// of its snapshot.
func (c Sidecar) stillDeleted(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, id string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := c.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, content.Name, metav1.GetOptions{})
	var because string
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != content.UID:
		because = "it is gone"
	case err != nil:
		return fmt.Errorf("cannot tell whether VolumeSnapshotContent %s is still to be deleted: %w", content.Name, err)
	case !objects.IsCSISnapshot(live):
		because = "it is not the CSI driver's"
	case live.DeletionTimestamp == nil:
		because = "it is not being deleted"
	case live.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete:
		because = fmt.Sprintf("its deletionPolicy is %s", live.Spec.DeletionPolicy)
	case !slices.Contains(objects.SnapshotHandlesOf(live), id):
		because = "it no longer names the snapshot"
	default:
		return nil
	}
	return &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s does not ask for the deletion of snapshot %s: %s", content.Name, id, because)}
}
