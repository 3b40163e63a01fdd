package plan

import (
	"fmt"
	"time"
)

// HostileStep makes a server answer some requests like a broken or malicious
// one for a while. Which attack a request meets is drawn when it arrives.
type HostileStep struct {
	At, For time.Duration
	// Where is a backend or Keystone.
	Where       string
	Probability float64
	// Seed is for the draws about single requests.
	Seed uint64
}

// String describes a step for people.
func (s HostileStep) String() string {
	return fmt.Sprintf("%s is hostile, probability %.2f (%s)", s.Where, s.Probability, s.For)
}

func hostileSteps(d draws, duration time.Duration) []HostileStep {
	return series(d, 0, time.Second, 4*time.Second, duration, func(_ int, at time.Duration) (HostileStep, time.Duration) {
		return HostileStep{
			At:          at,
			For:         d.between(1500*time.Millisecond, 6*time.Second),
			Where:       choose(d, []choice[string]{{3, Gold}, {3, Silver}, {3, Lab}, {2, Keystone}}),
			Probability: d.within(0.1, 0.5),
			Seed:        d.Uint64(),
		}, 0
	})
}
