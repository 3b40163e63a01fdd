package backends

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// endpoint is the volumes of a backend at one place: how to reach them and what
// the term knows about them. An operation ends at the endpoint where it began,
// even if the configuration meanwhile names another.
type endpoint struct {
	backend   string
	config    atomic.Pointer[Config] // with defaults
	session   *session
	logger    *slog.Logger
	inventory *inventory
	known     *knowledge
	watcher   *watcher

	// shown is true once Cinder showed a volume of this cluster here.
	shown atomic.Bool
	// answerLost is called after a create request whose answer was lost.
	answerLost func()
}

// newEndpoint makes an endpoint without any knowledge. The epoch is its number
// for the breaker.
func (l *Lifecycle) newEndpoint(config Config, epoch int) *endpoint {
	e := &endpoint{
		backend: config.Name,
		logger:  l.options.Logger,
		known:   newKnowledge(&l.mu),
		answerLost: func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.lastDoubt = time.Now()
		},
	}
	e.config.Store(&config)
	e.session = &session{
		clients: l.clients(func() Config { return *e.config.Load() }),
		backend: config.Name,
		fence:   l.options.Fence,
		term:    l.options.Term,
		breaker: l.breaker,
		epoch:   epoch,
		left:    func() { l.leave(e) },
	}
	e.inventory = newInventory(l.options.Cluster, func(ctx context.Context, yield func([]cinder.Volume) bool) error {
		return e.list(ctx, cinder.VolumeQuery{PageSize: 1000}, yield)
	})
	e.watcher = &watcher{
		backend:  config.Name,
		interval: l.options.Poll,
		list:     e.list,
		get:      e.get,
		observe:  e.observe,
		waiting:  func(more int) { l.options.Metrics.waiting(config.Name, more) },
		waits:    map[*wait]struct{}{},
	}
	return e
}

func (e *endpoint) timeouts() Timeouts { return e.config.Load().Timeouts }

func (e *endpoint) get(ctx context.Context, id string) (v cinder.Volume, err error) {
	err = e.session.read(ctx, func(ctx context.Context, client Cinder) (err error) {
		v, err = client.Volume(ctx, id)
		return err
	})
	if err == nil {
		e.note(v)
	}
	return v, err
}

// list reads for many callers at once, and so does not end with any of their
// contexts; it ends with the term.
func (e *endpoint) list(ctx context.Context, query cinder.VolumeQuery, yield func([]cinder.Volume) bool) error {
	if err := e.session.term.Err(); err != nil {
		return cinder.NotSent(e.backend, "", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.session.term, cancel)()
	// Nor does it count for the tenant that happened to come first.
	ctx = cinder.WithCaller(ctx, cinder.Caller{})
	query.Keep = isOurKey
	return e.session.read(ctx, func(ctx context.Context, client Cinder) error {
		return client.ListVolumes(ctx, query, func(page []cinder.Volume) bool {
			for _, v := range page {
				e.note(v)
			}
			return yield(page)
		})
	})
}

// forget forgets a claim's volume and all its rivals.
func (e *endpoint) forget(uid, id string) {
	e.known.forgetClaim(uid, id)
	e.inventory.forget(id)
}

func (e *endpoint) failure(kind cinder.Kind, format string, arguments ...any) *cinder.Error {
	return &cinder.Error{Backend: e.backend, Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}
