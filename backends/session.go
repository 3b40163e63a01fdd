package backends

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/breaker"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// Cinder is a logged-in client; loggedIn is the only implementation outside tests. It also
// makes the requests that each owner declares. Each is one exchange, except listings, and
// fails with an *Error of its package. A table in test/cindercontract defines their effect
// on a volume in each state; all implementations and real Cinder must conform to it.
type Cinder interface {
	Place() cinder.Place // never changes
	// With returns a client of the same login whose requests must pass the admission
	// before they are sent.
	With(admission turns.Admission) Cinder
	ListVolumes(ctx context.Context, query cinder.Query, yield func(page []cinder.Volume) bool) error
}

// The program's client makes all requests that owners declare.
var (
	_ volumeRequests        = loggedIn{}
	_ makingRequests        = loggedIn{}
	_ connectionRequests    = loggedIn{}
	_ attachmentRequests    = loggedIn{}
	_ removalRequests       = loggedIn{}
	_ nodeRequests          = loggedIn{}
	_ changeRequests        = loggedIn{}
	_ snapshotRequests      = loggedIn{}
	_ snapshotCreation      = loggedIn{}
	_ backupRequests        = loggedIn{}
	_ groupRequests         = loggedIn{}
	_ groupSnapshotRequests = loggedIn{}
	_ encryptionRequests    = loggedIn{}
)

// clients provides a logged-in client. forget drops one whose credentials were rejected.
type clients interface {
	client(ctx context.Context, config Config) (Cinder, error)
	forget(rejected Cinder)
}

func (p *Pool) client(ctx context.Context, config Config) (Cinder, error) {
	client, err := p.Client(ctx, config)
	if err != nil {
		return nil, err
	}
	return loggedIn{client}, nil
}

// loggedIn is a client of the pool.
type loggedIn struct{ *cinder.Client }

func (c loggedIn) With(admission turns.Admission) Cinder { return loggedIn{c.Client.With(admission)} }

// session decorates a backend's clients for one leader's term. It rejects changes once
// the term is over, rejects everything while the backend does not answer, and logs in
// again, once, when working credentials are rejected.
type session struct {
	clients clients
	// config is read for every client: limits and timeouts may change during a term.
	config  func() Config
	backend string
	fence   func() error
	// changing is that of LifecycleOptions; it may be nil.
	changing func() (ended func(), err error)
	term     context.Context
	breaker  *breaker.Breaker
	// epoch is the breaker's number for the clients' endpoint.
	epoch int
	// settled is when reads show everything that was changed here before the session
	// began.
	settled time.Time
	// readLag is how stale reads may be.
	readLag time.Duration
	// left is called when the credentials start to point to another place.
	left func()
	// forgotten is when a probe last dropped its client. Only probe uses it.
	forgotten time.Time

	mu    sync.Mutex
	place cinder.Place // of the first client
}

// where returns the place of the first client; zero before the first login.
func (s *session) where() cinder.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// stay keeps a session at one place. Knowledge about volumes, above all about their
// absence, is valid at one place only, and changed credentials may point to another.
func (s *session) stay(client Cinder) error {
	s.mu.Lock()
	here, there := s.place, client.Place()
	if !here.IsKnown() {
		s.place = there
	}
	s.mu.Unlock()
	if !here.IsKnown() || here == there {
		return nil
	}
	s.left()
	return &cinder.Error{Backend: s.backend, Kind: cinder.KindConflict, Unsent: true,
		Message: fmt.Sprintf("the backend's credentials now point to %s and no longer to %s; work begun there starts over", there, here)}
}

// settle waits before the first request. Reads may not show yet what an earlier term has
// just created, attached or deleted. This term would create it again, or take it for a
// leftover of an interrupted call, or for gone. A login shows nothing of that, so it is made
// meanwhile; if it fails, whoever needs it tries again.
func (s *session) settle(ctx context.Context) error {
	rest := time.Until(s.settled)
	if rest > 0 {
		early, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { _, _ = s.login(early) }()
	}
	return s.wait(ctx, rest)
}

// wait waits until reads are up to date.
func (s *session) wait(ctx context.Context, rest time.Duration) error {
	if rest <= 0 {
		return nil
	}
	defer turns.CallerOf(ctx).Waiting()()
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return cinder.NotSent(s.backend, "", ctx.Err())
	case <-s.term.Done():
		return cinder.NotSent(s.backend, "", s.term.Err())
	}
}

// read makes a call that changes nothing. C are the requests that the caller may make.
// The call must use the context that it receives.
func read[C any](ctx context.Context, s *session, call func(ctx context.Context, client C) error) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	attempt, err := s.breaker.Begin(s.epoch)
	if err != nil {
		return err
	}
	err = s.exchange(ctx, turns.Admission{Outage: attempt.Admit}, func(client Cinder) error { return call(ctx, client.(C)) })
	attempt.End(ctx, err)
	return err
}

