package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	snapshotlisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/objectwatch"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// resyncPeriod is how often every object is checked again even if it has not changed.
const resyncPeriod = 15 * time.Minute

// resources are resources that are of use only together.
type resources struct {
	version schema.GroupVersion
	names   []string
	// without says what is not done without them.
	without string
}

// ofSnapshots are the resources that the API server must serve.
func ofSnapshots() resources {
	return resources{snapshotv1.SchemeGroupVersion, []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"}, "Taking no snapshots until the snapshot CRDs are installed"}
}

// Caches are those of the cluster's snapshot objects, for one term. They show nothing
// until the API server serves the resources and a Controller fills them.
type Caches struct {
	mu  sync.Mutex
	now *listers
	// groups are nil as long as the API server does not serve VolumeGroupSnapshots.
	groups *groupListers
}

type listers struct {
	snapshots snapshotlisters.VolumeSnapshotLister
	contents  snapshotlisters.VolumeSnapshotContentLister
	classes   snapshotlisters.VolumeSnapshotClassLister
	synced    []cache.InformerSynced
}

// definitions are the CRDs, of which one is watched.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// awaitResources waits until the API server serves resources, and returns false if the
// context ends first. It watches the CRD of the first, so that a cluster without it costs
// no requests. The other resources are expected soon after that one. If they never come,
// because the CRDs have only other versions, it looks ever more rarely.
func (c *Controller) awaitResources(ctx context.Context, wanted resources) bool {
	missing, err := wanted.missing(c.Client)
	if err == nil && len(missing) == 0 {
		return true
	}
	why := fmt.Sprintf("the API server does not serve %v of %s", missing, wanted.version)
	if err != nil {
		why = err.Error()
	}
	c.Logger.Info(wanted.without, "why", why)
	ctx, cancel := context.WithCancel(ctx)
	crd := objectwatch.Start(ctx, c.Definitions, objectwatch.Object{Resource: definitions, Name: wanted.names[0] + "." + wanted.version.Group})
	defer func() { cancel(); <-crd.Stopped }()
	for pause := c.LookAgain; ; pause = min(pause+c.LookAgain, max(resyncPeriod, c.LookAgain)) {
		var later <-chan time.Time
		if err != nil || crd.Exists() {
			later = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return false
		case <-crd.Changed:
			pause = 0 // soon, there may be more
		case <-later:
		}
		if missing, err = wanted.missing(c.Client); err == nil && len(missing) == 0 {
			return true
		}
	}
}

func (r resources) missing(client kubernetes.Interface) ([]string, error) {
	served, err := client.Discovery().ServerResourcesForGroupVersion(r.version.String())
	if apierrors.IsNotFound(err) {
		return r.names, nil
	}
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range r.names {
		if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name }) {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// startCaches watches the snapshot objects until stop is called.
func (c *Controller) startCaches(ctx context.Context) (stop func(), err error) {
	factory := snapshotinformers.NewSharedInformerFactoryWithOptions(c.Snapshots, resyncPeriod, snapshotinformers.WithTransform(trimmed))
	api := factory.Snapshot().V1()
	shown := &listers{api.VolumeSnapshots().Lister(), api.VolumeSnapshotContents().Lister(), api.VolumeSnapshotClasses().Lister(), nil}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		api.VolumeSnapshots().Informer():        c.snapshotEvents(),
		api.VolumeSnapshotContents().Informer(): c.contentEvents(),
		api.VolumeSnapshotClasses().Informer():  c.classEvents(),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, err
		}
		shown.synced = append(shown.synced, registration.HasSynced)
	}
	c.show(shown)
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	return func() { cancel(); factory.Shutdown() }, nil
}

// haveBackup reports whether any content records a backup on a backend.
func (l *listers) haveBackup(backend string) bool {
	if l == nil {
		return false
	}
	all, err := l.contents.List(everything)
	return err == nil && slices.ContainsFunc(all, func(content *snapshotv1.VolumeSnapshotContent) bool {
		return content.Annotations[objects.AnnotationBackup] != "" && content.Annotations[objects.AnnotationBackend] == backend
	})
}

