package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// ClaimKind is a tenant's action on a claim.
type ClaimKind string

// The actions of tenants.
const (
	Create ClaimKind = "create"
	Delete ClaimKind = "delete"
	// Retain makes the claim's PersistentVolume keep its volume, which an
	// administrator does before the claim is deleted.
	Retain ClaimKind = "retain"
)

// The StorageClasses.
const (
	// Fast goes to one backend, Dual to the first of two that can take it.
	Fast = "fast"
	Dual = "dual"
	// Kept has the reclaim policy Retain.
	Kept = "kept"
	// Unlisted is in no rule of the policy.
	Unlisted = "unlisted"
	// OnNodes is in mode csi, for one backend.
	OnNodes = "nodes"
	// Moved is for volumes that go from claim to claim, and MovedOnNodes for those of
	// them that are in mode csi.
	Moved        = "moved"
	MovedOnNodes = "moved-nodes"
)

// Classes returns all StorageClasses.
func Classes() []string {
	return []string{Fast, Dual, Kept, Unlisted, OnNodes, Moved, MovedOnNodes, Shown, Masked, Sealed}
}

// LargestMi is the largest size of a claim that the policy accepts; it refuses
// TooLargeMi.
const (
	LargestMi  = 3 * 1024
	TooLargeMi = 11 * 1024
)

// ClaimStep is one action of a tenant.
type ClaimStep struct {
	At    time.Duration
	Kind  ClaimKind
	Claim string

	// Of a Create:
	Class  string
	SizeMi int
	Block  bool
	// Copies is the claim whose content it wants; empty for none.
	Copies string

	// Fails, of a Delete, moves the volume to error while it is in use.
	Fails bool
}

// String describes a step for people.
func (s ClaimStep) String() string {
	switch s.Kind {
	case Create:
		mode := "Filesystem"
		if s.Block {
			mode = "Block"
		}
		text := fmt.Sprintf("create %s: %s, %d Mi, %s", s.Claim, s.Class, s.SizeMi, mode)
		if s.Copies != "" {
			text += ", a copy of " + s.Copies
		}
		return text
	case Delete:
		if s.Fails {
			return "delete " + s.Claim + ", whose volume fails"
		}
	}
	return string(s.Kind) + " " + s.Claim
}

// fate is what becomes of a claim.
type fate string

const (
	goesEarly  fate = "early" // while it is provisioned, most likely
	goesLate   fate = "late"
	isRetained fate = "retained"
	comesAgain fate = "again" // under the same name
	stays      fate = "stays"
)

// claimSteps draws a tenant's claims one by one, and sorts their steps.
func claimSteps(d draws, options Options) []ClaimStep {
	var steps []ClaimStep
	at := time.Duration(0)
	for i := 0; ; i++ {
		at += d.between(options.ClaimEvery/4, options.ClaimEvery*7/4)
		life := claimLife(d, fmt.Sprintf("data-%d", i), at)
		if at >= options.Duration {
			break
		}
		steps = append(steps, life...)
	}
	return inOrder(steps, options.Duration)
}

// inOrder sorts steps; steps after the faults are left to the ending.
func inOrder(steps []ClaimStep, duration time.Duration) []ClaimStep {
	steps = slices.DeleteFunc(steps, func(s ClaimStep) bool { return s.At >= duration })
	slices.SortStableFunc(steps, func(a, b ClaimStep) int { return cmp.Compare(a.At, b.At) })
	return steps
}

// addBursts makes a tenant create many claims at once right before something
// happens to the leader, which then has many requests under way.
func (p Plan) addBursts(d draws) {
	for i, step := range p.Processes {
		tenant, size := oneOf(d, TenantNames()...), 8+d.IntN(14)
		at := max(0, step.At-d.between(0, 350*time.Millisecond))
		lives := d.between(5*time.Second, 25*time.Second)
		var burst []ClaimStep
		for j := range size {
			s := claimCreate(d, fmt.Sprintf("burst-%d-%d", i, j), at)
			burst = append(burst, s, ClaimStep{At: at + lives, Kind: Delete, Claim: s.Claim})
		}
		if step.Kind == KillFollower || step.Kind == PauseFollower {
			continue
		}
		p.Claims[tenant] = inOrder(append(p.Claims[tenant], burst...), p.Duration)
	}
}

// addCopies makes some claims of a tenant ask for the content of a claim that was
// created before, though it may be gone by then.
func addCopies(d draws, steps []ClaimStep) {
	var created []ClaimStep
	for i, s := range steps {
		if s.Kind != Create {
			continue
		}
		if d.chance(0.15) && len(created) > 0 {
			source := created[len(created)-1-d.IntN(min(len(created), 8))]
			if source.Claim != s.Claim {
				steps[i].Copies, steps[i].Block, steps[i].SizeMi = source.Claim, source.Block, max(s.SizeMi, source.SizeMi)
			}
		}
		created = slices.DeleteFunc(created, func(other ClaimStep) bool { return other.Claim == s.Claim })
		if s.Class != Unlisted && steps[i].SizeMi <= LargestMi {
			created = append(created, steps[i])
		}
	}
}

// claimLife draws one claim. Deletions after the faults are left to the ending.
func claimLife(d draws, name string, at time.Duration) []ClaimStep {
	life := []ClaimStep{claimCreate(d, name, at)}
	end := func(after time.Duration) {
		last := life[len(life)-1].At
		life = append(life, ClaimStep{At: last + after, Kind: Delete, Claim: name, Fails: d.chance(0.08)})
	}
	switch choose(d, []choice[fate]{{26, goesEarly}, {46, goesLate}, {6, isRetained}, {14, comesAgain}, {8, stays}}) {
	case goesEarly:
		end(d.between(0, 2500*time.Millisecond))
	case goesLate:
		end(d.between(4*time.Second, 40*time.Second))
	case isRetained:
		life = append(life, ClaimStep{At: at + d.between(6*time.Second, 25*time.Second), Kind: Retain, Claim: name})
		end(d.between(100*time.Millisecond, 2*time.Second))
	case comesAgain:
		end(d.between(500*time.Millisecond, 20*time.Second))
		life = append(life, claimCreate(d, name, life[len(life)-1].At+d.between(0, 300*time.Millisecond)))
		if d.chance(0.6) {
			end(d.between(500*time.Millisecond, 25*time.Second))
		}
	case stays:
	}
	return life
}

func claimCreate(d draws, name string, at time.Duration) ClaimStep {
	s := ClaimStep{
		At: at, Kind: Create, Claim: name,
		Class:  choose(d, []choice[string]{{44, Fast}, {40, Dual}, {12, Kept}, {4, Unlisted}}),
		SizeMi: 200 + d.IntN(LargestMi-200),
		Block:  d.chance(0.3),
	}
	if d.chance(0.03) {
		s.SizeMi = TooLargeMi
	}
	return s
}

// Retained returns the largest number of a tenant's volumes that are meant to
// outlive their claims: they use up its quota forever.
func (p Plan) Retained(tenant string) int {
	n := 0
	for _, s := range p.Claims[tenant] {
		if s.Kind == Retain || s.Kind == Create && s.Class == Kept {
			n++
		}
	}
	return n
}

// KeptByHand returns the largest number of volumes, of any tenant, that an
// administrator makes outlive their claims.
func (p Plan) KeptByHand() int {
	n := 0
	for _, s := range p.Volumes {
		if s.Keeps() {
			n++
		}
	}
	return n
}
