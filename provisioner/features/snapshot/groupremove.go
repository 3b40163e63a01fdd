package snapshot

import (
	"context"
	"fmt"
	"slices"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// remove removes the snapshots of all members, as the group's content asks. A member whose
// own content has the deletionPolicy Retain is kept.
func (g *grouping) remove(ctx context.Context) error {
	if g.isGroupRemoved(g.content) {
		return nil
	}
	if err := g.stillDeleted(ctx); err != nil {
		return err
	}
	if err := g.resume(); err != nil {
		return &refusal{"Damaged", err.Error()}
	}
	for _, m := range g.origin.Members {
		if m.Cluster != g.Cluster {
			return &refusal{"Damaged", fmt.Sprintf("VolumeGroupSnapshotContent %s is of cluster %q, but this is %q: the snapshots belong to the other cluster", g.content.Name, m.Cluster, g.Cluster)}
		}
	}
	retained := make([]bool, len(g.members))
	for i, t := range g.members {
		var err error
		if retained[i], err = g.isRetained(ctx, t); err != nil {
			return err // none is removed
		}
	}
	if g.origin.Consistency == policy.ConsistentArray {
		return together{g}.remove(ctx, retained)
	}
	kept := make([]bool, len(g.members))
	err := g.each(func(i int, t *taking) (err error) {
		if !retained[i] {
			kept[i], err = g.removeOne(ctx, t)
		}
		return err
	})
	if err == nil && !slices.Contains(kept, true) {
		g.noteGroupRemoved()
	}
	return err
}

// removeOne removes the snapshot of a member. It reports whether one was kept, because it
// was ready once.
func (g *grouping) removeOne(ctx context.Context, t *taking) (kept bool, err error) {
	started := time.Now()
	backend, err := g.answering(shelfOf(t.origin))
	if err != nil {
		return false, err
	}
	ctx, requests := requestids.WithRequestIDs(g.Caller(ctx, t.origin.Tenant))
	target := t.origin.Target()
	target.Stamp, target.Permit = t.stamp(), g.stillDeleted
	var left []string
	if t.origin.SnapshotID != "" {
		err = backend.RemoveSnapshot(ctx, target)
	} else {
		target.Unrecorded = g.content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete
		left, err = backend.AbandonSnapshots(ctx, target)
	}
	g.Metrics.deleted(t.origin.Backend, outcomeOf(err), time.Since(started))
	if err != nil || len(left) > 0 {
		return len(left) > 0, objects.WithSnapshotRemedy(err, t.origin)
	}
	g.release(t.origin.UID, g.Ledger.ReleaseSnapshot)
	g.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: t.origin.VolumeID})
	g.Logger.Info("Deleted a snapshot", "tenant", t.origin.Tenant, "group", g.origin.Namespace+"/"+g.origin.Name, "groupUID", g.origin.UID, "snapshot", t.origin.Name,
		"backend", t.origin.Backend, "volume", t.origin.VolumeID, "id", t.origin.SnapshotID, "requestID", requests.OfDelete(), "durationSeconds", time.Since(started).Seconds())
	return false, nil
}

// isRetained reports whether a member's snapshot outlives its group. It returns an error if
// another content, which somebody made to keep the snapshot, names it. The API server has the
// last word about the member's own: somebody may have just changed its policy.
func (g *grouping) isRetained(ctx context.Context, t *taking) (bool, error) {
	if t.origin.SnapshotID == "" {
		return false, nil
	}
	naming, err := g.ContentsOf(t.origin.SnapshotID)
	if err != nil {
		return false, err
	}
	retained := false
	for _, content := range naming {
		if content.Name != t.origin.Content && g.csi {
			return false, &refusal{"InUse", severalName(t.origin.Content, content.Name, t.origin.SnapshotID)}
		}
		if content.Name != t.origin.Content {
			return false, &denied{reason: "SnapshotFailedDelete", message: severalName(t.origin.Content, content.Name, t.origin.SnapshotID), triggers: []parking.Trigger{contentTrigger(content.Name)}, again: true}
		}
		retained = content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := g.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, t.origin.Content, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return retained, nil
	case err != nil:
		return false, fmt.Errorf("cannot tell whether VolumeSnapshotContent %s keeps its snapshot: %w", t.origin.Content, err)
	}
	return live.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete, nil
}

