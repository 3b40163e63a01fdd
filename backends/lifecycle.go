package backends

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// LifecycleOptions configure a Lifecycle.
type LifecycleOptions struct {
	Config Config
	Pool   *Pool
	// Cluster is the id stamped on this cluster's volumes.
	Cluster string
	// Fence returns an error once the term of the leader is over; it is asked
	// before every change at Cinder.
	Fence func() error
	// Hold ends with the term; it cuts requests under way.
	Hold    context.Context
	Logger  *slog.Logger
	Metrics *Metrics
	// Poll is the shortest time between two rounds of waiting; 0 means 200 ms.
	Poll time.Duration
}

// Lifecycle leads the volumes of one backend through their lives, in the
// `reserve` workflow: create, os-reserve, os-initialize_connection, os-attach,
// and back. It lives as long as one leader's term: what it remembers (ids it
// created, creates whose answers were lost, the listing of the term's
// beginning) is only true while nobody else leads.
//
// Every method derives its next step from the observed state, so that each may
// be interrupted anywhere and called again, by this leader or the next.
type Lifecycle struct {
	config    Config
	cinder    *session
	logger    *slog.Logger
	inventory *inventory
	watcher   *watcher

	// locks keeps two operations on the volume of one claim apart, such as
	// Complete and Remove when a claim is deleted as soon as it is bound.
	locks *keyedMutex

	mu sync.Mutex
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
	seen map[string]Volume
}

// NewLifecycle makes the lifecycle of one backend for one term.
func NewLifecycle(options LifecycleOptions) *Lifecycle {
	return newLifecycle(options, pooledClients{options.Pool, options.Config})
}

func newLifecycle(options LifecycleOptions, clients clients) *Lifecycle {
	config := options.Config.withDefaults()
	interval := options.Poll
	if interval <= 0 {
		interval = 200 * time.Millisecond
	}
	l := &Lifecycle{
		config:    config,
		cinder:    &session{clients: clients, backend: config.Name, fence: options.Fence, hold: options.Hold},
		logger:    options.Logger.With("backend", config.Name),
		volumes:   map[string]string{},
		unsettled: map[string]time.Time{},
		rivals:    map[string]map[string]bool{},
		seen:      map[string]Volume{},
		locks:     newKeyedMutex(),
	}
	l.inventory = newInventory(options.Cluster, func(ctx context.Context, yield func([]Volume) bool) error {
		return l.list(ctx, VolumeQuery{PageSize: 1000}, yield)
	})
	l.watcher = &watcher{
		backend:  config.Name,
		interval: interval,
		list:     l.list,
		get:      l.get,
		observe:  l.observe,
		waiting:  func(volumes int) { options.Metrics.waiting(config.Name, volumes) },
		waits:    map[*wait]struct{}{},
	}
	return l
}

// Spec is the volume that a claim wants.
type Spec struct {
	Name      string // derived from the claim's UID
	SizeGiB   int64
	Type      string
	Zone      string
	Metadata  map[string]string // the operator's; the stamp is added
	Stamp     Stamp
	Connector Connector
}

// Connected is a volume and how a node reaches it.
type Connected struct {
	Volume Volume
	// Document is Cinder's connection document; it may hold credentials.
	Document []byte
}

// maxMoves bounds how often one call looks and steps. The longest healthy way
// has four moves; more mean that somebody else moves the volume too.
const maxMoves = 12

// Connect brings the claim's volume to the state in which its connection is
// known, creating it first if there is none, and adopting whatever an earlier
// attempt left. The volume stays short of in-use: Complete takes that step
// once the PersistentVolume is recorded, so that "attaching or earlier" proves
// that none was.
func (l *Lifecycle) Connect(ctx context.Context, spec Spec) (Connected, error) {
	release, err := l.locks.acquire(ctx, spec.Stamp.ClaimUID)
	if err != nil {
		return Connected{}, err
	}
	defer release()
	v, err := l.look(ctx, spec.Stamp, spec.Connector)
	if err != nil {
		return Connected{}, err
	}
	for range maxMoves {
		if err := ctx.Err(); err != nil {
			return Connected{}, err
		}
		next := towardsConnected(v.Status)
		if (next == stepReserve || next == stepConnect) && v.SizeGiB < spec.SizeGiB {
			return Connected{}, l.failure(KindConflict, "volume %s has %d GiB, the claim wants %d GiB", v.ID, v.SizeGiB, spec.SizeGiB)
		}
		switch next {
		case stepCreate:
			v, err = l.create(ctx, spec)
		case stepAwaitCreated:
			v, err = l.awaitCreated(ctx, v, spec)
		case stepReserve:
			v, err = l.reserve(ctx, v)
		case stepConnect:
			return l.connect(ctx, v, spec)
		case stepDiscard:
			return Connected{}, l.discard(ctx, v, spec)
		case stepAwaitGone:
			if err = l.awaitGone(ctx, v.ID); err == nil {
				v, err = l.lookAgain(ctx, v.ID, spec)
			}
		default:
			return Connected{}, l.failure(KindConflict, "volume %s is %s; it is left alone until that is over", v.ID, v.Status)
		}
		if err != nil {
			return Connected{}, err
		}
	}
	return Connected{}, l.failure(KindConflict, "volume %s keeps changing its state; somebody else works on it", v.ID)
}

