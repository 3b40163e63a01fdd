package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
)

// termCollector exports what only the leader knows. It counts when it is asked:
// nothing has to be kept current, and a follower exports nothing.
type termCollector struct {
	app *App

	quota, claims, oldest, deletions *prometheus.Desc
}

func newTermCollector(a *App) *termCollector {
	return &termCollector{
		app: a,
		quota: prometheus.NewDesc("standalone_cinder_quota",
			"Limits of the policy (type hard) and what counts against them (type used), by scope (tenant, class, backend) and resource (volumes, gigabytes in GiB); only the leader exports it.",
			[]string{"scope", "name", "resource", "type"}, nil),
		claims: prometheus.NewDesc("standalone_cinder_pending_claims",
			"Claims that cannot continue now, by state (waiting for a worker, denied, failing, blocked) and reason of their last event; only the leader exports it.",
			[]string{"state", "reason"}, nil),
		oldest: prometheus.NewDesc("standalone_cinder_oldest_pending_claim_timestamp_seconds",
			"Unix time at which the oldest pending claim was created, by state and reason; only the leader exports it.",
			[]string{"state", "reason"}, nil),
		deletions: prometheus.NewDesc("standalone_cinder_pending_deletions",
			"Released PersistentVolumes whose deletion cannot continue now, by state and reason of their last event; only the leader exports it.",
			[]string{"state", "reason"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *termCollector) Describe(to chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{c.quota, c.claims, c.oldest, c.deletions} {
		to <- description
	}
}

// Collect implements prometheus.Collector.
func (c *termCollector) Collect(to chan<- prometheus.Metric) {
	term := c.app.term()
	if term == nil {
		return
	}
	gauge := func(description *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
	}
	for _, quota := range term.provisioner.Quotas() {
		for _, resource := range quotaResources(quota) {
			scope, name := string(quota.Scope.Kind), quota.Scope.Name
			gauge(c.quota, float64(resource.used), scope, name, resource.name, "used")
			if resource.hard != nil {
				gauge(c.quota, float64(*resource.hard), scope, name, resource.name, "hard")
			}
		}
	}
	for _, group := range term.provisioner.PendingClaims() {
		gauge(c.claims, float64(group.Count), string(group.State), group.Reason)
		gauge(c.oldest, unixSeconds(group.Oldest), string(group.State), group.Reason)
	}
	for _, group := range term.provisioner.PendingDeletions() {
		gauge(c.deletions, float64(group.Count), string(group.State), group.Reason)
	}
}

// quotaResource is one limit of a scope; hard is nil if there is none.
type quotaResource struct {
	name string
	used int64
	hard *int64
}

func quotaResources(quota provisioner.QuotaUse) []quotaResource {
	limits := quota.Scope.Limits
	resources := []quotaResource{{"volumes", quota.Used.Volumes, limits.Volumes}, {"gigabytes", quota.Used.Gigabytes, limits.Gigabytes}}
	if quota.Scope.Kind == policy.ClassScope && limits.Volumes == nil && limits.Gigabytes == nil {
		// Most rules (scope class) have no limits, and each is a series.
		return nil
	}
	return resources
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
