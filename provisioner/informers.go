package provisioner

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TermInformer lends one of the process's informers to the library for the
// length of a term. The process keeps its caches warm while it follows, so
// that a new leader starts at once; the library, made anew for every term,
// must neither start the informer nor leave its handler behind.
type TermInformer struct {
	cache.SharedIndexInformer

	mu            sync.Mutex
	handler       cache.ResourceEventHandler
	registrations []cache.ResourceEventHandlerRegistration
}

// NewTermInformer wraps an informer of the process.
func NewTermInformer(informer cache.SharedIndexInformer) *TermInformer {
	return &TermInformer{SharedIndexInformer: informer}
}

// AddIndexers skips the indexers that an earlier term added.
func (t *TermInformer) AddIndexers(indexers cache.Indexers) error {
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
func (t *TermInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
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

// Requeue makes the library look at an object again at once, as if it had
// changed. Writing to the object would do the same at the price of a request.
func (t *TermInformer) Requeue(object any) {
	t.mu.Lock()
	handler := t.handler
	t.mu.Unlock()
	if handler != nil {
		handler.OnUpdate(object, object)
	}
}

// byVolume is the index of PersistentVolumes by the volume that they name.
const byVolume = "volume"

// RecordIndexers are the indexes that the cache of PersistentVolumes must have.
func RecordIndexers() cache.Indexers {
	return cache.Indexers{byVolume: func(object any) ([]string, error) {
		pv, ok := object.(*corev1.PersistentVolume)
		if !ok {
			return nil, fmt.Errorf("a cache of PersistentVolumes holds a %T", object)
		}
		if id := cmp.Or(pv.Annotations[annotationVolume], pv.Annotations[historicAnnotationVolume]); id != "" {
			return []string{id}, nil
		}
		return nil, nil
	}}
}

// Release takes the term's handlers off the informer.
func (t *TermInformer) Release() error {
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

// Follow adds a handler of the term's own.
func (t *TermInformer) Follow(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := t.SharedIndexInformer.AddEventHandler(handler)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registrations = append(t.registrations, registration)
	return registration, nil
}
