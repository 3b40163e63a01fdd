package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// TakeGroup takes the snapshots that a VolumeGroupSnapshotContent of the CSI driver
// requests by name, of the volumes of all these PersistentVolumes, or finds those that an
// earlier call has taken. It returns when all are ready, in the order of the volumes.
func (c Sidecar) TakeGroup(ctx context.Context, volumes []*corev1.PersistentVolume, name string, parameters map[string]string) ([]Taken, error) {
	task := c.Monitor.Begin("the sidecar's group of snapshots "+name, c.MaxWorkTime)
	defer task.End()
	ctx = task.In(ctx)
	g, err := c.groupAsked(ctx, volumes, name)
	if err != nil {
		return nil, err
	}
	isNew := !objects.IsGroupRecorded(g.content)
	if !isNew && g.content.DeletionTimestamp != nil && objects.GroupHandleOf(g.content) == "" {
		return nil, g.giveUp(ctx)
	}
	if isNew {
		if err := g.place(); err != nil {
			return nil, err
		}
	}
	if isNew && g.content.DeletionTimestamp == nil {
		if err := g.admit(ctx, classWith(parameters)); err != nil {
			return nil, err
		}
		if err := g.record(ctx); err != nil {
			g.giveBack()
			return nil, err
		}
	}
	all, err := g.take(ctx)
	if errors.As(err, new(*changedError)) {
		return nil, asRefusal(err)
	}
	if err != nil {
		// Snapshots may be left, which giveUp must remove before the content goes, and only
		// after this error does the sidecar ask again.
		return nil, &refusal{string(cinder.KindUnavailable), cinder.TextOf(err)}
	}
	var taken []Taken
	for i, s := range all {
		taken = append(taken, Taken{s, g.members[i].origin.Backend, objects.GroupHandle(g.origin.UID)})
	}
	return taken, nil
}

// giveUp removes what was taken for a content that is being deleted and names nothing yet: the
// sidecar would delete the content without it. Its error tells the sidecar so.
func (g *grouping) giveUp(ctx context.Context) error {
	err := g.remove(ctx)
	if err == nil {
		err = g.stillWanted(ctx, cinder.Volume{})
	}
	return asRefusal(err)
}

// groupAsked checks a request against the content that it is about.
func (c Sidecar) groupAsked(ctx context.Context, volumes []*corev1.PersistentVolume, name string) (*grouping, error) {
	if err := c.isReady(); err != nil {
		return nil, err
	}
	group := objects.GroupOfHandle(name)
	if group == "" {
		return nil, &refusal{"Damaged", fmt.Sprintf("%q is not the name that the csi-snapshotter gives the group of a VolumeGroupSnapshot, %s and its UID", name, objects.GroupHandle(""))}
	}
	content, err := c.grouped.groupContentAt(ctx, objects.GroupContentName(group))
	if err != nil {
		return nil, err
	}
	if content == nil {
		return nil, &refusal{"Damaged", fmt.Sprintf("VolumeGroupSnapshotContent %s of group %s does not exist", objects.GroupContentName(group), name)}
	}
	reference := content.Spec.VolumeGroupSnapshotRef
	handles := content.Spec.Source.VolumeHandles
	switch {
	case !objects.IsCSIGroup(content) || reference.UID != group || len(handles) == 0:
		return nil, &refusal{"Damaged", fmt.Sprintf("VolumeGroupSnapshotContent %s is not for a new group by the CSI driver; delete it", content.Name)}
	case len(handles) > mostMembers:
		return nil, &denied{reason: "TooManyMembers", message: tooMany(len(handles))}
	case len(volumes) != len(handles):
		return nil, &refusal{"AlreadyExists", fmt.Sprintf("according to VolumeGroupSnapshotContent %s, group %s has %d volumes", content.Name, name, len(handles))}
	}
	key := item{groupItem, reference.Namespace, reference.Name}
	g := &grouping{
		// Outside the loop: it takes no turn, since the sidecar waits.
		groups: c.grouped, attempt: c.loop.Attempt(key), content: content, csi: true,
		origin: objects.GroupOrigin{Content: content.Name, Namespace: reference.Namespace, Name: reference.Name, UID: group},
	}
	for i, pv := range volumes {
		of, err := objects.OriginOf(pv)
		switch {
		case err != nil:
			return nil, &refusal{"Damaged", err.Error()}
		case !slices.Contains(handles, pv.Spec.CSI.VolumeHandle):
			return nil, &refusal{"AlreadyExists", fmt.Sprintf("according to VolumeGroupSnapshotContent %s, group %s does not have volume %s", content.Name, name, pv.Spec.CSI.VolumeHandle)}
		case slices.ContainsFunc(volumes[:i], func(other *corev1.PersistentVolume) bool { return other.Name == pv.Name }):
			return nil, &refusal{"Damaged", fmt.Sprintf("VolumeGroupSnapshotContent %s has volume %s more than once; delete it", content.Name, pv.Spec.CSI.VolumeHandle)}
		case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != reference.Namespace:
			return nil, &refusal{"Denied", fmt.Sprintf("PersistentVolume %s is not bound to a claim in namespace %s, which has the VolumeGroupSnapshot", pv.Name, reference.Namespace)}
		}
		g.add(pv.Spec.CSI.VolumeHandle, &source{pv, of})
	}
	if objects.IsGroupRecorded(content) {
		asked := g.origin.Members
		if err := g.resume(); err != nil {
			return nil, &refusal{"Damaged", err.Error()}
		}
		for _, of := range asked {
			i := slices.IndexFunc(g.origin.Members, func(m objects.Member) bool { return m.UID == of.UID })
			if m := g.origin.Members[i]; m.VolumeID != of.VolumeID || m.Backend != of.Backend || m.Tenant != of.Tenant || m.Cluster != of.Cluster {
				return nil, &refusal{"Damaged", fmt.Sprintf("VolumeGroupSnapshotContent %s records volume %s of tenant %q for %s, which is not what its PersistentVolume says", content.Name, m.VolumeID, m.Tenant, m.VolumeHandle)}
			}
		}
	}
	return g, nil
}

