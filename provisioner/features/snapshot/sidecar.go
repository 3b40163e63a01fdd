package snapshot

import (
	"cmp"
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
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// The CSI driver's sidecar, csi-snapshotter, requests snapshots of volumes in mode csi.
// The snapshot-controller makes their contents, with the driver's name, and the sidecar
// writes their status and removes them. Policy, ledger, stamps, and the record on the
// content before the request to Cinder are the same as for every snapshot.

// ownParameters is the prefix of the keys that the sidecar adds to those of a class.
const ownParameters = "csi.storage.k8s.io/"

// Sidecar answers the sidecar's calls.
type Sidecar struct{ *Controller }

// Taken is a snapshot of a volume in mode csi.
type Taken struct {
	cinder.Snapshot
	Backend string
	// Group is the handle of the group that it was taken with; empty without one.
	Group string
}

// Take takes the snapshot that a VolumeSnapshotContent of the CSI driver
// requests by name, or finds the one that an earlier call has taken. It returns when
// the snapshot is ready.
func (c Sidecar) Take(ctx context.Context, pv *corev1.PersistentVolume, name string, parameters map[string]string) (Taken, error) {
	task := c.Monitor.Begin("the sidecar's snapshot "+name, c.MaxWorkTime)
	defer task.End()
	t, class, err := c.asked(task.In(ctx), pv, name, parameters)
	if err != nil {
		return Taken{}, err
	}
	backend, err := c.answering(Shelf{Backend: t.origin.Backend})
	if err != nil {
		return Taken{}, err
	}
	ctx, requests := requestids.WithRequestIDs(task.In(ctx))
	ctx = c.Caller(ctx, t.origin.Tenant)
	// Nothing new is begun for a content that is being deleted. But if something may
	// have been begun, the sidecar waits for its end.
	if begun := objects.IsSnapshotRecorded(t.content); !begun {
		if err := t.place(backend.Place()); err != nil {
			return Taken{}, err
		}
		if t.content.DeletionTimestamp == nil {
			if err := t.admitForSidecar(ctx, class); err != nil {
				return Taken{}, err
			}
		}
	}
	if backend, err = c.Backends.Snapshots(shelfOf(t.origin)); err != nil {
		return Taken{}, err
	}
	taken, err := t.takeForSidecar(ctx, backend, requests)
	return Taken{Snapshot: taken, Backend: t.origin.Backend}, objects.WithSnapshotRemedy(err, t.origin)
}

// asked checks a request against the content that it is about.
func (c Sidecar) asked(ctx context.Context, pv *corev1.PersistentVolume, name string, parameters map[string]string) (*taking, *snapshotv1.VolumeSnapshotClass, error) {
	if err := c.isReady(); err != nil {
		return nil, nil, err
	}
	uid := types.UID(strings.TrimPrefix(name, objects.SnapshotName("")))
	if uid == "" || objects.SnapshotName(uid) != name {
		return nil, nil, &refusal{"Damaged", fmt.Sprintf("%q is not the name that the csi-snapshotter gives the snapshot of a VolumeSnapshot, %s and its UID", name, objects.SnapshotName(""))}
	}
	of, err := objects.OriginOf(pv)
	if err != nil {
		return nil, nil, &refusal{"Damaged", err.Error()}
	}
	content, err := c.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, objects.SnapshotContentName(uid), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s of snapshot %s does not exist", objects.SnapshotContentName(uid), name)}
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read VolumeSnapshotContent %s: %w", objects.SnapshotContentName(uid), err)
	}
	reference, handle := content.Spec.VolumeSnapshotRef, content.Spec.Source.VolumeHandle
	switch {
	case !objects.IsCSISnapshot(content) || reference.UID != uid || handle == nil:
		return nil, nil, &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s is not for a new snapshot by the CSI driver; delete it", content.Name)}
	case *handle != pv.Spec.CSI.VolumeHandle:
		return nil, nil, &refusal{"AlreadyExists", fmt.Sprintf("according to VolumeSnapshotContent %s, snapshot %s belongs to volume %s", content.Name, name, *handle)}
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != reference.Namespace:
		return nil, nil, &refusal{"Denied", fmt.Sprintf("PersistentVolume %s is not bound to a claim in namespace %s, which has the VolumeSnapshot", pv.Name, reference.Namespace)}
	}
	t := &taking{
		// Outside the loop: it takes no turn, since the sidecar waits.
		Controller: c.Controller, content: content, attempt: c.loop.Attempt(item{snapshotItem, reference.Namespace, reference.Name}),
		snapshot: &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: reference.Namespace, Name: reference.Name, UID: uid}},
	}
	t.originate(&source{pv, of})
	if objects.IsSnapshotRecorded(content) {
		// The policy decided at that time.
		recorded, err := objects.SnapshotOriginOf(content)
		if err != nil {
			return nil, nil, &refusal{"Damaged", err.Error()}
		}
		switch {
		case recorded.VolumeID != of.VolumeID || recorded.Backend != of.Backend:
			return nil, nil, &refusal{"AlreadyExists", fmt.Sprintf("according to VolumeSnapshotContent %s, snapshot %s belongs to volume %s", content.Name, name, recorded.VolumeID)}
		case recorded.Tenant != of.Tenant:
			return nil, nil, &refusal{"Damaged", fmt.Sprintf("VolumeSnapshotContent %s records tenant %q, but its volume belongs to tenant %q", content.Name, recorded.Tenant, of.Tenant)}
		}
		t.origin = recorded
	}
	return t, classWith(parameters), nil
}

