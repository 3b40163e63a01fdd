package cinder

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

func TestRequestsOfATracedCallerAreTraced(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int // 0: no answer
		want   string
		code   codes.Code
	}{
		{"accepted", 202, "202 req-1", codes.Unset},
		{"refused", 413, "413 req-1", codes.Error},
		{"silent", 0, "", codes.Error},
	} {
		t.Run(c.name, func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			ctx, caller := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "provision")
			wire := traced{testTransport(t, func(*http.Request) (*http.Response, error) {
				if c.status == 0 {
					return nil, errors.New("password=secret")
				}
				return &http.Response{StatusCode: c.status, Header: http.Header{"X-Openstack-Request-Id": {"req-1"}}, Body: http.NoBody}, nil
			}, turns.Limits{})}
			r := httpRequest(withOperation(ctx, "volume.create"))
			r.Header.Set("X-Auth-Token", "secret")
			if response, err := wire.RoundTrip(r); err == nil {
				_ = response.Body.Close()
			}
			ended := spans.Ended()
			if len(ended) != 1 {
				t.Fatalf("%d spans", len(ended))
			}
			span := ended[0]
			if span.Name() != "volume.create" || span.SpanKind() != trace.SpanKindClient || span.Parent().SpanID() != caller.SpanContext().SpanID() || span.Status().Code != c.code {
				t.Errorf("the span is %s, %v, %v, parent %v", span.Name(), span.SpanKind(), span.Status(), span.Parent())
			}
			if events := span.Events(); len(events) != 1 || events[0].Name != admittedEvent {
				t.Errorf("its events are %v", events)
			}
			var seen []string
			set := attribute.NewSet(span.Attributes()...)
			for _, key := range []attribute.Key{"http.response.status_code", "openstack.request_id"} {
				if value, has := set.Value(key); has {
					seen = append(seen, value.String())
				}
			}
			if got := strings.Join(seen, " "); got != c.want {
				t.Errorf("it has %q, want %q", got, c.want)
			}
			if all := set.Encoded(attribute.DefaultEncoder()) + span.Status().Description; strings.Contains(all, "secret") {
				t.Errorf("it has a secret: %s", all)
			}
		})
	}
}

func TestRequestsOfOthersAreNotTraced(t *testing.T) {
	wire := traced{testTransport(t, func(r *http.Request) (*http.Response, error) {
		if trace.SpanFromContext(r.Context()).SpanContext().IsValid() {
			t.Error("it has a span")
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	}, turns.Limits{})}
	response, err := wire.RoundTrip(httpRequest(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}
