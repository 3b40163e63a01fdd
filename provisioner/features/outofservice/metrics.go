package outofservice

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what was done about lost nodes.
type Metrics struct {
	taints  *prometheus.CounterVec
	refused *prometheus.GaugeVec
}

// NewMetrics registers the package's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		taints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_out_of_service_taints_total",
			Help: "Taints node.kubernetes.io/out-of-service that the program set on lost nodes (action=set) and removed from them (removed).",
		}, []string{"action"}),
		refused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_lost_nodes_not_taken",
			Help: "Nodes that do not answer and that the program does not take out of service, by reason; only the leader exports it.",
		}, []string{"reason"}),
	}
	registry.MustRegister(m.taints, m.refused)
	return m
}

func (m *Metrics) changed(action string) { m.taints.WithLabelValues(action).Inc() }

// show replaces the gauge.
func (m *Metrics) show(refusals map[Reason]int) {
	m.refused.Reset()
	for reason, nodes := range refusals {
		m.refused.WithLabelValues(string(reason)).Set(float64(nodes))
	}
}

func (m *Metrics) forget() { m.refused.Reset() }