// classWith returns a class with the parameters that are not the sidecar's own.
func classWith(parameters map[string]string) *snapshotv1.VolumeSnapshotClass {
	class := &snapshotv1.VolumeSnapshotClass{Parameters: maps.Clone(parameters)}
	maps.DeleteFunc(class.Parameters, func(key, _ string) bool { return strings.HasPrefix(key, ownParameters) })
	return class
}

// isReady returns an error until every content has been counted.
func (c *Caches) isReady() error {
	if c.shown() == nil || slices.ContainsFunc(c.haveSynced(), func(synced cache.InformerSynced) bool { return !synced() }) {
		return &refusal{string(cinder.KindUnavailable), "the VolumeSnapshotContents are not read yet, so it is not known what counts"}
	}
	return nil
}

// admitForSidecar reserves room, and records on the content where the snapshot will be
// taken. From then on the content counts.
func (t *taking) admitForSidecar(ctx context.Context, class *snapshotv1.VolumeSnapshotClass) error {
	if err := t.admit(ctx, class); err != nil {
		return err
	}
	if err := t.annotate(ctx); err != nil {
		t.release(t.origin.UID, t.Ledger.ReleaseSnapshotReservation)
		return err
	}
	return nil
}

// annotate writes the origin on the content, unless the content has it already.
func (t *taking) annotate(ctx context.Context) error {
	if objects.IsSnapshotRecorded(t.content) {
		return nil
	}
	made, err := t.patchContent(ctx, t.content, map[string]any{"metadata": map[string]any{"uid": t.content.UID, "annotations": t.origin.Annotations()}})
	if err != nil {
		return fmt.Errorf("cannot write the origin on VolumeSnapshotContent %s: %w", t.origin.Content, err)
	}
	t.content = made
	return nil
}

func (t *taking) takeForSidecar(ctx context.Context, backend Snapshots, requests *requestids.RequestIDs) (cinder.Snapshot, error) {
	started := time.Now()
	spec := t.spec(t.stillWanted)
	spec.CSI = true
	taken, err := backend.TakeSnapshot(ctx, spec)
	if err == nil && taken.VolumeID != t.origin.VolumeID {
		return cinder.Snapshot{}, &refusal{"AlreadyExists", fmt.Sprintf("snapshot %s belongs to volume %s", taken.ID, taken.VolumeID)}
	}
	if err == nil {
		err = backend.MarkSnapshot(ctx, taken)
	}
	if err == nil {
		err = t.annotateAgain(ctx)
	}
	if errors.As(err, new(*changedError)) {
		return cinder.Snapshot{}, asRefusal(err)
	}
	t.Metrics.took(t.origin.Backend, outcomeOf(err), time.Since(started))
	if err != nil {
		return cinder.Snapshot{}, err
	}
	t.took(taken, requests, started)
	return taken, nil
}

// annotateAgain writes the origin again if it is gone, because others replace all
// annotations of a content with those that they have read.
func (t *taking) annotateAgain(ctx context.Context) error {
	live, err := t.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, t.origin.Content, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != t.content.UID:
		return nil // nothing leads to the snapshot, so a sweep finds it as a leftover
	case err != nil:
		return fmt.Errorf("cannot read VolumeSnapshotContent %s: %w", t.origin.Content, err)
	}
	t.content = live
	return t.annotate(ctx)
}

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

// List lists the CSI driver's snapshots: the one with the ID, those of the
// volume, or all if both are empty, on one backend or, if that is empty, on all. They
// are in the order of their handles. If a backend cannot be listed, it returns an error
// rather than a shorter list. again means that the last listing will do.
func (c Sidecar) List(ctx context.Context, backendName, id, volumeID string, again bool) ([]Taken, error) {
	names := c.Backends.Names()
	if backendName != "" {
		if !slices.Contains(names, backendName) {
			return nil, nil
		}
		names = []string{backendName}
	}
	var all []Taken
	var shelves []Shelf
	for _, name := range names {
		if id != "" {
			shelves = append(shelves, Shelf{name, backends.IsBackup(id)})
			continue
		}
		shelves = append(shelves, c.counting.shelves(name)...)
	}
	for _, of := range shelves {
		backend, err := c.Backends.Snapshots(of)
		if err != nil {
			return nil, err
		}
		var found []cinder.Snapshot
		if id != "" {
			if found, err = c.findOne(ctx, backend, id); err != nil {
				return nil, err
			}
		} else {
			list := backend.RelistSnapshots
			if again {
				list = backend.Snapshots
			}
			if found, err = list(ctx); err != nil {
				return nil, err
			}
		}
		for _, s := range found {
			stamp := stamps.OfSnapshot(s)
			if stamps.IsCSISnapshot(s) && !stamps.IsUnneeded(s) && (c.isOurs(stamp) || c.isImported(stamp, s)) && (volumeID == "" || s.VolumeID == volumeID) {
				one := Taken{Snapshot: s, Backend: of.Backend}
				if stamp.Group != "" && c.isOurs(stamp) {
					one.Group = objects.GroupHandle(types.UID(stamp.Group))
				}
				all = append(all, one)
			}
		}
	}
	slices.SortFunc(all, func(a, b Taken) int { return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.ID, b.ID)) })
	return all, nil
}

