package plan

import (
	"fmt"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// Server is the far end of a link to the API server; that of the others is the
// backend Lab.
const Server = "API server"

// Link is one replica's network to the API server or to a backend.
type Link struct {
	Slot  int
	To    string
	Steps []LinkStep
}

// String names a link for people.
func (l Link) String() string { return fmt.Sprintf("replica %d to %s", l.Slot, l.To) }

// LinkKind is what happens to a link.
type LinkKind string

// What happens to a link.
const (
	Cut   LinkKind = "cut"
	Stall LinkKind = "stall"
	// Meddle holds back, loses, delays or repeats single requests.
	Meddle LinkKind = "meddle"
	// Blind withholds the watch events of one kind of objects from a replica,
	// whose cache then shows the earlier state.
	Blind LinkKind = "blind"
)

// LinkStep is one thing that happens to a link.
type LinkStep struct {
	At, For time.Duration
	Kind    LinkKind
	// Verdict is the fate of requests that change something, with this
	// probability; Late is how long after the step late ones arrive.
	Verdict     faultproxy.Verdict
	Probability float64
	Late        time.Duration
	// Seed is for the draws about single requests.
	Seed uint64
	// Resource is what a Blind replica gets no watch events of.
	Resource string
}

// String describes a step for people.
func (s LinkStep) String() string {
	if s.Kind == Blind {
		return fmt.Sprintf("no news of %s (%s)", s.Resource, s.For)
	}
	if s.Kind != Meddle {
		return fmt.Sprintf("%s (%s)", s.Kind, s.For)
	}
	text := fmt.Sprintf("%s, probability %.2f", s.Verdict, s.Probability)
	if s.isLate() {
		text += fmt.Sprintf(", by %s", s.Late)
	}
	return fmt.Sprintf("%s (%s)", text, s.For)
}

func (s LinkStep) isLate() bool {
	return s.Verdict == faultproxy.Late || s.Verdict == faultproxy.LateAnswer
}

func links(seed uint64, duration time.Duration) []Link {
	var all []Link
	for slot := range Slots {
		for _, to := range []string{Server, Lab} {
			link := Link{Slot: slot, To: to}
			link.Steps = linkSteps(stream(seed, "link "+link.String()), to, duration)
			all = append(all, link)
		}
	}
	return all
}

func linkSteps(d draws, to string, duration time.Duration) []LinkStep {
	kinds := []choice[LinkKind]{{2, Cut}, {2, Stall}, {5, Meddle}}
	if to == Server {
		kinds = append(kinds, choice[LinkKind]{3, Blind})
	}
	return series(d, 0, 3*time.Second, 16*time.Second, duration, func(_ int, at time.Duration) (LinkStep, time.Duration) {
		s := LinkStep{
			At:   at,
			For:  d.between(800*time.Millisecond, LeaseDuration+4*time.Second),
			Kind: choose(d, kinds),
			Verdict: choose(d, []choice[faultproxy.Verdict]{{3, faultproxy.LoseAfter}, {2, faultproxy.LoseBefore}, {2, faultproxy.HoldAfter},
				{1, faultproxy.HoldBefore}, {3, faultproxy.Late}, {2, faultproxy.LateAnswer}, {3, faultproxy.Twice}}),
			Probability: d.within(0.05, 0.5),
			Late:        d.between(500*time.Millisecond, 8*time.Second),
			Seed:        d.Uint64(),
			Resource:    oneOf(d, "persistentvolumes", "persistentvolumes", "persistentvolumeclaims"),
		}
		if s.Kind == Meddle && s.isLate() {
			return s, s.For + s.Late
		}
		return s, s.For
	})
}
