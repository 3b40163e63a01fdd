package campaign

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// timeline is what happened when, for the analysis of a failure.
type timeline struct {
	log io.Writer

	mu      sync.Mutex
	started time.Time
	lines   []string
}

func (t *timeline) begin(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = at
}

// note records what happens now, with the time of day as in the logs.
func (t *timeline) note(format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	offset := time.Duration(0)
	if !t.started.IsZero() {
		offset = now.Sub(t.started)
	}
	t.lines = append(t.lines, fmt.Sprintf("%s %7.2fs  %s", now.Format("15:04:05.000"), offset.Seconds(), fmt.Sprintf(format, arguments...)))
}

// say also prints it for the user who waits for the campaign.
func (t *timeline) say(format string, arguments ...any) {
	t.note(format, arguments...)
	fmt.Fprintf(t.log, "chaos: "+format+"\n", arguments...)
}

func (t *timeline) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}
