package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// askTimeout bounds a request to the API server while a request to the backend waits
// for it.
const askTimeout = 5 * time.Second

// removing is one attempt at a content, usually one whose deletion was requested.
type removing struct {
	*Controller
	*attempt
	content *snapshotv1.VolumeSnapshotContent
	origin  objects.SnapshotOrigin
	// proven means that the API server has confirmed that the deletion is still wanted.
	proven bool
}

func (c *Controller) syncContent(ctx context.Context, a *attempt) error {
	content, err := c.shown().contents.Get(a.Key.name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !c.serves(content) {
		return err
	}
	c.parked.Take(content.UID)
	r := &removing{Controller: c, attempt: a, content: content}
	return r.end(r.run(ctx))
}

// end reports the result of the attempt on the content and its VolumeSnapshot.
func (r *removing) end(err error) error {
	if err == nil || apierrors.IsConflict(err) {
		return err // after a conflict, the next attempt reads what somebody wrote meanwhile
	}
	about := []metav1.Object{r.content}
	if snapshot := r.snapshotOf(r.content); snapshot != nil {
		about = append(about, snapshot)
	}
	var why *denied
	var changed *changedError
	switch {
	case errors.As(err, &why):
		r.report(why.reason, why.message+why.detail, r.content)
		r.report(why.reason, why.message, about[1:]...)
		state := parking.Blocked
		if r.content.DeletionTimestamp == nil && objects.ImportedHandleOf(r.content) != "" {
			state = parking.Denied
		}
		r.park(r.attempt, r.content, state, why.triggers...)
		if why.again {
			return err
		}
		return nil
	case errors.As(err, &changed):
		if r.content.DeletionTimestamp != nil {
			r.report("DeletionStopped", changed.Error(), about...)
		}
		return nil // a change of the content brings it back
	}
	if cinder.IsKind(err, backends.KindPending) {
		await(r.Controller, r.attempt, err, about...)
		return err
	}
	if unhealthy := r.Backends.Health(r.origin.Backend); unhealthy != nil {
		r.report(reasonBackendUnavailable, unhealthy.Error(), about...)
		r.park(r.attempt, r.content, parking.Blocked, triggersAt(r.origin.Backend)...)
		return nil
	}
	switch {
	case r.content.DeletionTimestamp != nil:
		r.report("SnapshotFailedDelete", err.Error(), about...)
	case objects.ImportedHandleOf(r.content) != "":
		r.report("SnapshotImportFailed", err.Error(), about...)
	}
	r.park(r.attempt, r.content, parking.Failing, append(triggersAt(r.origin.Backend), parking.Trigger{Kind: parking.Snapshots, Name: r.origin.VolumeID})...)
	return err
}

// snapshotOf returns the VolumeSnapshot of a content; nil if there is none. Events about
// the content must not reach another VolumeSnapshot of the same name.
func (c *Controller) snapshotOf(content *snapshotv1.VolumeSnapshotContent) *snapshotv1.VolumeSnapshot {
	reference := content.Spec.VolumeSnapshotRef
	snapshot, err := c.shown().snapshots.VolumeSnapshots(reference.Namespace).Get(reference.Name)
	if err != nil {
		return nil
	}
	wanted := snapshot.Spec.Source.VolumeSnapshotContentName
	if snapshot.UID != reference.UID && (reference.UID != "" || wanted == nil || *wanted != content.Name) {
		return nil
	}
	return snapshot
}

// run does what a content needs now.
func (r *removing) run(ctx context.Context) error {
	imported := r.content.Spec.Source.SnapshotHandle != nil
	switch {
	case objects.GroupOf(r.content) != "":
		return r.followGroup(ctx)
	case r.content.DeletionTimestamp == nil && imported:
		return r.importSnapshot(ctx)
	case r.content.DeletionTimestamp == nil:
		return r.checkOwner(ctx)
	case objects.IsCSISnapshot(r.content) && slices.Contains(r.content.Finalizers, objects.SnapshotFinalizer):
		return r.leaveToSidecar(ctx)
	case !slices.ContainsFunc(r.content.Finalizers, isOurFinalizer):
		return nil
	case r.isRemoved(r.content):
		return r.letGo(ctx)
	}
	var err error
	if imported && !objects.IsSnapshotRecorded(r.content) {
		switch found, err := r.findLost(ctx); {
		case err != nil:
			return err
		case !found:
			return r.keepImported(ctx) // it was never handed out
		}
	}
	if why, err := r.whyNotRequested(ctx); err != nil || why != nil {
		return errors.Join(err, asError(why))
	}
	switch {
	case r.origin.SnapshotID != "": // it was found without a record
	case !objects.IsSnapshotRecorded(r.content) && objects.SnapshotHandleOf(r.content) == "":
		return r.letGo(ctx) // the snapshot-controller made the content, and nothing was begun
	default:
		if r.origin, err = objects.SnapshotOriginOf(r.content); err != nil {
			return err
		}
	}
	if imported {
		r.origin.SnapshotID = objects.ImportedHandleOf(r.content)
	}
	if r.origin.Cluster != r.Cluster {
		return &objects.DamagedError{Message: fmt.Sprintf("VolumeSnapshotContent %s is of cluster %q, but this is %q: the snapshot belongs to the other cluster",
			r.content.Name, r.origin.Cluster, r.Cluster)}
	}
	if r.content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete && r.origin.SnapshotID != "" {
		return r.letGo(ctx)
	}
	return r.remove(ctx)
}

func asError(why *denied) error {
	if why == nil {
		return nil
	}
	return why
}

// checkOwner deletes a content that was written just while its VolumeSnapshot was being
// deleted: the snapshot-controller did not know the content then, and never requests
// its deletion. A content that names a snapshot may come from a backup, so it stays
// until somebody deletes it, and an event says so.
func (r *removing) checkOwner(ctx context.Context) error {
	reference, named := r.content.Spec.VolumeSnapshotRef, objects.SnapshotHandleOf(r.content) != ""
	if !objects.IsSnapshotRecorded(r.content) || named && r.content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return nil
	}
	if r.shows(reference.Namespace, reference.Name, reference.UID) {
		return nil // syncSnapshot takes care of it
	}
	live, err := r.existingSnapshot(ctx, reference.Namespace, reference.Name, reference.UID)
	if err != nil || live != nil {
		return err
	}
	if named {
		return r.reportUnbound(ctx)
	}
	if r.origin, err = objects.SnapshotOriginOf(r.content); err != nil {
		return err
	}
	if !r.Begin(r.origin.Tenant, r.origin.Backend) {
		return nil // its turn brings it back
	}
	recorded, err := r.hasRecorded(ctx, r.origin)
	if err != nil {
		return err
	}
	if recorded {
		return &denied{reason: "SnapshotKept", message: fmt.Sprintf(
			"its VolumeSnapshot is gone, but the snapshot at Cinder was ready once, so nothing is removed; delete this VolumeSnapshotContent to decide about it (deletionPolicy %s)", r.content.Spec.DeletionPolicy)}
	}
	return r.deleteContent(ctx, r.content)
}

