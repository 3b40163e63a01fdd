package plan

import (
	"fmt"
	"time"
)

// ProcessKind is what happens to the replicas.
type ProcessKind string

// What happens to the replicas.
const (
	KillLeader    ProcessKind = "kill the leader"
	KillFollower  ProcessKind = "kill a follower"
	KillAll       ProcessKind = "kill all replicas"
	PauseLeader   ProcessKind = "pause the leader"
	PauseFollower ProcessKind = "pause a follower"
	StopLeader    ProcessKind = "stop the leader"
	Roll          ProcessKind = "roll all replicas"
)

// ProcessStep is one thing that happens to the replicas.
type ProcessStep struct {
	At   time.Duration
	Kind ProcessKind
	// Pick chooses among followers.
	Pick int
	// For is how long a replica is paused, or missing.
	For time.Duration
}

// String describes a step for people.
func (s ProcessStep) String() string { return fmt.Sprintf("%s (%s)", s.Kind, s.For) }

func processSteps(d draws, duration time.Duration) []ProcessStep {
	return series(d, 0, 4*time.Second, 11*time.Second, duration, func(_ int, at time.Duration) (ProcessStep, time.Duration) {
		s := ProcessStep{
			At: at,
			Kind: choose(d, []choice[ProcessKind]{{28, KillLeader}, {20, PauseLeader}, {10, StopLeader}, {16, Roll},
				{9, KillFollower}, {8, PauseFollower}, {9, KillAll}}),
			Pick: d.IntN(Slots),
			For:  d.between(0, 3*time.Second),
		}
		pause := d.between(LeaseDuration+time.Second, LeaseDuration+5*time.Second)
		if s.Kind == PauseLeader || s.Kind == PauseFollower {
			s.For = pause
		}
		if s.Kind == Roll {
			return s, s.For + 6*time.Second
		}
		return s, s.For
	})
}

// ServerKind is what happens to the API server.
type ServerKind string

// What happens to the API server.
const (
	KillServer  ServerKind = "kill the API server"
	PauseServer ServerKind = "pause the API server"
)

// ServerStep is one thing that happens to the API server.
type ServerStep struct {
	At, For time.Duration
	Kind    ServerKind
}

// String describes a step for people.
func (s ServerStep) String() string { return fmt.Sprintf("%s (%s)", s.Kind, s.For) }

// serverSteps leaves time between two steps: every Kubernetes client that
// failed to watch a few times in a row waits up to a minute before it retries.
func serverSteps(d draws, duration time.Duration) []ServerStep {
	return series(d, -10*time.Second, 16*time.Second, 45*time.Second, duration, func(_ int, at time.Duration) (ServerStep, time.Duration) {
		s := ServerStep{At: at, Kind: choose(d, []choice[ServerKind]{{1, KillServer}, {1, PauseServer}}), For: d.between(0, 2*time.Second)}
		pause := d.between(LeaseDuration+time.Second, LeaseDuration+4*time.Second)
		if s.Kind == PauseServer {
			s.For = pause
		}
		return s, s.For
	})
}
