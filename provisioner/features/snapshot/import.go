package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// importing is one attempt to give a snapshot that exists at Cinder to the
// VolumeSnapshot of a content that somebody made for it. Only an administrator can make
// such an object, but the policy still decides which tenant may have which snapshot.
type importing struct {
	*removing
	handle   objects.SnapshotHandle
	snapshot *snapshotv1.VolumeSnapshot
	inForce  *policy.Policy
	plan     *imports.SnapshotPlan
	// begun means that the content records the snapshot, which counts from then on.
	begun bool
}

// importSnapshot serves a content that somebody made for a snapshot at Cinder. It waits
// until the snapshot-controller has bound the content to a VolumeSnapshot, because only
// that determines the namespace, and so the tenant, that gets the snapshot.
func (r *removing) importSnapshot(ctx context.Context) error {
	if objects.IsSnapshotRecorded(r.content) && objects.IsSnapshotReady(r.content) {
		return r.checkOwner(ctx)
	}
	reference := r.content.Spec.VolumeSnapshotRef
	snapshot, err := r.shown().snapshots.VolumeSnapshots(reference.Namespace).Get(reference.Name)
	if apierrors.IsNotFound(err) || err == nil && !names(snapshot, r.content) {
		return nil
	}
	if err != nil {
		return err
	}
	i := &importing{removing: r, snapshot: snapshot}
	return i.settled(ctx, i.run(ctx))
}

// names reports whether a VolumeSnapshot and a content name each other, and the
// snapshot-controller has bound them.
func names(snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) bool {
	wanted := snapshot.Spec.Source.VolumeSnapshotContentName
	return snapshot.UID == content.Spec.VolumeSnapshotRef.UID && snapshot.DeletionTimestamp == nil && wanted != nil && *wanted == content.Name
}

// settled decides what follows from an attempt. Reserved room is given back unless the
// content records the snapshot. If it does, but the answer was lost, the snapshot
// counts when the cache shows the record.
func (i *importing) settled(ctx context.Context, err error) error {
	var refusal *imports.RefusedError
	var why *denied
	switch {
	case errors.As(err, &refusal):
		why = refusedBy(refusal)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		err = &changedError{"VolumeSnapshotContent " + i.content.Name + " changed, or was deleted, during the import"}
	}
	if why != nil {
		// No trigger fires when somebody corrects something at Cinder.
		why.again = true
		err = why
	}
	if errors.As(err, &why) {
		why.triggers = append(why.triggers, parking.Trigger{Kind: parking.Namespace, Name: i.snapshot.Namespace})
	}
	if (why != nil || cinder.IsKind(err, backends.KindNotOurs)) && objects.IsSnapshotRecorded(i.content) {
		if failed := i.giveUp(ctx); failed != nil {
			err = failed
		}
	}
	if (err != nil || !i.shows(i.snapshot.Namespace, i.snapshot.Name, i.snapshot.UID)) && !i.begun && !objects.IsSnapshotRecorded(i.content) {
		i.release(i.snapshot.UID, i.Ledger.ReleaseSnapshotReservation)
	}
	var changed *changedError
	switch {
	case why != nil:
		i.Metrics.imported("denied")
	case err != nil && !errors.As(err, &changed):
		i.Metrics.imported(outcomeOf(err))
	}
	return err
}

func refusedBy(refusal *imports.RefusedError) *denied {
	why := &denied{reason: "SnapshotImportRefused", message: refusal.Error()}
	if refusal.Denial != nil {
		why = deniedBy(refusal.Denial)
	}
	if refusal.Why != "" {
		why.detail = " (" + refusal.Why + ")"
	}
	if refusal.Content != "" {
		why.triggers = append(why.triggers, contentTrigger(refusal.Content))
	}
	if namespace, name, found := strings.Cut(refusal.Snapshot, "/"); found {
		why.triggers = append(why.triggers, snapshotTrigger(namespace, name))
	}
	return why
}

