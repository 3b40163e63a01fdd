package app

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// auditDelay is how long a leader waits before its first audit: other work is
// more urgent.
const auditDelay = time.Minute

// auditor compares what Kubernetes records with what Cinder has, for as long as
// the term lasts, and reports the differences.
type auditor struct {
	policy          func() *policy.Policy
	client          kubernetes.Interface
	caches          objects.Caches
	cluster         string
	clusterUID      string
	namespace       string
	provisionerName string
	provisioner     *provisioner.Provisioner
	backends        *termBackends
	snapshots       *snapshot.Controller
	// isGone reports whether a volume has disappeared since its backend was listed.
	isGone  func(backend, volumeID string) bool
	metrics *auditMetrics
	// tell writes an event about the program, record one about an object.
	tell   func(eventType, reason, message string)
	record func(pv *corev1.PersistentVolume, reason, message string)
	warn   func(message string, arguments ...any)
	// reported is the set of findings already reported.
	reported map[audit.Finding]bool
	last     atomic.Pointer[lastAudit]
}

// lastAudit is what the last audit found.
type lastAudit struct {
	at       time.Time
	findings []audit.Finding
}

// Run audits until the context ends. Only a leader exports the metrics.
func (u *auditor) Run(ctx context.Context) {
	defer u.metrics.forget()
	wait := min(auditDelay, u.policy().Audit.Interval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := u.once(ctx); err != nil && ctx.Err() == nil {
			u.warn("The audit failed and will be retried", "error", err)
		}
		wait = u.policy().Audit.Interval
	}
}

