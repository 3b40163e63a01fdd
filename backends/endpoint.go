package backends

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/knowledge"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/watch"
)

// endpoint represents the volumes of a backend at one place: how to reach them
// and what the term knows about them. An operation ends at the endpoint where
// it began, even if the configuration names another by then.
type endpoint struct {
	backend   string
	config    atomic.Pointer[Config] // with defaults
	session   *session
	logger    *slog.Logger
	cluster   string
	inventory *knowledge.Inventory[cinder.Volume]
	known     *knowledge.Notes
	watcher   *watch.Watcher[cinder.Volume]

	snapshotInventory *knowledge.Inventory[cinder.Snapshot]
	// snapshotsKnown is keyed by the UIDs of VolumeSnapshots.
	snapshotsKnown  *knowledge.Notes
	snapshotWatcher *watch.Watcher[cinder.Snapshot]

	// unshown are volumes, snapshots and attachments, whose IDs are all unique; ended are
	// attachments whose deletion was requested, and that Cinder may still show.
	unshown, ended *knowledge.Unshown
	// shown is true once Cinder has shown a volume of this cluster here.
	shown atomic.Bool
	// answerLost is called after a create request whose answer was lost.
	answerLost func()
}

// newEndpoint makes an endpoint without any knowledge, at which nothing was changed after
// the given time. The epoch is its number for the breaker.
func (l *Lifecycle) newEndpoint(config Config, epoch int, changed time.Time) *endpoint {
	e := &endpoint{
		backend: config.Name,
		cluster: l.options.Cluster,
		logger:  l.options.Logger,
		known:   knowledge.NewNotes(&l.mu),

		unshown: knowledge.NewUnshown(), ended: knowledge.NewUnshown(),

		snapshotsKnown: knowledge.NewNotes(&l.mu),
		answerLost: func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.lastUncertain = time.Now()
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
		settled: changed.Add(l.options.ReadLag),
		readLag: l.options.ReadLag,
		left:    func() { l.leave(e) },
	}
	e.watcher = watch.New(watch.Options[cinder.Volume]{
		Backend:  config.Name,
		Noun:     "volume",
		Interval: l.options.Poll,
		List: func(ctx context.Context, status cinder.Status, pageSize int, yield func([]cinder.Volume) bool) error {
			return e.list(ctx, cinder.VolumeQuery{Status: status, PageSize: pageSize}, yield)
		},
		Get:     e.get,
		State:   func(v cinder.Volume) (string, cinder.Status) { return v.ID, v.Status },
		Observe: e.observe,
		Waiting: func(more int) { l.options.Metrics.waiting(config.Name, more) },
		Pause:   func(pause time.Duration) { l.options.pause(pause) },
	})
	e.snapshotWatcher = watch.New(watch.Options[cinder.Snapshot]{
		Backend:  config.Name,
		Noun:     "snapshot",
		Interval: l.options.Poll,
		List: func(ctx context.Context, status cinder.Status, pageSize int, yield func([]cinder.Snapshot) bool) error {
			return e.listSnapshots(ctx, cinder.SnapshotQuery{Status: status, PageSize: pageSize}, yield)
		},
		Get:     e.getSnapshot,
		State:   func(s cinder.Snapshot) (string, cinder.Status) { return s.ID, s.Status },
		Observe: func([]cinder.Snapshot) {},
		Waiting: func(more int) { l.options.Metrics.waiting(config.Name, more) },
		Pause:   func(pause time.Duration) { l.options.pause(pause) },
	})
	e.inventory = newInventory(l.options.Cluster, e.watcher.ListAll)
	e.snapshotInventory = newSnapshotInventory(l.options.Cluster, e.snapshotWatcher.ListAll)
	return e
}

// newInventory returns the inventory of a cluster's volumes.
func newInventory(cluster string, list func(context.Context, func([]cinder.Volume) bool) error) *knowledge.Inventory[cinder.Volume] {
	return knowledge.NewInventory(knowledge.Entries[cinder.Volume]{
		List:  list,
		Owner: stamps.ClaimOf(cluster),
		Born:  func(v cinder.Volume) (string, time.Time) { return v.ID, v.CreatedAt },
		Share: stamps.Share,
	})
}

