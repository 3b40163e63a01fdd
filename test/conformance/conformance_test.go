package conformance

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/conformance.md")

func TestReportsAreRead(t *testing.T) {
	const driver = "External Storage [Driver: csi]"
	report := `[{"SpecReports": [
  {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
  {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Probes"], "LeafNodeText": "of another suite", "State": "skipped"},
  {"LeafNodeType": "It", "ContainerHierarchyTexts": ["` + driver + `", "[Testpattern: Dynamic PV (default fs)] volumes"], "LeafNodeText": "should store data",
   "State": "passed", "RunTime": 17900000000},
  {"LeafNodeType": "It", "ContainerHierarchyTexts": ["` + driver + `", "[Testpattern: Dynamic PV (block volmode)] [Slow] multiVolume [Slow]"],
   "LeafNodeText": "should use it", "State": "timedout", "RunTime": 300000000000, "Failure": {"Message": "too late"}},
  {"LeafNodeType": "It", "ContainerHierarchyTexts": ["` + driver + `", "[Testpattern: Dynamic PV (default fs)] capacity"], "LeafNodeText": "provides storage capacity information",
   "State": "skipped", "Failure": {"Message": "Driver \"csi\" does not publish capacity - skipping\nmore"}},
  {"LeafNodeType": "It", "ContainerHierarchyTexts": ["` + driver + `", "[Testpattern: Dynamic PV (default fs)] subPath"], "LeafNodeText": "should work", "State": "skipped"}
]}]`
	got, err := Results([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{
		{"csi", "volumes", "Dynamic PV (default fs): should store data", "passed", 17, ""},
		{"csi", "multiVolume", "Dynamic PV (block volmode): [Slow] should use it", "failed", 300, ""},
		{"csi", "capacity", "Dynamic PV (default fs): provides storage capacity information", "skipped", 0, "Driver NAME does not publish capacity"},
		{"csi", "subPath", "Dynamic PV (default fs): should work", notRun, 0, ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestPatternMatchesOneCase is about names as Ginkgo joins them.
func TestPatternMatchesOneCase(t *testing.T) {
	names := []string{
		"External Storage [Driver: csi] [Testpattern: Dynamic PV (block volmode)] [Slow] multiVolume [Slow] should use it [LinuxOnly]",
		"External Storage [Driver: csi-shared] [Testpattern: Dynamic PV (block volmode)] [Slow] multiVolume [Slow] should use it [LinuxOnly]",
		"External Storage [Driver: csi] [Testpattern: Dynamic PV (block volmode)] [Slow] multiVolume [Slow] should use it [LinuxOnly] again",
		"External Storage [Driver: csi] [Testpattern: Dynamic PV (block volmode)] volumeMode should use it  [LinuxOnly]",
	}
	for _, name := range names {
		result, err := spec{ContainerHierarchyTexts: []string{name}, State: "passed"}.result()
		if err != nil {
			t.Fatal(err)
		}
		pattern := regexp.MustCompile(result.pattern())
		for _, other := range names {
			if matches := pattern.MatchString(other); matches != (other == name) {
				t.Errorf("%s matches %q: %t", pattern, other, matches)
			}
		}
	}
}

func TestNewerResultsReplaceOlderUnlessTheyDidNotRun(t *testing.T) {
	older := []Result{{Driver: "csi", Suite: "volumes", Case: "a", State: "failed"}, {Driver: "csi", Suite: "volumes", Case: "b", State: "passed", Seconds: 20}}
	newer := []Result{{Driver: "csi", Suite: "volumes", Case: "a", State: "passed"}, {Driver: "csi", Suite: "volumes", Case: "b", State: notRun}, {Driver: "csi", Suite: "volumes", Case: "c", State: notRun}}
	want := []Result{newer[0], older[1], newer[2]}
	got := Merge(older, newer)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	path := filepath.Join(t.TempDir(), "results.tsv")
	if err := Save(path, got); err != nil {
		t.Fatal(err)
	}
	if again, err := Load(path); err != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("read %+v, %v", again, err)
	}
}

func TestCaseThatIsSkippedOrFailsNeedsAReason(t *testing.T) {
	for _, result := range []Result{{Driver: "csi", Suite: "volumes", Case: "a", State: "failed"}, {Driver: "csi", Suite: "volumes", Case: "a", State: "skipped", Why: "not here"}} {
		if _, err := Page([]Result{result}, nil); err == nil || !strings.Contains(err.Error(), "reason") {
			t.Errorf("%s: %v", result.State, err)
		}
		page, err := Page([]Result{result}, Reasons{result.State: {{regexp.MustCompile(`^(csi\tvolumes\ta|not here)$`), "It cannot be."}}})
		if err != nil || !strings.Contains(page, "It cannot be.") {
			t.Errorf("%s: %v, %s", result.State, err, page)
		}
	}
}

// TestPageIsUpToDate compares docs/reference/conformance.md with the kept results.
func TestPageIsUpToDate(t *testing.T) {
	results, err := Load("results.tsv")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile("reasons.yaml")
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := ReadReasons(content)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Page(results, reasons)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("..", "..", "docs", "reference", "conformance.md")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not what test/conformance makes (%v): go test ./test/conformance -run TestPageIsUpToDate -update", path, err)
	}
}

// TestSuiteIsOfTheVersion compares the nested module with what the page says.
func TestSuiteIsOfTheVersion(t *testing.T) {
	module, err := os.ReadFile(filepath.Join("suite", "go.mod"))
	if err != nil || !strings.Contains(string(module), "require k8s.io/kubernetes v"+Version+"\n") {
		t.Errorf("suite/go.mod does not require Kubernetes %s: %v", Version, err)
	}
}
