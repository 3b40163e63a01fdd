// Package timeline keeps what happened in a campaign, and when.
package timeline

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Timeline is what happened when, for the analysis of a failure.
type Timeline struct {
	log io.Writer

	mu      sync.Mutex
	started time.Time
	lines   []string
}

// New returns a timeline that also prints for the user, to log.
func New(log io.Writer) *Timeline { return &Timeline{log: log} }

// Begin sets the time from which the others are counted.
func (t *Timeline) Begin(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = at
}

// Note records what happens now, with the time of day as in the logs.
func (t *Timeline) Note(format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	offset := time.Duration(0)
	if !t.started.IsZero() {
		offset = now.Sub(t.started)
	}
	t.lines = append(t.lines, fmt.Sprintf("%s %7.2fs  %s", now.Format("15:04:05.000"), offset.Seconds(), fmt.Sprintf(format, arguments...)))
}

// Say also prints it for the user who waits for the campaign.
func (t *Timeline) Say(format string, arguments ...any) {
	t.Note(format, arguments...)
	fmt.Fprintf(t.log, "chaos: "+format+"\n", arguments...)
}

// All returns all lines so far.
func (t *Timeline) All() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}
