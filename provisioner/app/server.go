package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/webserver"
	"github.com/standalone-cinder/standalone-cinder/provisioner/webserver/webconfig"
)

// server answers for a replica, whether it leads or not.
type server struct {
	*replica
	health   *healthz
	listener net.Listener
	// healthListener is nil unless health has a port of its own, pprofListener unless
	// profiles are served.
	healthListener, pprofListener net.Listener
}

// newServer opens the replica's ports.
func newServer(of *replica) (*server, error) {
	s := &server{replica: of, health: &healthz{monitor: of.monitor, logger: of.logger}}
	return s, s.listen()
}

// listen opens the replica's ports, and checks how they are protected.
func (s *server) listen() error {
	if file := s.options.WebConfigFile; file != "" {
		if err := webconfig.Validate(file); err != nil {
			return fmt.Errorf("--web-config-file %s cannot be used, so metrics and status page would not be protected as it says: %w", file, err)
		}
	}
	listen := net.Listen
	if s.options.Network != nil {
		listen = s.options.Network.Listen
	}
	var opened []net.Listener
	for _, port := range []struct {
		flag, address string
		listener      *net.Listener
	}{
		{"--listen", s.options.Listen, &s.listener},
		{"--health-listen", s.options.HealthListen, &s.healthListener},
		{"--pprof-address", s.options.PprofAddress, &s.pprofListener},
	} {
		if port.address == "" && port.listener != &s.listener {
			continue
		}
		listener, err := listen("tcp", port.address)
		if err != nil {
			for _, other := range opened {
				_ = other.Close()
			}
			return fmt.Errorf("%s %s: %w", port.flag, port.address, err)
		}
		*port.listener = webserver.Bound(listener)
		opened = append(opened, listener)
	}
	if err := s.listenForSidecars(); err != nil {
		for _, other := range opened {
			_ = other.Close()
		}
		return fmt.Errorf("--csi-endpoint %s: %w", s.options.CSIEndpoint, err)
	}
	return nil
}

// serve answers until the context ends. Leaders and followers serve alike.
func (s *server) serve(ctx context.Context) <-chan error {
	failed := make(chan error, 3)
	run := func(what string, handler http.Handler, longest time.Duration, serve func(*http.Server) error) {
		server := webserver.New(handler, longest, s.logger)
		go func() {
			if err := serve(server); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving %s: %w", what, err)
			}
		}()
		context.AfterFunc(ctx, func() { _ = server.Close() })
	}

	s.logger.Info("Serving health and metrics", "address", s.listener.Addr().String(), "webConfigFile", s.options.WebConfigFile)
	all := s.healthHandler()
	all.Handle("GET /metrics", webserver.Metrics(s.options.Metrics))
	s.handleReports(all)
	const usual = 30 * time.Second
	run("health and metrics", all, usual, func(server *http.Server) error {
		if s.options.WebConfigFile == "" {
			return server.Serve(s.listener)
		}
		return webconfig.Serve(s.listener, server, s.options.WebConfigFile, s.logger)
	})
	if s.healthListener != nil {
		s.logger.Info("Serving health alone, without TLS and login", "address", s.healthListener.Addr().String())
		run("health", s.healthHandler(), usual, func(server *http.Server) error { return server.Serve(s.healthListener) })
	}
	if s.pprofListener != nil {
		s.logger.Info("Serving profiles of the process", "address", s.pprofListener.Addr().String())
		// A CPU profile takes as long as the client wants.
		run("profiles", pprofHandler(), time.Hour, func(server *http.Server) error { return server.Serve(s.pprofListener) })
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

func (s *server) handleReports(mux *http.ServeMux) {
	statuspage.Handle(mux, statuspage.Options{Report: s.report, Answer: s.answer, Logger: s.logger})
}

// healthHandler answers the kubelet's probes.
func (s *server) healthHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.status.readyz)
	return mux
}
