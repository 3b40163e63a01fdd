// Package events passes events on no faster than they can be written, lets namespaces
// take turns, and keeps a bounded number of events meanwhile.
package events

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

// The queue is bounded to some 16 MiB, since no message exceeds a kilobyte. One namespace
// may use at most half of it.
const (
	maxWaiting            = 10_000
	maxWaitingOfNamespace = maxWaiting / 2
)

// Recorder keeps events until their turn: first their namespace's, so that one tenant's
// thousand claims do not delay another's single claim, then their object's. Of several
// events about one object with the same reason, it writes only the newest, unless that
// reason has many matters.
type Recorder struct {
	to          record.EventRecorder
	scheme      *runtime.Scheme
	manyMatters func(kind, reason string) bool
	pace        *pace

	waiting prometheus.Gauge
	dropped prometheus.Counter

	mu    sync.Mutex
	queue *queue
	more  chan struct{}
}

var _ record.EventRecorder = (*Recorder)(nil)

// NewRecorder returns a recorder that passes events on to another one. manyMatters
// reports for which kinds of objects and reasons different messages are about different
// things, so that none replaces another. Call Run on the recorder, and write events
// through its Sink.
func NewRecorder(to record.EventRecorder, scheme *runtime.Scheme, registry prometheus.Registerer, manyMatters func(kind, reason string) bool) *Recorder {
	r := &Recorder{
		to:          to,
		scheme:      scheme,
		manyMatters: manyMatters,
		pace:        newPace(),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "standalone_cinder_events_waiting",
			Help: "Events waiting to be written.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "standalone_cinder_events_dropped_total",
			Help: "Events never written because too many were waiting, in all namespaces or in theirs.",
		}),
		queue: newQueue(limits{overall: maxWaiting, lane: maxWaitingOfNamespace}),
		more:  make(chan struct{}, 1),
	}
	registry.MustRegister(r.waiting, r.dropped)
	return r
}

// Run passes events on until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.more:
		}
		for r.isWaiting() {
			// While an event waits for the rate limit, it may still be replaced.
			if r.pace.Wait(ctx) != nil {
				return
			}
			e := r.next()
			r.to.AnnotatedEventf(&e.about, e.annotations, e.eventType, e.reason, "%s", e.message)
		}
	}
}

func (r *Recorder) isWaiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.waiting > 0
}

// next must be called only by Run, and only while an event waits.
func (r *Recorder) next() event {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, _ := r.queue.next()
	r.waiting.Set(float64(r.queue.waiting))
	return e
}

func (r *Recorder) add(about runtime.Object, annotations map[string]string, eventType, reason, message string) {
	message = bound.Message(message)
	referred, err := reference.GetReference(r.scheme, about)
	if err != nil {
		// The next recorder reports any problem with the object.
		r.to.AnnotatedEventf(about, annotations, eventType, reason, "%s", message)
		return
	}
	e := event{about: *referred, lane: laneOf(about, referred), annotations: annotations, eventType: eventType, reason: reason, message: message, matter: reason}
	if r.manyMatters(referred.Kind, reason) {
		e.matter = reason + ": " + message
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped.Add(float64(r.queue.add(e)))
	r.waiting.Set(float64(r.queue.waiting))
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// laneOf returns the lane of an object's events. A PersistentVolume counts against the
// namespace of its claim. Other objects without a namespace share a lane.
func laneOf(about runtime.Object, referred *corev1.ObjectReference) string {
	if pv, ok := about.(*corev1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
		return pv.Spec.ClaimRef.Namespace
	}
	return referred.Namespace
}

// Event implements record.EventRecorder.
func (r *Recorder) Event(about runtime.Object, eventType, reason, message string) {
	r.add(about, nil, eventType, reason, message)
}

// Eventf implements record.EventRecorder.
func (r *Recorder) Eventf(about runtime.Object, eventType, reason, format string, arguments ...any) {
	r.add(about, nil, eventType, reason, fmt.Sprintf(format, arguments...))
}

// AnnotatedEventf implements record.EventRecorder.
func (r *Recorder) AnnotatedEventf(about runtime.Object, annotations map[string]string, eventType, reason, format string, arguments ...any) {
	r.add(about, annotations, eventType, reason, fmt.Sprintf(format, arguments...))
}
