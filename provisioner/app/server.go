package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/webserver"
)

// listen opens the replica's ports, and checks how they are protected.
func (a *App) listen() error {
	if err := web.Validate(a.options.WebConfigFile); err != nil {
		return fmt.Errorf("--web-config-file %s cannot be used, so metrics and status page would not be protected as it says: %w", a.options.WebConfigFile, err)
	}
	var opened []net.Listener
	for _, port := range []struct {
		flag, address string
		listener      *net.Listener
	}{
		{"--listen", a.options.Listen, &a.listener},
		{"--health-listen", a.options.HealthListen, &a.healthListener},
		{"--pprof-address", a.options.PprofAddress, &a.pprofListener},
	} {
		if port.address == "" && port.listener != &a.listener {
			continue
		}
		listener, err := net.Listen("tcp", port.address)
		if err != nil {
			for _, other := range opened {
				_ = other.Close()
			}
			return fmt.Errorf("%s %s: %w", port.flag, port.address, err)
		}
		*port.listener = webserver.Bound(listener)
		opened = append(opened, listener)
	}
	if err := a.listenForSidecars(); err != nil {
		for _, other := range opened {
			_ = other.Close()
		}
		return fmt.Errorf("--csi-endpoint %s: %w", a.options.CSIEndpoint, err)
	}
	return nil
}

// serve answers until the context ends. Leaders and followers serve alike.
func (a *App) serve(ctx context.Context) <-chan error {
	failed := make(chan error, 3)
	run := func(what string, handler http.Handler, longest time.Duration, serve func(*http.Server) error) {
		server := webserver.New(handler, longest, a.logger)
		go func() {
			if err := serve(server); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving %s: %w", what, err)
			}
		}()
		context.AfterFunc(ctx, func() { _ = server.Close() })
	}

	a.logger.Info("Serving health and metrics", "address", a.Address(), "webConfigFile", a.options.WebConfigFile)
	all := a.healthHandler()
	all.Handle("GET /metrics", webserver.Metrics(a.options.Metrics))
	a.handleReports(all)
	const usual = 30 * time.Second
	run("health and metrics", all, usual, func(server *http.Server) error {
		if a.options.WebConfigFile == "" {
			return server.Serve(a.listener)
		}
		return web.Serve(a.listener, server, &web.FlagConfig{WebConfigFile: &a.options.WebConfigFile}, a.logger)
	})
	if a.healthListener != nil {
		a.logger.Info("Serving health alone, without TLS and login", "address", a.healthListener.Addr().String())
		run("health", a.healthHandler(), usual, func(server *http.Server) error { return server.Serve(a.healthListener) })
	}
	if a.pprofListener != nil {
		a.logger.Info("Serving profiles of the process", "address", a.pprofListener.Addr().String())
		// A CPU profile takes as long as the client wants.
		run("profiles", pprofHandler(), time.Hour, func(server *http.Server) error { return server.Serve(a.pprofListener) })
	}
	return failed
}

// pprofHandler serves profiles. The pprof package also registers them with
// http.DefaultServeMux, which this program does not serve.
func pprofHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
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
