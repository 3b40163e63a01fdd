package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// maxOthers bounds how many non-matching tenants and rules the text lists; JSON lists
// all.
const maxOthers = 20

// textWriter prints lines and aligned tables into a buffer, which cannot fail.
type textWriter struct{ bytes.Buffer }

func (w *textWriter) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// table prints rows of cells in columns, each row behind the indentation.
func (w *textWriter) table(indent string, rows [][]string) {
	var aligned bytes.Buffer
	columns := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	_ = columns.Flush() // into memory
	for _, line := range strings.Split(strings.TrimSuffix(aligned.String(), "\n"), "\n") {
		w.line("%s%s", indent, strings.TrimRight(line, " "))
	}
}

func (e explanation) text(w *textWriter) {
	for i, c := range e.Claims {
		if i > 0 {
			w.line("")
		}
		c.write(w, e.Policy.Source, e.inUse(i))
	}
	if len(e.Ignored) > 0 {
		w.line("")
		w.line("Ignored: %s", strings.Join(e.Ignored, ", "))
	}
}

// inUse describes the assumed usage if none was given.
func (e explanation) inUse(claim int) string {
	switch {
	case !e.assumed:
		return ""
	case claim == 0:
		return "; usage is assumed to be 0; give it with --used"
	}
	return "; only what is granted above is assumed to be in use; give other usage with --used"
}

func (e claimExplanation) write(w *textWriter, source, inUse string) {
	e.writeHead(w, source)
	for _, note := range e.Notes {
		w.line("note: %s", note)
	}
	e.writeTenants(w)
	e.writeRules(w)
	e.writeVolume(w)
	e.writeBackends(w)
	e.writeQuotas(w, inUse)
}

func (e claimExplanation) writeHead(w *textWriter, source string) {
	name := "a claim in namespace " + e.Namespace
	if e.Name != "" {
		name = fmt.Sprintf("claim %s/%s", e.Namespace, e.Name)
	}
	size := e.Size
	if size == "" {
		size = "nothing"
	}
	details := []string{"volume mode " + string(e.VolumeMode)}
	if e.Limit != "" {
		details = append(details, "at most "+e.Limit)
	}
	if len(e.AccessModes) > 0 {
		details = append(details, strings.Join(e.AccessModes, " and "))
	}
	if e.Source != "" {
		details = append(details, e.Source)
	}
	class := "of StorageClass " + e.StorageClass
	if e.StorageClass == "" {
		class = "without a StorageClass"
	}
	w.line("%s: %s %s (%s)", capital(name), size, class, strings.Join(details, ", "))
	policyVerdict := ""
	switch {
	case e.Verdict == left:
		w.line("left: %s: %s", e.Refusal.Reason, e.Refusal.Message)
		w.line("The provisioner makes no volume for it. About the populator's claim, if it is like this one, the policy decides:")
		policyVerdict = "  "
	case e.Refusal != nil:
		w.line("refused: %s: %s", e.Refusal.Reason, e.Refusal.Message)
		w.line("The provisioner refuses the claim before it asks the policy, which would decide:")
		policyVerdict = "  "
	}
	switch {
	case e.Denial == nil:
		w.line("%sgranted: tenant %s, rule %s (%s), backend %s", policyVerdict, e.Tenant, e.Rule, placeOf(e.Rules, e.Rule, source), e.Backend)
	case e.Denial.Path == "":
		w.line("%sdenied: %s: %s", policyVerdict, e.Denial.Reason, e.Denial.Message)
	default:
		w.line("%sdenied: %s: %s", policyVerdict, e.Denial.Reason, e.Denial.Message)
		w.line("%sdecided by %s (%s:%d)", policyVerdict, e.Denial.Path, cmp.Or(e.Denial.File, source), e.Denial.Line)
	}
}

func placeOf(steps []step, path, source string) string {
	for _, s := range steps {
		if s.Path == path {
			return fmt.Sprintf("%s:%d", cmp.Or(s.File, source), s.Line)
		}
	}
	return source
}

func (e claimExplanation) writeTenants(w *textWriter) {
	if len(e.Tenants) == 0 {
		return
	}
	w.line("")
	w.line("Tenants (a name wins over a pattern, a pattern over namespaceSelector):")
	writeSteps(w, e.Tenants, func(s step) string { return s.Name })
}

func (e claimExplanation) writeRules(w *textWriter) {
	if len(e.Rules) == 0 {
		return
	}
	w.line("")
	w.line("Rules of tenant %s (the first one for the StorageClass decides):", e.Tenant)
	writeSteps(w, e.Rules, func(s step) string { return s.Path + " " + s.Name })
}

// writeSteps marks what applies, and bounds the number of the others.
func writeSteps(w *textWriter, steps []step, name func(step) string) {
	var rows [][]string
	others := 0
	for _, s := range steps {
		mark := " "
		switch s.Outcome {
		case chosen:
			mark = ">"
		case noMatch, notReached:
			if others++; others > maxOthers {
				continue
			}
		}
		rows = append(rows, []string{mark + " " + name(s), s.Detail})
	}
	w.table("  ", rows)
	if more := others - maxOthers; more > 0 {
		w.line("    and %d more that do not apply (--output json lists all)", more)
	}
}

