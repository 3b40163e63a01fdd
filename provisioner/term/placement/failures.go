package placement

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// Failure is a location where Cinder could not create a claim's volume.
type Failure struct {
	policy.Location
	Reason string
}

// PassedOver returns the failure as the reason why its location was not chosen again.
func (f Failure) PassedOver() ledger.PassedOver {
	at := "backend " + f.Backend
	if f.Zone != "" {
		at += ", availability zone " + f.Zone
	}
	return ledger.PassedOver{Backend: f.Backend, Why: at + ": " + f.Reason}
}

// round holds the locations that a claim tries without a delay, one after another, until
// Cinder creates its volume or no location is left.
//
// A failure concerns only this claim. Cinder reports a full zone in the same way as a
// broken driver, or a volume larger than any pool, which say nothing about the next
// claim.
type round struct {
	revision string
	failures []Failure
}

// NoteFailure remembers, until the end of the claim's round, where its volume could not
// be created, and reports whether that is news.
func (p *Placer) NoteFailure(uid types.UID, d ledger.Decided, failure Failure) (isNews bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rounds[uid]
	if r.revision != d.Revision {
		r = round{revision: d.Revision}
	}
	if slices.ContainsFunc(r.failures, func(f Failure) bool { return f.Location == failure.Location }) {
		return false
	}
	r.failures = append(r.failures, failure)
	p.rounds[uid] = r
	return true
}

// Failures returns the failures of the claim's round, oldest first.
func (p *Placer) Failures(uid types.UID) []Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.rounds[uid].failures)
}

// Forget drops the claim's failures. Call it when the claim has a volume, needs none, or
// is retried only after a delay.
func (p *Placer) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.rounds, uid)
}

// InTurn orders a decision's locations for the claim: those that failed in its round come
// last. Another policy ends the round, because it has other locations.
func (p *Placer) InTurn(uid types.UID, d ledger.Decided) ledger.Decided {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rounds[uid]
	if r.revision != d.Revision {
		delete(p.rounds, uid)
		return d
	}
	d.Decision = d.TryLast(r.locations())
	return d
}

func (r round) locations() []policy.Location {
	locations := make([]policy.Location, len(r.failures))
	for i, failure := range r.failures {
		locations[i] = failure.Location
	}
	return locations
}

// Untried returns a decision's locations that did not fail in the claim's round.
func (p *Placer) Untried(uid types.UID, d ledger.Decided) []policy.Location {
	p.mu.Lock()
	failed := p.rounds[uid].locations()
	p.mu.Unlock()
	var untried []policy.Location
	for _, name := range d.Backends {
		for _, at := range d.LocationsOn(name) {
			if !slices.Contains(failed, at) {
				untried = append(untried, at)
			}
		}
	}
	return untried
}

// HasAnother reports whether another location can be tried at once in the claim's round.
// If the claim counts at a backend, it may have a volume there, so only that backend's
// locations qualify.
func (p *Placer) HasAnother(uid types.UID, d ledger.Decided) bool {
	position, counts := p.Ledger.PositionOf(uid)
	return slices.ContainsFunc(p.Untried(uid, d), func(at policy.Location) bool {
		if counts {
			return at.Backend == position.Backend && p.Health(at.Backend) == nil
		}
		return p.canTakeNow(at.Backend, d)
	})
}
