package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// settle decides what follows from an attempt: nothing, a retry, or waiting for a
// trigger.
func (c *Controller) settle(ctx context.Context, a *attempt, err error) worker.Outcome {
	var denied *deniedError
	var refusal *imports.RefusedError
	switch {
	case err == nil:
		c.succeeded(a)
		return worker.Outcome{Done: true}
	case ctx.Err() != nil:
		return worker.Outcome{} // the next leader continues
	case errors.Is(err, errProvisioned):
		c.leave(a)
		return worker.Outcome{}
	case errors.Is(err, errChanged):
		return c.retry(a, err, retry.For(nil))
	case errors.As(err, &denied):
		return c.deny(a, denied.Denial)
	case errors.As(err, &refusal) && refusal.Denial != nil:
		return c.deny(a, placement.DenialOf(refusal.Denial))
	case errors.As(err, &refusal):
		return c.deny(a, placement.Denial{Reason: reasonRefused, Message: cinder.TextOf(err)})
	}
	if unhealthy := c.Room.Health(a.backend); unhealthy != nil {
		return c.deny(a, *c.Room.Unavailable([]ledger.PassedOver{{Backend: a.backend, Why: unhealthy.Error()}}, nil))
	}
	if cinder.IsKind(err, backends.KindContested) {
		c.contested.Store(a.volume.ID, true)
	}
	if !retry.Passes(err) {
		c.report(a, corev1.EventTypeWarning, reasonFailed, cinder.TextOf(err))
	}
	c.giveBackUnlessBegun(a)
	c.Count(retry.For(err).Outcome)
	c.parked.NoteFailure(a.cached.UID, err.Error())
	a.park(parking.Failing, parking.Trigger{Kind: parking.Credentials, Name: a.backend}, parking.Trigger{Kind: parking.Backend, Name: a.backend})
	return c.retry(a, err, retry.For(err))
}

func (c *Controller) succeeded(a *attempt) {
	if a.saved == nil {
		return
	}
	if a.applied {
		c.Count("success")
	}
	c.report(a, corev1.EventTypeNormal, reasonImported, fmt.Sprintf("tenant %s, rule %s: volume %s (%d GiB) of backend %s is imported; its PersistentVolume %s keeps it when the claim is deleted",
		a.decision.Tenant, a.decision.Rule, a.volume.ID, a.volume.SizeGiB, a.backend, a.saved.Name))
	c.Logger.Info("Imported a volume", "tenant", a.decision.Tenant, "claim", a.Key, "claimUID", a.cached.UID, "persistentVolume", a.saved.Name,
		"backend", a.backend, "volume", a.volume.ID, "sizeGiB", a.volume.SizeGiB, "requestID", a.requests.OfStamp(), "durationSeconds", a.took.Seconds())
	c.parked.Take(a.cached.UID)
}

func (c *Controller) retry(a *attempt, err error, delay backoff.Delay) worker.Outcome {
	c.Logger.Warn("An import failed and will be retried", "claim", a.Key, "backend", a.backend, "volume", a.volume.ID, "error", err)
	return worker.Outcome{Retry: &delay}
}

// leave leaves a claim to the hub. If the hub has only reserved room so far, it gives
// the room back when it sees the annotation, and returns the claim.
func (c *Controller) leave(a *attempt) {
	position, counts := c.Room.Ledger.PositionOf(a.cached.UID)
	if counts && !position.NothingSeen && !position.Imported {
		c.report(a, corev1.EventTypeWarning, reasonNewVolume, fmt.Sprintf("the claim got the annotation %s only after the creation of a new volume had begun, and it keeps that volume; to import one, create a claim that has the annotation from the beginning", objects.AnnotationImport))
	}
	c.Provision(a.cached)
}

// deny parks a claim and reports why. When a volume becomes free or gets another name,
// no trigger may fire, so the claim is also retried, but rarely.
func (c *Controller) deny(a *attempt, denied placement.Denial) worker.Outcome {
	c.giveBackUnlessBegun(a)
	result := "denied"
	if denied.Reason == placement.ReasonBackendUnavailable {
		result = "unavailable"
	}
	c.Count(result)
	c.report(a, corev1.EventTypeWarning, denied.Reason, denied.Message)
	a.park(denied.State(), denied.Triggers...)
	var outcome worker.Outcome
	if denied.Reason != string(policy.QuotaExceeded) && denied.Reason != placement.ReasonBackendUnavailable && denied.Reason != string(policy.ImportNotGranted) {
		outcome.Retry = new(retry.Infeasible(nil))
		if a.claim != nil && c.ShareListings > 0 && time.Since(a.claim.CreationTimestamp.Time) < youngClaim {
			c.loop.Queue.AddAfter(a.Key, c.ShareListings)
		}
	}
	return outcome
}

// youngClaim is the age up to which a denied claim is retried whenever there may be a
// new listing, because its volume may be younger than the shared one.
const youngClaim = 10 * time.Second

// giveBackUnlessBegun frees room that was reserved before any request to Cinder. A
// volume that was stamped counts.
func (c *Controller) giveBackUnlessBegun(a *attempt) {
	if position, counts := c.Room.Ledger.PositionOf(a.cached.UID); counts && position.Imported && !a.applied && a.volume.ID == position.VolumeID && !a.isStamped(a.volume) {
		c.Room.Ledger.ReleaseReservation(a.cached.UID)
	}
}

// park keeps the claim until one of the triggers fires: these, another policy, other
// labels, or another StorageClass.
func (a *attempt) park(reason parking.Reason, triggers ...parking.Trigger) {
	a.c.parked.Park(a.cached, reason)
	a.Await(append(triggers, parking.Trigger{Kind: parking.Policy}, parking.Trigger{Kind: parking.Namespace, Name: a.cached.Namespace}, parking.Trigger{Kind: parking.Class, Name: a.class})...)
}

// report writes an event about the claim, if it is news.
func (c *Controller) report(a *attempt, eventType, reason, message string) {
	volatile := slices.Contains([]string{string(policy.QuotaExceeded), placement.ReasonBackendUnavailable}, reason)
	if !c.parked.IsNews(a.cached.UID, reason, message, volatile) {
		return
	}
	c.Recorder.Event(a.cached, eventType, reason, message)
	if eventType == corev1.EventTypeWarning {
		c.Logger.Info("Did not import a volume", "claim", a.Key, "reason", reason, "message", message)
	}
}
