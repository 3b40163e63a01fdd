package statusreport

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// WriteTable writes a tenant and its rules.
func (t *Tenant) WriteTable(w io.Writer) error {
	one := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	one.tenantTitle()
	one.tenant(*t)
	return one.Flush()
}

// WriteTable writes the report for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.head(r)
	t.backends(r)
	t.tenants(r)
	if len(r.KeptVolumes) > 0 {
		t.title("KEPT (the PersistentVolumes are gone)", "BACKEND", "VOLUMES", "GIB")
		for _, kept := range r.KeptVolumes {
			t.row(kept.Tenant, kept.Backend, fmt.Sprint(kept.Volumes), fmt.Sprint(kept.Gigabytes))
		}
	}
	if len(r.Moves) > 0 {
		t.title("MOVES (delete former volumes when their copies are trusted)", "BACKEND", "VOLUMES", "GIB", "OLDEST")
		for _, move := range r.Moves {
			t.row(move.Copy, move.Backend, fmt.Sprint(move.Volumes), fmt.Sprint(move.Gigabytes), r.Age(move.Oldest))
		}
	}
	if r.Claims != nil {
		t.inFlight(r.Claims.InFlight)
	}
	for _, section := range r.Sections() {
		t.section(r, section)
	}
	t.audit(r)
	t.pods(r)
	return t.Flush()
}

// table writes rows of cells.
type table struct{ *tabwriter.Writer }

// OneLine keeps text that others wrote from breaking the table or the terminal.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
}

func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = OneLine(cell)
	}
	fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// title begins a table whose columns have their own widths.
func (t *table) title(cells ...string) {
	t.gap()
	t.row(cells...)
}

func (t *table) gap() {
	_ = t.Flush()
	fmt.Fprintln(t)
}

func (t *table) head(r *Report) {
	replica := r.Replica.Identity
	switch {
	case r.Replica.Leads:
		replica += " (leads since " + FormatTime(r.Replica.LeadsSince) + ")"
	case !r.Replica.Ready:
		replica += " (not ready)"
	}
	source := ""
	if r.Policy.Source == FromLastGood {
		source = fmt.Sprintf(" (the last good one, kept in %s)", r.Policy.KeptIn)
	}
	t.row("time", FormatTime(r.Time))
	for _, sentence := range slices.Concat(r.Troubles(), r.Delays()) {
		t.row("verdict", sentence)
	}
	t.row("version", r.Program.Version)
	t.row("replica", replica)
	t.row("leader", cmp.Or(r.Leader.Identity, "not known"))
	t.row("policy", fmt.Sprintf("%s, revision %s%s", r.Policy.File, cmp.Or(r.Policy.Revision, "none yet"), source))
	if s := r.Selection; s != nil {
		t.row("namespace", s.Namespace+": "+cmp.Or(s.Message, "tenant "+s.Tenant))
	}
	for _, mistake := range r.Policy.Refused {
		t.row("refused", mistake)
	}
	for _, trouble := range r.Credentials {
		t.row("credentials", trouble.Backend+": "+trouble.Message)
	}
	if r.LeaderOnly != "" {
		t.row("note", r.LeaderOnly)
	}
}

func (t *table) backends(r *Report) {
	t.title("BACKEND", "STATE", "VOLUMES", "GIB", "LAST FAILURE")
	for _, b := range r.Backends {
		state := string(b.State)
		if b.State == CircuitOpen {
			state = "circuit open"
		}
		if !b.Since.IsZero() {
			state += " since " + FormatTime(b.Since)
		}
		if b.FailuresInARow > 0 {
			state += fmt.Sprintf(", failures in a row: %d", b.FailuresInARow)
		}
		if b.Suspended {
			state += ", suspended"
		}
		if b.Retired {
			state += ", not in the policy: kept for deletions"
		}
		for _, c := range b.Certificates {
			if sentence := r.Expiring(c); sentence != "" {
				state += ", " + sentence
			}
		}
		failure := b.LastFailure
		if failure != "" {
			failure += " (" + r.Age(b.LastFailureAt) + " ago)"
		}
		cells := quotaCells(b.Quotas)
		t.row(b.Name, state, cells[0], cells[1], failure)
	}
}

