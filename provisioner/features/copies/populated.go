package copies

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Asker is in whose name the policy decides about a claim: in that of its own namespace
// or, for a claim in a populator's namespace, in that of the claim which it is to fill.
type Asker struct {
	// Namespace and Labels determine the tenant. A populator's claim without one to fill
	// has its own namespace here, which the policy gives nothing.
	Namespace string
	Labels    map[string]string

	isPopulator bool
	// uid is the UID in the name of a populator's claim; populated is the claim that has
	// it, or missing says why there is none to fill.
	uid       types.UID
	populated *corev1.PersistentVolumeClaim
	missing   string
}

// AskerOf says in whose name the policy decides about a claim, as far as the caches show.
// labels returns those of a namespace.
func (r *Resolver) AskerOf(p *policy.Policy, claim *corev1.PersistentVolumeClaim, labels func(namespace string) map[string]string) Asker {
	a := Asker{Namespace: claim.Namespace, isPopulator: p.IsPopulator(claim.Namespace)}
	if a.isPopulator {
		a.populated, a.missing = admission.PopulatedClaim(claim, func(uid string) *corev1.PersistentVolumeClaim {
			a.uid = types.UID(uid)
			return objects.ClaimByUID(r.IndexedClaims, a.uid)
		})
	}
	if a.populated != nil {
		a.Namespace = a.populated.Namespace
	}
	a.Labels = labels(a.Namespace)
	return a
}

// IsForAnother reports whether a claim asks for one in another namespace.
func (a Asker) IsForAnother() bool { return a.populated != nil }

// AskIn puts the asker into a request without labels. If the policy changes, and the
// namespace is no longer a populator's, the labels of the other claim's namespace must not
// be taken for its own.
func (a Asker) AskIn(request *policy.Request) {
	if a.isPopulator {
		request.Populated = admission.PopulatedOf(a.populated, a.Labels, a.missing)
		return
	}
	request.NamespaceLabels = a.Labels
}

// Triggers returns what may unblock a populator's claim that was denied, besides what
// unblocks every claim.
func (a Asker) Triggers() []parking.Trigger {
	if a.uid == "" {
		return nil
	}
	return []parking.Trigger{parking.PopulatedClaim(a.uid), {Kind: parking.Namespace, Name: a.Namespace}}
}

// ErrPopulatedChanged is to be retried, because the caches were only late.
var ErrPopulatedChanged = errors.New("the claim that the populator's claim is to fill has changed since the policy decided")

// Confirm reads the claim that a populator's claim is to fill from the API server. The
// caches may show one that is gone, or that another claim of a populator has filled.
func (r *Resolver) Confirm(ctx context.Context, claim *corev1.PersistentVolumeClaim, a Asker) error {
	if !a.isPopulator {
		return nil
	}
	if a.populated == nil {
		return fmt.Errorf("%w: %s", ErrPopulatedChanged, a.missing)
	}
	live, err := objects.ClaimOf(ctx, r.Client, stamps.Volume{Namespace: a.populated.Namespace, Claim: a.populated.Name, ClaimUID: string(a.uid)})
	if err != nil {
		return err
	}
	if _, missing := admission.PopulatedClaim(claim, func(string) *corev1.PersistentVolumeClaim { return live }); missing != "" {
		return fmt.Errorf("%w: %s", ErrPopulatedChanged, missing)
	}
	return nil
}
