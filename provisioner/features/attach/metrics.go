package attach

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the calls of the CSI driver, and the attached volumes. Labels are
// bounded: methods and codes by the specifications of CSI and gRPC, backends by the
// policy.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec

	attaching   *prometheus.HistogramVec
	attachments *prometheus.GaugeVec
	unclean     *prometheus.GaugeVec
	quarantined *prometheus.GaugeVec
}

// NewMetrics registers the package's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_csi_requests_total",
			Help: "Calls that the CSI driver's controller answered, by method and gRPC code; calls that a follower refuses do not count.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_csi_request_duration_seconds",
			Help:    "Time that the CSI driver's controller took to answer calls, by method.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"method"}),
	}
	m.attaching = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "standalone_cinder_csi_attach_duration_seconds",
		Help:    "Time to attach a volume in mode csi to a node, by backend and protocol; repeated calls for a volume that the node has are not counted.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
	}, []string{"backend", "protocol"})
	m.attachments = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "standalone_cinder_csi_attachments",
		Help: "VolumeAttachments of volumes in mode csi that are attached, by backend; only the leader exports it.",
	}, []string{"backend"})
	m.unclean = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "standalone_cinder_csi_unclean_volumes",
		Help: "Volumes in mode csi that nodes have staged although Kubernetes has detached them, by backend; only the leader exports it.",
	}, []string{"backend"})
	m.quarantined = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "standalone_cinder_csi_quarantined_nodes",
		Help: "Nodes that get no further volume because they have one of the backend staged that Kubernetes has detached from them; only the leader exports it.",
	}, []string{"backend"})
	registry.MustRegister(m.requests, m.duration, m.attaching, m.attachments, m.unclean, m.quarantined)
	return m
}

// attached observes how long attaching a volume took.
func (m *Metrics) attached(backend, protocol string, took time.Duration) {
	m.attaching.WithLabelValues(backend, protocol).Observe(took.Seconds())
}

// counts holds the gauges of one backend.
type counts struct{ attachments, unclean, quarantined int }

// show replaces the gauges.
func (m *Metrics) show(backends map[string]counts) {
	m.forget()
	for name, c := range backends {
		m.attachments.WithLabelValues(name).Set(float64(c.attachments))
		m.unclean.WithLabelValues(name).Set(float64(c.unclean))
		m.quarantined.WithLabelValues(name).Set(float64(c.quarantined))
	}
}

// forget removes what only a leader exports.
func (m *Metrics) forget() {
	m.attachments.Reset()
	m.unclean.Reset()
	m.quarantined.Reset()
}

// Observe counts a call.
func (m *Metrics) Observe(method, code string, took time.Duration) {
	m.requests.WithLabelValues(method, code).Inc()
	m.duration.WithLabelValues(method).Observe(took.Seconds())
}
