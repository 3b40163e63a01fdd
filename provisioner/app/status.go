package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// status serves health, readiness, metrics and a page for people. Every
// replica serves them, whether it leads or follows.
type status struct {
	app    *App
	leader prometheus.Gauge

	mu      sync.Mutex
	ready   bool
	leading bool
	holder  string
}

func newStatus(a *App, registry *prometheus.Registry) *status {
	s := &status{
		app: a,
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "standalone_cinder_leader",
			Help: "1 while this replica leads, else 0.",
		}),
	}
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "standalone_cinder_build_info",
		Help:        "1, with the version as label.",
		ConstLabels: prometheus.Labels{"version": Version()},
	}, func() float64 { return 1 })
	registry.MustRegister(s.leader, info)
	return s
}

func (s *status) setReady() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
}

func (s *status) setLeading(leading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = leading
	s.leader.Set(0)
	if leading {
		s.leader.Set(1)
	}
}

func (s *status) setLeader(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder = identity
}

func (s *status) serve(ctx context.Context, listener net.Listener) <-chan error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.app.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /{$}", s.page)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serving health and metrics: %w", err)
		}
	}()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return failed
}

func (s *status) readyz(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		http.Error(w, "the caches of the API server's objects are not filled yet", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// page shows what an operator asks first. It holds names, never credentials.
func (s *status) page(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.app.policy.Load()
	fmt.Fprintf(w, "standalone-cinder %s\n\nidentity  %s\nleading   %t\nleader    %s\npolicy    %s, revision %s\n\nbackends\n",
		Version(), s.app.identity, s.leading, s.holder, s.app.options.PolicyFile, p.Revision())
	for _, backend := range p.Backends {
		suspended := ""
		if backend.Suspended {
			suspended = "  (suspended)"
		}
		fmt.Fprintf(w, "  %s%s\n", backend.Name, suspended)
	}
	fmt.Fprintln(w, "\ntenants")
	for _, tenant := range p.Tenants {
		fmt.Fprintf(w, "  %s  %d class rules\n", tenant.Name, len(tenant.Classes))
	}
}
