package plan

import (
	"fmt"
	"time"
)

// MoverNames returns the tenants whose volumes go from claim to claim; each has one
// namespace. No other actor touches their volumes.
func MoverNames() []string { return []string{"d", "e"} }

// AllTenants returns all tenants.
func AllTenants() []string { return append(append(TenantNames(), MoverNames()...), Stager) }

// MoveWay is how a PersistentVolume gets another claim.
type MoveWay string

// How PersistentVolumes get other claims.
const (
	// ByHand is an administrator's way: the volume is kept, its claim is deleted, and the
	// PersistentVolume is reserved for the next claim, which names it.
	ByHand MoveWay = "by hand"
	// ByPopulator is a populator's way: the next claim waits for content, and the
	// PersistentVolume is taken from its claim while they are bound.
	ByPopulator MoveWay = "by a populator"
)

// MoverStep is the life of a volume that goes from claim to claim.
type MoverStep struct {
	At time.Duration
	// Tenant and Claim are the first.
	Tenant, Claim string
	SizeMi        int
	Block         bool
	// OnNodes means that the volume is in mode csi.
	OnNodes bool
	Moves   []Move
	// Ends means that the last claim is deleted; otherwise it stays.
	Ends bool
}

// Move gives a volume to another claim.
type Move struct {
	// After is how long after the volume was bound it moves on.
	After         time.Duration
	Way           MoveWay
	Tenant, Claim string
	// ClaimFirst means that an administrator creates the claim before the
	// PersistentVolume is reserved for it.
	ClaimFirst bool
	// Grows means that the claim then asks for a larger volume, and Anew that a claim is
	// made under the name of the one that had the volume; it gets another volume.
	Grows, Anew bool
}

// String describes a step for people.
func (s MoverStep) String() string {
	text := fmt.Sprintf("volume of %s of tenant %s, %d Mi", s.Claim, s.Tenant, s.SizeMi)
	if s.OnNodes {
		text += ", in mode csi"
	}
	for _, move := range s.Moves {
		text += fmt.Sprintf(", to %s of tenant %s %s (after %s)", move.Claim, move.Tenant, move.Way, move.After)
	}
	if s.Ends {
		text += ", deleted"
	}
	return text
}

// moverSteps draws the volumes one after the other. Their lives overlap.
func moverSteps(d draws, duration time.Duration) []MoverStep {
	return series(d, 0, 700*time.Millisecond, 3500*time.Millisecond, duration, func(i int, at time.Duration) (MoverStep, time.Duration) {
		s := MoverStep{
			At: at, Tenant: oneOf(d, MoverNames()...), Claim: fmt.Sprintf("moved-%d", i), SizeMi: 200 + d.IntN(1800),
			Block: d.chance(0.3), OnNodes: d.chance(0.25), Ends: d.chance(0.4),
		}
		tenant, claim := s.Tenant, s.Claim
		anew := map[string]bool{}
		for range choose(d, []choice[int]{{60, 1}, {30, 2}, {10, 3}}) {
			move := Move{
				After: d.between(0, 4*time.Second), Way: oneOf(d, ByHand, ByPopulator), Tenant: oneOf(d, MoverNames()...),
				ClaimFirst: d.chance(0.5), Grows: d.chance(0.4), Anew: d.chance(0.2),
			}
			// A claim may get the name of another one that is gone, or of one in another
			// namespace.
			keepsName := d.chance(0.5)
			move.Claim = claim
			if !keepsName || move.Way == ByPopulator && move.Tenant == tenant || anew[move.Tenant+"/"+claim] {
				move.Claim = fmt.Sprintf("%s-%d", s.Claim, len(s.Moves)+1)
			}
			move.Anew = move.Anew && (move.Claim != claim || move.Tenant != tenant)
			s.Moves, anew[tenant+"/"+claim] = append(s.Moves, move), move.Anew
			tenant, claim = move.Tenant, move.Claim
		}
		return s, 0
	})
}

// Moved returns the largest number of volumes that movers have at the same time.
func (p Plan) Moved() int {
	n := 0
	for _, s := range p.Movers {
		n++
		for _, move := range s.Moves {
			if move.Anew {
				n++
			}
		}
	}
	return n
}