// newSnapshotInventory returns the inventory of a cluster's snapshots.
func newSnapshotInventory(cluster string, list func(context.Context, func([]cinder.Snapshot) bool) error) *knowledge.Inventory[cinder.Snapshot] {
	return knowledge.NewInventory(knowledge.Entries[cinder.Snapshot]{
		List: list,
		Owner: func(s cinder.Snapshot) string {
			if s.Metadata[stamps.KeyCluster] != cluster {
				return ""
			}
			return s.Metadata[stamps.KeySnapshotUID]
		},
		Born:  func(s cinder.Snapshot) (string, time.Time) { return s.ID, s.CreatedAt },
		Share: stamps.ShareSnapshot,
	})
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
	return v, e.unlessExpected("volume", id, err)
}

// expect notes that Cinder has acknowledged an object of another one, if of is not empty.
func (e *endpoint) expect(id, of string) {
	e.unshown.Expect(id, of, time.Now().Add(e.timeouts().Create))
}

// unlessExpected returns the error of a read. If Cinder has acknowledged the object and
// not shown it since, the answer that it does not exist proves nothing.
func (e *endpoint) unlessExpected(noun, id string, err error) error {
	if cinder.IsKind(err, cinder.KindNotFound) && e.unshown.Missing(id) {
		return e.notShown(noun, id)
	}
	return err
}

func (e *endpoint) notShown(noun, id string) error {
	return e.failure(KindNotShown, "Cinder made %s %s, and does not show it yet: its database answers reads from before the last writes; with Galera, set wsrep_sync_wait", noun, id)
}

// awaitEnd waits until a volume has left the status of a change. requested is the volume
// as it was when this call requested the change; zero if it did not.
func (e *endpoint) awaitEnd(ctx context.Context, requested, v cinder.Volume, timeout time.Duration) (after cinder.Volume, gone bool, err error) {
	return awaitEnd(e.session.readLag, func() (cinder.Volume, bool, error) { return e.watcher.Await(ctx, v.ID, v.Status, timeout) }, func(after cinder.Volume) bool {
		return after.ID == requested.ID && after.Status == requested.Status && after.SizeGiB == requested.SizeGiB && after.Type == requested.Type
	})
}

// awaitEnd waits for the end of a change that Cinder has just accepted. As long as reads
// may lag, a state that may be from before shows nothing.
func awaitEnd[T any](readLag time.Duration, await func() (T, bool, error), mayBeBefore func(T) bool) (after T, gone bool, err error) {
	for accepted := time.Now(); ; {
		after, gone, err = await()
		if gone || err != nil || !mayBeBefore(after) || time.Since(accepted) >= readLag {
			return after, gone, err
		}
	}
}

func (e *endpoint) list(ctx context.Context, query cinder.VolumeQuery, yield func([]cinder.Volume) bool) error {
	query.Keep = stamps.IsOurKey
	return e.listForAll(ctx, func(ctx context.Context, client Cinder) error {
		return client.ListVolumes(ctx, query, func(page []cinder.Volume) bool {
			for _, v := range page {
				e.note(v)
			}
			return yield(page)
		})
	})
}

// listForAll reads for many callers at once, and so does not end with any of
// their contexts; it ends with the term.
func (e *endpoint) listForAll(ctx context.Context, read func(ctx context.Context, client Cinder) error) error {
	if err := e.session.term.Err(); err != nil {
		return cinder.NotSent(e.backend, "", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.session.term, cancel)()
	// Nor does it count for the tenant that happened to come first.
	ctx = turns.WithCaller(ctx, turns.Caller{})
	return e.session.read(ctx, read)
}

// forget forgets a claim's volume and all its rivals.
func (e *endpoint) forget(uid, id string) {
	e.known.ForgetClaim(uid, id)
	e.inventory.Forget(id)
}

func (e *endpoint) failure(kind cinder.Kind, format string, arguments ...any) *cinder.Error {
	return &cinder.Error{Backend: e.backend, Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}
