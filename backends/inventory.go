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

// inventory knows which volumes of this cluster a backend had at its last
// complete listing without a filter, the only answer that can prove absence.
// One listing serves every claim: a leader reads it once in its term, and again
// only after a create request whose answer was lost.
type inventory struct {
	cluster string
	list    func(ctx context.Context, yield func(page []cinder.Volume) bool) error

	mu      sync.Mutex
	started time.Time // of the last complete listing; zero before the first
	volumes map[string][]cinder.Volume
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

func newInventory(cluster string, list func(context.Context, func([]cinder.Volume) bool) error) *inventory {
	return &inventory{cluster: cluster, list: list, volumes: map[string][]cinder.Volume{}}
}

// find returns the volumes stamped for the claim, from a listing that began
// after the given time; if that is zero, any listing will do.
func (i *inventory) find(ctx context.Context, stamp Stamp, after time.Time) ([]cinder.Volume, error) {
	if err := i.load(ctx, after); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var found []cinder.Volume
	for _, v := range i.volumes[stamp.ClaimUID] {
		if stamp.Owns(v) {
			found = append(found, v)
		}
	}
	return found, nil
}

// all returns every volume of the cluster in the last complete listing, and
// lists first if there was none.
func (i *inventory) all(ctx context.Context) ([]cinder.Volume, error) {
	return i.allAfter(ctx, time.Time{})
}

// allAfter returns every volume of the cluster in a listing that began after
// the given time.
func (i *inventory) allAfter(ctx context.Context, after time.Time) ([]cinder.Volume, error) {
	if err := i.load(ctx, after); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []cinder.Volume
	for _, volumes := range i.volumes {
		all = append(all, volumes...)
	}
	slices.SortFunc(all, elder)
	return all, nil
}

// knows reports whether the last complete listing, if there was one, has a
// volume of the claim.
func (i *inventory) knows(uid string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.volumes[uid]) > 0
}

// claims lists the UIDs of the claims that have a volume in the last complete
// listing.
func (i *inventory) claims() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Keys(i.volumes))
}

// forget drops a volume that is gone.
func (i *inventory) forget(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for uid, volumes := range i.volumes {
		kept := slices.DeleteFunc(volumes, func(v cinder.Volume) bool { return v.ID == id })
		if len(kept) == 0 {
			delete(i.volumes, uid)
		} else {
			i.volumes[uid] = kept
		}
	}
}

// load ensures that a complete listing exists that began after the time.
func (i *inventory) load(ctx context.Context, after time.Time) error {
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
func (i *inventory) leave(current *loading) {
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

func (i *inventory) run(ctx context.Context, current *loading) {
	byClaim := map[string][]cinder.Volume{}
	texts := map[string]string{}
	err := i.list(ctx, func(page []cinder.Volume) bool {
		for _, v := range page {
			stamp := StampOf(v)
			if stamp.Cluster != i.cluster || stamp.ClaimUID == "" {
				continue
			}
			v.Metadata = shareTexts(v.Metadata, texts)
			// A listing may restart after a new login.
			known := byClaim[stamp.ClaimUID]
			if at := slices.IndexFunc(known, func(k cinder.Volume) bool { return k.ID == v.ID }); at >= 0 {
				known[at] = v
			} else {
				byClaim[stamp.ClaimUID] = append(known, v)
			}
		}
		return true
	})
	i.mu.Lock()
	defer i.mu.Unlock()
	if err == nil {
		i.started, i.volumes = current.started, byClaim
		for _, volumes := range byClaim {
			slices.SortFunc(volumes, elder)
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
// keys, and the values that do not differ between claims. Each was decoded
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
		case stampClaimUID, stampClaim, stampPV, stampRequested:
		default:
			value = share(value)
		}
		shared[share(key)] = value
	}
	return shared
}

// elder orders volumes by age and, since Cinder's clock ticks in seconds, by
// ID, so that every leader makes the same choice.
func elder(a, b cinder.Volume) int {
	if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}
