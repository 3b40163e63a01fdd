// Package traces sends the spans of claims to a collector. It is a package of its own so
// that commands, which send none, do without its libraries.
package traces

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Sender sends spans to a collector.
type Sender struct {
	// Provider is nil if nothing is sent.
	Provider trace.TracerProvider
	shutdown func(context.Context) error
}

// Options configure a Sender.
type Options struct {
	// Endpoint is the URL of an OTLP collector over HTTP; empty turns traces off. The
	// environment variables OTEL_EXPORTER_OTLP_* set everything else, such as headers
	// and certificates.
	Endpoint string
	// Version is the version of the program.
	Version string
	IDs     sdk.IDGenerator
	Logger  *slog.Logger
}

// timeout bounds the last transfer when the program ends.
const timeout = 3 * time.Second

// New starts sending spans in batches. If the collector does not answer, spans
// are lost, but nothing is delayed. It sets the process's handler for OpenTelemetry
// errors.
func New(ctx context.Context, options Options) (*Sender, error) {
	if options.Endpoint == "" {
		return &Sender{}, nil
	}
	endpoint, err := url.Parse(options.Endpoint)
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Host == "" || endpoint.User != nil {
		return nil, errors.New("--trace-endpoint must be the URL of an OTLP collector over HTTP, without credentials, for example http://collector.monitoring:4318")
	}
	if endpoint.Path == "" || endpoint.Path == "/" {
		endpoint.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint.String()))
	if err != nil {
		return nil, fmt.Errorf("--trace-endpoint: %w", err)
	}
	replica, _ := os.Hostname()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		options.Logger.Debug("Traces were not sent", "error", err)
	}))
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter),
		sdk.WithIDGenerator(options.IDs),
		sdk.WithSampler(sdk.AlwaysSample()),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "standalone-cinder"),
			attribute.String("service.version", options.Version),
			attribute.String("service.instance.id", replica))),
	)
	return &Sender{Provider: provider, shutdown: provider.Shutdown}, nil
}

// Close sends what is left.
func (s *Sender) Close() {
	if s.shutdown == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = s.shutdown(ctx) // The error handler has it.
}
