package backends

import "context"

// api is Cinder as the lifecycle uses it; *Client is the one implementation
// outside tests of the state machine.
type api interface {
	CreateVolume(ctx context.Context, request NewVolume) (Volume, error)
	Volume(ctx context.Context, id string) (Volume, error)
	ListVolumes(ctx context.Context, query VolumeQuery, yield func(page []Volume) bool) error
	DeleteVolume(ctx context.Context, id string) error
	ForceDeleteVolume(ctx context.Context, id string) error
	Reserve(ctx context.Context, id string) error
	Unreserve(ctx context.Context, id string) error
	InitializeConnection(ctx context.Context, id string, connector Connector) ([]byte, error)
	TerminateConnection(ctx context.Context, id string, connector Connector) error
	Attach(ctx context.Context, id, host string, readOnly bool) error
	Detach(ctx context.Context, id, attachmentID string) error
	FailureReason(ctx context.Context, id string) string
}

// session decorates the pool's clients for the term of one leader: it refuses
// changes once the term is over, and logs in again, once, when credentials
// that were good are refused.
type session struct {
	pool   *Pool
	config Config
	fence  func() error
	hold   context.Context
}

// read makes a call that changes nothing.
func (s *session) read(ctx context.Context, call func(api) error) error {
	client, err := s.pool.Client(ctx, s.config)
	if err != nil {
		return err
	}
	err = call(client)
	if !IsKind(err, KindUnauthorized) {
		return err
	}
	// A refused request had no effect, so that it may be made again.
	s.pool.Forget(client)
	if client, err = s.pool.Client(ctx, s.config); err != nil {
		return err
	}
	return call(client)
}

// change makes a call that changes something at Cinder. The fence is asked
// last, as close to the request as this program can get: a process that slept
// through the end of its term stops here. A caller that is told to stop lets a
// request under way end, since cutting it would only leave its effect unknown;
// the end of the term does cut it.
func (s *session) change(ctx context.Context, call func(ctx context.Context, cinder api) error) error {
	return s.read(ctx, func(cinder api) error {
		if err := ctx.Err(); err != nil {
			return translate(s.config.Name, "", notSent{err})
		}
		if err := s.fence(); err != nil {
			return &Error{Backend: s.config.Name, Kind: KindFenced, Message: "no change is made: " + err.Error(), cause: context.Canceled}
		}
		lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(s.hold, cancel)()
		return call(lasting, cinder)
	})
}