// reportUnbound reports that a content outlives its VolumeSnapshot. The content is not
// parked: a change of it brings it back, and the resync repeats the event. The content
// is read from the API server, because the cache of contents may be older than that of
// VolumeSnapshots. There is no report about a content whose deletion would not remove
// the snapshot.
func (r *removing) reportUnbound(ctx context.Context) error {
	if origin, err := objects.SnapshotOriginOf(r.content); err != nil || origin.Cluster != r.Cluster {
		return nil
	}
	live, err := r.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, r.content.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot tell whether VolumeSnapshotContent %s is being deleted: %w", r.content.Name, err)
	case live.UID != r.content.UID, live.DeletionTimestamp != nil, live.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete:
		return nil
	}
	reference := live.Spec.VolumeSnapshotRef
	r.report("SnapshotKept", fmt.Sprintf(
		"its VolumeSnapshot %s/%s (UID %s) is gone, but nothing asked for the deletion of snapshot %s; to keep the snapshot, set deletionPolicy to Retain; to delete it, delete this VolumeSnapshotContent (as long as it exists, its volume cannot be deleted)",
		reference.Namespace, reference.Name, reference.UID, objects.SnapshotHandleOf(live)), r.content)
	return nil
}

// hasRecorded reports whether Cinder has a snapshot of the origin that was marked
// as recorded.
func (c *Controller) hasRecorded(ctx context.Context, origin objects.SnapshotOrigin) (bool, error) {
	backend, err := c.Backends.Snapshots(shelfOf(origin))
	if err != nil {
		return false, err
	}
	all, err := backend.RelistSnapshots(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(s cinder.Snapshot) bool { return c.stampOf(origin).Owns(s) && wasRecorded(s) }), nil
}

