package node

import "time"

// Observer learns what the node does, for its metrics. Several goroutines may call it at
// once.
type Observer interface {
	// Step is told of a step of staging that has succeeded.
	Step(step Step, took time.Duration)
	// Refused is told of a host.Reason: why something was refused, or why a disk was
	// cut off from what still wanted to write to it.
	Refused(reason string)
	// RemovedDisk is told of a disk that an earlier volume had left where a new one
	// was to be.
	RemovedDisk()
}

// Step is a part of staging whose time is measured separately.
type Step string

const (
	// StepAttach is from the login to a disk that answers, or a map of several.
	StepAttach Step = "attach"
	// StepFilesystem is the look at the content, and making or checking a filesystem.
	StepFilesystem Step = "filesystem"
	// StepMount is the mount.
	StepMount Step = "mount"
	// StepGrow is making the filesystem as large as its disk.
	StepGrow Step = "grow"
)

// timer tells an Observer of steps that follow one another.
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

// nobody is an Observer that is not interested.
type nobody struct{}

func (nobody) Step(Step, time.Duration) {}
func (nobody) Refused(string)           {}
func (nobody) RemovedDisk()             {}
