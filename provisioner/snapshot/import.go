package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/trail"
)

// importing is one attempt to give a snapshot that exists at Cinder to the
// VolumeSnapshot of a content that somebody made for it. Only an administrator can make
// such an object, but the policy still decides which tenant may have which snapshot.
type importing struct {
	*removing
	handle   string
	snapshot *snapshotv1.VolumeSnapshot
	inForce  *policy.Policy
	plan     *imports.SnapshotPlan
	// begun means that the content records the snapshot, which counts from then on.
	begun bool
}

// importSnapshot serves a content that somebody made for a snapshot at Cinder. It waits
// until the snapshot-controller has bound the content to a VolumeSnapshot, because only
// that determines the namespace, and so the tenant, that gets the snapshot.
func (r *removing) importSnapshot(ctx context.Context, handle string) error {
	if record.IsSnapshotRecorded(r.content) && record.SnapshotHandleOf(r.content) != "" {
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
	i := &importing{removing: r, handle: handle, snapshot: snapshot}
	return i.settled(i.run(ctx))
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
func (i *importing) settled(err error) error {
	var refusal *imports.RefusedError
	var why *denied
	switch {
	case errors.As(err, &refusal) && refusal.Denial != nil:
		why = deniedBy(refusal.Denial)
	case errors.As(err, &refusal):
		why = &denied{reason: "SnapshotImportRefused", message: refusal.Error()}
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
	if (err != nil || !i.shows(i.snapshot.Namespace, i.snapshot.Name, i.snapshot.UID)) && !i.begun && !record.IsSnapshotRecorded(i.content) {
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

func (i *importing) run(ctx context.Context) error {
	class := i.content.Annotations[record.AnnotationStorageClass]
	if class == "" {
		return &denied{reason: "SnapshotImportRefused", message: fmt.Sprintf(
			"VolumeSnapshotContent %s does not say which rule grants snapshot %s; name the StorageClass of the rule in the annotation %s", i.content.Name, i.handle, record.AnnotationStorageClass)}
	}
	i.inForce = i.Policy()
	decision := i.inForce.DecideSnapshotImport(policy.SnapshotRequest{Namespace: i.snapshot.Namespace, NamespaceLabels: i.labels(), StorageClass: class})
	if decision.Denial != nil {
		return deniedBy(decision.Denial)
	}
	i.origin.Backend = decision.Backends[0]
	if !i.begin(decision.Tenant, i.origin.Backend) {
		return nil // its turn brings it back
	}
	defer i.turns.End(i.item)
	ctx, requests := trail.WithRequestIDs(ctx)
	ctx = i.Caller(ctx, decision.Tenant)
	if done, err := i.refresh(ctx); done || err != nil {
		return err
	}
	var err error
	if i.plan, err = i.importer().Plan(ctx, imports.SnapshotRequest{
		ID: i.handle, Namespace: i.snapshot.Namespace, Name: i.snapshot.Name, UID: string(i.snapshot.UID), Content: i.content.Name, StorageClass: class,
	}); err != nil {
		return err
	}
	i.origin.Backend = i.plan.Backend
	if err := i.reserve(ctx, class); err != nil {
		return err
	}
	return i.apply(ctx, requests)
}

// refresh reads the content from the API server, because the cache may not show yet
// what the last attempt wrote. It reports whether nothing is left to do.
func (i *importing) refresh(ctx context.Context) (done bool, err error) {
	live, err := i.Controller.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, i.content.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cannot read VolumeSnapshotContent %s: %w", i.content.Name, err)
	case live.UID != i.content.UID || live.DeletionTimestamp != nil || record.IsSnapshotRecorded(live) && record.SnapshotHandleOf(live) != "":
		return true, nil
	}
	i.content = live
	return false, nil
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
		Snapshots: func(name string) (imports.Snapshots, error) {
			i.origin.Backend = name
			backend, err := i.Backends.Snapshots(name)
			if err != nil {
				return nil, err
			}
			return backend, backend.Health()
		},
	}
}

// reserve reserves room in the quotas.
func (i *importing) reserve(ctx context.Context, class string) error {
	tenant := i.plan.Decision.Tenant
	if err := i.countFor(ctx, tenant, i.plan.Backend); err != nil {
		return err
	}
	full, err := i.Ledger.ReserveSnapshot(i.snapshot.UID, i.plan.Backend, ledger.Snapshot{Tenant: tenant, StorageClass: class},
		ledger.Decided{Revision: i.inForce.Revision(), Decision: i.plan.Decision, LeftBy: types.UID(i.plan.LeftBy())})
	if full != nil {
		why := deniedBy(full)
		why.triggers = []parking.Trigger{roomOf(tenant)}
		return why
	}
	return err
}

// apply records the snapshot on the content, stamps the snapshot, and names it in the
// status, in this order, so that a stamped snapshot always has an object that leads to
// it.
func (i *importing) apply(ctx context.Context, requests *trail.RequestIDs) error {
	started := time.Now()
	backend, err := i.Backends.Snapshots(i.plan.Backend)
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
		SnapshotID: i.handle, Stamp: i.plan.Stamp, Place: place, Unclaimed: i.plan.Unclaimed, Granted: i.plan.Granted, Permit: i.stillWanted,
	})
	if err != nil {
		return err
	}
	_, err = i.patchContent(ctx, i.content, map[string]any{"metadata": map[string]any{"uid": i.content.UID}, "status": record.SnapshotStatus(imported)}, "status")
	if err != nil {
		return fmt.Errorf("cannot write the status of VolumeSnapshotContent %s: %w", i.content.Name, err)
	}
	i.Metrics.imported(outcomeOf(nil))
	i.tell(imported, requests, time.Since(started))
	return nil
}

// originate makes the origin that the content records.
func (i *importing) originate(place cinder.Place) {
	reference := i.content.Spec.VolumeSnapshotRef
	i.origin = record.SnapshotOrigin{
		Content: i.content.Name, SnapshotID: i.handle, VolumeID: i.plan.Snapshot.VolumeID, Backend: i.plan.Backend, Place: place,
		Tenant: i.plan.Decision.Tenant, Cluster: i.Cluster, StorageClass: i.plan.Stamp.StorageClass,
		Namespace: reference.Namespace, Name: reference.Name, UID: reference.UID,
	}
}

// annotate records the origin on the content, with the finalizer that keeps the
// object until the snapshot is removed or given up.
func (i *importing) annotate(ctx context.Context) error {
	annotations := maps.Clone(i.content.Annotations)
	maps.Copy(annotations, i.origin.Annotations())
	hasFinalizer := slices.Contains(i.content.Finalizers, record.SnapshotFinalizer)
	if hasFinalizer && maps.Equal(annotations, i.content.Annotations) {
		return nil
	}
	metadata := map[string]any{"annotations": annotations, "uid": i.content.UID, "resourceVersion": i.content.ResourceVersion}
	if !hasFinalizer {
		metadata["finalizers"] = append(slices.Clone(i.content.Finalizers), record.SnapshotFinalizer)
	}
	changed, err := i.patchContent(ctx, i.content, map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("cannot write the origin on VolumeSnapshotContent %s: %w", i.content.Name, err)
	}
	i.content = changed
	return nil
}

// stillWanted checks at the API server, just before the request to Cinder, whether the
// content and its VolumeSnapshot still exist.
func (i *importing) stillWanted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := i.Controller.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, i.content.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (live.UID != i.content.UID || live.DeletionTimestamp != nil):
		return &changedError{fmt.Sprintf("snapshot %s is not imported: its VolumeSnapshotContent is being deleted", i.handle)}
	case err != nil:
		return fmt.Errorf("cannot tell whether snapshot %s is still wanted: %w", i.handle, err)
	}
	snapshot, err := i.liveSnapshot(ctx, i.snapshot.Namespace, i.snapshot.Name, i.snapshot.UID)
	if err == nil && snapshot == nil {
		err = &changedError{fmt.Sprintf("snapshot %s is not imported: its VolumeSnapshot is being deleted", i.handle)}
	}
	return err
}

