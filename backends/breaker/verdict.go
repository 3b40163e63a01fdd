package breaker

import (
	"context"
	"errors"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// verdict is what a call's result reveals about the backend.
type verdict int

const (
	saysNothing verdict = iota
	backendAnswers
	backendFails
)

// verdictOf judges the result of a call bounded by the context. Any answer counts in the
// backend's favor, except an internal failure, an answer that Cinder never gives, and
// rejected credentials: a backend is useless without a login.
func verdictOf(ctx context.Context, err error) verdict {
	if err == nil {
		return backendAnswers
	}
	var failed *cinder.Error
	switch {
	case !errors.As(err, &failed), failed.Unsent, failed.Kind == cinder.KindFenced, errors.Is(failed, context.Canceled):
		return saysNothing
	case errors.Is(failed, context.DeadlineExceeded) && ctx.Err() != nil:
		// The caller ran out of time, not the request.
		return saysNothing
	}
	switch failed.Kind {
	case cinder.KindUnavailable, cinder.KindInternal, cinder.KindUnauthorized, cinder.KindConfig:
		return backendFails
	}
	if failed.Status != 0 {
		return backendAnswers
	}
	return saysNothing
}
