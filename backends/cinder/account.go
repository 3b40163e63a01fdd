package cinder

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/keyedmutex"
)

// Delays before rejected credentials are tried again. Keystone can lock an account after
// a number of failures (lockout_failure_attempts in keystone.conf), however far apart
// they are.
const (
	minRefusal = time.Minute
	maxRefusal = time.Hour
)

// Account protects one user and secret at one Keystone, possibly shared by several
// backends, from lockout. It sends one login at a time, and none for a growing delay
// after a rejection. Changed credentials are another account.
//
// Keystone rejects a project in which the user has no role like a wrong password. So the
// first rejection blocks only logins with that project; a second one, with another
// project, blocks all.
type Account struct {
	// turn is held by the one who sends a login.
	turn *keyedmutex.Mutex

	mu sync.Mutex
	// projects holds the projects whose last login was rejected.
	projects map[string]*refusal
	// all applies to logins with any project since the last accepted one.
	all refusal
	// silence is set if the last login got no answer, and ended when it ended.
	silence error
	ended   time.Time
}

// refusal records why, and until when, logins are not sent.
type refusal struct {
	rejected *Error
	delay    time.Duration
	until    time.Time
}

func (r *refusal) extend(rejected *Error) {
	r.rejected = rejected
	r.delay = min(max(2*r.delay, minRefusal), maxRefusal)
	r.until = time.Now().Add(r.delay)
}

func (r *refusal) applies() bool { return r != nil && r.rejected != nil && time.Now().Before(r.until) }

// NewAccount returns an account whose credentials have not been tried.
func NewAccount() *Account {
	return &Account{turn: keyedmutex.New(), projects: map[string]*refusal{}}
}

// login calls do, which sends a login with a project, and counts it. While Keystone's
// last rejection is recent, it returns that instead. If another login ends without an
// answer meanwhile, this one fails with it.
func (a *Account) login(ctx context.Context, options Options, project string, do func(ctx context.Context) error) error {
	asked := time.Now()
	if err := a.refused(options.Backend, project, asked); err != nil {
		return err
	}
	release, err := a.turn.Acquire(ctx, "")
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Backend: options.Backend, Operation: OperationLogin, Kind: KindUnavailable,
			Message: "Keystone has not answered an earlier login with the same credentials"}
	case err != nil:
		return NotSent(options.Backend, OperationLogin, err)
	}
	defer release()
	if err := a.refused(options.Backend, project, asked); err != nil {
		return err
	}
	// A login does not wait for a turn at the backend: logins of other backends wait for it.
	err = do(withExchange(ctx, func(e *exchange) { e.login = true }))
	options.Metrics.login(options.Backend, err)
	err = translate(options.Backend, OperationLogin, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silence, a.ended = nil, time.Now()
	switch rejected, _ := errors.AsType[*Error](err); {
	case err == nil:
		delete(a.projects, project)
		a.all = refusal{}
	case rejected.Kind == KindUnavailable:
		a.silence = err
	case rejected.Kind == KindUnauthorized:
		if a.projects[project] == nil {
			a.projects[project] = &refusal{}
		}
		a.projects[project].extend(rejected)
		a.all.extend(rejected)
	}
	return err
}

// refused returns why a login that was asked for is not sent.
func (a *Account) refused(backend, project string, asked time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch one := a.projects[project]; {
	case one.applies():
		return one.again(backend)
	case len(a.projects) > 1 && a.all.applies():
		return a.all.again(backend)
	case a.silence != nil && asked.Before(a.ended):
		return altered(a.silence, func(e *Error) { e.Backend = backend })
	}
	return nil
}

// again returns the rejection for a login that is not sent.
func (r *refusal) again(backend string) error {
	return altered(r.rejected, func(e *Error) {
		e.Backend = backend
		e.Message += "; unless they change, the next login waits 1 to 60 minutes, so that the account is not locked"
	})
}
