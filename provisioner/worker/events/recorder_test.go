package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// written is a recorder that records what it receives.
type written struct {
	mu    sync.Mutex
	lines []string
}

// said returns the events written so far.
func (w *written) said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

func (w *written) Event(about runtime.Object, eventType, reason, message string) {
	w.AnnotatedEventf(about, nil, eventType, reason, "%s", message)
}

func (w *written) Eventf(about runtime.Object, eventType, reason, format string, arguments ...any) {
	w.AnnotatedEventf(about, nil, eventType, reason, format, arguments...)
}

func (w *written) AnnotatedEventf(about runtime.Object, _ map[string]string, _, reason, format string, arguments ...any) {
	o := about.(*corev1.ObjectReference)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%s %s/%s %s %s", o.Kind, o.Namespace, o.Name, reason, fmt.Sprintf(format, arguments...)))
}

func severalMatters(kind, reason string) bool {
	return kind == "Lease" || reason == "ConnectionWarning"
}

func claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func TestEventsAreHandedOnAtAPaceInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		to := &written{}
		r := NewRecorder(to, scheme.Scheme, prometheus.NewRegistry(), severalMatters)
		for i := range 5000 {
			r.Event(claim("flood", fmt.Sprint(i)), corev1.EventTypeWarning, "QuotaExceeded", "full")
		}
		go r.Run(ctx)
		synctest.Wait()
		if len(to.said()) != atOnce {
			t.Errorf("%d are written at once, want %d", len(to.said()), atOnce)
		}
		r.Eventf(claim("quiet", "one"), corev1.EventTypeWarning, "NoMatchingTenant", "%d tenants", 0)
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "other"}}}
		r.AnnotatedEventf(pv, nil, corev1.EventTypeWarning, "MissingVolume", "gone")
		r.Event(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-2"}}, corev1.EventTypeWarning, "MissingVolume", "gone")
		time.Sleep(time.Second * 5 / perSecond)
		synctest.Wait()
		for _, want := range []string{
			"PersistentVolumeClaim quiet/one NoMatchingTenant 0 tenants", "PersistentVolume /pvc-1 MissingVolume gone", "PersistentVolume /pvc-2 MissingVolume gone",
		} {
			if !slices.Contains(to.said()[atOnce:], want) {
				t.Errorf("%q is not among the next: %v", want, to.said()[atOnce:])
			}
		}
		if waiting := testutil.ToFloat64(r.waiting); waiting != float64(5003-len(to.said())) {
			t.Errorf("the metric says that %v wait, of 5003 %d are written", waiting, len(to.said()))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(to.said()) != 5003 || testutil.ToFloat64(r.waiting) != 0 || testutil.ToFloat64(r.dropped) != 0 {
			t.Errorf("%d are written, %v wait, %v are dropped", len(to.said()), testutil.ToFloat64(r.waiting), testutil.ToFloat64(r.dropped))
		}
	})
}

func TestEventsThatWaitAreBounded(t *testing.T) {
	r := NewRecorder(&written{}, scheme.Scheme, prometheus.NewRegistry(), severalMatters)
	for namespace := range 4 {
		for i := range maxWaitingOfNamespace + 1 {
			r.Event(claim(fmt.Sprint("flood-", namespace), fmt.Sprint(i)), corev1.EventTypeWarning, "QuotaExceeded", "full")
		}
	}
	if waiting, dropped := testutil.ToFloat64(r.waiting), testutil.ToFloat64(r.dropped); waiting != maxWaiting || dropped != 4*(maxWaitingOfNamespace+1)-maxWaiting {
		t.Errorf("%v wait, %v are dropped", waiting, dropped)
	}
}

func TestNewestOfOneMatterIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		to := &written{}
		r := NewRecorder(to, scheme.Scheme, prometheus.NewRegistry(), severalMatters)
		lease := &corev1.ObjectReference{Kind: "Lease", Namespace: "own", Name: "lease"}
		for _, e := range []struct {
			about           runtime.Object
			reason, message string
		}{
			{lease, "OrphanVolume", "volume 1"}, {lease, "OrphanVolume", "volume 2"}, {lease, "OrphanVolume", "volume 1"},
			{claim("a", "1"), "QuotaExceeded", "1 of 1"}, {claim("a", "1"), "QuotaExceeded", "2 of 2"},
			{claim("a", "1"), "ConnectionWarning", "read-only"}, {claim("a", "1"), "ConnectionWarning", "no initiator"},
		} {
			r.Event(e.about, corev1.EventTypeWarning, e.reason, e.message)
		}
		go r.Run(ctx)
		synctest.Wait()
		told := to.said()
		slices.Sort(told)
		if want := []string{
			"Lease own/lease OrphanVolume volume 1", "Lease own/lease OrphanVolume volume 2",
			"PersistentVolumeClaim a/1 ConnectionWarning no initiator", "PersistentVolumeClaim a/1 ConnectionWarning read-only",
			"PersistentVolumeClaim a/1 QuotaExceeded 2 of 2",
		}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// slowSink is a sink that takes its time.
type slowSink struct {
	record.EventSink
	takes   time.Duration
	written int
}

func (s *slowSink) Create(event *corev1.Event) (*corev1.Event, error) {
	time.Sleep(s.takes)
	s.written++
	return event, nil
}

// TestNoEventIsLostWhenWritingIsSlow passes events on faster than the API server takes
// them, to client-go's broadcaster, which drops what it cannot keep.
func TestNoEventIsLostWhenWritingIsSlow(t *testing.T) {
	for _, takes := range []time.Duration{time.Millisecond, 50 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				broadcaster := record.NewBroadcaster(record.WithContext(ctx))
				r := NewRecorder(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"}), scheme.Scheme, prometheus.NewRegistry(), severalMatters)
				to := &slowSink{takes: takes}
				broadcaster.StartRecordingToSink(r.Sink(to))
				go r.Run(ctx)
				const events = 4000
				for i := range events {
					r.Event(claim("flood", fmt.Sprint(i)), corev1.EventTypeWarning, "QuotaExceeded", "full")
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if to.written != events {
					t.Errorf("%d of %d events were written", to.written, events)
				}
				broadcaster.Shutdown()
				cancel()
			})
		})
	}
}

// TestEventIsRepeatedUnlessItIsRefused has an API server that answers once with an error.
func TestEventIsRepeatedUnlessItIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		answer error
		tries  int
	}{
		"etcd does not answer":   {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), 2},
		"too many requests":      {apierrors.NewTooManyRequestsError("later"), 2},
		"no answer":              {errors.New("connection reset by peer"), 2},
		"the event is forbidden": {apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("the namespace is being deleted")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broadcaster := record.NewBroadcaster(record.WithContext(t.Context()))
				r := NewRecorder(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"}), scheme.Scheme, prometheus.NewRegistry(), severalMatters)
				to := &failingSink{answers: []error{test.answer}}
				broadcaster.StartRecordingToSink(r.Sink(to))
				go r.Run(t.Context())
				r.Event(claim("a", "data"), corev1.EventTypeWarning, "QuotaExceeded", "full")
				time.Sleep(time.Minute)
				synctest.Wait()
				if to.tries != test.tries {
					t.Errorf("the event was written %d times, not %d times", to.tries, test.tries)
				}
				broadcaster.Shutdown()
			})
		})
	}
}

// failingSink fails as long as there are answers.
type failingSink struct {
	record.EventSink
	answers []error
	tries   int
}

func (s *failingSink) Create(event *corev1.Event) (*corev1.Event, error) {
	s.tries++
	if s.tries <= len(s.answers) {
		return nil, s.answers[s.tries-1]
	}
	return event, nil
}
