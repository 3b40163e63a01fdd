package app

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// Events are written one after the other, and client-go drops them when more
// than a thousand wait: a tenant whose thousand claims are turned away at once
// would leave some of them without a reason.
const (
	eventsPerSecond = 100
	eventsAtOnce    = 500
)

// steadyRecorder hands events on no faster than they can be written, and keeps
// all that wait.
type steadyRecorder struct {
	to   record.EventRecorder
	pace *rate.Limiter

	mu      sync.Mutex
	waiting []event
	more    chan struct{}
}

type event struct {
	object                     runtime.Object
	annotations                map[string]string
	eventType, reason, message string
}

var _ record.EventRecorder = (*steadyRecorder)(nil)

func newSteadyRecorder(to record.EventRecorder) *steadyRecorder {
	return &steadyRecorder{to: to, pace: rate.NewLimiter(eventsPerSecond, eventsAtOnce), more: make(chan struct{}, 1)}
}

// run hands events on until the context ends.
func (r *steadyRecorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.more:
		}
		for e, ok := r.next(); ok; e, ok = r.next() {
			if r.pace.Wait(ctx) != nil {
				return
			}
			r.to.AnnotatedEventf(e.object, e.annotations, e.eventType, e.reason, "%s", e.message)
		}
	}
}

func (r *steadyRecorder) next() (event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.waiting = nil
		return event{}, false
	}
	e := r.waiting[0]
	r.waiting = r.waiting[1:]
	return e, true
}

func (r *steadyRecorder) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, e)
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// Event implements record.EventRecorder.
func (r *steadyRecorder) Event(object runtime.Object, eventType, reason, message string) {
	r.add(event{object: object, eventType: eventType, reason: reason, message: message})
}

// Eventf implements record.EventRecorder.
func (r *steadyRecorder) Eventf(object runtime.Object, eventType, reason, format string, arguments ...any) {
	r.Event(object, eventType, reason, fmt.Sprintf(format, arguments...))
}

// AnnotatedEventf implements record.EventRecorder.
func (r *steadyRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, arguments ...any) {
	r.add(event{object: object, annotations: annotations, eventType: eventType, reason: reason, message: fmt.Sprintf(format, arguments...)})
}

// tell writes an event about the program itself. It is about the Lease, the one
// object that all replicas share, and written by the leader alone, so that
// three replicas do not say everything three times.
func (a *App) tell(eventType, reason, message string) {
	if a.present.Load() == nil {
		return
	}
	lease := &corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1",
		Kind:       "Lease",
		Namespace:  a.namespace,
		Name:       leaseName(a.options.ProvisionerName),
	}
	a.recorder.Event(lease, eventType, reason, message)
}
