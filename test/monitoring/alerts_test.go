package monitoring

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

// alertCase is a course of series, and what one alert, or every alert if it names
// none, makes of it.
type alertCase struct {
	alert, name string
	// every is the pause between two scrapes, and between two evaluations.
	every time.Duration
	// series are in the notation of promtool; @a stands for the labels of pod a.
	series string
	// after is how long the course takes.
	after time.Duration
	// want are the labels of the alerts that fire in the end. If there are none,
	// the alert must not have fired at any time.
	want []string
}

const (
	scrape = 30 * time.Second
	hours  = 10 * time.Minute
	days   = 6 * time.Hour
)

// TestAlerts evaluates the shipped rules with Prometheus' own engine.
func TestAlerts(t *testing.T) {
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range alertCases {
		t.Run(c.alert+"/"+c.name, func(t *testing.T) {
			ever, last := evaluate(t, c)
			if len(c.want) == 0 {
				quiet[c.alert] = true
				if found := ever[c.alert]; len(found) > 0 {
					t.Errorf("fired with %q", found)
				}
				return
			}
			fires[c.alert] = true
			if found := last[c.alert]; !slices.Equal(found, c.want) {
				t.Errorf("in the end it fires with %q, want %q", found, c.want)
			}
		})
	}
	for _, rule := range alertingRules(t) {
		if !fires[rule.Name()] || !quiet[rule.Name()] {
			t.Errorf("%s needs a case in which it fires and one in which it does not", rule.Name())
		}
	}
}

// evaluate returns which alerts fired ever, and which in the end.
func evaluate(t *testing.T, c alertCase) (ever, last map[string][]string) {
	t.Helper()
	every := c.every
	if every == 0 {
		every = scrape
	}
	var load strings.Builder
	fmt.Fprintf(&load, "load %s\n", every)
	for line := range strings.Lines(c.series) {
		if line = strings.TrimSpace(line); line != "" {
			for _, pod := range []string{"a", "b", "c"} {
				line = strings.ReplaceAll(line, "@"+pod, fmt.Sprintf(`namespace="storage",pod="sc-%s"`, pod))
			}
			fmt.Fprintf(&load, "  %s\n", line)
		}
	}
	storage := promqltest.LoadedStorage(t, load.String())
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: newParser()})
	query := rules.EngineQueryFunc(engine, storage)
	ever = map[string][]string{}
	alerting := slices.DeleteFunc(alertingRules(t), func(rule *rules.AlertingRule) bool { return c.alert != "" && rule.Name() != c.alert })
	for at := time.Duration(0); at <= c.after; at += every {
		last = map[string][]string{}
		for _, rule := range alerting {
			if _, err := rule.Eval(t.Context(), 0, time.Unix(0, 0).Add(at), query, nil, 0); err != nil {
				t.Fatalf("%s: %v", rule.Name(), err)
			}
			rule.ForEachActiveAlert(func(alert *rules.Alert) {
				if alert.State != rules.StateFiring {
					return
				}
				if text := alert.Annotations.String(); strings.Contains(text, "<error") || strings.Contains(text, "<no value>") {
					t.Errorf("%s: the annotations are %s", rule.Name(), text)
				}
				found := labels.NewBuilder(alert.Labels).Del("alertname", "severity", "namespace").Labels().String()
				last[rule.Name()] = append(last[rule.Name()], found)
			})
			slices.Sort(last[rule.Name()])
			for _, found := range last[rule.Name()] {
				if !slices.Contains(ever[rule.Name()], found) {
					ever[rule.Name()] = append(ever[rule.Name()], found)
				}
			}
		}
	}
	return ever, last
}

func alertingRules(t *testing.T) []*rules.AlertingRule {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{Context: t.Context(), Logger: promslog.NewNopLogger(), Parser: newParser()})
	groups, errs := manager.LoadGroups(scrape, labels.EmptyLabels(), "", nil, false, alertsFile)
	for _, err := range errs {
		t.Fatal(err)
	}
	var found []*rules.AlertingRule
	for _, group := range groups {
		for _, rule := range group.Rules() {
			alerting, ok := rule.(*rules.AlertingRule)
			if !ok {
				t.Fatalf("%s is no alert", rule.Name())
			}
			alerting.SetRestored(true)
			found = append(found, alerting)
		}
	}
	return found
}

// TestHandOverIsQuiet: leaders change by handing over and by dying, and nobody is
// paged.
func TestHandOverIsQuiet(t *testing.T) {
	replica := func(pod, leads, leaderOnly string) string {
		return strings.NewReplacer("POD", "@"+pod, "LEADS", leads, "ONLY", leaderOnly).Replace(`
			up{POD} 1x240
			standalone_cinder_leader{POD} LEADS
			standalone_cinder_build_info{POD} 1x240
			standalone_cinder_policy_info{POD,revision="1"} 1x240
			standalone_cinder_policy_last_reload_successful{POD} 1x240
			standalone_cinder_credentials_read_success{POD,backend="gold"} 1x240
			process_start_time_seconds{POD} 0x240
			process_resident_memory_bytes{POD} 1e8x240
			go_gc_gomemlimit_bytes{POD} 2.5e8x240
			standalone_cinder_backend_up{POD,backend="gold"} ONLY
			standalone_cinder_last_good_kept{POD} ONLY
			standalone_cinder_last_login_successful{POD,backend="gold"} ONLY`)
	}
	// b takes over while the last scrape of a still shows it as the leader; later b
	// dies, and c leads after two scrapes without a leader.
	series := replica("a", "1x100 0x139", "1x100 stale") + replica("b", "0x99 1x98 stale", "_x100 1x98 stale") + replica("c", "0x201 1x38", "_x202 1x38")
	ever, _ := evaluate(t, alertCase{series: series, after: 2 * time.Hour})
	delete(ever, "StandaloneCinderAuditStale") // These replicas make no audits.
	if len(ever) > 0 {
		t.Errorf("alerts fired: %v", ever)
	}
}