func (i *importing) tell(imported cinder.Snapshot, requests *trail.RequestIDs, took time.Duration) {
	name := i.snapshot.Namespace + "/" + i.snapshot.Name
	i.parked.Forget(i.content.UID)
	i.Recorder.Event(described(i.snapshot), corev1.EventTypeNormal, "SnapshotImported", fmt.Sprintf(
		"tenant %s, rule %s: snapshot %s (%d GiB) of backend %s is imported; its deletionPolicy is %s",
		i.origin.Tenant, i.plan.Decision.Rule, imported.ID, imported.SizeGiB, i.origin.Backend, i.content.Spec.DeletionPolicy))
	i.Logger.Info("Imported a snapshot", "tenant", i.origin.Tenant, "snapshot", name, "snapshotUID", i.origin.UID, "content", i.content.Name, "backend", i.origin.Backend,
		"volume", i.origin.VolumeID, "id", imported.ID, "sizeGiB", imported.SizeGiB, "requestID", requests.OfImport(), "durationSeconds", took.Seconds())
}

// keepImported releases a content whose snapshot stays.
func (r *removing) keepImported(ctx context.Context, handle string) error {
	if r.content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		r.report("SnapshotKept", fmt.Sprintf("snapshot %s is kept at Cinder: it does not carry the stamp of an import by VolumeSnapshotContent %s", handle, r.content.Name), r.content)
	}
	return r.letGo(ctx)
}
