package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// LiveOptions configure a live check.
type LiveOptions struct {
	// CloudsFile is clouds.yaml; empty means the OpenStack clients' usual search path, as
	// for the running program.
	CloudsFile string
	// MakeVolume makes, connects, maps and removes volumes.
	MakeVolume bool
	// Tell is called with progress messages for a waiting operator, by several goroutines
	// at once.
	Tell func(message string)
}

// LiveReport is the result for a policy's backends.
type LiveReport struct {
	// Backends are in the order of the policy.
	Backends []LiveBackend `json:"backends"`
	// Trials are the results of --make-volume.
	Trials   []Trial   `json:"trials,omitempty"`
	Findings []Finding `json:"-"`
}

// LiveBackend is the result for one backend. Unknown values are empty.
type LiveBackend struct {
	Name string `json:"name"`
	// Reachable means that the login succeeded and that Cinder listed volumes.
	Reachable bool   `json:"reachable"`
	Error     string `json:"error,omitempty"`

	Endpoint     string     `json:"endpoint,omitempty"`
	Project      string     `json:"project,omitempty"`
	Region       string     `json:"region,omitempty"`
	Interface    string     `json:"interface,omitempty"`
	Microversion string     `json:"microversion,omitempty"`
	Workflow     string     `json:"workflow,omitempty"`
	DefaultType  string     `json:"defaultVolumeType,omitempty"`
	VolumeTypes  []string   `json:"volumeTypes,omitempty"`
	Zones        []string   `json:"availabilityZones,omitempty"`
	Quota        *LiveQuota `json:"quota,omitempty"`
	// ClockAheadSeconds is how far the backend's clock is ahead of this machine's.
	ClockAheadSeconds *int64 `json:"clockAheadSeconds,omitempty"`
}

// LiveQuota is Cinder's own quota of the project; a limit of -1 means none.
type LiveQuota struct {
	Volumes   LiveLimit `json:"volumes"`
	Gigabytes LiveLimit `json:"gigabytes"`
}

// LiveLimit is a limit and how much of it is used.
type LiveLimit struct {
	Limit int64 `json:"limit"`
	Used  int64 `json:"used"`
}

// Trial is one volume of --make-volume.
type Trial struct {
	Backend string `json:"backend"`
	// Rules are the policy's rules that would create such a volume there.
	Rules            []string `json:"rules"`
	VolumeType       string   `json:"volumeType,omitempty"`
	AvailabilityZone string   `json:"availabilityZone,omitempty"`
	FSType           string   `json:"fsType,omitempty"`
	// Mode is empty for native volumes.
	Mode policy.Mode `json:"mode,omitempty"`
	// Volume is Cinder's ID.
	Volume string `json:"volume,omitempty"`
	// Source is the PersistentVolume's source; Secret describes its Secret without the
	// values.
	Source   *corev1.PersistentVolumeSource `json:"source,omitempty"`
	Secret   string                         `json:"secret,omitempty"`
	Warnings []string                       `json:"warnings,omitempty"`
	// Step is the failed one, with Error.
	Step  TrialStep `json:"failedStep,omitempty"`
	Error string    `json:"error,omitempty"`
	// Left names what could not be removed, and how to remove it.
	Left string `json:"left,omitempty"`
}

// TrialStep is a step in the life of a trial's volume.
type TrialStep string

// The steps of a trial. A trial that failed at StepBegin was not run.
const (
	StepBegin   TrialStep = "begin"
	StepCreate  TrialStep = "create"
	StepConnect TrialStep = "connect"
	StepMap     TrialStep = "map"
)

// askBackends asks the backends and adds their problems to the report.
func (o checkOptions) askBackends(cmd *cobra.Command, p *policy.Policy, r *report) {
	var telling sync.Mutex
	answered := o.Live(cmd.Context(), p, LiveOptions{CloudsFile: o.cloudsFile, MakeVolume: o.makeVolume, Tell: func(message string) {
		telling.Lock()
		defer telling.Unlock()
		// Harmless if this fails; the report repeats it.
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), message)
	}})
	r.Live = &answered
	r.add(p, answered.Findings)
	r.add(p, answered.bothModes(p))
}

