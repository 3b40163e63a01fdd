package cinder

import (
	"context"
	"errors"
	"time"
)

// How long rejected credentials are not tried again. Keystone can lock an
// account after a number of failures (lockout_failure_attempts in
// keystone.conf), however far apart they are.
const (
	shortestRefusal = time.Minute
	longestRefusal  = time.Hour
)

// Account protects one set of credentials, which several backends may use, from
// being locked by Keystone. It lets one login at a time out, and none for a
// growing delay after one was rejected. Changed credentials are another account.
type Account struct {
	// turn contains one token while no login is under way. Whoever has it may use
	// the other fields.
	turn chan struct{}
	// rejected is the last answer, nil unless it was a rejection.
	rejected *Error
	// refusal is the last delay, and until its end.
	refusal time.Duration
	until   time.Time
}

// NewAccount makes an account whose credentials have not been tried.
func NewAccount() *Account {
	a := &Account{turn: make(chan struct{}, 1)}
	a.turn <- struct{}{}
	return a
}

// login calls do, which sends a login, and counts it, unless Keystone has rejected
// the credentials lately: then it returns that rejection again.
func (a *Account) login(ctx context.Context, options Options, do func() error) error {
	select {
	case <-a.turn:
	case <-ctx.Done():
		return NotSent(options.Backend, OperationLogin, ctx.Err())
	}
	defer func() { a.turn <- struct{}{} }()
	if a.rejected != nil && time.Now().Before(a.until) {
		again := *a.rejected
		again.Backend = options.Backend
		return &again
	}
	err := do()
	options.Metrics.login(options.Backend, err)
	if err == nil {
		a.rejected, a.refusal = nil, 0
		return nil
	}
	err = translate(options.Backend, OperationLogin, err)
	var failed *Error
	if errors.As(err, &failed) && failed.Kind == KindUnauthorized {
		failed.Message += "; until they change, the next login waits 1 to 60 minutes, so that the account is not locked"
		a.rejected = failed
		a.refusal = min(max(2*a.refusal, shortestRefusal), longestRefusal)
		a.until = time.Now().Add(a.refusal)
	}
	return err
}
