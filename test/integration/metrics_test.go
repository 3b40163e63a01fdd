package integration

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// documented is a row of docs/metrics.md.
type documented struct{ kind, labels, by string }

var metricRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (\\w+) \\| ([a-z_, ]*) \\|.*\\| (the leader|every replica)(?:, [^|]*)? \\|$")

// TestMetricsOfTheReplicas compares what running replicas export with
// docs/metrics.md: types, labels, and who exports what.
func TestMetricsOfTheReplicas(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	reference := map[string]documented{}
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		reference[row[1]] = documented{row[2], row[3], row[4]}
	}
	if len(reference) < 40 {
		t.Fatalf("docs/metrics.md has only %d metrics", len(reference))
	}

	w := newWorld(t, "metrics", cindersim.Options{})
	w.policy = strings.Replace(w.policy, "clusterID: cluster-metrics\n", "clusterID: cluster-metrics\naudit: {interval: 500ms, grace: 1m}\n", 1)
	replicas := w.startThree(shortLease...)
	leader := w.leader(replicas)
	const claims = 3
	for i := range claims {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	_, err = suite.WaitBound(w.ctx, "metrics-a", claims)
	w.must(err)
	w.claim("a", "too-large-for-cinder", "gold", "100Ti")
	w.must(suite.Client.CoreV1().PersistentVolumeClaims("metrics-a").Delete(w.ctx, "data-0", metav1.DeleteOptions{}))
	for _, line := range []string{
		fmt.Sprintf(`standalone_cinder_claim_bound_duration_seconds_count{backend="gold",tenant="tenant-a"} %d`, claims),
		fmt.Sprintf(`standalone_cinder_claim_bound_duration_seconds_bucket{backend="gold",tenant="tenant-a",le="60"} %d`, claims),
		fmt.Sprintf(`standalone_cinder_persistentvolumes{backend="gold",phase="Bound",protocol="iscsi",reclaim_policy="Delete"} %d`, claims-1),
		`standalone_cinder_pending_claims{reason="ProvisioningFailed",state="failing"} 1`,
		`standalone_cinder_turns{state="waiting",work="deletions"} 0`,
		`standalone_cinder_last_login_successful{backend="gold"} 1`,
		fmt.Sprintf(`controller_persistentvolumeclaim_provision_total{class="%s",source=""} %d`, w.name+"-gold", claims),
		`workqueue_depth{name="claims"} 0`,
		`workqueue_depth{name="followup"} 0`,
	} {
		w.metric(leader, line)
	}
	w.metricNamed(leader, "standalone_cinder_audit_timestamp_seconds")
	// While the failing claim is tried again, none is pending.
	w.metricNamed(leader, "standalone_cinder_oldest_pending_claim_timestamp_seconds")
	found := w.families(leader)
	for _, name := range []string{
		"standalone_cinder_token_expiry_timestamp_seconds",
		"rest_client_requests_total", "rest_client_request_duration_seconds", "rest_client_rate_limiter_duration_seconds",
		"workqueue_queue_duration_seconds", "go_gc_gomemlimit_bytes", "process_resident_memory_bytes", "process_start_time_seconds", "process_cpu_seconds_total",
	} {
		if _, ok := found[name]; !ok {
			t.Errorf("the leader does not export %s", name)
		}
	}
	for _, replica := range replicas {
		for name, exported := range w.families(replica) {
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				continue
			}
			want, ok := reference[name]
			if !ok {
				t.Errorf("docs/metrics.md does not mention %s", name)
				continue
			}
			if exported.kind != want.kind || exported.labels != sorted(want.labels) {
				t.Errorf("%s is a %s with the labels %q; docs/metrics.md has %s and %q", name, exported.kind, exported.labels, want.kind, want.labels)
			}
			if replica != leader && want.by == "the leader" {
				t.Errorf("a follower exports %s", name)
			}
		}
	}

	// A new leader sees that the claims are Bound, but did not see them become so.
	leader.Kill()
	next := w.leader(slices.DeleteFunc(replicas, func(r *harness.Replica) bool { return r == leader }))
	w.metricNamed(next, "standalone_cinder_audit_timestamp_seconds")
	if _, counted := w.families(next)["standalone_cinder_claim_bound_duration_seconds"]; counted {
		t.Error("the new leader counts claims that were Bound before its term")
	}
	w.must(suite.DeleteClaims(w.ctx, "metrics-a"))
	w.noResidue()
}

// metricNamed waits until the replica exports a metric.
func (w *world) metricNamed(replica *harness.Replica, name string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, ok := w.families(replica)[name]; !ok {
			return "no metric " + name, nil
		}
		return "", nil
	}))
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	seriesLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelName  = regexp.MustCompile(`(?:^|,)([a-z_]+)="`)
)

// families returns the metrics that a replica exports now, with the labels of
// their series.
func (w *world) families(replica *harness.Replica) map[string]documented {
	w.Helper()
	_, body, err := replica.Get(w.ctx, "/metrics")
	w.must(err)
	found := map[string]documented{}
	current := ""
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if named := typeLine.FindStringSubmatch(line); named != nil {
			current = named[1]
			found[current] = documented{kind: named[2]}
			continue
		}
		if series := seriesLine.FindStringSubmatch(line); series != nil {
			names := map[string]bool{}
			for _, label := range labelName.FindAllStringSubmatch(series[2], -1) {
				names[label[1]] = true
			}
			delete(names, "le")
			family := found[current]
			family.labels = strings.Join(slices.Sorted(maps.Keys(names)), ", ")
			found[current] = family
		}
	}
	return found
}

func sorted(names string) string {
	if names == "" {
		return ""
	}
	list := strings.Split(names, ", ")
	slices.Sort(list)
	return strings.Join(list, ", ")
}