func (i *importing) run(ctx context.Context) (err error) {
	if i.handle, err = objects.ImportedHandle(i.content); err != nil {
		return &denied{reason: "SnapshotImportRefused", message: err.Error()}
	}
	if done, err := i.resume(ctx); done || err != nil || i.Waits() {
		return err
	}
	class := i.content.Annotations[objects.AnnotationStorageClass]
	i.inForce = i.Policy()
	decision := i.inForce.DecideSnapshotImport(policy.SnapshotRequest{Namespace: i.snapshot.Namespace, NamespaceLabels: i.labels(), StorageClass: class})
	if decision.Denial != nil {
		return deniedBy(decision.Denial)
	}
	i.origin.Backend = decision.Backends[0]
	if slices.Contains(decision.Backends, i.handle.Backend) {
		i.origin.Backend = i.handle.Backend
	}
	if !i.Begin(decision.Tenant, i.origin.Backend) {
		return nil // its turn brings it back
	}
	ctx, requests := requestids.WithRequestIDs(ctx)
	ctx = i.Caller(ctx, decision.Tenant)
	if done, err := i.refresh(ctx); done || err != nil {
		return err
	}
	if i.plan, err = i.importer().Plan(ctx, imports.SnapshotRequest{
		ID: i.handle.ID, Backend: i.handle.Backend, Namespace: i.snapshot.Namespace, Name: i.snapshot.Name, UID: string(i.snapshot.UID), Content: i.content.Name,
		StorageClass: class,
	}); err != nil {
		return err
	}
	i.origin.Backend = i.plan.Backend
	if err := i.reserve(ctx); err != nil {
		return err
	}
	return i.apply(ctx, requests)
}

// resume ends an import whose snapshot was stamped already. The policy decided then.
func (i *importing) resume(ctx context.Context) (done bool, err error) {
	origin, err := objects.SnapshotOriginOf(i.content)
	if err != nil {
		return false, nil // nothing was begun
	}
	origin.SnapshotID = i.handle.ID
	backend, err := i.Backends.Snapshots(shelfOf(origin))
	if err != nil {
		return false, nil
	}
	i.origin = origin
	if unhealthy := i.Backends.Health(origin.Backend); unhealthy != nil {
		return false, unhealthy
	}
	if !i.Begin(origin.Tenant, origin.Backend) {
		return false, nil // its turn brings it back
	}
	s, found, err := backend.FindSnapshot(i.Caller(ctx, origin.Tenant), origin.SnapshotID)
	if err != nil || !found || !i.isOf(s, i.content) || stamps.IsCSISnapshot(s) != objects.IsCSISnapshot(i.content) || s.Status != cinder.StatusAvailable {
		return false, err
	}
	i.begun = true
	return true, i.hand(ctx, s, told{})
}

// isOf reports whether a snapshot carries the stamp of the import by a content.
func (c *Controller) isOf(s cinder.Snapshot, content *snapshotv1.VolumeSnapshotContent) bool {
	stamp := stamps.OfSnapshot(s)
	return c.isImported(stamp, s) && stamp.Content == content.Name && stamp.SnapshotUID == string(content.Spec.VolumeSnapshotRef.UID)
}

// refresh reads the content from the API server, because the cache may not show yet
// what the last attempt wrote. It reports whether nothing is left to do. What the status
// names without a record cannot be used: an earlier version, or another VolumeSnapshot,
// left it there.
func (i *importing) refresh(ctx context.Context) (done bool, err error) {
	live, err := i.Controller.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, i.content.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cannot read VolumeSnapshotContent %s: %w", i.content.Name, err)
	case live.UID != i.content.UID || live.DeletionTimestamp != nil || objects.IsSnapshotRecorded(live) && objects.IsSnapshotReady(live):
		return true, nil
	case !names(i.snapshot, live):
		return true, nil
	}
	i.content = live
	if !objects.IsSnapshotRecorded(live) && objects.SnapshotHandleOf(live) != "" {
		return false, i.writeStatus(ctx, map[string]any{"snapshotHandle": nil, "readyToUse": false})
	}
	return false, nil
}

// writeStatus changes fields of the content's status.
func (r *removing) writeStatus(ctx context.Context, status any) error {
	changed, err := r.patchContent(ctx, r.content, map[string]any{"metadata": map[string]any{"uid": r.content.UID}, "status": status}, "status")
	if err != nil {
		return fmt.Errorf("cannot write the status of VolumeSnapshotContent %s: %w", r.content.Name, err)
	}
	r.content = changed
	return nil
}

