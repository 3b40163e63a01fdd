package schedules

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the snapshots of schedules.
type Metrics struct {
	snapshots *prometheus.CounterVec
	late      *prometheus.GaugeVec
}

// NewMetrics registers the package's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_scheduled_snapshots_total",
			Help: "VolumeSnapshots and VolumeGroupSnapshots that schedules of the policy created (action=created), deleted because newer ones are good (deleted), or could not create or delete (failed).",
		}, []string{"action"}),
		late: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_scheduled_snapshots_late",
			Help: "Claims without a good snapshot of a schedule for longer than the schedule allows, by tenant; only the leader exports it.",
		}, []string{"tenant"}),
	}
	registry.MustRegister(m.snapshots, m.late)
	return m
}

func (m *Metrics) count(action string) { m.snapshots.WithLabelValues(action).Inc() }

// show replaces the gauge.
func (m *Metrics) show(late map[string]int) {
	m.late.Reset()
	for tenant, claims := range late {
		m.late.WithLabelValues(tenant).Set(float64(claims))
	}
}

func (m *Metrics) forget() { m.late.Reset() }
