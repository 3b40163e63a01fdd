package node

import "time"

// Observer receives the node's actions, for its metrics. It must be safe for concurrent
// use.
type Observer interface {
	// Step is called after a step of staging has succeeded.
	Step(step Step, took time.Duration)
	// Refused is called with a host.Reason: why something was refused, or why pending
	// writes were discarded.
	Refused(reason string)
	// RemovedDisk is called when an earlier volume's leftover disk is removed from the
	// place of a new one.
	RemovedDisk()
	// Unlimited is called when a pod gets a volume whose limits do not hold, with a
	// host.Reason or ReasonNotLimited.
	Unlimited(reason string)
}

// Step is a separately timed part of staging.
type Step string

const (
	// StepAttach lasts from the login until a disk, or a map of several, answers.
	StepAttach Step = "attach"
	// StepOpen covers opening an encrypted volume, and making the LUKS header of a new
	// one.
	StepOpen Step = "open"
	// StepFilesystem covers reading the content, and creating or checking a filesystem.
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
func (nobody) Unlimited(string)         {}
