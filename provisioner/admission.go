package provisioner

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// denial is what is said about a claim that is turned away before Cinder is
// asked for anything.
type denial struct {
	reason  string
	message string
	// helps are what may help beside another policy, other labels of the
	// namespace or another StorageClass.
	helps []parking.Help
}

// ShouldProvision is the admission of claims. A claim that is turned away gets
// an event with a stable reason and leaves the library's queue, as does one
// whose turn has not come; they are brought back by what could help them (see
// wakeups.go), not by retries.
func (p *Provisioner) ShouldProvision(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if p.stopping() {
		return false
	}
	if record.ProvisionerOf(claim) != p.Name {
		return false
	}
	since := p.parked.now()
	class, err := p.Classes.Get(record.ClassName(claim))
	if err != nil {
		p.denyWithoutClass(ctx, claim, since)
		return false
	}
	if class.Provisioner != p.Name {
		// The annotation is the author's own.
		return false
	}
	defer p.cleanUpIfGone(claim)
	decision, turned := p.judge(ctx, claim, class)
	switch {
	case turned == nil:
		p.parked.granted(claim.UID)
		return p.takeTurn(claim, decision)
	case decision.Denial != nil && p.mayHaveVolume(claim.UID):
		// Provision undoes what was made when the claim was still granted.
		return true
	}
	p.deny(claim, *turned, since)
	return false
}

// denyWithoutClass turns a claim away whose StorageClass the cache does not have.
// It comes back when the class is made, or arrives.
func (p *Provisioner) denyWithoutClass(ctx context.Context, claim *corev1.PersistentVolumeClaim, since parking.Moment) {
	name := record.ClassName(claim)
	if _, err := p.Client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{}); err == nil {
		p.parked.parkClaim(claim, parking.Denied, []parking.Help{{Kind: parking.Class, Name: name}}, since)
		return
	}
	message := "the claim names no StorageClass; replace it by one that does"
	if name != "" {
		message = fmt.Sprintf("StorageClass %q does not exist; create it, or replace the claim by one that names another", name)
	}
	p.deny(claim, denial{reason: "StorageClassNotFound", message: message}, since)
}

// mayHaveVolume says whether something was begun for the claim, or found.
func (p *Provisioner) mayHaveVolume(uid types.UID) bool {
	_, begun := p.journal.beginning(uid)
	position, counts := p.placement.PositionOf(uid)
	return begun || counts && !position.NothingSeen
}

// judge says why a claim gets nothing, if so; else room is reserved for it,
// unless a backend must be listed first: that takes a turn, and is left to
// Provision.
func (p *Provisioner) judge(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (ledger.Decided, *denial) {
	if unsupported := record.Unsupported(claim); unsupported != nil {
		turned := denialOf(unsupported)
		return ledger.Decided{}, &turned
	}
	decision := p.decide(claim, class, p.namespaceLabels(claim.Namespace))
	if decision.Denial != nil {
		turned := denialOf(decision.Denial)
		return decision, &turned
	}
	// What cannot be told now is Provision's to report: it retries.
	chosen, err := p.choose(ctx, claim, class.Name, decision, false)
	if err == nil && chosen.denial != nil {
		return decision, chosen.denial
	}
	return decision, nil
}

// choose asks for the backend that a claim goes to. One that leaves another needs
// no Secret of that any more.
func (p *Provisioner) choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, d ledger.Decided, ask bool) (choice, error) {
	if p.placement.leave(claim, d) {
		p.secrets.AttemptOver(claim.UID)
	}
	return p.placement.choose(ctx, claim, class, d, ask)
}

// takeTurn asks for a worker for the claim. One that has its PersistentVolume
// needs none: the library finds that out and stops.
func (p *Provisioner) takeTurn(claim *corev1.PersistentVolumeClaim, d ledger.Decided) bool {
	if _, err := p.PersistentVolumes.Get(record.PVNameOf(claim)); err == nil {
		return true
	}
	return p.turnOrPark(claim, d, p.claimTurns.Take)
}

// beginTurn begins the work on a claim, or parks it.
func (p *Provisioner) beginTurn(claim *corev1.PersistentVolumeClaim, d ledger.Decided) bool {
	return p.turnOrPark(claim, d, p.claimTurns.Begin)
}

// turnOrPark remembers a claim that does not get its turn, until it is invited. It
// is remembered first: the invitation may come at once.
func (p *Provisioner) turnOrPark(claim *corev1.PersistentVolumeClaim, d ledger.Decided, turn func(claim types.UID, tenant, backend string) bool) bool {
	p.parked.awaitTurn(claim)
	defer func() { p.Metrics.waitingClaims(p.claimTurns.Waiting()) }()
	if !turn(claim.UID, d.Tenant, p.backendFor(claim.UID, d)) {
		return false
	}
	p.parked.hasTurn(claim.UID)
	return true
}

// backendFor is the backend that a claim's work will keep busy.
func (p *Provisioner) backendFor(uid types.UID, d ledger.Decided) string {
	if position, ok := p.placement.PositionOf(uid); ok {
		return position.Backend
	}
	return d.Backends[0]
}

func denialOf(d *policy.Denial) denial {
	return denial{reason: string(d.Reason), message: d.Message}
}

// decide asks the policy.
func (p *Provisioner) decide(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, labels map[string]string) ledger.Decided {
	inForce := p.Policy()
	return ledger.Decided{Decision: inForce.Decide(record.RequestOf(claim, class, labels)), Revision: inForce.Revision()}
}

// namespaceLabels reads the labels from the cache. A namespace that has not
// arrived there yet has no labels; its arrival reconsiders the claim.
func (p *Provisioner) namespaceLabels(name string) map[string]string {
	namespace, err := p.Namespaces.Get(name)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			p.Logger.Error("Cannot read a namespace from the cache", "namespace", name, "error", err)
		}
		return nil
	}
	return namespace.Labels
}

// namespaceLabelsNow reads the labels from the API server.
func (p *Provisioner) namespaceLabelsNow(ctx context.Context, name string) (map[string]string, error) {
	namespace, err := p.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
		return nil, errNothingToDo
	case err != nil:
		return nil, fmt.Errorf("cannot read the labels of namespace %s, which decide about its tenant: %w", name, err)
	}
	return namespace.Labels, nil
}

// selectsByLabels says whether a tenant has namespaces by their labels.
func (p *Provisioner) selectsByLabels(tenant string) bool {
	t, ok := p.Policy().Tenant(tenant)
	return ok && t.NamespaceSelector != nil
}

// deny parks a claim and tells its author, once for each reason and again before
// the event expires. since is from before the decision.
func (p *Provisioner) deny(claim *corev1.PersistentVolumeClaim, turned denial, since parking.Moment) {
	if _, begun := p.journal.beginning(claim.UID); !begun {
		// Room that was reserved under an earlier decision.
		p.placement.giveBack(claim.UID)
	}
	p.claimTurns.Leave(claim.UID)
	p.parked.reportDenial(claim, turned.reason, turned.message)
	always := []parking.Help{{Kind: parking.Policy}, {Kind: parking.Namespace, Name: claim.Namespace}, {Kind: parking.Class, Name: record.ClassName(claim)}}
	p.parked.parkClaim(claim, parking.Denied, append(always, turned.helps...), since)
}