// labels returns the labels in the cache. The plan reads them again.
func (i *importing) labels() map[string]string {
	namespace, err := i.Namespaces.Get(i.snapshot.Namespace)
	if err != nil {
		return nil
	}
	return namespace.Labels
}

func (i *importing) importer() *imports.SnapshotImporter {
	return &imports.SnapshotImporter{
		Client: i.Client, SnapshotClient: i.Controller.Snapshots, Policy: i.inForce, Cluster: i.Cluster, ClusterUID: i.ClusterUID,
		Snapshots: func(name, id string) (imports.Snapshots, error) {
			i.origin.Backend = name
			backend, err := i.Backends.Existing(Shelf{name, backends.IsBackup(id)})
			if err != nil {
				return nil, err
			}
			return backend, i.Backends.Health(name)
		},
	}
}

// reserve reserves room in the quotas.
func (i *importing) reserve(ctx context.Context) error {
	tenant, isBackup := i.plan.Decision.Tenant, backends.IsBackup(i.handle.ID)
	if err := i.counting.countFor(ctx, Shelf{i.plan.Backend, isBackup}, i.plan.Decision); err != nil {
		return err
	}
	full, err := i.Ledger.ReserveSnapshot(i.snapshot.UID, i.plan.Backend, ledger.Snapshot{IsBackup: isBackup, Tenant: tenant, StorageClass: i.plan.Stamp.StorageClass, GiB: i.plan.Snapshot.SizeGiB},
		ledger.Decided{Revision: i.inForce.Revision(), Decision: i.plan.Decision, LeftBy: types.UID(i.plan.LeftBy())})
	if full != nil {
		why := deniedBy(full)
		why.triggers = []parking.Trigger{roomOf(tenant)}
		return why
	}
	return err
}

// apply records the snapshot on the content, stamps the snapshot, and says in the status
// that it is ready, in this order, so that a stamped snapshot always has an object that
// leads to it.
func (i *importing) apply(ctx context.Context, requests *requestids.RequestIDs) error {
	started := time.Now()
	backend, err := i.Backends.Existing(Shelf{i.plan.Backend, backends.IsBackup(i.handle.ID)})
	if err != nil {
		return err
	}
	place := backend.Place()
	if !place.IsKnown() {
		return fmt.Errorf("the endpoint and project of backend %s are not known yet", i.plan.Backend)
	}
	i.originate(place)
	if err := i.annotate(ctx); err != nil {
		return err
	}
	i.begun = true
	imported, err := backend.ImportSnapshot(ctx, backends.SnapshotImport{
		SnapshotID: i.handle.ID, Stamp: i.plan.Stamp, CSI: objects.IsCSISnapshot(i.content), Place: place, Unclaimed: i.plan.Unclaimed, Granted: i.plan.Granted, Permit: i.stillWanted,
	})
	if err != nil {
		return err
	}
	if left := i.plan.LeftBy(); left != "" {
		// A listing may have counted it again in the meantime.
		i.release(types.UID(left), i.Ledger.ReleaseSnapshot)
	}
	return i.hand(ctx, imported, told{
		by: ", rule " + i.plan.Decision.Rule, left: stamps.OfSnapshot(i.plan.Snapshot), requestID: requests.OfStamp(), took: time.Since(started),
	})
}

// told is what only the attempt that stamps a snapshot knows about its import.
type told struct {
	by        string
	left      stamps.Snapshot
	requestID string
	took      time.Duration
}

// hand says in the content's status that the snapshot is ready.
func (i *importing) hand(ctx context.Context, imported cinder.Snapshot, about told) error {
	status := objects.SnapshotStatus(imported, *i.content.Spec.Source.SnapshotHandle)
	if err := i.writeStatus(ctx, map[string]any{
		"snapshotHandle": status.SnapshotHandle, "creationTime": status.CreationTime, "readyToUse": status.ReadyToUse, "restoreSize": status.RestoreSize, "error": nil,
	}); err != nil {
		return err
	}
	i.parked.Forget(i.content.UID)
	i.mu.Lock()
	told := i.handed[i.content.UID]
	i.handed[i.content.UID] = true
	i.mu.Unlock()
	if !told {
		i.Metrics.imported(outcomeOf(nil))
		i.tell(imported, about)
	}
	return nil
}

