package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/standalone-cinder/standalone-cinder/provisioner/webserver"
)

// probeTimeout bounds a probe of the plugin's own socket.
const probeTimeout = 5 * time.Second

// serveHTTP serves metrics and health until the context ends.
func serveHTTP(ctx context.Context, listener net.Listener, metrics prometheus.Gatherer, socket string, logger *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", webserver.Metrics(metrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := probe(r.Context(), socket); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	server := webserver.New(mux, 30*time.Second, logger)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	logger.Info("serving metrics and health", "address", listener.Addr().String())
	if err := server.Serve(webserver.Bound(listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	return nil
}

// probe calls the plugin as the kubelet would.
func probe(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	_, err = csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{})
	return err
}
