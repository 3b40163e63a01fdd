package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// mostMembers is how many volumes a VolumeGroupSnapshot may have. Its content records them
// in one annotation.
const mostMembers = 100

// groups serves VolumeGroupSnapshots.
type groups struct {
	*Controller
	pauses *pauses
}

// grouping is one attempt at the snapshots of a VolumeGroupSnapshot, its members. Each is
// stamped, counted, restored and removed like any other snapshot. The content of the group
// records all of them before the first request to Cinder. Their own contents, which the
// snapshot-controller makes after the last, get their part of that record (followGroup).
type grouping struct {
	*groups
	*attempt
	// content is the group's content as it was last seen; nil if there is none.
	content *groupv1.VolumeGroupSnapshotContent
	origin  objects.GroupOrigin
	// members are those of the origin, in its order.
	members []*taking
	// csi means that the CSI driver's sidecar asked.
	csi bool
}

// add adds the volume that the group's content names by a handle.
func (g *grouping) add(volumeHandle string, of *source) {
	m := g.origin.NewMember(volumeHandle)
	t := g.member(m)
	t.originate(of)
	t.origin.Group = g.origin.UID
	m.SnapshotOrigin = t.origin
	g.origin.Members, g.members = append(g.origin.Members, m), append(g.members, t)
}

// member returns the attempt at one member. Its VolumeSnapshot does not exist yet.
func (g *grouping) member(m objects.Member) *taking {
	return &taking{
		Controller: g.Controller, attempt: g.attempt, origin: m.SnapshotOrigin,
		snapshot: &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID}},
	}
}

// resume reads what an earlier attempt recorded. The policy decided then.
func (g *grouping) resume() (err error) {
	if g.origin, err = objects.GroupOriginOf(g.content); err != nil {
		return err
	}
	g.members = nil
	for _, m := range g.origin.Members {
		t := g.member(m)
		// Without the stamp of the claim's volume, no new snapshot is taken.
		t.source = backends.Target{VolumeID: m.VolumeID, Place: m.Place}
		for _, pv := range objects.ByVolumeID(g.PersistentVolumes, m.VolumeID) {
			if of, err := objects.OriginOf(pv); err == nil && of.VolumeID == m.VolumeID && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Namespace == m.Namespace {
				t.source, t.mode = of.Target(), pv.Spec.VolumeMode
			}
		}
		g.members = append(g.members, t)
	}
	return nil
}

// place records where the snapshots are to be taken.
func (g *grouping) place() error {
	for i, t := range g.members {
		backend, err := g.answering(shelfOf(t.origin))
		if err != nil {
			return err
		}
		if err := t.place(backend.Place()); err != nil {
			return err
		}
		g.origin.Members[i].SnapshotOrigin = t.origin
	}
	return nil
}

// admit reserves room for all members, or for none.
func (g *grouping) admit(ctx context.Context, class *snapshotv1.VolumeSnapshotClass) (err error) {
	namespace, err := g.Client.CoreV1().Namespaces().Get(ctx, g.origin.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", g.origin.Namespace, err)
	}
	defer func() {
		if err != nil {
			g.giveBack()
		}
	}()
	for _, t := range g.members {
		if err := t.reserve(ctx, class, namespace.Labels); err != nil {
			return err
		}
		g.origin.Consistency, g.origin.GroupType = t.decided.Consistency, t.decided.GroupType
	}
	return together{g}.mayBeTaken()
}

// giveBack gives back the room of a group that is not recorded.
func (g *grouping) giveBack() {
	for _, t := range g.members {
		g.release(t.origin.UID, g.Ledger.ReleaseSnapshotReservation)
	}
}

// record writes the origin on the group's content, unless that has it already.
func (g *grouping) record(ctx context.Context) error {
	if objects.IsGroupRecorded(g.content) {
		return nil
	}
	written, err := g.patchGroupContent(ctx, g.content, map[string]any{"metadata": map[string]any{"uid": g.content.UID, "annotations": g.origin.Annotations()}})
	if err != nil {
		return fmt.Errorf("cannot write the origin on VolumeGroupSnapshotContent %s: %w", g.origin.Content, err)
	}
	g.content = written
	return nil
}

