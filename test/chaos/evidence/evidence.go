// Package evidence collects what helps to understand the findings of a campaign.
package evidence

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Evidence is everything that was collected.
type Evidence struct {
	// Details has an entry for each finding, in order.
	Details []Detail
	// Timeline, Journal and Logs are complete: what the campaign did, the requests
	// to Cinder, and each process's log, by its name.
	Timeline []string
	Journal  []string
	Logs     map[string]string
}

// Detail is what is known about one finding.
type Detail struct {
	Finding checker.Finding
	// Volume is its current state, Journal its requests, Log the replicas' log
	// lines about it.
	Volume  string
	Journal []string
	Log     []string
}

// Sources are what a campaign knows.
type Sources struct {
	Timeline []string
	Journal  []cindersim.Entry
	Logs     map[string]string
	// Volume returns a volume as Cinder has it now.
	Volume func(id string) (v cindersim.Volume, there bool)
}

// Collect collects everything, and what concerns each finding.
func Collect(findings []checker.Finding, from Sources) Evidence {
	e := Evidence{Timeline: from.Timeline, Logs: from.Logs}
	for i := range from.Journal {
		e.Journal = append(e.Journal, journalLine(from.Journal[i]))
	}
	for _, f := range findings {
		e.Details = append(e.Details, from.detail(f))
	}
	return e
}

func (s Sources) detail(f checker.Finding) Detail {
	d := Detail{Finding: f}
	if v, there := s.Volume(f.VolumeID); there {
		v.Export.Password = "" // not needed by readers of the evidence
		d.Volume = fmt.Sprintf("%+v", v)
	}
	terms := []string{}
	for _, term := range []string{f.VolumeID, f.ClaimUID} {
		if term != "" {
			terms = append(terms, term)
		}
	}
	if len(terms) == 0 {
		return d
	}
	for _, entry := range s.Journal {
		if containsAny(entry.VolumeID+" "+entry.VolumeName, terms) {
			d.Journal = append(d.Journal, journalLine(entry))
		}
	}
	for _, line := range s.Timeline {
		if strings.Contains(line, "hostile") && containsAny(line, terms) {
			d.Journal = append(d.Journal, line)
		}
	}
	slices.Sort(d.Journal) // every line begins with its time
	for name, log := range s.Logs {
		for line := range strings.Lines(log) {
			if containsAny(line, terms) {
				d.Log = append(d.Log, name+": "+strings.TrimRight(line, "\n"))
			}
		}
	}
	slices.SortStableFunc(d.Log, func(a, b string) int { return strings.Compare(timeIn(a), timeIn(b)) })
	return d
}

// timeIn returns the time of a log line, in the same format for all replicas.
func timeIn(line string) string {
	_, after, _ := strings.Cut(line, `"time":"`)
	at, _, _ := strings.Cut(after, `"`)
	return at
}

func containsAny(text string, terms []string) bool {
	for _, term := range terms {
		if strings.Contains(text, term) {
			return true
		}
	}
	return false
}

func journalLine(e cindersim.Entry) string {
	line := fmt.Sprintf("%s #%d %s %s volume %s %s -> %d after %s", e.Time.Format("15:04:05.000"), e.Number, e.Endpoint, e.Operation,
		e.VolumeID, e.VolumeName, e.Status, e.Duration.Round(1e6))
	if e.Fault != "" {
		line += ", fault " + e.Fault
	}
	if !e.Performed {
		line += ", without effect"
	}
	if !e.Done {
		line += ", under way"
	}
	return line
}

// Write writes everything into files of a directory.
func (e Evidence) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string]string{"timeline.txt": strings.Join(e.Timeline, "\n"), "journal.txt": strings.Join(e.Journal, "\n")}
	for name, log := range e.Logs {
		files[strings.ReplaceAll(name, " ", "-")+".log"] = log
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
