// Package events hands events on no faster than they can be written, in turns
// between namespaces, and keeps a bounded number of them meanwhile.
package events

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"
)

// Events are written one after the other, and client-go drops them when more
// than a thousand wait: a tenant whose thousand claims are turned away at once
// would leave some of them without a reason.
const (
	perSecond = 100
	atOnce    = 500
)

// What waits is bounded: some 10 MiB in all, of which no namespace takes more
// than half.
const (
	mostWaiting            = 20_000
	mostWaitingOfNamespace = 10_000
)

// Recorder keeps events until it is their turn: that of their namespace first,
// so that nobody's thousand claims delay another's one, and that of their object
// then. Of events about one object for one reason, the newest is told, unless
// that reason has many matters.
type Recorder struct {
	to          record.EventRecorder
	scheme      *runtime.Scheme
	manyMatters func(kind, reason string) bool
	pace        *rate.Limiter

	waiting prometheus.Gauge
	dropped prometheus.Counter

	mu    sync.Mutex
	queue *queue
	more  chan struct{}
}

var _ record.EventRecorder = (*Recorder)(nil)

// NewRecorder makes a recorder that hands on to another. manyMatters says for
// which kind of object and reason different messages tell of different things,
// so that none replaces another. Run the recorder.
func NewRecorder(to record.EventRecorder, scheme *runtime.Scheme, registry prometheus.Registerer, manyMatters func(kind, reason string) bool) *Recorder {
	r := &Recorder{
		to:          to,
		scheme:      scheme,
		manyMatters: manyMatters,
		pace:        rate.NewLimiter(perSecond, atOnce),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "standalone_cinder_events_waiting",
			Help: "Events that wait to be written.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "standalone_cinder_events_dropped_total",
			Help: "Events that were never written because too many waited, of all namespaces or of theirs.",
		}),
		queue: newQueue(limits{overall: mostWaiting, lane: mostWaitingOfNamespace}),
		more:  make(chan struct{}, 1),
	}
	registry.MustRegister(r.waiting, r.dropped)
	return r
}

// Run hands events on until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.more:
		}
		for r.isWaiting() {
			// An event that waits for the pace may still be replaced.
			if r.pace.Wait(ctx) != nil {
				return
			}
			e := r.next()
			r.to.AnnotatedEventf(e.object.reference(), e.annotations, e.eventType, e.reason, "%s", e.message)
		}
	}
}

func (r *Recorder) isWaiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.waiting > 0
}

// next is called by Run alone, which knows that there is one.
func (r *Recorder) next() event {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, _ := r.queue.next()
	r.waiting.Set(float64(r.queue.waiting))
	return e
}

func (r *Recorder) add(about runtime.Object, annotations map[string]string, eventType, reason, message string) {
	referred, err := reference.GetReference(r.scheme, about)
	if err != nil {
		// The next recorder says what is wrong with it.
		r.to.AnnotatedEventf(about, annotations, eventType, reason, "%s", message)
		return
	}
	e := event{object: objectOf(referred, about), annotations: annotations, eventType: eventType, reason: reason, message: message, matter: reason}
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

// objectOf keeps what an event says of its object. A PersistentVolume goes by
// the namespace of its claim; other objects without a namespace share a lane.
func objectOf(referred *corev1.ObjectReference, about runtime.Object) object {
	o := object{
		apiVersion: referred.APIVersion, kind: referred.Kind, namespace: referred.Namespace, name: referred.Name, uid: string(referred.UID),
		resourceVersion: referred.ResourceVersion, fieldPath: referred.FieldPath,
		lane: referred.Namespace,
	}
	if pv, ok := about.(*corev1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
		o.lane = pv.Spec.ClaimRef.Namespace
	}
	return o
}

func (o object) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: o.apiVersion, Kind: o.kind, Namespace: o.namespace, Name: o.name, UID: types.UID(o.uid),
		ResourceVersion: o.resourceVersion, FieldPath: o.fieldPath,
	}
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
