package objects

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestOnlyAnObjectThatIsGoneNeedsNoDeletion(t *testing.T) {
	resource := corev1.Resource("persistentvolumes")
	gone, replaced := apierrors.NewNotFound(resource, "pv"), apierrors.NewConflict(resource, "pv", errors.New("another UID"))
	for name, c := range map[string]struct {
		verb   string
		answer error
		want   string
	}{
		"gone before the finalizer is removed": {"patch", gone, ""},
		"replaced before the finalizer is removed": {"patch", replaced,
			"cannot remove the finalizer of PersistentVolume pv, whose volume is gone: " + replaced.Error()},
		"gone before the deletion": {"delete", gone, ""},
		"replaced before the deletion": {"delete", replaced,
			"cannot delete PersistentVolume pv, whose volume is gone: " + replaced.Error()},
		"no answer about the finalizer": {"patch", errors.New("no answer"),
			"cannot remove the finalizer of PersistentVolume pv, whose volume is gone: no answer"},
		"no answer about the deletion": {"delete", errors.New("no answer"),
			"cannot delete PersistentVolume pv, whose volume is gone: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv-uid"}}
			client := fake.NewClientset(pv)
			client.PrependReactor(c.verb, "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.answer })
			err := Delete(t.Context(), client, pv)
			if got := errorText(err); got != c.want {
				t.Errorf("error %q, want %q", got, c.want)
			}
			if last := client.Actions()[len(client.Actions())-1]; last.GetVerb() != c.verb {
				t.Errorf("%s followed", last.GetVerb())
			}
		})
	}
}

// TestFinalizerThatTheCacheDoesNotShowIsRemoved: otherwise the object would stay until
// the next leader, because it counts as deleted.
func TestFinalizerThatTheCacheDoesNotShowIsRemoved(t *testing.T) {
	for name, finalizers := range map[string][]string{"it has one": {"kubernetes.io/pv-protection", LibraryFinalizer}, "it has others": {"kubernetes.io/pv-protection"}, "it has none": nil} {
		t.Run(name, func(t *testing.T) {
			cached := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv-uid"}}
			live := cached.DeepCopy()
			live.Finalizers = finalizers
			client := fake.NewClientset(live)
			var left []string
			client.PrependReactor("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				object, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "pv")
				if err != nil {
					return true, nil, err
				}
				left = object.(*corev1.PersistentVolume).Finalizers
				return false, nil, nil
			})
			if err := Delete(t.Context(), client, cached); err != nil {
				t.Fatal(err)
			}
			if slices.Contains(left, LibraryFinalizer) || len(left) != min(len(finalizers), 1) {
				t.Errorf("deleted with the finalizers %q", left)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
