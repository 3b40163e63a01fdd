package cinder

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics measures the requests to Cinder and Keystone. Its label values are
// bounded by the policy (backends), by this package (operations) and by HTTP
// (codes); no label has a value that a tenant chooses.
type Metrics struct {
	requests *prometheus.HistogramVec
	logins   *prometheus.CounterVec
}

// NewMetrics registers the package's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_openstack_request_duration_seconds",
			Help:    "Duration of requests to Cinder and Keystone by backend, operation and HTTP code (none: no answer).",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"backend", "operation", "code"}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_logins_total",
			Help: "Logins to a backend by outcome.",
		}, []string{"backend", "outcome"}),
	}
	registry.MustRegister(m.requests, m.logins)
	return m
}

func (m *Metrics) request(backend, operation, code string, took time.Duration) {
	m.requests.WithLabelValues(backend, operation, code).Observe(took.Seconds())
}

// login counts a login that was sent, by its error.
func (m *Metrics) login(backend string, err error) {
	outcome := "success"
	if err != nil {
		outcome = "failure"
	}
	m.logins.WithLabelValues(backend, outcome).Inc()
}
