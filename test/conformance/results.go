package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Result is that of one case.
type Result struct {
	// Driver is the name in the driver's file.
	Driver string
	// Suite and Case are the suite's names: "volumes", and the pattern of the volume with
	// what is tested.
	Suite, Case string
	// State is passed, failed, skipped, or not run.
	State string
	// Seconds is how long it took.
	Seconds int
	// Why is what the suite says about a skipped case.
	Why string
}

var (
	caseDriver = regexp.MustCompile(`\[Driver: ([^\]]+)\]`)
	// caseNames splits "[Testpattern: Dynamic PV (default fs)] volumes should store data".
	caseNames = regexp.MustCompile(`\[Testpattern: (.*?)\] (?:\[[^\]]*\] ?)*([a-zA-Z-]+)(.*)`)
)

// spec is what Ginkgo reports about a case.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 int64
	Failure                 struct{ Message string }
}

// notRun is the state of a case that no run has chosen.
const notRun = "not run"

// Results reads a report of Ginkgo's.
func Results(report []byte) ([]Result, error) {
	var runs []struct{ SpecReports []spec }
	if err := json.Unmarshal(report, &runs); err != nil {
		return nil, err
	}
	var results []Result
	for _, run := range runs {
		for _, s := range run.SpecReports {
			if s.LeafNodeType != "It" || len(s.ContainerHierarchyTexts) == 0 || !caseDriver.MatchString(s.ContainerHierarchyTexts[0]) {
				continue
			}
			result, err := s.result()
			if err != nil {
				return nil, err
			}
			if !isShared(result.Driver) || slices.Contains(sharedSuites, result.Suite) {
				results = append(results, result)
			}
		}
	}
	return results, nil
}

// sharedSuites have the cases in which several pods use a volume, or its copy.
var sharedSuites = []string{"multiVolume", "provisioning", "volumeMode"}

// isShared reports whether a driver's volumes may be used by several nodes at once. All
// else is as with the driver of the same name without the ending.
func isShared(driver string) bool { return strings.HasSuffix(driver, "-shared") }

// neverRun are the cases that cannot pass although the files declare what they need.
var neverRun = []struct {
	name *regexp.Regexp
	says string
}{
	{regexp.MustCompile("should provision storage with any volume data source"), "its images cannot be made here"},
	{regexp.MustCompile(`-shared\] .*\((default fs|ext4|xfs|filesystem volmode)\)\] .*multiVolume .*the single volume from pods on different node`), "a filesystem has one writer"},
}

func (s spec) result() (Result, error) {
	name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
	driver, parts := caseDriver.FindStringSubmatch(name), caseNames.FindStringSubmatch(name)
	if driver == nil || parts == nil {
		return Result{}, fmt.Errorf("the case %q is none of a driver's", name)
	}
	r := Result{
		Driver: driver[1], Suite: parts[2], Case: strings.Join(strings.Fields(parts[1]+":"+parts[3]), " "),
		State: s.State, Seconds: int(s.RunTime / 1e9),
	}
	switch s.State {
	case "passed":
	case "skipped":
		// A case that was not chosen is skipped, too, without a message.
		r.Why = skipMessage(s.Failure.Message, r.Driver)
		for _, never := range neverRun {
			if r.Why == "" && never.name.MatchString(name) {
				r.Why = never.says
			}
		}
		if r.Why == "" {
			r.State = notRun
		}
	case "interrupted", "aborted": // the run was ended by hand
		r.State = notRun
	default: // failed, panicked, timedout
		r.State = "failed"
	}
	return r, nil
}

var quoted = regexp.MustCompile(`"[^"]*"`)

// skipMessage shortens what the suite says when it skips a case, so that equal reasons of
// different drivers are equal.
func skipMessage(message, driver string) string {
	message = strings.TrimSuffix(strings.TrimSpace(strings.Split(message, "\n")[0]), " - skipping")
	message = strings.TrimSuffix(message, " -- skipping")
	return strings.Replace(quoted.ReplaceAllString(message, "NAME"), "Driver "+driver+" ", "Driver NAME ", 1)
}

// pattern matches the case's name, and no other's.
func (r Result) pattern() string {
	names := strings.SplitN(r.Case, ":", 2)
	return regexp.QuoteMeta("[Driver: "+r.Driver+"] [Testpattern: "+names[0]+"] ") + `(\[[^\]]*\] ?)*` + r.Suite +
		strings.ReplaceAll(regexp.QuoteMeta(names[1]), " ", `\s+`) + `\s*$`
}

func (r Result) key() string { return r.Driver + "\t" + r.Suite + "\t" + r.Case }

// Merge returns the results with newer ones in place of the same cases', unless those did
// not run.
func Merge(results, newer []Result) []Result {
	all := map[string]Result{}
	for _, r := range slices.Concat(results, newer) {
		if _, known := all[r.key()]; !known || r.State != notRun {
			all[r.key()] = r
		}
	}
	keys := slices.Sorted(maps.Keys(all))
	merged := make([]Result, len(keys))
	for i, key := range keys {
		merged[i] = all[key]
	}
	return merged
}

// Load reads a file that Save wrote; without one, there are no results.
func Load(path string) ([]Result, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var results []Result
	for line := range strings.Lines(string(content)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 6 {
			return nil, fmt.Errorf("%s: %q has not six columns", path, line)
		}
		r := Result{Driver: fields[0], Suite: fields[1], Case: fields[2], State: fields[3], Why: fields[5]}
		if _, err := fmt.Sscan(fields[4], &r.Seconds); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// Save writes a line for each case.
func Save(path string, results []Result) error {
	var lines strings.Builder
	for _, r := range results {
		fmt.Fprintf(&lines, "%s\t%s\t%d\t%s\n", r.key(), r.State, r.Seconds, r.Why)
	}
	return os.WriteFile(path, []byte(lines.String()), 0o644)
}
