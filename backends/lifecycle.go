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
	// unsettled holds, by claim UID, when a create request was made whose
	// effect is not known yet.
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
	config := options.Config.withDefaults()
	interval := options.Poll
	if interval <= 0 {
		interval = 200 * time.Millisecond
	}
	l := &Lifecycle{
		config:    config,
		cinder:    &session{pool: options.Pool, config: config, fence: options.Fence, hold: options.Hold},
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
		if v.ID != "" && v.SizeGiB < spec.SizeGiB {
			return Connected{}, l.failure(KindConflict, "volume %s has %d GiB, the claim wants %d GiB", v.ID, v.SizeGiB, spec.SizeGiB)
		}
		switch next := towardsConnected(v.Status); next {
		case stepCreate:
			v, err = l.create(ctx, spec)
		case stepAwaitCreated:
			v, err = l.awaitCreated(ctx, v, spec)
		case stepReserve:
			v, err = l.reserve(ctx, v)
		case stepConnect:
			var document []byte
			err = l.cinder.change(ctx, func(ctx context.Context, cinder api) (err error) {
				document, err = cinder.InitializeConnection(ctx, v.ID, spec.Connector)
				return err
			})
			if err == nil {
				l.see(v.ID, v)
				return Connected{Volume: v, Document: document}, nil
			}
		case stepDiscard:
			return Connected{}, l.discard(ctx, v, spec)
		case stepAwaitGone:
			if err = l.awaitGone(ctx, v.ID); err == nil {
				l.forget(spec.Stamp.ClaimUID, v.ID)
				v = Volume{}
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

// look finds the claim's volume: by the id that this term knows, else in the
// listing of the term. The zero Volume means that there provably is none.
func (l *Lifecycle) look(ctx context.Context, stamp Stamp, connector Connector) (Volume, error) {
	l.mu.Lock()
	id, known := l.volumes[stamp.ClaimUID]
	since, unsettled := l.unsettled[stamp.ClaimUID]
	l.mu.Unlock()
	if !known || unsettled {
		found, err := l.inventory.find(ctx, stamp, since)
		if err != nil {
			return Volume{}, err
		}
		if len(found) == 0 && !known {
			l.settle(stamp.ClaimUID, "")
			return Volume{}, nil
		}
		if len(found) > 0 {
			chosen, err := l.keepOne(ctx, found, connector)
			if err != nil {
				return Volume{}, err
			}
			id = chosen.ID
		}
		l.settle(stamp.ClaimUID, id)
	}
	v, err := l.get(ctx, id)
	if IsKind(err, KindNotFound) {
		l.forget(stamp.ClaimUID, id)
		return Volume{}, nil
	}
	if err != nil {
		return Volume{}, err
	}
	if !stamp.Owns(v) {
		return Volume{}, l.failure(KindNotOurs, "volume %s no longer carries the stamp of this claim", id)
	}
	return v, nil
}

// create makes the volume. An answer that was lost is settled by the look of
// the next attempt, never by repeating the request.
func (l *Lifecycle) create(ctx context.Context, spec Spec) (v Volume, err error) {
	uid := spec.Stamp.ClaimUID
	started := time.Now()
	l.mu.Lock()
	// Noted before the request leaves: a panic or a cancelled context between
	// effect and answer must not make the volume unknown.
	l.unsettled[uid] = started
	l.mu.Unlock()
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
		l.forget(stamp.ClaimUID, v.ID)
		return Volume{}, nil
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
	chosen, err := l.keepOne(ctx, found, spec.Connector)
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
	err := l.remove(ctx, Target{VolumeID: v.ID, Stamp: spec.Stamp, Connector: spec.Connector})
	if err != nil {
		return fmt.Errorf("volume %s went to error (%s) and cannot be removed: %w", v.ID, reason, err)
	}
	l.forget(spec.Stamp.ClaimUID, v.ID)
	return l.failure(KindVolumeFailed, "volume %s went to error and was removed: %s", v.ID, reason)
}

// keepOne picks the volume that stays, and removes the rest. A volume that a
// PersistentVolume may know (in-use) comes first, then one that is connected,
// then the eldest; of several that may be known none is touched.
func (l *Lifecycle) keepOne(ctx context.Context, found []Volume, connector Connector) (Volume, error) {
	chosen := found[0]
	for _, v := range found[1:] {
		if rank(v) > rank(chosen) || rank(v) == rank(chosen) && elder(v, chosen) < 0 {
			chosen = v
		}
	}
	for _, v := range found {
		if v.ID == chosen.ID {
			continue
		}
		if v.Status == StatusInUse {
			return Volume{}, l.failure(KindConflict, "volumes %s and %s of one claim are both in use; keep one and delete the other by hand", chosen.ID, v.ID)
		}
		l.logger.Warn("Removing a second volume of one claim", "volume", v.ID, "kept", chosen.ID, "status", v.Status)
		stamp := StampOf(v)
		if err := l.remove(ctx, Target{VolumeID: v.ID, Stamp: stamp, Connector: connector}); err != nil {
			return Volume{}, err
		}
		l.inventory.forget(v.ID)
		l.dropRival(stamp.ClaimUID, v.ID)
	}
	return chosen, nil
}

func rank(v Volume) int {
	switch v.Status {
	case StatusInUse:
		return 3
	case StatusAttaching:
		return 2
	case StatusError, StatusErrorDeleting, StatusDeleting:
		return 0
	}
	return 1
}

// Complete takes the last step, to in-use. The caller has seen the
// PersistentVolume in the API server. A volume that this term connected costs
// one request; one that an earlier term connected is looked up in the listing
// that serves them all.
func (l *Lifecycle) Complete(ctx context.Context, target Target, readOnly bool) error {
	release, err := l.locks.acquire(ctx, target.Stamp.ClaimUID)
	if err != nil {
		return err
	}
	defer release()
	v, err := l.lastSeen(ctx, target)
	if err != nil {
		return err
	}
	for looked := false; ; looked = true {
		if !target.owns(v) {
			return l.notOurs(v, target)
		}
		var failed error
		switch v.Status {
		case StatusInUse:
			return nil
		case StatusAttaching:
			failed = l.cinder.change(ctx, func(ctx context.Context, cinder api) error {
				return cinder.Attach(ctx, v.ID, target.Connector.Host, readOnly)
			})
			if failed == nil {
				return nil
			}
		default:
			failed = l.failure(KindConflict, "volume %s is %s where attaching was expected", v.ID, v.Status)
		}
		if looked {
			return failed
		}
		// Either what was known is out of date, or the answer was lost after
		// the effect. Repeating os-attach would not tell: Cinder answers a
		// project's member with 500 when the host is attached already.
		l.see(target.VolumeID, Volume{})
		if v, err = l.get(ctx, target.VolumeID); err != nil {
			return errors.Join(failed, err)
		}
		if v.Status == StatusAttaching {
			l.see(target.VolumeID, v)
			return failed
		}
	}
}

// see remembers the newest picture of a volume; the zero Volume says that the
// picture at hand is not to be trusted.
func (l *Lifecycle) see(id string, v Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[id] = v
}

// lastSeen returns the newest picture of a volume that is at hand, or looks.
func (l *Lifecycle) lastSeen(ctx context.Context, target Target) (Volume, error) {
	l.mu.Lock()
	v, ok := l.seen[target.VolumeID]
	l.mu.Unlock()
	if ok && v.ID != "" {
		return v, nil
	}
	if !ok {
		found, err := l.inventory.find(ctx, target.Stamp, time.Time{})
		if err != nil {
			return Volume{}, err
		}
		for _, v := range found {
			if v.ID == target.VolumeID {
				return v, nil
			}
		}
	}
	return l.get(ctx, target.VolumeID)
}

// Holds reports whether the backend has a volume of the claim, in whatever
// state. It costs requests only when the answer is not known in this term.
func (l *Lifecycle) Holds(ctx context.Context, stamp Stamp) (bool, error) {
	l.mu.Lock()
	_, known := l.volumes[stamp.ClaimUID]
	since := l.unsettled[stamp.ClaimUID]
	l.mu.Unlock()
	if known {
		return true, nil
	}
	found, err := l.inventory.find(ctx, stamp, since)
	return len(found) > 0, err
}

// Has reports whether a volume of that id exists at the backend, whoever's it
// is. It serves PersistentVolumes that do not say where their volume is.
func (l *Lifecycle) Has(ctx context.Context, id string) (bool, error) {
	_, err := l.get(ctx, id)
	if IsKind(err, KindNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Abandon removes whatever a claim that is gone, or refused, left at the
// backend. The caller knows that no PersistentVolume was recorded for it.
func (l *Lifecycle) Abandon(ctx context.Context, stamp Stamp, connector Connector) error {
	release, err := l.locks.acquire(ctx, stamp.ClaimUID)
	if err != nil {
		return err
	}
	defer release()
	v, err := l.look(ctx, stamp, connector)
	if err != nil || v.ID == "" {
		return err
	}
	if err := l.remove(ctx, Target{VolumeID: v.ID, Stamp: stamp, Connector: connector}); err != nil {
		return err
	}
	l.forget(stamp.ClaimUID, v.ID)
	return nil
}

// Volumes lists the cluster's volumes as of the last complete listing of this
// term. It costs requests only the first time.
func (l *Lifecycle) Volumes(ctx context.Context) ([]Volume, error) {
	return l.inventory.all(ctx)
}

func (l *Lifecycle) get(ctx context.Context, id string) (v Volume, err error) {
	err = l.cinder.read(ctx, func(cinder api) (err error) {
		v, err = cinder.Volume(ctx, id)
		return err
	})
	return v, err
}

func (l *Lifecycle) list(ctx context.Context, query VolumeQuery, yield func([]Volume) bool) error {
	return l.cinder.read(ctx, func(cinder api) error { return cinder.ListVolumes(ctx, query, yield) })
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

// observe looks through a page of volumes that was read for another purpose
// for second volumes of claims in flight. After a create request every claim
// is looked up this way at no cost.
func (l *Lifecycle) observe(page []Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range page {
		stamp := StampOf(v)
		id, mine := l.volumes[stamp.ClaimUID]
		if !mine || id == v.ID || stamp.Cluster != l.inventory.cluster {
			continue
		}
		if l.rivals[stamp.ClaimUID] == nil {
			l.rivals[stamp.ClaimUID] = map[string]bool{}
		}
		l.rivals[stamp.ClaimUID][v.ID] = true
	}
}

func (l *Lifecycle) rivalsOf(uid, id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var rivals []string
	for rival := range l.rivals[uid] {
		if rival != id {
			rivals = append(rivals, rival)
		}
	}
	return sorted(rivals)
}

func (l *Lifecycle) dropRival(uid, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.rivals[uid], id)
}

func (l *Lifecycle) failure(kind Kind, format string, arguments ...any) *Error {
	return &Error{Backend: l.config.Name, Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}
