// Package retry is the one table from errors to the delays of their retries.
package retry

import (
	"errors"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/proof"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// For is the one table from the kind of an error to its retry. What only a
// person can mend is tried rarely; what passes by itself soon.
func For(err error) backoff.Delay {
	var refusal *mappers.Refusal
	if errors.As(err, &refusal) {
		// Each attempt makes and removes a volume.
		return backoff.Delay{Outcome: "refused", First: time.Minute, Most: 30 * time.Minute}
	}
	if errors.Is(err, proof.ErrMayBeServed) {
		// A second volume, which waits for the PersistentVolume that tells.
		return backoff.Delay{Outcome: "pending", First: 5 * time.Second, Most: 2 * time.Minute}
	}
	var inUse *proof.InUseError
	if errors.As(err, &inUse) {
		// Where no watch tells when the node lets go.
		return backoff.Delay{Outcome: "in_use", First: 10 * time.Second, Most: 2 * time.Minute}
	}
	var broken *record.DamagedError
	if errors.As(err, &broken) {
		return backoff.Delay{Outcome: "damaged", First: time.Minute, Most: 30 * time.Minute}
	}
	var failed *cinder.Error
	if !errors.As(err, &failed) {
		// The API server, or a backend that is not configured any more.
		return backoff.Delay{Outcome: "kubernetes", First: time.Second, Most: 30 * time.Second}
	}
	r := backoff.Delay{AtLeast: failed.RetryAfter}
	switch failed.Kind {
	case cinder.KindUnavailable, cinder.KindInternal:
		// A backend that does not answer at all is the breaker's: what is tried
		// again here costs one request.
		r.Outcome, r.First, r.Most = "unavailable", time.Second, 30*time.Second
	case cinder.KindConflict:
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
		// A volume type or zone that does not exist, for example.
		r.Outcome, r.First, r.Most = "invalid", 15*time.Second, 10*time.Minute
	case cinder.KindFenced:
		// The lease was not renewed for a moment, and the term goes on.
		r.Outcome, r.First, r.Most = "fenced", 5*time.Second, 5*time.Second
	case backends.KindInUse:
		r.Outcome, r.First, r.Most = "in_use", 10*time.Second, 2*time.Minute
	case backends.KindNotOurs:
		r.Outcome, r.First, r.Most = "not_ours", time.Minute, 30*time.Minute
	case backends.KindElsewhere:
		// A reload, changed credentials and another place bring it back at once.
		r.Outcome, r.First, r.Most = "elsewhere", time.Minute, 30*time.Minute
	default:
		r.Outcome, r.First, r.Most = "other", 5*time.Second, 2*time.Minute
	}
	return r
}