// lookAgainEvery is how often a question that waits looks whether it can be answered.
const lookAgainEvery = 100 * time.Millisecond

// findOne finds a snapshot. The sidecar asks about one that somebody's content
// names to say in the status that it is ready, but it does not say for which content it
// asks. So there is no answer as long as any content names the snapshot without having
// it. The sidecar asks again.
func (c Sidecar) findOne(ctx context.Context, backend Snapshots, id string) ([]cinder.Snapshot, error) {
	for until := time.Now().Add(c.TakeUpTime); ; {
		s, exists, err := backend.FindSnapshot(ctx, id)
		if err != nil {
			return nil, err
		}
		without, shared, err := c.contentWithout(ctx, s, id)
		switch {
		case err != nil:
			return nil, err
		case without == nil && exists:
			return []cinder.Snapshot{s}, nil
		case without == nil:
			return nil, nil
		}
		// The answer reaches the status of the VolumeSnapshot, so it is what that was told,
		// unless it may be another one's.
		reason, message := c.parked.Told(without.Spec.VolumeSnapshotRef.UID)
		switch over := !time.Now().Before(until); {
		case shared && (over || reason != ""):
			return nil, &refusal{string(cinder.KindConflict), fmt.Sprintf("VolumeSnapshotContents for several namespaces name snapshot %s, and at most one gets it; the events on each VolumeSnapshot say what became of it", id)}
		case reason != "":
			return nil, &denied{reason: reason, message: message}
		case over:
			return nil, &refusal{string(cinder.KindConflict), fmt.Sprintf("VolumeSnapshotContent %s does not have snapshot %s yet: it gets the snapshot once VolumeSnapshot %s/%s names the content, and the policy grants it",
				without.Name, id, without.Spec.VolumeSnapshotRef.Namespace, without.Spec.VolumeSnapshotRef.Name)}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lookAgainEvery):
		}
	}
}

// contentWithout returns a content that names an existing snapshot, but does not have it;
// nil if there is none. It also reports whether a content for another namespace names
// the snapshot, too. The sidecar may ask before the cache shows the content that it
// asks about, so the API server has the last word.
func (c Sidecar) contentWithout(ctx context.Context, s cinder.Snapshot, id string) (without *snapshotv1.VolumeSnapshotContent, shared bool, err error) {
	lacks := func(content *snapshotv1.VolumeSnapshotContent) bool {
		return objects.IsCSISnapshot(content) && objects.ImportedHandleOf(content) == id && content.DeletionTimestamp == nil && !c.isOf(s, content)
	}
	naming, err := c.ContentsOf(id)
	if err != nil {
		return nil, false, err
	}
	if n := slices.IndexFunc(naming, lacks); n >= 0 {
		return naming[n], namedElsewhere(naming, naming[n]), nil
	}
	live, err := c.liveContentsOf(ctx, id)
	if n := slices.IndexFunc(live, lacks); err == nil && n >= 0 {
		return live[n], namedElsewhere(live, live[n]), nil
	}
	return nil, false, err
}

// namedElsewhere reports whether a content for another namespace is among those that name
// a snapshot.
func namedElsewhere(naming []*snapshotv1.VolumeSnapshotContent, content *snapshotv1.VolumeSnapshotContent) bool {
	return slices.ContainsFunc(naming, func(other *snapshotv1.VolumeSnapshotContent) bool {
		return other.Spec.VolumeSnapshotRef.Namespace != content.Spec.VolumeSnapshotRef.Namespace
	})
}

// refusal says why a sidecar's request is refused.
type refusal struct{ kind, message string }

// asRefusal turns the end of work that is no longer wanted into a refusal, which tells the
// sidecar that there is nothing to delete.
func asRefusal(err error) error {
	if changed := new(changedError); errors.As(err, &changed) {
		return &refusal{"Damaged", changed.Error()}
	}
	return err
}

func (r *refusal) Error() string { return r.message }

// FailureKind returns the kind of the failure for the CSI driver.
func (r *refusal) FailureKind() string { return r.kind }

// FailureKind returns the kind of the failure for the CSI driver.
func (d *denied) FailureKind() string {
	switch d.reason {
	case string(policy.QuotaExceeded):
		return "NoRoom"
	case placement.ReasonBackendUnavailable:
		return string(cinder.KindUnavailable)
	}
	return "Denied"
}
