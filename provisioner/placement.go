package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// placement decides where volumes go, and counts where they are. It calls
// nothing else in the hub while it holds a mutex, and signals freed room through
// a channel. Looking up a backend may reconfigure it, which may call recount.
type placement struct {
	ledger *ledger.Ledger
	// Policy, Backends and Term are those of Options.
	Policy   func() *policy.Policy
	Backends Backends
	Term     context.Context
	journal  *journal
	counting *counting
	// freed is signaled while freed room has not been offered to claims yet.
	freed chan struct{}

	mu sync.Mutex
	// full is where Cinder's own quotas have no room. expired lists the backends
	// whose entry in full has expired since the last takeFreed.
	full    map[fullAt]fullness
	expired []string
}

func newPlacement(options Options, journal *journal) *placement {
	return &placement{
		ledger: ledger.New(options.Policy), Policy: options.Policy, Backends: options.Backends, Term: options.Term,
		journal: journal, counting: newCounting(), freed: make(chan struct{}, 1), full: map[fullAt]fullness{},
	}
}

// choice is the backend that a claim goes to, or why it cannot go to any now.
type choice struct {
	backend string
	// passedOver is why earlier backends of the rule were not chosen.
	passedOver []ledger.PassedOver
	// denial is why no backend can take the claim now.
	denial *denial
	// undecided means that a backend must be listed first, which takes a worker.
	undecided bool
}

// choose reserves room for an admitted claim on the first of its backends that
// is healthy and has room. Once a volume may exist there, the claim stays:
// listing a single backend would never reveal two volumes on two backends.
//
// A backend is counted before it is chosen, and so is every backend of the rule
// that an earlier leader may have chosen for this claim. With mayList, choose lists a
// backend that was not counted in this term; without it, the choice stays
// undecided.
func (p *placement) choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, d ledger.Decided, mayList bool) (choice, error) {
	if position, ok := p.ledger.PositionOf(claim.UID); ok {
		return p.keep(position), nil
	}
	if waits, err := p.settleEarlier(ctx, claim, d, mayList); err != nil || waits.undecided || waits.denial != nil {
		return waits, err
	}
	if undecided := p.countElsewhere(ctx, d, mayList); undecided {
		return choice{undecided: true}, nil
	}
	return p.firstWithRoom(ctx, claim.UID, class, d, mayList)
}

// leave frees the room that a claim has reserved, if the claim can go to another
// backend. It forgets the unfinished attempt, which provably created nothing.
func (p *placement) leave(claim *corev1.PersistentVolumeClaim, d ledger.Decided) (left bool) {
	position, ok := p.ledger.PositionOf(claim.UID)
	if !ok || !p.mayLeave(claim, position, d) {
		return false
	}
	p.journal.finish(claim.UID)
	p.giveBack(claim.UID)
	return true
}

// keep returns the choice that was made before.
func (p *placement) keep(position ledger.Position) choice {
	if unhealthy := p.health(position.Backend); unhealthy != nil {
		return choice{denial: p.unavailable([]ledger.PassedOver{{Backend: position.Backend, Why: unhealthy.Error()}}, nil)}
	}
	return choice{backend: position.Backend, passedOver: position.PassedOver}
}

// mayLeave reports whether a claim can leave the backend where its room is
// reserved: the policy or the backend's state calls for it, and provably nothing
// was created there.
func (p *placement) mayLeave(claim *corev1.PersistentVolumeClaim, position ledger.Position, d ledger.Decided) bool {
	full := len(d.Backends) > 1 && p.isFull(position.Backend, d.Volume) != nil
	if !position.NothingSeen || slices.Contains(d.Backends, position.Backend) && p.health(position.Backend) == nil && !full {
		return false
	}
	begun, ok := p.journal.beginning(claim.UID)
	if !ok {
		return true
	}
	volumes, err := p.Backends.Volumes(position.Backend)
	return err == nil && volumes.Untouched(begun.stamp) && !p.mayHaveUnseenVolume(claim, position.Backend)
}

