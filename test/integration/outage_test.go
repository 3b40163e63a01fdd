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

// fail makes one backend of the world answer 503 to everything.
func (w *world) fail(endpoint cindersim.Endpoint) *cindersim.Injection {
	return w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Match: func(r cindersim.Request) bool { return r.Endpoint == endpoint }})
}

// TestOutageIsWaitedOutWithoutRetries parks claims and deletions while their
// backend does not answer, and takes them up again when it does.
//
//tier:outage
func TestOutageIsWaitedOutWithoutRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "outage", cindersim.Options{CreateDelay: 100 * time.Millisecond})
	replica := w.start()
	const claims = 20
	for i := range claims {
		w.claim("a", fmt.Sprintf("old-%d", i), "gold", "1Gi")
	}
	_, err := suite.WaitBound(w.ctx, "outage-a", claims)
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, v := range w.sim.Volumes() {
			if v.Status != "in-use" {
				return "volume " + v.Name + " is " + v.Status, nil
			}
		}
		return "", nil
	}))

	outage := w.fail(cindersim.Cinder)
	for i := range claims {
		w.claim("a", fmt.Sprintf("new-%d", i), "gold", "1Gi")
	}
	for i := range claims {
		_, err := suite.WaitEvent(w.ctx, "outage-a", fmt.Sprintf("new-%d", i), "BackendUnavailable", "backend gold: ")
		w.must(err)
	}
	w.metric(replica, `standalone_cinder_backend_up{backend="gold"} 0`)
	w.metric(replica, fmt.Sprintf(`standalone_cinder_pending_claims{reason="BackendUnavailable",state="blocked"} %d`, claims))
	for i := range claims {
		w.must(suite.Client.CoreV1().PersistentVolumeClaims("outage-a").Delete(w.ctx, fmt.Sprintf("old-%d", i), metav1.DeleteOptions{}))
	}
	// Another tenant's backend is not concerned.
	w.claim("b", "data", "lab", "1Gi")
	w.boundIn("b", "data")
	pvs, err := suite.PersistentVolumes(w.ctx, w.provisioner)
	w.must(err)
	for _, pv := range pvs {
		if pv.Spec.ClaimRef.Namespace == "outage-a" {
			w.waitEventAbout(pv, "BackendUnavailable")
		}
	}
	outage.Remove()
	_, err = suite.WaitBound(w.ctx, "outage-a", claims)
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n != claims+1 {
			return fmt.Sprintf("%d volumes for %d claims", n, claims+1), nil
		}
		return "", nil
	}))
	w.must(suite.DeleteClaims(w.ctx, "outage-a"))
	w.must(suite.DeleteClaims(w.ctx, "outage-b"))
	w.noResidue()
}

func (w *world) waitEventAbout(pv corev1.PersistentVolume, reason string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		events, err := suite.Client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pv.Name + ",reason=" + reason})
		if err == nil && len(events.Items) == 0 {
			return "no event " + reason + " about " + pv.Name, nil
		}
		return "", err
	}))
}

// TestNextBackendServesWhileTheFirstIsDown sends new claims on, keeps those that
// may have a volume where they are, and duplicates none over a change of leader.
//
//tier:outage
func TestNextBackendServesWhileTheFirstIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "next", cindersim.Options{CreateDelay: 5 * time.Second})
	w.policy = w.change("backends: [gold]", "backends: [gold, lab]")
	replicas := w.startThree(shortLease...)
	w.claim("a", "begun", "gold", "1Gi")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if len(w.sim.Volumes()) == 0 {
			return "no volume was begun", nil
		}
		return "", nil
	}))
	// The first claims to notice the outage cannot know whether their creates
	// had an effect, and stay.
	outage := w.fail(cindersim.Cinder)
	const early = 6
	for i := range early {
		w.claim("a", fmt.Sprintf("early-%d", i), "gold", "1Gi")
	}
	leader := w.leaderMetric(replicas, `standalone_cinder_backend_up{backend="gold"} 0`)
	for i := range 8 {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	for i := range 8 {
		w.boundIn("a", fmt.Sprintf("data-%d", i))
	}
	event, err := suite.WaitEvent(w.ctx, "next-a", "data-7", "BackendChosen", "on backend lab; passed over: backend gold: ")
	w.must(err)
	if !strings.Contains(event.Message, "503") {
		t.Errorf("the event does not say why gold was passed over: %s", event.Message)
	}

	// The next leader cannot list gold, and must not make a second volume for
	// the claim whose first one is there.
	leader.Kill()
	_, err = suite.WaitEvent(w.ctx, "next-a", "begun", "BackendUnavailable", "cannot determine whether an earlier leader created a volume for this claim")
	w.must(err)
	w.claim("a", "newborn", "gold", "1Gi")
	w.boundIn("a", "newborn")
	outage.Remove()
	const claims = 1 + early + 8 + 1
	_, err = suite.WaitBound(w.ctx, "next-a", claims)
	w.must(err)
	if n := len(w.sim.Volumes()); n != claims {
		t.Errorf("%d volumes for %d claims", n, claims)
	}
	w.must(suite.DeleteClaims(w.ctx, "next-a"))
	w.noResidue()
}

// TestCindersOwnQuotaSendsClaimsOn distinguishes Cinder's quota from the
// policy's, and uses the next backend of the rule if there is one.
//
//tier:outage
func TestCindersOwnQuotaSendsClaimsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "full", cindersim.Options{})
	w.sim.SetQuota("team-a", map[string]int{"volumes": 2})
	replica := w.start()
	for i := range 3 {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if pending := w.pending(); len(pending) != 1 {
			return fmt.Sprintf("%d claims are pending", len(pending)), nil
		}
		return "", nil
	}))
	stuck := w.pending()[0]
	_, err := suite.WaitEvent(w.ctx, "full-a", stuck, "ProvisioningFailed", "the OpenStack project's Cinder quota, not the policy's, is exhausted: VolumeLimitExceeded")
	w.must(err)
	w.must(replica.WritePolicy(w.change("backends: [gold]", "backends: [gold, lab]")))
	w.boundIn("a", stuck)
	_, err = suite.WaitEvent(w.ctx, "full-a", stuck, "BackendChosen", "on backend lab; passed over: backend gold: volume.create: ")
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "full-a"))
	w.noResidue()
}
