package snapshot

import (
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const reasonBackendUnavailable = placement.ReasonBackendUnavailable

// report writes an event about each of the objects for which it is news.
func (c *Controller) report(reason, message string, objects ...metav1.Object) {
	isVolatile := reason == string(policy.QuotaExceeded) || reason == reasonBackendUnavailable
	for _, object := range objects {
		if c.parked.IsNews(object.GetUID(), reason, message, isVolatile) {
			c.Recorder.Event(described(object), corev1.EventTypeWarning, reason, message)
			c.Logger.Info("Reported on a "+string(itemOf(object).kind), "name", itemOf(object).String(), "reason", reason, "message", message)
		}
	}
}

// await parks the first object while Cinder does what takes hours. It is not a failure.
func await(c *Controller, a *attempt, pending error, objects ...metav1.Object) {
	for _, object := range objects {
		if c.parked.IsNews(object.GetUID(), "BackupPending", pending.Error(), false) {
			c.Recorder.Event(described(object), corev1.EventTypeNormal, "BackupPending", pending.Error())
		}
	}
	c.park(a, objects[0], parking.Waiting)
}

// described returns an object with its kind, which caches omit but the recorder needs.
func described(object metav1.Object) runtime.Object {
	kind := snapshotv1.SchemeGroupVersion.WithKind(string(itemOf(object).kind))
	switch typed := object.(type) {
	case *snapshotv1.VolumeSnapshot:
		copied := *typed
		copied.SetGroupVersionKind(kind)
		return &copied
	case *snapshotv1.VolumeSnapshotContent:
		copied := *typed
		copied.SetGroupVersionKind(kind)
		return &copied
	case *groupv1.VolumeGroupSnapshot:
		copied := *typed
		copied.SetGroupVersionKind(groupv1.SchemeGroupVersion.WithKind(kind.Kind))
		return &copied
	case *groupv1.VolumeGroupSnapshotContent:
		copied := *typed
		copied.SetGroupVersionKind(groupv1.SchemeGroupVersion.WithKind(kind.Kind))
		return &copied
	}
	return nil
}

// Metrics counts snapshots. Labels are bounded: backends by the policy, outcomes
// by the retry table.
type Metrics struct {
	take, remove *prometheus.HistogramVec
	imports      *prometheus.CounterVec
}

// NewMetrics registers the package's metrics with the caller's registry.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	m := &Metrics{
		take: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_snapshot_take_duration_seconds",
			Help:    "Duration of attempts to take the snapshot of a VolumeSnapshot by backend and outcome.",
			Buckets: buckets,
		}, []string{"backend", "outcome"}),
		remove: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "standalone_cinder_snapshot_delete_duration_seconds",
			Help:    "Duration of attempts to delete the snapshot of a VolumeSnapshotContent by backend and outcome.",
			Buckets: buckets,
		}, []string{"backend", "outcome"}),
		imports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_snapshot_imports_total",
			Help: "Attempts to import the snapshot of a VolumeSnapshotContent that was made by hand, by outcome.",
		}, []string{"outcome"}),
	}
	registry.MustRegister(m.take, m.remove, m.imports)
	return m
}

func (m *Metrics) took(backend, outcome string, duration time.Duration) {
	m.take.WithLabelValues(backend, outcome).Observe(duration.Seconds())
}

func (m *Metrics) deleted(backend, outcome string, duration time.Duration) {
	m.remove.WithLabelValues(backend, outcome).Observe(duration.Seconds())
}

func (m *Metrics) imported(outcome string) { m.imports.WithLabelValues(outcome).Inc() }

func outcomeOf(err error) string {
	if err == nil {
		return "success"
	}
	return retry.For(err).Outcome
}