// trimmed keeps of a VolumeSnapshot, which tenants write, only what is read, and a
// bounded part of each text. The other objects are the cluster's.
func trimmed(object any) (any, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return object, nil
	}
	accessor.SetManagedFields(nil)
	snapshot, ok := object.(*snapshotv1.VolumeSnapshot)
	if !ok {
		return object, nil
	}
	snapshot.ObjectMeta = metav1.ObjectMeta{
		Name: snapshot.Name, Namespace: snapshot.Namespace, UID: snapshot.UID, ResourceVersion: snapshot.ResourceVersion,
		CreationTimestamp: snapshot.CreationTimestamp, DeletionTimestamp: snapshot.DeletionTimestamp,
		Labels: scheduleOf(snapshot.Labels), OwnerReferences: groupOf(snapshot.OwnerReferences),
	}
	for _, text := range []*string{snapshot.Spec.Source.PersistentVolumeClaimName, snapshot.Spec.Source.VolumeSnapshotContentName, snapshot.Spec.VolumeSnapshotClassName} {
		if text != nil {
			*text = bound.Text(*text)
		}
	}
	if status := snapshot.Status; status != nil && status.Error != nil && status.Error.Message != nil {
		*status.Error.Message = bound.Message(*status.Error.Message)
	}
	return object, nil
}

// scheduleOf keeps the labels that say which schedule made a VolumeSnapshot; nil if none did.
func scheduleOf(labels map[string]string) map[string]string {
	schedule, claim := objects.ScheduleOf(labels)
	if schedule == "" {
		return nil
	}
	return objects.ScheduleLabels(schedule, claim)
}

// groupOf keeps the reference to the VolumeGroupSnapshot that a VolumeSnapshot belongs to.
func groupOf(references []metav1.OwnerReference) []metav1.OwnerReference {
	owner := objects.OwnerGroup(references)
	if owner == nil {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: bound.Text(owner.APIVersion), Kind: owner.Kind, Name: bound.Text(owner.Name), UID: owner.UID}}
}

// awaitCaches waits until every object that existed was seen, and every content is
// counted.
func (c *Controller) awaitCaches(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), c.haveSynced()...)
}

// haveSynced returns what says that a cache has every object that existed.
func (c *Caches) haveSynced() []cache.InformerSynced {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups == nil {
		return c.now.synced
	}
	return slices.Concat(c.now.synced, c.groups.synced)
}

func (c *Caches) show(now *listers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// shown returns the listers; nil before the API server serves the resources.
func (c *Caches) shown() *listers {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// shows reports whether the cache has the VolumeSnapshot with this UID.
func (c *Controller) shows(namespace, name string, uid types.UID) bool {
	snapshot, err := c.shown().snapshots.VolumeSnapshots(namespace).Get(name)
	return err == nil && snapshot.UID == uid
}

// VolumeSnapshot reads from the cache. Nothing exists before the API server
// serves the resources.
func (c *Caches) VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	if shown := c.shown(); shown != nil {
		return shown.snapshots.VolumeSnapshots(namespace).Get(name)
	}
	return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshots"), name)
}

// Scheduled returns the VolumeSnapshots that schedules made, and false until all are known.
func (c *Caches) Scheduled() (made []*snapshotv1.VolumeSnapshot, known bool) {
	shown := c.shown()
	if shown == nil || slices.ContainsFunc(shown.synced, func(synced cache.InformerSynced) bool { return !synced() }) {
		return nil, false
	}
	all, err := shown.snapshots.List(everything)
	if err != nil {
		return nil, false // the cache never returns an error
	}
	for _, snapshot := range all {
		if snapshot.Labels != nil {
			made = append(made, snapshot)
		}
	}
	return made, true
}

// VolumeSnapshotContent does for contents what VolumeSnapshot does for VolumeSnapshots.
func (c *Caches) VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	if shown := c.shown(); shown != nil {
		return shown.contents.Get(name)
	}
	return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotcontents"), name)
}

// VolumeSnapshotClass reads from the cache, but returns an error until all classes are
// read.
func (c *Caches) VolumeSnapshotClass(name string) (*snapshotv1.VolumeSnapshotClass, error) {
	if err := c.isReady(); err != nil {
		return nil, err
	}
	return c.shown().classes.Get(name)
}

