package backends

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// inventory knows which volumes, or which snapshots, of this cluster a backend
// had at its last complete listing without a filter, the only answer that can
// prove absence. One listing serves every claim: a leader reads it once in its
// term, and again only after a create request whose answer was lost.
type inventory[T any] struct {
	list func(ctx context.Context, yield func(page []T) bool) error
	// owner is the UID that an entry is stamped with; empty for entries of others.
	owner func(T) (uid string)
	// born is what entries are ordered by.
	born func(T) (id string, created time.Time)
	// share makes an entry share its common texts with others; see shareTexts.
	share func(entry T, texts map[string]string) T

	mu      sync.Mutex
	started time.Time // of the last complete listing; zero before the first
	entries map[string][]T
	loading *loading
}

type loading struct {
	started time.Time
	done    chan struct{}
	err     error
	// waiting is how many callers wait for it. When the last one leaves, it is
	// cut off.
	waiting int
	cutOff  context.CancelFunc
}

// newInventory is the inventory of a cluster's volumes.
func newInventory(cluster string, list func(context.Context, func([]cinder.Volume) bool) error) *inventory[cinder.Volume] {
	return &inventory[cinder.Volume]{
		list: list,
		owner: func(v cinder.Volume) string {
			if v.Metadata[stampCluster] != cluster {
				return ""
			}
			return v.Metadata[stampClaimUID]
		},
		born: func(v cinder.Volume) (string, time.Time) { return v.ID, v.CreatedAt },
		share: func(v cinder.Volume, texts map[string]string) cinder.Volume {
			v.Metadata = shareTexts(v.Metadata, texts)
			return v
		},
		entries: map[string][]cinder.Volume{},
	}
}

// newSnapshotInventory is the inventory of a cluster's snapshots.
func newSnapshotInventory(cluster string, list func(context.Context, func([]cinder.Snapshot) bool) error) *inventory[cinder.Snapshot] {
	return &inventory[cinder.Snapshot]{
		list: list,
		owner: func(s cinder.Snapshot) string {
			if s.Metadata[stampCluster] != cluster {
				return ""
			}
			return s.Metadata[stampSnapshotUID]
		},
		born: func(s cinder.Snapshot) (string, time.Time) { return s.ID, s.CreatedAt },
		share: func(s cinder.Snapshot, texts map[string]string) cinder.Snapshot {
			s.Metadata = shareTexts(s.Metadata, texts)
			return s
		},
		entries: map[string][]cinder.Snapshot{},
	}
}

// find returns the entries with an owner's UID that owns confirms, from a
// listing that began after the given time; if that is zero, any listing will do.
func (i *inventory[T]) find(ctx context.Context, uid string, owns func(T) bool, after time.Time) ([]T, error) {
	if err := i.load(ctx, after); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var found []T
	for _, entry := range i.entries[uid] {
		if owns(entry) {
			found = append(found, entry)
		}
	}
	return found, nil
}

// all returns every entry of the cluster in the last complete listing, and
// lists first if there was none.
func (i *inventory[T]) all(ctx context.Context) ([]T, error) {
	return i.allAfter(ctx, time.Time{})
}

// allAfter returns every entry of the cluster in a listing that began after
// the given time.
func (i *inventory[T]) allAfter(ctx context.Context, after time.Time) ([]T, error) {
	if err := i.load(ctx, after); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []T
	for _, entries := range i.entries {
		all = append(all, entries...)
	}
	slices.SortFunc(all, i.elder)
	return all, nil
}

// knows reports whether the last complete listing, if there was one, has an
// entry with the UID.
func (i *inventory[T]) knows(uid string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.entries[uid]) > 0
}

// owners lists the UIDs that have an entry in the last complete listing.
func (i *inventory[T]) owners() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Keys(i.entries))
}

// forget drops an entry that is gone.
func (i *inventory[T]) forget(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for uid, entries := range i.entries {
		kept := slices.DeleteFunc(entries, func(entry T) bool { return i.idOf(entry) == id })
		if len(kept) == 0 {
			delete(i.entries, uid)
		} else {
			i.entries[uid] = kept
		}
	}
}

// load ensures that a complete listing exists that began after the time.
func (i *inventory[T]) load(ctx context.Context, after time.Time) error {
	for {
		i.mu.Lock()
		if !i.started.IsZero() && !i.started.Before(after) {
			i.mu.Unlock()
			return nil
		}
		current := i.loading
		if current == nil {
			// The listing serves other callers too, so it must not end with the
			// caller that happened to start it.
			shared, cutOff := context.WithCancel(context.WithoutCancel(ctx))
			current = &loading{started: time.Now(), done: make(chan struct{}), cutOff: cutOff}
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

// awaitDone waits for a listing. Its pages wait for their turns at the backend, and
// so do its callers.
func awaitDone(ctx context.Context, done <-chan struct{}) error {
	defer cinder.CallerOf(ctx).Waiting()()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	}
}

// leave ends a caller's wait. A listing without callers would only keep the
// backend busy, for as long as a broken server makes it last.
func (i *inventory[T]) leave(current *loading) {
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

func (i *inventory[T]) run(ctx context.Context, current *loading) {
	byOwner := map[string][]T{}
	texts := map[string]string{}
	err := i.list(ctx, func(page []T) bool {
		for _, entry := range page {
			uid := i.owner(entry)
			if uid == "" {
				continue
			}
			entry = i.share(entry, texts)
			// A listing may restart after a new login.
			known := byOwner[uid]
			if at := slices.IndexFunc(known, func(k T) bool { return i.idOf(k) == i.idOf(entry) }); at >= 0 {
				known[at] = entry
			} else {
				byOwner[uid] = append(known, entry)
			}
		}
		return true
	})
	i.mu.Lock()
	defer i.mu.Unlock()
	if err == nil {
		i.started, i.entries = current.started, byOwner
		for _, entries := range byOwner {
			slices.SortFunc(entries, i.elder)
		}
	}
	current.err = err
	if i.loading == current {
		i.loading = nil
	}
	current.cutOff()
	close(current.done)
}

// shareTexts copies metadata so that all volumes share common strings: the
// keys, and the values that do not differ between claims or snapshots. Each was decoded
// separately, and a listing of 20,000 volumes is kept for a leader's term.
func shareTexts(metadata, texts map[string]string) map[string]string {
	share := func(text string) string {
		if known, ok := texts[text]; ok {
			return known
		}
		texts[text] = text
		return text
	}
	shared := make(map[string]string, len(metadata))
	for key, value := range metadata {
		switch key {
		case stampClaimUID, stampClaim, stampPV, stampRequested, stampSnapshotUID, stampSnapshot, stampSnapshotContent:
		default:
			value = share(value)
		}
		shared[share(key)] = value
	}
	return shared
}

func (i *inventory[T]) idOf(entry T) string {
	id, _ := i.born(entry)
	return id
}

func (i *inventory[T]) elder(a, b T) int {
	idA, createdA := i.born(a)
	idB, createdB := i.born(b)
	return byAge(idA, createdA, idB, createdB)
}

// elder orders volumes by age.
func elder(a, b cinder.Volume) int { return byAge(a.ID, a.CreatedAt, b.ID, b.CreatedAt) }

// byAge orders by time of creation and, since Cinder's clock ticks in seconds,
// by ID, so that every leader makes the same choice.
func byAge(idA string, createdA time.Time, idB string, createdB time.Time) int {
	if c := createdA.Compare(createdB); c != 0 {
		return c
	}
	return strings.Compare(idA, idB)
}
