package backends

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Cinder is what the lifecycle asks of Cinder; *cinder.Client is the one
// implementation outside tests. Every method but ListVolumes is one exchange,
// and every failure an *Error of its package. What the methods do to a volume
// in each of its states is a table in test/cindercontract, which holds
// implementations and Cinder itself to the same.
type Cinder interface {
	CreateVolume(ctx context.Context, request cinder.NewVolume) (cinder.Volume, error)
	Volume(ctx context.Context, id string) (cinder.Volume, error)
	ListVolumes(ctx context.Context, query cinder.VolumeQuery, yield func(page []cinder.Volume) bool) error
	DeleteVolume(ctx context.Context, id string) error
	ForceDeleteVolume(ctx context.Context, id string) error
	Reserve(ctx context.Context, id string) error
	Unreserve(ctx context.Context, id string) error
	InitializeConnection(ctx context.Context, id string, connector cinder.Connector) ([]byte, error)
	TerminateConnection(ctx context.Context, id string, connector cinder.Connector) error
	Attach(ctx context.Context, id, host string, readOnly bool) error
	Detach(ctx context.Context, id, attachmentID string) error
	// Workflow is how new volumes are to be connected: reserve or attachment.
	Workflow(ctx context.Context) (cinder.Workflow, error)
	// UpdateMetadata writes metadata; keys that are not named stay.
	UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error
	CreateAttachment(ctx context.Context, volumeID string, connector cinder.Connector, readOnly bool) (attachmentID string, document []byte, err error)
	Attachments(ctx context.Context, volumeID string) ([]cinder.Attachment, error)
	AttachmentDocument(ctx context.Context, attachmentID string) (document []byte, err error)
	CompleteAttachment(ctx context.Context, attachmentID string) error
	DeleteAttachment(ctx context.Context, attachmentID string) error
	FailureReason(ctx context.Context, id string) string
	// Place is where the volumes live; it never changes.
	Place() cinder.Place
	// Now is the time by Cinder's clock.
	Now() time.Time
}

// clients gives a logged-in client, and is told when its credentials are refused.
type clients interface {
	client(ctx context.Context) (Cinder, error)
	forget(refused Cinder)
}

// pooledClients takes one backend's clients from the pool.
type pooledClients struct {
	pool *Pool
	// config is asked for every client: limits and time-outs may change during
	// a term.
	config func() Config
}

func (p pooledClients) client(ctx context.Context) (Cinder, error) {
	client, err := p.pool.Client(ctx, p.config())
	if err != nil {
		return nil, err
	}
	return client, nil
}

func (p pooledClients) forget(refused Cinder) {
	if client, ok := refused.(*cinder.Client); ok {
		p.pool.Forget(client)
	}
}

// session decorates a backend's clients for the term of one leader: it refuses
// changes once the term is over, and everything while the backend does not
// answer, and logs in again, once, when credentials that were good are refused.
type session struct {
	clients clients
	backend string
	fence   func() error
	hold    context.Context
	breaker *breaker
	// epoch is the breaker's number for the endpoint of the clients.
	epoch int
	// left is called when the credentials have come to lead to another place.
	left func()

	mu    sync.Mutex
	place cinder.Place // of the first client
}

// where is the place of the first client; zero before.
func (s *session) where() cinder.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// stay keeps a session at one place: what is known of volumes, and above all
// that one does not exist, is known of a place. Credentials that were changed
// may lead to another one.
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
		Message: fmt.Sprintf("the backend's credentials lead to %s now and no longer to %s; work begun there is started again", there, here)}
}

// read makes a call that changes nothing. The call makes its requests with the
// context that it is given.
func (s *session) read(ctx context.Context, call func(ctx context.Context, client Cinder) error) error {
	attempt, err := s.breaker.begin(s.epoch)
	if err != nil {
		return err
	}
	admitted := cinder.WithAdmission(ctx, cinder.Admission{Waiter: ctx, Outage: attempt.admit})
	err = s.exchange(ctx, func(client Cinder) error { return call(admitted, client) })
	attempt.end(ctx, err)
	return err
}

// ask makes a read whose failures the call keeps to itself, so that its end
// tells nothing about the backend.
func (s *session) ask(ctx context.Context, call func(ctx context.Context, client Cinder)) {
	attempt, err := s.breaker.begin(s.epoch)
	if err != nil {
		return
	}
	admitted := cinder.WithAdmission(ctx, cinder.Admission{Waiter: ctx, Outage: attempt.admit})
	_ = s.exchange(ctx, func(client Cinder) error {
		call(admitted, client)
		return nil
	})
}

// change makes a call that changes something at Cinder. The fence is asked
// last, when the request's turn has come: a process that slept through the end
// of its term stops there. A caller that is told to stop leaves the queue, but
// lets a request under way end, since cutting it would only leave its effect
// unknown; the end of the term does cut it.
func (s *session) change(ctx context.Context, call func(ctx context.Context, client Cinder) error) error {
	attempt, err := s.breaker.begin(s.epoch)
	if err != nil {
		return err
	}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(s.hold, cancel)()
	// Before the request stands in line: the permit may have to be asked for, and
	// nobody's turn must wait for that.
	if err := permitted(ctx); err != nil {
		attempt.end(lasting, err)
		return err
	}
	var refused error
	fence := func() error {
		if refused = permitted(ctx); refused != nil {
			return refused
		}
		// Last: getting the permit may have taken a while.
		return s.stillLeads()
	}
	admitted := cinder.WithAdmission(lasting, cinder.Admission{Waiter: ctx, Outage: attempt.admit, Fence: fence})
	err = s.exchange(ctx, func(client Cinder) error {
		if err := ctx.Err(); err != nil {
			return cinder.NotSent(s.backend, "", err)
		}
		if err := s.stillLeads(); err != nil {
			return err
		}
		return call(admitted, client)
	})
	if refused != nil {
		// As it was said, rather than as the request that was not sent.
		err = refused
	}
	attempt.end(lasting, err)
	return err
}

// probe asks for one volume, past the breaker, to learn whether the backend
// answers.
func (s *session) probe(ctx context.Context) error {
	ctx = cinder.WithRequestTimeout(ctx, longestProbe)
	return s.exchange(ctx, func(client Cinder) error {
		return client.ListVolumes(ctx, cinder.VolumeQuery{PageSize: 1}, func([]cinder.Volume) bool { return false })
	})
}

// exchange makes a call with a logged-in client, and once more with another
// when the credentials of the first are refused.
func (s *session) exchange(ctx context.Context, call func(Cinder) error) error {
	client, err := s.clients.client(ctx)
	if err != nil {
		return cinder.WithoutEffect(err)
	}
	if err := s.stay(client); err != nil {
		return err
	}
	err = call(client)
	if !cinder.IsKind(err, cinder.KindUnauthorized) {
		return err
	}
	// A refused request had no effect, so that it may be made again.
	s.clients.forget(client)
	if client, err = s.clients.client(ctx); err != nil {
		return cinder.WithoutEffect(err)
	}
	if err := s.stay(client); err != nil {
		return err
	}
	return call(client)
}

// stillLeads returns an error once the term is over.
func (s *session) stillLeads() error {
	err := s.hold.Err()
	if err == nil {
		err = s.fence()
	}
	if err != nil {
		return &cinder.Error{Backend: s.backend, Kind: cinder.KindFenced, Message: "no change is made: " + err.Error(), Cause: context.Canceled}
	}
	return nil
}