// stillDeleted checks at the API server whether the group's content still asks for the
// removal of its snapshots.
func (g *grouping) stillDeleted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := g.groupContentAt(ctx, g.content.Name)
	var because string
	switch {
	case err != nil:
		return err
	case live == nil || live.UID != g.content.UID:
		because = "it is gone"
	case live.DeletionTimestamp == nil:
		because = "it is not being deleted"
	case live.Spec.DeletionPolicy != g.content.Spec.DeletionPolicy || objects.GroupHandleOf(live) != "" && live.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete:
		because = fmt.Sprintf("its deletionPolicy is %s", live.Spec.DeletionPolicy)
	default:
		return nil
	}
	return &changedError{fmt.Sprintf("VolumeGroupSnapshotContent %s does not ask for the deletion of its snapshots: %s", g.content.Name, because)}
}

// noteGroupRemoved has the contents of a group and of its snapshots no longer count.
func (g *grouping) noteGroupRemoved() {
	shown := g.shown()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.removed[g.content.UID] = true
	for _, m := range g.origin.Members {
		if content, err := shown.contents.Get(m.Content); err == nil && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
			g.removed[content.UID] = true
		}
	}
}

func (c *groups) isGroupRemoved(content *groupv1.VolumeGroupSnapshotContent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removed[content.UID]
}

// withOwner returns a group's content, and its VolumeGroupSnapshot if that exists: what
// events about the group are on.
func (c *groups) withOwner(content *groupv1.VolumeGroupSnapshotContent) []metav1.Object {
	about := []metav1.Object{content}
	reference := content.Spec.VolumeGroupSnapshotRef
	if groups := c.groupsShown(); groups != nil {
		if group, err := groups.groups.VolumeGroupSnapshots(reference.Namespace).Get(reference.Name); err == nil && group.UID == reference.UID {
			about = append(about, group)
		}
	}
	return about
}

// existingGroup reads a VolumeGroupSnapshot from the API server; nil if it is gone.
func (c *groups) existingGroup(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) (*groupv1.VolumeGroupSnapshot, error) {
	reference := content.Spec.VolumeGroupSnapshotRef
	live, err := c.Snapshots.GroupsnapshotV1().VolumeGroupSnapshots(reference.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != reference.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot tell whether VolumeGroupSnapshot %s/%s is there: %w", reference.Namespace, reference.Name, err)
	}
	return live, nil
}

// letGoOfGroup removes the finalizer from a group's content, as letGo does.
func (c *groups) letGoOfGroup(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) error {
	_, err := c.patchGroupContent(ctx, content, map[string]any{"metadata": map[string]any{
		"finalizers": without(content.Finalizers, objects.GroupFinalizer), "uid": content.UID, "resourceVersion": content.ResourceVersion,
	}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot remove the finalizer of VolumeGroupSnapshotContent %s: %w", content.Name, err)
	}
	return nil
}

// deleteUnbound deletes the contents of members that the snapshot-controller never bound,
// and would never delete.
func (g *grouping) deleteUnbound(ctx context.Context) error {
	for _, m := range g.origin.Members {
		content, err := g.shown().contents.Get(m.Content)
		if err == nil && content.Spec.VolumeSnapshotRef.UID == "" && content.DeletionTimestamp == nil && slices.Contains(content.Finalizers, objects.SnapshotFinalizer) {
			if err := g.deleteContent(ctx, content); err != nil {
				return err
			}
		}
	}
	return nil
}
