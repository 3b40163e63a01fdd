package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// reloadMetrics show which policy is in force and whether it is the one in the
// file.
type reloadMetrics struct {
	// success and timestamp are not exported before the first policy is in force.
	success   *prometheus.GaugeVec
	timestamp *prometheus.GaugeVec
	info      *prometheus.GaugeVec
	kept      *prometheus.GaugeVec

	mu       sync.Mutex
	revision string
}

func newReloadMetrics(registry prometheus.Registerer) *reloadMetrics {
	m := &reloadMetrics{
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_policy_last_reload_successful",
			Help: "1 while the policy file is the policy in force, 0 while the file is refused and the last good policy stays in force.",
		}, nil),
		timestamp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_policy_last_reload_success_timestamp_seconds",
			Help: "Unix time at which the policy in force was loaded.",
		}, nil),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_policy_info",
			Help: "1, with the revision of the policy in force as a label.",
		}, []string{"revision"}),
		kept: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_last_good_kept",
			Help: "Whether the policy and the credentials in force are kept for replicas that start with bad files (1) or could not be written (0); only the leader knows.",
		}, nil),
	}
	registry.MustRegister(m.success, m.timestamp, m.info, m.kept)
	return m
}

// inForce records the policy in force, and that it is the file.
func (m *reloadMetrics) inForce(revision string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.success.WithLabelValues().Set(1)
	if m.revision == revision {
		return
	}
	m.revision = revision
	m.timestamp.WithLabelValues().Set(float64(time.Now().Unix()))
	m.info.Reset()
	m.info.WithLabelValues(revision).Set(1)
}

// failed records that the file is refused.
func (m *reloadMetrics) failed() { m.success.WithLabelValues().Set(0) }

// keeping records whether what is in force is kept.
func (m *reloadMetrics) keeping(good bool) {
	m.kept.WithLabelValues().Set(0)
	if good {
		m.kept.WithLabelValues().Set(1)
	}
}

func (m *reloadMetrics) keepingEnded() { m.kept.Reset() }

// importMetrics count the imports of tenants' claims. Outcomes are bounded by the
// retry table.
type importMetrics struct{ imports *prometheus.CounterVec }

func newImportMetrics(registry prometheus.Registerer) *importMetrics {
	m := &importMetrics{imports: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "standalone_cinder_volume_imports_total",
		Help: "Attempts to import a volume for a tenant's claim, by outcome.",
	}, []string{"outcome"})}
	registry.MustRegister(m.imports)
	return m
}

func (m *importMetrics) count(outcome string) { m.imports.WithLabelValues(outcome).Inc() }
