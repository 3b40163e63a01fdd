package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// The snapshot-controller refuses to make the content of a VolumeGroupSnapshot of native
// volumes, but goes on with one that exists: it makes and binds what each snapshot needs.

// syncGroup takes the snapshots of a VolumeGroupSnapshot of native volumes.
func (c *groups) syncGroup(ctx context.Context, a *attempt) error {
	groups := c.groupsShown()
	if groups == nil {
		return nil
	}
	group, err := groups.groups.VolumeGroupSnapshots(a.Key.namespace).Get(a.Key.name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.parked.Take(group.UID)
	if group.Spec.Source.Selector == nil || group.Spec.VolumeGroupSnapshotClassName == nil || group.DeletionTimestamp != nil {
		return nil
	}
	class, err := groups.classes.Get(*group.Spec.VolumeGroupSnapshotClassName)
	if apierrors.IsNotFound(err) || err == nil && class.Driver != c.Name {
		return nil // its creation brings the group back
	}
	if err != nil {
		return err
	}
	g := &grouping{groups: c, attempt: a, origin: objects.GroupOrigin{Content: objects.GroupContentName(group.UID), Namespace: group.Namespace, Name: group.Name, UID: group.UID}}
	g.content, err = groups.contents.Get(g.origin.Content)
	if apierrors.IsNotFound(err) {
		g.content, err = nil, nil
	}
	if err == nil {
		err = g.run(ctx, group, class)
	}
	backend := ""
	if len(g.members) > 0 {
		backend = g.members[0].origin.Backend
	}
	if g.content == nil && err != nil {
		g.giveBack()
	}
	return settle(c.Controller, a, group, backend, err)
}

// run takes a VolumeGroupSnapshot through all steps of an attempt.
func (g *grouping) run(ctx context.Context, group *groupv1.VolumeGroupSnapshot, class *groupv1.VolumeGroupSnapshotClass) error {
	var err error
	switch {
	case g.content == nil:
		err = g.consider(ctx, group)
	case g.content.Spec.Driver != g.Name || !objects.IsGroupRecorded(g.content):
		return &denied{reason: "SnapshotContentConflict", message: fmt.Sprintf("VolumeGroupSnapshotContent %s exists and was not made for this VolumeGroupSnapshot; delete it", g.content.Name)}
	case g.content.DeletionTimestamp != nil || objects.GroupHandleOf(g.content) != "":
		return nil
	default:
		err = g.resume()
	}
	if err != nil {
		return err
	}
	if !g.Begin(g.members[0].origin.Tenant, g.members[0].origin.Backend) {
		return nil // its turn brings it back
	}
	if g.content == nil {
		if err := g.place(); err != nil {
			return err
		}
		if err := g.admit(ctx, &snapshotv1.VolumeSnapshotClass{Parameters: class.Parameters}); err != nil {
			return err
		}
		if err := g.writeGroupContent(ctx, class); err != nil {
			return err
		}
	}
	taken, err := g.take(ctx)
	if err != nil {
		return err
	}
	if err := g.writeMembers(ctx); err != nil {
		return err
	}
	return g.writeGroupStatus(ctx, taken)
}

// consider finds the volumes of a VolumeGroupSnapshot. The API server has the labels of
// all claims, and the selector, whose size nothing bounds.
func (g *grouping) consider(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	live, err := g.Snapshots.GroupsnapshotV1().VolumeGroupSnapshots(group.Namespace).Get(ctx, group.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (live.UID != group.UID || live.DeletionTimestamp != nil) {
		return &changedError{"the VolumeGroupSnapshot is gone"}
	}
	if err != nil {
		return fmt.Errorf("cannot read VolumeGroupSnapshot %s/%s: %w", group.Namespace, group.Name, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(live.Spec.Source.Selector)
	if err != nil {
		return &denied{reason: string(policy.InvalidClaim), message: "spec.source.selector cannot be used; replace the VolumeGroupSnapshot"}
	}
	claims, err := g.Client.CoreV1().PersistentVolumeClaims(group.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String(), Limit: mostMembers + 1})
	switch {
	case err != nil:
		return fmt.Errorf("cannot list the claims of VolumeGroupSnapshot %s/%s: %w", group.Namespace, group.Name, err)
	case len(claims.Items) == 0:
		return &denied{reason: "ClaimNotBound", message: "spec.source.selector selects no claim; label the claims, or delete the VolumeGroupSnapshot", again: true}
	case len(claims.Items) > mostMembers:
		return &denied{reason: "TooManyMembers", message: tooMany(len(claims.Items)), again: true}
	}
	for i := range claims.Items {
		name := claims.Items[i].Name
		of, missing, err := g.find(group.Namespace, name)
		switch {
		case err != nil:
			return err
		case missing != nil && missing.reason == string(policy.UnsupportedMode):
			return &denied{reason: missing.reason, message: fmt.Sprintf("claim %s has a volume in mode csi, whose snapshots need a VolumeGroupSnapshotClass of driver %s; make a VolumeGroupSnapshot of such a class, which selects no native claims", name, policy.CSIDriver), again: true}
		case missing != nil:
			return missing
		case of == nil:
			return &denied{reason: "ForeignVolume", message: fmt.Sprintf("the volume of claim %s was not made by %s; the snapshots of a group must all be of one driver", name, g.Name), triggers: []parking.Trigger{claimTrigger(group.Namespace, name)}, again: true}
		}
		g.add(of.origin.VolumeID, of)
	}
	return nil
}

// writeGroupContent makes the content with the record of all snapshots. Then it makes sure
// that the VolumeGroupSnapshot still exists; otherwise nobody would ever ask for the
// content's deletion.
func (g *grouping) writeGroupContent(ctx context.Context, class *groupv1.VolumeGroupSnapshotClass) error {
	contents := g.Snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents()
	made, err := contents.Create(ctx, objects.NewGroupContent(g.origin, class), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return &changedError{"VolumeGroupSnapshotContent " + g.origin.Content + " exists already"} // its event brings the group back
	}
	if err != nil {
		return fmt.Errorf("cannot write VolumeGroupSnapshotContent %s: %w", g.origin.Content, err)
	}
	g.content = made
	live, err := g.existingGroup(ctx, made)
	if err != nil || live != nil && live.DeletionTimestamp == nil {
		return err
	}
	if err := g.deleteGroupContent(ctx, made); err != nil {
		return err
	}
	return &changedError{fmt.Sprintf("VolumeGroupSnapshot %s/%s was deleted before its snapshots were taken", g.origin.Namespace, g.origin.Name)}
}

func (c *groups) deleteGroupContent(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) error {
	err := c.Snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &content.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot delete VolumeGroupSnapshotContent %s, whose VolumeGroupSnapshot is gone: %w", content.Name, err)
	}
	return nil
}

// writeMembers makes what the snapshot-controller would make of CSI volumes, which it then
// binds: it knows neither the claim nor the volume mode of a native volume.
func (g *grouping) writeMembers(ctx context.Context) error {
	for i, m := range g.origin.Members {
		_, err := g.Snapshots.SnapshotV1().VolumeSnapshotContents().Create(ctx, m.NewMemberContent(g.content, g.members[i].mode), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cannot write VolumeSnapshotContent %s: %w", m.Content, err)
		}
		_, err = g.Snapshots.SnapshotV1().VolumeSnapshots(m.Namespace).Create(ctx, m.NewMemberSnapshot(g.origin.Name, g.claimOf(m)), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cannot write VolumeSnapshot %s/%s: %w", m.Namespace, m.Name, err)
		}
	}
	return nil
}

// claimOf returns the name of the claim that has a member's volume; empty if none has it
// any more.
func (g *grouping) claimOf(m objects.Member) string {
	if volumes := g.volumesOf(m); len(volumes) > 0 {
		return volumes[0].Spec.ClaimRef.Name
	}
	return ""
}

// writeGroupStatus writes the IDs of the snapshots into the status of the group's content.
func (g *grouping) writeGroupStatus(ctx context.Context, taken []cinder.Snapshot) error {
	handle, ready, created := objects.GroupHandle(g.origin.UID), true, metav1.Now()
	status := &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: &handle, ReadyToUse: &ready, CreationTime: &created}
	for i, s := range taken {
		one := objects.SnapshotStatus(s, s.ID)
		status.VolumeSnapshotInfoList = append(status.VolumeSnapshotInfoList, groupv1.VolumeSnapshotInfo{
			VolumeHandle: g.origin.Members[i].VolumeHandle, SnapshotHandle: s.ID, CreationTime: one.CreationTime, ReadyToUse: one.ReadyToUse, RestoreSize: one.RestoreSize,
		})
		if s.CreatedAt.Before(created.Time) && !s.CreatedAt.IsZero() {
			created = metav1.NewTime(s.CreatedAt)
		}
	}
	return g.writeHandle(ctx, status)
}

func (g *grouping) writeHandle(ctx context.Context, status *groupv1.VolumeGroupSnapshotContentStatus) error {
	if _, err := g.patchGroupContent(ctx, g.content, map[string]any{"metadata": map[string]any{"uid": g.content.UID}, "status": status}, "status"); err != nil {
		return fmt.Errorf("cannot write the status of VolumeGroupSnapshotContent %s: %w", g.content.Name, err)
	}
	g.parked.Forget(g.content.UID)
	g.parked.Forget(g.origin.UID)
	return nil
}

// syncGroupContent does for the content of a group of native volumes what a sidecar would.
func (c *groups) syncGroupContent(ctx context.Context, a *attempt) error {
	groups := c.groupsShown()
	if groups == nil {
		return nil
	}
	content, err := groups.contents.Get(a.Key.name)
	if apierrors.IsNotFound(err) || err == nil && content.Spec.Driver != c.Name {
		return nil
	}
	if err != nil {
		return err
	}
	c.parked.Take(content.UID)
	g := &grouping{groups: c, attempt: a, content: content}
	return g.end(g.runContent(ctx))
}

// end reports the result of an attempt at a group's content.
func (g *grouping) end(err error) error {
	var changed *changedError
	if err == nil || apierrors.IsConflict(err) {
		return err
	}
	about := g.withOwner(g.content)
	if errors.As(err, &changed) {
		if g.content.DeletionTimestamp != nil {
			g.report("DeletionStopped", changed.Error(), about...)
		}
		return nil
	}
	var why *denied
	if errors.As(err, &why) {
		g.report(why.reason, why.message, about...)
		g.park(g.attempt, g.content, parking.Blocked, why.triggers...)
		return err // the snapshot-controller may ask for the deletion without a trigger
	}
	backend := ""
	for _, t := range g.members {
		if backend = t.origin.Backend; g.Backends.Health(backend) != nil {
			g.report(reasonBackendUnavailable, g.Backends.Health(backend).Error(), about...)
			g.park(g.attempt, g.content, parking.Blocked, triggersAt(backend)...)
			return nil
		}
	}
	if g.content.DeletionTimestamp != nil {
		g.report("SnapshotFailedDelete", err.Error(), about...)
	}
	g.park(g.attempt, g.content, parking.Failing, triggersAt(backend)...)
	return err
}

func (g *grouping) runContent(ctx context.Context) error {
	isNew := g.content.Spec.Source.GroupSnapshotHandles == nil
	switch {
	case g.content.DeletionTimestamp == nil && isNew:
		return g.checkGroupOwner(ctx)
	case g.content.DeletionTimestamp == nil:
		return g.adoptExisting(ctx)
	case !slices.Contains(g.content.Finalizers, objects.GroupFinalizer):
		return nil
	}
	if _, asked := g.content.Annotations[objects.AnnotationGroupBeingDeleted]; !asked {
		live, err := g.existingGroup(ctx, g.content)
		if err != nil {
			return err
		}
		if live != nil {
			return &denied{reason: "SnapshotInUse", message: fmt.Sprintf("VolumeGroupSnapshot %s/%s still exists; delete it, too", live.Namespace, live.Name)}
		}
	}
	isNamed := objects.GroupHandleOf(g.content) != ""
	switch {
	case !isNew:
		return g.letGoOfGroup(ctx, g.content) // its snapshots go with their own contents
	case isNamed && g.content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete:
		return g.letGoOfGroup(ctx, g.content)
	case !isNamed && !objects.IsGroupRecorded(g.content):
		return g.letGoOfGroup(ctx, g.content) // nothing was begun
	}
	origin, err := objects.GroupOriginOf(g.content)
	if err != nil {
		return err
	}
	if len(origin.Members) > 0 && !g.Begin(origin.Members[0].Tenant, origin.Members[0].Backend) {
		return nil // its turn brings it back
	}
	g.origin = origin
	if err := g.remove(ctx); err != nil {
		return err
	}
	if err := g.deleteUnbound(ctx); err != nil {
		return err
	}
	return g.letGoOfGroup(ctx, g.content)
}

// checkGroupOwner deletes a content that was written just while its VolumeGroupSnapshot
// was being deleted, as checkOwner does. One that names snapshots stays.
func (g *grouping) checkGroupOwner(ctx context.Context) error {
	if !objects.IsGroupRecorded(g.content) || len(g.withOwner(g.content)) > 1 {
		return nil
	}
	live, err := g.existingGroup(ctx, g.content)
	if err != nil || live != nil {
		return err
	}
	if objects.GroupHandleOf(g.content) == "" {
		return g.deleteGroupContent(ctx, g.content)
	}
	if g.content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		reference := g.content.Spec.VolumeGroupSnapshotRef
		g.report("SnapshotKept", fmt.Sprintf(
			"its VolumeGroupSnapshot %s/%s (UID %s) is gone, but nothing asked for the deletion of its snapshots; to keep them, set deletionPolicy to Retain; to delete them, delete this VolumeGroupSnapshotContent",
			reference.Namespace, reference.Name, reference.UID), g.content)
	}
	return nil
}

