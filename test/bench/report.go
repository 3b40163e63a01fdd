package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// comparison is the program next to the limit.
type comparison struct{ limit, program *way }

// each returns both ways, by their names in figures.
func (c comparison) each() map[string]*way {
	return map[string]*way{"loop": c.limit, "program": c.program}
}

// report prints tables, and keeps every figure and ratio.
func (c comparison) report(r *results, out io.Writer) {
	c.reportEnds(r, out)
	c.reportClaims(r, out)
	c.reportProcesses(r, out)
	c.reportRequests(r, out)
}

// column is a quantity of one way.
type column struct {
	title, figure, format string
	of                    func(*way) float64
}

// reportEnds reports when the last claims were done, and the requests to Cinder.
func (c comparison) reportEnds(r *results, out io.Writer) {
	end := func(of func(roundTimes) time.Duration) func(*way) float64 {
		return func(w *way) float64 {
			var times []time.Duration
			for _, round := range w.rounds {
				times = append(times, of(round))
			}
			return median(times).Seconds()
		}
	}
	columns := []column{
		{"last asked for", "made.last_asked_for_seconds", "%.2f s", end(func(t roundTimes) time.Duration { return t.asked })},
		{"last PV created", "made.last_recorded_seconds", "%.2f s", end(func(t roundTimes) time.Duration { return t.recorded })},
		{"all Bound", "made.last_bound_seconds", "%.2f s", end(func(t roundTimes) time.Duration { return t.bound })},
		{"deleted until gone", "deleted.last_gone_seconds", "%.2f s", end(func(t roundTimes) time.Duration { return t.gone })},
		{"requests/claim", "made.cinder_requests_per_claim", "%.2f", func(w *way) float64 { return per(float64(w.made.cinder), float64(w.made.claims)) }},
		{"listings", "made.cinder_listings_per_round", "%.1f", func(w *way) float64 { return per(float64(w.made.lists), float64(len(w.rounds))) }},
		{"requests/delete", "deleted.cinder_requests_per_claim", "%.2f", func(w *way) float64 { return per(float64(w.deleted.cinder), float64(w.deleted.claims)) }},
		{"listings", "deleted.cinder_listings_per_round", "%.1f", func(w *way) float64 { return per(float64(w.deleted.lists), float64(len(w.rounds))) }},
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	titles, ratios := "", "ratio to the limit"
	for _, col := range columns {
		titles += "\t" + col.title
		of := per(col.of(c.program), col.of(c.limit))
		ratios += fmt.Sprintf("\t%.2f", of)
		r.set("throughput."+col.figure+".ratio", of)
		for name, w := range c.each() {
			r.set("throughput."+col.figure+"."+name, col.of(w))
		}
	}
	fmt.Fprintln(table, titles)
	for _, w := range []*way{c.limit, c.program} {
		fmt.Fprint(table, w.title)
		for _, col := range columns {
			fmt.Fprintf(table, "\t"+col.format, col.of(w))
		}
		fmt.Fprintln(table)
	}
	fmt.Fprintln(table, ratios)
	_ = table.Flush()
}

// reportClaims reports how long single claims took.
func (c comparison) reportClaims(r *results, out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\ntime of a claim\tmedian\tp95\tslowest")
	for _, span := range []struct {
		title, figure string
		from, to      step
	}{{"until Bound", "made.time_to_bound", filed, bound}, {"deleted until gone", "deleted.time_to_gone", removed, gone}} {
		for name, w := range c.each() {
			r.setTimes("throughput."+span.figure+"_seconds."+name, took(w.lives, span.from, span.to))
		}
		ours, base := took(c.program.lives, span.from, span.to), took(c.limit.lives, span.from, span.to)
		for _, row := range []struct {
			title string
			times []time.Duration
		}{{c.limit.title, base}, {c.program.title, ours}} {
			fmt.Fprintf(table, "%s, %s\t%.2f s\t%.2f s\t%.2f s\n", span.title, row.title,
				quantile(row.times, 0.5).Seconds(), quantile(row.times, 0.95).Seconds(), quantile(row.times, 1).Seconds())
		}
		ratios := r.setRatios("throughput."+span.figure+"_ratio", ours, base)
		fmt.Fprintf(table, "%s, ratio\t%.2f\t%.2f\t%.2f\n", span.title, ratios[0], ratios[1], ratios[2])
	}
	_ = table.Flush()
}

// reportProcesses reports what the replicas took of the machine, per claim made and
// deleted.
func (c comparison) reportProcesses(r *results, out io.Writer) {
	w := c.program
	cpu := func(replica int) float64 {
		return per(1000*(w.made.cpu[replica]+w.deleted.cpu[replica]), float64(w.made.claims))
	}
	leader, follower, resident := cpu(0), 0.0, 0.0
	r.set("throughput.cpu_milliseconds_per_claim.leader", leader)
	r.set("throughput.resident_mebibytes.leader", w.resident[0])
	fmt.Fprintf(out, "\nthe leader: %.1f ms of processor time per claim made and deleted, %.0f MiB\n", leader, w.resident[0])
	followers := len(w.replicas) - 1
	if followers < 1 {
		return
	}
	for i := range followers {
		follower += cpu(i+1) / float64(followers)
		resident = max(resident, w.resident[i+1])
	}
	r.set("throughput.cpu_milliseconds_per_claim.follower", follower)
	r.set("throughput.cpu_ratio.follower_to_leader", per(follower, leader))
	r.set("throughput.resident_mebibytes.follower", resident)
	fmt.Fprintf(out, "a follower: %.1f ms, %.2f of the leader's, %.0f MiB\n", follower, per(follower, leader), resident)
}

// reportRequests reports the requests to the API server per claim.
func (c comparison) reportRequests(r *results, out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, phase := range []struct {
		name string
		of   func(*way) effort
	}{{"made", func(w *way) effort { return w.made }}, {"deleted", func(w *way) effort { return w.deleted }}} {
		limit, program := phase.of(c.limit), phase.of(c.program)
		subjects := []struct {
			name    string
			counted requests
			claims  int
		}{
			{"loop", limit.kubernetes, limit.claims},
			{string(theControllers) + "_with_loop", limit.controllers, limit.claims},
			{"program", program.kubernetes, program.claims},
			{string(theControllers), program.controllers, program.claims},
		}
		fmt.Fprintf(table, "\nrequests to the API server per claim %s\tbare loop\tkube-controller-manager then\tstandalone-cinder\tkube-controller-manager then\n", phase.name)
		row := func(title string, count func(requests) int) {
			cells, most := "", 0.0
			for _, s := range subjects {
				of := per(float64(count(s.counted)), float64(s.claims))
				cells, most = cells+fmt.Sprintf("\t%.2f", of), max(most, of)
				r.set(fmt.Sprintf("throughput.%s.kubernetes_requests_per_claim.%s.%s", phase.name, s.name, strings.ReplaceAll(title, " ", "_")), of)
			}
			// What is sent once in a while says nothing about a claim.
			if most >= 0.01 {
				fmt.Fprintln(table, title+cells)
			}
		}
		for _, kind := range kinds(limit.kubernetes, limit.controllers, program.kubernetes, program.controllers) {
			row(kind, func(counted requests) int { return counted[kind] })
		}
		row("all", requests.sum)
		r.set("throughput."+phase.name+".kubernetes_requests_per_claim.ratio",
			per(float64(program.kubernetes.sum())*float64(limit.claims), float64(limit.kubernetes.sum())*float64(program.claims)))
	}
	_ = table.Flush()
}
