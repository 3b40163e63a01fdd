// Package knowledge holds what a term knows about the volumes and snapshots at one
// endpoint: the last complete listing, and what the term did and saw since.
package knowledge

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// Entries describes what an Inventory lists.
type Entries[T cinder.Object] struct {
	List func(ctx context.Context, yield func(page []T) bool) error
	// Owner returns the UID in an entry's stamp; empty for other owners' entries.
	Owner func(T) (uid string)
	// Share makes an entry share common strings with others, to save memory: a term keeps
	// the listing.
	Share func(entry T, texts map[string]string) T
}

// Inventory knows which volumes or snapshots of this cluster a backend had at its last
// complete, unfiltered listing, the only answer that can prove absence. One listing
// serves every claim: a leader reads it once per term, and again only after a create
// request lost its answer.
type Inventory[T cinder.Object] struct {
	of Entries[T]

	mu      sync.Mutex
	started time.Time           // of the last complete listing; zero before the first
	entries map[string]*T       // by ID; listings share the unchanged ones
	owned   map[string][]string // the IDs by owner, the eldest first; they may have gone
	loading *loading
}

type loading struct {
	started time.Time
	done    chan struct{}
	err     error
	// waiting counts the callers that wait for it. When the last one leaves, it is
	// canceled.
	waiting int
	cutOff  context.CancelFunc
	// gone holds what disappeared during the listing, although an early page may show it.
	gone map[string]bool
}

// NewInventory returns an inventory that has not listed yet.
func NewInventory[T cinder.Object](of Entries[T]) *Inventory[T] {
	return &Inventory[T]{of: of, entries: map[string]*T{}, owned: map[string][]string{}}
}

// Find returns the entries with an owner's UID that owns confirms, from a listing that
// began after the given time; any listing will do if that is zero.
func (i *Inventory[T]) Find(ctx context.Context, uid string, owns func(T) bool, after time.Time) ([]T, error) {
	if err := i.load(ctx, after); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(i.Listed(uid), func(entry T) bool { return !owns(entry) }), nil
}

// All returns every entry of the cluster in a complete listing that began after the given
// time; any listing will do if that is zero.
func (i *Inventory[T]) All(ctx context.Context, after time.Time) ([]T, error) {
	if err := i.load(ctx, after); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	all := make([]T, 0, len(i.entries))
	for _, entry := range i.entries {
		all = append(all, *entry)
	}
	slices.SortFunc(all, ByAge)
	return all, nil
}

// Listed returns an owner's entries in the last complete listing, except those gone
// since, the eldest first. It never lists.
func (i *Inventory[T]) Listed(uid string) (listed []T) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, id := range i.owned[uid] {
		if entry, has := i.entries[id]; has {
			listed = append(listed, *entry)
		}
	}
	return listed
}

// IsGone reports whether the last complete listing, if there was one, lacks an entry, or
// the entry has gone since.
func (i *Inventory[T]) IsGone(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, has := i.entries[id]
	return !has && !i.started.IsZero()
}

// Started returns when the last complete listing began; zero before the first.
func (i *Inventory[T]) Started() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.started
}

// Owners lists the UIDs that have an entry in the last complete listing.
func (i *Inventory[T]) Owners() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	owners := map[string]bool{}
	for _, entry := range i.entries {
		owners[i.of.Owner(*entry)] = true
	}
	return slices.Collect(maps.Keys(owners))
}

// Forget drops an entry that is gone.
func (i *Inventory[T]) Forget(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.loading != nil {
		i.loading.gone[id] = true
	}
	delete(i.entries, id)
}

// load ensures that a complete listing exists that began after the time.
func (i *Inventory[T]) load(ctx context.Context, after time.Time) error {
	for {
		i.mu.Lock()
		if !i.started.IsZero() && !i.started.Before(after) {
			i.mu.Unlock()
			return nil
		}
		current := i.loading
		if current == nil {
			// The listing serves other callers too, so it must not end with the caller
			// that started it.
			shared, cutOff := context.WithCancel(context.WithoutCancel(ctx))
			current = &loading{started: time.Now(), done: make(chan struct{}), cutOff: cutOff, gone: map[string]bool{}}
			i.loading = current
			go i.run(shared, current)
		}
		current.waiting++
		i.mu.Unlock()
		if err := awaitDone(ctx, current.done); err != nil {
			i.leave(current)
			return err
		}
		if current.err != nil && !current.started.Before(after) {
			return current.err
		}
	}
}

// awaitDone waits for a listing. While its pages wait for turns at the backend, so do its
// callers.
func awaitDone(ctx context.Context, done <-chan struct{}) error {
	defer turns.CallerOf(ctx).Waiting()()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	}
}

// leave ends a caller's wait. A listing without callers would only load the backend, for
// as long as a broken server drags it out.
func (i *Inventory[T]) leave(current *loading) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if current.waiting--; current.waiting > 0 {
		return
	}
	current.cutOff()
	if i.loading == current {
		// The next caller starts another one.
		i.loading = nil
	}
}

func (i *Inventory[T]) run(ctx context.Context, current *loading) {
	entries, texts := map[string]*T{}, map[string]string{}
	err := i.of.List(ctx, func(page []T) bool {
		for _, entry := range page {
			// A listing may restart after a new login; later results are newer.
			id := cinder.IDOf(entry)
			if i.of.Owner(entry) == "" {
				delete(entries, id)
			} else {
				entries[id] = i.shared(id, entry, texts)
			}
		}
		return true
	})
	i.mu.Lock()
	defer i.mu.Unlock()
	current.err = err
	if i.loading == current { // or it was cut off
		i.loading = nil
		if err == nil {
			i.finish(current, entries)
		}
	}
	current.cutOff()
	close(current.done)
}

// shared returns the entry of the last listing if it is the same, so that relisting takes
// no memory for unchanged entries.
func (i *Inventory[T]) shared(id string, entry T, texts map[string]string) *T {
	i.mu.Lock()
	known, has := i.entries[id]
	i.mu.Unlock()
	if has && reflect.DeepEqual(*known, entry) {
		return known
	}
	return new(i.of.Share(entry, texts))
}

// finish replaces the last complete listing.
func (i *Inventory[T]) finish(current *loading, entries map[string]*T) {
	maps.DeleteFunc(entries, func(id string, _ *T) bool { return current.gone[id] })
	i.started, i.entries, i.owned = current.started, entries, map[string][]string{}
	for _, entry := range slices.SortedFunc(maps.Values(entries), func(a, b *T) int { return ByAge(*a, *b) }) {
		id := cinder.IDOf(*entry)
		uid := i.of.Owner(*entry)
		i.owned[uid] = append(i.owned[uid], id)
	}
}

// ByAge orders by creation time and, since Cinder's clock ticks in seconds, by ID, so
// that every leader makes the same choice.
func ByAge[T cinder.Object](a, b T) int {
	idA, _, createdA := a.State()
	idB, _, createdB := b.State()
	if c := createdA.Compare(createdB); c != 0 {
		return c
	}
	return strings.Compare(idA, idB)
}