// bothModes finds backends that point to one project, which the policy alone did not
// show, and that have volumes of both modes on one node.
func (l *LiveReport) bothModes(p *policy.Policy) (findings []Finding) {
	known := p.BothModes(p.ProjectOf)
	shown := p.BothModes(func(b policy.Backend) string {
		for _, answer := range l.Backends {
			if answer.Name == b.Name && answer.Project != "" {
				return "project " + answer.Project + " at " + answer.Endpoint
			}
		}
		return ""
	})
	for _, path := range slices.Sorted(maps.Keys(shown)) {
		if known[path] == "" {
			findings = append(findings, Finding{Path: path, Message: shown[path], Warning: true})
		}
	}
	return findings
}

// add adds findings at their lines.
func (r *report) add(p *policy.Policy, findings []Finding) {
	for _, finding := range findings {
		at := policy.Error{Source: cmp.Or(p.FileOf(finding.Path), p.Source), Line: p.Line(finding.Path), Path: finding.Path, Message: finding.Message}
		if finding.Warning {
			r.Warnings = append(r.Warnings, at)
		} else {
			r.Errors, r.Valid = append(r.Errors, at), false
		}
	}
}

func (l *LiveReport) text(w *textWriter) {
	w.line("")
	for _, b := range l.Backends {
		if !b.Reachable {
			w.line("backend %s: not usable", b.Name)
			continue
		}
		w.line("backend %s: %s", b.Name, strings.Join(b.facts(), ", "))
	}
	for _, t := range l.Trials {
		t.text(w)
	}
}

// facts returns a reachable backend's properties as parts of a sentence.
func (b LiveBackend) facts() []string {
	facts := []string{"reachable at " + b.Endpoint}
	add := func(format string, value string) {
		if value != "" {
			facts = append(facts, fmt.Sprintf(format, value))
		}
	}
	add("project %s", b.Project)
	add("region %s", b.Region)
	add("interface %s", b.Interface)
	add("microversion %s", b.Microversion)
	add("workflow %s", b.Workflow)
	if b.Quota != nil {
		add("Cinder's quota %s", b.Quota.Volumes.Describe("volumes")+" and "+b.Quota.Gigabytes.Describe("GiB"))
	}
	if ahead := b.ClockAheadSeconds; ahead != nil && *ahead < 0 {
		add("clock %s s behind this machine's", fmt.Sprint(-*ahead))
	} else if ahead != nil {
		add("clock %s s ahead of this machine's", fmt.Sprint(*ahead))
	}
	return facts
}

// Describe returns a phrase such as "3 of 10 volumes".
func (l LiveLimit) Describe(unit string) string {
	if l.Limit < 0 {
		return fmt.Sprintf("%d of unlimited %s", l.Used, unit)
	}
	return fmt.Sprintf("%d of %d %s", l.Used, l.Limit, unit)
}

func (t Trial) text(w *textWriter) {
	fmt.Fprintf(w, "\nvolume on backend %s for %s", t.Backend, strings.Join(t.Rules, ", "))
	for _, property := range []struct{ name, value string }{{"type", t.VolumeType}, {"zone", t.AvailabilityZone}, {"filesystem", t.FSType}, {"mode", string(t.Mode)}} {
		if property.value != "" {
			fmt.Fprintf(w, ", %s %s", property.name, property.value)
		}
	}
	w.line(":")
	if t.Volume != "" {
		w.line("  volume %s", t.Volume)
	}
	if t.Source != nil {
		// The source was decoded from an answer and always encodes.
		source, _ := json.Marshal(t.Source)
		w.line("  would be mounted as %s", source)
	}
	if t.Secret != "" {
		w.line("  with %s", t.Secret)
	}
	for _, warning := range t.Warnings {
		w.line("  note: %s", warning)
	}
	switch {
	case t.Error == "":
	case t.Step == StepBegin:
		w.line("  not tried: %s", t.Error)
	default:
		w.line("  failed at step %s: %s", t.Step, t.Error)
	}
	switch {
	case t.Left != "":
		w.line("  left: %s", t.Left)
	case t.Volume != "":
		w.line("  removed")
	}
}

// Live asks the backends of a policy.
type Live func(ctx context.Context, p *policy.Policy, options LiveOptions) LiveReport
