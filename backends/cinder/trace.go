package cinder

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// StartSpan begins a span of the caller's trace, if it has one. The caller must
// end it.
func StartSpan(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("standalone-cinder").Start(ctx, name, options...)
}

// traced makes a span of each request whose caller is traced. Requests that serve
// several callers, such as the listing that all waits share, belong to none.
type traced struct{ next http.RoundTripper }

// admittedEvent marks the end of a request's wait for its turn.
const admittedEvent = "admitted"

func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	if !trace.SpanFromContext(r.Context()).IsRecording() {
		return t.next.RoundTrip(r)
	}
	ctx, span := StartSpan(r.Context(), operationOf(r), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("http.request.method", r.Method),
			attribute.String("server.address", r.URL.Hostname())))
	defer span.End()
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		span.SetStatus(codes.Error, "no answer")
		return nil, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", response.StatusCode))
	if id := requestID(response.Header); id != "" {
		span.SetAttributes(attribute.String("openstack.request_id", id))
	}
	if response.StatusCode >= http.StatusBadRequest {
		span.SetStatus(codes.Error, codeLabel(response.StatusCode))
	}
	return response, nil
}
