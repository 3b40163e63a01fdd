package backends

import (
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// Configure applies a reloaded policy's configuration to a running lifecycle. Limits and
// timeouts apply to everything that begins from now on, and a backend that does not
// answer is probed at once.
//
// It reports whether the settings that select the endpoint have changed (Auth). If so,
// nothing is known about the volumes there: the caller must count them again. Operations
// under way end at the endpoint where they began.
//
// The backend keeps its name; an equal configuration changes nothing.
func (l *Lifecycle) Configure(config Config) (endpointChanged bool) {
	config.Name = l.options.Config.Name
	config = config.withDefaults()
	l.mu.Lock()
	before := *l.at.config.Load()
	endpointChanged = fingerprint.Of(config.Auth) != fingerprint.Of(before.Auth)
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
	l.breaker.ProbeNow()
	return endpointChanged
}

// leave makes another endpoint current when this one's credentials start to point to
// another place: a file with another project or address, or a changed catalog. The
// configuration is the same.
func (l *Lifecycle) leave(left *endpoint) {
	l.mu.Lock()
	current := l.at.endpoint == left
	if current {
		l.move(*left.config.Load())
	}
	l.mu.Unlock()
	if current && l.options.Moved != nil {
		l.options.Moved()
	}
}

// move makes another endpoint current. The caller must hold l.mu. It also records the
// time: volumes begun at the earlier place may remain there, and the backend may
// otherwise not be listed again for a long time.
func (l *Lifecycle) move(config Config) {
	old := l.at
	now := time.Now()
	l.at = l.newEndpoint(config, old.session.epoch+1, now)
	l.at.known.Succeed(old.known, old.inventory.Owners(), old.place(), now)
	l.at.snapshots.taken.known.Succeed(old.snapshots.taken.known, old.snapshots.taken.inventory.Owners(), old.place(), now)
	l.lastUncertain = now
	// Answers from the old endpoint say nothing about the new one. The breaker never
	// calls back with its lock held.
	l.breaker.Moved(l.at.session.epoch)
}

// KnowsNothingOf reports whether this term provably created no volume for the claim: none
// is known, and no create request has an unknown effect. It makes no request. If no
// earlier term can have served the claim, the caller may then choose another backend, as
// long as no other operation on the claim is under way.
func (l *Lifecycle) KnowsNothingOf(stamp stamps.Volume) bool {
	at := l.current()
	id, doubtSince := at.known.Of(stamp.ClaimUID)
	return id == "" && doubtSince.IsZero() && len(at.inventory.Listed(stamp.ClaimUID)) == 0
}
