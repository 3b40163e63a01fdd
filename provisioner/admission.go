package provisioner

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/parking"
)

// ShouldProvision filters claims: Provision decides about those that are this program's
// and that nothing else serves. A claim whose StorageClass is missing is denied here,
// because the library would retry it.
func (p *Provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if p.stopping() || !objects.IsServed(objects.ProvisionerOf(claim), p.Name) {
		return false
	}
	turn := p.parkedClaims.loop.Attempt(string(claim.UID))
	class, err := p.Classes.Get(objects.ClassName(claim))
	if err != nil {
		if !p.leftToPopulator(claim) {
			p.denyWithoutClass(turn, claim)
		}
		return false
	}
	if !p.serves(class) {
		// The claim's author wrote the annotation, or the claim is the CSI driver's
		// while nothing is in mode csi: the driver may belong to another installation.
		return false
	}
	defer p.cleanUpIfGone(claim)
	switch {
	case p.denyGivenAway(turn, claim), p.leftToPopulator(claim):
		return false
	case p.isImport(claim):
		p.leaveToImport(claim)
		return false
	case lacksNode(claim, class):
		p.awaitNode(claim.UID)
		return false
	}
	return true
}

// leftToPopulator reports whether a volume populator serves a claim. Nothing is wrong with
// such a claim, and nothing brings it back, since its data source never changes.
func (p *Provisioner) leftToPopulator(claim *corev1.PersistentVolumeClaim) bool {
	if _, refused := admission.DataSourceOf(claim, nil); refused != nil && refused.Reason == policy.AwaitsPopulator {
		p.parkedClaims.leave(claim, *refused)
		return true
	}
	return false
}

// serves reports whether a StorageClass is this program's: it names the program as
// its provisioner, or the CSI driver while the policy uses mode csi.
func (p *Provisioner) serves(class *storagev1.StorageClass) bool {
	return class.Provisioner == p.Name || objects.DriverOf(class) != "" && p.Policy().UsesCSI()
}

// isImport reports whether a claim gets a volume that exists at Cinder: its author asks
// for one, and no new one was begun for it; or the import was begun, perhaps finished,
// and Kubernetes has not bound the claim yet. Whichever of the two paths reserves room
// for the claim first decides, and the other then leaves it alone.
func (p *Provisioner) isImport(claim *corev1.PersistentVolumeClaim) bool {
	if position, counts := p.ledger.PositionOf(claim.UID); counts && position.Imported {
		return true
	}
	return objects.AsksForImport(claim) && !p.mayHaveVolume(claim.UID)
}

// leaveToImport hands a claim over to the import: its author asked for an existing
// volume before a new one was begun.
func (p *Provisioner) leaveToImport(claim *corev1.PersistentVolumeClaim) {
	if position, counts := p.ledger.PositionOf(claim.UID); counts && !position.Imported {
		p.placement.GiveBack(claim.UID)
	}
	p.parkedClaims.Forget(claim.UID)
	if p.Import != nil {
		p.Import(claim)
	}
}

// KeepImportSecret writes the Secret of an imported volume. Until its
// PersistentVolume is seen, the Secret belongs to the claim's attempt.
func (p *Provisioner) KeepImportSecret(ctx context.Context, claim types.UID, pvName, backend string, secret mappers.Secret, fresh bool) error {
	_, err := p.secrets.Keep(ctx, claim, pvName, backend, secret, fresh)
	return err
}

// DropImportSecrets removes the Secrets of an import that left no PersistentVolume.
func (p *Provisioner) DropImportSecrets(ctx context.Context, claim types.UID, pvName, backend string) error {
	shared := p.secrets.UsedBy(claim)
	p.secrets.AttemptOver(claim)
	if err := secrets.DeleteOwn(ctx, p.Client, p.Namespace, pvName); err != nil {
		return err
	}
	p.secrets.AttemptUndone(ctx, backend, shared)
	return nil
}

// RequeueClaim brings back a claim that is not imported after all.
func (p *Provisioner) RequeueClaim(claim *corev1.PersistentVolumeClaim) {
	p.parkedClaims.requeue(claim.UID)
}

// denyWithoutClass denies a claim whose StorageClass is not in the cache. The claim
// comes back when the class is created, or reaches the cache. Nothing is requested for
// it, because whoever may create claims can write one in a loop.
func (p *Provisioner) denyWithoutClass(turn *turn, claim *corev1.PersistentVolumeClaim) {
	name := objects.ClassName(claim)
	message := "the claim names no StorageClass; replace it with a claim that does"
	if name != "" {
		message = fmt.Sprintf("StorageClass %q does not exist; create it, or replace the claim with one that names another", name)
	}
	p.deny(turn, claim, placement.Denial{Reason: "StorageClassNotFound", Message: message})
}

// mayHaveVolume reports whether an attempt began for the claim, or a listing
// showed a volume of it.
func (p *Provisioner) mayHaveVolume(uid types.UID) bool {
	_, begun := p.journal.Beginning(uid)
	position, counts := p.ledger.PositionOf(uid)
	return begun || counts && !position.NothingSeen
}

