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

// Cinder is the part of Cinder that the lifecycle uses; loggedIn is the
// only implementation outside tests. Every method except the listings is one
// exchange, and every failure is an *Error of its package. A table in
// test/cindercontract defines what the methods do to a volume in each of its
// states; all implementations and real Cinder must conform to it.
type Cinder interface {
	VolumesAPI
	ChangesAPI
	SnapshotsAPI
	ActionsAPI
	AttachmentsAPI
	// Place returns where the volumes live; it never changes.
	Place() cinder.Place
	// Now returns the time by Cinder's clock.
	Now() time.Time
	// With returns a client of the same login whose requests must pass the admission
	// before they leave.
	With(admission turns.Admission) Cinder
}

// VolumesAPI is what the lifecycle uses of /volumes and /messages.
type VolumesAPI interface {
	CreateVolume(ctx context.Context, request cinder.NewVolume) (cinder.Volume, error)
	Volume(ctx context.Context, id string) (cinder.Volume, error)
	ListVolumes(ctx context.Context, query cinder.VolumeQuery, yield func(page []cinder.Volume) bool) error
	DeleteVolume(ctx context.Context, id string) error
	ForceDeleteVolume(ctx context.Context, id string) error
	// UpdateMetadata writes metadata; other keys stay.
	UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error
	// DeleteMetadata deletes one key, which must have no slash.
	DeleteMetadata(ctx context.Context, id, key string) error
	FailureReason(ctx context.Context, id string) string
}

// ChangesAPI has the volume actions that change a volume's size and type.
type ChangesAPI interface {
	// ExtendVolume requests a larger size; inUse is whether the volume is in use.
	ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error
	// RetypeVolume requests another type, without a migration.
	RetypeVolume(ctx context.Context, id, volumeType string) error
	// VolumeType reads a volume type by its ID.
	VolumeType(ctx context.Context, id string) (cinder.VolumeType, error)
}

// SnapshotsAPI is what the lifecycle uses of /snapshots.
type SnapshotsAPI interface {
	CreateSnapshot(ctx context.Context, request cinder.NewSnapshot) (cinder.Snapshot, error)
	Snapshot(ctx context.Context, id string) (cinder.Snapshot, error)
	ListSnapshots(ctx context.Context, query cinder.SnapshotQuery, yield func(page []cinder.Snapshot) bool) error
	DeleteSnapshot(ctx context.Context, id string) error
	// UpdateSnapshotMetadata writes metadata; other keys stay.
	UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error
}

// ActionsAPI is the volume actions that connect a volume by the workflow
// reserve.
type ActionsAPI interface {
	Reserve(ctx context.Context, id string) error
	Unreserve(ctx context.Context, id string) error
	InitializeConnection(ctx context.Context, id string, connector cinder.Connector) ([]byte, error)
	TerminateConnection(ctx context.Context, id string, connector cinder.Connector) error
	Attach(ctx context.Context, id, host string, readOnly bool) error
	Detach(ctx context.Context, id, attachmentID string) error
}

// AttachmentsAPI is what the lifecycle uses of /attachments, which connect a
// volume by the workflow attachment.
type AttachmentsAPI interface {
	// Workflow returns how to connect new volumes: reserve or attachment.
	Workflow(ctx context.Context) (cinder.Workflow, error)
	// OffersAttachments returns an error if the endpoint lacks what the other
	// methods need, whatever workflow new volumes are connected by.
	OffersAttachments(ctx context.Context) error
	CreateAttachment(ctx context.Context, volumeID string, connector cinder.Connector, readOnly bool) (attachmentID string, document []byte, err error)
	Attachments(ctx context.Context, volumeID string) ([]cinder.Attachment, error)
	AttachmentDocument(ctx context.Context, attachmentID string) (document []byte, err error)
	CompleteAttachment(ctx context.Context, attachmentID string) error
	DeleteAttachment(ctx context.Context, attachmentID string) error
}

// clients provides a logged-in client. forget drops one whose credentials were
// rejected.
type clients interface {
	client(ctx context.Context) (Cinder, error)
	forget(rejected Cinder)
}

// pooledClients takes one backend's clients from the pool.
type pooledClients struct {
	pool *Pool
	// config is read for every client: limits and timeouts may change during a
	// term.
	config func() Config
}

func (p pooledClients) client(ctx context.Context) (Cinder, error) {
	client, err := p.pool.Client(ctx, p.config())
	if err != nil {
		return nil, err
	}
	return loggedIn{client}, nil
}

func (p pooledClients) forget(rejected Cinder) {
	if client, ok := rejected.(loggedIn); ok {
		p.pool.Forget(client.Client)
	}
}

