package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
)

// decider applies the policy to claims in the caches. It changes nothing.
type decider struct {
	provisioner     string
	policy          func() *policy.Policy
	sources         *copies.Resolver
	placement       *placement.Placer
	client          kubernetes.Interface
	namespaces      corelisters.NamespaceLister
	classes         storagelisters.StorageClassLister
	labelsOfNode    func(name string) (map[string]string, bool)
	attributesClass func(name string) (*storagev1.VolumeAttributesClass, error)
	logger          *slog.Logger
}

// serves reports whether a StorageClass is this program's: it names the program as
// its provisioner, or the CSI driver while the policy uses mode csi.
func (d *decider) serves(class *storagev1.StorageClass) bool {
	return class.Provisioner == d.provisioner || objects.DriverOf(class) != "" && d.policy().UsesCSI()
}

// denialOf returns the policy's denial, or one caused by the claim's source or by the
// claim that it populates.
func (d *decider) denialOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, decision ledger.Decided) placement.Denial {
	denied := placement.DenialOf(decision.Denial)
	denied.Triggers = append(denied.Triggers, d.sources.TriggersOf(claim, class)...)
	denied.Triggers = append(denied.Triggers, d.askerOf(claim).Triggers()...)
	return denied
}

// askerOf returns who asks for the claim's content, as the policy sees it.
func (d *decider) askerOf(claim *corev1.PersistentVolumeClaim) copies.Asker {
	return d.sources.AskerOf(d.policy(), claim, d.namespaceLabels)
}

// decide applies the policy in force.
func (d *decider) decide(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, by copies.Asker) ledger.Decided {
	denial := admission.Refusal(claim, class.Parameters)
	var source *objects.Source
	if denial == nil {
		source, denial = d.sources.Cached(claim, class)
	}
	if denial != nil {
		return ledger.Decided{Decision: policy.Decision{Denial: denial}, Revision: d.policy().Revision()}
	}
	return d.decideAbout(claim, class, by, source)
}

// decideAbout applies the policy in force to a claim with the content of source; a nil
// source means an empty volume.
func (d *decider) decideAbout(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, by copies.Asker, source *objects.Source) ledger.Decided {
	inForce := d.policy()
	request := objects.RequestOf(claim, class, nil)
	by.AskIn(&request)
	request.Node = d.selectedNode(claim)
	if source != nil {
		request.Source = &source.Decided
	}
	if request.Attributes != nil && d.attributesClass != nil {
		if class, err := d.attributesClass(request.Attributes.Name); err == nil {
			request.Attributes = admission.AttributesClassOf(class)
		}
	}
	return d.placement.InTurn(claim.UID, ledger.Decided{Decision: inForce.Decide(request), Revision: inForce.Revision()})
}

// selectedNode returns the node that the scheduler selected for the claim's pod, or nil
// while the node is not cached. Nil is safe: the PersistentVolume's affinity still keeps
// the pod off other nodes.
func (d *decider) selectedNode(claim *corev1.PersistentVolumeClaim) *policy.Node {
	name := admission.SelectedNode(claim)
	if name == "" || d.labelsOfNode == nil {
		return nil
	}
	labels, ok := d.labelsOfNode(name)
	if !ok {
		return nil
	}
	return &policy.Node{Name: name, Labels: labels}
}

// namespaceLabels reads the labels from the cache. A namespace that is not cached yet has
// no labels; the claim is retried when it appears.
func (d *decider) namespaceLabels(name string) map[string]string {
	namespace, err := d.namespaces.Get(name)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			d.logger.Error("Cannot read a namespace from the cache", "namespace", name, "error", err)
		}
		return nil
	}
	return namespace.Labels
}

// namespaceLabelsNow reads the labels from the API server.
func (d *decider) namespaceLabelsNow(ctx context.Context, name string) (map[string]string, error) {
	namespace, err := d.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
		return nil, errNamespaceGone
	case err != nil:
		return nil, fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", name, err)
	}
	return namespace.Labels, nil
}

// askerLabelsNow reads the labels of the asker's namespace from the API server.
func (d *decider) askerLabelsNow(ctx context.Context, by copies.Asker) (map[string]string, error) {
	labels, err := d.namespaceLabelsNow(ctx, by.Namespace)
	if errors.Is(err, errNamespaceGone) && by.IsForAnother() {
		// The populator's claim is in another namespace, so it survives.
		err = fmt.Errorf("%w: namespace %s is being deleted", copies.ErrPopulatedChanged, by.Namespace)
	}
	return labels, err
}

// selectsByLabels reports whether the policy selects a tenant's namespaces by
// their labels.
func (d *decider) selectsByLabels(tenant string) bool {
	t, ok := d.policy().Tenant(tenant)
	return ok && t.NamespaceSelector != nil
}

// hasOurClass reports whether the claim's StorageClass belongs to this provisioner. A
// claim that waits for a node is annotated with the provisioner's name only after a node
// is selected.
func (d *decider) hasOurClass(claim *corev1.PersistentVolumeClaim) bool {
	class, err := d.classes.Get(objects.ClassName(claim))
	return err == nil && d.serves(class)
}
