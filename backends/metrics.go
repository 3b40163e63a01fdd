package backends

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Metrics measures backends and their volumes, and the requests to Cinder and
// Keystone. Its label values are bounded by the policy; no label has a value
// that a tenant chooses.
type Metrics struct {
	// Requests are the clients' metrics.
	Requests *cinder.Metrics
	pool     *prometheus.CounterVec
	inFlight *prometheus.GaugeVec

	up                *prometheus.GaugeVec
	outages           *prometheus.CounterVec
	credentialsGood   *prometheus.GaugeVec
	credentialsReadAt *prometheus.GaugeVec
}

// NewMetrics registers the package's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"backend"})
	}
	m := &Metrics{
		Requests: cinder.NewMetrics(registry),
		pool: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_client_pool_lookups_total",
			Help: "Look-ups of a logged-in client by result: hit, miss, or changed when configuration or credentials changed.",
		}, []string{"backend", "result"}),
		inFlight: gauge("standalone_cinder_volumes_in_flight", "Volumes that the program is waiting for."),
		up: gauge("standalone_cinder_backend_up",
			"Whether requests to a backend are sent (1) or rejected because it does not answer (0); only the leader exports it."),
		outages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_backend_outages_total",
			Help: "How often the program began to reject requests to a backend because it did not answer.",
		}, []string{"backend"}),
		credentialsGood: gauge("standalone_cinder_credentials_read_success",
			"Whether the last attempt to read the credentials of a backend succeeded (1) or not (0)."),
		credentialsReadAt: gauge("standalone_cinder_credentials_read_timestamp_seconds",
			"When the credentials of a backend were last read without an error."),
	}
	registry.MustRegister(m.pool, m.inFlight, m.up, m.outages, m.credentialsGood, m.credentialsReadAt)
	return m
}

func (m *Metrics) lookup(backend, result string) {
	m.pool.WithLabelValues(backend, result).Inc()
}

// waiting changes the number of volumes that the program waits for.
func (m *Metrics) waiting(backend string, more int) {
	m.inFlight.WithLabelValues(backend).Add(float64(more))
}

// Health shows whether requests to a backend are sent.
func (m *Metrics) Health(backend string, up bool) {
	m.up.WithLabelValues(backend).Set(number(up))
	// A counter that begins with the first outage would hide that outage from
	// rate().
	m.outages.WithLabelValues(backend).Add(0)
}

// ForgetHealth drops what only a leader knows about a backend.
func (m *Metrics) ForgetHealth(backend string) {
	m.up.DeleteLabelValues(backend)
	m.Requests.ForgetLogin(backend)
}

// Outage counts the beginning of an outage.
func (m *Metrics) Outage(backend string) { m.outages.WithLabelValues(backend).Inc() }

func (m *Metrics) credentialsRead(backend string, at time.Time, good bool) {
	m.credentialsGood.WithLabelValues(backend).Set(number(good))
	if good {
		m.credentialsReadAt.WithLabelValues(backend).Set(float64(at.UnixMilli()) / 1000)
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
