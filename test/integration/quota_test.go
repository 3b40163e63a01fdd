package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestQuotaHoldsWhileClaimsComeAndGoAndTheLeaderChanges looks at Cinder all the
// time: the tenant never has more volumes than it may, and every claim that
// there is room for is bound in the end.
//
//tier:matrix
func TestQuotaHoldsWhileClaimsComeAndGoAndTheLeaderChanges(t *testing.T) {
	t.Parallel()
	const limit, claims = 5, 12
	w := newWorld(t, "quota", cindersim.Options{CreateDelay: 300 * time.Millisecond, DeleteDelay: 100 * time.Millisecond})
	w.policy = strings.Replace(w.policy, "    metadata: {costcenter", fmt.Sprintf("    quota: {volumes: %d}\n    metadata: {costcenter", limit), 1)
	replicas := w.startThree(shortLease...)
	var leader *harness.Replica
	most := make(chan int)
	stop := make(chan struct{})
	go func() {
		seen := 0
		for {
			select {
			case <-stop:
				most <- seen
				return
			case <-time.After(5 * time.Millisecond):
				seen = max(seen, len(w.sim.Volumes()))
			}
		}
	}()
	for i := range claims {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	w.boundOf(limit)
	pending := w.pending()
	_, err := suite.WaitEvent(w.ctx, "quota-a", pending[0], "QuotaExceeded", "tenant tenant-a would use 6 of 5 volumes (tenants[0].quota.volumes)")
	w.must(err)
	for _, line := range []string{
		`standalone_cinder_quota{name="tenant-a",resource="volumes",scope="tenant",type="hard"} 5`,
		`standalone_cinder_quota{name="tenant-a",resource="volumes",scope="tenant",type="used"} 5`,
		`standalone_cinder_quota{name="gold",resource="gigabytes",scope="backend",type="used"} 5`,
		`standalone_cinder_pending_claims{reason="QuotaExceeded",state="denied"} 7`,
	} {
		leader = w.leaderMetric(replicas, line)
	}
	for _, replica := range replicas {
		if _, body, err := replica.Get(w.ctx, "/metrics"); err != nil || replica != leader && strings.Contains(body, "\nstandalone_cinder_quota{") {
			t.Errorf("a follower knows quotas (error %v)", err)
		}
	}

	// The next leader must count what is there before it decides anything.
	leader.Kill()
	for len(w.pending()) > 0 {
		w.deleteOneBound()
		w.boundOf(min(limit, len(w.claims())))
	}
	close(stop)
	if seen := <-most; seen != limit {
		t.Errorf("Cinder had %d volumes at a time, the tenant may have %d", seen, limit)
	}
	w.must(suite.DeleteClaims(w.ctx, "quota-a"))
	w.noResidue()
}

func (w *world) claims() []corev1.PersistentVolumeClaim {
	w.Helper()
	list, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-a").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	return list.Items
}

func (w *world) pending() []string {
	w.Helper()
	var names []string
	for _, claim := range w.claims() {
		if claim.Status.Phase == corev1.ClaimPending {
			names = append(names, claim.Name)
		}
	}
	return names
}

// boundOf waits until that many claims are bound.
func (w *world) boundOf(want int) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if bound := len(w.claims()) - len(w.pending()); bound != want {
			return fmt.Sprintf("%d claims are bound, want %d", bound, want), nil
		}
		return "", nil
	}))
}

func (w *world) deleteOneBound() {
	w.Helper()
	for _, claim := range w.claims() {
		if claim.Status.Phase == corev1.ClaimBound && claim.DeletionTimestamp == nil {
			before := len(w.claims())
			w.must(suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.ctx, claim.Name, metav1.DeleteOptions{}))
			w.must(harness.Eventually(w.ctx, func() (string, error) {
				if len(w.claims()) == before {
					return "the claim is still there", nil
				}
				return "", nil
			}))
			return
		}
	}
	w.Fatal("no claim is bound")
}
