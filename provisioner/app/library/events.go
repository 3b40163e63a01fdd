// Package library adapts the provisioning library to the program: its events, its
// metrics, and its use of client-go's global scheme.
package library

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

// Client is the client that the library uses. The library accepts no recorder and makes
// its own, so Client intercepts its events on their way to the API server, corrects
// them, and queues them with the program's own.
type Client struct {
	kubernetes.Interface
	Recorder record.EventRecorder
	Volumes  corelisters.PersistentVolumeLister
	// Provisioner is written on every PersistentVolume as its provisioner.
	Provisioner string
}

// CoreV1 implements kubernetes.Interface.
func (c *Client) CoreV1() typedcorev1.CoreV1Interface {
	return &core{c.Interface.CoreV1(), c}
}

type core struct {
	typedcorev1.CoreV1Interface
	client *Client
}

// Events implements typedcorev1.EventsGetter.
func (c *core) Events(namespace string) typedcorev1.EventInterface {
	return &sink{c.CoreV1Interface.Events(namespace), c.client}
}

// sink is the sink of the library's recorder. A repeated event arrives as an update or
// a patch; the program's recorder counts repetitions itself.
type sink struct {
	typedcorev1.EventInterface
	client *Client
}

func (e *sink) CreateWithEventNamespace(event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *sink) UpdateWithEventNamespace(event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *sink) PatchWithEventNamespace(event *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *sink) CreateWithEventNamespaceWithContext(_ context.Context, event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *sink) UpdateWithEventNamespaceWithContext(_ context.Context, event *corev1.Event) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *sink) PatchWithEventNamespaceWithContext(_ context.Context, event *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e.enqueue(event)
}

func (e *sink) enqueue(event *corev1.Event) (*corev1.Event, error) {
	if event.Type == corev1.EventTypeNormal {
		// These events say that provisioning begins or has succeeded. The program's own
		// event, BackendChosen, and the claim itself say more.
		return event, nil
	}
	var about runtime.Object = &event.InvolvedObject
	if event.InvolvedObject.Kind == "PersistentVolume" {
		// The event counts against the namespace of the volume's claim, which the
		// reference does not name.
		if pv, err := e.client.Volumes.Get(event.InvolvedObject.Name); err == nil && pv.UID == event.InvolvedObject.UID {
			about = pv
		}
	}
	e.client.Recorder.Event(about, event.Type, event.Reason, truthful(event.Message))
	return event, nil
}

// truthful corrects what the library says when it could not save a PersistentVolume.
// The library then asks for the volume's deletion, but the hub refuses, because the
// object may have been saved nevertheless.
func truthful(message string) string {
	if before, ok := strings.CutSuffix(message, "Deleting the volume."); ok {
		return before + "The volume is kept, and the next attempt finds it."
	}
	return message
}