// mayHaveUnseenVolume reports whether a backend may have a volume of the claim
// that this term does not know: an earlier leader may have seen the claim, and
// the backend was not listed yet.
func (p *placement) mayHaveUnseenVolume(claim *corev1.PersistentVolumeClaim, backend string) bool {
	return !p.isCounted(backend) && !p.createdInTerm(claim)
}

// settleEarlier waits for every backend of the rule that may have a volume of
// the claim, including suspended ones: a claim must not leave a volume behind.
func (p *placement) settleEarlier(ctx context.Context, claim *corev1.PersistentVolumeClaim, d ledger.Decided, mayList bool) (choice, error) {
	homes := p.ruleBackends(d)
	if len(homes) == 1 {
		return choice{}, nil
	}
	for _, name := range homes {
		if !p.mayHaveUnseenVolume(claim, name) {
			continue
		}
		unhealthy, undecided, err := p.prepare(ctx, name, mayList)
		switch {
		case err != nil:
			return choice{}, err
		case undecided:
			return choice{undecided: true}, nil
		case unhealthy != nil:
			return choice{denial: p.unavailable([]ledger.PassedOver{{Backend: name, Why: fmt.Sprintf(
				"cannot determine whether an earlier leader created a volume for this claim: %s", unhealthy)}}, nil)}, nil
		}
	}
	return choice{}, nil
}

// firstWithRoom tries the backends in the policy's order. It lists a backend
// only if those before it cannot take the claim.
func (p *placement) firstWithRoom(ctx context.Context, uid types.UID, class string, d ledger.Decided, mayList bool) (choice, error) {
	var passedOver, full []ledger.PassedOver
	var noRoom []string
	var failed error
	for _, name := range d.Backends {
		unhealthy, undecided, err := p.prepare(ctx, name, mayList)
		switch {
		case undecided:
			return choice{undecided: true}, nil
		case err != nil:
			failed = err
			passedOver = append(passedOver, ledger.PassedOver{Backend: name, Why: err.Error()})
			continue
		case unhealthy != nil:
			passedOver = append(passedOver, ledger.PassedOver{Backend: name, Why: unhealthy.Error()})
			continue
		}
		if refusal := p.isFull(name, d.Volume); refusal != nil {
			full = append(full, ledger.PassedOver{Backend: name, Why: refusal.Error()})
			continue
		}
		chosen, hasRoom, err := p.reserveOn(name, uid, class, d, slices.Concat(passedOver, full))
		if err != nil || hasRoom || chosen.denial != nil {
			return chosen, err
		}
		noRoom = append(noRoom, name)
		passedOver = append(passedOver, chosen.passedOver...)
	}
	// Cinder's own quota may have room again, so try the full backends last.
	for _, over := range full {
		chosen, hasRoom, err := p.reserveOn(over.Backend, uid, class, d, passedOver)
		if err != nil || hasRoom || chosen.denial != nil {
			return chosen, err
		}
		noRoom = append(noRoom, over.Backend)
	}
	switch {
	case failed != nil:
		return choice{}, failed
	case len(noRoom) == 0:
		return choice{denial: p.unavailable(passedOver, p.ruleBackends(d))}, nil
	}
	// Reserve on all of them together, for one message about all of them.
	backend, over, refused, err := p.ledger.Reserve(uid, class, d.Only(noRoom, nil))
	if refused == nil {
		return choice{backend: backend, passedOver: over}, err
	}
	denied := p.noRoom(refused, d)
	for _, over := range passedOver {
		if !slices.Contains(noRoom, over.Backend) {
			denied.message += "; " + over.Why
		}
	}
	return choice{denial: &denied}, nil
}

// reserveOn reserves room on one backend. If that backend has no room,
// passedOver has the reason; a denial concerns the tenant or the rule, and so
// every backend.
func (p *placement) reserveOn(name string, uid types.UID, class string, d ledger.Decided, before []ledger.PassedOver) (chosen choice, hasRoom bool, err error) {
	backend, passedOver, refused, err := p.ledger.Reserve(uid, class, d.Only([]string{name}, before))
	switch {
	case err != nil:
		return choice{}, false, err
	case refused == nil:
		return choice{backend: backend, passedOver: passedOver}, true, nil
	case refused.IsOfBackends():
		return choice{passedOver: []ledger.PassedOver{{Backend: name, Why: refused.Message}}}, false, nil
	}
	denied := p.noRoom(refused, d)
	return choice{denial: &denied}, false, nil
}

