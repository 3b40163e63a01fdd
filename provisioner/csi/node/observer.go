package node

import "time"

// Observer receives what the node does, for its metrics. Several goroutines may call it
// at the same time.
type Observer interface {
	// Step is called after a step of staging has succeeded.
	Step(step Step, took time.Duration)
	// Refused is called with a host.Reason: why something was refused, or why a disk
	// was cut off from pending writes.
	Refused(reason string)
	// RemovedDisk is called when a disk is removed that an earlier volume left in the
	// place of a new one.
	RemovedDisk()
}

// Step is a part of staging whose time is measured separately.
type Step string

const (
	// StepAttach lasts from the login until a disk, or a map of several, answers.
	StepAttach Step = "attach"
	// StepFilesystem covers reading the content, and making or checking a filesystem.
	StepFilesystem Step = "filesystem"
	// StepMount covers mounting.
	StepMount Step = "mount"
	// StepGrow covers growing the filesystem to the size of its disk.
	StepGrow Step = "grow"
)

// timer reports consecutive steps to an Observer.
type timer struct {
	observer Observer
	last     time.Time
}

func startTimer(observer Observer) *timer { return &timer{observer, time.Now()} }

func (t *timer) done(step Step) {
	now := time.Now()
	t.observer.Step(step, now.Sub(t.last))
	t.last = now
}

// nobody is an Observer that ignores everything.
type nobody struct{}

func (nobody) Step(Step, time.Duration) {}
func (nobody) Refused(string)           {}
func (nobody) RemovedDisk()             {}
