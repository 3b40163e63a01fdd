package backends

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestVerdicts(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	status := func(kind Kind, status int) error { return &Error{Kind: kind, Status: status} }
	tests := map[string]struct {
		ctx  context.Context
		err  error
		want verdict
	}{
		"success":                        {want: backendAnswers},
		"not found":                      {err: status(KindNotFound, 404), want: backendAnswers},
		"over quota":                     {err: status(KindOverQuota, 413), want: backendAnswers},
		"asks for fewer requests":        {err: status(KindRateLimited, 429), want: backendAnswers},
		"forbidden":                      {err: status(KindForbidden, 403), want: backendAnswers},
		"conflict":                       {err: status(KindConflict, 400), want: backendAnswers},
		"wrapped answer":                 {err: fmt.Errorf("cannot: %w", status(KindConflict, 409)), want: backendAnswers},
		"server error":                   {err: status(KindUnavailable, 500), want: backendFails},
		"no connection":                  {err: &Error{Kind: KindUnavailable, Message: "no connection"}, want: backendFails},
		"no answer":                      {err: &Error{Kind: KindUnavailable, cause: context.DeadlineExceeded}, want: backendFails},
		"an answer that no Cinder gives": {err: &Error{Kind: KindInternal}, want: backendFails},
		"refused credentials":            {err: errRefused, want: backendFails},
		"unreadable credentials":         {err: &Error{Kind: KindConfig}, want: backendFails},
		"never sent for its form":        {err: &Error{Kind: KindInvalid}, want: saysNothing},
		"the term is over":               {err: &Error{Kind: KindFenced, cause: context.Canceled}, want: saysNothing},
		"cancelled":                      {ctx: cancelled, err: &Error{Kind: KindUnavailable, cause: context.Canceled}, want: saysNothing},
		"cancelled in the queue":         {err: errUnsent, want: saysNothing},
		"late in the queue":              {err: &Error{Kind: KindUnavailable, cause: context.DeadlineExceeded, unsent: true}, want: saysNothing},
		"the caller's deadline":          {ctx: late, err: &Error{Kind: KindUnavailable, cause: context.DeadlineExceeded}, want: saysNothing},
		"failed before the deadline":     {ctx: late, err: status(KindUnavailable, 503), want: backendFails},
		"somebody else's error":          {err: errors.New("what"), want: saysNothing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			equal(t, verdictOf(ctx, test.err), test.want)
		})
	}
}
