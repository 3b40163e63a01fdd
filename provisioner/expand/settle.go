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
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
)

// settle decides what follows from an attempt: nothing, a retry, or waiting for a
// trigger.
func (c *Controller) settle(ctx context.Context, e *expansion, cached *corev1.PersistentVolumeClaim, took time.Duration, err error) {
	var denied *deniedError
	switch {
	case err == nil:
		c.limiter.Gone(e.key)
		if e.worked {
			c.Metrics.expanded(e.backend, "success", took)
		}
		return
	case ctx.Err() != nil:
		return // the next leader continues
	case errors.Is(err, errChanged) || apierrors.IsConflict(err):
		// Somebody else has changed the object; begin again with its new state.
		c.retry(e, err)
		return
	case errors.As(err, &denied):
		c.deny(ctx, e, cached, denied)
		return
	}
	if unhealthy := c.Room.Health(e.backend); unhealthy != nil && e.worked {
		c.Metrics.expanded(e.backend, "held_back", took)
		c.deny(ctx, e, cached, &deniedError{*c.Room.Unanswered(e.backend, unhealthy)})
		return
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
	c.limiter.Failed(e.key, delay)
	c.retry(e, err)
	c.parked.NoteFailure(cached.UID, err.Error())
	c.park(cached, parking.Failing, triggersAt(e.backend), e.since)
}

func (c *Controller) retry(e *expansion, err error) {
	c.Logger.Warn("An expansion failed and will be retried", "claim", e.key, "backend", e.backend, "error", err)
	c.queue.AddRateLimited(e.key)
}

// triggersAt lists what may unblock a failed expansion.
func triggersAt(backend string) []parking.Trigger {
	return []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Credentials, Name: backend}, {Kind: parking.Backend, Name: backend}}
}

// deny parks a claim and reports why.
func (c *Controller) deny(ctx context.Context, e *expansion, cached *corev1.PersistentVolumeClaim, denied *deniedError) {
	c.limiter.Gone(e.key)
	e.reportOn(cached, corev1.EventTypeWarning, denied.Reason, denied.Message)
	if !denied.isUnavailable() {
		if isBegun(e.claim) {
			// The volume still has its old size, and nothing will extend it now.
			if err := e.write(ctx, infeasible(requested(e.claim), denied.Message)); err != nil {
				c.retry(e, err)
				return
			}
		}
		c.Room.SettleGrowth(c.countedAs(cached), 0)
	}
	c.park(cached, parking.Denied, always(denied.Denial), e.since)
}

// giveUp writes on the claim that it cannot get the size, and frees its room. The user
// may ask for less; the same size is retried rarely.
func (c *Controller) giveUp(ctx context.Context, e *expansion, failure error) error {
	message := sentence(failure)
	e.report(corev1.EventTypeWarning, reasonFailed, message)
	if err := e.write(ctx, infeasible(requested(e.claim), message)); err != nil {
		return errors.Join(failure, err)
	}
	c.Room.SettleGrowth(c.countedAs(e.claim), 0)
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
	var broken *record.DamagedError
	if errors.As(err, &broken) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		// For example, roles or admission policies may be those of an earlier release.
		return true
	}
	switch cinder.KindOf(err) {
	case "", cinder.KindConflict, cinder.KindFenced, cinder.KindRateLimited:
		return false
	}
	return true
}

// sentence returns an error's text without the request ID, so that the same problem has
// the same text.
func sentence(err error) string {
	text := cinder.Sentence(err)
	var failed *cinder.Error
	if errors.As(err, &failed) && failed.Kind == cinder.KindOverQuota {
		return fmt.Sprintf("Cinder's own quota of backend %s has no room: %s; ask for less, or for a larger quota in OpenStack", failed.Backend, text)
	}
	return text
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