// once makes one audit. Like Audit, it reads Cinder first.
func (u *auditor) once(ctx context.Context) error {
	settings := u.policy().Audit
	var mu sync.Mutex
	var orphans []audit.Finding
	listings := audit.ListEach(u.backends.Names(), func(name string) ([]cinder.Volume, cinder.Place, error) {
		lifecycle, err := u.backends.current(name)
		if err == nil {
			err = lifecycle.Health()
		}
		if err != nil {
			return nil, cinder.Place{}, err
		}
		volumes, err := u.provisioner.RelistBackend(ctx, name)
		found := orphanSnapshots(name, u.snapshots.Audit(ctx, name))
		mu.Lock()
		defer mu.Unlock()
		orphans = append(orphans, found...)
		return volumes, lifecycle.Place(), err
	})
	if err := u.provisioner.SweepSecrets(ctx); err != nil && ctx.Err() == nil {
		u.warn("Looking for abandoned Secrets failed and will be retried", "error", err)
	}
	findings, err := u.compare(ctx, listings, settings.Delete)
	if err != nil {
		return err
	}
	findings = append(findings, orphans...)
	var removed []audit.Finding
	var notRemoved error
	if settings.Delete {
		findings, removed, notRemoved = audit.Remove(ctx, u.provisioner.Cleaner(), findings)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	u.metrics.done(findings, removed)
	u.last.Store(&lastAudit{time.Now(), findings})
	u.report(findings, removed)
	return notRemoved
}

// orphanSnapshots tells of snapshots that nothing needs any more but an operator.
func orphanSnapshots(backend string, orphans []snapshot.Orphan) (findings []audit.Finding) {
	for _, o := range orphans {
		id, noun := o.ID, "snapshot"
		if o.IsBackup {
			id, noun = "backup:"+o.ID, "backup"
		}
		findings = append(findings, audit.Finding{
			Kind: audit.OrphanSnapshot, Backend: backend, Snapshot: id, Tenant: o.Tenant,
			Message: fmt.Sprintf("no VolumeSnapshotContent names the %s, which was that of VolumeSnapshot %s", noun, o.Of),
		})
	}
	return findings
}

// compare compares with the caches, which costs the API server little. It confirms
// findings with what the API server has, unless an earlier audit has confirmed all of
// them and nothing is to be removed.
func (u *auditor) compare(ctx context.Context, listings map[string]audit.Listing, removes bool) ([]audit.Finding, error) {
	records, err := objects.ReadCached(ctx, u.client, u.caches, u.provisionerName, u.namespace)
	if err != nil {
		return nil, err
	}
	findings := u.compareWith(ctx, listings, records)
	if !slices.ContainsFunc(findings, func(f audit.Finding) bool {
		return f.Kind != audit.BackendUnreadable && (!u.reported[withoutMessage(f)] || removes && f.Removable)
	}) {
		return findings, nil
	}
	if records, err = objects.Read(ctx, u.client, u.provisionerName, u.namespace); err != nil {
		return nil, err
	}
	return u.compareWith(ctx, listings, records), nil
}

func (u *auditor) compareWith(ctx context.Context, listings map[string]audit.Listing, records objects.Records) []audit.Finding {
	audit.ConfirmMissing(ctx, u.find, listings, records)
	audit.ConfirmAttachments(ctx, u.find, listings, records)
	findings := audit.Compare(audit.State{Now: time.Now(), Cluster: u.cluster, ClusterUID: u.clusterUID, Grace: u.policy().Audit.Grace, Backends: listings, Records: records})
	unrecorded := map[string]bool{}
	for _, f := range findings {
		if f.IsUnrecorded() {
			unrecorded[f.Volume] = true
		}
	}
	// The volumes were listed first. Volumes that this term has removed since, by
	// whichever of a project's backends, may have gone before their PersistentVolumes
	// were read.
	gone := map[string]bool{}
	for backend, listing := range listings {
		for i := range listing.Volumes {
			if id := listing.Volumes[i].ID; unrecorded[id] && u.isGone(backend, id) {
				gone[id] = true
			}
		}
	}
	return slices.DeleteFunc(findings, func(f audit.Finding) bool { return f.IsUnrecorded() && gone[f.Volume] })
}

func (u *auditor) find(ctx context.Context, backend, id string) (cinder.Volume, bool, error) {
	lifecycle, err := u.backends.current(backend)
	if err != nil {
		return cinder.Volume{}, false, err
	}
	return lifecycle.Find(ctx, id)
}

// withoutMessage returns what a finding has in common with the same finding of the next
// audit, whose message contains another age.
func withoutMessage(f audit.Finding) audit.Finding {
	f.Message = ""
	return f
}

// maxReported limits how many findings without an object of their own get an event in
// one audit. The command `audit` lists them all.
const maxReported = 20

// report reports what is new: on the PersistentVolume if there is one, otherwise on the
// program's Lease.
func (u *auditor) report(findings, removed []audit.Finding) {
	for _, f := range removed {
		u.warn("Removed what the audit found to be unused", "kind", f.Kind, "backend", f.Backend, "subject", audit.Subject(f))
		u.tell(corev1.EventTypeNormal, "AuditRemoved", fmt.Sprintf("%s: %s on backend %s was removed: %s", f.Kind, audit.Subject(f), f.Backend, f.Message))
	}
	reported, more := map[audit.Finding]bool{}, 0
	for _, f := range findings {
		key := withoutMessage(f)
		reported[key] = true
		if u.reported[key] {
			continue
		}
		u.warn("The audit has a finding", "kind", f.Kind, "backend", f.Backend, "subject", audit.Subject(f), "finding", f.Message)
		if pv, err := u.caches.PersistentVolumes.Get(f.PersistentVolume); err == nil {
			u.record(pv, string(f.Kind), f.Message)
			continue
		}
		if more++; more <= maxReported {
			u.tell(corev1.EventTypeWarning, string(f.Kind), fmt.Sprintf("%s%s: %s", audit.Subject(f), onBackend(f), f.Message))
		}
	}
	if more > maxReported {
		u.tell(corev1.EventTypeWarning, "AuditFindings", fmt.Sprintf("%d more findings; the audit command lists them all", more-maxReported))
	}
	u.reported = reported
}

func onBackend(f audit.Finding) string {
	if f.Backend == "" {
		return ""
	}
	return " on backend " + f.Backend
}

// auditMetrics shows what this leader's last audit found.
type auditMetrics struct {
	findings  *prometheus.GaugeVec
	removed   *prometheus.CounterVec
	timestamp *prometheus.GaugeVec
}

func newAuditMetrics(registry prometheus.Registerer) *auditMetrics {
	m := &auditMetrics{
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_audit_findings",
			Help: "Problems that the last audit found, by kind and backend; only the leader exports it.",
		}, []string{"kind", "backend"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "standalone_cinder_audit_removed_total",
			Help: "Volumes and Secrets that audits removed because they were proven unused.",
		}, []string{"kind", "backend"}),
		timestamp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_audit_timestamp_seconds",
			Help: "Unix time of this leader's last audit; only the leader exports it, after its first.",
		}, nil),
	}
	registry.MustRegister(m.findings, m.removed, m.timestamp)
	return m
}

func (m *auditMetrics) done(findings, removed []audit.Finding) {
	m.findings.Reset()
	for _, f := range findings {
		m.findings.WithLabelValues(string(f.Kind), f.Backend).Inc()
	}
	for _, f := range removed {
		m.removed.WithLabelValues(string(f.Kind), f.Backend).Inc()
	}
	m.timestamp.WithLabelValues().SetToCurrentTime()
}

func (m *auditMetrics) forget() {
	m.findings.Reset()
	m.timestamp.Reset()
}
