package plan

import (
	"fmt"
	"net/http"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// CinderKind is what happens to Cinder.
type CinderKind string

// What happens to Cinder.
const (
	// InjectFault makes requests fail for a while.
	InjectFault CinderKind = "inject"
	// ExpireTokens ends the validity of all tokens.
	ExpireTokens CinderKind = "expire all tokens"
	// StopServices stalls creates and deletes for a while.
	StopServices CinderKind = "stop the volume services"
	// FailVolumes moves some volumes from available to error.
	FailVolumes CinderKind = "fail available volumes"
	// FillQuota makes Cinder's own quota of a project leave room for only a few
	// more volumes, for a while.
	FillQuota CinderKind = "fill the quota"
	// Flap makes a backend alternate between failing and answering in short
	// phases.
	Flap CinderKind = "flap"
)

// How long the phases of a flapping backend last.
const (
	ShortestTurn = 500 * time.Millisecond
	LongestTurn  = 3 * time.Second
)

// CinderStep is one thing that happens to Cinder.
type CinderStep struct {
	At, For time.Duration
	Kind    CinderKind
	// Fault is the fault of an InjectFault or of a Flap's failing phase, at one
	// backend, at Keystone, or everywhere if Where is empty.
	Fault cindersim.Fault
	Where string
	// Room is how many volumes a FillQuota leaves room for.
	Room int
	// Seed is for draws while the step lasts.
	Seed uint64
}

// String describes a step for people.
func (s CinderStep) String() string {
	switch s.Kind {
	case FillQuota, Flap:
		return fmt.Sprintf("%s of %s (%s)", s.Kind, s.Where, s.For)
	case InjectFault:
	default:
		return fmt.Sprintf("%s (%s)", s.Kind, s.For)
	}
	f := s.Fault
	text := fmt.Sprintf("%s of %s at %s, probability %.2f", f.Kind, orAll(f.Operation), orAll(s.Where), f.Probability)
	if f.Kind == cindersim.RespondBefore || f.Kind == cindersim.RespondAfter {
		text += fmt.Sprintf(", code %d", f.Code)
	}
	if f.Delay > 0 {
		text += fmt.Sprintf(", delay %s", f.Delay)
	}
	return fmt.Sprintf("%s (%s)", text, s.For)
}

func orAll(text string) string {
	if text == "" {
		return "all"
	}
	return text
}

// Keystone is a place of faults in addition to the backends.
const Keystone = "keystone"

func cinderSteps(d draws, duration time.Duration) []CinderStep {
	return series(d, 0, 300*time.Millisecond, 1700*time.Millisecond, duration, func(_ int, at time.Duration) (CinderStep, time.Duration) {
		s := CinderStep{
			At:    at,
			Kind:  choose(d, []choice[CinderKind]{{78, InjectFault}, {6, ExpireTokens}, {6, StopServices}, {10, FailVolumes}, {8, FillQuota}, {5, Flap}}),
			For:   d.between(1500*time.Millisecond, 7*time.Second),
			Where: choose(d, []choice[string]{{3, ""}, {2, Gold}, {2, Silver}, {3, Lab}}),
			Seed:  d.Uint64(),
			Room:  d.IntN(3),
		}
		one, longer := oneOf(d, Gold, Silver, Lab), d.between(4*time.Second, 11*time.Second)
		bad := oneOf(d, cindersim.RespondBefore, cindersim.RespondBefore, cindersim.HangBefore, cindersim.DropBefore, cindersim.DropAfter)
		fault, where := drawFault(d)
		if s.Kind == InjectFault {
			s.Fault = fault
			if where != "" {
				s.Where = where
			}
		}
		if s.Kind == FillQuota || s.Kind == Flap {
			s.Where, s.For = one, longer
		}
		if s.Kind == Flap {
			s.Fault = cindersim.Fault{Kind: bad, Code: http.StatusServiceUnavailable, Probability: 1}
		}
		if s.Kind == ExpireTokens {
			s.For = 0
		}
		return s, 0
	})
}

// changes returns the operations of a volume's life that change something.
func changes() []string {
	return []string{"volume.create", "action.os-reserve", "action.os-initialize_connection", "action.os-attach",
		"action.os-terminate_connection", "action.os-unreserve", "action.os-detach", "action.*",
		"attachment.create", "attachment.complete", "attachment.delete", "attachment.*", "volume.delete"}
}

// drawFault draws a fault, and its place if it makes sense in only one.
func drawFault(d draws) (fault cindersim.Fault, where string) {
	operation := oneOf(d, append(changes(), "volume.list", "volume.get", "attachment.get", "")...)
	change := oneOf(d, changes()...)
	often, seldom := d.within(0.1, 0.6), d.within(0.05, 0.3)
	slow := d.between(100*time.Millisecond, 1500*time.Millisecond)
	brokenGateway := oneOf(d, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout)
	backend := oneOf(d, Gold, Silver, Lab)
	connecting := oneOf(d, "action.os-initialize_connection", "attachment.create")
	disconnecting := oneOf(d, "action.os-terminate_connection", "attachment.delete")
	kind := func(weight int, f cindersim.Fault, where string) choice[located] {
		return choice[located]{weight, located{f, where}}
	}
	drawn := choose(d, []choice[located]{
		kind(14, cindersim.Fault{Kind: cindersim.RespondBefore, Operation: operation, Code: brokenGateway, Probability: often}, ""),
		kind(14, cindersim.Fault{Kind: cindersim.RespondAfter, Operation: change, Code: brokenGateway, Probability: often}, ""),
		kind(14, cindersim.Fault{Kind: cindersim.DropAfter, Operation: change, Probability: often}, ""),
		kind(6, cindersim.Fault{Kind: cindersim.DropBefore, Operation: operation, Probability: often}, ""),
		kind(6, cindersim.Fault{Kind: cindersim.RespondBefore, Operation: operation, Code: http.StatusUnauthorized, Probability: often}, ""),
		kind(5, cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "volume.create", Code: http.StatusRequestEntityTooLarge, RetryAfter: "0", Probability: often}, ""),
		kind(5, cindersim.Fault{Kind: cindersim.RespondBefore, Operation: operation, Code: http.StatusTooManyRequests, RetryAfter: "1", Probability: often}, ""),
		kind(5, cindersim.Fault{Kind: cindersim.HangBefore, Operation: operation, Probability: seldom}, ""),
		kind(8, cindersim.Fault{Kind: cindersim.HangAfter, Operation: change, Probability: seldom}, ""),
		kind(8, cindersim.Fault{Kind: cindersim.Delay, Delay: slow, Probability: often}, ""),
		kind(6, cindersim.Fault{Kind: cindersim.FailBackend, Operation: "volume.create", Probability: often}, ""),
		kind(5, cindersim.Fault{Kind: cindersim.FailBackend, Operation: connecting, Probability: often}, ""),
		kind(5, cindersim.Fault{Kind: cindersim.FailBackend, Operation: disconnecting, Probability: often}, ""),
		// Only an administrator can delete by force what is in error_deleting.
		kind(5, cindersim.Fault{Kind: cindersim.FailBackend, Operation: "volume.delete", Probability: often}, Lab),
		kind(6, cindersim.Fault{Kind: cindersim.RespondBefore, Code: http.StatusServiceUnavailable, Probability: 1}, backend),
		kind(4, cindersim.Fault{Kind: cindersim.HangBefore, Probability: 1}, backend),
		kind(4, cindersim.Fault{Kind: cindersim.RespondBefore, Code: http.StatusServiceUnavailable, Probability: 1}, Keystone),
		kind(2, cindersim.Fault{Kind: cindersim.DropAfter, Probability: often}, Keystone),
	})
	return drawn.fault, drawn.where
}

type located struct {
	fault cindersim.Fault
	where string
}
