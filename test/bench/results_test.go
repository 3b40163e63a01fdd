package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		sorted []time.Duration
		share  float64
		want   time.Duration
	}{
		{"nothing was measured", nil, 0.5, 0},
		{"one time is every quantile", []time.Duration{7}, 0.95, 7},
		{"the median of two is the first", []time.Duration{1, 2}, 0.5, 1},
		{"the median of three is the second", []time.Duration{1, 2, 3}, 0.5, 2},
		{"the 95th percentile of twenty leaves one out", []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, 0.95, 19},
		{"the slowest", []time.Duration{1, 2, 3}, 1, 3},
		{"the smallest share is the first", []time.Duration{1, 2, 3}, 0, 1},
	} {
		if got := quantile(c.sorted, c.share); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if got := median([]time.Duration{9, 1, 5}); got != 5 {
		t.Errorf("the median of unsorted times is %d", got)
	}
}

func TestRatiosOfDistributions(t *testing.T) {
	r := newResults(options{})
	got := r.setRatios("of", []time.Duration{2 * time.Second, 6 * time.Second}, []time.Duration{time.Second, 4 * time.Second})
	if want := []float64{2, 1.5, 1.5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if r.Figures["of.median"] != 2 || r.Figures["of.slowest"] != 1.5 {
		t.Errorf("%v", r.Figures)
	}
}

// TestResultsAreJSON: what could not be measured is left out, and no name says
// anything about the machine.
func TestResultsAreJSON(t *testing.T) {
	r := newResults(options{claims: 500, rounds: 1, replicas: 3, createDelay: time.Second, latency: 20 * time.Millisecond, bindQPS: 2000})
	r.set("a.ratio", 1.25)
	r.set("nothing to divide by", per(1, 0))
	r.set("infinite", math.Inf(1))
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read results
	if err := json.Unmarshal(content, &read); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	if len(read.Figures) != 1 || read.Figures["a.ratio"] != 1.25 {
		t.Errorf("the figures are %v", read.Figures)
	}
	if read.Parameters["request_latency_seconds"] != 0.02 || read.Parameters["replicas"] != 3 {
		t.Errorf("the parameters are %v", read.Parameters)
	}
}

func TestRoundsOfFewClaims(t *testing.T) {
	for claims, want := range map[int]int{1: 10, 3: 4, 10: 1, 500: 1} {
		o := options{claims: claims, replicas: 1, handOvers: 1, attached: 1}
		if err := o.complete(); err != nil || o.rounds != want {
			t.Errorf("%d claims have %d rounds, want %d (%v)", claims, o.rounds, want, err)
		}
	}
	given := options{claims: 1, rounds: 2, replicas: 1, handOvers: 1, attached: 1}
	if err := given.complete(); err != nil || given.rounds != 2 {
		t.Errorf("%d rounds, want those that were given (%v)", given.rounds, err)
	}
	none := options{replicas: 1, handOvers: 1, attached: 1}
	if none.complete() == nil {
		t.Error("no claim at all is accepted")
	}
	elsewhere := options{claims: 1, replicas: 1, handOvers: 1, attached: 1, svg: "chart.svg", only: "tenancy"}
	if err := elsewhere.complete(); err == nil || err.Error() != "-svg shows the throughput, which -only tenancy leaves out" {
		t.Errorf("a chart of nothing: %v", err)
	}
}
