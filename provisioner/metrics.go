package provisioner

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts claims and volumes. Labels are bounded: tenants and backends by
// the policy, protocols by the mappers, outcomes by the retry table. Namespaces
// and claims are not labels, because their number is unbounded.
type Metrics struct {
	provision *prometheus.HistogramVec
	delete    *prometheus.HistogramVec
	// claimBound is the time that users wait, not the time of one attempt.
	claimBound *prometheus.HistogramVec
	// protocols are the known values of the label; all others count as "other".
	protocols []string
}

// NewMetrics registers the package's metrics with the caller's registry. The protocols
// are the values that a label may have.
func NewMetrics(registry prometheus.Registerer, protocols []string) *Metrics {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	m := &Metrics{
		protocols: protocols,
		provision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_provision_duration_seconds",
			Help:    "Duration of attempts to provision a claim by backend, protocol and outcome.",
			Buckets: buckets,
		}, []string{"backend", "protocol", "outcome"}),
		delete: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_delete_duration_seconds",
			Help:    "Duration of attempts to delete a volume by backend, protocol and outcome.",
			Buckets: buckets,
		}, []string{"backend", "protocol", "outcome"}),
		claimBound: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_claim_bound_duration_seconds",
			Help:    "Time that claims took to become Bound, from their creation, or from when their node was selected or they were last denied, by tenant and backend.",
			Buckets: []float64{1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600},
		}, []string{"tenant", "backend"}),
	}
	registry.MustRegister(m.provision, m.delete, m.claimBound)
	return m
}

func (m *Metrics) provisioned(backend, protocol, outcome string, took time.Duration) {
	m.provision.WithLabelValues(backend, m.ProtocolLabel(protocol), outcome).Observe(took.Seconds())
}

func (m *Metrics) deleted(backend, protocol, outcome string, took time.Duration) {
	m.delete.WithLabelValues(backend, m.ProtocolLabel(protocol), outcome).Observe(took.Seconds())
}

// otherLabel replaces values that are not known in advance, so that they share one
// series.
const otherLabel = "other"

// ProtocolLabel returns the label value for a protocol. Unknown protocols share one
// value, so a backend cannot create series.
func (m *Metrics) ProtocolLabel(protocol string) string {
	if protocol == "" || slices.Contains(m.protocols, protocol) {
		return protocol
	}
	return otherLabel
}