// loggedIn is a client of the pool.
type loggedIn struct{ *cinder.Client }

func (c loggedIn) With(admission turns.Admission) Cinder { return loggedIn{c.Client.With(admission)} }

// session decorates a backend's clients for the term of one leader. It rejects
// changes once the term is over, rejects everything while the backend does not
// answer, and logs in again, once, when credentials that used to work are
// rejected.
type session struct {
	clients clients
	backend string
	fence   func() error
	term    context.Context
	breaker *breaker.Breaker
	// epoch is the breaker's number for the clients' endpoint.
	epoch int
	// settled is from when on reads show everything that was changed here before the
	// session began.
	settled time.Time
	// readLag is how old the state may be that reads show.
	readLag time.Duration
	// left is called when the credentials start to lead to another place.
	left func()

	mu    sync.Mutex
	place cinder.Place // of the first client
}

// where returns the place of the first client; zero before the first login.
func (s *session) where() cinder.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// stay keeps a session at one place. Knowledge about volumes, above all that
// one does not exist, is valid at one place only, and changed credentials may
// lead to another.
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

// settle waits before the first request. An earlier term may just have made, attached or
// deleted what reads do not show yet. This term would make it a second time, or take it
// for something that an interrupted call left, or for gone.
func (s *session) settle(ctx context.Context) error { return s.wait(ctx, time.Until(s.settled)) }

// wait waits until reads show what they did not show yet.
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

// read makes a call that changes nothing. The call must use the context that it
// receives.
func (s *session) read(ctx context.Context, call func(ctx context.Context, client Cinder) error) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	attempt, err := s.breaker.Begin(s.epoch)
	if err != nil {
		return err
	}
	err = s.exchange(ctx, turns.Admission{Outage: attempt.Admit}, func(client Cinder) error { return call(ctx, client) })
	attempt.End(ctx, err)
	return err
}

// ask makes a read whose failures do not matter, so that they do not count
// against the backend.
func (s *session) ask(ctx context.Context, call func(ctx context.Context, client Cinder)) {
	if s.settle(ctx) != nil {
		return
	}
	attempt, err := s.breaker.Begin(s.epoch)
	if err != nil {
		return
	}
	_ = s.exchange(ctx, turns.Admission{Outage: attempt.Admit}, func(client Cinder) error {
		call(ctx, client)
		return nil
	})
}

// change makes a call that changes something at Cinder, and needs no permit.
func (s *session) change(ctx context.Context, call func(ctx context.Context, client Cinder) error) error {
	return s.changeIf(ctx, nil, call)
}

// changeIf makes a call that changes something at Cinder, if it is permitted; nil permits
// it. The fence comes last,
// when the request's turn has come: it stops a process that slept through the
// end of its term. If the caller's context ends, a waiting request leaves the
// queue, but a request under way may finish, since cutting it would only make
// its effect unknown. The end of the term does cut it.
func (s *session) changeIf(ctx context.Context, permitted permission, call func(ctx context.Context, client Cinder) error) error {
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
	// The permit is first asked before the request enters the queue: a new permit
	// may need requests, which must not use up a turn.
	if err := permitted.ask(); err != nil {
		attempt.End(lasting, err)
		return err
	}
	var notPermitted error
	fence := func() error {
		if notPermitted = permitted.ask(); notPermitted != nil {
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
		return call(lasting, client)
	})
	if notPermitted != nil {
		// Return the original error, not that of the request that was not sent.
		err = notPermitted
	}
	attempt.End(lasting, err)
	var failed *cinder.Error
	if errors.As(err, &failed) && (failed.EffectUnknown || failed.Kind == cinder.KindConflict) {
		_ = s.wait(lasting, s.readLag)
	}
	return err
}

// maxProbe bounds a probe's one request.
const maxProbe = 15 * time.Second

// probe requests one volume, bypassing the breaker, to find out whether the
// backend answers.
func (s *session) probe(ctx context.Context) error {
	ctx = cinder.WithRequestTimeout(ctx, maxProbe)
	return s.exchange(ctx, turns.Admission{}, func(client Cinder) error {
		return client.ListVolumes(ctx, cinder.VolumeQuery{PageSize: 1}, func([]cinder.Volume) bool { return false })
	})
}

// exchange makes a call with a logged-in client whose requests must pass the admission,
// and once more with a new one if the first client's credentials are rejected.
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

// login returns a logged-in client of the session's place.
func (s *session) login(ctx context.Context) (Cinder, error) {
	client, err := s.clients.client(ctx)
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
