package plan

import (
	"fmt"
	"time"
)

// AdministratorKind is an administrator's action.
type AdministratorKind string

// The actions of administrators.
const (
	// Reload puts a policy with other quotas into force.
	Reload AdministratorKind = "reload the policy"
	// BadPolicy writes a policy with errors, for a while.
	BadPolicy AdministratorKind = "write a bad policy"
	// Rotate changes the password of a backend's user.
	Rotate AdministratorKind = "rotate the password"
	// Foreign adds volumes that are not ours, named like the volume of some claim.
	Foreign AdministratorKind = "add foreign volumes"
	// GiveAway hands the volume of a claim over to another cluster, by changing
	// its stamp, and leaves the claim as it is.
	GiveAway AdministratorKind = "give a volume away"
	// Retype runs the command that changes the type of a claim's volume, and kills it
	// if it takes too long.
	Retype AdministratorKind = "change the type of a volume"
)

// PolicyVariants is how many policies there are, with different quotas. The
// first is in force at the beginning and at the end.
const PolicyVariants = 3

// AdministratorStep is one action of an administrator.
type AdministratorStep struct {
	At, For time.Duration
	Kind    AdministratorKind
	// Variant is the policy of a Reload.
	Variant int
	// Where is the backend of a Rotate or a Foreign.
	Where string
	// Pick chooses a claim, or a volume.
	Pick int
}

// String describes a step for people.
func (s AdministratorStep) String() string {
	switch s.Kind {
	case Reload:
		return fmt.Sprintf("%s (variant %d)", s.Kind, s.Variant)
	case BadPolicy:
		return fmt.Sprintf("%s (%s)", s.Kind, s.For)
	case GiveAway, Retype:
		return string(s.Kind)
	}
	return fmt.Sprintf("%s (%s)", s.Kind, s.Where)
}

func administratorSteps(d draws, duration time.Duration) []AdministratorStep {
	return series(d, 0, 2*time.Second, 8*time.Second, duration, func(_ int, at time.Duration) (AdministratorStep, time.Duration) {
		s := AdministratorStep{
			At:      at,
			Kind:    choose(d, []choice[AdministratorKind]{{4, Reload}, {1, BadPolicy}, {2, Rotate}, {3, Foreign}, {2, GiveAway}, {3, Retype}}),
			For:     d.between(1500*time.Millisecond, 4*time.Second),
			Variant: d.IntN(PolicyVariants),
			Where:   oneOf(d, Gold, Silver),
			Pick:    d.IntN(1 << 20),
		}
		anywhere := oneOf(d, Gold, Silver, Lab)
		if s.Kind == Foreign {
			s.Where = anywhere
		}
		if s.Kind == BadPolicy {
			return s, s.For
		}
		return s, 0
	})
}
