package attach

import (
	"iter"

	"k8s.io/client-go/tools/cache"
)

// Cache has the objects of one kind that an informer has read.
type Cache[T any] struct {
	Store cache.Store
	// Known reports whether it has all that exist.
	Known func() bool
}

// All returns the objects, in any order.
func (c Cache[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, object := range c.Store.List() {
			if of, ok := object.(*T); ok && !yield(of) {
				return
			}
		}
	}
}

// Get returns the object with a key; nil if there is none.
func (c Cache[T]) Get(key string) *T {
	object, exists, err := c.Store.GetByKey(key)
	if of, ok := object.(*T); ok && exists && err == nil {
		return of
	}
	return nil
}