// take takes the snapshots of all members and marks them.
func (g *grouping) take(ctx context.Context) ([]cinder.Snapshot, error) {
	if why := g.pauses.why(g.origin.UID); why != nil {
		return nil, why
	}
	started := time.Now()
	take := g.takeOneByOne
	switch g.origin.Consistency {
	case policy.ConsistentFilesystem:
		take = g.takeFrozen
	case policy.ConsistentArray:
		take = together{g}.take
	}
	taken, err := take(ctx)
	if err != nil {
		return nil, err
	}
	if err := g.mark(ctx, taken); err != nil {
		if g.origin.Consistency == policy.ConsistentFilesystem {
			err = g.pauses.begin(g.origin.UID, err) // they are taken again
		}
		return nil, err
	}
	if err := g.recordAgain(ctx); err != nil {
		return nil, err
	}
	g.pauses.end(g.origin.UID)
	g.Logger.Info("Took the snapshots of a VolumeGroupSnapshot", "tenant", g.members[0].origin.Tenant, "group", g.origin.Namespace+"/"+g.origin.Name, "groupUID", g.origin.UID,
		"snapshots", len(taken), "durationSeconds", time.Since(started).Seconds())
	return taken, nil
}

// mark marks the snapshots of all members, the first one last; see takeFrozen.
func (g *grouping) mark(ctx context.Context, taken []cinder.Snapshot) error {
	one := func(i int, t *taking) error {
		backend, err := g.Backends.Snapshots(shelfOf(t.origin))
		if err != nil {
			return err
		}
		return backend.MarkSnapshot(ctx, taken[i])
	}
	err := g.each(func(i int, t *taking) error {
		if i == 0 {
			return nil
		}
		return one(i, t)
	})
	if err != nil {
		return err
	}
	return one(0, g.members[0])
}

// takeOneByOne takes the snapshots of all members. If Cinder has refused one for good, it
// removes the others: the next attempt takes all of them anew, at about one time.
func (g *grouping) takeOneByOne(ctx context.Context) ([]cinder.Snapshot, error) {
	taken, err := g.takeAll(ctx, func(int) backends.Permit { return g.stillWanted })
	if !refused(err) {
		return taken, err
	}
	if left := g.undo(ctx); left != nil {
		err = fmt.Errorf("%w; the other snapshots of the group cannot be removed now: %w", err, left)
	}
	return nil, g.pauses.begin(g.origin.UID, err)
}

// takeFrozen takes the snapshots of all members while nobody writes to any of the volumes.
// The mark of the first one, which is written last, says that all show that moment. Without
// it, those that an earlier attempt has left may be of another moment, so they are removed
// first; with it, none may be taken any more.
func (g *grouping) takeFrozen(ctx context.Context) ([]cinder.Snapshot, error) {
	kept, err := g.abandon(ctx, g.members[0])
	if err != nil {
		return nil, err
	}
	if len(kept) > 0 {
		return g.takeAll(ctx, g.noneAnymore)
	}
	if err := g.undo(ctx); err != nil {
		return nil, err
	}
	if err := g.stillWanted(ctx, cinder.Volume{}); err != nil {
		return nil, err
	}
	thaw, err := g.Freezer.Freeze(ctx, g.volumes())
	if err != nil {
		why := notFrozen("%s; the snapshots are taken once all filesystems can be frozen", err)
		var harmless interface{ MayHaveStoppedPods() bool }
		if errors.As(err, &harmless) && !harmless.MayHaveStoppedPods() {
			return nil, why
		}
		return nil, g.pauses.begin(g.origin.UID, why)
	}
	taken, err := g.takeNew(ctx)
	if written := thaw(ctx); written != nil && err == nil {
		err = notFrozen("the snapshots do not show one moment, so they are taken again: %s", written)
	}
	if err != nil {
		if left := g.undo(ctx); left != nil {
			g.Logger.Warn("Snapshots of a group stay until its next attempt", "group", g.origin.Namespace+"/"+g.origin.Name, "error", left)
		}
		return nil, g.pauses.begin(g.origin.UID, err)
	}
	return taken, nil
}

func notFrozen(format string, arguments ...any) error {
	return &denied{reason: "FilesystemNotFrozen", message: fmt.Sprintf(format, arguments...), again: true}
}

// noneAnymore permits no snapshot of a member, because the others are of a moment that is
// over.
func (g *grouping) noneAnymore(i int) backends.Permit {
	return func(context.Context, cinder.Volume) error {
		return notFrozen("the snapshot of volume %s is gone, and another would show another moment; delete the VolumeGroupSnapshot, and make a new one", g.origin.Members[i].VolumeID)
	}
}

