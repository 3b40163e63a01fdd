package backends

import (
	"context"
	"errors"
)

// verdict is what the end of a call says about the backend.
type verdict int

const (
	saysNothing verdict = iota
	backendAnswers
	backendFails
)

// verdictOf judges the end of a call that the context bounded. Whatever is an
// answer speaks for the backend, except one that no Cinder gives, a failure of
// its own, and a refusal of the credentials: a backend that nobody can log in
// to is of no use, and going on with it can lock the account.
func verdictOf(ctx context.Context, err error) verdict {
	if err == nil {
		return backendAnswers
	}
	var failed *Error
	switch {
	case !errors.As(err, &failed), failed.unsent, failed.Kind == KindFenced, errors.Is(failed.cause, context.Canceled):
		return saysNothing
	case errors.Is(failed.cause, context.DeadlineExceeded) && ctx.Err() != nil:
		// The caller's time was up, not the request's.
		return saysNothing
	}
	switch failed.Kind {
	case KindUnavailable, KindInternal, KindUnauthorized, KindConfig:
		return backendFails
	}
	if failed.Status != 0 {
		return backendAnswers
	}
	return saysNothing
}
