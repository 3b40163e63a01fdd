package app

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/liveness"
)

// TestObjectThatTookAnothersNameIsAnother: a watch that was interrupted shows only
// the later one, and what the former counted as must not count forever.
func TestObjectThatTookAnothersNameIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		source := fcache.NewFakePVControllerSource()
		informer := processInformer{cache.NewSharedIndexInformer(source, &corev1.PersistentVolume{}, 0, nil), "persistentvolumes"}
		var mu sync.Mutex
		var told []string
		tell := func(what string, object any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, what+" "+string(object.(*corev1.PersistentVolume).UID))
		}
		a := &App{monitor: liveness.New()}
		if _, err := a.lend(informer).Follow(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { tell("added", object) },
			UpdateFunc: func(_, object any) { tell("changed", object) },
			DeleteFunc: func(object any) { tell("deleted", object) },
		}); err != nil {
			t.Fatal(err)
		}
		named := func(uid types.UID) *corev1.PersistentVolume {
			pv := persistentVolume("imported-volume-1")
			pv.UID = uid
			return pv
		}
		source.Add(named("first"))
		go informer.RunWithContext(ctx)
		for _, uid := range []types.UID{"first", "second"} {
			time.Sleep(time.Minute)
			source.Modify(named(uid))
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"added first", "changed first", "deleted first", "added second"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		end()
		source.Shutdown()
	})
}
