package snapshot

import (
	"context"
	"slices"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	grouplisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumegroupsnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

func ofGroups() resources {
	return resources{groupv1.SchemeGroupVersion, []string{"volumegroupsnapshots", "volumegroupsnapshotcontents", "volumegroupsnapshotclasses"}, "Serving no VolumeGroupSnapshots until their CRDs are installed"}
}

type groupListers struct {
	groups   grouplisters.VolumeGroupSnapshotLister
	contents grouplisters.VolumeGroupSnapshotContentLister
	classes  grouplisters.VolumeGroupSnapshotClassLister
	synced   []cache.InformerSynced
}

// groupsShown returns the listers; nil as long as the API server does not serve the
// resources.
func (c *Caches) groupsShown() *groupListers {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.groups
}

// ScheduledGroups does for VolumeGroupSnapshots what Scheduled does.
func (c *Caches) ScheduledGroups() (made []*groupv1.VolumeGroupSnapshot, known bool) {
	shown := c.groupsShown()
	if shown == nil || slices.ContainsFunc(shown.synced, func(synced cache.InformerSynced) bool { return !synced() }) {
		return nil, false
	}
	all, err := shown.groups.List(everything)
	if err != nil {
		return nil, false // the cache never returns an error
	}
	return slices.DeleteFunc(all, func(group *groupv1.VolumeGroupSnapshot) bool { return group.Labels == nil }), true
}

// VolumesOfGroup returns the handles of the volumes of a VolumeGroupSnapshot, which its content
// names from the start; nil if they are not known.
func (c *Caches) VolumesOfGroup(group types.UID) []string {
	shown := c.groupsShown()
	if shown == nil {
		return nil
	}
	content, err := shown.contents.Get(objects.GroupContentName(group))
	if err != nil || content.Spec.VolumeGroupSnapshotRef.UID != group {
		return nil
	}
	return content.Spec.Source.VolumeHandles
}

// startGroups watches VolumeGroupSnapshots from now on, or from when their CRDs are
// installed. It returns false if the context ends before it is known whether they are.
func (c *groups) startGroups(ctx context.Context, group *sync.WaitGroup) bool {
	for {
		missing, err := ofGroups().missing(c.Client)
		if err == nil && len(missing) == 0 && c.mayRead(ctx) {
			c.followGroups(ctx, group)
			return true
		}
		if err == nil {
			break
		}
		c.Logger.Warn("Cannot tell whether the API server serves VolumeGroupSnapshots, so no snapshots are taken yet", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(c.LookAgain):
		}
	}
	group.Go(func() {
		for c.awaitResources(ctx, ofGroups()) {
			if c.mayRead(ctx) {
				c.followGroups(ctx, group)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookForRights):
			}
		}
	})
	return true
}

// lookForRights is how often to look whether the account has got the right to read groups.
const lookForRights = time.Minute

// mayRead reports whether the account may read VolumeGroupSnapshots. Without the right,
// their caches would never be complete, and all other snapshots would wait for them.
func (c *groups) mayRead(ctx context.Context) bool {
	api, one := c.Snapshots.GroupsnapshotV1(), metav1.ListOptions{Limit: 1}
	_, err := api.VolumeGroupSnapshots(metav1.NamespaceAll).List(ctx, one)
	if err == nil {
		_, err = api.VolumeGroupSnapshotContents().List(ctx, one)
	}
	if err == nil {
		_, err = api.VolumeGroupSnapshotClasses().List(ctx, one)
	}
	if apierrors.IsForbidden(err) {
		c.Logger.Warn("Serving no VolumeGroupSnapshots until the program's account may read them; apply the roles of this version", "error", err)
		return false
	}
	return true
}

// followGroups watches VolumeGroupSnapshots until the context ends.
func (c *groups) followGroups(ctx context.Context, group *sync.WaitGroup) {
	factory := snapshotinformers.NewSharedInformerFactoryWithOptions(c.Snapshots, resyncPeriod, snapshotinformers.WithTransform(trimmedGroup))
	api := factory.Groupsnapshot().V1()
	shown := &groupListers{api.VolumeGroupSnapshots().Lister(), api.VolumeGroupSnapshotContents().Lister(), api.VolumeGroupSnapshotClasses().Lister(), nil}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		api.VolumeGroupSnapshots().Informer():        c.groupEvents(),
		api.VolumeGroupSnapshotContents().Informer(): c.groupContentEvents(),
		api.VolumeGroupSnapshotClasses().Informer():  c.groupClassEvents(),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			c.Logger.Error("Cannot follow VolumeGroupSnapshots, so none are served", "error", err)
			return
		}
		shown.synced = append(shown.synced, registration.HasSynced)
	}
	c.Caches.mu.Lock()
	c.groups = shown
	c.Caches.mu.Unlock()
	factory.Start(ctx.Done())
	group.Go(func() { <-ctx.Done(); factory.Shutdown() })
}

