package provisioner

import (
	"errors"
	"time"

	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/tracing"
)

// libraryWork is one attempt at an item of the library's queues: to provision a claim or
// to delete a volume. Both end in settle.
type libraryWork interface {
	// key names the object to the retry limiter.
	key() string
	// at returns the backend of the work; empty before one was chosen.
	at() string
	// setAside reports whether an error other than overError ends the work without a
	// retry. It parks the object if it must come back, and returns the outcome to
	// count, if any.
	setAside(err error) (outcome string, isSetAside bool)
	// parkForBackend parks the object until its backend answers again.
	parkForBackend(unhealthy error)
	// parkForRetry parks an object that the library retries, so that a trigger
	// brings it back sooner.
	parkForRetry(failure error)
	// succeeded drops what parked holds about the object, and writes the line of the
	// audit trail if that is not written yet.
	succeeded(took time.Duration)
	observe(outcome string, took time.Duration)
}

// settle ends a piece of work and returns the error for the library: nil, an
// error that it retries by the limiter, or one that it ignores because the object
// is parked or nothing is left to do.
func (p *Provisioner) settle(w libraryWork, started time.Time, err error) error {
	observe := func(outcome string) {
		if outcome != "" {
			w.observe(outcome, time.Since(started))
		}
	}
	if err == nil {
		w.succeeded(time.Since(started))
		p.limiter.Succeeded(w.key())
		observe("success")
		return nil
	}
	if p.stopping() {
		return &controller.IgnoredError{Reason: "this replica is handing over; the next leader continues"}
	}
	var over *overError
	if errors.As(err, &over) {
		return &controller.IgnoredError{Reason: err.Error()}
	}
	if outcome, isSetAside := w.setAside(err); isSetAside {
		observe(outcome)
		return &controller.IgnoredError{Reason: err.Error()}
	}
	if unhealthy := p.placement.Health(w.at()); unhealthy != nil {
		w.parkForBackend(unhealthy)
		observe("held_back")
		return &controller.IgnoredError{Reason: unhealthy.Error()}
	}
	why := retry.For(err)
	p.limiter.Failed(w.key(), why)
	w.parkForRetry(err)
	observe(why.Outcome)
	return err
}

// endSpan ends the span of a piece of work. An overError is not a failure.
func endSpan(span tracing.Span, err error) {
	var over *overError
	if errors.As(err, &over) {
		span.Note(tracing.Outcome.String(over.reason))
		err = nil
	}
	span.End(err)
}

// overError ends work without a retry: nothing is left to do, or the object is
// parked already. The library logs its text as the reason.
type overError struct{ reason string }

func (e *overError) Error() string { return e.reason }

var (
	errClaimGone     = &overError{"the claim was deleted"}
	errBoundToOther  = &overError{"the claim is bound to another PersistentVolume"}
	errNamespaceGone = &overError{"the claim's namespace was deleted"}
	errImport        = &overError{"the claim gets a volume that exists at Cinder"}
	errSaved         = &overError{"the claim's PersistentVolume is saved already"}
	errDenied        = &overError{"the claim is denied; its event gives the reason"}
	// errNoTurn ends work that must wait for a worker. claimTurns or volumeTurns
	// brings it back.
	errNoTurn = &overError{"no free worker for this tenant or backend"}
)

// errSourceChanged is retried, because the caches were only late.
var errSourceChanged = errors.New("the claim's data source has changed since the policy decided")

// errAttributesChanged is retried: Kubernetes would never bind the claim to a
// PersistentVolume with the earlier VolumeAttributesClass.
var errAttributesChanged = errors.New("the claim names another VolumeAttributesClass than when the policy decided")
