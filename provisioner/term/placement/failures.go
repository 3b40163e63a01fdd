package placement

import (
	"slices"
	"sync"

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

// failures holds the rounds of claims for which Cinder could not make a volume.
type failures struct {
	mu     sync.Mutex
	rounds map[types.UID]round
}

// NoteFailure remembers, until the end of the claim's round, where its volume could not
// be created, and reports whether that is news.
func (f *failures) NoteFailure(uid types.UID, d ledger.Decided, failure Failure) (isNews bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rounds[uid]
	if r.revision != d.Revision {
		r = round{revision: d.Revision}
	}
	if slices.ContainsFunc(r.failures, func(earlier Failure) bool { return earlier.Location == failure.Location }) {
		return false
	}
	r.failures = append(r.failures, failure)
	f.rounds[uid] = r
	return true
}

// Failures returns the failures of the claim's round, oldest first.
func (f *failures) Failures(uid types.UID) []Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.rounds[uid].failures)
}

// Forget drops the claim's failures. Call it when the claim has a volume, needs none, or
// is retried only after a delay.
func (f *failures) Forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rounds, uid)
}

// InTurn orders a decision's locations for the claim: those that failed in its round come
// last. Another policy ends the round, because it has other locations.
func (f *failures) InTurn(uid types.UID, d ledger.Decided) ledger.Decided {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rounds[uid]
	if r.revision != d.Revision {
		delete(f.rounds, uid)
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
func (f *failures) Untried(uid types.UID, d ledger.Decided) []policy.Location {
	f.mu.Lock()
	failed := f.rounds[uid].locations()
	f.mu.Unlock()
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
