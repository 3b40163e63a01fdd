package placement

import (
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// ReasonBackendUnavailable is the event's reason when a claim or a deletion
// waits for a backend that does not answer.
const ReasonBackendUnavailable = "BackendUnavailable"

// Denial explains why a claim is denied before any request to Cinder.
type Denial struct {
	Reason  string
	Message string
	// Triggers may unblock the claim, besides another policy, other labels of the
	// namespace and another StorageClass.
	Triggers []parking.Trigger
}

// State returns why the claim is parked. A backend that does not answer denies nothing: it
// keeps a claim that is granted from going on.
func (d Denial) State() parking.Reason {
	if d.Reason == ReasonBackendUnavailable {
		return parking.Blocked
	}
	return parking.Denied
}

// DenialOf converts a denial by the policy.
func DenialOf(d *policy.Denial) Denial {
	return Denial{Reason: string(d.Reason), Message: d.Message}
}

// noRoom returns the denial of a claim that exceeds a quota. The claim is checked again
// when room is freed in that quota or when a backend of the claim's rule answers again.
func (p *Placer) noRoom(refused *ledger.Refusal, d ledger.Decided) Denial {
	denied := DenialOf(refused.Denial)
	denied.Triggers = triggersOf(p.RuleBackends(d))
	for _, s := range refused.Scopes {
		denied.Triggers = append(denied.Triggers, RoomIn(s))
	}
	return denied
}

// Unavailable returns the denial of a claim that no backend can take now. The claim is
// retried when a passed-over backend, or one of the others, answers.
func (p *Placer) Unavailable(passedOver []ledger.PassedOver, others []string) *Denial {
	var why []string
	triggers := append(triggersOf(others), parking.Trigger{Kind: parking.Earlier})
	for _, over := range passedOver {
		why = append(why, over.Why)
		triggers = append(triggers, parking.Trigger{Kind: parking.Backend, Name: over.Backend})
	}
	return &Denial{Reason: ReasonBackendUnavailable, Message: strings.Join(why, "; "), Triggers: triggers}
}

// RoomIn returns the trigger that fires when room is freed in a quota's scope.
func RoomIn(s ledger.Scope) parking.Trigger {
	return parking.Trigger{Kind: parking.Room, Name: string(s.Kind) + " " + s.Name}
}

func triggersOf(backends []string) []parking.Trigger {
	triggers := make([]parking.Trigger, len(backends))
	for i, name := range backends {
		triggers[i] = parking.Trigger{Kind: parking.Backend, Name: name}
	}
	return triggers
}
