package wiring

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestKeepMemoryBelow(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for name, test := range map[string]struct {
		limit       string
		environment map[string]string
		wantLimit   int64
		wantPercent int
		wantErr     string
	}{
		"no limit":              {"", nil, math.MaxInt64, 100, ""},
		"a quantity":            {"512Mi", nil, 198642233, 50, ""},
		"bytes, from a pod":     {"536870912", nil, 198642233, 50, ""},
		"the environment first": {"512Mi", map[string]string{"GOMEMLIMIT": "1GiB", "GOGC": "75"}, math.MaxInt64, 100, ""},
		"not a quantity":        {"half", nil, math.MaxInt64, 100, `--memory-limit is "half"; give the container's limit, at least 64Mi, for example 512Mi`},
		"a number without unit": {"512", nil, math.MaxInt64, 100, `--memory-limit is "512"; give the container's limit, at least 64Mi, for example 512Mi`},
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetMemoryLimit(math.MaxInt64)
			defer debug.SetGCPercent(debug.SetGCPercent(100))
			err := KeepMemoryBelow(test.limit, func(name string) string { return test.environment[name] })
			if err == nil && test.wantErr != "" || err != nil && err.Error() != test.wantErr {
				t.Errorf("got error %v, want %q", err, test.wantErr)
			}
			if got := debug.SetMemoryLimit(-1); got != test.wantLimit {
				t.Errorf("the memory limit is %d, want %d", got, test.wantLimit)
			}
			percent := debug.SetGCPercent(100)
			if percent != test.wantPercent {
				t.Errorf("GOGC is %d, want %d", percent, test.wantPercent)
			}
		})
	}
}
