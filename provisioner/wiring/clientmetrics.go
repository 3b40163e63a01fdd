package wiring

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/workqueue"
)

// ClientMetrics measures client-go's requests to the API server and its work
// queues, under the names that all Kubernetes components use.
type ClientMetrics struct {
	requestDuration, rateLimiterDuration *prometheus.HistogramVec
	requests, retries                    *prometheus.CounterVec

	depth, unfinished, longestRunning *prometheus.GaugeVec
	adds, requeues                    *prometheus.CounterVec
	queueDuration, workDuration       *prometheus.HistogramVec
}

// NewClientMetrics registers the metrics. They stay empty until MeasureProcess is
// called.
func NewClientMetrics(registry prometheus.Registerer) *ClientMetrics {
	latency := []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60}
	work := prometheus.ExponentialBuckets(1e-4, 10, 8)
	m := &ClientMetrics{
		requestDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_duration_seconds", Help: "Request latency in seconds, by verb and host of the API server.", Buckets: latency,
		}, []string{"verb", "host"}),
		rateLimiterDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_rate_limiter_duration_seconds", Help: "Time that requests waited for --kube-api-qps, by verb and host of the API server.", Buckets: latency,
		}, []string{"verb", "host"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "Requests by HTTP status code, method and host of the API server.",
		}, []string{"code", "method", "host"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_request_retries_total", Help: "Repeated requests by HTTP status code, verb and host of the API server.",
		}, []string{"code", "verb", "host"}),
		depth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "workqueue_depth", Help: "Items waiting in a work queue.",
		}, []string{"name"}),
		unfinished: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "workqueue_unfinished_work_seconds", Help: "Seconds of work under way that workqueue_work_duration_seconds does not contain yet; large values mean stuck workers.",
		}, []string{"name"}),
		longestRunning: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "workqueue_longest_running_processor_seconds", Help: "How long the longest-running worker of a work queue has been working on its item.",
		}, []string{"name"}),
		adds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "workqueue_adds_total", Help: "Items added to a work queue.",
		}, []string{"name"}),
		requeues: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "workqueue_retries_total", Help: "Items that a work queue got again after a failure.",
		}, []string{"name"}),
		queueDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_queue_duration_seconds", Help: "How long an item stays in a work queue before it is worked on.", Buckets: work,
		}, []string{"name"}),
		workDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_work_duration_seconds", Help: "How long working on an item of a work queue takes.", Buckets: work,
		}, []string{"name"}),
	}
	registry.MustRegister(m.requestDuration, m.rateLimiterDuration, m.requests, m.retries,
		m.depth, m.unfinished, m.longestRunning, m.adds, m.requeues, m.queueDuration, m.workDuration)
	return m
}

// MeasureProcess makes client-go report to these metrics. Its hooks are global to the
// process, and only the first call has an effect, so call it from main before the first
// client is made.
func (m *ClientMetrics) MeasureProcess() {
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestLatency:     latencies{m.requestDuration},
		RateLimiterLatency: latencies{m.rateLimiterDuration},
		RequestResult:      results{m.requests},
		RequestRetry:       results{m.retries},
	})
	workqueue.SetProvider(queueMetrics{m})
}

type latencies struct{ *prometheus.HistogramVec }

// Observe implements clientmetrics.LatencyMetric.
func (l latencies) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

type results struct{ *prometheus.CounterVec }

// Increment implements clientmetrics.ResultMetric.
func (r results) Increment(_ context.Context, code, method, host string) {
	r.WithLabelValues(code, method, host).Inc()
}

// IncrementRetry implements clientmetrics.RetryMetric.
func (r results) IncrementRetry(ctx context.Context, code, method, host string) {
	r.Increment(ctx, code, method, host)
}

// queueMetrics is a workqueue.MetricsProvider. Every term makes its queues again under
// the same names, and starts their gauges at zero.
type queueMetrics struct{ *ClientMetrics }

var _ workqueue.MetricsProvider = queueMetrics{}

func resetGauge(of *prometheus.GaugeVec, name string) prometheus.Gauge {
	gauge := of.WithLabelValues(name)
	gauge.Set(0)
	return gauge
}

func (q queueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return resetGauge(q.depth, name)
}

func (q queueMetrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return resetGauge(q.unfinished, name)
}

func (q queueMetrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return resetGauge(q.longestRunning, name)
}

func (q queueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

func (q queueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.requeues.WithLabelValues(name)
}

func (q queueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.queueDuration.WithLabelValues(name)
}

func (q queueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.workDuration.WithLabelValues(name)
}