// takeNew takes the snapshots of all members now. One that it finds is of a request of an
// earlier attempt, which Cinder has done too late to be removed before.
func (g *grouping) takeNew(ctx context.Context) ([]cinder.Snapshot, error) {
	isNew := make([]atomic.Bool, len(g.members))
	taken, err := g.takeAll(ctx, func(i int) backends.Permit {
		return func(ctx context.Context, v cinder.Volume) error {
			isNew[i].Store(true)
			return g.stillWanted(ctx, v)
		}
	})
	for i := range taken {
		if err == nil && !isNew[i].Load() {
			err = notFrozen("snapshot %s was taken too early, so all are taken again", taken[i].ID)
		}
	}
	return taken, err
}

// volumes returns the PersistentVolumes of the members' claims.
func (g *grouping) volumes() (volumes []*corev1.PersistentVolume) {
	for _, m := range g.origin.Members {
		volumes = append(volumes, g.volumesOf(m)...)
	}
	return volumes
}

// volumesOf returns the PersistentVolumes of claims that have a member's volume.
func (g *grouping) volumesOf(m objects.Member) []*corev1.PersistentVolume {
	return slices.DeleteFunc(objects.ByVolumeID(g.PersistentVolumes, m.VolumeID), func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != m.Namespace
	})
}

// takeAll takes the snapshots of all members that it does not find, if they are permitted.
func (g *grouping) takeAll(ctx context.Context, permit func(i int) backends.Permit) ([]cinder.Snapshot, error) {
	taken := make([]cinder.Snapshot, len(g.members))
	err := g.each(func(i int, t *taking) (err error) {
		taken[i], err = g.takeOne(ctx, t, permit(i))
		return err
	})
	return taken, err
}

// each works on all members at once, and returns the first error in the order of the
// members, but one that is final before others.
func (g *grouping) each(work func(i int, t *taking) error) error {
	errs := make([]error, len(g.members))
	var all sync.WaitGroup
	for i, t := range g.members {
		all.Go(func() { errs[i] = work(i, t) })
	}
	all.Wait()
	if i := slices.IndexFunc(errs, refused); i >= 0 {
		return errs[i]
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// refused reports whether Cinder will certainly not take this snapshot now.
func refused(err error) bool {
	var failed *cinder.Error
	if !errors.As(err, &failed) || failed.EffectUnknown {
		return false
	}
	switch failed.Kind {
	case backends.KindVolumeFailed, cinder.KindOverQuota, cinder.KindInvalid, cinder.KindNotFound, cinder.KindForbidden, backends.KindNotOurs:
		return true
	}
	return false
}

func (g *grouping) takeOne(ctx context.Context, t *taking, permit backends.Permit) (cinder.Snapshot, error) {
	started := time.Now()
	backend, err := g.answering(shelfOf(t.origin))
	if err != nil {
		return cinder.Snapshot{}, err
	}
	ctx, requests := requestids.WithRequestIDs(g.Caller(ctx, t.origin.Tenant))
	spec := t.spec(permit)
	spec.CSI = g.csi
	taken, err := backend.TakeSnapshot(ctx, spec)
	if err == nil && taken.VolumeID != t.origin.VolumeID {
		err = &refusal{"AlreadyExists", fmt.Sprintf("snapshot %s belongs to volume %s", taken.ID, taken.VolumeID)}
	}
	if changed := new(changedError); !errors.As(err, &changed) {
		g.Metrics.took(t.origin.Backend, outcomeOf(err), time.Since(started))
	}
	if err != nil {
		return cinder.Snapshot{}, objects.WithSnapshotRemedy(err, t.origin)
	}
	g.Logger.Info("Took a snapshot", "tenant", t.origin.Tenant, "group", g.origin.Namespace+"/"+g.origin.Name, "snapshot", t.origin.Name, "backend", t.origin.Backend,
		"volume", t.origin.VolumeID, "id", taken.ID, "sizeGiB", taken.SizeGiB, "requestID", requests.OfCreate(), "durationSeconds", time.Since(started).Seconds())
	return taken, nil
}

// undo removes the members' snapshots that nothing names. The group's content and the room
// stay: the next attempt needs them.
func (g *grouping) undo(ctx context.Context) error {
	if objects.GroupHandleOf(g.content) != "" {
		return nil
	}
	return g.each(func(_ int, t *taking) error {
		_, err := g.abandon(ctx, t)
		g.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: t.origin.VolumeID})
		return err
	})
}

// abandon removes a member's snapshots, unless they are marked; then it returns their IDs. If
// they had to show one moment, only the mark of the first one, which was written last, counts.
func (g *grouping) abandon(ctx context.Context, t *taking) (kept []string, err error) {
	backend, err := g.Backends.Snapshots(shelfOf(t.origin))
	if err != nil {
		return nil, err
	}
	isFinal := g.origin.Consistency != policy.ConsistentFilesystem || t == g.members[0]
	return backend.AbandonSnapshots(g.Caller(ctx, t.origin.Tenant), backends.SnapshotTarget{Stamp: t.stamp(), Place: t.origin.Place, Unrecorded: isFinal})
}

