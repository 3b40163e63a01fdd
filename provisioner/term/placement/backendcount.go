package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// counting lists and counts backends, and records which claims may have volumes that no
// listing has shown yet.
type counting struct {
	Options

	mu sync.Mutex
	// done is the set of backends whose volumes the ledger has counted. generation counts
	// each backend's endpoint changes. listings counts listings under way.
	done       map[string]bool
	generation map[string]int
	// moved is when a backend last changed its endpoint.
	moved    map[string]time.Time
	listings int
	// silent is when each backend that could not be counted was last tried.
	silent map[string]time.Time
	// earlier is the set of claims that an earlier leader may have seen; nil until
	// NoteEarlier. goneEarly is the set of those deleted before every backend was listed.
	earlier   *objects.EarlierClaims
	goneEarly map[types.UID]bool
	// underWay holds the counts under way, by backend.
	underWay map[string]*tally
	// wanted holds the backends to count in the background; wake signals that there are
	// some.
	wanted map[string]bool
	wake   chan struct{}
}

func newCounting(options Options) *counting {
	return &counting{
		Options: options, wake: make(chan struct{}, 1),
		done: map[string]bool{}, generation: map[string]int{}, moved: map[string]time.Time{}, silent: map[string]time.Time{},
		goneEarly: map[types.UID]bool{}, underWay: map[string]*tally{}, wanted: map[string]bool{},
	}
}

// IsCounted reports whether the ledger has the volumes of a backend.
func (c *counting) IsCounted(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done[name]
}

// CountBackend counts a backend's stamped volumes, once per term. It costs no extra
// request: the look-up before creation needs the same listing.
func (c *counting) CountBackend(ctx context.Context, name string) error {
	for {
		c.mu.Lock()
		done, generation := c.done[name], c.generation[name]
		c.listings++
		c.mu.Unlock()
		var err error
		if !done {
			err = c.countShared(ctx, name, generation)
		}
		c.mu.Lock()
		same := c.generation[name] == generation
		if err == nil && same {
			c.done[name] = true
		}
		c.listingEnded()
		c.mu.Unlock()
		if err != nil || same {
			return err
		}
	}
}

// listingEnded lets the ledger forget removed volumes once no listing is under way that
// could still show one. The caller holds the mutex.
func (c *counting) listingEnded() {
	if c.listings--; c.listings == 0 {
		c.Ledger.ForgetGone()
	}
}

// countListed counts the volumes in the backend's listing.
func (c *counting) countListed(name string) error {
	volumes, err := c.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(c.Term)
	if err == nil {
		c.countFound(name, all)
	}
	return err
}

// countFound counts the volumes of a listing.
func (c *counting) countFound(name string, all []cinder.Volume) {
	for _, v := range all {
		stamp := stamps.Of(v)
		if !objects.IsPVNameOf(stamp.PV, stamp.ClaimUID, v.ID) {
			// The stamp contradicts itself, so this program did not write it.
			continue
		}
		volume := ledger.Volume{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: v.SizeGiB, VolumeID: v.ID, Imported: stamp.PV == objects.ImportedPVName(v.ID), Rebound: stamp.ReboundTo != "" && stamp.ReboundTo != stamp.ClaimUID}
		c.Ledger.Found(types.UID(stamp.ClaimUID), volume, name)
	}
}

// movedAt returns when a backend last changed its endpoint in this term, or the zero time
// if it never did. Volumes seen before may not exist at the new endpoint.
func (c *counting) movedAt(name string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moved[name]
}

func (c *counting) isGeneration(name string, generation int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation[name] == generation
}

// RequestCount queues a backend for counting in the background.
func (c *counting) RequestCount(name string) {
	c.mu.Lock()
	c.wanted[name] = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // the receiver has not handled the last one yet
	}
}

func (c *counting) noteSilent(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent[name] = time.Now()
}

func (c *counting) isSilent(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, ok := c.silent[name]
	return ok && time.Since(since) < otherBackendsTimeout
}

// NoteGone remembers a claim that was deleted before every backend was listed:
// an earlier leader may have created a volume for it on a silent backend.
func (c *counting) NoteGone(claim *corev1.PersistentVolumeClaim) {
	names := c.Backends()
	c.mu.Lock()
	defer c.mu.Unlock()
	unlisted := slices.ContainsFunc(names, func(name string) bool { return !c.done[name] })
	if unlisted && c.mayBeEarlier(claim) {
		c.goneEarly[claim.UID] = true
	}
}

