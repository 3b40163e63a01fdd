package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Reason says why a case is skipped, or why it fails.
type Reason struct {
	// Says matches what the suite says when it skips the case, or the case's name.
	Says *regexp.Regexp
	Why  string
}

// Reasons are those of reasons.yaml, by the state of the case.
type Reasons map[string][]Reason

// ReadReasons reads reasons.yaml.
func ReadReasons(content []byte) (Reasons, error) {
	var listed map[string][]struct {
		Says string `json:"says"`
		Why  string `json:"why"`
	}
	if err := yaml.UnmarshalStrict(content, &listed); err != nil {
		return nil, err
	}
	reasons := Reasons{}
	for state, all := range listed {
		for _, one := range all {
			says, err := regexp.Compile(one.Says)
			if err != nil {
				return nil, err
			}
			reasons[state] = append(reasons[state], Reason{says, one.Why})
		}
	}
	return reasons, nil
}

// of returns the reason of a case that is skipped or fails.
func (all Reasons) of(r Result) (string, error) {
	text := r.Why
	if r.State == "failed" {
		text = r.key()
	}
	for _, reason := range all[r.State] {
		if reason.Says.MatchString(text) {
			return reason.Why, nil
		}
	}
	return "", fmt.Errorf("%s: reasons.yaml has no reason for %q", r.State, text)
}

func resultsPath(root string) string {
	return filepath.Join(root, "test", "conformance", "results.tsv")
}

// Record puts the results of a report into test/conformance/results.tsv, and returns those
// of the report that failed. root is that of the repository.
func Record(root, report string) (failed []Result, err error) {
	content, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	newer, err := Results(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", report, err)
	}
	path := resultsPath(root)
	results, err := Load(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return by(newer, func(r Result) string { return r.State })["failed"], Save(path, Merge(results, newer))
}

// Unexpected returns an error for each result without a reason in reasons.yaml.
func Unexpected(root string, results []Result) error {
	content, err := os.ReadFile(filepath.Join(root, "test", "conformance", "reasons.yaml"))
	if err != nil {
		return err
	}
	reasons, err := ReadReasons(content)
	if err != nil {
		return err
	}
	var unexpected []error
	for _, r := range results {
		_, err := reasons.of(r)
		unexpected = append(unexpected, err)
	}
	return errors.Join(unexpected...)
}

// Page returns docs/reference/conformance.md. A case that is skipped, or that fails, without
// a reason is an error.
func Page(results []Result, reasons Reasons) (string, error) {
	skipped, failed := map[string][]Result{}, map[string][]Result{}
	for _, r := range results {
		groups := map[string]map[string][]Result{"skipped": skipped, "failed": failed}[r.State]
		if groups == nil {
			continue
		}
		why, err := reasons.of(r)
		if err != nil {
			return "", err
		}
		groups[why] = append(groups[why], r)
	}
	drivers := slices.Sorted(maps.Keys(by(results, func(r Result) string { return r.Driver })))
	var page strings.Builder
	fmt.Fprintf(&page, head, Version)
	fmt.Fprintf(&page, "| suite | %s |\n|---|%s\n", strings.Join(drivers, " | "), strings.Repeat("---|", len(drivers)))
	suites := by(results, func(r Result) string { return r.Suite })
	for _, suite := range slices.Sorted(maps.Keys(suites)) {
		if slices.ContainsFunc(suites[suite], func(r Result) bool { return r.State == "passed" || r.State == "failed" }) {
			row(&page, suite, drivers, suites[suite])
		}
	}
	row(&page, "**all**", drivers, results)
	if len(failed) > 0 {
		page.WriteString("\n## Cases that fail\n\n| cases | why |\n|---|---|\n")
		for _, why := range slices.Sorted(maps.Keys(failed)) {
			var names []string
			cases := by(failed[why], func(r Result) string { return r.Suite + ", " + short(r.Case) })
			for _, name := range slices.Sorted(maps.Keys(cases)) {
				of := by(cases[name], func(r Result) string { return r.Driver })
				names = append(names, fmt.Sprintf("%s (%s)", name, strings.Join(slices.Sorted(maps.Keys(of)), ", ")))
			}
			fmt.Fprintf(&page, "| %s | %s |\n", strings.Join(names, "<br>"), why)
		}
	}
	page.WriteString("\n## Cases that are skipped\n\n| cases | why |\n|---|---|\n")
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(&page, "| %s | %s |\n", counts(skipped[why], drivers), why)
	}
	return page.String(), nil
}

// tags match the labels that the suite repeats in the names of its cases.
var tags = regexp.MustCompile(` ?\[[^]]*\]`)

// short returns enough of a case's name to find it.
func short(name string) string {
	const most = 90
	name = tags.ReplaceAllString(name, "")
	if at := strings.LastIndex(name[:min(len(name), most)], " "); len(name) > most && at > 0 {
		return name[:at] + " …"
	}
	return name
}

// counts says how many cases are of which driver.
func counts(results []Result, drivers []string) string {
	of := by(results, func(r Result) string { return r.Driver })
	var parts []string
	for _, driver := range drivers {
		if n := len(of[driver]); n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", driver, n))
		}
	}
	return strings.Join(parts, ", ")
}

const head = `# Kubernetes' storage tests

This page is made from test/conformance/results.tsv, which lists every case of Kubernetes' own suite for storage drivers, as of %s.
` + "`make conformance`" + ` runs it with two real kubelets, Cinder 21, and sidecars and DaemonSet of the manifests. Each column is a file of
test/conformance/drivers, with what the mode has; its numbers are the cases that passed, failed, were skipped, and have not
run yet. The columns -shared have only suites in which several pods use a volume. Not listed: suites without a case
that ran.

`

func row(page *strings.Builder, name string, drivers []string, results []Result) {
	byDriver := by(results, func(r Result) string { return r.Driver })
	fmt.Fprintf(page, "| %s |", name)
	for _, driver := range drivers {
		if byDriver[driver] == nil {
			page.WriteString(" |")
			continue
		}
		state := by(byDriver[driver], func(r Result) string { return r.State })
		fmt.Fprintf(page, " %d/%d/%d/%d |", len(state["passed"]), len(state["failed"]), len(state["skipped"]), len(state[notRun]))
	}
	page.WriteString("\n")
}

func by(results []Result, key func(Result) string) map[string][]Result {
	groups := map[string][]Result{}
	for _, r := range results {
		groups[key(r)] = append(groups[key(r)], r)
	}
	return groups
}
