package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
)

// listen opens the replica's ports, and checks how they are protected.
func (a *App) listen() error {
	if err := web.Validate(a.options.WebConfigFile); err != nil {
		return fmt.Errorf("--web-config-file %s cannot be used, so metrics and status page would not be protected as it says: %w", a.options.WebConfigFile, err)
	}
	var err error
	if a.listener, err = net.Listen("tcp", a.options.Listen); err != nil {
		return fmt.Errorf("--listen %s: %w", a.options.Listen, err)
	}
	if a.options.HealthListen == "" {
		return nil
	}
	if a.healthListener, err = net.Listen("tcp", a.options.HealthListen); err != nil {
		_ = a.listener.Close()
		return fmt.Errorf("--health-listen %s: %w", a.options.HealthListen, err)
	}
	return nil
}

// serve answers until the context ends. Every replica does, leader or follower.
func (a *App) serve(ctx context.Context) <-chan error {
	failed := make(chan error, 2)
	run := func(what string, handler http.Handler, serve func(*http.Server) error) {
		server := &http.Server{
			Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
			// A failed handshake is the client's affair.
			ErrorLog: slog.NewLogLogger(a.logger.Handler(), slog.LevelDebug),
		}
		go func() {
			if err := serve(server); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving %s: %w", what, err)
			}
		}()
		context.AfterFunc(ctx, func() { _ = server.Close() })
	}

	a.logger.Info("Serving health and metrics", "address", a.Address(), "webConfigFile", a.options.WebConfigFile)
	all := a.healthHandler()
	all.Handle("GET /metrics", promhttp.HandlerFor(a.options.Metrics, promhttp.HandlerOpts{}))
	a.handleReports(all)
	run("health and metrics", all, func(server *http.Server) error {
		if a.options.WebConfigFile == "" {
			return server.Serve(a.listener)
		}
		return web.Serve(a.listener, server, &web.FlagConfig{WebConfigFile: &a.options.WebConfigFile}, a.logger)
	})
	if a.healthListener != nil {
		a.logger.Info("Serving health alone, without TLS and login", "address", a.healthListener.Addr().String())
		run("health", a.healthHandler(), func(server *http.Server) error { return server.Serve(a.healthListener) })
	}
	return failed
}

func (a *App) handleReports(mux *http.ServeMux) {
	statuspage.Handle(mux, statuspage.Options{Report: a.report, Answer: a.answer, Logger: a.logger})
}

// healthHandler answers the kubelet's probes.
func (a *App) healthHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", a.health)
	mux.HandleFunc("GET /readyz", a.status.readyz)
	return mux
}
