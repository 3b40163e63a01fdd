// Package monitoring tests what deploy/ ships for Prometheus and Grafana, with
// their own parsers and engine.
package monitoring

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

var (
	root       = filepath.Join("..", "..")
	alertsFile = filepath.Join(root, "deploy", "chart", "alerts.yaml")
)

// newParser returns the parser of a Prometheus without experimental features.
func newParser() parser.Parser { return parser.NewParser(parser.Options{}) }

// TestManifestsLoad reads the manifests with the operator's types, strictly, and
// the rules with Prometheus' own loader.
func TestManifestsLoad(t *testing.T) {
	var monitor monitoringv1.PodMonitor
	load(t, filepath.Join("pod-monitor", "podmonitor.yaml"), &monitor)
	if len(monitor.Spec.PodMetricsEndpoints) != 1 || *monitor.Spec.PodMetricsEndpoints[0].Port != "http" {
		t.Errorf("the PodMonitor's endpoints are %v", monitor.Spec.PodMetricsEndpoints)
	}
	var rule monitoringv1.PrometheusRule
	load(t, filepath.Join("prometheus-rule", "prometheusrule.yaml"), &rule)

	text, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	fromManifest, errs := rulefmt.Parse(text, false, model.UTF8Validation, newParser(), promslog.NewNopLogger())
	for _, err := range errs {
		t.Error(err)
	}
	fromFile := ruleGroups(t)
	if !slices.EqualFunc(fromManifest.Groups, fromFile.Groups, func(a, b rulefmt.RuleGroup) bool {
		return a.Name == b.Name && slices.EqualFunc(a.Rules, b.Rules, func(a, b rulefmt.Rule) bool { return a.Alert == b.Alert && a.Expr == b.Expr && a.For == b.For })
	}) {
		t.Error("the PrometheusRule's groups are not those of the chart's alerts.yaml")
	}
}

func load(t *testing.T, component string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "deploy", "components", component))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(content, into); err != nil {
		t.Errorf("%s: %v", component, err)
	}
}

func ruleGroups(t *testing.T) *rulefmt.RuleGroups {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation, newParser(), promslog.NewNopLogger())
	for _, err := range errs {
		t.Fatal(err)
	}
	return groups
}

var heading = regexp.MustCompile(`(?m)^## (\S+)\n`)

// TestEveryAlertHasARunbook: the link leads to a section with all four parts, and
// no section is left over.
func TestEveryAlertHasARunbook(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "docs", "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	at := heading.FindAllStringSubmatchIndex(string(content), -1)
	for i, found := range at {
		end := len(content)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		sections[string(content[found[2]:found[3]])] = string(content[found[1]:end])
	}
	for _, group := range ruleGroups(t).Groups {
		for _, rule := range group.Rules {
			section, ok := sections[rule.Alert]
			delete(sections, rule.Alert)
			for _, part := range []string{"**Meaning.**", "**Impact.**", "**Diagnosis.**", "**Remedy.**"} {
				if !ok || !strings.Contains(section, part) {
					t.Errorf("docs/runbooks.md says no %s about %s", part, rule.Alert)
				}
			}
			if want := "/docs/runbooks.md#" + strings.ToLower(rule.Alert); !strings.HasSuffix(rule.Annotations["runbook_url"], want) {
				t.Errorf("%s: runbook_url is %q, want one that ends with %s", rule.Alert, rule.Annotations["runbook_url"], want)
			}
			for _, name := range []string{"summary", "description"} {
				if rule.Annotations[name] == "" {
					t.Errorf("%s has no %s", rule.Alert, name)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
				t.Errorf("%s: severity is %q", rule.Alert, rule.Labels["severity"])
			}
		}
	}
	for name := range sections {
		t.Errorf("docs/runbooks.md has a section about %s, which is no alert", name)
	}
}

// TestAlertsNameExistingMetrics: a renamed metric or label would silence an alert.
func TestAlertsNameExistingMetrics(t *testing.T) {
	known := publicFace(t)
	for _, group := range ruleGroups(t).Groups {
		for _, rule := range group.Rules {
			known.check(t, rule.Alert, rule.Expr)
		}
	}
}

// face is what the program promises.
type face struct {
	// labels has the labels of every metric that replicas export.
	labels map[string][]string
	// text is the golden list itself.
	text string
}

// foreign are metrics of Prometheus, and of the Go runtime and the process, whose
// collectors have no configuration.
var foreign = map[string][]string{
	"up": nil, "process_start_time_seconds": nil, "process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil,
	"go_gc_gomemlimit_bytes": nil, "go_goroutines": nil,
}

// ofTheTarget are labels that a scrape adds.
var ofTheTarget = []string{"namespace", "pod"}

var faceLine = regexp.MustCompile(`(?m)^([a-z_]+)\{([a-z_,]*)\}$`)

// publicFace reads the golden list of metrics.
func publicFace(t *testing.T) face {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "testdata", "public_face.txt"))
	if err != nil {
		t.Fatal(err)
	}
	types, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := maps.Clone(foreign)
	for _, found := range faceLine.FindAllStringSubmatch(string(content), -1) {
		name, names := found[1], strings.Split(found[2], ",")
		if !strings.Contains(string(types), "`"+name+"` | histogram |") {
			known[name] = names
			continue
		}
		known[name+"_bucket"] = append(slices.Clone(names), "le")
		known[name+"_count"], known[name+"_sum"] = names, names
	}
	if len(known) < 30 {
		t.Fatalf("only %d metrics are known", len(known))
	}
	return face{known, string(content)}
}

// check parses an expression, and looks up every metric and label in it.
func (f face) check(t *testing.T, where, text string) {
	t.Helper()
	expression, err := newParser().ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	// Labels of an aggregation or a match must be those of some metric below it.
	below := func(node parser.Node) (names []string) {
		parser.Inspect(node, func(n parser.Node, _ []parser.Node) error {
			if selector, ok := n.(*parser.VectorSelector); ok {
				names = append(names, f.labels[selector.Name]...)
			}
			return nil
		})
		return append(names, ofTheTarget...)
	}
	has := func(names []string, label string) {
		if !slices.Contains(names, label) {
			t.Errorf("%s: no metric in %s has the label %s", where, text, label)
		}
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			if _, ok := f.labels[n.Name]; !ok {
				t.Errorf("%s: there is no metric %q", where, n.Name)
			}
			for _, matcher := range n.LabelMatchers {
				if matcher.Name == model.MetricNameLabel {
					continue
				}
				has(append(slices.Clone(f.labels[n.Name]), ofTheTarget...), matcher.Name)
				if matcher.Name != "kind" && matcher.Name != "reason" {
					continue
				}
				for _, value := range strings.Split(matcher.Value, "|") {
					if !strings.Contains(f.text, "\n"+value+"\n") {
						t.Errorf("%s: there is no %s %s", where, matcher.Name, value)
					}
				}
			}
		case *parser.AggregateExpr:
			for _, label := range n.Grouping {
				has(below(n.Expr), label)
			}
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				for _, label := range n.VectorMatching.MatchingLabels {
					has(below(n.LHS), label)
					has(below(n.RHS), label)
				}
			}
		}
		return nil
	})
}
