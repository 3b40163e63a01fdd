package plugin

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/node"
)

// Metrics are the metrics of a node. Labels are bounded: methods and codes by the
// specifications of CSI and gRPC, steps and reasons by the program.
type Metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	steps     *prometheus.HistogramVec
	refusals  *prometheus.CounterVec
	removed   prometheus.Counter
	unlimited *prometheus.CounterVec
}

var _ node.Observer = (*Metrics)(nil)

// NewMetrics registers the plugin's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	buckets := []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_node_requests_total",
			Help: "Calls from the kubelet that the node plugin answered, by method and gRPC code.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_node_request_duration_seconds",
			Help:    "Duration of the kubelet's calls to the node plugin, by method.",
			Buckets: buckets,
		}, []string{"method"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_node_stage_step_duration_seconds",
			Help:    "Duration of the steps of staging a volume that succeeded: attach, filesystem, mount, grow.",
			Buckets: buckets,
		}, []string{"step"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_node_refusals_total",
			Help: "Operations that the node plugin refused on a disk, and disks that it cut off, by reason. WrongVolume, WrongDisk, NotEmpty, ForeignPath and Outdated protect data.",
		}, []string{"reason"}),
		removed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "standalone_cinder_node_stale_disks_removed_total",
			Help: "Leftover disks of earlier volumes that were removed to make way for a new volume's disk.",
		}),
		unlimited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_node_unlimited_total",
			Help: "Pods that got a volume without the limits of its type, by reason: CgroupV1, NoPodCgroup, NoIOController or Failed.",
		}, []string{"reason"}),
	}
	registry.MustRegister(m.requests, m.duration, m.steps, m.refusals, m.removed, m.unlimited)
	return m
}

// StagedVolumes returns a metric of the number that count returns.
func StagedVolumes(count func() (int, error)) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "standalone_cinder_node_staged_volumes",
		Help: "Volumes that are staged on the node; -1 while the state files cannot be read.",
	}, func() float64 {
		n, err := count()
		if err != nil {
			return -1
		}
		return float64(n)
	})
}

// LackingPaths returns a metric of the number that count returns.
func LackingPaths(count func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "standalone_cinder_node_volumes_lacking_paths",
		Help: "Staged iSCSI and NVMe volumes with fewer paths than the storage offers, as of the last look, which is once a minute.",
	}, func() float64 { return float64(count()) })
}

// Step implements node.Observer.
func (m *Metrics) Step(step node.Step, took time.Duration) {
	m.steps.WithLabelValues(string(step)).Observe(took.Seconds())
}

// Refused implements node.Observer.
func (m *Metrics) Refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// RemovedDisk implements node.Observer.
func (m *Metrics) RemovedDisk() { m.removed.Inc() }

// Unlimited implements node.Observer.
func (m *Metrics) Unlimited(reason string) { m.unlimited.WithLabelValues(reason).Inc() }

// intercept counts a call. It is a grpc.UnaryServerInterceptor.
func (m *Metrics) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	started := time.Now()
	response, err := handle(ctx, request)
	method := methodOf(info)
	m.requests.WithLabelValues(method, status.Code(err).String()).Inc()
	m.duration.WithLabelValues(method).Observe(time.Since(started).Seconds())
	return response, err
}
