package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// TestObjectThatTookAnothersNameIsAnother: an interrupted watch shows only the later
// object, and what the former one counted as must not count forever.
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
		a := &replica{monitor: liveness.New()}
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

// TestStartNeedsNoRightOfTheComponentCSI: a program with the driver's socket serves
// native volumes before the RBAC rights are granted, or without them.
func TestStartNeedsNoRightOfTheComponentCSI(t *testing.T) {
	client := fake.NewClientset()
	denied := map[string]bool{"csinodes": true, "volumeattributesclasses": true, "volumeattachments": true, "nodes": true}
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		of := action.GetResource()
		return denied[of.Resource], nil, apierrors.NewForbidden(of.GroupResource(), "", errors.New("no right"))
	})
	a := &replica{client: client, factory: informers.NewSharedInformerFactory(client, 0)}
	var err error
	if a.nodes, err = newNodeCaches(client, "standalone-cinder", true); err != nil {
		t.Fatal(err)
	}
	if a.attributesClass() == nil {
		t.Error("no VolumeAttributesClass is ever read")
	}
	own := a.processInformers()
	if own.attributes == nil || len(own.all()) != 9 {
		t.Errorf("%d informers", len(own.all()))
	}
	ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	a.factory.Start(ctx.Done())
	a.nodes.factory.Start(ctx.Done())
	waited := a.factory.WaitForCacheSync(ctx.Done())
	for kind, synced := range waited {
		if !synced {
			t.Errorf("the start waits for %s", kind)
		}
	}
	if len(waited) != 4 {
		t.Errorf("the start waits for %v", waited)
	}
}

// TestLibraryLooksOnlyAtWhatItMayActOn: the library queues nothing in a cluster of
// bound claims and volumes, but gets everything that it would change.
func TestLibraryLooksOnlyAtWhatItMayActOn(t *testing.T) {
	volume := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := persistentVolume("pvc-1")
		pv.Finalizers = []string{"kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"}
		pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase = corev1.PersistentVolumeReclaimDelete, corev1.VolumeBound
		if change != nil {
			change(pv)
		}
		return pv
	}
	for name, c := range map[string]struct {
		object any
		want   bool
	}{
		"a pending claim":          {&corev1.PersistentVolumeClaim{}, true},
		"a bound claim":            {&corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-1"}}, false},
		"a bound volume":           {volume(nil), false},
		"a released volume":        {volume(func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }), true},
		"an available volume":      {volume(func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeAvailable }), true},
		"a volume that is deleted": {volume(func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = &metav1.Time{} }), true},
		"a volume to be retained": {volume(func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}), true},
		"a volume that is not kept": {volume(func(pv *corev1.PersistentVolume) { pv.Finalizers = pv.Finalizers[:1] }), true},
		"a StorageClass":            {&storagev1.StorageClass{}, true},
	} {
		told := 0
		handler := concerning{cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { told++ }, UpdateFunc: func(any, any) { told++ }, DeleteFunc: func(any) { told += 10 },
		}, concernsLibrary}
		handler.OnAdd(c.object, true)
		handler.OnUpdate(c.object, c.object)
		handler.OnDelete(c.object)
		if want := map[bool]int{true: 12, false: 10}[c.want]; told != want {
			t.Errorf("%s: %d, want %d", name, told, want)
		}
	}
}
