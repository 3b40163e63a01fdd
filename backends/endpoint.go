package backends

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/knowledge"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// endpoint represents a backend's volumes at one place: how to reach them and what the
// term knows about them. An operation ends at the endpoint where it began, even if the
// configuration has changed meanwhile.
//
// The work on volumes is divided among owners (type owners), which share an endpoint.
type endpoint struct {
	backend string
	config  atomic.Pointer[Config] // with defaults
	session *session
	logger  *slog.Logger
	cluster string
	*stock[cinder.Volume]

	// unshown are volumes, snapshots and attachments, whose IDs are all unique; ended are
	// attachments whose deletion was requested but which Cinder may still show.
	unshown, ended *knowledge.Unshown
	// answerLost is called when a create request loses its answer.
	answerLost func()
	// stamping has when a request to stamp a restored volume lost its answer, by ID.
	stamping sync.Map
}

// volumeRequests are the requests that every owner needs; cinder.Client describes these
// and all that the owners declare.
type volumeRequests interface {
	Volume(ctx context.Context, id string) (cinder.Volume, error)
	UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error
	Workflow(ctx context.Context) (cinder.Workflow, error)
	Now() time.Time
}

// owners divide the work at an endpoint.
type owners struct {
	*endpoint
	maker              maker
	completer          completer
	changer            changer
	remover            remover
	nodes              nodes
	importer           importer
	snapshots, backups *snapshots
	groups             *groups
}

// newEndpoint returns an endpoint that knows nothing yet, with its owners. No change was
// made there after the given time. The epoch is its number for the breaker.
func (l *Lifecycle) newEndpoint(config Config, epoch int, changed time.Time) *owners {
	e := &endpoint{
		backend: config.Name,
		cluster: l.options.Cluster,
		logger:  l.options.Logger,

		unshown: knowledge.NewUnshown(), ended: knowledge.NewUnshown(),

		answerLost: func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.lastUncertain = time.Now()
		},
	}
	e.config.Store(&config)
	e.session = &session{
		clients:  l.clients,
		config:   func() Config { return *e.config.Load() },
		backend:  config.Name,
		fence:    l.options.Fence,
		changing: l.options.Changing,
		term:     l.options.Term,
		breaker:  l.breaker,
		epoch:    epoch,
		settled:  changed.Add(l.options.ReadLag),
		readLag:  l.options.ReadLag,
		left:     func() { l.leave(e) },
	}
	e.stock = newStock(l, e, kind[cinder.Volume]{
		noun: "volume", owner: "claim",
		read: func(ctx context.Context, client Cinder, id string) (cinder.Volume, error) {
			return client.(volumeRequests).Volume(ctx, id)
		},
		list: func(ctx context.Context, client Cinder, query cinder.Query, yield func([]cinder.Volume) bool) error {
			return client.ListVolumes(ctx, query, yield)
		},
		ownerOf: stamps.ClaimOf(l.options.Cluster),
		share:   stamps.Share,
		observe: e.observe,
		settled: stamps.Settled,
	})
	connecting, snapshots := connections{e}, newSnapshots(l, e)
	backups, groups := newBackups(l, e, snapshots), newGroups(l, e, snapshots)
	snapshots.groups = groups
	removing := remover{connecting, snapshots}
	return &owners{e, maker{finder{removing}, backups}, completer{connecting}, changer{e}, removing, nodes{connecting}, importer{connecting}, snapshots, backups, groups}
}

func (e *endpoint) timeouts() Timeouts { return e.config.Load().Timeouts }

// expect records that Cinder has acknowledged an object, of another object unless of is
// empty.
func (e *endpoint) expect(id, of string) {
	e.unshown.Expect(id, of, time.Now().Add(e.timeouts().Create))
}

func (e *endpoint) notShown(noun, id string) error {
	return e.failure(KindNotShown, "Cinder created %s %s but does not show it yet: its database answers reads from before the last writes; with Galera, set wsrep_sync_wait", noun, id)
}

// updateMetadata writes metadata on a volume; other keys stay.
func (e *endpoint) updateMetadata(ctx context.Context, permitted permission, id string, metadata map[string]string) error {
	return change(ctx, e.session, permitted, func(ctx context.Context, client volumeRequests) error {
		return client.UpdateMetadata(ctx, id, metadata)
	})
}

func (e *endpoint) failure(kind cinder.Kind, format string, arguments ...any) *cinder.Error {
	return &cinder.Error{Backend: e.backend, Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}
