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
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// counting records which backends this term has listed and counted, and which claims may
// have volumes that no listing has shown yet.
type counting struct {
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

func newCounting() *counting {
	return &counting{
		done:       map[string]bool{},
		generation: map[string]int{},
		moved:      map[string]time.Time{},
		silent:     map[string]time.Time{},
		goneEarly:  map[types.UID]bool{},
		underWay:   map[string]*tally{},
		wanted:     map[string]bool{},
		wake:       make(chan struct{}, 1),
	}
}

// IsCounted reports whether the ledger has the volumes of a backend.
func (p *Placer) IsCounted(name string) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.done[name]
}

// CountBackend counts a backend's stamped volumes, once per term. It costs no extra
// request: the look-up before creation needs the same listing.
func (p *Placer) CountBackend(ctx context.Context, name string) error {
	c := p.counting
	for {
		c.mu.Lock()
		done, generation := c.done[name], c.generation[name]
		c.listings++
		c.mu.Unlock()
		var err error
		if !done {
			err = p.countShared(ctx, name, generation)
		}
		c.mu.Lock()
		c.listings--
		same := c.generation[name] == generation
		if err == nil && same {
			c.done[name] = true
		}
		if c.listings == 0 {
			// No listing that could still show a removed volume is under way.
			p.Ledger.ForgetGone()
		}
		c.mu.Unlock()
		if err != nil || same {
			return err
		}
	}
}

// countListed counts the volumes in the backend's listing.
func (p *Placer) countListed(ctx context.Context, name string) error {
	volumes, err := p.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err == nil {
		p.countFound(name, all)
	}
	return err
}

// countFound counts the volumes of a listing.
func (p *Placer) countFound(name string, all []cinder.Volume) {
	freed := false
	for _, v := range all {
		stamp := stamps.Of(v)
		if !objects.IsPVNameOf(stamp.PV, stamp.ClaimUID, v.ID) {
			// The stamp contradicts itself, so this program did not write it.
			continue
		}
		volume := ledger.Volume{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: v.SizeGiB, VolumeID: v.ID, Imported: stamp.PV == objects.ImportedPVName(v.ID), Rebound: stamp.ReboundTo != "" && stamp.ReboundTo != stamp.ClaimUID}
		freed = p.Ledger.Found(types.UID(stamp.ClaimUID), volume, name) || freed
	}
	if freed {
		p.roomFreed()
	}
}

// movedAt returns when a backend last changed its endpoint in this term, or the zero time
// if it never did. Volumes seen before may not exist at the new endpoint.
func (p *Placer) movedAt(name string) time.Time {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.moved[name]
}

func (p *Placer) isGeneration(name string, generation int) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.generation[name] == generation
}

// RequestCount queues a backend for counting in the background.
func (p *Placer) RequestCount(name string) {
	c := p.counting
	c.mu.Lock()
	c.wanted[name] = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // the receiver has not handled the last signal yet
	}
}

// countElsewhere counts the other backends where the tenant may have volumes, because its
// quota includes them. For a while, it skips a backend that was slow to answer; only
// claims that could be placed there wait for it.
func (p *Placer) countElsewhere(ctx context.Context, d ledger.Decided) {
	tenant, ok := p.Policy().Tenant(d.Tenant)
	if !ok || !limited(d.Quotas) {
		return
	}
	var others []string
	for _, class := range tenant.Classes {
		for _, name := range class.Backends {
			if !slices.Contains(others, name) && !slices.Contains(d.Backends, name) && !p.IsCounted(name) && p.Health(name) == nil && !p.isSilent(name) {
				others = append(others, name)
			}
		}
	}
	if len(others) == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, otherBackendsTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, name := range others {
		group.Go(func() {
			if p.CountBackend(bounded, name) != nil {
				p.noteSilent(name)
			}
		})
	}
	group.Wait()
}

// limited reports whether a quota depends on the tenant's volumes on other backends.
func limited(scopes []policy.QuotaScope) bool {
	return slices.ContainsFunc(scopes, func(s policy.QuotaScope) bool {
		return s.Kind != policy.BackendScope && (s.Limits.Volumes != nil || s.Limits.Gigabytes != nil)
	})
}

// otherBackendsTimeout is how long a claim waits for backends where it cannot be placed,
// and how long countElsewhere then skips them.
const otherBackendsTimeout = 10 * time.Second

func (p *Placer) noteSilent(name string) {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	p.counting.silent[name] = time.Now()
}

