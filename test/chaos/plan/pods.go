package plan

import (
	"fmt"
	"time"
)

// PodNodes is how many nodes pods run on.
const PodNodes = 3

// PodStep is the life of a claim in mode csi, whose pod goes from node to node.
type PodStep struct {
	At     time.Duration
	Tenant string
	Claim  string
	SizeMi int
	// Stays are the nodes on which the pod runs, one after the other.
	Stays []PodStay
	// Ends means that claim and pod are deleted, in the end; otherwise the last stay
	// lasts. ClaimFirst means that the claim is deleted while the pod still runs.
	Ends, ClaimFirst bool
}

// PodStay is a pod's time on a node.
type PodStay struct {
	Node int
	For  time.Duration
	// Overlaps means that the volume is wanted there before the previous node has
	// released it, as after a forced detachment.
	Overlaps bool
}

// String describes a step for people.
func (s PodStep) String() string {
	text := fmt.Sprintf("pod of %s of tenant %s, %d Mi, on", s.Claim, s.Tenant, s.SizeMi)
	for _, stay := range s.Stays {
		text += fmt.Sprintf(" node %d (%s)", stay.Node, stay.For)
	}
	switch {
	case s.Ends && s.ClaimFirst:
		text += ", deleted after its claim"
	case s.Ends:
		text += ", deleted"
	}
	return text
}

// podSteps draws the pods of all tenants, one after the other.
func podSteps(d draws, duration time.Duration) []PodStep {
	return series(d, 0, 700*time.Millisecond, 2500*time.Millisecond, duration, func(i int, at time.Duration) (PodStep, time.Duration) {
		s := PodStep{At: at, Tenant: oneOf(d, TenantNames()...), Claim: fmt.Sprintf("pod-%d", i), SizeMi: 200 + d.IntN(1800), Ends: d.chance(0.7), ClaimFirst: d.chance(0.3)}
		node := d.IntN(PodNodes)
		for range 1 + d.IntN(4) {
			s.Stays = append(s.Stays, PodStay{Node: node, For: d.between(0, 9*time.Second), Overlaps: d.chance(0.4)})
			node = (node + 1 + d.IntN(PodNodes-1)) % PodNodes
			if d.chance(0.2) {
				node = s.Stays[0].Node
			}
		}
		return s, 0
	})
}
