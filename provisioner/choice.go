package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// choice is the backend that a claim goes to, or why it goes to none now.
type choice struct {
	backend string
	// passedOver is why earlier backends of the rule were not chosen.
	passedOver []PassedOver
	// denial says that there is no backend for the claim at present.
	denial *denial
	// undecided says that a backend must be listed first, which takes a worker.
	undecided bool
}

// PassedOver is a backend of the rule that was not chosen.
type PassedOver struct {
	Backend string
	// Why is a sentence.
	Why string
}

// choose reserves room for a granted claim on the first of its backends that is
// healthy and has room, and keeps it where it is once anything may exist there:
// two volumes on two backends is the one mistake that no later look at a single
// backend would find.
//
// What a backend holds is counted before it is chosen, and so is every backend
// that an earlier leader may have chosen for this claim. With ask, a backend
// that was not counted in this term is listed; without, the choice stays
// undecided.
func (p *Provisioner) choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, d decided, ask bool) (choice, error) {
	if held, ok := p.ledger.Holds(claim.UID); ok {
		if !p.mayLeave(claim.UID, held, d.Decision) {
			return p.keep(held), nil
		}
		p.finish(claim.UID)
		p.ledger.ReleaseReservation(claim.UID)
	}
	var candidates []string
	var passedOver, full []PassedOver
	var failed error
	for _, name := range d.Backends {
		unhealthy, undecided, err := p.prepare(ctx, name, ask)
		// Going elsewhere must not leave a volume behind.
		stays := len(d.Backends) > 1 && p.mayHold(claim.UID, name)
		switch {
		case undecided:
			return choice{undecided: true}, nil
		case err != nil && stays:
			return choice{}, err
		case err != nil:
			failed = err
			passedOver = append(passedOver, PassedOver{Backend: name, Why: err.Error()})
		case unhealthy != nil && stays:
			return choice{denial: unavailable([]PassedOver{{name, fmt.Sprintf(
				"cannot tell whether this claim has a volume already, made before this replica led: %s", unhealthy)}})}, nil
		case unhealthy != nil:
			passedOver = append(passedOver, PassedOver{Backend: name, Why: unhealthy.Error()})
		default:
			if refusal := p.isFull(name); refusal != nil {
				full = append(full, PassedOver{Backend: name, Why: refusal.Error()})
				continue
			}
			candidates = append(candidates, name)
		}
	}
	if undecided := p.countElsewhere(ctx, d, ask); undecided {
		return choice{undecided: true}, nil
	}
	if len(candidates) == 0 {
		// Cinder's own quota may have room again by now: better a try than
		// nothing.
		for _, over := range full {
			candidates = append(candidates, over.Backend)
		}
		full = nil
	}
	switch {
	case len(candidates) == 0 && failed != nil:
		return choice{}, failed
	case len(candidates) == 0:
		return choice{denial: unavailable(passedOver)}, nil
	}
	d = d.only(candidates, append(passedOver, full...))
	backend, passedOver, denied, err := p.ledger.Reserve(claim.UID, class, d)
	if err != nil {
		return choice{}, err
	}
	if denied != nil {
		turned := denialOf(denied)
		for _, over := range d.passedOver {
			turned.message += "; " + over.Why
		}
		return choice{denial: &turned}, nil
	}
	return choice{backend: backend, passedOver: passedOver}, nil
}

// prepare sees to it that a backend can be chosen: it is healthy, and what it
// holds is counted.
func (p *Provisioner) prepare(ctx context.Context, name string, ask bool) (unhealthy error, undecided bool, err error) {
	if unhealthy := p.health(name); unhealthy != nil {
		return unhealthy, false, nil
	}
	if p.isCounted(name) {
		return nil, false, nil
	}
	if !ask {
		return nil, true, nil
	}
	if err := p.countBackend(ctx, name); err != nil {
		return nil, false, fmt.Errorf("cannot tell what backend %s holds already: %w", name, err)
	}
	return nil, false, nil
}

// countElsewhere counts the other backends where the tenant may have volumes,
// since its quota counts those too. One that does not answer soon is left out
// for a while: only claims that could go there wait for it.
func (p *Provisioner) countElsewhere(ctx context.Context, d decided, ask bool) (undecided bool) {
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent[name] = time.Now()
}

func (p *Provisioner) isSilent(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, ok := p.silent[name]
	return ok && time.Since(since) < patience
}

// keep is the choice that was made before.
func (p *Provisioner) keep(held holds) choice {
	if unhealthy := p.health(held.backend); unhealthy != nil {
		return choice{denial: unavailable([]PassedOver{{held.backend, unhealthy.Error()}})}
	}
	return choice{backend: held.backend, passedOver: held.passedOver}
}

