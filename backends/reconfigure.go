package backends

import (
	"maps"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// Configure gives a running lifecycle the configuration of a reloaded policy.
// Limits and time-outs hold for what begins from now on, and a backend that
// does not answer is probed at once.
//
// It reports whether what selects the endpoint has changed (Auth, Region or
// Interface). Nothing is then known of the volumes there: the caller must count
// them anew. Operations under way end at the endpoint where they began.
//
// The name is the lifecycle's own and stays; an equal configuration changes
// nothing.
func (l *Lifecycle) Configure(config Config) (endpointChanged bool) {
	config.Name = l.options.Config.Name
	config = config.withDefaults()
	l.mu.Lock()
	before := *l.at.config.Load()
	endpointChanged = selection(config) != selection(before)
	switch {
	case endpointChanged:
		l.move(config)
	case fingerprint.Of(config) == fingerprint.Of(before):
		l.mu.Unlock()
		return false
	default:
		l.at.config.Store(&config)
	}
	l.mu.Unlock()
	l.breaker.probeNow()
	return endpointChanged
}

// selection is a hash over what selects an endpoint.
func selection(config Config) string {
	return fingerprint.Of(config.Auth, config.Region, config.Interface)
}

// leave makes another endpoint the current one when the credentials of this one
// have come to lead to another place: a file with another project or address, or
// a catalog that was changed. The configuration is the same.
func (l *Lifecycle) leave(left *endpoint) {
	l.mu.Lock()
	current := l.at == left
	if current {
		l.move(*left.config.Load())
	}
	l.mu.Unlock()
	if current && l.options.Moved != nil {
		l.options.Moved()
	}
}

// move makes another endpoint the current one; it is called under the lock.
// What is in doubt stays in doubt, and every claim that the old endpoint has a
// volume for comes to it: the new one may be the same Cinder by another way.
// What was begun there before, and left, is to be looked for: nothing else may
// have this backend listed again for long.
func (l *Lifecycle) move(config Config) {
	old := l.at
	l.at = l.newEndpoint(config, old.session.epoch+1)
	maps.Copy(l.at.unsettled, old.unsettled)
	maps.Copy(l.at.former, old.former)
	now, place := time.Now(), old.place()
	for _, uid := range append(old.inventory.claims(), slices.Collect(maps.Keys(old.volumes))...) {
		l.at.unsettled[uid] = now
		if place.IsKnown() {
			l.at.former[uid] = place
		}
	}
	old.next = l.at
	l.lastDoubt = now
	// Answers of the old endpoint say nothing about the new one. The breaker
	// never calls back under its own lock.
	l.breaker.moved(l.at.session.epoch)
}

// Untouched reports whether the backend certainly has no volume of the claim
// from this term: none is known, and no create request was begun whose effect
// is in doubt. It costs no request. A caller that knows that no earlier term
// can have served the claim may then choose another backend, as long as no
// other operation on the claim is under way.
func (l *Lifecycle) Untouched(stamp Stamp) bool {
	l.mu.Lock()
	at := l.at
	_, known := at.volumes[stamp.ClaimUID]
	_, unsettled := at.unsettled[stamp.ClaimUID]
	l.mu.Unlock()
	return !known && !unsettled && !at.inventory.knows(stamp.ClaimUID)
}
