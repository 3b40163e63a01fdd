package provisioner

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// A volume populator serves claims that ask for content which only it has. It makes a
// claim of its own, fills the volume of that one, and gives the PersistentVolume to the
// claim that asked. The hub leaves the latter alone, and decides about the former on its
// behalf if the populator works in a namespace that the policy names.

// leftToPopulator reports whether a volume populator serves a claim, and keeps it in the
// list of what waits. Nothing brings such a claim back, since its spec never changes.
func (p *Provisioner) leftToPopulator(claim *corev1.PersistentVolumeClaim) bool {
	_, refused := admission.DataSourceOf(claim, nil)
	if refused == nil || refused.Reason != policy.AwaitsPopulator {
		return false
	}
	p.parked.leave(claim, refused)
	return true
}

// leave lists a claim that gets no volume from this program and has nothing wrong with
// it: there is no event, and the lot remembers the message for reports only.
func (p *parked) leave(claim *corev1.PersistentVolumeClaim, why *policy.Denial) {
	p.claims.IsNews(claim.UID, string(why.Reason), why.Message, true)
	p.claims.Park(claim, parking.Left, nil)
}

// asker is in whose name the policy decides about a claim: in that of its own namespace
// or, for a populator's claim, in that of the claim which it is to fill.
type asker struct {
	namespace string
	labels    map[string]string
	// isPopulator means that the claim is a populator's, and populated is the claim that it
	// is to fill, or missing why there is none.
	isPopulator bool
	populated   *corev1.PersistentVolumeClaim
	missing     string
}

// askerOf says in whose name the policy decides about a claim, as far as the caches show.
func (p *Provisioner) askerOf(claim *corev1.PersistentVolumeClaim) asker {
	by := asker{namespace: claim.Namespace, isPopulator: p.Policy().IsPopulator(claim.Namespace)}
	if by.isPopulator {
		by.populated, by.missing = admission.PopulatedClaim(claim, func(uid types.UID) *corev1.PersistentVolumeClaim {
			// Add the claim before reading it, so that no later change is missed.
			p.sources.AwaitPopulated(uid)
			return record.ClaimByUID(p.IndexedClaims, uid)
		})
	}
	if by.populated != nil {
		by.namespace = by.populated.Namespace
	}
	by.labels = p.namespaceLabels(by.namespace)
	return by
}

// askerLabelsNow reads the labels of the asker's namespace from the API server.
func (p *Provisioner) askerLabelsNow(ctx context.Context, by asker) (map[string]string, error) {
	labels, err := p.namespaceLabelsNow(ctx, by.namespace)
	if errors.Is(err, errNamespaceGone) && by.populated != nil {
		// The populator's claim is in another namespace, so it does not go away.
		err = fmt.Errorf("%w: its namespace %s is being deleted", errPopulatedChanged, by.namespace)
	}
	return labels, err
}

// askIn puts the asker into a request that was made without labels. If the policy
// changes and the namespace is no longer a populator's, the labels of the claim to fill
// must not be taken for those of the populator's namespace.
func (a asker) askIn(request *policy.Request) {
	if a.isPopulator {
		request.Populated = admission.PopulatedOf(a.populated, a.labels, a.missing)
		return
	}
	request.NamespaceLabels = a.labels
}

// askerTriggers returns what may unblock a populator's claim besides what unblocks any
// other.
func (p *Provisioner) askerTriggers(claim *corev1.PersistentVolumeClaim) []parking.Trigger {
	uid, ok := policy.PopulatedUID(claim.Name)
	if !ok || !p.Policy().IsPopulator(claim.Namespace) {
		return nil
	}
	triggers := p.sources.PopulatedTriggers(types.UID(uid))
	if target := record.ClaimByUID(p.IndexedClaims, types.UID(uid)); target != nil {
		triggers = append(triggers, parking.Trigger{Kind: parking.Namespace, Name: target.Namespace})
	}
	return triggers
}

// PopulatedChanged brings back the populators' claims that are to fill this one.
func (p *Provisioner) PopulatedChanged(claim *corev1.PersistentVolumeClaim) {
	if admission.PopulatorOf(claim) == "" {
		return
	}
	if triggers := p.sources.PopulatedChanged(claim.UID); len(triggers) > 0 {
		p.wake(triggers...)
	}
}

// errPopulatedChanged is retried, because the caches were only late.
var errPopulatedChanged = errors.New("the claim that the populator's claim is to fill has changed since the policy decided")

// confirmPopulated reads the claim that a populator's claim is to fill from the API
// server. The decision was based on the caches, which may show a claim that is gone, or
// that another populator's claim has filled.
func (a *attempt) confirmPopulated(ctx context.Context) error {
	by := a.p.askerOf(a.claim)
	if !by.isPopulator {
		return nil
	}
	var failure error
	_, missing := admission.PopulatedClaim(a.claim, func(uid types.UID) *corev1.PersistentVolumeClaim {
		if by.populated == nil {
			return nil
		}
		var claim *corev1.PersistentVolumeClaim
		claim, failure = record.ClaimOf(ctx, a.p.Client, stamps.Volume{Namespace: by.namespace, Claim: by.populated.Name, ClaimUID: string(uid)})
		return claim
	})
	switch {
	case failure != nil:
		return failure
	case missing != "":
		return fmt.Errorf("%w: %s", errPopulatedChanged, missing)
	}
	return nil
}
