// Package tracing traces claims. Everything that any replica does for a claim belongs to
// one trace, whose ID is the claim's UID without dashes, so attempts need not remember
// one another.
package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope names this program's spans.
const scope = "standalone-cinder"

// Keys of attributes. Those about Kubernetes objects are OpenTelemetry's.
const (
	Namespace        = attribute.Key("k8s.namespace.name")
	Claim            = attribute.Key("k8s.persistentvolumeclaim.name")
	PersistentVolume = attribute.Key("k8s.persistentvolume.name")
	Tenant           = attribute.Key("standalone_cinder.tenant")
	Backend          = attribute.Key("standalone_cinder.backend")
	Volume           = attribute.Key("standalone_cinder.volume")
	Outcome          = attribute.Key("standalone_cinder.outcome")
)

// Tracer starts the spans of claims. The zero value starts none.
type Tracer struct{ tracer trace.Tracer }

// New returns a tracer. The provider must use IDs as its ID generator.
func New(provider trace.TracerProvider) Tracer {
	if provider == nil {
		return Tracer{}
	}
	return Tracer{provider.Tracer(scope)}
}

// Start begins a span of a claim's trace. Spans started with the returned context are its
// children. The caller must end it.
func (t Tracer) Start(ctx context.Context, claimUID, name string, attributes ...attribute.KeyValue) (context.Context, Span) {
	if t.tracer == nil {
		return ctx, Span{trace.SpanFromContext(ctx)}
	}
	ctx, span := t.tracer.Start(context.WithValue(ctx, claimKey{}, claimUID), name, trace.WithNewRoot(), trace.WithAttributes(attributes...))
	return ctx, Span{span}
}

// Span is one piece of work.
type Span struct{ span trace.Span }

// Note adds attributes that become known later.
func (s Span) Note(attributes ...attribute.KeyValue) { s.span.SetAttributes(attributes...) }

// End ends a span. The error is nil if the work succeeded.
func (s Span) End(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

type claimKey struct{}

// IDs generates span IDs. It implements sdk/trace.IDGenerator of OpenTelemetry.
type IDs struct{}

// NewIDs returns the ID of the claim's trace, or a random one for work that concerns no
// claim.
func (IDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	uid, _ := ctx.Value(claimKey{}).(string)
	id, known := TraceID(uid)
	if !known {
		fill(id[:])
	}
	return id, spanID()
}

// NewSpanID returns a random ID.
func (IDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return spanID() }

func spanID() (id trace.SpanID) {
	fill(id[:])
	return id
}

// fill writes random bytes that are not all zero, which would be invalid.
func fill(id []byte) {
	for i := range id {
		id[i] = byte(1 + rand.IntN(255))
	}
}

// TraceID returns the ID of a claim's trace. It is unknown if the UID is not a UUID.
func TraceID(claimUID string) (id trace.TraceID, known bool) {
	digits := strings.ReplaceAll(claimUID, "-", "")
	if len(digits) != hex.EncodedLen(len(id)) {
		return trace.TraceID{}, false
	}
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil || !id.IsValid() {
		return trace.TraceID{}, false
	}
	return id, true
}
