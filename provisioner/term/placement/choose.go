package placement

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// Choice is the backend for a claim, or why there is none now.
type Choice struct {
	Backend string
	// PassedOver explains why the rule's earlier backends were not chosen.
	PassedOver []ledger.PassedOver
	// Denial explains why no backend can take the claim now.
	Denial *Denial
}

// Choose reserves room for an admitted claim on the first of its backends that is
// healthy and has room. Once a volume may exist on a backend, the claim stays there,
// because no listing of a single backend would reveal two volumes on two backends.
//
// Before a backend is chosen, it is counted, along with every backend of the rule that an
// earlier leader may have chosen for this claim.
func (p *Placer) Choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, d ledger.Decided) (Choice, error) {
	if position, ok := p.Ledger.PositionOf(claim.UID); ok {
		return p.keep(position), nil
	}
	if waits, err := p.settleEarlier(ctx, claim, d); err != nil || waits.Denial != nil {
		return waits, err
	}
	p.countElsewhere(ctx, d)
	return p.firstWithRoom(ctx, claim.UID, class, d)
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

// keep returns the earlier choice.
func (p *Placer) keep(position ledger.Position) Choice {
	if unhealthy := p.Health(position.Backend); unhealthy != nil {
		return Choice{Denial: p.Unanswered(position.Backend, unhealthy)}
	}
	return Choice{Backend: position.Backend, PassedOver: position.PassedOver}
}

// MayLeave reports whether a claim can leave the backend where its room is reserved: the
// policy or the backend's state calls for it, and provably nothing was created there. The
// caller then forgets the claim's unfinished attempt and releases its room.
func (p *Placer) MayLeave(claim *corev1.PersistentVolumeClaim, d ledger.Decided) bool {
	position, ok := p.Ledger.PositionOf(claim.UID)
	if !ok {
		return false
	}
	full := len(d.Backends) > 1 && p.isFull(position.Backend, d.Volume) != nil
	if !position.NothingSeen || slices.Contains(d.Backends, position.Backend) && p.Health(position.Backend) == nil && !full {
		return false
	}
	stamp, begun := p.Unfinished(claim.UID)
	if !begun {
		return true
	}
	return !p.MayHaveVolume(claim, position.Backend, stamp)
}

// MayHaveVolume reports whether a backend may have a volume of the claim, from this term
// or an earlier one.
func (p *Placer) MayHaveVolume(claim *corev1.PersistentVolumeClaim, backend string, stamp stamps.Volume) bool {
	volumes, err := p.Volumes(backend)
	return err != nil || !volumes.KnowsNothingOf(stamp) || p.mayHaveUnseenVolume(claim, backend)
}

// mayHaveUnseenVolume reports whether a backend may have a volume of the claim that this
// term does not know: an earlier leader may have seen the claim, and the backend has not
// been listed yet.
func (p *Placer) mayHaveUnseenVolume(claim *corev1.PersistentVolumeClaim, backend string) bool {
	return !p.IsCounted(backend) && !p.CreatedInTerm(claim)
}

// settleEarlier waits for every backend of the rule, including suspended ones, that may
// have a volume of the claim: a claim must not leave a volume behind.
func (p *Placer) settleEarlier(ctx context.Context, claim *corev1.PersistentVolumeClaim, d ledger.Decided) (Choice, error) {
	homes := p.RuleBackends(d)
	if len(homes) == 1 {
		return Choice{}, nil
	}
	for _, name := range homes {
		if !p.mayHaveUnseenVolume(claim, name) {
			continue
		}
		unhealthy, err := p.prepare(ctx, name)
		switch {
		case err != nil:
			return Choice{}, err
		case unhealthy != nil:
			return Choice{Denial: p.Unavailable([]ledger.PassedOver{{Backend: name, Why: fmt.Sprintf(
				"cannot determine whether an earlier leader created a volume for this claim: %s", unhealthy)}}, nil)}, nil
		}
	}
	return Choice{}, nil
}

// firstWithRoom tries the backends in the policy's order. It lists a backend only if the
// ones before it cannot take the claim.
func (p *Placer) firstWithRoom(ctx context.Context, uid types.UID, class string, d ledger.Decided) (Choice, error) {
	var passedOver, full []ledger.PassedOver
	var noRoom []string
	var failed error
	for _, name := range d.Backends {
		unhealthy, err := p.prepare(ctx, name)
		failed = cmp.Or(err, failed)
		if why := cmp.Or(err, unhealthy); why != nil {
			passedOver = append(passedOver, ledger.PassedOver{Backend: name, Why: why.Error()})
			continue
		}
		if refusal := p.isFull(name, d.Volume); refusal != nil {
			full = append(full, ledger.PassedOver{Backend: name, Why: refusal.Error()})
			continue
		}
		chosen, hasRoom, err := p.reserveOn(name, uid, class, d, slices.Concat(passedOver, full))
		if err != nil || hasRoom || chosen.Denial != nil {
			return chosen, err
		}
		noRoom = append(noRoom, name)
		passedOver = append(passedOver, chosen.PassedOver...)
	}
	// Cinder's own quota may have room again, so try full backends last.
	for _, over := range full {
		chosen, hasRoom, err := p.reserveOn(over.Backend, uid, class, d, passedOver)
		if err != nil || hasRoom || chosen.Denial != nil {
			return chosen, err
		}
		noRoom = append(noRoom, over.Backend)
	}
	switch {
	case failed != nil:
		return Choice{}, failed
	case len(noRoom) == 0:
		return Choice{Denial: p.Unavailable(passedOver, p.RuleBackends(d))}, nil
	}
	// Reserve on all of them together, so that one message covers them all.
	backend, over, refused, err := p.Ledger.Reserve(uid, class, d.Only(noRoom, nil))
	if refused == nil {
		return Choice{Backend: backend, PassedOver: over}, err
	}
	denied := p.noRoom(refused, d)
	for _, over := range passedOver {
		if !slices.Contains(noRoom, over.Backend) {
			denied.Message += "; " + over.Why
		}
	}
	return Choice{Denial: &denied}, nil
}

// reserveOn reserves room on one backend. If only that backend lacks room, PassedOver
// holds the reason. A denial concerns the tenant or the rule, hence every backend.
func (p *Placer) reserveOn(name string, uid types.UID, class string, d ledger.Decided, before []ledger.PassedOver) (chosen Choice, hasRoom bool, err error) {
	backend, passedOver, refused, err := p.Ledger.Reserve(uid, class, d.Only([]string{name}, before))
	switch {
	case err != nil:
		return Choice{}, false, err
	case refused == nil:
		return Choice{Backend: backend, PassedOver: passedOver}, true, nil
	case refused.IsOfBackends():
		return Choice{PassedOver: []ledger.PassedOver{{Backend: name, Why: refused.Message}}}, false, nil
	}
	denied := p.noRoom(refused, d)
	return Choice{Denial: &denied}, false, nil
}

// HasAnother reports whether another location can be tried at once in the claim's round.
// If the claim counts at a backend, it may have a volume there, so only that backend's
// locations qualify.
func (p *Placer) HasAnother(uid types.UID, d ledger.Decided) bool {
	position, counts := p.Ledger.PositionOf(uid)
	return slices.ContainsFunc(p.Untried(uid, d), func(at policy.Location) bool {
		if counts {
			return at.Backend == position.Backend && p.Health(at.Backend) == nil
		}
		return p.canTakeNow(at.Backend, d)
	})
}

// CouldGoElsewhere reports whether a claim without a position in the ledger has another
// backend that can be tried at once and has room.
func (p *Placer) CouldGoElsewhere(uid types.UID, d ledger.Decided) bool {
	if _, counts := p.Ledger.PositionOf(uid); counts {
		return false
	}
	return slices.ContainsFunc(d.Backends, func(name string) bool { return p.canTakeNow(name, d) })
}

// canTakeNow reports whether a backend can be tried at once and has room.
func (p *Placer) canTakeNow(name string, d ledger.Decided) bool {
	return (p.IsCounted(name) || !p.isSilent(name)) && p.Health(name) == nil && p.isFull(name, d.Volume) == nil &&
		p.Ledger.HasRoom(d.Only([]string{name}, nil))
}

// Health returns nil while a backend answers.
func (p *Placer) Health(name string) error {
	volumes, err := p.Volumes(name)
	if err != nil {
		// An unconfigured backend is reported elsewhere.
		return nil
	}
	return volumes.Health()
}

// prepare makes sure that a backend can be chosen: it must be healthy and counted. It
// lists a backend that this term has not counted.
func (p *Placer) prepare(ctx context.Context, name string) (unhealthy, err error) {
	if unhealthy := p.Health(name); unhealthy != nil {
		return unhealthy, nil
	}
	if p.IsCounted(name) {
		return nil, nil
	}
	if err := p.CountBackend(ctx, name); err != nil {
		p.noteSilent(name)
		return nil, fmt.Errorf("cannot list the volumes that backend %s already has: %w", name, err)
	}
	return nil, nil
}

// RuleBackends returns all backends of the deciding rule, including suspended ones.
func (p *Placer) RuleBackends(d ledger.Decided) []string {
	t, ok := p.Policy().Tenant(d.Tenant)
	if !ok {
		return nil
	}
	for _, class := range t.Classes {
		if class.Path() == d.Rule {
			return class.Backends
		}
	}
	return nil
}

// PassedOverText lists why the rule's earlier backends were not chosen.
func PassedOverText(decision policy.Decision, passedOver []ledger.PassedOver) string {
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