// noRoom is the denial of a claim that exceeds a quota. Freed room in that quota
// triggers another check, and so does a backend of its rule that answers again.
func (p *placement) noRoom(refused *ledger.Refusal, d ledger.Decided) denial {
	denied := denialOf(refused.Denial)
	denied.triggers = triggersOfBackends(p.ruleBackends(d))
	for _, s := range refused.Scopes {
		denied.triggers = append(denied.triggers, roomOf(s))
	}
	return denied
}

// health is nil while a backend answers.
func (p *placement) health(name string) error {
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		// The backend is not configured, which is reported elsewhere.
		return nil
	}
	return volumes.Health()
}

// reasonBackendUnavailable is the event's reason when a claim or a deletion
// waits for a backend that does not answer.
const reasonBackendUnavailable = "BackendUnavailable"

// unavailable is the denial of a claim that no backend can take now. The claim
// comes back when one of the backends that were passed over answers, or one of
// the others.
func (p *placement) unavailable(passedOver []ledger.PassedOver, others []string) *denial {
	var why []string
	triggers := append(triggersOfBackends(others), parking.Trigger{Kind: parking.Earlier})
	for _, over := range passedOver {
		why = append(why, over.Why)
		triggers = append(triggers, parking.Trigger{Kind: parking.Backend, Name: over.Backend})
	}
	return &denial{reason: reasonBackendUnavailable, message: strings.Join(why, "; "), triggers: triggers}
}

// prepare makes sure that a backend can be chosen: that it is healthy and its
// volumes are counted.
func (p *placement) prepare(ctx context.Context, name string, mayList bool) (unhealthy error, undecided bool, err error) {
	if unhealthy := p.health(name); unhealthy != nil {
		return unhealthy, false, nil
	}
	if p.isCounted(name) {
		return nil, false, nil
	}
	if !mayList {
		return nil, true, nil
	}
	if err := p.countBackend(ctx, name); err != nil {
		p.noteSilent(name)
		return nil, false, fmt.Errorf("cannot list the volumes that backend %s already has: %w", name, err)
	}
	return nil, false, nil
}

// ruleBackends are all backends of the rule that decided, including suspended
// ones.
func (p *placement) ruleBackends(d ledger.Decided) []string {
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

// mayUse reports whether any rule of the tenant names the backend.
func (p *placement) mayUse(tenant, backend string) bool {
	t, ok := p.Policy().Tenant(tenant)
	return ok && slices.ContainsFunc(t.Classes, func(c policy.Class) bool { return slices.Contains(c.Backends, backend) })
}

// passedOverText lists why earlier backends of the rule were not chosen.
func passedOverText(decision policy.Decision, passedOver []ledger.PassedOver) string {
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

// release frees the room of a claim's volume and offers it to denied claims.
func (p *placement) release(uid types.UID) {
	if p.ledger.Release(uid) {
		p.roomFreed()
	}
}

// giveBack frees room that was reserved for a volume that was never created.
func (p *placement) giveBack(uid types.UID) {
	if p.ledger.ReleaseReservation(uid) {
		p.roomFreed()
	}
}

// releaseUnrecorded frees the room of a claim that provably has no volume.
func (p *placement) releaseUnrecorded(uid types.UID) {
	if p.ledger.ReleaseUnrecorded(uid) {
		p.roomFreed()
	}
}

// roomFreed signals that the ledger has freed room.
func (p *placement) roomFreed() {
	select {
	case p.freed <- struct{}{}:
	default: // the signal is already set
	}
}

// takeFreed returns the quotas in which room was freed since the last time.
func (p *placement) takeFreed() []ledger.Scope {
	freed := p.ledger.TakeFreed()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, backend := range p.expired {
		freed = append(freed, ledger.Scope{Kind: policy.BackendScope, Name: backend})
	}
	p.expired = nil
	return freed
}