func (e claimExplanation) writeVolume(w *textWriter) {
	if e.Volume == nil {
		return
	}
	v := e.Volume
	row := func(name, value, otherwise, property string) []string {
		switch {
		case value == "":
			value = otherwise
		case slices.Contains(v.Fixed, property):
			value += " (set by the rule)"
		case property == "type" && e.Attributes[policy.AttributesType] != "":
			value += " (set by the VolumeAttributesClass)"
		}
		return []string{name, value}
	}
	size := fmt.Sprintf("%d GiB", v.SizeGiB)
	if v.SizeGiB<<30 != e.Bytes {
		size += fmt.Sprintf(" (%d bytes rounded up to whole GiB)", e.Bytes)
	}
	var metadata []string
	for key, value := range v.Metadata {
		metadata = append(metadata, key+"="+value)
	}
	slices.Sort(metadata)
	rows := [][]string{
		{"size", size},
		row("type", v.Type, "Cinder's default", "type"),
		row("availability zone", v.AvailabilityZone, "Cinder's default", "availabilityZone"),
		row("filesystem", v.FSType, "none, it is a block volume", "fsType"),
	}
	if v.Mode != "" {
		rows = append(rows, []string{"mode", string(v.Mode) + ", attached to each node that uses it by the CSI driver " + policy.CSIDriver})
	}
	if v.Encrypt != nil {
		rows = append(rows, []string{"encryption", fmt.Sprintf("LUKS2, by the nodes; entry %s of Secret %s wraps the volume's key", v.Encrypt.Entry, v.Encrypt.KeySecret)})
	}
	for _, schedule := range v.Schedules {
		rows = append(rows, []string{"snapshots", schedule})
	}
	if len(metadata) > 0 {
		rows = append(rows, []string{"metadata", strings.Join(metadata, ", ") + ", and the provisioner's own"})
	}
	w.line("")
	title := "Volume:"
	switch {
	case e.Verdict == left:
		title = "Volume of the populator's claim, if it is like this one:"
	case e.Refusal != nil:
		title = "Volume, if the provisioner did not refuse the claim:"
	}
	w.line("%s", title)
	w.table("    ", rows)
}

// describeFencing describes what happens to a lost node's volume.
func describeFencing(f policy.Fencing) string {
	if f == policy.FencingInitiator {
		return "fencing: initiator, a volume of a lost node can be attached to another node at once"
	}
	return "fencing: export, a volume stays attached to a lost node until that node is clean, rebooted, deleted or tainted out-of-service"
}

func (e claimExplanation) writeBackends(w *textWriter) {
	if len(e.Backends) == 0 {
		return
	}
	var rows [][]string
	position := 0
	for _, b := range e.Backends {
		mark := " -"
		if b.Outcome == candidate {
			position++
			mark = fmt.Sprintf("%2d.", position)
		}
		rows = append(rows, []string{mark + " " + b.Name, b.Detail})
		if b.Outcome == candidate {
			connector := describeConnector(b.Connector)
			if b.Mode == policy.ModeCSI {
				connector = "each node's own"
				if len(b.Connector.NodeLabels) > 0 {
					connector += ", nodes with " + labels.FormatLabels(b.Connector.NodeLabels)
				}
			}
			rows = append(rows, []string{"", "connector: " + connector})
			if b.Mode == policy.ModeCSI {
				rows = append(rows, []string{"", describeFencing(b.Fencing)})
			}
			if b.MaxVolumesPerNode > 0 {
				rows = append(rows, []string{"", fmt.Sprintf("at most %d volumes on a node", b.MaxVolumesPerNode)})
			}
			for _, zone := range b.Zones {
				rows = append(rows, []string{"", "zone " + zone.Name + ": nodes with " + labels.FormatLabels(zone.NodeLabels)})
			}
		}
	}
	w.line("")
	w.line("Backends (the first one that is healthy and has room takes the volume):")
	w.table("  ", rows)
}

// describeConnector describes the connector sent to Cinder.
func describeConnector(c policy.Connector) string {
	parts := []string{"host " + c.Host, "initiator derived from the cluster's ID"}
	if c.Initiator != "" {
		parts[1] = "initiator " + c.Initiator
	}
	if c.IP != "" {
		parts = append(parts, "ip "+c.IP)
	}
	if len(c.WWPNs) > 0 {
		parts = append(parts, "wwpns "+strings.Join(c.WWPNs, " "))
	}
	if c.NQN != "" {
		parts = append(parts, "nqn "+c.NQN)
	}
	if c.Multipath {
		parts = append(parts, "multipath")
	}
	if len(c.NodeLabels) > 0 {
		parts = append(parts, "nodes with "+labels.FormatLabels(c.NodeLabels))
	}
	return strings.Join(parts, ", ")
}

func (e claimExplanation) writeQuotas(w *textWriter, inUse string) {
	if len(e.Quotas) == 0 {
		return
	}
	w.line("")
	w.line("Quotas (in use + this volume%s):", inUse)
	var rows [][]string
	for _, q := range e.Quotas {
		name := fmt.Sprintf("%s %s", q.Kind, q.Name)
		if q.Kind == policy.ClassScope {
			name = "rule " + q.Name
		}
		for _, sum := range []struct {
			unit        string
			used, would int64
			limit       *int64
		}{
			{"volumes", q.Used.Volumes, q.Would.Volumes, q.Limits.Volumes},
			{"GiB", q.Used.Gigabytes, q.Would.Gigabytes, q.Limits.Gigabytes},
		} {
			text := fmt.Sprintf("%d + %d = %d", sum.used, sum.would-sum.used, sum.would)
			switch {
			case sum.limit == nil:
				text += ", no limit"
			case sum.would > *sum.limit:
				text += fmt.Sprintf(" of %d: exceeded", *sum.limit)
			default:
				text += fmt.Sprintf(" of %d", *sum.limit)
			}
			rows = append(rows, []string{name, sum.unit, text})
			name = ""
		}
	}
	w.table("    ", rows)
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