// adoptExisting says that a group which somebody made for existing snapshots is ready, if
// the tenant of its namespace may have each of them.
func (g *grouping) adoptExisting(ctx context.Context) error {
	given := g.content.Spec.Source.GroupSnapshotHandles
	if objects.GroupHandleOf(g.content) != "" || g.content.Spec.VolumeGroupSnapshotRef.UID == "" {
		return nil
	}
	// The snapshots may be those of any backend. All such looks together have the turns of
	// one tenant at one backend.
	if !g.Begin("", "") {
		return nil // its turn brings it back
	}
	taken, missing, err := g.existingMembers(ctx, g.content)
	switch {
	case err != nil:
		return err
	case missing != "":
		return &denied{reason: "GroupMemberMissing", message: missingMember(g.content, missing), triggers: []parking.Trigger{contentsTrigger(g.content.Spec.VolumeGroupSnapshotRef.Namespace)}}
	}
	ready, created := true, metav1.Now()
	for _, s := range taken {
		if !s.CreatedAt.IsZero() && s.CreatedAt.Before(created.Time) {
			created = metav1.NewTime(s.CreatedAt)
		}
	}
	return g.writeHandle(ctx, &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: &given.VolumeGroupSnapshotHandle, ReadyToUse: &ready, CreationTime: &created})
}