// connect asks for the connection of a volume that is attaching, or that a
// PersistentVolume of the same claim once had in use. A volume that somebody
// else has attached would be written to from two sides.
func (l *Lifecycle) connect(ctx context.Context, v Volume, spec Spec) (Connected, error) {
	if err := l.attachedElsewhere(v, Target{Connector: spec.Connector}); err != nil {
		return Connected{}, err
	}
	var document []byte
	err := l.cinder.change(ctx, func(ctx context.Context, cinder api) (err error) {
		document, err = cinder.InitializeConnection(ctx, v.ID, spec.Connector)
		return err
	})
	if err != nil {
		return Connected{}, err
	}
	l.see(v.ID, v)
	return Connected{Volume: v, Document: document}, nil
}

// look finds the claim's volume: by the id that this term knows, else in the
// listing of the term. The zero Volume means that there provably is none.
func (l *Lifecycle) look(ctx context.Context, stamp Stamp, connector Connector) (Volume, error) {
	for range maxMoves {
		id, err := l.locate(ctx, stamp, connector)
		if id == "" || err != nil {
			return Volume{}, err
		}
		v, err := l.get(ctx, id)
		if IsKind(err, KindNotFound) {
			// Somebody else removed it. Whether it was the only one is to be
			// looked up: a second one may have been made meanwhile.
			l.forget(stamp.ClaimUID, id)
			l.doubt(stamp.ClaimUID)
			continue
		}
		if err != nil {
			return Volume{}, err
		}
		if !stamp.Owns(v) {
			return Volume{}, l.failure(KindNotOurs, "volume %s no longer carries the stamp of this claim", id)
		}
		return v, nil
	}
	return Volume{}, l.failure(KindConflict, "the volumes of claim UID %q vanish as fast as they are found; somebody else works on them", stamp.ClaimUID)
}

// lookAgain finds the claim's volume after the one that was known is gone, and
// not by our doing.
func (l *Lifecycle) lookAgain(ctx context.Context, id string, spec Spec) (Volume, error) {
	l.forget(spec.Stamp.ClaimUID, id)
	l.doubt(spec.Stamp.ClaimUID)
	return l.look(ctx, spec.Stamp, spec.Connector)
}

// locate returns the id of the claim's only volume, or "" when there is none.
func (l *Lifecycle) locate(ctx context.Context, stamp Stamp, connector Connector) (string, error) {
	l.mu.Lock()
	id, known := l.volumes[stamp.ClaimUID]
	since, unsettled := l.unsettled[stamp.ClaimUID]
	l.mu.Unlock()
	if known && !unsettled {
		return id, nil
	}
	found, err := l.inventory.find(ctx, stamp, since)
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		chosen, err := l.keepOne(ctx, found, stamp, connector)
		if err != nil {
			return "", err
		}
		id = chosen.ID
	}
	l.settle(stamp.ClaimUID, id)
	return id, nil
}

// create makes the volume. An answer that was lost is settled by the look of
// the next attempt, never by repeating the request.
func (l *Lifecycle) create(ctx context.Context, spec Spec) (v Volume, err error) {
	uid := spec.Stamp.ClaimUID
	// Noted before the request leaves: a panic between effect and answer must
	// not make the volume unknown.
	l.doubt(uid)
	err = l.cinder.change(ctx, func(ctx context.Context, cinder api) (err error) {
		v, err = cinder.CreateVolume(ctx, NewVolume{
			Name:     spec.Name,
			SizeGiB:  spec.SizeGiB,
			Type:     spec.Type,
			Zone:     spec.Zone,
			Metadata: spec.Stamp.Metadata(spec.Metadata),
		})
		return err
	})
	if err == nil {
		l.settle(uid, v.ID)
		return v, nil
	}
	var failed *Error
	if errors.As(err, &failed) && !failed.EffectUnknown {
		l.settle(uid, "")
	} else {
		// A listing that began while the request was under way may have missed
		// its effect.
		l.doubt(uid)
	}
	return Volume{}, err
}