// whyNotRequested returns why a content must not be worked on yet, although its object is
// being deleted. The snapshot-controller requests the removal with an annotation, but
// not while a claim is being made from the snapshot.
func (r *removing) whyNotRequested(ctx context.Context) (*denied, error) {
	if _, marked := r.content.Annotations[objects.AnnotationSnapshotBeingDeleted]; marked {
		return nil, nil
	}
	reference := r.content.Spec.VolumeSnapshotRef
	live, err := r.existingSnapshot(ctx, reference.Namespace, reference.Name, reference.UID)
	if err != nil || live == nil {
		return nil, err
	}
	if live.DeletionTimestamp != nil {
		return &denied{reason: "SnapshotInUse", message: fmt.Sprintf("VolumeSnapshot %s/%s is being deleted, and still exists because of its finalizers %s",
			reference.Namespace, reference.Name, strings.Join(live.Finalizers, ", "))}, nil
	}
	return &denied{reason: "SnapshotInUse", message: fmt.Sprintf("VolumeSnapshot %s/%s still exists; delete it, too", reference.Namespace, reference.Name)}, nil
}

// remove removes the snapshot, and then the finalizer.
func (r *removing) remove(ctx context.Context) error {
	started := time.Now()
	backend, err := r.Backends.Snapshots(shelfOf(r.origin))
	if err != nil {
		return fmt.Errorf("VolumeSnapshotContent %s: %w", r.content.Name, err)
	}
	if unhealthy := r.Backends.Health(r.origin.Backend); unhealthy != nil {
		return unhealthy
	}
	if err := r.namedOnce(); err != nil {
		return err
	}
	if !r.Begin(r.origin.Tenant, r.origin.Backend) {
		return nil // its turn brings it back
	}
	ctx, requests := requestids.WithRequestIDs(ctx)
	ctx = r.Caller(ctx, r.origin.Tenant)
	target := r.origin.Target()
	target.Permit = r.prove
	var kept []string
	if r.origin.SnapshotID != "" {
		err = backend.RemoveSnapshot(ctx, target)
	} else {
		// With the policy Retain, a snapshot that was ready once stays.
		target.Unrecorded = r.content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete
		kept, err = backend.AbandonSnapshots(ctx, target)
	}
	if err == nil && !r.proven {
		err = r.prove(ctx) // there was nothing left to remove
	}
	r.Metrics.deleted(r.origin.Backend, outcomeOf(err), time.Since(started))
	if objects.ImportedHandleOf(r.content) != "" && cinder.IsKind(err, backends.KindNotOurs) {
		// The snapshot was never stamped, or belongs to somebody else by now, for whom it
		// counts.
		r.noteRemoved(r.content)
		return r.keepImported(ctx)
	}
	if err != nil {
		return objects.WithSnapshotRemedy(err, r.origin)
	}
	if len(kept) > 0 {
		// They continue to count, like those of any content with the policy Retain.
		r.Logger.Info("Kept the snapshot of a VolumeSnapshotContent without a status, because it was ready once", "tenant", r.origin.Tenant,
			"snapshot", r.origin.Namespace+"/"+r.origin.Name, "snapshotUID", r.origin.UID, "backend", r.origin.Backend, "ids", kept)
		return r.letGo(ctx)
	}
	r.noteRemoved(r.content)
	r.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: r.origin.VolumeID})
	r.Logger.Info("Deleted a snapshot", "backup", r.origin.Backup, "tenant", r.origin.Tenant, "snapshot", r.origin.Namespace+"/"+r.origin.Name, "snapshotUID", r.origin.UID,
		"backend", r.origin.Backend, "volume", r.origin.VolumeID, "id", r.origin.SnapshotID, "requestID", requests.OfDelete(), "durationSeconds", time.Since(started).Seconds())
	return r.letGo(ctx)
}

