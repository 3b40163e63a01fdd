package wiring

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/workqueue"
)

// TestClientMetrics sets the hooks of the process once, as main does.
func TestClientMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewClientMetrics(registry)
	m.MeasureProcess()

	clientmetrics.RequestResult.Increment(t.Context(), "200", "GET", "api:6443")
	clientmetrics.RequestRetry.IncrementRetry(t.Context(), "503", "GET", "api:6443")
	clientmetrics.RequestLatency.Observe(context.Background(), "GET", url.URL{Host: "api:6443"}, time.Second)
	clientmetrics.RateLimiterLatency.Observe(context.Background(), "GET", url.URL{Host: "api:6443"}, time.Second)
	named := func() workqueue.TypedRateLimitingInterface[string] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](), workqueue.TypedRateLimitingQueueConfig[string]{Name: "claims"})
	}
	queue := named()
	queue.Add("one")
	queue.Add("two")
	depth := func(of string) {
		t.Helper()
		want := "# HELP workqueue_depth Items waiting in a work queue.\n# TYPE workqueue_depth gauge\nworkqueue_depth{name=\"claims\"} " + of + "\n"
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "workqueue_depth"); err != nil {
			t.Error(err)
		}
	}
	depth("2")
	// The next term's queue starts empty, whatever was left in the last one.
	queue.ShutDown()
	defer named().ShutDown()
	depth("0")
	for _, vector := range []prometheus.Collector{m.requests, m.retries, m.requestDuration, m.rateLimiterDuration} {
		if n := testutil.CollectAndCount(vector); n != 1 {
			t.Errorf("%d series, want 1", n)
		}
	}
}
