package plan

import (
	"fmt"
	"time"
)

// Machines is how many nodes are played by machines that really stage volumes.
const Machines = 3

// Stager is the tenant whose volumes machines stage. No other actor touches them.
const Stager = "f"

// The backends of machines: two arrays behind the noauth Cinder. Shown shows its volumes
// to everybody, and Masked each only to the nodes that it is attached to. The
// StorageClasses have the same names.
const (
	Shown  = "shown"
	Masked = "masked"
	// Sealed is a StorageClass of Masked whose volumes nodes encrypt.
	Sealed = "sealed"
)

// ArrayOf returns the backend of one of these StorageClasses.
func ArrayOf(class string) string {
	if class == Sealed {
		return Masked
	}
	return class
}

// MachineKind is what happens to a machine.
type MachineKind string

// What happens to machines.
const (
	// LoseMachine cuts it off from the API server, while its kernel goes on writing.
	LoseMachine MachineKind = "is lost"
	// KillPlugin kills the node plugin, and RestartKubelet restarts the kubelet.
	KillPlugin     MachineKind = "loses its plugin"
	RestartKubelet MachineKind = "gets a new kubelet"
	// CrashMachine switches it off for a while.
	CrashMachine MachineKind = "crashes"
	// TaintMachine is the way of an administrator with a lost node: it is switched off,
	// tainted as out of service, booted, and the taint is removed.
	TaintMachine MachineKind = "is lost, switched off and tainted"
	// DeleteMachine is another way: it is switched off, and its Node is deleted. Later it
	// boots, or another machine joins under its name.
	DeleteMachine  MachineKind = "is lost, switched off and deleted"
	ReplaceMachine MachineKind = "is lost, switched off and replaced"
)

// MachineStep is something that happens to a machine.
type MachineStep struct {
	At      time.Duration
	Machine int
	Kind    MachineKind
	For     time.Duration
	// Nth and After are the change at which a killed plugin dies.
	Nth   int
	After bool
	// Late is how long after its return the kubelet of a lost machine learns which of its
	// pods are gone.
	Late time.Duration
	// Restarts means that the kubelet of a lost machine is restarted before it comes
	// back, and Kills that its plugin is killed.
	Restarts, Kills bool
}

// String describes a step for people.
func (s MachineStep) String() string {
	text := fmt.Sprintf("machine %d %s (%s)", s.Machine, s.Kind, s.For)
	if s.Kind == KillPlugin || s.Kills {
		text += fmt.Sprintf(", the plugin dies at its change %d", s.Nth)
	}
	if s.Restarts {
		text += ", the kubelet is restarted"
	}
	return text
}

// machineSteps draws what happens to one machine. Steps do not overlap.
func machineSteps(d draws, machine int, duration time.Duration) []MachineStep {
	return series(d, 3*time.Second, 3*time.Second, 12*time.Second, duration, func(_ int, at time.Duration) (MachineStep, time.Duration) {
		s := MachineStep{
			At: at, Machine: machine,
			Kind: choose(d, []choice[MachineKind]{{8, LoseMachine}, {6, KillPlugin}, {3, RestartKubelet}, {2, CrashMachine}, {3, TaintMachine}, {1, DeleteMachine}, {1, ReplaceMachine}}),
			For:  d.between(4*time.Second, 14*time.Second),
			Nth:  1 + d.IntN(25), After: d.chance(0.5), Late: d.between(0, 5*time.Second), Restarts: d.chance(0.4), Kills: d.chance(0.3),
		}
		if s.Kind == KillPlugin || s.Kind == RestartKubelet {
			s.For /= 4
		}
		if s.Kind != LoseMachine {
			s.Restarts, s.Kills = false, false
		}
		return s, s.For
	})
}

// WorkloadStep is the life of a claim whose pods machines run, one after the other.
type WorkloadStep struct {
	At    time.Duration
	Claim string
	// Class is Shown, Masked or Sealed.
	Class string
	Stays []WorkloadStay
	// Patience is how long a lost node keeps the pod and the volume, which then go on to the
	// next machine by force.
	Patience time.Duration
	// Ends and ClaimFirst are as in PodStep.
	Ends, ClaimFirst bool
}

// WorkloadStay is the time of a pod on a machine.
type WorkloadStay struct {
	Machine int
	For     time.Duration
	// Again means that the volume is detached although the next pod is on the same machine.
	Again bool
}

// String describes a step for people.
func (s WorkloadStep) String() string {
	text := fmt.Sprintf("pods of %s of class %s on", s.Claim, s.Class)
	for _, stay := range s.Stays {
		text += fmt.Sprintf(" machine %d (%s)", stay.Machine, stay.For)
	}
	switch {
	case s.Ends && s.ClaimFirst:
		text += ", deleted after their claim"
	case s.Ends:
		text += ", deleted"
	}
	return text
}

// workloadSteps draws the pods of machines.
func workloadSteps(d draws, duration time.Duration) []WorkloadStep {
	return series(d, 0, 300*time.Millisecond, 2*time.Second, duration, func(i int, at time.Duration) (WorkloadStep, time.Duration) {
		s := WorkloadStep{
			At: at, Claim: fmt.Sprintf("staged-%d", i), Class: oneOf(d, Shown, Masked, Sealed), Patience: d.between(500*time.Millisecond, 3*time.Second),
			Ends: d.chance(0.6), ClaimFirst: d.chance(0.3),
		}
		machine := d.IntN(Machines)
		for range 2 + d.IntN(4) {
			s.Stays = append(s.Stays, WorkloadStay{Machine: machine, For: d.between(2*time.Second, 12*time.Second), Again: d.chance(0.6)})
			if d.chance(0.7) {
				machine = (machine + 1 + d.IntN(Machines-1)) % Machines
			}
		}
		return s, 0
	})
}
