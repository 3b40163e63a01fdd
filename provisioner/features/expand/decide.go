package expand

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// deniedError ends an expansion that waits for a trigger.
type deniedError struct{ placement.Denial }

func (e *deniedError) Error() string { return e.Reason + ": " + e.Message }

// maxDecisions bounds how often the policy may change during one decision.
const maxDecisions = 5

// admit asks the policy whether the claim may have the size, and reserves room for
// the difference. A denial is a *deniedError.
func (e *expansion) admit(ctx context.Context) error {
	if isHistoric(e.pv) {
		return &deniedError{placement.Denial{Reason: "UnsupportedExpansion", Message: "the historic provisioner made the volume without a stamp, so this program cannot prove that it is the claim's and does not extend it; move the data to a new claim"}}
	}
	if e.origin.CSI && !e.c.Sidecar {
		return &deniedError{placement.Denial{Reason: "UnsupportedExpansion", Message: "volumes in mode csi are expanded by the csi-resizer, which is not installed; the volume keeps its size until you add the csi component of the manifests, or set csi.enabled of the chart"}}
	}
	for range maxDecisions {
		decision, err := e.decide(ctx)
		if err != nil {
			return err
		}
		if decision.Denial != nil {
			denied := placement.DenialOf(decision.Denial)
			denied.Triggers = append(denied.Triggers, parking.Trigger{Kind: parking.Namespace, Name: e.claim.Namespace})
			return &deniedError{denied}
		}
		denied, err := e.c.Room.Grow(ctx, e.c.countedAs(e.claim), decision)
		if errors.Is(err, ledger.ErrPolicyChanged) {
			continue
		}
		if err == nil && denied != nil {
			err = &deniedError{*denied}
		}
		return err
	}
	return fmt.Errorf("the policy changed %d times while the expansion of claim %s was being decided", maxDecisions, e.key)
}

// decide applies the policy in force. If labels make the namespace the tenant's, it
// reads them from the API server, because the cache may be late.
func (e *expansion) decide(ctx context.Context) (ledger.Decided, error) {
	inForce := e.c.Policy()
	var labels map[string]string
	if namespace, err := e.c.Namespaces.Get(e.claim.Namespace); err == nil {
		labels = namespace.Labels
	}
	if t, ok := inForce.Tenant(e.origin.Tenant); ok && t.NamespaceSelector != nil {
		namespace, err := e.c.Client.CoreV1().Namespaces().Get(ctx, e.claim.Namespace, metav1.GetOptions{})
		if err != nil {
			return ledger.Decided{}, fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", e.claim.Namespace, err)
		}
		labels = namespace.Labels
	}
	request := objects.RequestOf(e.claim, nil, labels)
	decision := inForce.DecideExpansion(request, policy.Holding{Tenant: e.origin.Tenant, Backend: e.origin.Backend})
	return ledger.Decided{Decision: decision, Revision: inForce.Revision()}, nil
}

// always returns the triggers of a denial, with the one that every denial has: another
// policy.
func always(denied placement.Denial) []parking.Trigger {
	return append([]parking.Trigger{{Kind: parking.Policy}}, denied.Triggers...)
}

// isUnavailable reports whether a denial is only about a backend that does not answer.
// What was begun then stays.
func (e *deniedError) isUnavailable() bool { return e.Reason == placement.ReasonBackendUnavailable }

// isBegun reports whether Cinder may be extending the volume.
func isBegun(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimControllerResizeInProgress
}
