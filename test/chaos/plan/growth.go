package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// GrowStep is a tenant's request for a larger volume.
type GrowStep struct {
	At time.Duration
	// Claim may be unbound or gone by then.
	Claim  string
	SizeMi int
}

// String describes a step for people.
func (s GrowStep) String() string { return fmt.Sprintf("ask for %d Mi for %s", s.SizeMi, s.Claim) }

// LargestGrownMi is the largest size that a claim grows to, other than TooLargeMi,
// which the policy refuses.
const LargestGrownMi = 5 * 1024

// growSteps draws which of a tenant's claims grow, some of them twice.
func growSteps(d draws, claims []ClaimStep, duration time.Duration) []GrowStep {
	var steps []GrowStep
	for _, s := range claims {
		first, pause := d.between(time.Second, 20*time.Second), d.between(0, 5*time.Second)
		more, again, tooLarge := d.IntN(1500), d.chance(0.3), d.chance(0.05)
		if s.Kind != Create || s.Class == Unlisted || s.SizeMi > LargestMi || !d.chance(0.5) {
			continue
		}
		grow := GrowStep{At: s.At + first, Claim: s.Claim, SizeMi: s.SizeMi + 300 + more/2}
		steps = append(steps, grow)
		if again {
			grow.At, grow.SizeMi = grow.At+pause, min(grow.SizeMi+300+more, LargestGrownMi)
			if tooLarge {
				grow.SizeMi = TooLargeMi
			}
			steps = append(steps, grow)
		}
	}
	steps = slices.DeleteFunc(steps, func(s GrowStep) bool { return s.At >= duration })
	slices.SortStableFunc(steps, func(a, b GrowStep) int { return cmp.Compare(a.At, b.At) })
	return steps
}
