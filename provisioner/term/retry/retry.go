// Package retry is the single table that maps errors to their retry delays.
package retry

import (
	"errors"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
)

// Infeasible returns the retry of an expansion that fails until a user changes something.
// If the claim then requests another size, it is tried at once.
func Infeasible(err error) backoff.Delay {
	return backoff.Delay{Outcome: For(err).Outcome, First: time.Minute, Most: 30 * time.Minute}
}

// Passes reports whether an error goes away by itself and says nothing about the object,
// so its owner needs no event.
func Passes(err error) bool {
	switch cinder.KindOf(err) {
	case cinder.KindFenced, cinder.KindRateLimited, backends.KindNotShown:
		return true
	}
	return false
}

// For looks up the retry for an error's kind: rarely for what only a user can fix, soon
// for what goes away by itself.
func For(err error) backoff.Delay {
	var refusal *mappers.Refusal
	if errors.As(err, &refusal) {
		// Each attempt creates and removes a volume.
		return backoff.Delay{Outcome: "refused", First: time.Minute, Most: 30 * time.Minute}
	}
	if errors.Is(err, removal.ErrMayBeServed) {
		// A duplicate must wait for the PersistentVolume that determines which volume
		// stays.
		return backoff.Delay{Outcome: "pending", First: 5 * time.Second, Most: 2 * time.Minute}
	}
	if errors.As(err, new(*removal.StillUsedError)) {
		// This applies only if no watch shows when the node releases the volume.
		return backoff.Delay{Outcome: "in_use", First: 10 * time.Second, Most: 2 * time.Minute}
	}
	var broken *objects.DamagedError
	if errors.As(err, &broken) {
		return backoff.Delay{Outcome: "damaged", First: time.Minute, Most: 30 * time.Minute}
	}
	if errors.As(err, new(*volumekeys.UnusableError)) {
		// Nothing shows when the operator restores a Secret.
		return backoff.Delay{Outcome: "credentials", First: 5 * time.Second, Most: time.Minute}
	}
	var failed *cinder.Error
	if !errors.As(err, &failed) {
		// The cause is the API server, or a backend that is no longer configured.
		return backoff.Delay{Outcome: "kubernetes", First: time.Second, Most: 30 * time.Second}
	}
	r := backoff.Delay{AtLeast: failed.RetryAfter}
	switch failed.Kind {
	case cinder.KindUnavailable, cinder.KindInternal:
		// The breaker handles a backend that does not answer at all: a retry here costs
		// one request.
		r.Outcome, r.First, r.Most = "unavailable", time.Second, 30*time.Second
	case backends.KindPending:
		r.Outcome, r.First, r.Most = "pending", 10*time.Second, time.Minute
	case backends.KindHasBackups:
		// The last dependent's removal retries it at once.
		r.Outcome, r.First, r.Most = "in_use", time.Minute, 30*time.Minute
	case cinder.KindConflict, backends.KindNotShown:
		r.Outcome, r.First, r.Most = "conflict", 2*time.Second, 30*time.Second
	case backends.KindTimeout:
		r.Outcome, r.First, r.Most = "timeout", 5*time.Second, time.Minute
	case cinder.KindRateLimited:
		r.Outcome, r.First, r.Most = "rate_limited", 5*time.Second, time.Minute
	case backends.KindVolumeFailed:
		r.Outcome, r.First, r.Most = "volume_failed", 10*time.Second, 2*time.Minute
	case cinder.KindOverQuota:
		r.Outcome, r.First, r.Most = "over_quota", 15*time.Second, 2*time.Minute
	case cinder.KindUnauthorized, cinder.KindForbidden, cinder.KindConfig:
		r.Outcome, r.First, r.Most = "credentials", 5*time.Second, time.Minute
	case cinder.KindNotFound, cinder.KindInvalid:
		// For example, a volume type or zone that does not exist.
		r.Outcome, r.First, r.Most = "invalid", 15*time.Second, 10*time.Minute
	case cinder.KindFenced:
		// The lease was briefly not renewed, and the term continues.
		r.Outcome, r.First, r.Most = "fenced", 5*time.Second, 5*time.Second
	case backends.KindInUse, backends.KindHasSnapshots:
		r.Outcome, r.First, r.Most = "in_use", 10*time.Second, 2*time.Minute
	case backends.KindNotOurs, backends.KindRestored, backends.KindContested:
		r.Outcome, r.First, r.Most = "not_ours", time.Minute, 30*time.Minute
	case backends.KindElsewhere:
		// A reload, changed credentials or another place retries it at once.
		r.Outcome, r.First, r.Most = "elsewhere", time.Minute, 30*time.Minute
	default:
		r.Outcome, r.First, r.Most = "other", 5*time.Second, 2*time.Minute
	}
	return r
}
