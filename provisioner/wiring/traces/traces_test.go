package traces

import (
	"log/slog"
	"strings"
	"testing"
)

func TestTracesAreOffWithoutAnEndpoint(t *testing.T) {
	sender, err := New(t.Context(), Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil || sender.Provider != nil {
		t.Errorf("got %+v, %v", sender, err)
	}
	sender.Close()
}

func TestTraceEndpointsThatAreNone(t *testing.T) {
	for _, endpoint := range []string{"collector:4317", "collector", "grpc://collector:4317", "http://", "https://user:secret@collector", "http://collector:port"} {
		_, err := New(t.Context(), Options{Endpoint: endpoint, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.HasPrefix(err.Error(), "--trace-endpoint must be the URL of an OTLP collector over HTTP, without credentials") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}