// trimmedGroup does for VolumeGroupSnapshots what trimmed does. The selector is read when it
// is needed.
func trimmedGroup(object any) (any, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return object, nil
	}
	accessor.SetManagedFields(nil)
	group, ok := object.(*groupv1.VolumeGroupSnapshot)
	if !ok {
		return object, nil
	}
	labels := group.Labels
	group.ObjectMeta = metav1.ObjectMeta{
		Name: group.Name, Namespace: group.Namespace, UID: group.UID, ResourceVersion: group.ResourceVersion,
		CreationTimestamp: group.CreationTimestamp, DeletionTimestamp: group.DeletionTimestamp,
	}
	if schedule, of := objects.GroupScheduleOf(labels); schedule != "" {
		group.Labels = objects.GroupScheduleLabels(schedule, of)
	}
	if group.Spec.Source.Selector != nil {
		group.Spec.Source.Selector = &metav1.LabelSelector{}
	}
	for _, text := range []*string{group.Spec.Source.VolumeGroupSnapshotContentName, group.Spec.VolumeGroupSnapshotClassName} {
		if text != nil {
			*text = bound.Text(*text)
		}
	}
	if status := group.Status; status != nil {
		group.Status = &groupv1.VolumeGroupSnapshotStatus{ReadyToUse: status.ReadyToUse}
	}
	return object, nil
}

func (c *groups) groupEvents() cache.ResourceEventHandler {
	changed := func(object any) {
		group := object.(*groupv1.VolumeGroupSnapshot)
		c.enqueue(itemOf(group))
		c.enqueue(groupContentOf(group))
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: func(object any) {
			if group, ok := deleted[*groupv1.VolumeGroupSnapshot](object); ok {
				c.forget(group)
				c.enqueue(groupContentOf(group))
			}
		},
	}
}

// groupContentOf does for a VolumeGroupSnapshot what contentOf does.
func groupContentOf(group *groupv1.VolumeGroupSnapshot) item {
	if named := group.Spec.Source.VolumeGroupSnapshotContentName; named != nil {
		return item{groupContentItem, "", *named}
	}
	return item{groupContentItem, "", objects.GroupContentName(group.UID)}
}

func (c *groups) groupContentEvents() cache.ResourceEventHandler {
	changed := func(object any) {
		content := object.(*groupv1.VolumeGroupSnapshotContent)
		if content.Spec.Driver != c.Name && !objects.IsCSIGroup(content) {
			return
		}
		c.countGroup(content)
		origin, err := objects.GroupOriginOf(content)
		for _, m := range origin.Members {
			c.enqueue(item{contentItem, "", m.Content}) // it may wait for the record
		}
		if content.Spec.Driver != c.Name {
			return // its sidecar does the rest
		}
		c.enqueue(itemOf(content))
		if reference := content.Spec.VolumeGroupSnapshotRef; err == nil {
			c.enqueue(item{groupItem, reference.Namespace, reference.Name})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: func(object any) {
			content, ok := deleted[*groupv1.VolumeGroupSnapshotContent](object)
			if !ok || content.Spec.Driver != c.Name && !objects.IsCSIGroup(content) {
				return
			}
			c.forget(content)
			c.pauses.end(content.Spec.VolumeGroupSnapshotRef.UID)
			removed := c.isGroupRemoved(content)
			c.mu.Lock()
			delete(c.removed, content.UID)
			c.mu.Unlock()
			origin, err := objects.GroupOriginOf(content)
			for _, m := range origin.Members {
				c.enqueue(item{contentItem, "", m.Content}) // it may have come too late
			}
			if err != nil || removed {
				return
			}
			for _, m := range origin.Members {
				if m.Cluster == c.Cluster {
					c.Ledger.ContentGone(m.UID)
					c.enqueue(item{backendItem, "", m.Backend}) // see contentEvents
				}
			}
			reference := content.Spec.VolumeGroupSnapshotRef
			c.enqueue(item{groupItem, reference.Namespace, reference.Name})
		},
	}
}

// countGroup counts what the content of a group records, as count does.
func (c *groups) countGroup(content *groupv1.VolumeGroupSnapshotContent) {
	if !objects.IsGroupRecorded(content) || c.isGroupRemoved(content) {
		return
	}
	if objects.IsCSIGroup(content) && content.DeletionTimestamp != nil && objects.GroupHandleOf(content) == "" {
		return // an earlier leader may have removed the snapshots; if not, a listing shows them
	}
	origin, _ := objects.GroupOriginOf(content) // whatever is not damaged counts
	for _, m := range origin.Members {
		if objects.IsCSIGroup(content) && m.Cluster != c.Cluster {
			continue // another installation's; all use the same driver name
		}
		var status *snapshotv1.VolumeSnapshotContentStatus
		if info := objects.MemberInfo(content, m.VolumeHandle); info != nil {
			status = &snapshotv1.VolumeSnapshotContentStatus{RestoreSize: info.RestoreSize}
		}
		if tenant, freed := c.Ledger.RecordSnapshot(m.UID, m.Backend, c.usageOf(m.SnapshotOrigin, status)); freed {
			c.Board.Publish(roomOf(tenant))
		}
	}
}

func (c *groups) groupClassEvents() cache.ResourceEventHandler {
	changed := func(object any) {
		class := object.(*groupv1.VolumeGroupSnapshotClass)
		if class.Driver != c.Name {
			return
		}
		all, err := c.groupsShown().groups.List(everything)
		if err != nil {
			return // the cache never returns an error
		}
		for _, group := range all {
			if name := group.Spec.VolumeGroupSnapshotClassName; name != nil && *name == class.Name {
				c.enqueue(itemOf(group))
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }}
}
