package backends

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// endpoint is the volumes of a backend at one place: how they are reached and
// what the term remembers of them. An operation ends at the endpoint where
// it began, also when the configuration names another one meanwhile.
type endpoint struct {
	backend   string
	config    atomic.Pointer[Config] // with defaults
	session   *session
	logger    *slog.Logger
	inventory *inventory
	watcher   *watcher

	// mu is the lifecycle's: next is written to as well.
	mu *sync.Mutex
	// volumes maps a claim's UID to the volume that serves it, as far as this
	// term knows.
	volumes map[string]string
	// unsettled holds, by claim UID, since when there may be a volume that this
	// term does not know: only a listing that began later can tell.
	unsettled map[string]time.Time
	// rivals holds, by claim UID, volumes seen in listings that carry the same
	// stamp as the claim's own.
	rivals map[string]map[string]bool
	// seen holds the newest picture, by id, of volumes that this term brought
	// to attaching; the zero Volume where it is not to be trusted.
	seen map[string]cinder.Volume
	// shown says that Cinder showed a volume of this cluster here.
	shown atomic.Bool
	// former holds, by claim UID, where the term knew a volume before the backend
	// was led here.
	former map[string]cinder.Place
	// answerLost is called after a create request whose answer was lost.
	answerLost func()
	// next is the endpoint that has taken this one's place; nil while this is
	// the current one.
	next *endpoint
}

// newEndpoint makes an endpoint of which nothing is known. The epoch is its
// number for the breaker.
func (l *Lifecycle) newEndpoint(config Config, epoch int) *endpoint {
	e := &endpoint{
		backend:   config.Name,
		logger:    l.options.Logger,
		mu:        &l.mu,
		volumes:   map[string]string{},
		unsettled: map[string]time.Time{},
		rivals:    map[string]map[string]bool{},
		seen:      map[string]cinder.Volume{},
		former:    map[string]cinder.Place{},
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
		hold:    l.options.Hold,
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

// list reads for many at once, and so is bound to nobody's context; it ends
// with the term.
func (e *endpoint) list(ctx context.Context, query cinder.VolumeQuery, yield func([]cinder.Volume) bool) error {
	if err := e.session.hold.Err(); err != nil {
		return cinder.NotSent(e.backend, "", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.session.hold, cancel)()
	// Nor is it on behalf of the tenant that happened to come first.
	ctx = cinder.WithCaller(ctx, cinder.Caller{})
	return e.session.read(ctx, func(ctx context.Context, client Cinder) error {
		return client.ListVolumes(ctx, query, func(page []cinder.Volume) bool {
			for _, v := range page {
				e.note(v)
			}
			return yield(page)
		})
	})
}

// doubt records that there may be a volume of the claim that is not known.
func (e *endpoint) doubt(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Whatever endpoint has taken this one's place may be the same Cinder by
	// another way.
	for at := e; at != nil; at = at.next {
		at.unsettled[uid] = time.Now()
	}
}

// settle records what is known of a claim's volume after all doubt is gone.
func (e *endpoint) settle(uid, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.unsettled, uid)
	if id == "" {
		delete(e.volumes, uid)
		return
	}
	e.volumes[uid] = id
	delete(e.former, uid)
}

func (e *endpoint) forget(uid, id string) {
	e.mu.Lock()
	if e.volumes[uid] == id {
		delete(e.volumes, uid)
	}
	delete(e.rivals, uid)
	delete(e.seen, id)
	e.mu.Unlock()
	e.inventory.forget(id)
}

func (e *endpoint) failure(kind cinder.Kind, format string, arguments ...any) *cinder.Error {
	return &cinder.Error{Backend: e.backend, Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}
