package app

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/moves"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// reloadMetrics show which policy is in force and whether it is the one in the
// file.
type reloadMetrics struct {
	// success and timestamp are not exported before the first policy is in force.
	success   *prometheus.GaugeVec
	timestamp *prometheus.GaugeVec
	info      *prometheus.GaugeVec
	kept      *prometheus.GaugeVec

	mu       sync.Mutex
	revision string
}

func newReloadMetrics(registry prometheus.Registerer) *reloadMetrics {
	m := &reloadMetrics{
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_policy_last_reload_successful",
			Help: "1 while the policy file is the policy in force, 0 while the file is refused and the last good policy stays in force.",
		}, nil),
		timestamp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_policy_last_reload_success_timestamp_seconds",
			Help: "Unix time at which the policy in force was loaded.",
		}, nil),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_policy_info",
			Help: "1, with the revision of the policy in force as a label.",
		}, []string{"revision"}),
		kept: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "standalone_cinder_last_good_kept",
			Help: "Whether the policy in force is kept for replicas that start with a bad file (1) or could not be written (0); only the leader exports it.",
		}, nil),
	}
	registry.MustRegister(m.success, m.timestamp, m.info, m.kept)
	return m
}

// inForce records the policy in force, and that it is the file.
func (m *reloadMetrics) inForce(revision string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.success.WithLabelValues().Set(1)
	if m.revision == revision {
		return
	}
	m.revision = revision
	m.timestamp.WithLabelValues().Set(float64(time.Now().Unix()))
	m.info.Reset()
	m.info.WithLabelValues(revision).Set(1)
}

// failed records that the file was refused.
func (m *reloadMetrics) failed() { m.success.WithLabelValues().Set(0) }

// keeping records whether the policy in force is kept.
func (m *reloadMetrics) keeping(good bool) {
	m.kept.WithLabelValues().Set(0)
	if good {
		m.kept.WithLabelValues().Set(1)
	}
}

func (m *reloadMetrics) keepingEnded() { m.kept.Reset() }

// importMetrics count the imports of tenants' claims. Outcomes are bounded by the
// retry table.
type importMetrics struct{ imports *prometheus.CounterVec }

func newImportMetrics(registry prometheus.Registerer) *importMetrics {
	m := &importMetrics{imports: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "standalone_cinder_volume_imports_total",
		Help: "Attempts to import a volume for a tenant's claim, by outcome.",
	}, []string{"outcome"})}
	registry.MustRegister(m.imports)
	return m
}

func (m *importMetrics) count(outcome string) { m.imports.WithLabelValues(outcome).Inc() }

// termCollector exports what only the leader knows. It counts when it is scraped, so
// nothing has to be kept current, and a follower exports nothing.
type termCollector struct {
	replica *replica

	quota, claims, oldest, deletions *prometheus.Desc
	snapshots                        *prometheus.Desc
	volumes, released, turns         *prometheus.Desc
	moves, moveBytes, oldestMove     *prometheus.Desc
	tokenExpiry, certificateExpiry   *prometheus.Desc
}

func newTermCollector(of *replica) *termCollector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("standalone_cinder_"+name, help+"; only the leader exports it.", labels, nil)
	}
	return &termCollector{
		replica: of,
		quota: describe("quota",
			"Limits of the policy (type hard) and what counts against them (type used), by scope (tenant, class, backend) and resource (volumes, gigabytes in GiB, and of tenants and classes snapshots, snapshotGigabytes, backups and backupGigabytes)",
			"scope", "name", "resource", "type"),
		claims: describe("pending_claims",
			"Claims that cannot continue now, by state (waiting for a worker, denied, failing, blocked) and reason of their last event",
			"state", "reason"),
		oldest: describe("oldest_pending_claim_timestamp_seconds",
			"Unix time at which the oldest pending claim was created, by state and reason",
			"state", "reason"),
		deletions: describe("pending_deletions",
			"Released PersistentVolumes whose deletion cannot continue now, by state and reason of their last event",
			"state", "reason"),
		snapshots: describe("pending_snapshots",
			"VolumeSnapshots, VolumeGroupSnapshots and their contents (kind) that cannot continue now, by state and reason of their last event",
			"kind", "state", "reason"),
		volumes: describe("persistentvolumes",
			"PersistentVolumes of this provisioner and cluster, by backend, protocol, phase and reclaim policy",
			"backend", "protocol", "phase", "reclaim_policy"),
		released: describe("oldest_released_persistentvolume_timestamp_seconds",
			"Unix time at which the claim of the oldest released PersistentVolume was deleted, by backend, protocol and reclaim policy",
			"backend", "protocol", "reclaim_policy"),
		moves: describe("move_volumes",
			"Volumes of the claims that moves between backends made, by backend and copy: partial, or former, which a claim had before and somebody deletes when the copy is trusted",
			"backend", "copy"),
		moveBytes: describe("move_volumes_bytes",
			"Size of the volumes of the claims that moves between backends made, by backend and copy",
			"backend", "copy"),
		oldestMove: describe("oldest_move_volume_timestamp_seconds",
			"Unix time at which the oldest move began whose volume is still there, by backend and copy",
			"backend", "copy"),
		turns: describe("turns",
			"Claims, deletions and follow-ups that a worker is handling (state held) or that wait for a worker (state waiting)",
			"work", "state"),
		tokenExpiry: describe("token_expiry_timestamp_seconds",
			"Unix time at which the token in use expires, by backend; the next request renews it",
			"backend"),
		certificateExpiry: describe("certificate_expiry_timestamp_seconds",
			"Unix time at which a certificate expires, by backend and certificate: client (the one in clouds.yaml), keystone or cinder (the server's, or an authority that it was verified by)",
			"backend", "certificate"),
	}
}

