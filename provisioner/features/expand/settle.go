package expand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// settle decides what follows from an attempt: nothing, a retry, or waiting for a
// trigger.
func (c *Controller) settle(ctx context.Context, e *expansion, cached *corev1.PersistentVolumeClaim, took time.Duration, err error) worker.Outcome {
	var denied *deniedError
	switch {
	case err == nil:
		return worker.Outcome{Done: true}
	case ctx.Err() != nil:
		return worker.Outcome{} // the next leader continues
	case errors.Is(err, errChanged) || apierrors.IsConflict(err):
		// Another writer has changed the object; start over with its new state.
		return c.retry(e, err, retry.For(nil))
	case errors.As(err, &denied):
		return c.deny(ctx, e, cached, denied)
	}
	if unhealthy := c.Room.Health(e.backend); unhealthy != nil && e.worked {
		c.Metrics.expanded(e.backend, "held_back", took)
		return c.deny(ctx, e, cached, &deniedError{*c.Room.Unanswered(e.backend, unhealthy)})
	}
	delay := retry.For(err)
	if isInfeasible(err) {
		delay = retry.Infeasible(err)
		err = c.giveUp(ctx, e, err)
	} else if isWorthAnEvent(err) {
		e.reportOn(cached, corev1.EventTypeWarning, reasonFailed, sentence(err))
	}
	if e.worked {
		c.Metrics.expanded(e.backend, delay.Outcome, took)
	}
	c.parked.NoteFailure(cached.UID, err.Error())
	e.park(cached, parking.Failing, triggersAt(e.backend))
	return c.retry(e, err, delay)
}

func (c *Controller) retry(e *expansion, err error, delay backoff.Delay) worker.Outcome {
	c.Logger.Warn("An expansion failed and will be retried", "claim", e.key, "backend", e.backend, "error", err)
	return worker.Outcome{Retry: &delay}
}

// park keeps the claim until one of the triggers fires.
func (e *expansion) park(claim *corev1.PersistentVolumeClaim, reason parking.Reason, triggers []parking.Trigger) {
	e.c.parked.Park(claim, reason)
	e.attempt.Await(triggers...)
}

// triggersAt lists what may unblock a failed expansion.
func triggersAt(backend string) []parking.Trigger {
	return []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Credentials, Name: backend}, {Kind: parking.Backend, Name: backend}}
}

// deny parks a claim and reports why.
func (c *Controller) deny(ctx context.Context, e *expansion, cached *corev1.PersistentVolumeClaim, denied *deniedError) worker.Outcome {
	e.reportOn(cached, corev1.EventTypeWarning, denied.Reason, denied.Message)
	if !denied.isUnavailable() {
		if isBegun(e.claim) {
			// The volume still has its old size, and nothing will extend it now.
			if err := e.write(ctx, infeasible(requested(e.claim), denied.Message)); err != nil {
				return c.retry(e, err, retry.For(nil))
			}
		}
		c.Growths.SettleGrowth(c.countedAs(cached), 0)
	}
	e.park(cached, denied.State(), always(denied.Denial))
	return worker.Outcome{Done: true}
}

// giveUp writes on the claim that it cannot get the size, and frees its room. The user
// may ask for less; the same size is retried rarely.
func (c *Controller) giveUp(ctx context.Context, e *expansion, failure error) error {
	message := sentence(failure)
	e.report(corev1.EventTypeWarning, reasonFailed, message)
	if err := e.write(ctx, infeasible(requested(e.claim), message)); err != nil {
		return errors.Join(failure, err)
	}
	c.Growths.SettleGrowth(c.countedAs(e.claim), 0)
	return failure
}

// isInfeasible reports whether the same request will fail again until a person
// changes something.
func isInfeasible(err error) bool {
	switch cinder.KindOf(err) {
	case cinder.KindOverQuota, cinder.KindInvalid, cinder.KindNotFound, backends.KindVolumeFailed, backends.KindNotOurs:
		return true
	}
	return false
}

// isWorthAnEvent reports whether an error needs an event. Errors that go away by
// themselves do not.
func isWorthAnEvent(err error) bool {
	var broken *objects.DamagedError
	if errors.As(err, &broken) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		// For example, roles or admission policies may be those of an earlier release.
		return true
	}
	switch cinder.KindOf(err) {
	case "", cinder.KindConflict:
		return false
	}
	return !retry.Passes(err)
}

// sentence returns an error's text, with the remedy for a full quota.
func sentence(err error) string {
	var failed *cinder.Error
	if errors.As(err, &failed) && failed.Kind == cinder.KindOverQuota {
		return fmt.Sprintf("Cinder's own quota of backend %s has no room: %s; ask for less, or for a larger quota in OpenStack", failed.Backend, cinder.TextOf(err))
	}
	return cinder.TextOf(err)
}

// report writes an event about the claim, if it is news.
func (e *expansion) report(eventType, reason, message string) {
	e.reportOn(e.claim, eventType, reason, message)
}

func (e *expansion) reportOn(claim *corev1.PersistentVolumeClaim, eventType, reason, message string) {
	if !e.c.parked.IsNews(claim.UID, reason, message, isVolatile(reason)) {
		return
	}
	e.c.Recorder.Event(claim, eventType, reason, message)
	e.c.Logger.Info("Did not expand a volume", "claim", e.key, "reason", reason, "message", message)
}

// isVolatile reports whether messages with this reason change constantly without saying
// anything new.
func isVolatile(reason string) bool {
	return slices.Contains([]string{string(policy.QuotaExceeded), placement.ReasonBackendUnavailable}, reason)
}
