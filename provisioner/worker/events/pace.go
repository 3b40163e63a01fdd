package events

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
)

// client-go writes events one after the other and drops them when more than a thousand
// wait: if a thousand claims of a tenant were denied at once, some would show no reason.
// So events are passed on no faster than they are written.
const (
	perSecond = 100 // at most
	atOnce    = 500
	// perSecondInTrouble applies while the API server does not answer. client-go then
	// retries one event every ten seconds.
	perSecondInTrouble = 1
)

// pace adapts to the API server's time for an event.
type pace struct {
	*rate.Limiter

	mu   sync.Mutex
	took time.Duration // the moving average
}

func newPace() *pace { return &pace{Limiter: rate.NewLimiter(perSecond, atOnce)} }

// wrote records how long writing an event took, or that it failed.
func (p *pace) wrote(took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var answer apierrors.APIStatus
	if err != nil && !errors.As(err, &answer) {
		p.SetLimit(perSecondInTrouble)
		return
	}
	p.took = (7*p.took + took) / 8
	// A little slower, so that client-go's backlog shrinks.
	p.SetLimit(min(perSecond, rate.Limit(0.8/max(p.took.Seconds(), 1e-6))))
}

// Sink returns a sink that passes events on to another sink and measures the time.
func (r *Recorder) Sink(to record.EventSink) record.EventSink { return &sink{to, r.pace} }

type sink struct {
	to   record.EventSink
	pace *pace
}

// Create implements record.EventSink.
func (s *sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.measure(func() (*corev1.Event, error) { return s.to.Create(event) })
}

// Update implements record.EventSink.
func (s *sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.measure(func() (*corev1.Event, error) { return s.to.Update(event) })
}

// Patch implements record.EventSink.
func (s *sink) Patch(before *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.measure(func() (*corev1.Event, error) { return s.to.Patch(before, patch) })
}

func (s *sink) measure(write func() (*corev1.Event, error)) (*corev1.Event, error) {
	began := time.Now()
	written, err := write()
	if isTrouble(err) {
		err = errors.New(err.Error())
	}
	s.pace.wrote(time.Since(began), err)
	return written, err
}

// isTrouble reports whether an answer says nothing about the event. client-go drops an
// event after any status in an answer, and repeats it after any other error.
func isTrouble(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}
