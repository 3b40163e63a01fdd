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
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// processInformer is one of the process's informers.
type processInformer struct {
	cache.SharedIndexInformer
	of string // the resource
}

// processInformers makes the informers known to the factories, which start those
// that they know.
func (a *App) processInformers() processInformers {
	core := a.factory.Core().V1()
	own := processInformers{
		volumes:     processInformer{core.PersistentVolumes().Informer(), "persistentvolumes"},
		claims:      processInformer{core.PersistentVolumeClaims().Informer(), "persistentvolumeclaims"},
		namespaces:  processInformer{core.Namespaces().Informer(), "namespaces"},
		classes:     processInformer{a.factory.Storage().V1().StorageClasses().Informer(), "storageclasses"},
		nodes:       processInformer{a.nodes.nodes, "nodes"},
		attachments: processInformer{a.nodes.attachments, "volumeattachments"},
	}
	if a.nodes.csiNodes != nil {
		own.more = append(own.more, processInformer{a.nodes.csiNodes, "csinodes"})
		own.attributes = &processInformer{a.attributesClasses().Informer(), "volumeattributesclasses"}
		own.more = append(own.more, *own.attributes)
	}
	return own
}

// attributesClass reads VolumeAttributesClasses. It is nil without the CSI driver, whose
// volumes alone can have one.
func (a *App) attributesClass() func(name string) (*storagev1.VolumeAttributesClass, error) {
	if a.nodes.csiNodes == nil {
		return nil
	}
	return a.attributesClasses().Lister().Get
}

// attributesClasses is of the factory for which no start waits: without the rights of
// the component csi, native volumes are served all the same.
func (a *App) attributesClasses() storageinformers.VolumeAttributesClassInformer {
	return a.nodes.factory.Storage().V1().VolumeAttributesClasses()
}

type processInformers struct {
	volumes, claims, namespaces, classes, nodes, attachments processInformer
	// attributes is nil without the CSI driver.
	attributes *processInformer
	// more are those that not every process has.
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
	// watched makes liveness notice a handler that stands still.
	watched func(cache.ResourceEventHandler) cache.ResourceEventHandler
	// concerns reports whether the library may have to do something about an object.
	concerns func(object any) bool

	mu            sync.Mutex
	handler       cache.ResourceEventHandler
	registrations []cache.ResourceEventHandlerRegistration
}

// concernsLibrary is false for what makes up nearly all of a cluster: bound claims, and
// bound PersistentVolumes that have the library's finalizer and keep it. The library
// looks at each, finds nothing to do, and queues all of them again at the beginning
// of every term, with a place in four tables for each. PersistentVolumes of the CSI
// driver that an administrator or a sidecar made are not this program's, although the
// library knows the driver's name.
func concernsLibrary(object any) bool {
	switch object := object.(type) {
	case *corev1.PersistentVolumeClaim:
		return object.Spec.VolumeName == ""
	case *corev1.PersistentVolume:
		if by := object.Annotations[record.AnnotationProvisionedBy]; record.IsCSI(object) && (by == "" || by == policy.CSIDriver) {
			return false
		}
		return object.Status.Phase != corev1.VolumeBound || object.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
			object.DeletionTimestamp != nil || !slices.Contains(object.Finalizers, record.LibraryFinalizer)
	}
	return true
}

// concerning passes on what concerns the library, and all that is deleted.
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
func (a *App) lend(informer processInformer) *termInformer {
	return &termInformer{
		SharedIndexInformer: informer.SharedIndexInformer,
		watched: func(handler cache.ResourceEventHandler) cache.ResourceEventHandler {
			return a.watchHandler(informer.of, handler)
		},
		concerns: concernsLibrary,
	}
}

// libraryIndex is the library's index of claims by UID. It would take a set for each
// claim; the caches have a smaller one.
const libraryIndex = "uid"

// AddIndexers adds nothing: GetIndexer answers the library's questions.
func (t *termInformer) AddIndexers(indexers cache.Indexers) error {
	for name := range indexers {
		if name != libraryIndex {
			return fmt.Errorf("the provisioning library wants the index %q, which the caches do not have", name)
		}
	}
	return nil
}

// GetIndexer returns the cache, for the library.
func (t *termInformer) GetIndexer() cache.Indexer {
	return libraryIndexer{t.SharedIndexInformer.GetIndexer()}
}

// libraryIndexer has the library's index of claims.
type libraryIndexer struct{ cache.Indexer }

// ByIndex implements cache.Indexer.
func (i libraryIndexer) ByIndex(name, value string) ([]any, error) {
	if name != libraryIndex {
		return i.Indexer.ByIndex(name, value)
	}
	if claim := record.ClaimByUID(i.Indexer, types.UID(value)); claim != nil {
		return []any{claim}, nil
	}
	return nil, nil
}

// AddEventHandlerWithResyncPeriod remembers the handler, to remove it with the
// term and to speak to it directly in Requeue.
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

// distinct tells a handler of an object that took another's name as of two objects.
// If the watch missed the deletion, the informer takes the next listing's object for
// the former one, changed. Claims get their names again, and so do the
// PersistentVolumes of imported volumes.
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
