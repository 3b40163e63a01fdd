// Package objectwatch reports when an object appears, changes or disappears, without
// polling. It reads only metadata.
package objectwatch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// Object names one object. A cluster-wide one has no namespace.
type Object struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
}

// Followed is an object being followed.
type Followed struct {
	// Changed receives a value after every change, and once at the beginning if the
	// object exists. While the object cannot be watched, it receives one after every
	// attempt, because anything may have changed. Changes in quick succession may be
	// merged.
	Changed <-chan struct{}
	// Stopped is closed when the context has ended and nothing is running anymore.
	Stopped <-chan struct{}

	informer cache.SharedIndexInformer
}

// Start follows an object until the context ends.
func Start(ctx context.Context, client metadata.Interface, object Object) *Followed {
	informer := metadatainformer.NewFilteredMetadataInformer(client, object.Resource, object.Namespace, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, object.Name).String()
	}).Informer()
	changed, stopped := make(chan struct{}, 1), make(chan struct{})
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	// Adding a handler to an informer that has not started never fails.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { tell() },
		UpdateFunc: func(any, any) { tell() },
		DeleteFunc: func(any) { tell() },
	})
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		tell()
	})
	go func() {
		defer close(stopped)
		informer.RunWithContext(ctx)
	}()
	return &Followed{Changed: changed, Stopped: stopped, informer: informer}
}

// Exists reports whether the object existed when last seen.
func (f *Followed) Exists() bool { return len(f.informer.GetStore().ListKeys()) > 0 }
