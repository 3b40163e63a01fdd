package app

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
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
	return processInformers{
		volumes:     processInformer{core.PersistentVolumes().Informer(), "persistentvolumes"},
		claims:      processInformer{core.PersistentVolumeClaims().Informer(), "persistentvolumeclaims"},
		namespaces:  processInformer{core.Namespaces().Informer(), "namespaces"},
		classes:     processInformer{a.factory.Storage().V1().StorageClasses().Informer(), "storageclasses"},
		nodes:       processInformer{a.nodes.nodes, "nodes"},
		attachments: processInformer{a.nodes.attachments, "volumeattachments"},
	}
}

type processInformers struct{ volumes, claims, namespaces, classes, nodes, attachments processInformer }

func (i processInformers) all() []processInformer {
	return []processInformer{i.volumes, i.claims, i.namespaces, i.classes, i.nodes, i.attachments}
}

// termInformer lends one of the process's informers to the library for one
// term. A follower keeps the caches warm, so that it can lead at once. The
// library's controller is built again for every term, and must neither start
// the informer nor leave its handler behind.
type termInformer struct {
	cache.SharedIndexInformer
	// watched makes liveness notice a handler that stands still.
	watched func(cache.ResourceEventHandler) cache.ResourceEventHandler

	mu            sync.Mutex
	handler       cache.ResourceEventHandler
	registrations []cache.ResourceEventHandlerRegistration
}

// lend wraps an informer of the process.
func (a *App) lend(informer processInformer) *termInformer {
	return &termInformer{
		SharedIndexInformer: informer.SharedIndexInformer,
		watched: func(handler cache.ResourceEventHandler) cache.ResourceEventHandler {
			return a.watchHandler(informer.of, handler)
		},
	}
}

// AddIndexers skips the indexers that an earlier term added.
func (t *termInformer) AddIndexers(indexers cache.Indexers) error {
	missing := cache.Indexers{}
	present := t.SharedIndexInformer.GetIndexer().GetIndexers()
	for name, index := range indexers {
		if _, ok := present[name]; !ok {
			missing[name] = index
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return t.SharedIndexInformer.AddIndexers(missing)
}

// AddEventHandlerWithResyncPeriod remembers the handler, to remove it with the
// term and to speak to it directly in Requeue.
func (t *termInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	handler = t.watched(handler)
	registration, err := t.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler, resync)
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
