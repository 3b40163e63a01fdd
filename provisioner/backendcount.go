package provisioner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// counting is what a term knows of the backends' volumes: which backends were
// listed, and which claims may have volumes that were not seen yet.
type counting struct {
	mu sync.Mutex
	// done holds the backends whose volumes the ledger knows, generation how
	// often each has changed its endpoint, listings how many are under way.
	done       map[string]bool
	generation map[string]int
	// moved is when a backend's name was last led to another endpoint.
	moved    map[string]time.Time
	listings int
	// silent holds the backends that could not be counted, and since when.
	silent map[string]time.Time
	// earlier holds the claims that an earlier leader may have seen; nil as
	// long as that is not known. Those of them that went while some backend could
	// not be listed are in went.
	earlier *record.EarlierClaims
	went    map[types.UID]bool
	// underWay holds the counts that are under way, by backend.
	underWay map[string]*tally
	// wanted asks for a backend to be counted in the background.
	wanted chan string
}

func newCounting() *counting {
	return &counting{
		done:       map[string]bool{},
		generation: map[string]int{},
		moved:      map[string]time.Time{},
		silent:     map[string]time.Time{},
		went:       map[types.UID]bool{},
		underWay:   map[string]*tally{},
		wanted:     make(chan string, 256),
	}
}

func (p *placement) isCounted(name string) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.done[name]
}

// countBackend counts the stamped volumes of a backend, once in a term. It
// costs no request of its own: looking before creating needs the same listing.
func (p *placement) countBackend(ctx context.Context, name string) error {
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
			// No listing is under way that could still show what is gone.
			p.ForgetGone()
		}
		c.mu.Unlock()
		if err != nil || same {
			return err
		}
	}
}

// countListed counts what the backend's listing shows.
func (p *placement) countListed(ctx context.Context, name string) error {
	volumes, err := p.Backends.Volumes(name)
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
func (p *placement) countFound(name string, all []backends.Volume) {
	for _, v := range all {
		stamp := backends.StampOf(v)
		if stamp.PV != record.PVNameFor(stamp.ClaimUID) {
			// No stamp of ours contradicts itself.
			continue
		}
		volume := ledger.Volume{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: v.SizeGiB}
		if !p.mayUse(stamp.Tenant, name) {
			// Whoever may write to this backend's project can write any stamp. It
			// must not use up the quota of a tenant who has nothing there.
			volume.Tenant = ""
		}
		p.Found(types.UID(stamp.ClaimUID), volume, name)
	}
}

// movedAt is when a backend's name was led to another endpoint in this term, the
// zero time if it never was. What was seen before is not expected to be seen
// there.
func (p *placement) movedAt(name string) time.Time {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.moved[name]
}

func (p *placement) isGeneration(name string, generation int) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.generation[name] == generation
}

// requestCount asks for a backend to be counted in the background. Where too many
// are wanted, their first claims count them.
func (p *placement) requestCount(name string) {
	select {
	case p.counting.wanted <- name:
	default:
	}
}

// countElsewhere counts the other backends where the tenant may have volumes,
// since its quota counts those too. One that does not answer soon is left out
// for a while: only claims that could go there wait for it.
func (p *placement) countElsewhere(ctx context.Context, d ledger.Decided, ask bool) (undecided bool) {
	tenant, ok := p.Policy().Tenant(d.Tenant)
	if !ok || !limited(d.Quotas) {
		return false
	}
	var others []string
	for _, class := range tenant.Classes {
		for _, name := range class.Backends {
			if !slices.Contains(others, name) && !slices.Contains(d.Backends, name) && !p.isCounted(name) && p.health(name) == nil && !p.isSilent(name) {
				others = append(others, name)
			}
		}
	}
	if len(others) == 0 || !ask {
		return len(others) > 0
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var group sync.WaitGroup
	for _, name := range others {
		group.Go(func() {
			if p.countBackend(bounded, name) != nil {
				p.noteSilent(name)
			}
		})
	}
	group.Wait()
	return false
}

// limited says whether what the tenant has on other backends matters.
func limited(scopes []policy.QuotaScope) bool {
	return slices.ContainsFunc(scopes, func(s policy.QuotaScope) bool {
		return s.Kind != policy.BackendScope && (s.Limits.Volumes != nil || s.Limits.Gigabytes != nil)
	})
}

// patience is how long a claim waits for backends that it does not go to, and
// how long they are then left out.
const patience = 10 * time.Second

func (p *placement) noteSilent(name string) {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	p.counting.silent[name] = time.Now()
}

func (p *placement) isSilent(name string) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	since, ok := p.counting.silent[name]
	return ok && time.Since(since) < patience
}

