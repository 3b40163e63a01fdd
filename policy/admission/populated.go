package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// PopulatedClaim returns the claim on whose behalf a claim in a populator's namespace
// asks, or why there is none. Both are nil for a claim of any other namespace. byUID
// returns nil if no claim has the UID.
//
// The name of the populator's claim is all that connects the two, and whoever may create
// claims in that namespace chooses it. So it counts only for a claim that wants just
// this, and that has not got it yet.
func PopulatedClaim(p *policy.Policy, claim *corev1.PersistentVolumeClaim, byUID func(types.UID) *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, *policy.Denial) {
	if !p.IsPopulator(claim.Namespace) {
		return nil, nil
	}
	deny := func(format string, arguments ...any) (*corev1.PersistentVolumeClaim, *policy.Denial) {
		return nil, p.NoPopulatedClaim(claim.Namespace, fmt.Sprintf(format, arguments...))
	}
	uid, ok := policy.PopulatedUID(claim.Name)
	if !ok {
		return deny("the name of claim %s does not end in the UID of another", claim.Name)
	}
	target := byUID(types.UID(uid))
	if target == nil {
		return deny("no claim has the UID %s", uid)
	}
	name := target.Namespace + "/" + target.Name
	switch {
	case target.DeletionTimestamp != nil:
		return deny("claim %s with the UID %s is being deleted", name, uid)
	case target.Spec.VolumeName != "":
		return deny("claim %s with the UID %s has PersistentVolume %s already", name, uid, target.Spec.VolumeName)
	case PopulatorOf(target) == "":
		return deny("claim %s with the UID %s does not ask for the content of an object that populators serve (spec.dataSourceRef)", name, uid)
	}
	return target, nil
}

// PopulatedOf describes the claim on whose behalf another one asks to the policy; nil
// if there is none.
func PopulatedOf(target *corev1.PersistentVolumeClaim, namespaceLabels map[string]string) *policy.Populated {
	if target == nil {
		return nil
	}
	return &policy.Populated{Namespace: target.Namespace, NamespaceLabels: namespaceLabels, Claim: target.Name}
}
