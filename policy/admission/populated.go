package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// PopulatedClaim returns the claim on whose behalf a populator's claim asks, or why there
// is none. byUID returns nil if no claim has the UID.
//
// Only the name of the populator's claim connects the two. So it counts only for a claim
// that requests exactly this and does not have it yet.
func PopulatedClaim(populators *corev1.PersistentVolumeClaim, byUID func(uid string) *corev1.PersistentVolumeClaim) (target *corev1.PersistentVolumeClaim, missing string) {
	uid, ok := policy.PopulatedUID(populators.Name)
	if !ok {
		return nil, fmt.Sprintf("the name of claim %s does not end in the UID of another", populators.Name)
	}
	found := byUID(uid)
	if found == nil {
		return nil, fmt.Sprintf("no claim has the UID %s", uid)
	}
	name := fmt.Sprintf("claim %s/%s with the UID %s", found.Namespace, found.Name, uid)
	switch {
	case found.DeletionTimestamp != nil:
		return nil, name + " is being deleted"
	case found.Spec.VolumeName != "":
		return nil, fmt.Sprintf("%s has PersistentVolume %s already", name, found.Spec.VolumeName)
	case PopulatorOf(found) == "":
		return nil, name + " does not ask for the content of an object that populators serve (spec.dataSourceRef)"
	}
	return found, ""
}

// PopulatedOf describes to the policy what PopulatedClaim returned.
func PopulatedOf(target *corev1.PersistentVolumeClaim, namespaceLabels map[string]string, missing string) *policy.Populated {
	if target == nil {
		return &policy.Populated{Missing: missing}
	}
	return &policy.Populated{Namespace: target.Namespace, NamespaceLabels: namespaceLabels, Claim: target.Name}
}
