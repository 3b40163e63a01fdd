package cinder

import (
	"context"
	"errors"
	"sync"
	"time"
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
	mu sync.Mutex
	// running is the login under way; nil if there is none.
	running *login
	// projects holds the projects whose last login was rejected.
	projects map[string]*refusal
	// all applies to logins with any project since the last accepted one.
	all refusal
}

// login is a login under way.
type login struct {
	// over is closed at its end, after err is set.
	over chan struct{}
	err  error
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
	return &Account{projects: map[string]*refusal{}}
}

// login calls do, which sends a login with a project, and counts it. While Keystone's
// last rejection is recent, it returns that instead. If another login ends without an
// answer meanwhile, this one fails with it.
func (a *Account) login(ctx context.Context, options Options, project string, do func(ctx context.Context) error) error {
	for {
		mine, theirs, err := a.begin(options.Backend, project)
		switch {
		case err != nil:
			return err
		case mine != nil:
			// A login does not wait for a turn: logins of other backends wait for it.
			err := do(withExchange(ctx, func(e *exchange) { e.login = true }))
			options.Metrics.login(options.Backend, err)
			return a.end(mine, project, translate(options.Backend, OperationLogin, err))
		}
		select {
		case <-theirs.over:
			if IsKind(theirs.err, KindUnavailable) {
				return altered(theirs.err, func(e *Error) { e.Backend = options.Backend })
			}
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return NotSent(options.Backend, OperationLogin, ctx.Err())
			}
			return &Error{Backend: options.Backend, Operation: OperationLogin, Kind: KindUnavailable,
				Message: "Keystone has not answered an earlier login with the same credentials"}
		}
	}
}

// begin returns the login that the caller may send, the one to wait for, or the reason
// why none is sent.
func (a *Account) begin(backend, project string) (mine, theirs *login, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.projects[project]; one.applies() {
		return nil, nil, one.again(backend)
	}
	if len(a.projects) > 1 && a.all.applies() {
		return nil, nil, a.all.again(backend)
	}
	if a.running != nil {
		return nil, a.running, nil
	}
	a.running = &login{over: make(chan struct{})}
	return a.running, nil, nil
}

// end records the result of a login.
func (a *Account) end(mine *login, project string, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var failed *Error
	switch {
	case err == nil:
		delete(a.projects, project)
		a.all = refusal{}
	case errors.As(err, &failed) && failed.Kind == KindUnauthorized:
		if a.projects[project] == nil {
			a.projects[project] = &refusal{}
		}
		a.projects[project].extend(failed)
		a.all.extend(failed)
	}
	mine.err = err
	close(mine.over)
	a.running = nil
	return err
}

// again returns the rejection for a login that is not sent.
func (r *refusal) again(backend string) error {
	return altered(r.rejected, func(e *Error) {
		e.Backend = backend
		e.Message += "; unless they change, the next login waits 1 to 60 minutes, so that the account is not locked"
	})
}