// Describe implements prometheus.Collector.
func (c *termCollector) Describe(to chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{c.quota, c.claims, c.oldest, c.deletions, c.snapshots, c.volumes, c.released, c.moves, c.moveBytes, c.oldestMove, c.turns, c.tokenExpiry, c.certificateExpiry} {
		to <- description
	}
}

// Collect implements prometheus.Collector.
func (c *termCollector) Collect(to chan<- prometheus.Metric) {
	term := c.replica.term()
	if term == nil {
		return
	}
	gauge := func(description *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
	}
	for _, quota := range term.provisioner.Quotas() {
		for _, l := range limitsOf(quota) {
			scope, name := string(quota.Scope.Kind), quota.Scope.Name
			gauge(c.quota, float64(l.Used), scope, name, l.Key, "used")
			if l.Most != nil {
				gauge(c.quota, float64(*l.Most), scope, name, l.Key, "hard")
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
	pending := map[[3]string]int{}
	term.snapshots.Parked().Each(func(object metav1.Object, state parking.Reason, reason string) {
		pending[[3]string{snapshot.KindOf(object), string(state), reason}]++
	})
	for labels, count := range pending {
		gauge(c.snapshots, float64(count), labels[:]...)
	}
	for _, turns := range term.provisioner.Turns() {
		gauge(c.turns, float64(turns.Held), turns.Work, "held")
		gauge(c.turns, float64(turns.Waiting), turns.Work, "waiting")
	}
	c.collectVolumes(term.provisioner, gauge)
	c.collectMoves(term.moves, gauge)
	c.collectExpiries(gauge)
}

type exportGauge func(description *prometheus.Desc, value float64, labels ...string)

func (c *termCollector) collectVolumes(p *provisioner.Provisioner, gauge exportGauge) {
	counts, err := p.PersistentVolumeCounts()
	if err != nil {
		return // The cache never returns an error.
	}
	for group, count := range counts {
		gauge(c.volumes, float64(count.Count), group.Backend, group.Protocol, string(group.Phase), string(group.ReclaimPolicy))
		if group.Phase == corev1.VolumeReleased && !count.Since.IsZero() {
			gauge(c.released, unixSeconds(count.Since), group.Backend, group.Protocol, string(group.ReclaimPolicy))
		}
	}
}

func (c *termCollector) collectMoves(reporter *moves.Reporter, gauge exportGauge) {
	counts, err := reporter.Counts()
	if err != nil {
		return // The cache never returns an error.
	}
	for group, count := range counts {
		gauge(c.moves, float64(count.Volumes), group.Backend, group.Copy)
		gauge(c.moveBytes, float64(count.GiB<<30), group.Backend, group.Copy)
		gauge(c.oldestMove, unixSeconds(count.Oldest), group.Backend, group.Copy)
	}
}

// collectExpiries exports the expiry times that are known of the policy's backends.
func (c *termCollector) collectExpiries(gauge exportGauge) {
	inForce := c.replica.policy.Load()
	for i := range inForce.Backends {
		name := inForce.Backends[i].Name
		found := c.replica.pool.Expiry(wiring.BackendConfig(inForce, &inForce.Backends[i], c.replica.cluster))
		if !found.Token.IsZero() {
			gauge(c.tokenExpiry, unixSeconds(found.Token), name)
		}
		for _, certificate := range certificatesOf(found) {
			gauge(c.certificateExpiry, unixSeconds(certificate.Expires), name, certificate.Of)
		}
	}
}

// limitsOf lists the limits of a scope that are exported.
func limitsOf(quota provisioner.QuotaUse) []policy.Limit {
	limits := quota.Scope.Limits.Limits(quota.Used)
	switch quota.Scope.Kind {
	case policy.BackendScope:
		limits = slices.DeleteFunc(limits, func(l policy.Limit) bool { return l.OfSnapshots })
	case policy.ClassScope:
		// Most rules have no limits, and each would be a series.
		if !slices.ContainsFunc(limits, func(l policy.Limit) bool { return l.Most != nil }) {
			return nil
		}
	}
	return limits
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
