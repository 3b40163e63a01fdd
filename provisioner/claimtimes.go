package provisioner

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// claimTimes remembers the moment from which a claim could have been served, if later
// than its creation: when its pod's node was selected, or when the policy or a quota last
// denied it. It knows only what this term saw.
type claimTimes struct {
	*decider
	ledger  *ledger.Ledger
	metrics *Metrics

	mu    sync.Mutex
	since map[types.UID]time.Time
}

func newClaimTimes(d *decider, l *ledger.Ledger, m *Metrics) *claimTimes {
	return &claimTimes{decider: d, ledger: l, metrics: m, since: map[types.UID]time.Time{}}
}

// restart restarts the claim's time now.
func (c *claimTimes) restart(claim types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since[claim] = time.Now()
}

// end forgets a claim and returns the moment from which it could have been served.
func (c *claimTimes) end(claim types.UID) (since time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known = c.since[claim]
	delete(c.since, claim)
	return since, known
}

// Forget drops a claim that is gone.
func (c *claimTimes) Forget(claim types.UID) { c.end(claim) }

// measure observes how long it took until a claim became Bound. A claim that was Bound
// before the term began never gets here. A claim whose node was selected before the term
// is skipped, because that moment is not recorded anywhere.
func (c *claimTimes) measure(before, after *corev1.PersistentVolumeClaim) {
	if after.Status.Phase != corev1.ClaimBound {
		if admission.SelectedNode(before) == "" && admission.SelectedNode(after) != "" && c.hasOurClass(after) {
			c.restart(after.UID)
		}
		return
	}
	since, known := c.end(after.UID)
	if before.Status.Phase == corev1.ClaimBound || after.Spec.VolumeName != objects.PVNameOf(after) {
		return
	}
	position, ok := c.ledger.PositionOf(after.UID)
	if !ok || !known && admission.SelectedNode(after) != "" {
		return
	}
	if !known {
		since = after.CreationTimestamp.Time
	}
	inForce := c.policy()
	tenant, backend := position.Tenant, position.Backend
	if _, known := inForce.Tenant(tenant); !known {
		tenant = otherLabel
	}
	if _, known := inForce.Backend(backend); !known {
		backend = otherLabel
	}
	// The API server's clock may be ahead of ours.
	c.metrics.claimBound.WithLabelValues(tenant, backend).Observe(max(0, time.Since(since).Seconds()))
}