// awaitCreated waits until the volume has left `creating`, and then sees to it
// that it is the only one of its claim.
func (l *Lifecycle) awaitCreated(ctx context.Context, v Volume, spec Spec) (Volume, error) {
	stamp := spec.Stamp
	after, gone, err := l.watcher.await(ctx, v.ID, StatusCreating, l.config.Timeouts.Create)
	if err != nil {
		return Volume{}, err
	}
	if gone {
		return l.lookAgain(ctx, v.ID, spec)
	}
	if !stamp.Owns(after) {
		return Volume{}, l.failure(KindNotOurs, "volume %s no longer carries the stamp of this claim", v.ID)
	}
	rivals := l.rivalsOf(stamp.ClaimUID, v.ID)
	if len(rivals) == 0 {
		return after, nil
	}
	found := []Volume{after}
	for _, id := range rivals {
		rival, err := l.get(ctx, id)
		if IsKind(err, KindNotFound) {
			continue
		}
		if err != nil {
			return Volume{}, err
		}
		if stamp.Owns(rival) {
			found = append(found, rival)
		}
	}
	chosen, err := l.keepOne(ctx, found, stamp, spec.Connector)
	if err != nil {
		return Volume{}, err
	}
	l.settle(stamp.ClaimUID, chosen.ID)
	return chosen, nil
}

// reserve marks the volume as being attached. A conflict is settled by
// looking: the reservation of a lost answer is as good as this one.
func (l *Lifecycle) reserve(ctx context.Context, v Volume) (Volume, error) {
	err := l.cinder.change(ctx, func(ctx context.Context, cinder api) error { return cinder.Reserve(ctx, v.ID) })
	switch {
	case err == nil:
		v.Status = StatusAttaching
		return v, nil
	case IsKind(err, KindConflict):
		again, getErr := l.get(ctx, v.ID)
		if getErr != nil {
			return Volume{}, getErr
		}
		if again.Status == v.Status {
			return Volume{}, err
		}
		return again, nil
	}
	return Volume{}, err
}

// discard deletes a volume that Cinder could not make, and reports why. The
// next attempt makes a new one.
func (l *Lifecycle) discard(ctx context.Context, v Volume, spec Spec) error {
	reason := ""
	_ = l.cinder.read(ctx, func(cinder api) error {
		reason = cinder.FailureReason(ctx, v.ID)
		return nil
	})
	if reason == "" {
		reason = "Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume"
	}
	err := l.remove(ctx, Target{VolumeID: v.ID, Stamp: spec.Stamp, Connector: spec.Connector, unreferenced: true})
	if err != nil {
		return fmt.Errorf("volume %s went to %s (%s) and cannot be removed: %w", v.ID, v.Status, reason, err)
	}
	l.forget(spec.Stamp.ClaimUID, v.ID)
	return l.failure(KindVolumeFailed, "volume %s went to %s and was removed: %s", v.ID, v.Status, reason)
}

func (l *Lifecycle) get(ctx context.Context, id string) (v Volume, err error) {
	err = l.cinder.read(ctx, func(cinder api) (err error) {
		v, err = cinder.Volume(ctx, id)
		return err
	})
	return v, err
}

// list reads for many at once, and so is bound to nobody's context; it ends
// with the term.
func (l *Lifecycle) list(ctx context.Context, query VolumeQuery, yield func([]Volume) bool) error {
	if err := l.cinder.hold.Err(); err != nil {
		return translate(l.config.Name, "", notSent{err})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.cinder.hold, cancel)()
	return l.cinder.read(ctx, func(cinder api) error { return cinder.ListVolumes(ctx, query, yield) })
}

// doubt records that there may be a volume of the claim that is not known.
func (l *Lifecycle) doubt(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsettled[uid] = time.Now()
}

// settle records what is known of a claim's volume after all doubt is gone.
func (l *Lifecycle) settle(uid, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unsettled, uid)
	if id == "" {
		delete(l.volumes, uid)
		return
	}
	l.volumes[uid] = id
}

func (l *Lifecycle) forget(uid, id string) {
	l.mu.Lock()
	if l.volumes[uid] == id {
		delete(l.volumes, uid)
	}
	delete(l.rivals, uid)
	delete(l.seen, id)
	l.mu.Unlock()
	l.inventory.forget(id)
}

func (l *Lifecycle) failure(kind Kind, format string, arguments ...any) *Error {
	return &Error{Backend: l.config.Name, Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}
