package expand

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts expansions. Labels are bounded: backends by the policy, outcomes
// by the retry table.
type Metrics struct{ expand *prometheus.HistogramVec }

// NewMetrics registers the package's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{expand: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "standalone_cinder_expand_duration_seconds",
		Help:    "Duration of attempts to expand a volume by backend and outcome.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
	}, []string{"backend", "outcome"})}
	registry.MustRegister(m.expand)
	return m
}

func (m *Metrics) expanded(backend, outcome string, took time.Duration) {
	m.expand.WithLabelValues(backend, outcome).Observe(took.Seconds())
}
