package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SnapshotKind is what a tenant takes.
type SnapshotKind string

// What tenants take: a VolumeSnapshot, one that is a backup, or a VolumeGroupSnapshot.
const (
	Single SnapshotKind = "snapshot"
	Backup SnapshotKind = "backup"
	Group  SnapshotKind = "group"
)

// SnapshotStep is one action of a tenant on a VolumeSnapshot or VolumeGroupSnapshot.
type SnapshotStep struct {
	At       time.Duration
	Kind     ClaimKind // Create or Delete
	As       SnapshotKind
	Snapshot string
	// Claims, of a Create, are those whose volumes it is of; they may be gone by then. Only
	// a Group has several.
	Claims []string
}

// String describes a step for people.
func (s SnapshotStep) String() string {
	if s.Kind == Create {
		return fmt.Sprintf("take %s %s of %s", s.As, s.Snapshot, strings.Join(s.Claims, ", "))
	}
	return fmt.Sprintf("delete %s %s", s.As, s.Snapshot)
}

// mostInGroup is how many claims a group has at most.
const mostInGroup = 3

// snapshotSteps draws snapshots of some of a tenant's claims. The volumes of a group are all
// of one backend: one whose snapshots are at two places can be removed from neither.
func snapshotSteps(d draws, claims []ClaimStep, options Options) []SnapshotStep {
	var steps []SnapshotStep
	var fast []string
	for i, s := range claims {
		taken, lives := d.between(0, 8*time.Second), d.between(0, 25*time.Second)
		ends, chosen := d.chance(0.8), d.chance(0.3)
		as := choose(d, []choice[SnapshotKind]{{3, Single}, {2, Backup}, {4, Group}})
		if options.OnlySingle {
			as = Single
		}
		if s.Kind != Create || s.Class == Unlisted {
			continue
		}
		if s.Class == Fast && !slices.Contains(fast, s.Claim) {
			fast = append(fast, s.Claim)
		}
		if !chosen || as == Group && s.Class != Fast {
			continue
		}
		step := SnapshotStep{At: s.At + taken, Kind: Create, As: as, Snapshot: fmt.Sprintf("snap-%d", i), Claims: []string{s.Claim}}
		if as == Group {
			step.Claims = slices.Clone(fast[max(0, len(fast)-mostInGroup):])
		}
		steps = append(steps, step)
		if ends {
			steps = append(steps, SnapshotStep{At: s.At + taken + lives, Kind: Delete, As: as, Snapshot: step.Snapshot})
		}
	}
	steps = slices.DeleteFunc(steps, func(s SnapshotStep) bool { return s.At >= options.Duration })
	slices.SortStableFunc(steps, func(a, b SnapshotStep) int { return cmp.Compare(a.At, b.At) })
	return steps
}
