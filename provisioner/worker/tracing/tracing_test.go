package tracing

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

const claimUID = "20dc7790-f805-4eba-936d-e36ee1f41f50"

func recorder() (Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans), sdk.WithIDGenerator(IDs{}))), spans
}

func TestEverythingAboutAClaimIsOneTrace(t *testing.T) {
	const want = "20dc7790f8054eba936de36ee1f41f50"
	// The two replicas share nothing but the claim.
	for replica := range 2 {
		tracer, spans := recorder()
		ctx, outer := tracer.Start(t.Context(), claimUID, "provision", Backend.String("gold"))
		_, inner := tracer.Start(ctx, claimUID, "undo")
		inner.End(nil)
		outer.End(nil)
		for _, span := range spans.Ended() {
			if got := span.SpanContext().TraceID().String(); got != want || span.Parent().IsValid() {
				t.Errorf("replica %d: span %s has trace %s and parent %v", replica, span.Name(), got, span.Parent())
			}
		}
	}
}

func TestUIDsThatAreNoTraceIDs(t *testing.T) {
	for _, uid := range []string{"", "uid-1", claimUID + "0", "20dc7790-f805-4eba-936d-e36ee1f41f5g", "00000000-0000-0000-0000-000000000000"} {
		if id, known := TraceID(uid); known || id.IsValid() {
			t.Errorf("%q has the trace %s", uid, id)
		}
		tracer, spans := recorder()
		_, span := tracer.Start(t.Context(), uid, "provision")
		span.End(nil)
		if got := spans.Ended()[0].SpanContext(); !got.IsValid() {
			t.Errorf("%q has an invalid span %v", uid, got)
		}
	}
}

func TestFailedWorkIsMarked(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.Unset},
		{errors.New("no room"), codes.Error},
		{fmt.Errorf("handing over: %w", context.Canceled), codes.Unset},
	} {
		tracer, spans := recorder()
		_, span := tracer.Start(t.Context(), claimUID, "provision")
		span.End(c.err)
		if got := spans.Ended()[0].Status().Code; got != c.want {
			t.Errorf("%v ends a span with %v", c.err, got)
		}
	}
}

func TestWithoutAProviderNothingIsTraced(t *testing.T) {
	ctx, span := New(nil).Start(t.Context(), claimUID, "provision")
	span.Note(Backend.String("gold"))
	span.End(errors.New("no room"))
	if ctx != t.Context() {
		t.Error("the context has changed")
	}
}
