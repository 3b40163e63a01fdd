package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// SnapshotStep is one action of a tenant on a VolumeSnapshot.
type SnapshotStep struct {
	At       time.Duration
	Kind     ClaimKind // Create or Delete
	Snapshot string
	// Claim, of a Create, is the claim whose volume it is of; it may be gone by
	// then.
	Claim string
}

// String describes a step for people.
func (s SnapshotStep) String() string {
	if s.Kind == Create {
		return fmt.Sprintf("take snapshot %s of %s", s.Snapshot, s.Claim)
	}
	return "delete snapshot " + s.Snapshot
}

// snapshotSteps draws snapshots of some of a tenant's claims.
func snapshotSteps(d draws, claims []ClaimStep, duration time.Duration) []SnapshotStep {
	var steps []SnapshotStep
	for i, s := range claims {
		taken, lives := d.between(0, 15*time.Second), d.between(0, 25*time.Second)
		ends := d.chance(0.8)
		if s.Kind != Create || s.Class == Unlisted || !d.chance(0.15) {
			continue
		}
		name := fmt.Sprintf("snap-%d", i)
		steps = append(steps, SnapshotStep{At: s.At + taken, Kind: Create, Snapshot: name, Claim: s.Claim})
		if ends {
			steps = append(steps, SnapshotStep{At: s.At + taken + lives, Kind: Delete, Snapshot: name})
		}
	}
	steps = slices.DeleteFunc(steps, func(s SnapshotStep) bool { return s.At >= duration })
	slices.SortStableFunc(steps, func(a, b SnapshotStep) int { return cmp.Compare(a.At, b.At) })
	return steps
}
