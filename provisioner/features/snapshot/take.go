package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// taking is one attempt to take the snapshot of a VolumeSnapshot.
type taking struct {
	*Controller
	*attempt
	snapshot *snapshotv1.VolumeSnapshot
	// content is the content as it was last seen, nil if there is none.
	content *snapshotv1.VolumeSnapshotContent
	origin  objects.SnapshotOrigin
	source  backends.Target
	mode    *corev1.PersistentVolumeMode
	// decided is what the policy decided, if this attempt asked it.
	decided policy.Decision
}

func (c *Controller) syncSnapshot(ctx context.Context, a *attempt) error {
	snapshot, err := c.shown().snapshots.VolumeSnapshots(a.Key.namespace).Get(a.Key.name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.parked.Take(snapshot.UID)
	if objects.OwnerGroup(snapshot.OwnerReferences) != nil {
		return nil // it is taken with its group
	}
	t := &taking{Controller: c, attempt: a, snapshot: snapshot}
	if snapshot.Spec.Source.PersistentVolumeClaimName == nil {
		return nil // syncContent answers for pre-provisioned contents
	}
	t.content, err = c.shown().contents.Get(objects.SnapshotContentName(snapshot.UID))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if apierrors.IsNotFound(err) {
		t.content = nil
	}
	return t.end(t.run(ctx))
}

// end reports the result of the attempt.
func (t *taking) end(err error) error {
	if err != nil && t.content == nil && !t.shows(t.snapshot.Namespace, t.snapshot.Name, t.snapshot.UID) {
		// The deletion event may have come before the reservation. As long as the cache
		// shows the VolumeSnapshot, that event is still to come.
		t.release(t.snapshot.UID, t.Ledger.ReleaseSnapshotReservation)
		return nil
	}
	if errors.As(err, new(*denied)) && t.content == nil {
		t.release(t.snapshot.UID, t.Ledger.ReleaseSnapshotReservation)
	}
	return settle(t.Controller, t.attempt, t.snapshot, t.origin.Backend, err)
}

// settle reports the result of an attempt to take what an object of a tenant wants.
func settle(c *Controller, a *attempt, object metav1.Object, backend string, err error) error {
	var why *denied
	var changed *changedError
	switch {
	case err == nil, errors.As(err, &changed):
		return nil
	case apierrors.IsConflict(err):
		return err // somebody, such as the snapshot-controller, wrote meanwhile
	case errors.As(err, &why):
		if why.silent {
			c.parked.IsNews(object.GetUID(), why.reason, why.message, false)
		} else {
			c.report(why.reason, why.message, object)
		}
		c.park(a, object, parking.Denied, append(why.triggers, parking.Trigger{Kind: parking.Namespace, Name: object.GetNamespace()})...)
		if why.again {
			return err
		}
		return nil
	}
	if cinder.IsKind(err, backends.KindPending) {
		await(c, a, err, object)
		return err
	}
	if unhealthy := c.Backends.Health(backend); unhealthy != nil {
		c.report(reasonBackendUnavailable, unhealthy.Error(), object)
		c.park(a, object, parking.Blocked, triggersAt(backend)...)
		return nil
	}
	c.report("SnapshotFailed", err.Error(), object)
	c.park(a, object, parking.Failing, triggersAt(backend)...)
	return err
}

// run takes a VolumeSnapshot through all steps of an attempt.
func (t *taking) run(ctx context.Context) error {
	if t.isOver() {
		return nil
	}
	var class *snapshotv1.VolumeSnapshotClass
	begun := t.content != nil && objects.IsSnapshotRecorded(t.content)
	if begun {
		if err := t.resume(); err != nil {
			return err
		}
	} else {
		var err error
		if class, err = t.consider(); err != nil || class == nil {
			return err
		}
	}
	backend, err := t.answering(shelfOf(t.origin))
	if err != nil {
		return err
	}
	if !t.Begin(t.origin.Tenant, t.origin.Backend) {
		return nil // its turn brings it back
	}
	ctx, requests := requestids.WithRequestIDs(ctx)
	ctx = t.Caller(ctx, t.origin.Tenant)
	if !begun {
		if err := t.place(backend.Place()); err != nil {
			return err
		}
		if err := t.admit(ctx, class); err != nil {
			return err
		}
		if err := t.writeContent(ctx, class); err != nil {
			return err
		}
	}
	return t.take(ctx, backend, requests)
}

// consider decides about a VolumeSnapshot for which nothing was begun. If it returns
// neither a class nor an error, the VolumeSnapshot is not for this program.
func (t *taking) consider() (*snapshotv1.VolumeSnapshotClass, error) {
	class, why, err := t.classOf(t.snapshot)
	if err != nil || class == nil && why == nil {
		return nil, err
	}
	of, missing, err := t.find(t.snapshot.Namespace, *t.snapshot.Spec.Source.PersistentVolumeClaimName)
	byDefault := t.snapshot.Spec.VolumeSnapshotClassName == nil
	switch {
	case err != nil:
		return nil, err
	case missing != nil:
		if byDefault {
			missing.silent = true
			missing.message += "; the VolumeSnapshot names no class, and which default is its own is known only then"
		}
		return nil, missing
	case of == nil && byDefault:
		return nil, nil
	case of == nil:
		return nil, &denied{reason: "ForeignVolume", message: fmt.Sprintf("the volume of claim %s was not made by %s; use a VolumeSnapshotClass of its driver",
			*t.snapshot.Spec.Source.PersistentVolumeClaimName, t.Name)}
	case why != nil:
		return nil, why
	}
	t.originate(of)
	var labels map[string]string
	namespace, err := t.Namespaces.Get(t.snapshot.Namespace)
	switch {
	case err == nil:
		labels = namespace.Labels
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	decision := t.decide(class, labels)
	if decision.Denial != nil {
		return nil, deniedBy(decision.Denial)
	}
	t.origin.Backup = decision.Backup
	return class, nil
}

// isOver reports whether nothing is left to do for the VolumeSnapshot.
func (t *taking) isOver() bool {
	if t.content != nil {
		return t.content.Spec.Driver != t.Name || t.content.DeletionTimestamp != nil || t.snapshot.DeletionTimestamp != nil ||
			objects.SnapshotHandleOf(t.content) != ""
	}
	if t.snapshot.DeletionTimestamp != nil {
		t.release(t.snapshot.UID, t.Ledger.ReleaseSnapshotReservation)
		return true
	}
	return false
}

// decide applies the policy in force.
func (t *taking) decide(class *snapshotv1.VolumeSnapshotClass, labels map[string]string) ledger.Decided {
	inForce := t.Policy()
	return ledger.Decided{Revision: inForce.Revision(), Decision: inForce.DecideSnapshot(policy.SnapshotRequest{
		Namespace: t.snapshot.Namespace, NamespaceLabels: labels, StorageClass: t.origin.StorageClass, Backend: t.origin.Backend,
		Tenant: t.origin.Tenant, Parameters: class.Parameters, Group: t.origin.Group != "",
	})}
}

// originate makes the origin of a new content.
func (t *taking) originate(of *source) {
	t.source, t.mode = of.origin.Target(), of.pv.Spec.VolumeMode
	t.origin = objects.SnapshotOrigin{
		Content: objects.SnapshotContentName(t.snapshot.UID), VolumeID: of.origin.VolumeID, Backend: of.origin.Backend, Tenant: of.origin.Tenant,
		Cluster: t.Cluster, StorageClass: of.pv.Spec.StorageClassName,
		Namespace: t.snapshot.Namespace, Name: t.snapshot.Name, UID: t.snapshot.UID,
		FilesystemUUIDs: objects.FilesystemUUIDsOf(of.pv, of.origin.VolumeID),
		NeverFormat:     objects.IsCSI(of.pv) && (objects.IsBlockVolume(of.pv) || objects.NeverFormat(of.pv)),
		Encrypted:       objects.EncryptedOf(of.pv),
	}
}

// place records where the snapshot is to be taken. A volume is in one project, which
// may have several addresses. If the content recorded another project, it would wait
// there for a snapshot that can never exist.
func (t *taking) place(here cinder.Place) error {
	switch volume := t.source.Place; {
	case !here.IsKnown():
		return fmt.Errorf("the endpoint and project of backend %s are not known yet", t.origin.Backend)
	case volume.IsKnown() && volume.Project != here.Project:
		return &cinder.Error{Backend: t.origin.Backend, Kind: backends.KindElsewhere, Place: here, Message: fmt.Sprintf(
			"volume %s was recorded at %s, but the backend points to %s", t.origin.VolumeID, volume, here)}
	}
	t.origin.Place = here
	return nil
}

// resume reads what an earlier attempt recorded. The policy decided then.
func (t *taking) resume() (err error) {
	if t.origin, err = objects.SnapshotOriginOf(t.content); err != nil {
		return err
	}
	// Without the stamp of the claim's volume, no new snapshot is taken.
	t.source = backends.Target{VolumeID: t.origin.VolumeID, Place: t.origin.Place}
	if of, _, err := t.find(t.snapshot.Namespace, *t.snapshot.Spec.Source.PersistentVolumeClaimName); err == nil && of != nil && of.origin.VolumeID == t.origin.VolumeID {
		t.source = of.origin.Target()
	}
	return nil
}

// admit reads the labels of the namespace, which determine its tenant, from the API
// server, and reserves room.
func (t *taking) admit(ctx context.Context, class *snapshotv1.VolumeSnapshotClass) error {
	namespace, err := t.Client.CoreV1().Namespaces().Get(ctx, t.snapshot.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", t.snapshot.Namespace, err)
	}
	return t.reserve(ctx, class, namespace.Labels)
}

// reserve reserves room for a snapshot that the policy grants.
func (t *taking) reserve(ctx context.Context, class *snapshotv1.VolumeSnapshotClass, labels map[string]string) error {
	decision := t.decide(class, labels)
	if decision.Denial != nil {
		return deniedBy(decision.Denial)
	}
	t.origin.Backup, t.decided = decision.Backup, decision.Decision
	if err := t.counting.countFor(ctx, shelfOf(t.origin), decision.Decision); err != nil {
		return err
	}
	full, err := t.Ledger.ReserveSnapshot(t.snapshot.UID, t.origin.Backend, t.usageOf(t.origin, nil), decision)
	if full != nil {
		why := deniedBy(full)
		why.triggers = []parking.Trigger{roomOf(t.origin.Tenant)}
		return why
	}
	return err
}

// take takes the snapshot, marks it, and names it in the content.
func (t *taking) take(ctx context.Context, backend Snapshots, requests *requestids.RequestIDs) error {
	started := time.Now()
	taken, err := backend.TakeSnapshot(ctx, t.spec(t.stillWanted))
	if err == nil {
		err = backend.MarkSnapshot(ctx, taken)
	}
	if err == nil {
		err = t.writeStatus(ctx, taken)
	}
	t.Metrics.took(t.origin.Backend, outcomeOf(err), time.Since(started))
	if err != nil {
		return objects.WithSnapshotRemedy(err, t.origin)
	}
	t.parked.Forget(t.snapshot.UID)
	t.took(taken, requests, started)
	return nil
}

// took logs to the audit trail, and brings back the deletion of a volume that waited for the
// snapshot from which a backup was made.
func (t *taking) took(taken cinder.Snapshot, requests *requestids.RequestIDs, started time.Time) {
	if t.origin.Backup != "" {
		t.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: t.origin.VolumeID})
	}
	t.Logger.Info("Took a snapshot", "backup", t.origin.Backup, "tenant", t.origin.Tenant, "snapshot", t.Key.String(), "snapshotUID", t.origin.UID, "backend", t.origin.Backend,
		"volume", t.origin.VolumeID, "id", taken.ID, "sizeGiB", taken.SizeGiB, "requestID", requests.OfCreate(), "durationSeconds", time.Since(started).Seconds())
}

// spec returns what is requested from the backend.
func (t *taking) spec(permit backends.Permit) backends.SnapshotSpec {
	spec := backends.SnapshotSpec{Name: objects.SnapshotName(t.origin.UID), Stamp: t.stamp(), Source: t.source, Place: t.origin.Place, Incremental: t.origin.Backup == policy.IncrementalBackup}
	spec.Source.Permit = permit
	return spec
}

func (c *Controller) stampOf(origin objects.SnapshotOrigin) stamps.Snapshot {
	stamp := origin.Stamp()
	stamp.ClusterUID = c.ClusterUID
	return stamp
}

func (t *taking) stamp() stamps.Snapshot { return t.stampOf(t.origin) }

// stillWanted checks at the API server, just before the request to Cinder, whether the
// content still exists to lead to the snapshot.
func (t *taking) stillWanted(ctx context.Context, _ cinder.Volume) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := t.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, t.origin.Content, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (live.UID != t.content.UID || live.DeletionTimestamp != nil):
		return &changedError{"the snapshot of VolumeSnapshot " + t.Key.String() + " is not taken: its VolumeSnapshotContent is being deleted"}
	case err != nil:
		return fmt.Errorf("cannot tell whether the snapshot is still wanted: %w", err)
	}
	return nil
}