// mayLeave says whether a claim can go elsewhere than where its room is
// reserved: the policy or the backend's health speaks for it, and provably
// nothing was made there.
func (p *Provisioner) mayLeave(uid types.UID, held holds, d policy.Decision) bool {
	full := len(d.Backends) > 1 && p.isFull(held.backend) != nil
	if !held.nothingSeen || slices.Contains(d.Backends, held.backend) && p.health(held.backend) == nil && !full {
		return false
	}
	begun, ok := p.beginningOf(uid)
	if !ok {
		return true
	}
	volumes, err := p.Backends.Volumes(held.backend)
	return err == nil && volumes.Untouched(begun.stamp) && !p.mayHold(uid, held.backend)
}

// mayHold says whether a backend may have a volume of the claim that this term
// does not know: an earlier leader saw the claim, and what it left there was not
// listed yet.
func (p *Provisioner) mayHold(uid types.UID, backend string) bool {
	return !p.isCounted(backend) && !p.bornInTerm(uid)
}

// countBackend counts the stamped volumes of a backend, once in a term. It
// costs no request of its own: looking before creating needs the same listing.
func (p *Provisioner) countBackend(ctx context.Context, name string) error {
	if p.isCounted(name) {
		return nil
	}
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		stamp := backends.StampOf(v)
		holding := Holding{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: v.SizeGiB}
		if !p.mayUse(stamp.Tenant, name) {
			// Whoever may write to this backend's project can write any stamp. It
			// must not use up the quota of a tenant who has nothing there.
			holding.Tenant = ""
		}
		p.ledger.Found(types.UID(stamp.ClaimUID), holding, name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted[name] = true
	return nil
}

// ruleNames says whether the rule that decided names the backend, suspended or
// not.
func (p *Provisioner) ruleNames(d decided, backend string) bool {
	t, ok := p.Policy().Tenant(d.Tenant)
	return ok && slices.ContainsFunc(t.Classes, func(c policy.Class) bool { return c.Path() == d.Rule && slices.Contains(c.Backends, backend) })
}

// mayUse says whether any rule of the tenant names the backend.
func (p *Provisioner) mayUse(tenant, backend string) bool {
	t, ok := p.Policy().Tenant(tenant)
	return ok && slices.ContainsFunc(t.Classes, func(c policy.Class) bool { return slices.Contains(c.Backends, backend) })
}

func (p *Provisioner) isCounted(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counted[name]
}

// Recount forgets what a backend holds, because its name leads to another
// endpoint now.
func (p *Provisioner) Recount(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.counted, name)
}

// CountBackends counts every backend of the policy as the term begins, so that
// volumes are found also where no rule sends their claims any more, and takes
// over what an earlier leader left. It ends when each was counted or with the
// context.
func (p *Provisioner) CountBackends(ctx context.Context) {
	var group sync.WaitGroup
	for _, name := range p.Backends.Names() {
		group.Go(func() { p.countUntilDone(ctx, name) })
	}
	group.Wait()
}

func (p *Provisioner) countUntilDone(ctx context.Context, name string) {
	const most = 15 * time.Second
	for pause := time.Second; ; pause = min(2*pause, most) {
		if p.health(name) == nil && p.countBackend(ctx, name) == nil && p.takeOverLeftovers(ctx, name) == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// NoteEarlier tells which claims existed when the term began. Any other was
// made later, and no earlier leader can have made a volume for it. Until this
// is called, every claim counts as an earlier one.
func (p *Provisioner) NoteEarlier(claims map[types.UID]bool) {
	p.mu.Lock()
	p.earlier = claims
	p.mu.Unlock()
	p.reconsider(func(d denial) bool { return d.reason == reasonBackendUnavailable })
}

func (p *Provisioner) bornInTerm(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.earlier != nil && !p.earlier[uid]
}

// fullFor is how long a backend counts as full after Cinder's own quota refused
// a volume there. Claims that could go elsewhere do so meanwhile.
const fullFor = time.Minute

// couldGoElsewhere says whether a rule has another backend to try.
func (p *Provisioner) couldGoElsewhere(d decided) bool {
	return slices.ContainsFunc(d.Backends, func(name string) bool { return p.isFull(name) == nil && p.health(name) == nil })
}

// noteFull remembers that Cinder's own quota refused a volume.
func (p *Provisioner) noteFull(name string, refusal error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full[name] = fullness{until: time.Now().Add(fullFor), refusal: refusal}
}

// fullness is a backend's refusal to take more.
type fullness struct {
	until   time.Time
	refusal error
}

func (p *Provisioner) isFull(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	full, ok := p.full[name]
	if !ok {
		return nil
	}
	if time.Now().After(full.until) {
		delete(p.full, name)
		return nil
	}
	return full.refusal
}

// passedOverText says why earlier backends of the rule were not chosen.
func passedOverText(decision policy.Decision, passedOver []PassedOver) string {
	var reasons []string
	for _, step := range decision.Trace {
		if strings.HasPrefix(step.Path, "backends[") && !step.Matched {
			reasons = append(reasons, step.Name+": "+step.Detail)
		}
	}
	for _, over := range passedOver {
		reasons = append(reasons, over.Why)
	}
	if len(reasons) == 0 {
		return ""
	}
	return "; passed over: " + strings.Join(reasons, ", ")
}
