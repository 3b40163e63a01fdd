// Package report shows what campaigns came to.
package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/campaign"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
)

// How much of a failure is shown; -evidence writes all of it.
const (
	mostDetails = 6
	mostLines   = 40
	mostWide    = 600
)

// Table shows what was done and what is wrong, one line a seed.
func Table(out io.Writer, results []campaign.Result) {
	done := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(done, "SEED\tTOOK\tCLAIMS\tBOUND\tDELETED\tKILLS\tPAUSES\tSTOPS\tAPI SERVER\tNETWORK\tCINDER FAULTS\tSETTLED IN")
	for _, r := range results {
		c := r.Counts
		fmt.Fprintf(done, "%d\t%.0f s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f s\n", r.Seed, r.Took.Seconds(), c.Claims, c.Bound, c.Deleted,
			c.Kills, c.Pauses, c.Rolls, c.ServerFailures, c.Cuts, c.Faults, r.Settled.Seconds())
	}
	_ = done.Flush() // to the same writer
	fmt.Fprintln(out)
	wrong := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"SEED"}
	for _, kind := range checker.Kinds() {
		head = append(head, strings.ToUpper(string(kind)))
	}
	fmt.Fprintln(wrong, strings.Join(head, "\t"))
	for _, r := range results {
		counts := map[checker.Kind]int{}
		for _, f := range r.Findings {
			counts[f.Kind]++
		}
		row := []string{fmt.Sprint(r.Seed)}
		for _, kind := range checker.Kinds() {
			row = append(row, fmt.Sprint(counts[kind]))
		}
		fmt.Fprintln(wrong, strings.Join(row, "\t"))
	}
	_ = wrong.Flush()
}

// Failure shows what is wrong with a seed, and how to see it again.
func Failure(out io.Writer, r campaign.Result, replay string) {
	fmt.Fprintf(out, "\nseed %d: %d findings\n", r.Seed, len(r.Findings))
	for i, d := range r.Evidence.Details {
		f := d.Finding
		fmt.Fprintf(out, "\n%s: %s\n  %s\n", f.Kind, f.Object, indent(f.Text))
		if i >= mostDetails {
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
	if left := len(all) - mostLines; left > 0 {
		fmt.Fprintf(out, "    ... %d lines before\n", left)
		all = all[left:]
	}
	for _, line := range all {
		fmt.Fprintf(out, "    %s\n", short(line))
	}
}

func short(line string) string {
	if len(line) > mostWide {
		return line[:mostWide] + "..."
	}
	return line
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }
