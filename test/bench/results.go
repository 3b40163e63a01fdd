package main

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"time"
)

// results collects what a run measured, under names that say nothing about the
// machine, so that runs can be compared by a program.
type results struct {
	// Parameters are the options that the figures depend on.
	Parameters map[string]float64 `json:"parameters"`
	// Figures are by part, quantity with its unit, and subject, separated by dots.
	Figures map[string]float64 `json:"figures"`
}

func newResults(o options) *results {
	return &results{
		Parameters: map[string]float64{
			"claims": float64(o.claims), "rounds": float64(o.rounds), "replicas": float64(o.replicas),
			"create_delay_seconds": o.createDelay.Seconds(), "request_latency_seconds": o.latency.Seconds(), "controller_manager_qps": float64(o.bindQPS),
		},
		Figures: map[string]float64{},
	}
}

// set keeps a figure. One that could not be measured, such as the processor time
// where there is no /proc, is left out: JSON has no word for it.
func (r *results) set(name string, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		r.Figures[name] = value
	}
}

// shares are the points of a distribution that are kept.
var shares = []struct {
	name  string
	share float64
}{{"median", 0.5}, {"p95", 0.95}, {"slowest", 1}}

// setTimes keeps the median, 95th percentile and maximum of sorted times.
func (r *results) setTimes(name string, sorted []time.Duration) {
	for _, q := range shares {
		r.set(name+"."+q.name, quantile(sorted, q.share).Seconds())
	}
}

// setRatios keeps the ratios of the same points of two distributions, and returns
// them.
func (r *results) setRatios(name string, sorted, base []time.Duration) []float64 {
	var ratios []float64
	for _, q := range shares {
		of := ratio(quantile(sorted, q.share), quantile(base, q.share))
		r.set(name+"."+q.name, of)
		ratios = append(ratios, of)
	}
	return ratios
}

// write writes the results as JSON; the encoder sorts the names.
func (r *results) write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}

// per divides a by b. The result is not a number if b is 0.
func per(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

func ratio(a, b time.Duration) float64 { return per(float64(a), float64(b)) }

// quantile returns the smallest time that the given share of the sorted times
// does not exceed.
func quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// median returns the median of times, which it does not sort in place.
func median(times []time.Duration) time.Duration {
	return quantile(slices.Sorted(slices.Values(times)), 0.5)
}