func tooMany(members int) string {
	return fmt.Sprintf("the VolumeGroupSnapshot selects %d claims, and at most %d can be in one group; select fewer", members, mostMembers)
}

// GroupStatus says whether all snapshots of a group exist. It succeeds for a group that
// somebody made for existing snapshots if the tenant of its namespace may have each of them.
func (c Sidecar) GroupStatus(ctx context.Context, handle string) ([]Taken, error) {
	if err := c.isReady(); err != nil {
		return nil, err
	}
	content, err := c.groupNamed(ctx, handle)
	if err != nil {
		return nil, err
	}
	if content == nil {
		return nil, &refusal{string(cinder.KindNotFound), fmt.Sprintf("no VolumeGroupSnapshotContent has the handle %.80q", handle)}
	}
	taken, missing, err := c.grouped.existingMembers(ctx, content)
	if err == nil && missing != "" {
		err = &refusal{string(cinder.KindConflict), missingMember(content, missing)}
	}
	return taken, err
}

// existingMembers returns the snapshots that a group's content names, and the handle of the
// first that the tenant of the group's namespace may not have: one that has no content of
// its own there, and that the tenant has not kept either.
func (c *groups) existingMembers(ctx context.Context, group *groupv1.VolumeGroupSnapshotContent) (taken []Taken, missing string, err error) {
	var handles []string
	switch given := group.Spec.Source.GroupSnapshotHandles; {
	case given != nil:
		handles = given.VolumeSnapshotHandles
	case group.Status != nil:
		for _, info := range group.Status.VolumeSnapshotInfoList {
			handles = append(handles, info.SnapshotHandle)
		}
	}
	if len(handles) > mostMembers {
		return nil, "", &denied{reason: "TooManyMembers", message: tooMany(len(handles))}
	}
	for _, handle := range handles {
		one, err := c.existingMember(ctx, group, handle)
		if err != nil || one == nil {
			return nil, handle, err
		}
		one.Group = objects.GroupHandleOf(group)
		taken = append(taken, *one)
	}
	return taken, "", nil
}

func (c *groups) existingMember(ctx context.Context, group *groupv1.VolumeGroupSnapshotContent, text string) (*Taken, error) {
	handle := wire.Handle{ID: text}
	if objects.IsCSIGroup(group) {
		var err error
		if handle, err = wire.ParseHandle(text); err != nil {
			return nil, nil // it is another driver's
		}
	}
	namespace := group.Spec.VolumeGroupSnapshotRef.Namespace
	naming, err := c.ContentsOf(handle.ID)
	if err != nil {
		return nil, err
	}
	for _, content := range naming {
		if content.Spec.Driver == group.Spec.Driver && content.Spec.VolumeSnapshotRef.Namespace == namespace && objects.IsSnapshotRecorded(content) && objects.IsSnapshotReady(content) {
			one := takenBy(content)
			return &one, nil
		}
	}
	var labels map[string]string
	if of, err := c.Namespaces.Get(namespace); err == nil {
		labels = of.Labels
	}
	decision := c.Policy().DecideSnapshotImport(policy.SnapshotRequest{Namespace: namespace, NamespaceLabels: labels})
	tenant, known := c.Policy().Tenant(decision.Tenant)
	if !known {
		return nil, nil
	}
	for _, name := range c.Backends.Names() {
		if handle.Backend != "" && handle.Backend != name || !c.Policy().MayUse(tenant.Name, name) {
			continue
		}
		backend, err := c.answering(Shelf{Backend: name})
		if err != nil {
			return nil, err
		}
		s, found, err := backend.FindSnapshot(c.Caller(ctx, tenant.Name), handle.ID)
		if err != nil {
			return nil, err
		}
		stamp := stamps.OfSnapshot(s)
		if found && (c.isOurs(stamp) || c.isImported(stamp, s)) && wasRecorded(s) && tenant.MayTakeUp(stamp.Tenant) && stamps.IsCSISnapshot(s) == objects.IsCSIGroup(group) && s.Status == cinder.StatusAvailable {
			return &Taken{Snapshot: s, Backend: name}, nil
		}
	}
	return nil, nil
}

