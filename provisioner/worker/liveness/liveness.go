// Package liveness detects what is stuck inside the process: a loop that no longer runs,
// work that does not end, or a queue that is not served. Work that fails, or waits for a
// server with a timeout, is not stuck.
package liveness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxNamed bounds how many stuck tasks the error names.
const maxNamed = 10

// Monitor watches everything in a process that must not get stuck.
type Monitor struct {
	mu    sync.Mutex
	tasks map[*Task]struct{}
}

// New returns a monitor that watches nothing yet.
func New() *Monitor { return &Monitor{tasks: map[*Task]struct{}{}} }

// Bound returns how long a task may go without a sign of life. Every check calls it,
// because a reload may change the bound.
type Bound func() time.Duration

// Always returns a bound that never changes.
func Always(bound time.Duration) Bound { return func() time.Duration { return bound } }

// Task is a loop that beats at least once within its bound, or work that ends within it.
type Task struct {
	monitor *Monitor
	what    string
	bound   Bound
	last    time.Time
	// pauses counts the current waits in watched queues.
	pauses int
}

// Begin starts to watch a task. what is a noun with its article.
func (m *Monitor) Begin(what string, bound Bound) *Task {
	t := &Task{monitor: m, what: what, bound: bound, last: time.Now()}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tasks[t] = struct{}{}
	return t
}

// Beat records a sign of life.
func (t *Task) Beat() {
	t.monitor.mu.Lock()
	defer t.monitor.mu.Unlock()
	t.last = time.Now()
}

// Pause stops watching a task while it waits in a queue that is itself watched.
func (t *Task) Pause() (resume func()) {
	t.monitor.mu.Lock()
	defer t.monitor.mu.Unlock()
	t.pauses++
	return func() {
		t.monitor.mu.Lock()
		defer t.monitor.mu.Unlock()
		t.pauses--
		t.last = time.Now()
	}
}

type taskKey struct{}

// In returns a context for the task's work.
func (t *Task) In(ctx context.Context) context.Context { return context.WithValue(ctx, taskKey{}, t) }

// PauseOf returns the function that pauses the context's task while its work waits for a
// turn at a backend: that time depends on the policy's limits and on other waiting work.
// It returns nil if the context has no task.
func PauseOf(ctx context.Context) (pause func() (resume func())) {
	if task, ok := ctx.Value(taskKey{}).(*Task); ok {
		return task.Pause
	}
	return nil
}

// End stops watching the task.
func (t *Task) End() {
	t.monitor.mu.Lock()
	defer t.monitor.mu.Unlock()
	delete(t.monitor.tasks, t)
}

// pollInterval is the pause between two checks of a queue.
const pollInterval = 5 * time.Second

// Progress returns whether something waits in a queue, and a mark that changes when the
// queue moves.
type Progress func() (waiting bool, mark string)

// Follow watches a queue until the context ends. A queue is stuck if something waits in
// it while its mark does not change, or if progress does not return.
func (m *Monitor) Follow(ctx context.Context, what string, bound Bound, progress Progress) {
	task := m.Begin(what, bound)
	defer task.End()
	before := ""
	for ctx.Err() == nil {
		waiting, mark := progress()
		if !waiting || mark != before {
			task.Beat()
		}
		before = mark
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

// Check returns an error that names what is stuck.
func (m *Monitor) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var still []string
	for t := range m.tasks {
		if quiet := time.Since(t.last); t.pauses == 0 && quiet > t.bound() {
			still = append(still, fmt.Sprintf("%s is stuck: no sign of life for %s", t.what, quiet.Round(time.Second)))
		}
	}
	if len(still) == 0 {
		return nil
	}
	slices.Sort(still)
	if more := len(still) - maxNamed; more > 0 {
		still = append(still[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(still, "\n"))
}
