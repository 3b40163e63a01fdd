package tenantimport

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
	"github.com/standalone-cinder/standalone-cinder/provisioner/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
)

// settle decides what follows from an attempt: nothing, a retry, or waiting for a
// trigger.
func (c *Controller) settle(ctx context.Context, a *attempt, err error) {
	var denied *deniedError
	var refusal *imports.RefusedError
	switch {
	case err == nil:
		c.limiter.Gone(a.key)
		c.succeeded(a)
		return
	case ctx.Err() != nil:
		return // the next leader continues
	case errors.Is(err, errProvisioned):
		c.leave(a)
		return
	case errors.Is(err, errChanged):
		c.retry(a, err)
		return
	case errors.As(err, &denied):
		c.deny(a, denied.Denial)
		return
	case errors.As(err, &refusal) && refusal.Denial != nil:
		c.deny(a, placement.DenialOf(refusal.Denial))
		return
	case errors.As(err, &refusal):
		c.deny(a, placement.Denial{Reason: reasonRefused, Message: cinder.Sentence(err)})
		return
	}
	if unhealthy := c.Room.Health(a.backend); unhealthy != nil {
		c.deny(a, *c.Room.Unavailable([]ledger.PassedOver{{Backend: a.backend, Why: unhealthy.Error()}}, nil))
		return
	}
	if cinder.IsKind(err, backends.KindContested) {
		c.noteContest(a.volume.ID)
	}
	if kind := cinder.KindOf(err); kind != cinder.KindFenced && kind != cinder.KindRateLimited { // these go away by themselves
		c.report(a, corev1.EventTypeWarning, reasonFailed, cinder.Sentence(err))
	}
	c.giveBackUnlessBegun(a)
	c.Count(retry.For(err).Outcome)
	c.limiter.Failed(a.key, retry.For(err))
	c.retry(a, err)
	c.parked.NoteFailure(a.cached.UID, err.Error())
	c.park(a.cached, parking.Failing, append(always(a), parking.Trigger{Kind: parking.Credentials, Name: a.backend}, parking.Trigger{Kind: parking.Backend, Name: a.backend}), a.since)
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
	c.Logger.Info("Imported a volume", "tenant", a.decision.Tenant, "claim", a.key, "claimUID", a.cached.UID, "persistentVolume", a.saved.Name,
		"backend", a.backend, "volume", a.volume.ID, "sizeGiB", a.volume.SizeGiB, "requestID", a.requests.OfStamp(), "durationSeconds", a.took.Seconds())
	c.parked.Take(a.cached.UID)
}

func (c *Controller) retry(a *attempt, err error) {
	c.Logger.Warn("An import failed and will be retried", "claim", a.key, "backend", a.backend, "volume", a.volume.ID, "error", err)
	c.queue.AddRateLimited(a.key)
}

// leave leaves a claim to the hub. If the hub has only reserved room so far, it gives
// the room back when it sees the annotation, and returns the claim.
func (c *Controller) leave(a *attempt) {
	position, counts := c.Room.Ledger.PositionOf(a.cached.UID)
	if counts && !position.NothingSeen && !position.Imported {
		c.report(a, corev1.EventTypeWarning, reasonNewVolume, fmt.Sprintf("the claim got the annotation %s only after the creation of a new volume had begun, and it keeps that volume; to import one, create a claim that has the annotation from the beginning", record.AnnotationImport))
	}
	c.Provision(a.cached)
}

// deny parks a claim and reports why. When a volume becomes free or gets another name,
// no trigger may fire, so the claim is also retried, but rarely.
func (c *Controller) deny(a *attempt, denied placement.Denial) {
	c.giveBackUnlessBegun(a)
	outcome := "denied"
	if denied.Reason == placement.ReasonBackendUnavailable {
		outcome = "unavailable"
	}
	c.Count(outcome)
	c.report(a, corev1.EventTypeWarning, denied.Reason, denied.Message)
	c.park(a.cached, parking.Denied, append(always(a), denied.Triggers...), a.since)
	if denied.Reason != string(policy.QuotaExceeded) && denied.Reason != placement.ReasonBackendUnavailable && denied.Reason != string(policy.ImportNotGranted) {
		c.limiter.Failed(a.key, retry.Infeasible(nil))
		c.queue.AddRateLimited(a.key)
		if a.claim != nil && c.ShareListings > 0 && time.Since(a.claim.CreationTimestamp.Time) < youngClaim {
			c.queue.AddAfter(a.key, c.ShareListings)
		}
	}
}

// youngClaim is the age up to which a denied claim is retried whenever there may be a
// new listing, because its volume may be younger than the shared one.
const youngClaim = 10 * time.Second

// giveBackUnlessBegun frees room that was reserved before any request to Cinder. A
// volume that was stamped counts.
func (c *Controller) giveBackUnlessBegun(a *attempt) {
	if position, counts := c.Room.Ledger.PositionOf(a.cached.UID); counts && position.Imported && !a.applied && a.volume.ID == position.VolumeID && !a.isStamped(a.volume) {
		c.Room.GiveBack(a.cached.UID)
	}
}

// always returns the triggers of every claim: another policy, other labels, another
// StorageClass.
func always(a *attempt) []parking.Trigger {
	return []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Namespace, Name: a.cached.Namespace}, {Kind: parking.Class, Name: a.class}}
}

// report writes an event about the claim, if it is news.
func (c *Controller) report(a *attempt, eventType, reason, message string) {
	volatile := slices.Contains([]string{string(policy.QuotaExceeded), placement.ReasonBackendUnavailable}, reason)
	if !c.parked.IsNews(a.cached.UID, reason, message, volatile) {
		return
	}
	c.Recorder.Event(a.cached, eventType, reason, message)
	if eventType == corev1.EventTypeWarning {
		c.Logger.Info("Did not import a volume", "claim", a.key, "reason", reason, "message", message)
	}
}
