package app

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
)

// libraryClient is the library's client. The library accepts no recorder and
// makes its own; libraryClient intercepts its events on their way to the API
// server, corrects them, and queues them with the program's own.
type libraryClient struct {
	kubernetes.Interface
	recorder record.EventRecorder
	volumes  corelisters.PersistentVolumeLister
}

// CoreV1 implements kubernetes.Interface.
func (c *libraryClient) CoreV1() typedcorev1.CoreV1Interface {
	return &libraryCore{c.Interface.CoreV1(), c}
}

type libraryCore struct {
	typedcorev1.CoreV1Interface
	client *libraryClient
}

// Events implements typedcorev1.EventsGetter.
func (c *libraryCore) Events(namespace string) typedcorev1.EventInterface {
	return &libraryEvents{c.CoreV1Interface.Events(namespace), c.client}
}

// libraryEvents is the sink of the library's recorder. A repeated event arrives
// as an update or a patch; the next recorder counts those.
type libraryEvents struct {
	typedcorev1.EventInterface
	client *libraryClient
}

func (e *libraryEvents) CreateWithEventNamespace(event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *libraryEvents) UpdateWithEventNamespace(event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *libraryEvents) PatchWithEventNamespace(event *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *libraryEvents) CreateWithEventNamespaceWithContext(_ context.Context, event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *libraryEvents) UpdateWithEventNamespaceWithContext(_ context.Context, event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *libraryEvents) PatchWithEventNamespaceWithContext(_ context.Context, event *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *libraryEvents) enqueue(event *corev1.Event) (*corev1.Event, error) {
	var about runtime.Object = &event.InvolvedObject
	if event.InvolvedObject.Kind == "PersistentVolume" {
		// The event counts for the namespace of its claim, which the reference does
		// not name.
		if pv, err := e.client.volumes.Get(event.InvolvedObject.Name); err == nil && pv.UID == event.InvolvedObject.UID {
			about = pv
		}
	}
	e.client.recorder.Event(about, event.Type, event.Reason, truthful(event.Message))
	return event, nil
}

// truthful corrects what the library says when it could not save a
// PersistentVolume. It then asks for the volume's deletion, which the hub
// refuses: the object may have been saved all the same.
func truthful(message string) string {
	if before, ok := strings.CutSuffix(message, "Deleting the volume."); ok {
		return before + "The volume is kept, and the next attempt finds it."
	}
	return message
}
