package provisioner

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
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

func (p *Provisioner) isCounted(name string) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.done[name]
}

// countBackend counts the stamped volumes of a backend, once in a term. It
// costs no request of its own: looking before creating needs the same listing.
func (p *Provisioner) countBackend(ctx context.Context, name string) error {
	c := p.counting
	for {
		c.mu.Lock()
		done, generation := c.done[name], c.generation[name]
		c.listings++
		c.mu.Unlock()
		var err error
		if !done {
			err = p.countTogether(ctx, name, generation)
		}
		c.mu.Lock()
		c.listings--
		same := c.generation[name] == generation
		if err == nil && same {
			c.done[name] = true
		}
		if c.listings == 0 {
			// No listing is under way that could still show what is gone.
			p.ledger.ForgetGone()
		}
		c.mu.Unlock()
		if err != nil || same {
			return err
		}
	}
}

// countListed counts what the backend's listing shows.
func (p *Provisioner) countListed(ctx context.Context, name string) error {
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
func (p *Provisioner) countFound(name string, all []backends.Volume) {
	for _, v := range all {
		stamp := backends.StampOf(v)
		if stamp.PV != record.PVNameFor(stamp.ClaimUID) {
			// No stamp of ours contradicts itself.
			continue
		}
		holding := ledger.Holding{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: v.SizeGiB}
		if !p.mayUse(stamp.Tenant, name) {
			// Whoever may write to this backend's project can write any stamp. It
			// must not use up the quota of a tenant who has nothing there.
			holding.Tenant = ""
		}
		p.ledger.Found(types.UID(stamp.ClaimUID), holding, name)
	}
}

// examineListed looks for what nobody needs in the term's listing of a backend.
func (p *Provisioner) examineListed(ctx context.Context, name string) error {
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return err
	}
	return p.examine(name, all)
}

// Recount forgets what a backend holds, because its name leads to another
// endpoint now, has it counted again, and brings back what failed at the one
// before. Changed credentials may have brought it back too early: only the next
// login shows where they lead.
func (p *Provisioner) Recount(name string) {
	c := p.counting
	c.mu.Lock()
	delete(c.done, name)
	c.generation[name]++
	c.moved[name] = time.Now()
	c.mu.Unlock()
	p.wantCounted(name)
	p.help(parking.Help{Kind: parking.Backend, Name: name})
}

// movedAt is when a backend's name was led to another endpoint in this term, the
// zero time if it never was. What was seen before is not expected to be seen
// there.
func (p *Provisioner) movedAt(name string) time.Time {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.moved[name]
}

func (p *Provisioner) isGeneration(name string, generation int) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.generation[name] == generation
}

// wantCounted asks for a backend to be counted in the background. Where too many
// are wanted, their first claims count them.
func (p *Provisioner) wantCounted(name string) {
	select {
	case p.counting.wanted <- name:
	default:
	}
}

// CountBackends counts every backend as the term begins, and those that a
// reload brings, so that volumes are found also where no rule sends their claims
// any more, and takes over what an earlier leader left. It ends with the
// context.
func (p *Provisioner) CountBackends(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, name := range p.Backends.Names() {
		p.wantCounted(name)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-p.counting.wanted:
			group.Go(func() { p.countUntilDone(ctx, name) })
		}
	}
}

// countUntilDone counts one backend, whenever it answers.
func (p *Provisioner) countUntilDone(ctx context.Context, name string) {
	const most = 15 * time.Second
	for pause := time.Second; ; pause = min(2*pause, most) {
		if p.health(name) == nil {
			err := p.countBackend(ctx, name)
			if err == nil {
				err = p.examineListed(ctx, name)
			}
			if err == nil {
				return
			}
			p.Logger.Warn("A backend cannot be counted yet", "backend", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// countElsewhere counts the other backends where the tenant may have volumes,
// since its quota counts those too. One that does not answer soon is left out
// for a while: only claims that could go there wait for it.
func (p *Provisioner) countElsewhere(ctx context.Context, d ledger.Decided, ask bool) (undecided bool) {
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

func (p *Provisioner) noteSilent(name string) {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	p.counting.silent[name] = time.Now()
}

func (p *Provisioner) isSilent(name string) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	since, ok := p.counting.silent[name]
	return ok && time.Since(since) < patience
}

// NoteEarlier tells which claims existed before the term. No earlier leader can
// have made a volume for any other. Until this is called, every claim counts as
// an earlier one.
func (p *Provisioner) NoteEarlier(claims record.EarlierClaims) {
	p.counting.mu.Lock()
	p.counting.earlier = &claims
	p.counting.mu.Unlock()
	p.help(parking.Help{Kind: parking.Earlier})
}

// noteGone remembers a claim that went before every backend was listed: a volume
// that an earlier leader made for it may be on one that is silent.
func (p *Provisioner) noteGone(claim *corev1.PersistentVolumeClaim) {
	c := p.counting
	names := p.Backends.Names()
	c.mu.Lock()
	defer c.mu.Unlock()
	unlisted := slices.ContainsFunc(names, func(name string) bool { return !c.done[name] })
	if unlisted && c.isEarlier(claim) {
		c.went[claim.UID] = true
	}
}

func (p *Provisioner) sawGo(uid types.UID) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return p.counting.went[uid]
}

func (p *Provisioner) bornInTerm(claim *corev1.PersistentVolumeClaim) bool {
	p.counting.mu.Lock()
	defer p.counting.mu.Unlock()
	return !p.counting.isEarlier(claim)
}

// isEarlier is true for every claim as long as nothing is known. The mutex is
// held.
func (c *counting) isEarlier(claim *corev1.PersistentVolumeClaim) bool {
	return c.earlier == nil || c.earlier.Has(claim)
}
