package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/plugin"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/events"
)

// Who exports a metric.
const (
	byLeader  = "the leader"
	byReplica = "every replica"
	byNode    = "every node plugin"
)

// presence is what the registry cannot say about a metric: who exports it, and
// when. TestMetricsOfTheReplicas checks the former against running replicas.
type presence struct{ by, when string }

const (
	always = "always"
	// Counters and histograms stay until the process ends, so an earlier leader has
	// them, too, as the page says above the tables.
	fromFirstOfLeader = "after the first one"
)

var presences = map[string]presence{
	"standalone_cinder_build_info":                                         {byReplica, always},
	"standalone_cinder_leader":                                             {byReplica, always},
	"standalone_cinder_policy_info":                                        {byReplica, "once a policy is in force"},
	"standalone_cinder_policy_last_reload_successful":                      {byReplica, "once a policy is in force"},
	"standalone_cinder_policy_last_reload_success_timestamp_seconds":       {byReplica, "once a policy is in force"},
	"standalone_cinder_last_good_kept":                                     {byLeader, "once it has tried"},
	"standalone_cinder_credentials_read_success":                           {byReplica, "once they were read, or could not be"},
	"standalone_cinder_credentials_read_timestamp_seconds":                 {byReplica, "once they were read"},
	"standalone_cinder_client_pool_lookups_total":                          {byLeader, fromFirstOfLeader},
	"standalone_cinder_logins_total":                                       {byLeader, fromFirstOfLeader},
	"standalone_cinder_last_login_successful":                              {byLeader, "after the first login to the backend in this term"},
	"standalone_cinder_token_expiry_timestamp_seconds":                     {byLeader, "while there is a token; never for noauth"},
	"standalone_cinder_certificate_expiry_timestamp_seconds":               {byLeader, "once the certificate was read or seen, while the backend is in the policy"},
	"standalone_cinder_openstack_request_duration_seconds":                 {byLeader, fromFirstOfLeader},
	"standalone_cinder_backend_up":                                         {byLeader, "after the first use of the backend in this term"},
	"standalone_cinder_backend_outages_total":                              {byLeader, "after the first use of the backend"},
	"standalone_cinder_volumes_in_flight":                                  {byLeader, "after the first volume of the backend; 0 at an earlier leader"},
	"standalone_cinder_claim_bound_duration_seconds":                       {byLeader, fromFirstOfLeader},
	"standalone_cinder_provision_duration_seconds":                         {byLeader, fromFirstOfLeader},
	"standalone_cinder_delete_duration_seconds":                            {byLeader, fromFirstOfLeader},
	"standalone_cinder_expand_duration_seconds":                            {byLeader, fromFirstOfLeader},
	"standalone_cinder_csi_requests_total":                                 {byLeader, fromFirstOfLeader},
	"standalone_cinder_csi_attach_duration_seconds":                        {byLeader, fromFirstOfLeader},
	"standalone_cinder_csi_attachments":                                    {byLeader, "with --csi-endpoint, for backends in mode csi"},
	"standalone_cinder_csi_unclean_volumes":                                {byLeader, "with --csi-endpoint, for backends in mode csi"},
	"standalone_cinder_csi_quarantined_nodes":                              {byLeader, "with --csi-endpoint, for backends in mode csi"},
	"standalone_cinder_lost_nodes_not_taken":                               {byLeader, "with --taint-lost-nodes, while there are any"},
	"standalone_cinder_out_of_service_taints_total":                        {byLeader, fromFirstOfLeader},
	"standalone_cinder_csi_request_duration_seconds":                       {byLeader, fromFirstOfLeader},
	"standalone_cinder_persistentvolumes":                                  {byLeader, "while there are any"},
	"standalone_cinder_oldest_released_persistentvolume_timestamp_seconds": {byLeader, "while there are any"},
	"standalone_cinder_move_volumes":                                       {byLeader, "while there are any"},
	"standalone_cinder_move_volumes_bytes":                                 {byLeader, "while there are any"},
	"standalone_cinder_oldest_move_volume_timestamp_seconds":               {byLeader, "while there are any"},
	"standalone_cinder_missing_backend_persistentvolumes":                  {byReplica, "while there are any"},
	"standalone_cinder_pending_claims":                                     {byLeader, "while there are any"},
	"standalone_cinder_oldest_pending_claim_timestamp_seconds":             {byLeader, "while there are any"},
	"standalone_cinder_pending_deletions":                                  {byLeader, "while there are any"},
	"standalone_cinder_pending_snapshots":                                  {byLeader, "while there are any"},
	"standalone_cinder_snapshot_take_duration_seconds":                     {byLeader, fromFirstOfLeader},
	"standalone_cinder_snapshot_imports_total":                             {byLeader, fromFirstOfLeader},
	"standalone_cinder_snapshot_delete_duration_seconds":                   {byLeader, fromFirstOfLeader},
	"standalone_cinder_scheduled_snapshots_total":                          {byLeader, fromFirstOfLeader},
	"standalone_cinder_scheduled_snapshots_late":                           {byLeader, "while there are any"},
	"standalone_cinder_volume_imports_total":                               {byLeader, fromFirstOfLeader},
	"standalone_cinder_turns":                                              {byLeader, always},
	"standalone_cinder_quota":                                              {byLeader, "`hard` where the policy sets a limit"},
	"standalone_cinder_audit_findings":                                     {byLeader, "after its first audit, while there are any"},
	"standalone_cinder_audit_removed_total":                                {byLeader, fromFirstOfLeader},
	"standalone_cinder_audit_timestamp_seconds":                            {byLeader, "after its first audit"},
	"standalone_cinder_events_waiting":                                     {byReplica, always},
	"standalone_cinder_events_dropped_total":                               {byReplica, always},

	"standalone_cinder_node_requests_total":              {byNode, "after the first one"},
	"standalone_cinder_node_request_duration_seconds":    {byNode, "after the first one"},
	"standalone_cinder_node_stage_step_duration_seconds": {byNode, "after the first one"},
	"standalone_cinder_node_refusals_total":              {byNode, "after the first one"},
	"standalone_cinder_node_stale_disks_removed_total":   {byNode, always},
	"standalone_cinder_node_unlimited_total":             {byNode, "after the first one"},
	"standalone_cinder_node_staged_volumes":              {byNode, always},
	"standalone_cinder_node_volumes_lacking_paths":       {byNode, always},

	"controller_persistentvolumeclaim_provision_total":            {byLeader, fromFirstOfLeader},
	"controller_persistentvolumeclaim_provision_failed_total":     {byLeader, fromFirstOfLeader + "; denials and waits for a turn count"},
	"controller_persistentvolumeclaim_provision_duration_seconds": {byLeader, fromFirstOfLeader},
	"controller_persistentvolume_delete_total":                    {byLeader, fromFirstOfLeader + "; waits for a turn count"},
	"controller_persistentvolume_delete_failed_total":             {byLeader, fromFirstOfLeader},
	"controller_persistentvolume_delete_duration_seconds":         {byLeader, fromFirstOfLeader},

	"rest_client_requests_total":                  {byReplica, "after the first one"},
	"rest_client_request_retries_total":           {byReplica, "after the first one"},
	"rest_client_request_duration_seconds":        {byReplica, "after the first one"},
	"rest_client_rate_limiter_duration_seconds":   {byReplica, "after the first one"},
	"workqueue_adds_total":                        {byLeader, fromFirstOfLeader},
	"workqueue_retries_total":                     {byLeader, fromFirstOfLeader},
	"workqueue_depth":                             {byLeader, "from its first term on"},
	"workqueue_unfinished_work_seconds":           {byLeader, "from its first term on"},
	"workqueue_longest_running_processor_seconds": {byLeader, "from its first term on"},
	"workqueue_queue_duration_seconds":            {byLeader, fromFirstOfLeader},
	"workqueue_work_duration_seconds":             {byLeader, fromFirstOfLeader},
}

