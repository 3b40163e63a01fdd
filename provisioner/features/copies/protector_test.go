package copies

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// TestSourceOfANewCloneStaysProtected: the first clone of claim data is bound, and the
// Protector is about to end the protection when a second clone begins. That clone would
// find the finalizer, and so not write it.
func TestSourceOfANewCloneStaysProtected(t *testing.T) {
	class := "one"
	source := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-data", ResourceVersion: "1", Finalizers: []string{objects.CopyFinalizer}},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: "pvc-uid-data"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	clone := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name)},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: volume,
				DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}},
		}
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-data", Annotations: map[string]string{
			objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a",
			objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "uid-data", objects.AnnotationConnector: "{}",
		}},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-data"}},
	}
	client := fake.NewClientset(source, pv)
	factory := informers.NewSharedInformerFactory(client, 0)
	store := factory.Core().V1().PersistentVolumeClaims().Informer().GetStore()
	_ = store.Add(source)
	_ = store.Add(clone("first", "pvc-first"))
	storageClass := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
	_ = factory.Storage().V1().StorageClasses().Informer().GetStore().Add(storageClass)
	resolver := NewResolver(Options{Client: client, Claims: factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: factory.Core().V1().PersistentVolumes().Lister(), Name: "test", Cluster: "cluster-1"})
	protector := NewProtector(ProtectorOptions{Resolver: resolver, Client: client, Claims: factory.Core().V1().PersistentVolumeClaims().Lister(),
		Classes: factory.Storage().V1().StorageClasses().Lister(),
		Board:   parking.NewBoard(), Logger: slog.New(slog.DiscardHandler), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Minute)})

	second, begun := clone("second", ""), make(chan error)
	copied := false
	protector.Claims = lister{protector.Claims, func() {
		if copied { // only after the Protector's first look at the cache, before its read
			return
		}
		copied = true
		_ = store.Add(second)
		go func() {
			_, denial, err := resolver.Live(t.Context(), second, storageClass)
			if denial != nil {
				err = errors.New(denial.Message)
			}
			begun <- err
			close(begun)
		}()
		select {
		case err := <-begun:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(50 * time.Millisecond): // it waits for the Protector
		}
	}}
	key := types.NamespacedName{Namespace: "team-a", Name: "data"}
	if err := protector.release(t.Context(), key); err != nil {
		t.Error(err)
	}
	if err := <-begun; err != nil {
		t.Error(err)
	}
	// The event of the second clone makes the Protector look again.
	if err := protector.release(t.Context(), key); err != nil {
		t.Error(err)
	}
	live, err := client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(live.Finalizers, objects.CopyFinalizer) {
		t.Error("claim data is copied for the pending claim second, and nothing keeps it from being deleted: its finalizer was removed")
	}
}

// lister calls a function after each list.
type lister struct {
	corelisters.PersistentVolumeClaimLister
	after func()
}

func (l lister) PersistentVolumeClaims(namespace string) corelisters.PersistentVolumeClaimNamespaceLister {
	return namespaced{l.PersistentVolumeClaimLister.PersistentVolumeClaims(namespace), l.after}
}

type namespaced struct {
	corelisters.PersistentVolumeClaimNamespaceLister
	after func()
}

func (n namespaced) List(s labels.Selector) ([]*corev1.PersistentVolumeClaim, error) {
	all, err := n.PersistentVolumeClaimNamespaceLister.List(s)
	n.after()
	return all, err
}