// stillWanted does for a member what that of a taking does.
func (g *grouping) stillWanted(ctx context.Context, _ cinder.Volume) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	live, err := g.groupContentAt(ctx, g.origin.Content)
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell whether the snapshots are still wanted: %w", err)
	case live == nil || live.UID != g.content.UID || live.DeletionTimestamp != nil:
		return &changedError{fmt.Sprintf("the snapshots of VolumeGroupSnapshot %s/%s are not taken: its VolumeGroupSnapshotContent is being deleted", g.origin.Namespace, g.origin.Name)}
	}
	return nil
}

// recordAgain writes the origin again if it is gone, because others replace all
// annotations of a content with those that they have read.
func (g *grouping) recordAgain(ctx context.Context) error {
	live, err := g.groupContentAt(ctx, g.origin.Content)
	if err != nil || live == nil || live.UID != g.content.UID {
		return err // nothing leads to the snapshots, so a sweep finds them as leftovers
	}
	g.content = live
	return g.record(ctx)
}

// groupContentAt reads a group's content from the API server; nil if there is none.
func (c *groups) groupContentAt(ctx context.Context, name string) (*groupv1.VolumeGroupSnapshotContent, error) {
	live, err := c.Snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read VolumeGroupSnapshotContent %s: %w", name, err)
	}
	return live, nil
}

func (c *groups) patchGroupContent(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, change map[string]any, subresources ...string) (*groupv1.VolumeGroupSnapshotContent, error) {
	return c.Snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents().Patch(ctx, content.Name, types.MergePatchType, patch(change), metav1.PatchOptions{}, subresources...)
}

// followGroup serves the content of one snapshot of a group. What becomes of the snapshot
// is decided by the content of the group.
func (r *removing) followGroup(ctx context.Context) error {
	switch {
	case r.content.DeletionTimestamp == nil && objects.IsSnapshotRecorded(r.content):
		return r.checkGroup(ctx)
	case r.content.DeletionTimestamp == nil:
		return r.recordMember(ctx)
	case objects.IsCSISnapshot(r.content) || !slices.ContainsFunc(r.content.Finalizers, isOurFinalizer):
		return nil
	}
	if why, err := r.whyNotRequested(ctx); err != nil || why != nil {
		return errors.Join(err, asError(why))
	}
	return r.letGo(ctx)
}

// checkGroup deletes the content of a native member that was written just while its group was
// being deleted, and that the snapshot-controller has not bound: nobody else ever would. What
// somebody made for an existing snapshot stays, and so does what is to be retained: it leads
// to the snapshot.
func (r *removing) checkGroup(ctx context.Context) error {
	groups, spec := r.groupsShown(), r.content.Spec
	if groups == nil || spec.Driver != r.Name || spec.Source.VolumeHandle == nil || spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete || spec.VolumeSnapshotRef.UID != "" {
		return nil
	}
	name := objects.GroupContentName(objects.GroupOf(r.content))
	if _, err := groups.contents.Get(name); !apierrors.IsNotFound(err) {
		return err // its end brings this content back
	}
	if live, err := r.grouped.groupContentAt(ctx, name); err != nil || live != nil {
		return err
	}
	return r.deleteContent(ctx, r.content)
}

// recordMember writes on a member's content its part of the group's record. From then on a
// claim can be made from it.
func (r *removing) recordMember(ctx context.Context) error {
	groups := r.groupsShown()
	if groups == nil {
		return nil
	}
	group, err := groups.contents.Get(objects.GroupContentName(objects.GroupOf(r.content)))
	if apierrors.IsNotFound(err) || err == nil && (!objects.IsGroupRecorded(group) || group.Spec.Driver != r.content.Spec.Driver) {
		return nil // its change brings this content back
	}
	if err != nil {
		return err
	}
	origin, err := objects.GroupOriginOf(group)
	if err != nil {
		return err
	}
	for _, m := range origin.Members {
		if m.Content != r.content.Name || m.Namespace != r.content.Spec.VolumeSnapshotRef.Namespace {
			continue
		}
		if _, err := r.patchContent(ctx, r.content, map[string]any{"metadata": map[string]any{"uid": r.content.UID, "annotations": m.Annotations()}}); err != nil {
			return fmt.Errorf("cannot write the origin on VolumeSnapshotContent %s: %w", r.content.Name, err)
		}
	}
	return nil
}