// SawDeleted reports whether NoteGone remembered the claim.
func (c *counting) SawDeleted(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goneEarly[uid]
}

// CreatedInTerm reports whether no earlier leader can have seen the claim.
func (c *counting) CreatedInTerm(claim *corev1.PersistentVolumeClaim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.mayBeEarlier(claim)
}

// mayBeEarlier returns true for every claim until NoteEarlier is called. The caller
// holds the mutex.
func (c *counting) mayBeEarlier(claim *corev1.PersistentVolumeClaim) bool {
	return c.earlier == nil || c.earlier.Has(claim)
}

// tally is a running count of a backend's volumes.
type tally struct {
	generation int
	done       chan struct{}
	err        error
}

// countShared counts a backend once for all waiting claims. Otherwise each would go
// through a copy of the backend's whole listing: with 1,000 pending claims at the start
// of a term, that took minutes and 1 GiB of memory.
func (c *counting) countShared(ctx context.Context, name string, generation int) error {
	c.mu.Lock()
	t := c.underWay[name]
	if t == nil || t.generation != generation {
		t = &tally{generation: generation, done: make(chan struct{})}
		c.underWay[name] = t
		c.listings++
		go c.tally(name, t)
	}
	c.mu.Unlock()
	// The listing's pages wait for turns at the backend, and Cinder may be slow.
	if wait := liveness.PauseOf(ctx); wait != nil {
		defer wait()()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.done:
		return t.err
	}
}

// tally counts for all waiting claims, so it ends with the term and not with any of them.
func (c *counting) tally(name string, t *tally) {
	t.err = c.countListed(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay[name] == t {
		delete(c.underWay, name)
	}
	if t.err == nil && c.generation[name] == t.generation {
		c.done[name] = true
	}
	c.listingEnded()
	close(t.done)
}

// Recount counts a backend again after its endpoint has changed.
func (c *counting) Recount(name string) {
	c.mu.Lock()
	delete(c.done, name)
	c.generation[name]++
	c.moved[name] = time.Now()
	c.mu.Unlock()
	c.RequestCount(name)
}

// Wanted signals that TakeWanted has backends to count in the background.
func (c *counting) Wanted() <-chan struct{} { return c.wake }

// TakeWanted takes the backends to count in the background.
func (c *counting) TakeWanted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.Sorted(maps.Keys(c.wanted))
	clear(c.wanted)
	return names
}

// NoteEarlier records which claims existed before the term.
func (c *counting) NoteEarlier(claims objects.EarlierClaims) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.earlier = &claims
}

// Relist lists a backend again, counts the volumes in the listing, and frees the room of
// those that are gone. It calls exists only after the listing has ended.
func (c *counting) Relist(ctx context.Context, name string, exists func(claim types.UID) bool) ([]cinder.Volume, error) {
	volumes, err := c.Volumes(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.listings == 0 {
		// This listing cannot show a volume that was gone before it began, unless a late
		// request re-created it.
		c.Ledger.ForgetGone()
	}
	c.listings++
	generation := c.generation[name]
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.listingEnded()
	}()
	all, err := volumes.Relist(ctx)
	if err == nil && !c.isGeneration(name, generation) {
		err = fmt.Errorf("backend %s changed its endpoint while it was being listed", name)
	}
	if err != nil {
		return nil, err
	}
	c.countFound(name, all)
	c.forgetVanished(name, all, exists)
	return all, nil
}

// forgetVanished frees the room of volumes without a PersistentVolume that the listing no
// longer shows: an administrator or an audit has removed them.
func (c *counting) forgetVanished(name string, all []cinder.Volume, exists func(claim types.UID) bool) {
	unrecorded := c.Ledger.UnrecordedOn(name, c.movedAt(name))
	if len(unrecorded) == 0 {
		return
	}
	present := map[types.UID]bool{}
	for _, v := range all {
		present[types.UID(stamps.Of(v).ClaimUID)] = true
	}
	for _, uid := range unrecorded {
		// While the claim exists, an attempt may be re-creating its volume.
		_, begun := c.Unfinished(uid)
		if !present[uid] && !exists(uid) && !begun {
			c.Ledger.ReleaseUnrecorded(uid)
		}
	}
}
