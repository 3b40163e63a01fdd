package main

import (
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestReport compares what is reported about made-up measurements with what they
// come to by hand.
func TestReport(t *testing.T) {
	at := func(seconds ...float64) (l life) {
		for i, s := range seconds {
			l[i] = time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second)))
		}
		return l
	}
	limit := &way{
		title:   "bare loop",
		rounds:  []roundTimes{{asked: time.Second, recorded: 2 * time.Second, bound: 4 * time.Second, gone: time.Second}},
		lives:   []life{at(0, 0.5, 1, 2, 10, 10.5, 11), at(0, 0.5, 2, 4, 10, 10.5, 11)},
		made:    effort{claims: 2, cinder: 10, lists: 2, kubernetes: requests{"create persistentvolumes": 2}, controllers: requests{}},
		deleted: effort{claims: 2, cinder: 6, kubernetes: requests{"delete persistentvolumes": 2, "patch persistentvolumes": 2}, controllers: requests{}},
	}
	program := &way{
		title:    "the program",
		replicas: make([]*harness.Replica, 3),
		rounds:   []roundTimes{{asked: 2 * time.Second, recorded: 3 * time.Second, bound: 5 * time.Second, gone: 2 * time.Second}},
		lives:    []life{at(0, 1, 2, 3, 10, 10.5, 12), at(0, 1, 3, 5, 10, 10.5, 12)},
		made: effort{claims: 2, cinder: 8, lists: 1, kubernetes: requests{"create persistentvolumes": 2, "create events": 3}, controllers: requests{"update persistentvolumes": 5},
			cpu: []float64{0.03, 0.002, 0.004}},
		deleted:  effort{claims: 2, cinder: 8, kubernetes: requests{"delete persistentvolumes": 3}, controllers: requests{}, cpu: []float64{0.01, 0.001, 0.001}},
		resident: []float64{60, 40, 41},
	}
	r := newResults(options{})
	var out strings.Builder
	comparison{limit, program}.report(r, &out)
	for name, want := range map[string]float64{
		"throughput.made.last_asked_for_seconds.program":                                            2,
		"throughput.made.last_recorded_seconds.program":                                             3,
		"throughput.made.last_recorded_seconds.loop":                                                2,
		"throughput.made.last_recorded_seconds.ratio":                                               1.5,
		"throughput.made.last_bound_seconds.ratio":                                                  1.25,
		"throughput.deleted.last_gone_seconds.ratio":                                                2,
		"throughput.made.cinder_requests_per_claim.program":                                         4,
		"throughput.made.cinder_requests_per_claim.ratio":                                           0.8,
		"throughput.made.cinder_listings_per_round.ratio":                                           0.5,
		"throughput.deleted.cinder_requests_per_claim.loop":                                         3,
		"throughput.made.time_to_bound_seconds.loop.median":                                         2,
		"throughput.made.time_to_bound_ratio.median":                                                1.5,
		"throughput.deleted.time_to_gone_ratio.slowest":                                             2,
		"throughput.cpu_milliseconds_per_claim.leader":                                              20,
		"throughput.cpu_milliseconds_per_claim.follower":                                            2,
		"throughput.cpu_ratio.follower_to_leader":                                                   0.1,
		"throughput.resident_mebibytes.leader":                                                      60,
		"throughput.resident_mebibytes.follower":                                                    41,
		"throughput.made.kubernetes_requests_per_claim.program.create_events":                       1.5,
		"throughput.made.kubernetes_requests_per_claim.program.all":                                 2.5,
		"throughput.made.kubernetes_requests_per_claim.controller_manager.update_persistentvolumes": 2.5,
		"throughput.made.kubernetes_requests_per_claim.ratio":                                       2.5,
		"throughput.deleted.kubernetes_requests_per_claim.loop.patch_persistentvolumes":             1,
		"throughput.deleted.kubernetes_requests_per_claim.program.patch_persistentvolumes":          0,
		"throughput.deleted.kubernetes_requests_per_claim.ratio":                                    0.75,
	} {
		got, ok := r.Figures[name]
		if !ok || got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s is %g (%t), want %g", name, got, ok, want)
		}
	}
	// Nothing was listed when the claims were deleted, so there is no ratio.
	if of, ok := r.Figures["throughput.deleted.cinder_listings_per_round.ratio"]; ok {
		t.Errorf("a ratio to nothing is %g", of)
	}
	for _, want := range []string{"bare loop", "the program", "ratio to the limit", "a follower: 2.0 ms, 0.10 of the leader's", "create events"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