const metricsDoc = "docs/metrics.md"

// nodePrefix begins the names of the node plugin's metrics.
const nodePrefix = "standalone_cinder_node_"

// generated separates the prose of docs/metrics.md from the tables.
const generated = "<!-- Made from the registry by go test -run TestMetricsDoc -update . -->\n"

// byLabels ends a metric's help with the names of its labels.
var byLabels = regexp.MustCompile(`(?:\.? Broken down|,?) by (?:[a-z]+|reclaim policy|gRPC code|storage class name|source of the claim)(?:(?:, | and )(?:[a-z]+|reclaim policy|gRPC code|source of the claim))*\.$`)

// TestMetricsDoc keeps the reference equal to what the program registers.
func TestMetricsDoc(t *testing.T) {
	content, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	prose, _, found := strings.Cut(string(content), generated)
	if !found {
		t.Fatalf("%s has no line %q", metricsDoc, generated)
	}
	want := prose + generated + metricTables(t)
	if *update {
		if err := os.WriteFile(metricsDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(content) != want {
		t.Errorf("%s does not match the program; rewrite it with go test -run TestMetricsDoc -update .\n%s", metricsDoc, difference(want, string(content)))
	}
}

func metricTables(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	left := map[string]bool{}
	for name := range presences {
		left[name] = true
	}
	for _, part := range []struct{ title, prefix string }{
		{"Own metrics", "standalone_cinder_"},
		{"Metrics of the node plugin", nodePrefix},
		{"Metrics of the provisioning library", "controller_"},
		{"Requests to the API server", "rest_client_"},
		{"Work queues", "workqueue_"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | meaning | exported by |\n|---|---|---|---|---|\n", part.title)
		for _, m := range describedMetrics(t) {
			if !strings.HasPrefix(m.name, part.prefix) || part.prefix != nodePrefix && strings.HasPrefix(m.name, nodePrefix) {
				continue
			}
			served, ok := presences[m.name]
			if !ok {
				t.Errorf("presences does not say who exports %s, and when", m.name)
			}
			delete(left, m.name)
			// The columns beside it say who exports the metric, and by what.
			meaning := strings.Replace(m.help, "; only the leader exports it.", ".", 1)
			meaning = byLabels.ReplaceAllString(meaning, ".")
			exported := served.by
			if served.when != always {
				exported += ", " + served.when
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), strings.ReplaceAll(meaning, "|", `\|`), exported)
		}
	}
	for name := range left {
		t.Errorf("presences has %s, which the program does not register", name)
	}
	return b.String()
}

// TestMetricNames runs promlint on every metric.
func TestMetricNames(t *testing.T) {
	var text bytes.Buffer
	for _, m := range describedMetrics(t) {
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		// Promlint judges metrics only with a sample.
		labels := make([]string, len(m.labels))
		for i, label := range m.labels {
			labels[i] = label + `="x"`
		}
		suffix := ""
		if m.kind == "histogram" {
			suffix, labels = "_bucket", append(labels, `le="+Inf"`)
		}
		fmt.Fprintf(&text, "%s%s{%s} 1\n", m.name, suffix, strings.Join(labels, ","))
	}
	problems, err := promlint.New(&text).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

// describedMetric is a metric as the program registers it.
type describedMetric struct {
	name, kind, help string
	labels           []string
}

// describedMetrics returns the metrics of a program that has all its parts,
// except those of the Go runtime and the process.
func describedMetrics(t *testing.T) []describedMetric {
	t.Helper()
	notes := &descriptions{Registry: prometheus.NewRegistry()}
	options := app.Options{
		PolicyFile: "config.example.yaml", Namespace: "storage", Listen: "127.0.0.1:0", Workers: 1, KubeQPS: 1, KubeBurst: 1,
		Config: &rest.Config{Host: "https://127.0.0.1:1"}, Logger: slog.New(slog.DiscardHandler), Metrics: notes, Protocols: mappers.BuiltIn(),
	}
	if _, err := app.New(options); err != nil {
		t.Fatal(err)
	}
	events.NewRecorder(nil, nil, notes, nil) // which Run makes
	wiring.NewClientMetrics(notes)           // which main makes
	plugin.NewMetrics(notes)                 // which the command node makes
	notes.MustRegister(plugin.StagedVolumes(func() (int, error) { return 0, nil }))
	notes.MustRegister(plugin.LackingPaths(func() int { return 0 }))
	slices.SortFunc(notes.metrics, func(a, b describedMetric) int { return strings.Compare(a.name, b.name) })
	return notes.metrics
}

// descriptions is a registry that records the descriptions of registered
// metrics.
type descriptions struct {
	*prometheus.Registry
	metrics []describedMetric
}

var described = regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]*)",.* constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

func (d *descriptions) MustRegister(all ...prometheus.Collector) {
	for _, collector := range all {
		found := make(chan *prometheus.Desc)
		go func() {
			defer close(found)
			collector.Describe(found)
		}()
		for desc := range found {
			parts := described.FindStringSubmatch(desc.String())
			labels := strings.Split(parts[4], ",")
			if name, _, constant := strings.Cut(parts[3], "="); constant {
				labels = append(labels, name)
			}
			labels = slices.DeleteFunc(labels, func(label string) bool { return label == "" })
			d.metrics = append(d.metrics, describedMetric{name: parts[1], kind: kindOf(collector), help: parts[2], labels: labels})
		}
	}
	d.Registry.MustRegister(all...)
}

// kindOf returns the type of a collector's metrics. The program's own
// collectors export gauges; TestMetricsOfTheReplicas compares the types with
// those that running replicas export.
func kindOf(collector prometheus.Collector) string {
	name := strings.ToLower(reflect.TypeOf(collector).String())
	for _, kind := range []string{"histogram", "counter"} {
		if strings.HasSuffix(strings.TrimSuffix(name, "vec"), "."+kind) {
			return kind
		}
	}
	return "gauge"
}