// originate makes the origin that the content records.
func (i *importing) originate(place cinder.Place) {
	reference := i.content.Spec.VolumeSnapshotRef
	i.origin = objects.SnapshotOrigin{
		Content: i.content.Name, SnapshotID: i.handle.ID, VolumeID: i.plan.Snapshot.VolumeID, Backend: i.plan.Backend, Place: place,
		Tenant: i.plan.Decision.Tenant, Cluster: i.Cluster, StorageClass: i.plan.Stamp.StorageClass,
		Namespace: reference.Namespace, Name: reference.Name, UID: reference.UID,
	}
	i.origin.FilesystemUUIDs, i.origin.NeverFormat = i.filesystem()
	i.origin.Backup = i.plan.Decision.Backup
	i.origin.Encrypted = i.encrypted()
}

// encrypted recovers for which claim the snapshot's key was made. Metadata at Cinder proves
// nothing, so only administrators say it: by an annotation of this content, or by the
// PersistentVolume of the volume.
func (i *importing) encrypted() string {
	if given, _ := objects.SnapshotOriginOf(i.content); given.Encrypted != "" {
		return given.Encrypted
	}
	for _, pv := range objects.ByVolumeID(i.PersistentVolumes, i.plan.Snapshot.VolumeID) {
		if origin := objects.EncryptedOf(pv); origin != "" && pv.Annotations[objects.AnnotationCluster] == i.Cluster {
			return origin
		}
	}
	return ""
}

// filesystem recovers what copies of the snapshot need to be mounted. Its former content,
// which recorded that, is gone: an annotation of this content, the volume and its
// PersistentVolume may say it. Only if the snapshot was taken for the CSI driver, of a
// volume that is known, may a filesystem be made on a copy.
func (i *importing) filesystem() (uuids []string, neverFormat bool) {
	given, _ := objects.SnapshotOriginOf(i.content)
	s, v := i.plan.Snapshot, i.plan.Volume
	isCSI := objects.IsCSISnapshot(i.content)
	known := false
	uuids = given.FilesystemUUIDs
	for _, pv := range objects.ByVolumeID(i.PersistentVolumes, s.VolumeID) {
		if pv.Annotations[objects.AnnotationCluster] != i.Cluster {
			continue
		}
		known = true
		uuids = append(uuids, objects.FilesystemUUIDsOf(pv, s.VolumeID)...)
		neverFormat = neverFormat || objects.IsBlockVolume(pv) || objects.NeverFormat(pv)
	}
	if v.ID != "" && !known {
		if stamps.IsCSI(v) {
			uuids = append(uuids, v.ID)
		}
		uuids = append(uuids, stamps.FilesystemUUIDsOf(v)...)
	}
	slices.Sort(uuids)
	return slices.Compact(uuids), isCSI && (given.NeverFormat || neverFormat || !known || !stamps.IsCSISnapshot(s))
}

// annotate records the origin on the content, with the finalizers that keep the
// object until the snapshot is removed or given up.
func (i *importing) annotate(ctx context.Context) error {
	annotations := map[string]string{}
	maps.Copy(annotations, i.content.Annotations)
	maps.Copy(annotations, i.origin.Annotations())
	finalizers := slices.Clone(i.content.Finalizers)
	for _, needed := range finalizersOf(i.content) {
		if !slices.Contains(finalizers, needed) {
			finalizers = append(finalizers, needed)
		}
	}
	if slices.Equal(finalizers, i.content.Finalizers) && maps.Equal(annotations, i.content.Annotations) {
		return nil
	}
	metadata := map[string]any{"annotations": annotations, "finalizers": finalizers, "uid": i.content.UID, "resourceVersion": i.content.ResourceVersion}
	changed, err := i.patchContent(ctx, i.content, map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("cannot write the origin on VolumeSnapshotContent %s: %w", i.content.Name, err)
	}
	i.content = changed
	return nil
}

// finalizersOf returns the finalizers of a content with an existing snapshot.
func finalizersOf(content *snapshotv1.VolumeSnapshotContent) []string {
	if objects.IsCSISnapshot(content) {
		return []string{objects.SnapshotFinalizer, objects.TakenUpFinalizer}
	}
	return []string{objects.SnapshotFinalizer}
}

