package app

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// processInformer is one of the process's informers.
type processInformer struct {
	cache.SharedIndexInformer
	of string // the resource
}

// processInformers registers the informers with the factories, which start only those
// that they know.
func (r *replica) processInformers() processInformers {
	core := r.factory.Core().V1()
	own := processInformers{
		volumes:     processInformer{core.PersistentVolumes().Informer(), "persistentvolumes"},
		claims:      processInformer{core.PersistentVolumeClaims().Informer(), "persistentvolumeclaims"},
		namespaces:  processInformer{core.Namespaces().Informer(), "namespaces"},
		classes:     processInformer{r.factory.Storage().V1().StorageClasses().Informer(), "storageclasses"},
		nodes:       processInformer{r.nodes.nodes, "nodes"},
		attachments: processInformer{r.nodes.attachments, "volumeattachments"},
	}
	if r.nodes.csiNodes != nil {
		own.attributes = &processInformer{r.attributesClasses().Informer(), "volumeattributesclasses"}
		own.reports = &processInformer{r.nodes.reports, "leases"}
		own.more = append(own.more, processInformer{r.nodes.csiNodes, "csinodes"}, *own.attributes, *own.reports)
	}
	return own
}

// attributesClass returns a reader of VolumeAttributesClasses, or nil without the CSI
// driver: only its volumes can have one.
func (r *replica) attributesClass() func(name string) (*storagev1.VolumeAttributesClass, error) {
	if r.nodes.csiNodes == nil {
		return nil
	}
	return r.attributesClasses().Lister().Get
}

// attributesClasses uses the factory that the start does not wait for: native volumes
// are served even without the RBAC rights of the component csi.
func (r *replica) attributesClasses() storageinformers.VolumeAttributesClassInformer {
	return r.nodes.factory.Storage().V1().VolumeAttributesClasses()
}

type processInformers struct {
	volumes, claims, namespaces, classes, nodes, attachments processInformer
	// attributes and reports are nil without the CSI driver.
	attributes, reports *processInformer
	// more are informers that not every process has.
	more []processInformer
}

func (i processInformers) all() []processInformer {
	return append([]processInformer{i.volumes, i.claims, i.namespaces, i.classes, i.nodes, i.attachments}, i.more...)
}

// termInformer lends one of the process's informers to the library for one
// term. A follower keeps the caches warm, so that it can lead at once. The
// library's controller is built again for every term, and must neither start
// the informer nor leave its handler behind.
type termInformer struct {
	cache.SharedIndexInformer
	// watched lets liveness notice a handler that is stuck.
	watched func(cache.ResourceEventHandler) cache.ResourceEventHandler
	// concerns reports whether the library may have to do something about an object.
	concerns func(object any) bool

	mu            sync.Mutex
	handler       cache.ResourceEventHandler
	registrations []cache.ResourceEventHandlerRegistration
}

// concernsLibrary returns false for nearly all objects of a cluster: bound claims, and
// bound PersistentVolumes that have the library's finalizer and keep it. The library
// would look at each and find nothing to do, but queue all of them again at the
// beginning of every term, with a place in four tables for each. It also returns false
// for PersistentVolumes of the CSI driver that an administrator or a sidecar made: they
// are not this program's, although the library knows the driver's name.
func concernsLibrary(object any) bool {
	switch object := object.(type) {
	case *corev1.PersistentVolumeClaim:
		return object.Spec.VolumeName == ""
	case *corev1.PersistentVolume:
		if by := object.Annotations[objects.AnnotationProvisionedBy]; objects.IsCSI(object) && (by == "" || by == policy.CSIDriver) {
			return false
		}
		return object.Status.Phase != corev1.VolumeBound || object.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
			object.DeletionTimestamp != nil || !slices.Contains(object.Finalizers, objects.LibraryFinalizer)
	}
	return true
}