func (p *Placer) isSilent(name string) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	since, ok := p.counting.silent[name]
	return ok && time.Since(since) < otherBackendsTimeout
}

// NoteGone remembers a claim that was deleted before every backend was listed:
// an earlier leader may have created a volume for it on a silent backend.
func (p *Placer) NoteGone(claim *corev1.PersistentVolumeClaim) {
	c := p.counting
	names := p.Backends()
	c.mu.Lock()
	defer c.mu.Unlock()
	unlisted := slices.ContainsFunc(names, func(name string) bool { return !c.done[name] })
	if unlisted && c.mayBeEarlier(claim) {
		c.goneEarly[claim.UID] = true
	}
}

// SawDeleted reports whether NoteGone remembered the claim.
func (p *Placer) SawDeleted(uid types.UID) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.goneEarly[uid]
}

// CreatedInTerm reports whether no earlier leader can have seen the claim.
func (p *Placer) CreatedInTerm(claim *corev1.PersistentVolumeClaim) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return !p.counting.mayBeEarlier(claim)
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
func (p *Placer) countShared(ctx context.Context, name string, generation int) error {
	c := p.counting
	c.mu.Lock()
	t := c.underWay[name]
	if t == nil || t.generation != generation {
		t = &tally{generation: generation, done: make(chan struct{})}
		c.underWay[name] = t
		c.listings++
		go p.tally(name, t)
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
func (p *Placer) tally(name string, t *tally) {
	t.err = p.countListed(p.Term, name)
	c := p.counting
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay[name] == t {
		delete(c.underWay, name)
	}
	if t.err == nil && c.generation[name] == t.generation {
		c.done[name] = true
	}
	c.listings--
	if c.listings == 0 {
		p.Ledger.ForgetGone()
	}
	close(t.done)
}

// Recount counts a backend again after its endpoint has changed.
func (p *Placer) Recount(name string) {
	c := p.counting
	c.mu.Lock()
	delete(c.done, name)
	c.generation[name]++
	c.moved[name] = time.Now()
	c.mu.Unlock()
	p.RequestCount(name)
}

// Wanted signals that TakeWanted has backends to count in the background.
func (p *Placer) Wanted() <-chan struct{} { return p.counting.wake }

// TakeWanted takes the backends to count in the background.
func (p *Placer) TakeWanted() []string {
	c := p.counting
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.Sorted(maps.Keys(c.wanted))
	clear(c.wanted)
	return names
}

// NoteEarlier records which claims existed before the term.
func (p *Placer) NoteEarlier(claims objects.EarlierClaims) {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	p.counting.earlier = &claims
}

// Relist lists a backend again, counts the volumes in the listing, and frees the room of
// those that are gone. It calls exists only after the listing has ended.
func (p *Placer) Relist(ctx context.Context, name string, exists func(claim types.UID) bool) ([]cinder.Volume, error) {
	volumes, err := p.Volumes(name)
	if err != nil {
		return nil, err
	}
	c := p.counting
	c.mu.Lock()
	if c.listings == 0 {
		// This listing cannot show a volume that was gone before it began, unless a late
		// request re-created it.
		p.Ledger.ForgetGone()
	}
	c.listings++
	generation := c.generation[name]
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.listings--; c.listings == 0 {
			p.Ledger.ForgetGone()
		}
	}()
	all, err := volumes.Relist(ctx)
	if err == nil && !p.isGeneration(name, generation) {
		err = fmt.Errorf("backend %s changed its endpoint while it was being listed", name)
	}
	if err != nil {
		return nil, err
	}
	p.countFound(name, all)
	p.forgetVanished(name, all, exists)
	return all, nil
}

// forgetVanished frees the room of volumes without a PersistentVolume that the listing no
// longer shows: an administrator or an audit has removed them.
func (p *Placer) forgetVanished(name string, all []cinder.Volume, exists func(claim types.UID) bool) {
	unrecorded := p.Ledger.UnrecordedOn(name, p.movedAt(name))
	if len(unrecorded) == 0 {
		return
	}
	present := map[types.UID]bool{}
	for _, v := range all {
		present[types.UID(stamps.Of(v).ClaimUID)] = true
	}
	freed := false
	for _, uid := range unrecorded {
		// While the claim exists, an attempt may be re-creating its volume.
		_, begun := p.Unfinished(uid)
		if !present[uid] && !exists(uid) && !begun {
			freed = p.Ledger.ReleaseUnrecorded(uid) || freed
		}
	}
	if freed {
		p.roomFreed()
	}
}