// listForAll reads for many callers at once, so it ends with the term and not with any of
// their contexts.
func listForAll[C any](ctx context.Context, s *session, call func(ctx context.Context, client C) error) error {
	if err := s.term.Err(); err != nil {
		return cinder.NotSent(s.backend, "", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.term, cancel)()
	// Nor does it count for the tenant that came first.
	return read(turns.WithCaller(ctx, turns.Caller{}), s, call)
}

// ask makes a read whose failures do not matter and do not count against the backend.
func ask[C any](ctx context.Context, s *session, call func(ctx context.Context, client C)) {
	_ = read(ctx, s, func(ctx context.Context, client C) error {
		call(ctx, client)
		return errAsked
	})
}

// errAsked tells the breaker nothing.
var errAsked = errors.New("the answer does not matter")

// change makes a call that changes something at Cinder, if it is permitted. The fence
// comes last, when the request's turn has come: it stops a process that slept through the
// end of its term. If the caller's context ends, a waiting request leaves the queue, but
// a request under way may finish, since canceling it would only make its effect unknown.
// The end of the term does cancel it.
func change[C any](ctx context.Context, s *session, permitted permission, call func(ctx context.Context, client C) error) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	attempt, err := s.breaker.Begin(s.epoch)
	if err != nil {
		return err
	}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(s.term, cancel)()
	if permitted == nil {
		permitted = func() error { return nil }
	}
	// The permit is first asked before the request enters the queue: a new permit may
	// need requests, which must not use up a turn.
	if err := permitted(); err != nil {
		attempt.End(lasting, err)
		return err
	}
	var notPermitted error
	fence := func() error {
		if notPermitted = permitted(); notPermitted != nil {
			return notPermitted
		}
		// This comes last, since getting the permit may have taken a while.
		return s.stillLeads()
	}
	err = s.exchange(ctx, turns.Admission{Waiter: ctx, Outage: attempt.Admit, Fence: fence}, func(client Cinder) error {
		if err := ctx.Err(); err != nil {
			return cinder.NotSent(s.backend, "", err)
		}
		if err := s.stillLeads(); err != nil {
			return err
		}
		if s.changing != nil {
			ended, err := s.changing()
			if err != nil {
				return cinder.NotSent(s.backend, "", err)
			}
			defer ended()
		}
		return call(lasting, client.(C))
	})
	if notPermitted != nil {
		// Return the original error, not that of the request that was not sent.
		err = notPermitted
	}
	attempt.End(lasting, err)
	if failed, ok := errors.AsType[*cinder.Error](err); ok && (failed.EffectUnknown || failed.Kind == cinder.KindConflict) {
		_ = s.wait(lasting, s.readLag)
	}
	return err
}

const (
	// maxProbe bounds each of a probe's requests.
	maxProbe = 15 * time.Second
	// forgetEvery spares Keystone while a Cinder does not answer.
	forgetEvery = time.Minute
)

// probe requests one volume, bypassing the breaker, to find out whether the backend
// answers. If it does not, the next probe logs in again: the service catalog may name
// another address by now, which no token shows.
func (s *session) probe(ctx context.Context) error {
	ctx = cinder.WithRequestTimeout(ctx, maxProbe)
	asked := false
	err := s.exchange(ctx, turns.Admission{}, func(client Cinder) error {
		asked = true
		return client.ListVolumes(ctx, cinder.Query{PageSize: 1}, func([]cinder.Volume) bool { return false })
	})
	if asked && cinder.IsKind(err, cinder.KindUnavailable) && time.Since(s.forgotten) >= forgetEvery {
		if client, failed := s.login(ctx); failed == nil {
			s.clients.forget(client)
			s.forgotten = time.Now()
		}
	}
	return err
}

// exchange makes a call with a logged-in client whose requests must pass the admission,
// and again with a new client if the first one's credentials are rejected.
func (s *session) exchange(ctx context.Context, admission turns.Admission, call func(Cinder) error) error {
	client, err := s.login(ctx)
	if err != nil {
		return err
	}
	err = call(client.With(admission))
	if !cinder.IsKind(err, cinder.KindUnauthorized) {
		return err
	}
	// A request rejected for its credentials had no effect, so it may be
	// repeated.
	s.clients.forget(client)
	if client, err = s.login(ctx); err != nil {
		return err
	}
	return call(client.With(admission))
}

// login returns a logged-in client at the session's place.
func (s *session) login(ctx context.Context) (Cinder, error) {
	client, err := s.clients.client(ctx, s.config())
	if err != nil {
		return nil, cinder.WithoutEffect(err)
	}
	return client, s.stay(client)
}

// stillLeads returns an error once the term is over.
func (s *session) stillLeads() error {
	err := s.term.Err()
	if err == nil {
		err = s.fence()
	}
	if err != nil {
		return &cinder.Error{Backend: s.backend, Kind: cinder.KindFenced, Message: "no change was made: " + err.Error(), Cause: context.Canceled}
	}
	return nil
}
