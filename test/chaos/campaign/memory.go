package campaign

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
)

// maxMemory is what the Deployment gives a replica
// (deploy/base/deployment.yaml).
const maxMemory = 512 << 20

func memorySettings() []string { return []string{"GOGC=50", "GOMEMLIMIT=240MiB"} }

// lookAtMemory notes the most that each running replica has taken. A container
// that takes more than its limit is killed.
func (w *world) lookAtMemory() {
	for _, s := range w.slots {
		r := s.running()
		if r == nil {
			continue
		}
		peak := peakMemory(r.PID())
		w.change(func(c *Counts) { c.PeakMemory = max(c.PeakMemory, peak) })
		if peak > maxMemory {
			w.course.Note(checker.Finding{Kind: checker.Crashed, Object: r.name,
				Text: fmt.Sprintf("it takes %d MiB of memory and may take %d", peak>>20, maxMemory>>20)})
		}
	}
}

// peakMemory returns the largest resident set of a process so far; 0 where /proc
// does not tell.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kilobytes << 10
}