func (c *Controller) snapshotEvents() cache.ResourceEventHandler {
	changed := func(object any) {
		snapshot := object.(*snapshotv1.VolumeSnapshot)
		c.enqueue(itemOf(snapshot))
		c.Board.Publish(parking.SourceSnapshot(snapshot.Namespace, snapshot.Name))
		// What happens to a content depends on its VolumeSnapshot.
		c.enqueue(contentOf(snapshot))
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: func(object any) {
			if snapshot, ok := deleted[*snapshotv1.VolumeSnapshot](object); ok {
				c.forget(snapshot)
				c.Board.Publish(snapshotTrigger(snapshot.Namespace, snapshot.Name))
				c.release(snapshot.UID, c.Ledger.ReleaseSnapshotReservation)
				c.enqueue(contentOf(snapshot))
			}
		},
	}
}

// contentOf returns the content that a VolumeSnapshot names, or the one that is made
// for it.
func contentOf(snapshot *snapshotv1.VolumeSnapshot) item {
	if named := snapshot.Spec.Source.VolumeSnapshotContentName; named != nil {
		return item{contentItem, "", *named}
	}
	return item{contentItem, "", objects.SnapshotContentName(snapshot.UID)}
}

func (c *Controller) contentEvents() cache.ResourceEventHandler {
	changed := func(object any) {
		content := object.(*snapshotv1.VolumeSnapshotContent)
		if content.Spec.Driver == c.Name || objects.IsCSISnapshot(content) {
			c.count(content)
		}
		if !c.serves(content) {
			return // if it is the CSI driver's, its sidecar does the rest
		}
		c.enqueue(itemOf(content))
		if reference := content.Spec.VolumeSnapshotRef; reference.Name != "" {
			c.enqueue(item{snapshotItem, reference.Namespace, reference.Name})
			c.Board.Publish(contentsTrigger(reference.Namespace))
			// Claims may wait for what the content records about the filesystem.
			c.Board.Publish(parking.SourceSnapshot(reference.Namespace, reference.Name))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(before, object any) {
			c.noteGivenUp(before.(*snapshotv1.VolumeSnapshotContent), object.(*snapshotv1.VolumeSnapshotContent))
			changed(object)
		},
		DeleteFunc: func(object any) {
			content, ok := deleted[*snapshotv1.VolumeSnapshotContent](object)
			if !ok || content.Spec.Driver != c.Name && !objects.IsCSISnapshot(content) {
				return
			}
			c.forget(content)
			c.Board.Publish(contentTrigger(content.Name))
			c.mu.Lock()
			ours := content.Annotations[objects.AnnotationCluster] == c.Cluster // all installations use the same driver name
			isOpen := objects.IsSnapshotRecorded(content) && ours && !c.removed[content.UID] &&
				(objects.IsCSISnapshot(content) && objects.SnapshotHandleOf(content) == "" || objects.GroupOf(content) != "")
			delete(c.removed, content.UID)
			c.mu.Unlock()
			// Either its snapshot is kept, or this term has removed it and it no longer
			// counts.
			c.Ledger.ContentGone(objects.SnapshotOwner(content))
			if isOpen {
				// Enqueue the backend only after that, so that a listing that begins now
				// frees its room.
				c.enqueue(item{backendItem, "", content.Annotations[objects.AnnotationBackend]})
			}
			if reference := content.Spec.VolumeSnapshotRef; reference.Name != "" {
				c.enqueue(item{snapshotItem, reference.Namespace, reference.Name})
			}
		},
	}
}

// serves reports whether this program does for a content what a sidecar would do: for its
// own, and for those of the CSI driver that somebody made for an existing snapshot, or the
// snapshot-controller for one of a group. The sidecar only deletes the latter.
func (c *Controller) serves(content *snapshotv1.VolumeSnapshotContent) bool {
	return content.Spec.Driver == c.Name || c.CSI && objects.IsCSISnapshot(content) && (content.Spec.Source.SnapshotHandle != nil || objects.GroupOf(content) != "")
}

// noteGivenUp notes that a content no longer records an existing snapshot. It counts as
// one that nothing names, until another listing shows whose it is.
func (c *Controller) noteGivenUp(before, content *snapshotv1.VolumeSnapshotContent) {
	if !c.serves(before) || objects.ImportedHandleOf(before) == "" || !objects.IsSnapshotRecorded(before) || objects.IsSnapshotRecorded(content) {
		return
	}
	c.Ledger.ContentGone(before.Spec.VolumeSnapshotRef.UID)
	c.enqueue(item{backendItem, "", before.Annotations[objects.AnnotationBackend]})
}

// count counts what a content records.
func (c *Controller) count(content *snapshotv1.VolumeSnapshotContent) {
	if !objects.IsSnapshotRecorded(content) {
		return
	}
	origin, _ := objects.SnapshotOriginOf(content) // whatever is not damaged counts
	if c.isRemoved(content) {
		return
	}
	if objects.IsCSISnapshot(content) && origin.Cluster != "" && origin.Cluster != c.Cluster {
		return // another installation's; all use the same driver name
	}
	if objects.IsCSISnapshot(content) && content.DeletionTimestamp != nil && origin.SnapshotID == "" {
		return // an earlier leader may have removed the snapshot; if not, a listing shows it
	}
	if tenant, freed := c.Ledger.RecordSnapshot(origin.UID, origin.Backend, c.usageOf(origin, content.Status)); freed {
		c.Board.Publish(roomOf(tenant))
	}
}

// usageOf returns what a snapshot counts. Until its content's status has its size, it has
// the size of its volume.
func (c *Controller) usageOf(origin objects.SnapshotOrigin, status *snapshotv1.VolumeSnapshotContentStatus) ledger.Snapshot {
	s := ledger.Snapshot{IsBackup: origin.Backup != "", Tenant: origin.Tenant, StorageClass: origin.StorageClass}
	if status != nil && status.RestoreSize != nil && *status.RestoreSize > 0 {
		s.GiB = (*status.RestoreSize-1)>>30 + 1
		return s
	}
	s.Estimated = true
	for _, pv := range objects.ByVolumeID(c.PersistentVolumes, origin.VolumeID) {
		s.GiB = max(s.GiB, objects.SizeGiB(pv))
	}
	return s
}

func (c *Controller) classEvents() cache.ResourceEventHandler {
	changed := func(object any) {
		class := object.(*snapshotv1.VolumeSnapshotClass)
		if class.Driver != c.Name {
			return
		}
		// A snapshot without a class, or whose class did not exist, is not in the lot.
		all, err := c.shown().snapshots.List(everything)
		if err != nil {
			return // the cache never returns an error
		}
		for _, snapshot := range all {
			if name := snapshot.Spec.VolumeSnapshotClassName; name == nil || *name == class.Name {
				c.enqueue(itemOf(snapshot))
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }}
}

// forget drops what is known about an object that is gone.
func (c *Controller) forget(object metav1.Object) {
	c.parked.Forget(object.GetUID())
	c.loop.Forget(itemOf(object))
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.handed, object.GetUID())
}

// ClaimChanged brings back the snapshots that wait for a claim, which appeared (before is
// nil), changed, or is gone (after is nil).
func (c *Controller) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	claim := cmp.Or(after, before)
	c.Board.Publish(claimTrigger(claim.Namespace, claim.Name))
}

func claimTrigger(namespace, name string) parking.Trigger {
	return parking.Trigger{Kind: parking.Object, Name: namespace + "/" + name}
}

func contentTrigger(name string) parking.Trigger {
	return parking.Trigger{Kind: parking.Object, Name: string(contentItem) + " " + name}
}

// contentsTrigger fires when any content of a namespace's VolumeSnapshots changes.
func contentsTrigger(namespace string) parking.Trigger {
	return parking.Trigger{Kind: parking.Object, Name: string(contentItem) + "s of " + namespace}
}

func snapshotTrigger(namespace, name string) parking.Trigger {
	return parking.Trigger{Kind: parking.Object, Name: string(snapshotItem) + " " + namespace + "/" + name}
}

// deleted unwraps a deleted object, which may arrive as its last known state.
func deleted[T any](object any) (T, bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	typed, ok := object.(T)
	return typed, ok
}