// concerning passes on the objects that concern the library, and every deletion.
type concerning struct {
	cache.ResourceEventHandler
	concerns func(object any) bool
}

// OnAdd implements cache.ResourceEventHandler.
func (c concerning) OnAdd(object any, initial bool) {
	if c.concerns(object) {
		c.ResourceEventHandler.OnAdd(object, initial)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (c concerning) OnUpdate(before, after any) {
	if c.concerns(after) {
		c.ResourceEventHandler.OnUpdate(before, after)
	}
}

// lend wraps an informer of the process.
func (r *replica) lend(informer processInformer) *termInformer {
	return &termInformer{
		SharedIndexInformer: informer.SharedIndexInformer,
		watched: func(handler cache.ResourceEventHandler) cache.ResourceEventHandler {
			return r.watchHandler(informer.of, handler)
		},
		concerns: concernsLibrary,
	}
}

// libraryIndex is the library's index of claims by UID. It would use a set for each
// claim, so lookups go to the smaller index of the cache instead.
const libraryIndex = "uid"

// AddIndexers adds nothing, because GetIndexer serves the library's lookups.
func (t *termInformer) AddIndexers(indexers cache.Indexers) error {
	for name := range indexers {
		if name != libraryIndex {
			return fmt.Errorf("the provisioning library requires the index %q, which the caches lack", name)
		}
	}
	return nil
}

// GetIndexer returns the cache, for the library.
func (t *termInformer) GetIndexer() cache.Indexer {
	return libraryIndexer{t.SharedIndexInformer.GetIndexer()}
}

// libraryIndexer serves the library's index of claims.
type libraryIndexer struct{ cache.Indexer }

// ByIndex implements cache.Indexer.
func (i libraryIndexer) ByIndex(name, value string) ([]any, error) {
	if name != libraryIndex {
		return i.Indexer.ByIndex(name, value)
	}
	if claim := objects.ClaimByUID(i.Indexer, types.UID(value)); claim != nil {
		return []any{claim}, nil
	}
	return nil, nil
}

// AddEventHandlerWithResyncPeriod remembers the handler, so that it can be removed with
// the term and Requeue can call it directly.
func (t *termInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	handler = t.watched(handler)
	registration, err := t.SharedIndexInformer.AddEventHandlerWithResyncPeriod(concerning{handler, t.concerns}, resync)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handler = handler
	t.registrations = append(t.registrations, registration)
	return registration, nil
}

// Requeue makes the library process an object again at once, as if it had
// changed. Writing to the object would do the same, but costs a request.
func (t *termInformer) Requeue(object any) {
	t.mu.Lock()
	handler := t.handler
	t.mu.Unlock()
	if handler != nil {
		handler.OnUpdate(object, object)
	}
}

// Release removes the term's handlers from the informer.
func (t *termInformer) Release() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handler = nil
	for _, registration := range t.registrations {
		if err := t.SharedIndexInformer.RemoveEventHandler(registration); err != nil {
			return err
		}
	}
	t.registrations = nil
	return nil
}

// Follow adds one of the term's own handlers.
func (t *termInformer) Follow(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := t.SharedIndexInformer.AddEventHandler(t.watched(distinct{handler}))
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registrations = append(t.registrations, registration)
	return registration, nil
}

// distinct treats an object that took another's name as two objects. If the watch
// missed the deletion, the informer reports the object of the next listing as an update
// of the former one. Names of claims are reused, and so are those of imported volumes'
// PersistentVolumes.
type distinct struct{ cache.ResourceEventHandler }

// OnUpdate implements cache.ResourceEventHandler.
func (d distinct) OnUpdate(before, after any) {
	former, ok := before.(metav1.Object)
	present, isObject := after.(metav1.Object)
	if !ok || !isObject || former.GetUID() == present.GetUID() {
		d.ResourceEventHandler.OnUpdate(before, after)
		return
	}
	d.OnDelete(before)
	d.OnAdd(after, false)
}
