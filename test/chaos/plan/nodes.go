package plan

import (
	"fmt"
	"time"
)

// NodeKind is how a node releases volumes.
type NodeKind string

// How nodes release volumes.
const (
	Unmount   NodeKind = "unmounts them"
	NodeGone  NodeKind = "is deleted"
	NodeLost  NodeKind = "is out of service"
	NodeBoots NodeKind = "is rebooted"
)

// NodeStep is a node that uses some volumes, whose claims are deleted, and
// releases them later.
type NodeStep struct {
	At, For time.Duration
	Kind    NodeKind
	// Volumes is how many it uses, Pick the first of them.
	Volumes int
	Pick    int
	// Deletes is how long after the node begins to use them their claims are
	// deleted.
	Deletes time.Duration
}

// String describes a step for people.
func (s NodeStep) String() string {
	return fmt.Sprintf("a node uses %d volumes and %s (%s)", s.Volumes, s.Kind, s.For)
}

func nodeSteps(d draws, duration time.Duration) []NodeStep {
	return series(d, 2*time.Second, 1500*time.Millisecond, 6*time.Second, duration, func(_ int, at time.Duration) (NodeStep, time.Duration) {
		return NodeStep{
			At:      at,
			For:     d.between(2*time.Second, 9*time.Second),
			Kind:    choose(d, []choice[NodeKind]{{4, Unmount}, {2, NodeGone}, {2, NodeLost}, {2, NodeBoots}}),
			Volumes: 1 + d.IntN(4),
			Pick:    d.IntN(1 << 20),
			Deletes: d.between(0, 1500*time.Millisecond),
		}, 0
	})
}
