package plan

import (
	"fmt"
	"time"
)

// Place is where a backend leads: home, or elsewhere.
type Place string

// The places.
const (
	Home Place = "home"
	// OtherProject makes the backend lead to another project.
	OtherProject Place = "another project"
	// OtherAddress makes it lead to the same project at another address, which
	// cannot be distinguished from another Cinder.
	OtherAddress Place = "another address"
)

// PlaceStep makes a backend lead elsewhere for a while.
type PlaceStep struct {
	At, For time.Duration
	Where   string
	Place   Place
}

// String describes a step for people.
func (s PlaceStep) String() string {
	return fmt.Sprintf("%s points to %s (%s)", s.Where, s.Place, s.For)
}

// placeSteps makes at most one backend lead elsewhere at a time.
func placeSteps(d draws, duration time.Duration) []PlaceStep {
	return series(d, 0, 5*time.Second, 22*time.Second, duration, func(_ int, at time.Duration) (PlaceStep, time.Duration) {
		s := PlaceStep{
			At:    at,
			For:   d.between(2*time.Second, 9*time.Second),
			Where: oneOf(d, Gold, Silver, Lab),
			Place: oneOf(d, OtherProject, OtherAddress),
		}
		if s.Where != Lab {
			s.Place = OtherProject
		}
		return s, s.For
	})
}