func (t *table) tenants(r *Report) {
	t.gap()
	t.tenantTitle()
	for _, tenant := range r.Tenants {
		t.tenant(tenant)
	}
	t.more(r.TenantsNotShown)
}

func (t *table) tenantTitle() {
	t.row("TENANT", "VOLUMES", "GIB", "SNAPSHOTS", "SNAPSHOT GIB", "BACKUPS", "BACKUP GIB", "STORAGECLASSES", "BACKENDS")
}

func (t *table) tenant(tenant Tenant) {
	var shares []string
	for _, share := range tenant.Shares {
		shares = append(shares, fmt.Sprintf("%s: %d (%d GiB)", share.Backend, share.Volumes, share.Gigabytes))
	}
	t.row(slices.Concat([]string{tenant.Name}, quotaCells(tenant.Quotas), []string{"", strings.Join(shares, ", ")})...)
	for _, rule := range tenant.Rules {
		t.row(slices.Concat([]string{"  " + rule.Path}, quotaCells(rule.Quotas), []string{strings.Join(rule.StorageClasses, ","), strings.Join(rule.Backends, ",")})...)
	}
}

// quotaCells returns what the limits say, in the order of the columns.
func quotaCells(quotas []Quota) []string {
	resources := []Resource{Volumes, Gigabytes, Snapshots, SnapshotGigabytes, Backups, BackupGigabytes}
	cells := make([]string, len(resources))
	for _, quota := range quotas {
		if i := slices.Index(resources, quota.Resource); i >= 0 {
			cells[i] = quota.String()
		}
	}
	return cells
}

func (t *table) inFlight(steps []Step) {
	t.title("CLAIMS IN FLIGHT", "COUNT", "OLDEST")
	for _, step := range steps {
		oldest := ""
		if step.OldestSeconds > 0 {
			oldest = time.Duration(step.OldestSeconds * float64(time.Second)).Round(time.Second).String()
		}
		t.row(string(step.Step), fmt.Sprint(step.Count), oldest)
	}
}

func (t *table) section(r *Report, s Section) {
	titles := []string{fmt.Sprintf("%s (%s)", strings.ToUpper(s.Name), s.Count)}
	for _, column := range s.Columns[1:] {
		titles = append(titles, strings.ToUpper(column))
	}
	t.title(append(titles, "STATE", "SINCE", "WHY")...)
	for _, p := range s.Pending {
		since := FormatTime(p.Since)
		if r.MayBeOlder(p) {
			since += " or before"
		}
		t.row(append(s.Cells(p), p.State, since, p.Why())...)
	}
	t.more(s.NotShown)
}

func (t *table) audit(r *Report) {
	if r.Audit == nil || r.Audit.Total == 0 {
		return
	}
	t.title(fmt.Sprintf("AUDIT FINDINGS (%d, %s ago)", r.Audit.Total, r.Age(r.Audit.Time)), "SUBJECT", "BACKEND", "WHY")
	for _, f := range r.Audit.Findings {
		t.row(f.Kind, f.Subject, f.Backend, f.Message)
	}
	t.more(r.Audit.NotShown)
}

func (t *table) pods(r *Report) {
	if len(r.Pods) == 0 {
		return
	}
	t.title("PODS", "STATE", "IMAGE", "NODE", "RESTARTS", "AGE")
	for _, pod := range r.Pods {
		t.row(pod.Name, pod.State(), pod.Image, pod.Node, fmt.Sprint(pod.Restarts), r.Age(pod.Created))
	}
}

func (t *table) more(count int) {
	if count > 0 {
		t.row(fmt.Sprintf("and %d more", count))
	}
}

// State says whether the pod serves.
func (p Pod) State() string {
	switch {
	case p.Ending:
		return "ending"
	case p.Ready:
		return "ready"
	}
	return "not ready"
}

// Why returns the reason and its message.
func (p Pending) Why() string {
	if p.Reason == "" || p.Message == "" {
		return p.Reason + p.Message
	}
	return p.Reason + ": " + p.Message
}

// FormatTime formats a time as every form of a report does; it is empty if the time is not known.
func FormatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
