package provisioner

import (
	"errors"
	"time"

	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// turn is an attempt at a claim or a deletion, as the loop sees it.
type turn = worker.Attempt[string]

// libraryAttempt is one attempt to provision a claim or delete a volume.
type libraryAttempt interface {
	// health returns nil unless the backend does not answer.
	health() error
	// setAside reports whether an error other than overError ends the work without a
	// retry. It parks the object if it must be retried later, and returns the outcome to
	// count, if any.
	setAside(err error) (outcome string, isSetAside bool)
	// parkForBackend parks the object until its backend answers again.
	parkForBackend(unhealthy error)
	// parkForRetry parks an object that the library retries, so that a trigger can retry
	// it sooner.
	parkForRetry(failure error)
	observe(outcome string, took time.Duration)
}

// settle turns the result of an attempt into an outcome for the loop and an error for the
// library: nil, an error to retry by the limiter, or one to ignore because the object is
// parked or nothing is left to do.
func (e *ending) settle(a libraryAttempt, started time.Time, err error) (worker.Outcome, error) {
	var over *overError
	outcome, ignored := "", err
	switch {
	case err == nil:
		a.observe("success", time.Since(started))
		return worker.Outcome{Done: true}, nil
	case e.stopping():
		ignored = errHandingOver
	case errors.As(err, &over):
	default:
		var isSetAside bool
		if outcome, isSetAside = a.setAside(err); isSetAside {
			break
		}
		unhealthy := a.health()
		if unhealthy == nil {
			why := retry.For(err)
			a.parkForRetry(err)
			a.observe(why.Outcome, time.Since(started))
			return worker.Outcome{Retry: &why}, err
		}
		a.parkForBackend(unhealthy)
		outcome, ignored = "held_back", unhealthy
	}
	if outcome != "" {
		a.observe(outcome, time.Since(started))
	}
	return worker.Outcome{}, &controller.IgnoredError{Reason: ignored.Error()}
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

// overError ends work without a retry, because nothing is left to do or the object is
// already parked. The library logs its text as the reason.
type overError struct{ reason string }

func (e *overError) Error() string { return e.reason }

var (
	errHandingOver   = &overError{"this replica is handing over; the next leader continues"}
	errClaimGone     = &overError{"the claim was deleted"}
	errBoundToOther  = &overError{"the claim is bound to another PersistentVolume"}
	errNamespaceGone = &overError{"the claim's namespace was deleted"}
	errImport        = &overError{"the claim gets a volume that exists at Cinder"}
	errSaved         = &overError{"the claim's PersistentVolume is saved already"}
	errDenied        = &overError{"the claim is denied; its event gives the reason"}
	// errNoTurn ends work that must wait for a worker. The loop retries it.
	errNoTurn = &overError{"all workers of this tenant or backend are busy"}
)

// errSourceChanged is retried: the caches were only late.
var errSourceChanged = errors.New("the claim's data source has changed since the policy decided")

// errAttributesChanged is retried: Kubernetes would never bind the claim to a
// PersistentVolume with the earlier VolumeAttributesClass.
var errAttributesChanged = errors.New("the claim names another VolumeAttributesClass than when the policy decided")
