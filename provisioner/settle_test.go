package provisioner

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// TestAttemptThatEndsSaysWhy: the library logs the reason why it ignores an
// attempt's error, and the reason must be the true one.
func TestAttemptThatEndsSaysWhy(t *testing.T) {
	for want, happens := range map[error]func(f *fixture, claim *corev1.PersistentVolumeClaim){
		errClaimGone: func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.noteEarlier(claim)
			f.goneAtTheServer(claim)
		},
		errBoundToOther: func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.noteEarlier(claim)
			bound := claim.DeepCopy()
			bound.Spec.VolumeName = "another"
			f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, bound.Namespace))
		},
		errDenied: func(f *fixture, _ *corev1.PersistentVolumeClaim) { f.class.Name = "unknown" },
		errSaved: func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			pv, err := f.provision(claim)
			f.must(err)
			f.must(f.client.Tracker().Add(pv))
		},
		errNoTurn: func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			f.occupy()
		},
	} {
		t.Run(want.Error(), func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(nil)
			happens(f, claim)
			_, err := f.provision(claim)
			var ignored *controller.IgnoredError
			if !errors.As(err, &ignored) || ignored.Reason != want.Error() {
				t.Errorf("error %v, want it ignored because: %s", err, want)
			}
		})
	}
}

// TestWorkIsTraced: only failed work is marked as an error.
func TestWorkIsTraced(t *testing.T) {
	f := newFixture(t)
	spans := tracetest.NewSpanRecorder()
	f.newTerm(func(o *Options) {
		o.Tracer = tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithIDGenerator(tracing.IDs{})))
	})
	claim := f.claim(nil)
	f.backends["gold"].err = errors.New("no room")
	if _, err := f.provision(claim); err == nil {
		t.Fatal("it did not fail")
	}
	f.backends["gold"].err = nil
	pv, err := f.provision(claim)
	f.must(err)
	pv.UID = "pv-uid"
	f.must(f.delete(pv))
	f.class.Name = "unknown"
	if _, err := f.provision(f.named("other")); err == nil {
		t.Fatal("a claim that no rule names was served")
	}
	var got []string
	for _, span := range spans.Ended() {
		set := attribute.NewSet(span.Attributes()...)
		outcome, _ := set.Value(tracing.Outcome)
		got = append(got, strings.TrimSpace(span.Name()+" "+span.Status().Code.String()+" "+outcome.AsString()))
	}
	if want := []string{"provision Error", "provision Unset", "delete Unset", "provision Unset " + errDenied.Error()}; !slices.Equal(got, want) {
		t.Errorf("the spans are %q, want %q", got, want)
	}
}