// stillWanted checks at the API server, just before the request to Cinder, whether the
// content and its VolumeSnapshot still exist. The snapshot-controller replaces all
// finalizers of a content that it binds with those that it has read.
func (i *importing) stillWanted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := i.Controller.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, i.content.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (live.UID != i.content.UID || live.DeletionTimestamp != nil):
		return &changedError{fmt.Sprintf("snapshot %s is not imported: its VolumeSnapshotContent is being deleted", i.handle.ID)}
	case err != nil:
		return fmt.Errorf("cannot tell whether snapshot %s is still wanted: %w", i.handle.ID, err)
	case slices.ContainsFunc(finalizersOf(live), func(needed string) bool { return !slices.Contains(live.Finalizers, needed) }):
		return &changedError{fmt.Sprintf("snapshot %s is not imported: its VolumeSnapshotContent has lost a finalizer", i.handle.ID)}
	}
	snapshot, err := i.liveSnapshot(ctx, i.snapshot.Namespace, i.snapshot.Name, i.snapshot.UID)
	if err == nil && snapshot == nil {
		err = &changedError{fmt.Sprintf("snapshot %s is not imported: its VolumeSnapshot is being deleted", i.handle.ID)}
	}
	return err
}

// giveUp removes the record of an import that was refused after it had been written,
// unless the snapshot carries the stamp of the import.
func (i *importing) giveUp(ctx context.Context) error {
	origin, err := objects.SnapshotOriginOf(i.content)
	if err != nil {
		return nil
	}
	backend, err := i.Backends.Snapshots(shelfOf(origin))
	if err != nil || backend.Place() != origin.Place {
		return nil // the snapshot may be elsewhere, with the stamp
	}
	s, found, err := backend.FindSnapshot(ctx, i.handle.ID)
	if err != nil || found && i.isOf(s, i.content) {
		return err
	}
	if objects.SnapshotHandleOf(i.content) != "" {
		if err := i.writeStatus(ctx, map[string]any{"snapshotHandle": nil, "readyToUse": false}); err != nil {
			return err
		}
	}
	nothing := map[string]any{}
	for _, key := range []string{
		objects.AnnotationVolume, objects.AnnotationBackend, objects.AnnotationEndpoint, objects.AnnotationProject, objects.AnnotationTenant, objects.AnnotationCluster, objects.AnnotationSnapshotUID,
	} {
		nothing[key] = nil
	}
	changed, err := i.patchContent(ctx, i.content, map[string]any{"metadata": map[string]any{
		"uid": i.content.UID, "resourceVersion": i.content.ResourceVersion, "annotations": nothing, "finalizers": without(i.content.Finalizers, objects.TakenUpFinalizer),
	}})
	if err != nil {
		return fmt.Errorf("cannot remove the origin from VolumeSnapshotContent %s: %w", i.content.Name, err)
	}
	i.content, i.begun = changed, false
	i.release(i.snapshot.UID, i.Ledger.ReleaseSnapshot)
	return nil
}

func (i *importing) tell(imported cinder.Snapshot, about told) {
	name, left := i.snapshot.Namespace+"/"+i.snapshot.Name, about.left
	leftBy := ""
	if left.SnapshotUID != "" && left.SnapshotUID != string(i.snapshot.UID) {
		leftBy = fmt.Sprintf(", which VolumeSnapshot %s/%s left behind,", left.Namespace, left.Snapshot)
	}
	i.Recorder.Event(described(i.snapshot), corev1.EventTypeNormal, "SnapshotImported", fmt.Sprintf(
		"tenant %s%s: snapshot %s (%d GiB) of backend %s%s is imported; its deletionPolicy is %s",
		i.origin.Tenant, about.by, imported.ID, imported.SizeGiB, i.origin.Backend, leftBy, i.content.Spec.DeletionPolicy))
	i.Logger.Info("Imported a snapshot", "tenant", i.origin.Tenant, "snapshot", name, "snapshotUID", i.origin.UID, "content", i.content.Name, "backend", i.origin.Backend,
		"volume", i.origin.VolumeID, "id", imported.ID, "sizeGiB", imported.SizeGiB, "leftBy", left.SnapshotUID, "leftByTenant", left.Tenant,
		"requestID", about.requestID, "durationSeconds", about.took.Seconds())
}