// takenBy describes the snapshot that a content has.
func takenBy(content *snapshotv1.VolumeSnapshotContent) Taken {
	of := Taken{Snapshot: cinder.Snapshot{ID: objects.SnapshotHandleOf(content), VolumeID: content.Annotations[objects.AnnotationVolume], Status: cinder.StatusAvailable}, Backend: content.Annotations[objects.AnnotationBackend]}
	if size := content.Status.RestoreSize; size != nil {
		of.SizeGiB = *size >> 30
	}
	if created := content.Status.CreationTime; created != nil {
		of.CreatedAt = time.Unix(0, *created)
	}
	return of
}

func missingMember(group *groupv1.VolumeGroupSnapshotContent, handle string) string {
	return fmt.Sprintf("namespace %s has no snapshot %.80q, which VolumeGroupSnapshotContent %s names: its tenant has not kept one with this handle, and no VolumeSnapshot has it",
		group.Spec.VolumeGroupSnapshotRef.Namespace, handle, group.Name)
}

// groupNamed finds the CSI driver's content with a group handle; nil if there is none. The
// API server has the last word: the cache may not show it yet.
func (c Sidecar) groupNamed(ctx context.Context, handle string) (*groupv1.VolumeGroupSnapshotContent, error) {
	if c.groupsShown() == nil {
		return nil, nil // the API server has no groups
	}
	isIt := func(content *groupv1.VolumeGroupSnapshotContent) bool {
		given := content.Spec.Source.GroupSnapshotHandles
		return objects.IsCSIGroup(content) && (objects.GroupHandleOf(content) == handle || given != nil && given.VolumeGroupSnapshotHandle == handle)
	}
	found, err := paging.List(ctx, "VolumeGroupSnapshotContents", c.Snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents().List, func(page *groupv1.VolumeGroupSnapshotContentList) (found []*groupv1.VolumeGroupSnapshotContent) {
		for i := range page.Items {
			if isIt(&page.Items[i]) {
				found = append(found, &page.Items[i])
			}
		}
		return found
	})
	switch {
	case err != nil || len(found) == 0:
		return nil, err
	case len(found) > 1:
		slices.SortFunc(found, func(a, b *groupv1.VolumeGroupSnapshotContent) int { return strings.Compare(a.Name, b.Name) })
		return nil, &refusal{"InUse", fmt.Sprintf("VolumeGroupSnapshotContents %s and %s both have the handle %.80q; delete one", found[0].Name, found[1].Name, handle)}
	}
	return found[0], nil
}

// RemoveGroup removes all snapshots of a group of the CSI driver whose content is being
// deleted. It succeeds if they are gone already.
func (c Sidecar) RemoveGroup(ctx context.Context, handle string) error {
	task := c.Monitor.Begin("the sidecar's deletion of group "+handle, c.MaxWorkTime)
	defer task.End()
	ctx = task.In(ctx)
	if err := c.isReady(); err != nil {
		return err
	}
	content, err := c.groupNamed(ctx, handle)
	switch {
	case err != nil:
		return err
	case content == nil && objects.GroupOfHandle(handle) == "":
		return nil // no group was ever taken under such a name
	case content == nil:
		return &refusal{"Damaged", fmt.Sprintf("no VolumeGroupSnapshotContent asks for the deletion of group %.80q", handle)}
	case content.Spec.Source.GroupSnapshotHandles != nil:
		return nil // its snapshots go with their own contents
	}
	g := &grouping{groups: c.grouped, content: content, csi: true}
	if err = asRefusal(g.remove(ctx)); err != nil {
		// The sidecar's own event does not say why.
		c.report("SnapshotFailedDelete", err.Error(), c.grouped.withOwner(content)...)
	}
	return err
}
