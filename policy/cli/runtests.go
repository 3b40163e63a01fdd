package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

func newTestCommand(options Options) *cobra.Command {
	var policyFile, output string
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Compare the decisions of a policy with expected ones",
		Long: `Compare the decisions of a policy with expected ones. FILE is a table of claims
and snapshots with expectations; - is standard input:

  apiVersion: standalone-cinder.openstack.org/v1alpha1
  kind: PolicyTest
  policy: policy.yaml              # relative to this file
  tests:
    - name: team-a gets an SSD
      claim: {namespace: team-a, storageClass: fast, size: 10Gi}
      expect: {tenant: team-a, backends: [gold], volume: {type: ssd}}
    - name: strangers get nothing
      claim: {namespace: stranger, storageClass: fast, size: 10Gi}
      expect: {denied: NoMatchingTenant}
    - name: team-a may take snapshots of it
      snapshot: {namespace: team-a, storageClass: fast, backend: gold}
      expect: {tenant: team-a}

The command compares only what an expectation gives. Without denied, the claim or
snapshot must be granted. It shows differences with - for expected and + for decided.

Exit codes: 0 all decisions are as expected; 1 some are not, or the policy has
errors, which are listed; 2 wrong usage, an unreadable file, or errors in FILE.`,
		Example: `  standalone-cinder policy test policy.test.yaml
  standalone-cinder policy test --policy new-policy.yaml policy.test.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("%s takes one FILE, or - for standard input, but was given %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTests(cmd, args[0], policyFile, output, options.Protocols)
		},
		ValidArgsFunction: completeFile,
	}
	cmd.Flags().StringVar(&policyFile, "policy", "", "policy `file` or directory instead of the one that FILE names; - for standard input")
	outputFlag(cmd, &output)
	completeYAML(cmd, "policy")
	return cmd
}

func runTests(cmd *cobra.Command, file, policyFile, output string, protocols mapping.Protocols) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	if err := checkStdin(file, policyFile); err != nil {
		return err
	}
	tests, err := readTests(file, cmd.InOrStdin())
	if err != nil {
		return reportMistakes(cmd, output, file, err, ExitUsage)
	}
	if policyFile == "" {
		if tests.Policy == "" {
			return usageError("%s names no policy; write policy: FILE into it, or give --policy", tests.Source)
		}
		policyFile = tests.ResolvePolicy()
	}
	p, err := loadPolicy(cmd, policyFile, output, protocols)
	if err != nil {
		return err
	}
	r := testAll(tests, p)
	if err := answer(cmd, output, r); err != nil {
		return err
	}
	if r.Failed > 0 {
		return &ExitError{Code: ExitFailed, Err: fmt.Errorf("%s: %d of %s failed", r.Source, r.Failed, count(len(r.Tests), "test"))}
	}
	return nil
}

func readTests(file string, stdin io.Reader) (*policy.TestFile, error) {
	if file == "-" {
		return policy.ReadTests(stdin, stdinName)
	}
	return policy.LoadTests(file)
}

// testReport is the output of policy test.
type testReport struct {
	Source string         `json:"source"`
	Policy policyIdentity `json:"policy"`
	Passed int            `json:"passed"`
	Failed int            `json:"failed"`
	Tests  []testResult   `json:"tests"`
}

// testResult is the result of one test.
type testResult struct {
	Name string `json:"name"`
	// Line is the test's first line in the file.
	Line        int          `json:"line"`
	Passed      bool         `json:"passed"`
	Differences []difference `json:"differences"`
	Decided     decided      `json:"decided"`
}

// difference is a part of the decision that differs from the expectation.
type difference struct {
	Field    string `json:"field"`
	Line     int    `json:"line"`
	Expected string `json:"expected"`
	Decided  string `json:"decided"`
}

// decided is the decision under test.
type decided struct {
	Granted  bool                     `json:"granted"`
	Denial   *policy.Denial           `json:"denial,omitempty"`
	Tenant   string                   `json:"tenant,omitempty"`
	Rule     string                   `json:"rule,omitempty"`
	Backends []string                 `json:"backends,omitempty"`
	Volume   *policy.VolumeProperties `json:"volume,omitempty"`
}

// String returns the text that follows "denied: ".
func (d decided) String() string {
	if d.Denial == nil {
		return "no (granted)"
	}
	return fmt.Sprintf("%s (%s)", d.Denial.Reason, d.Denial.Message)
}

func testAll(tests *policy.TestFile, p *policy.Policy) testReport {
	r := testReport{Source: tests.Source, Policy: policyIdentity{p.Source, p.Revision()}}
	for i, test := range tests.Tests {
		c := &comparison{line: func(field string) int { return tests.Line(i, field) }, differences: []difference{}}
		decided := c.run(p, test)
		passed := len(c.differences) == 0
		r.Tests = append(r.Tests, testResult{
			Name: test.Name, Line: tests.Line(i, ""), Passed: passed, Differences: c.differences, Decided: decided,
		})
		if passed {
			r.Passed++
		} else {
			r.Failed++
		}
	}
	return r
}

// comparison collects the differences in one test.
type comparison struct {
	line        func(field string) int
	differences []difference
}

func (c *comparison) run(p *policy.Policy, test policy.TestCase) decided {
	usages, err := p.Usages(test.Used)
	if err != nil {
		// The policy no longer has what the test refers to.
		var unknown policy.ErrorList
		errors.As(err, &unknown)
		for _, e := range unknown {
			c.add(e.Path, "a "+e.Path[strings.LastIndexByte(e.Path, '.')+1:]+" of the policy", e.Message)
		}
		usages = policy.Usages{}
	}
	d := decideTest(p, test, usages)
	c.compare(test.Expect, d)
	slices.SortStableFunc(c.differences, func(a, b difference) int { return a.Line - b.Line })
	return d
}

func decideTest(p *policy.Policy, test policy.TestCase, usages policy.Usages) decided {
	if test.Snapshot != nil {
		decision := p.DecideSnapshot(test.Snapshot.Request(p))
		denial := decision.SnapshotDenial(test.Snapshot.GiB(), usages.Of)
		d := decided{Granted: denial == nil, Denial: denial, Tenant: decision.Tenant, Rule: decision.Rule}
		if d.Granted {
			d.Backends = decision.Backends
		}
		return d
	}
	decision := p.Decide(test.Claim.Request())
	room := decision.Room(usages.Of)
	d := decided{Granted: room.Denial == nil, Denial: room.Denial, Tenant: decision.Tenant, Rule: decision.Rule}
	if d.Granted {
		volume := decision.VolumeOn(room.Backends[0])
		d.Backends, d.Volume = room.Backends, &volume
	}
	return d
}

func (c *comparison) add(field, expected, decided string) {
	c.differences = append(c.differences, difference{Field: field, Line: c.line(field), Expected: expected, Decided: decided})
}

func (c *comparison) compare(expect policy.TestExpectation, d decided) {
	switch {
	case expect.Denied == "" && !d.Granted:
		c.add("expect", "granted", "denied: "+d.String())
	case expect.Denied != "" && (d.Granted || d.Denial.Reason != expect.Denied):
		c.add("expect.denied", string(expect.Denied), d.String())
	case expect.Message != "" && !strings.Contains(d.Denial.Message, expect.Message):
		c.add("expect.message", "a message with "+strconv.Quote(expect.Message), strconv.Quote(d.Denial.Message))
	}
	c.text("expect.tenant", expect.Tenant, d.Tenant)
	c.text("expect.rule", expect.Rule, d.Rule)
	if !d.Granted {
		return
	}
	if expect.Backends != nil && !slices.Equal(expect.Backends, d.Backends) {
		c.add("expect.backends", list(expect.Backends), list(d.Backends))
	}
	if d.Volume == nil {
		return
	}
	v := expect.Volume
	if v.SizeGiB != nil && *v.SizeGiB != d.Volume.SizeGiB {
		c.add("expect.volume.sizeGiB", strconv.FormatInt(*v.SizeGiB, 10), strconv.FormatInt(d.Volume.SizeGiB, 10))
	}
	c.text("expect.volume.type", v.Type, d.Volume.Type)
	c.text("expect.volume.availabilityZone", v.AvailabilityZone, d.Volume.AvailabilityZone)
	c.text("expect.volume.fsType", v.FSType, d.Volume.FSType)
	c.text("expect.volume.mode", string(v.Mode), string(cmp.Or(d.Volume.Mode, policy.ModeNative)))
	if encrypted := d.Volume.Encrypt != nil; v.Encrypted != nil && *v.Encrypted != encrypted {
		c.add("expect.volume.encrypted", strconv.FormatBool(*v.Encrypted), strconv.FormatBool(encrypted))
	}
	for _, key := range slices.Sorted(maps.Keys(v.Metadata)) {
		value, ok := d.Volume.Metadata[key]
		if ok && value == v.Metadata[key] {
			continue
		}
		got := "none"
		if ok {
			got = strconv.Quote(value)
		}
		c.add(policy.FieldPath("expect.volume.metadata", key), strconv.Quote(v.Metadata[key]), got)
	}
}

// text compares two values; an empty one means that nothing is expected.
func (c *comparison) text(field, expected, decided string) {
	if expected == "" || expected == decided {
		return
	}
	if decided == "" {
		decided = "none"
	}
	c.add(field, expected, decided)
}

func list(values []string) string { return "[" + strings.Join(values, ", ") + "]" }

func (r testReport) text(w *textWriter) {
	for _, t := range r.Tests {
		if t.Passed {
			w.line("ok    %s", t.Name)
			continue
		}
		w.line("FAIL  %s (%s:%d)", t.Name, r.Source, t.Line)
		for _, d := range t.Differences {
			field := ""
			if name, ok := strings.CutPrefix(d.Field, "expect."); ok {
				field = name + ": "
			}
			w.line("      line %d", d.Line)
			w.line("        - %s%s", field, d.Expected)
			w.line("        + %s%s", field, d.Decided)
		}
	}
	w.line("%s of %s (revision %s): %d passed, %d failed", count(len(r.Tests), "test"), r.Policy.Source, r.Policy.Revision, r.Passed, r.Failed)
}