// choose chooses the backend of a claim. If the claim leaves another backend, it no
// longer needs that backend's Secret.
func (p *Provisioner) choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, d ledger.Decided) (placement.Choice, error) {
	if p.placement.MayLeave(claim, d) {
		p.finish(claim.UID)
		p.placement.GiveBack(claim.UID)
	}
	return p.placement.Choose(ctx, claim, class, d)
}

// backendFor returns the backend that a claim's turn counts against.
func (p *Provisioner) backendFor(uid types.UID, d ledger.Decided) string {
	if position, ok := p.ledger.PositionOf(uid); ok {
		return position.Backend
	}
	return d.Backends[0]
}

// denialOf returns a denial by the policy, or one because of the claim's source or of the
// claim that it is to fill.
func (p *Provisioner) denialOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, decision ledger.Decided) placement.Denial {
	denied := placement.DenialOf(decision.Denial)
	denied.Triggers = append(denied.Triggers, p.sources.TriggersOf(claim, class)...)
	denied.Triggers = append(denied.Triggers, p.askerOf(claim).Triggers()...)
	return denied
}

// askerOf says in whose name the policy decides about a claim.
func (p *Provisioner) askerOf(claim *corev1.PersistentVolumeClaim) copies.Asker {
	return p.sources.AskerOf(p.Policy(), claim, p.namespaceLabels)
}

// decide applies the policy in force.
func (p *Provisioner) decide(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, by copies.Asker) ledger.Decided {
	denial := admission.Refusal(claim, class.Parameters)
	var source *objects.Source
	if denial == nil {
		source, denial = p.sources.Cached(claim, class)
	}
	if denial != nil {
		return ledger.Decided{Decision: policy.Decision{Denial: denial}, Revision: p.Policy().Revision()}
	}
	return p.decideAbout(claim, class, by, source)
}

// decideAbout applies the policy in force to a claim for the content of source, or for
// an empty volume if source is nil.
func (p *Provisioner) decideAbout(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, by copies.Asker, source *objects.Source) ledger.Decided {
	inForce := p.Policy()
	request := objects.RequestOf(claim, class, nil)
	by.AskIn(&request)
	request.Node = p.selectedNode(claim)
	if source != nil {
		request.Source = &source.Decided
	}
	if request.Attributes != nil && p.AttributesClass != nil {
		if class, err := p.AttributesClass(request.Attributes.Name); err == nil {
			request.Attributes = admission.AttributesClassOf(class)
		}
	}
	return p.placement.InTurn(claim.UID, ledger.Decided{Decision: inForce.Decide(request), Revision: inForce.Revision()})
}

// selectedNode returns the node that the scheduler selected for the claim's pod. It
// returns nil while the node is not in the cache. That does no harm, because the
// PersistentVolume's affinity keeps the pod from other nodes.
func (p *Provisioner) selectedNode(claim *corev1.PersistentVolumeClaim) *policy.Node {
	name := admission.SelectedNode(claim)
	if name == "" || p.LabelsOfNode == nil {
		return nil
	}
	labels, ok := p.LabelsOfNode(name)
	if !ok {
		return nil
	}
	return &policy.Node{Name: name, Labels: labels}
}

// namespaceLabels reads the labels from the cache. A namespace that is not there yet
// has no labels; its arrival brings the claim back.
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
		return nil, errNamespaceGone
	case err != nil:
		return nil, fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", name, err)
	}
	return namespace.Labels, nil
}

// askerLabelsNow reads the labels of the asker's namespace from the API server.
func (p *Provisioner) askerLabelsNow(ctx context.Context, by copies.Asker) (map[string]string, error) {
	labels, err := p.namespaceLabelsNow(ctx, by.Namespace)
	if errors.Is(err, errNamespaceGone) && by.IsForAnother() {
		// The populator's claim is in another namespace, so it does not go away.
		err = fmt.Errorf("%w: namespace %s is being deleted", copies.ErrPopulatedChanged, by.Namespace)
	}
	return labels, err
}

// selectsByLabels reports whether the policy selects a tenant's namespaces by
// their labels.
func (p *Provisioner) selectsByLabels(tenant string) bool {
	t, ok := p.Policy().Tenant(tenant)
	return ok && t.NamespaceSelector != nil
}

// deny parks a claim and reports why, once for each reason and again before the event
// expires.
func (p *Provisioner) deny(turn *turn, claim *corev1.PersistentVolumeClaim, denied placement.Denial) {
	if _, begun := p.journal.Beginning(claim.UID); !begun {
		// An earlier decision may have reserved room.
		p.placement.GiveBack(claim.UID)
	}
	if denied.Reason != placement.ReasonBackendUnavailable {
		// The time for which the policy denies a claim does not count as ours.
		p.claimTimes.restart(claim.UID)
	}
	p.placement.Forget(claim.UID)
	p.parkedClaims.loop.Leave(string(claim.UID))
	p.parkedClaims.report(claim, denied.Reason, denied.Message)
	always := []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Namespace, Name: claim.Namespace}, {Kind: parking.Class, Name: objects.ClassName(claim)}}
	if named := admission.AttributesOf(claim); named != nil {
		always = append(always, attributesTrigger(named.Name))
	}
	p.parkedClaims.park(turn, claim, parking.Denied, append(always, denied.Triggers...))
}
