package library

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// noVolumes is a provisioner from which the library requests only deletions.
type noVolumes struct{}

func (noVolumes) Provision(context.Context, controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	return nil, controller.ProvisioningFinished, errors.New("none")
}

func (noVolumes) Delete(context.Context, *corev1.PersistentVolume) error { return nil }

// TestLibraryDoesNotTellOfADeletionThatNeverHappens makes the library's own code fail
// to save a PersistentVolume and report it as it would in a term.
func TestLibraryDoesNotTellOfADeletionThatNeverHappens(t *testing.T) {
	KeepSchemeStill()
	client := fake.NewClientset()
	client.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	told := record.NewFakeRecorder(10)
	wrapped := &Client{Interface: client, Recorder: told, Volumes: informers.NewSharedInformerFactory(client, 0).Core().V1().PersistentVolumes().Lister()}
	broadcaster := record.NewBroadcaster(record.WithContext(t.Context()))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: wrapped.CoreV1().Events("")})
	defer broadcaster.Shutdown()

	store := controller.NewBackoffStore(wrapped, broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{}), &wait.Backoff{Duration: time.Millisecond, Steps: 1},
		controller.NewProvisionController(t.Context(), wrapped, "test", noVolumes{}, controller.LeaderElection(false)))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid"}}
	if err := store.StoreVolume(klog.Background(), claim, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid"}}); err == nil {
		t.Fatal("the library saved what cannot be saved")
	}
	got, want := <-told.Events, "Warning ProvisioningFailed Error creating provisioned PV object for claim team-a/data: no answer. The volume is kept, and the next attempt finds it."
	if got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
	for _, action := range client.Actions() {
		if action.GetResource().Resource == "events" {
			t.Errorf("the library wrote an event by itself: %v", action)
		}
	}
}

// abouts records what events are about.
type abouts struct {
	record.EventRecorder
	about []runtime.Object
	said  []string
}

func (a *abouts) Event(about runtime.Object, eventType, reason, message string) {
	a.about = append(a.about, about)
	a.said = append(a.said, strings.Join([]string{eventType, reason, message}, " "))
}

func TestEventOfAVolumeCarriesTheVolume(t *testing.T) {
	known := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", UID: "1"}}
	volumes := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().PersistentVolumes()
	if err := volumes.Informer().GetIndexer().Add(known); err != nil {
		t.Fatal(err)
	}
	to := &abouts{}
	events := (&Client{Interface: fake.NewClientset(), Recorder: to, Volumes: volumes.Lister()}).CoreV1().Events("")
	for _, uid := range []types.UID{"1", "2"} {
		event := &corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolume", Name: "pvc-1", UID: uid},
			Type:           corev1.EventTypeWarning, Reason: "VolumeFailedDelete", Message: "refused",
		}
		if _, err := events.PatchWithEventNamespaceWithContext(t.Context(), event, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := to.about[1].(*corev1.ObjectReference); to.about[0] != runtime.Object(known) || !ok {
		t.Errorf("recorded about %v", to.about)
	}
	if to.said[0] != "Warning VolumeFailedDelete refused" {
		t.Errorf("said %q", to.said[0])
	}
	success := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim"}, Type: corev1.EventTypeNormal, Reason: "ProvisioningSucceeded"}
	if _, err := events.CreateWithEventNamespaceWithContext(t.Context(), success); err != nil || len(to.said) != 2 {
		t.Errorf("said %q (%v); a claim needs no second event", to.said, err)
	}
}
