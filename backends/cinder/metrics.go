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
	loggedIn *prometheus.GaugeVec
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
		loggedIn: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_last_login_successful",
			Help: "Whether the last login to a backend succeeded (1) or not (0); only the leader logs in.",
		}, []string{"backend"}),
	}
	registry.MustRegister(m.requests, m.logins, m.loggedIn)
	return m
}

func (m *Metrics) request(backend, operation, code string, took time.Duration) {
	m.requests.WithLabelValues(backend, operation, code).Observe(took.Seconds())
}

// login counts a login attempt by its error.
func (m *Metrics) login(backend string, err error) {
	outcome, good := "success", 1.0
	if err != nil {
		outcome, good = "failure", 0
	}
	m.logins.WithLabelValues(backend, outcome).Inc()
	m.loggedIn.WithLabelValues(backend).Set(good)
}

// ForgetLogin drops the state of the last login: this process no longer logs in.
func (m *Metrics) ForgetLogin(backend string) { m.loggedIn.DeleteLabelValues(backend) }
