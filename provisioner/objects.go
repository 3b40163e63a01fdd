package provisioner

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// objects is a set of claims or PersistentVolumes, by UID, with the time at
// which each was put in.
type objects[T metav1.Object] struct {
	mu    sync.Mutex
	byUID map[types.UID]member[T]
}

type member[T metav1.Object] struct {
	object T
	since  time.Time
}

func newObjects[T metav1.Object]() *objects[T] {
	return &objects[T]{byUID: map[types.UID]member[T]{}}
}

// add puts an object in, and reports whether it was not there, or for longer
// than the given time.
func (o *objects[T]) add(object T, longer time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, ok := o.byUID[object.GetUID()]
	if ok && time.Since(before.since) < longer {
		return false
	}
	o.byUID[object.GetUID()] = member[T]{object, time.Now()}
	return true
}

// take takes an object out, if it is in.
func (o *objects[T]) take(uid types.UID) (T, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken, ok := o.byUID[uid]
	delete(o.byUID, uid)
	return taken.object, ok
}

// takeAll empties the set.
func (o *objects[T]) takeAll() []T { return o.takeIf(func(T) bool { return true }) }

// takeIf takes some of the objects out.
func (o *objects[T]) takeIf(which func(T) bool) []T {
	o.mu.Lock()
	defer o.mu.Unlock()
	var taken []T
	for uid, m := range o.byUID {
		if which(m.object) {
			taken = append(taken, m.object)
			delete(o.byUID, uid)
		}
	}
	return taken
}