// noteGone remembers a claim that went before every backend was listed: a volume
// that an earlier leader made for it may be on one that is silent.
func (p *placement) noteGone(claim *corev1.PersistentVolumeClaim) {
	c := p.counting
	names := p.Backends.Names()
	c.mu.Lock()
	defer c.mu.Unlock()
	unlisted := slices.ContainsFunc(names, func(name string) bool { return !c.done[name] })
	if unlisted && c.mayBeEarlier(claim) {
		c.went[claim.UID] = true
	}
}

func (p *placement) sawDeleted(uid types.UID) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.went[uid]
}

func (p *placement) createdInTerm(claim *corev1.PersistentVolumeClaim) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return !p.counting.mayBeEarlier(claim)
}

// mayBeEarlier is true for every claim as long as nothing is known. The mutex is
// held.
func (c *counting) mayBeEarlier(claim *corev1.PersistentVolumeClaim) bool {
	return c.earlier == nil || c.earlier.Has(claim)
}

// tally is a count of a backend's volumes that is under way.
type tally struct {
	generation int
	done       chan struct{}
	err        error
}

// countShared counts a backend once for all claims that want it counted at
// that time. Each would else go through a copy of the backend's whole listing:
// the claims that a new leader finds, a thousand at once, took minutes and a
// GiB for what one of them can do for all.
func (p *placement) countShared(ctx context.Context, name string, generation int) error {
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
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.done:
		return t.err
	}
}

// tally counts on behalf of whoever waits, and so for as long as the term lasts.
func (p *placement) tally(name string, t *tally) {
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
		p.ForgetGone()
	}
	close(t.done)
}

// recount forgets what a backend holds, whose name leads to another endpoint now,
// and has it counted again.
func (p *placement) recount(name string) {
	c := p.counting
	c.mu.Lock()
	delete(c.done, name)
	c.generation[name]++
	c.moved[name] = time.Now()
	c.mu.Unlock()
	p.requestCount(name)
}

// wanted tells the backends that are to be counted in the background.
func (p *placement) wanted() <-chan string { return p.counting.wanted }

// noteEarlier tells which claims existed before the term.
func (p *placement) noteEarlier(claims record.EarlierClaims) {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	p.counting.earlier = &claims
}

// relist lists a backend anew, and counts what it shows and what it shows no
// more. It asks for the claims that exist when it has the listing.
func (p *placement) relist(ctx context.Context, name string, existing func() (map[types.UID]*corev1.PersistentVolumeClaim, error)) ([]backends.Volume, error) {
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return nil, err
	}
	c := p.counting
	c.mu.Lock()
	if c.listings == 0 {
		// What went before this listing began cannot be in it, unless it came
		// back by a request that was late.
		p.ForgetGone()
	}
	c.listings++
	generation := c.generation[name]
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.listings--; c.listings == 0 {
			p.ForgetGone()
		}
	}()
	all, err := volumes.Relist(ctx)
	if err == nil && !p.isGeneration(name, generation) {
		err = fmt.Errorf("backend %s was led elsewhere while it was listed", name)
	}
	if err != nil {
		return nil, err
	}
	p.countFound(name, all)
	if claims, err := existing(); err == nil {
		p.forgetVanished(name, all, claims)
	}
	return all, nil
}

// forgetVanished gives back the room of volumes that counted because they were
// found, or recorded once, and that somebody has removed: an administrator, or
// an audit.
func (p *placement) forgetVanished(name string, all []backends.Volume, claims map[types.UID]*corev1.PersistentVolumeClaim) {
	present := map[types.UID]bool{}
	for _, v := range all {
		present[types.UID(backends.StampOf(v).ClaimUID)] = true
	}
	freed := false
	for _, uid := range p.UnrecordedOn(name, p.movedAt(name)) {
		// While a claim exists an attempt may be making its volume anew.
		_, begun := p.journal.beginning(uid)
		if !present[uid] && claims[uid] == nil && !begun {
			freed = p.ReleaseUnrecorded(uid) || freed
		}
	}
	if freed {
		p.roomFreed()
	}
}

// mayBeUnrecorded says that a backend may have volumes that no PersistentVolume
// names yet, and that no attempt of this term made. One that is not in the
// policy any more cannot be asked.
func (p *placement) mayBeUnrecorded(backend string) bool {
	if !slices.Contains(p.Backends.Names(), backend) {
		return false
	}
	return !p.isCounted(backend) || p.HasFound(backend)
}
