// Package report shows the outcome of campaigns.
package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/campaign"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
)

// How much of a failure is shown; -evidence writes all of it.
const (
	maxDetails = 6
	maxLines   = 40
	maxWidth   = 600
)

// Table shows what was done and what is wrong, one line per seed.
func Table(out io.Writer, results []campaign.Result) {
	table(out, results, []string{"TOOK", "CLAIMS", "BOUND", "DELETED", "SNAPSHOTS", "BACKUPS", "GROUPS", "TAKEN TOGETHER", "KILLS", "PAUSES", "STOPS", "API SERVER", "NETWORK", "CINDER FAULTS", "SETTLED IN"},
		func(r campaign.Result) []any {
			c := r.Counts
			return []any{seconds("%.0f s", r.Took), c.Claims, c.Bound, c.Deleted, c.Snapshots, c.Backups, c.Groups, c.Together, c.Kills, c.Pauses, c.Rolls, c.ServerFailures, c.Cuts, c.Faults,
				seconds("%.1f s", r.Settled)}
		})
	table(out, results, []string{"FLAPS", "FULL", "PLACES", "FLIPS", "RETYPED", "GROWN", "REMOVED", "UNBOUND", "NODE USES", "PODS", "ATTACHED", "STAGED", "SEALED", "LOST", "FORCED", "REBOUND", "LIES", "ATTACKS", "PEAK MEMORY"}, func(r campaign.Result) []any {
		c := r.Counts
		return []any{c.Flaps, c.Full, c.Places, c.Flips, c.Retypes, c.Grows, c.Removals, c.Unbound, c.NodeUses, c.Pods, c.Attached, c.Staged, c.Sealed, c.Losses, c.Forced, c.Rebound, c.Lies, c.Attacks, fmt.Sprintf("%d MiB", c.PeakMemory>>20)}
	})
	var head []string
	for _, kind := range checker.Kinds() {
		head = append(head, strings.ToUpper(string(kind)))
	}
	table(out, results, head, func(r campaign.Result) []any {
		counts := map[checker.Kind]int{}
		for _, f := range r.Findings {
			counts[f.Kind]++
		}
		var row []any
		for _, kind := range checker.Kinds() {
			row = append(row, counts[kind])
		}
		return row
	})
}

func seconds(format string, d time.Duration) string { return fmt.Sprintf(format, d.Seconds()) }

// table writes one table, and an empty line.
func table(out io.Writer, results []campaign.Result, head []string, row func(campaign.Result) []any) {
	columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "SEED\t"+strings.Join(head, "\t"))
	for _, r := range results {
		fmt.Fprint(columns, r.Seed)
		for _, cell := range row(r) {
			fmt.Fprintf(columns, "\t%v", cell)
		}
		fmt.Fprintln(columns)
	}
	_ = columns.Flush() // to the same writer
	fmt.Fprintln(out)
}

// Failure shows what is wrong with a seed, and how to replay it.
func Failure(out io.Writer, r campaign.Result, replay string) {
	fmt.Fprintf(out, "\nseed %d: %d findings\n", r.Seed, len(r.Findings))
	for i, d := range r.Evidence.Details {
		f := d.Finding
		fmt.Fprintf(out, "\n%s: %s\n  %s\n", f.Kind, f.Object, indent(f.Text))
		if i >= maxDetails {
			continue
		}
		if d.Volume != "" {
			fmt.Fprintf(out, "  volume: %s\n", short(d.Volume))
		}
		lines(out, "journal", d.Journal)
		lines(out, "log", d.Log)
	}
	fmt.Fprintf(out, "\nreplay: %s\n", replay)
}

// lines shows the last of many lines.
func lines(out io.Writer, title string, all []string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "  %s:\n", title)
	if left := len(all) - maxLines; left > 0 {
		fmt.Fprintf(out, "    ... %d lines before\n", left)
		all = all[left:]
	}
	for _, line := range all {
		fmt.Fprintf(out, "    %s\n", short(line))
	}
}

func short(line string) string {
	if len(line) > maxWidth {
		return line[:maxWidth] + "..."
	}
	return line
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }
