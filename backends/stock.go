package backends

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/knowledge"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/watch"
)

// stock holds the volumes, the snapshots or the backups at an endpoint: how they are read, and what
// the term knows about them.
type stock[T cinder.Object] struct {
	kind kind[T]
	at   *endpoint
	// inventory and known are keyed by the UIDs of the owners.
	inventory *knowledge.Inventory[T]
	known     *knowledge.Notes
	watcher   *watch.Watcher[T]
	// shown is true once Cinder has shown one of the cluster's objects here.
	shown atomic.Bool
}

// kind describes volumes, snapshots or backups.
type kind[T cinder.Object] struct {
	// noun and owner name an object and its owner in errors.
	noun, owner string
	read        func(ctx context.Context, client Cinder, id string) (T, error)
	list        func(ctx context.Context, client Cinder, query cinder.Query, yield func(page []T) bool) error
	// ownerOf returns the UID in the stamp of one of the cluster's objects.
	ownerOf func(T) (uid string)
	share   func(T, map[string]string) T
	// observe is that of watch.Options; it may be nil.
	observe func(page []T)
	// settled returns an object as every reader must see it; it may be nil.
	settled func(T) T
}

// kindOf returns the kind of objects that a client reads and lists by these requests. C has
// both.
func kindOf[C any, T cinder.Object](noun, owner string, read func(C, context.Context, string) (T, error), list func(C, context.Context, cinder.Query, func([]T) bool) error) kind[T] {
	return kind[T]{
		noun: noun, owner: owner,
		read: func(ctx context.Context, client Cinder, id string) (T, error) { return read(client.(C), ctx, id) },
		list: func(ctx context.Context, client Cinder, query cinder.Query, yield func([]T) bool) error {
			return list(client.(C), ctx, query, yield)
		},
		ownerOf: func(T) string { return "" },
	}
}

func newStock[T cinder.Object](l *Lifecycle, at *endpoint, kind kind[T]) *stock[T] {
	s := &stock[T]{kind: kind, at: at, known: knowledge.NewNotes(&l.mu)}
	s.watcher = watch.New(watch.Options[T]{
		Backend: at.backend, Noun: kind.noun, Interval: l.options.Poll,
		List: func(ctx context.Context, status cinder.Status, pageSize int, yield func([]T) bool) error {
			return s.list(ctx, cinder.Query{Status: status, PageSize: pageSize}, yield)
		},
		Get:     s.get,
		Observe: kind.observe,
		Waiting: func(more int) { l.options.Metrics.waiting(at.backend, more) },
		Pause:   func(pause time.Duration, woken <-chan struct{}) { l.options.pause(pause, woken) },
	})
	s.inventory = knowledge.NewInventory(knowledge.Entries[T]{
		List:  s.watcher.ListAll,
		Owner: kind.ownerOf,
		Share: kind.share,
	})
	return s
}

func (s *stock[T]) get(ctx context.Context, id string) (object T, err error) {
	err = read(ctx, s.at.session, func(ctx context.Context, client Cinder) (err error) {
		object, err = s.kind.read(ctx, client, id)
		object = s.settled(object)
		return err
	})
	if err == nil {
		s.note(object)
	}
	if cinder.IsKind(err, cinder.KindNotFound) && s.at.unshown.Missing(id) {
		// Cinder has acknowledged it and never shown it, so the answer proves nothing.
		err = s.at.notShown(s.kind.noun, id)
	}
	return object, err
}

// find reads an object, regardless of owner.
func (s *stock[T]) find(ctx context.Context, id string) (object T, found bool, err error) {
	object, err = s.get(ctx, id)
	if cinder.IsKind(err, cinder.KindNotFound) {
		return object, false, nil
	}
	return object, err == nil, err
}

func (s *stock[T]) list(ctx context.Context, query cinder.Query, yield func([]T) bool) error {
	query.Keep = stamps.IsOurKey
	return listForAll(ctx, s.at.session, func(ctx context.Context, client Cinder) error {
		return s.kind.list(ctx, client, query, func(page []T) bool {
			for i := range page {
				page[i] = s.settled(page[i])
				s.note(page[i])
			}
			return yield(page)
		})
	})
}

// all lists the objects of the backend's project, regardless of owner, with all metadata.
func (s *stock[T]) all(ctx context.Context) (all []T, err error) {
	err = listForAll(ctx, s.at.session, func(ctx context.Context, client Cinder) error {
		all = nil // a new login may restart the listing
		return s.kind.list(ctx, client, cinder.Query{PageSize: 1000}, func(page []T) bool {
			for _, object := range page {
				all = append(all, s.settled(object))
			}
			return true
		})
	})
	return all, err
}

func (s *stock[T]) settled(object T) T {
	if s.kind.settled == nil {
		return object
	}
	return s.kind.settled(object)
}

func (s *stock[T]) note(object T) {
	s.at.unshown.Shown(cinder.IDOf(object))
	if s.kind.ownerOf(object) != "" {
		s.shown.Store(true)
	}
}

// created records the result of a create request, and reports whether there may be an
// object although the request failed.
func (s *stock[T]) created(uid, id string, err error) (uncertain bool) {
	var failed *cinder.Error
	switch {
	case err == nil:
		s.at.expect(id, "")
		s.known.Settle(uid, id)
	case errors.As(err, &failed) && !failed.EffectUnknown:
		s.known.Settle(uid, "")
	default:
		// A listing that began during the request may have missed its effect.
		s.known.Doubt(uid)
		return true
	}
	return false
}

// only finds an owner's only object: by the ID that this term knows, or in the term's
// listing. keepOne chooses one of several. The zero object means that there is provably
// none.
func (s *stock[T]) only(ctx context.Context, uid string, owns func(T) bool, keepOne func(found []T) (id string, err error)) (T, error) {
	var none T
	for range maxMoves {
		id, since := s.known.Of(uid)
		if id == "" || !since.IsZero() {
			found, err := s.inventory.Find(ctx, uid, owns, since)
			if err == nil && len(found) > 0 {
				id, err = keepOne(found)
			}
			if err != nil {
				return none, err
			}
			s.known.Settle(uid, id)
		}
		if id == "" {
			return none, nil
		}
		object, err := s.get(ctx, id)
		switch {
		case cinder.IsKind(err, cinder.KindNotFound):
			// Another party removed it. Check whether it was the only one: a duplicate may
			// have been created meanwhile.
			s.forget(uid, id)
			s.known.Doubt(uid)
			continue
		case cinder.IsKind(err, KindNotShown) && s.otherThan(ctx, id, uid, owns):
			continue
		case err != nil:
			return none, err
		case !owns(object):
			return none, s.lost(uid, id)
		}
		return object, nil
	}
	return none, s.at.failure(cinder.KindConflict, "the %ss of %s UID %q keep disappearing; something else is deleting them", s.kind.noun, s.kind.owner, uid)
}

// lost returns the error for an object without its owner's stamp. The next attempt looks
// again: the answer that named this object may have been wrong. The object is not gone
// and may belong to another owner.
func (s *stock[T]) lost(uid, id string) error {
	s.known.ForgetClaim(uid, id)
	s.known.Doubt(uid)
	return s.at.failure(KindNotOurs, "%s %s no longer carries the stamp of this %s", s.kind.noun, id, s.kind.owner)
}

// otherThan looks for an owner's object other than the one that Cinder reported as
// created: the answer may have named the wrong one.
func (s *stock[T]) otherThan(ctx context.Context, id, uid string, owns func(T) bool) bool {
	found, err := s.inventory.Find(ctx, uid, owns, time.Now())
	if err != nil || len(found) != 1 || cinder.IDOf(found[0]) == id {
		return false
	}
	s.known.Settle(uid, cinder.IDOf(found[0]))
	return true
}

// afterConflict returns the object after a change that was rejected, or the rejection. After
// a conflict it rereads the object: an earlier request whose answer was lost is just as good.
func (s *stock[T]) afterConflict(ctx context.Context, before T, rejection error) (T, error) {
	if !cinder.IsKind(rejection, cinder.KindConflict) {
		return before, rejection
	}
	id, status, _ := before.State()
	after, err := s.get(ctx, id)
	if _, now, _ := after.State(); err == nil && now == status {
		err = rejection
	}
	return after, err
}

// awaitEnd waits for the end of a change that Cinder has just accepted. While reads may
// lag, a state from before the change proves nothing.
func (s *stock[T]) awaitEnd(ctx context.Context, id string, status cinder.Status, timeout time.Duration, mayBeBefore func(T) bool) (after T, gone bool, err error) {
	for accepted := time.Now(); ; {
		after, gone, err = s.watcher.Await(ctx, id, status, timeout)
		if gone || err != nil || !mayBeBefore(after) || time.Since(accepted) >= s.at.session.readLag {
			return after, gone, err
		}
	}
}

// awaitGone waits for the end of a deletion that Cinder has accepted, just now or earlier.
func (s *stock[T]) awaitGone(ctx context.Context, id string, now bool) (after T, gone bool, err error) {
	return s.awaitEnd(ctx, id, cinder.StatusDeleting, s.at.timeouts().Delete, func(T) bool { return now })
}

// forget forgets an owner's object that is gone, and all its rivals.
func (s *stock[T]) forget(uid, id string) {
	s.known.ForgetClaim(uid, id)
	s.inventory.Forget(id)
}

// forgetOne forgets an object that is gone, but not the owner's others.
func (s *stock[T]) forgetOne(uid, id string) {
	s.inventory.Forget(id)
	s.known.ForgetVolume(uid, id)
}