// namedOnce returns an error if another content names the snapshot, too. Somebody may
// have made it to keep the snapshot.
func (r *removing) namedOnce() error {
	if r.origin.SnapshotID == "" {
		return nil
	}
	naming, err := r.ContentsOf(r.origin.SnapshotID)
	if err != nil {
		return err
	}
	for _, other := range naming {
		if other.UID != r.content.UID {
			return &denied{reason: "SnapshotFailedDelete", message: severalName(r.content.Name, other.Name, r.origin.SnapshotID), triggers: []parking.Trigger{contentTrigger(other.Name)}, again: true}
		}
	}
	return nil
}

// prove reads the content from the API server just before the first change. It returns
// an error unless the content still asks for the removal of this very snapshot.
func (r *removing) prove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := r.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, r.content.Name, metav1.GetOptions{})
	var because string
	switch {
	case apierrors.IsNotFound(err):
		because = "its VolumeSnapshotContent is gone"
	case err != nil:
		return fmt.Errorf("cannot tell whether VolumeSnapshotContent %s is still to be deleted: %w", r.content.Name, err)
	case live.UID != r.content.UID:
		because = "another VolumeSnapshotContent has its name"
	case live.DeletionTimestamp == nil:
		because = "its VolumeSnapshotContent is not being deleted"
	case live.Spec.DeletionPolicy != r.content.Spec.DeletionPolicy:
		because = fmt.Sprintf("the deletionPolicy is now %s", live.Spec.DeletionPolicy)
	case objects.SnapshotHandleOf(live) != objects.SnapshotHandleOf(r.content):
		because = fmt.Sprintf("its VolumeSnapshotContent now names snapshot %q", objects.SnapshotHandleOf(live))
	case live.Annotations[objects.AnnotationBackend] != r.content.Annotations[objects.AnnotationBackend]:
		because = fmt.Sprintf("its VolumeSnapshotContent now names backend %q", live.Annotations[objects.AnnotationBackend])
	default:
		r.proven = true
		return nil
	}
	return &changedError{fmt.Sprintf("the snapshot of VolumeSnapshotContent %s is not removed: %s", r.content.Name, because)}
}

// isOurFinalizer reports whether the program removes a finalizer from a content that is
// being deleted. If it is the CSI driver's, the sidecar has removed its own first.
func isOurFinalizer(finalizer string) bool {
	return finalizer == objects.SnapshotFinalizer || finalizer == objects.TakenUpFinalizer
}

func without(finalizers []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == one })
}

// letGo removes the finalizer, based on the content in the cache. If the content has
// changed in between, the request fails, and the next attempt reads it again.
func (r *removing) letGo(ctx context.Context) error {
	left := slices.DeleteFunc(slices.Clone(r.content.Finalizers), isOurFinalizer)
	_, err := r.patchContent(ctx, r.content, map[string]any{"metadata": map[string]any{
		"finalizers": left, "uid": r.content.UID, "resourceVersion": r.content.ResourceVersion,
	}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot remove the finalizer of VolumeSnapshotContent %s: %w", r.content.Name, err)
	}
	return nil
}

// noteRemoved frees the room of a content's snapshot. Until the object is gone, changes
// of it no longer count.
func (c *Controller) noteRemoved(content *snapshotv1.VolumeSnapshotContent) {
	c.mu.Lock()
	c.removed[content.UID] = true
	c.mu.Unlock()
	c.release(objects.SnapshotOwner(content), c.Ledger.ReleaseSnapshot)
}

func (c *Controller) isRemoved(content *snapshotv1.VolumeSnapshotContent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removed[content.UID]
}
