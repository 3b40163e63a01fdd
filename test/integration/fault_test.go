package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestLostAnswersMakeNoSecondVolume injects, into every operation of a claim's
// life, answers that are lost after their effect, and failures without effect.
//
//tier:outage
func TestLostAnswersMakeNoSecondVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "lost", cindersim.Options{CreateDelay: 100 * time.Millisecond, DeleteDelay: 100 * time.Millisecond})
	w.start()
	operations := []string{"volume.create", "action.os-reserve", "action.os-initialize_connection", "action.os-attach",
		"action.os-terminate_connection", "action.os-detach", "volume.delete", "volume.list", "volume.get",
		"attachment.create", "attachment.get", "attachment.list", "attachment.complete", "attachment.delete", "metadata.update"}
	for _, operation := range operations {
		// More of them would only wait for the delays between the attempts of a
		// claim that meets one after the other.
		w.sim.Inject(cindersim.Fault{Kind: cindersim.DropAfter, Operation: operation, Probability: 0.3, Times: 4})
		w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: operation, Probability: 0.2, Times: 2})
		w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondAfter, Operation: operation, Probability: 0.2, Times: 2, Code: 504})
	}
	const claims = 30
	for i := range claims / 2 {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
		w.claim("b", fmt.Sprintf("data-%d", i), "lab", "1Gi")
	}
	for _, namespace := range []string{"lost-a", "lost-b"} {
		_, err := suite.WaitBound(w.ctx, namespace, claims/2)
		w.must(err)
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		inUse := 0
		for _, v := range w.sim.Volumes() {
			if v.Status == "in-use" {
				inUse++
			}
		}
		if n := len(w.sim.Volumes()); n != claims || inUse != claims {
			return fmt.Sprintf("%d volumes, %d of them in use, for %d claims", n, inUse, claims), nil
		}
		return "", nil
	}))
	w.must(suite.DeleteClaims(w.ctx, "lost-a"))
	w.must(suite.DeleteClaims(w.ctx, "lost-b"))
	w.noResidue()
}

func TestClaimsDeletedWhileProvisionedLeaveNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "early", cindersim.Options{CreateDelay: time.Second})
	w.start()
	const claims = 20
	for i := range claims {
		w.claim("b", fmt.Sprintf("data-%d", i), "lab", "1Gi")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n < claims {
			return fmt.Sprintf("only %d volumes were begun", n), nil
		}
		return "", nil
	}))
	w.must(suite.DeleteClaims(w.ctx, "early-b"))
	w.noResidue()
}

func TestExpiredTokensAreRenewedAndRotatedPasswordsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "rotate", cindersim.Options{})
	replica := w.start()
	w.claim("a", "before", "gold", "1Gi")
	_, err := suite.WaitBound(w.ctx, "rotate-a", 1)
	w.must(err)

	w.sim.ExpireTokens()
	w.claim("a", "expired", "gold", "1Gi")
	_, err = suite.WaitBound(w.ctx, "rotate-a", 2)
	w.must(err)

	w.must(replica.WriteClouds(strings.ReplaceAll(w.clouds, "team-a-pass", "team-a-new-pass")))
	w.must(w.sim.SetPassword("team-a", "team-a-new-pass"))
	w.sim.ExpireTokens()
	w.claim("a", "rotated", "gold", "1Gi")
	_, err = suite.WaitBound(w.ctx, "rotate-a", 3)
	w.must(err)
	if strings.Contains(replica.Log(), `"reason":"ProvisioningFailed"`) {
		t.Error("a claim failed because of a rotated password")
	}
	w.must(suite.DeleteClaims(w.ctx, "rotate-a"))
	w.noResidue()
}

// TestSecretsAppearNowhere greps all that a run prints, at the highest
// verbosity, and all that it writes for others to read.
func TestSecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "secret", cindersim.Options{})
	// Failures print more than successes.
	w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondAfter, Operation: "action.os-initialize_connection", Times: 1})
	w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondAfter, Operation: "attachment.create", Times: 1})
	w.sim.Inject(cindersim.Fault{Kind: cindersim.DropAfter, Operation: "auth.*", Times: 1})
	replica := w.start("-v", "10")
	for i := range 3 {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
		w.claim("b", fmt.Sprintf("data-%d", i), "lab", "1Gi")
	}
	_, err := suite.WaitBound(w.ctx, "secret-a", 3)
	w.must(err)
	_, err = suite.WaitBound(w.ctx, "secret-b", 3)
	w.must(err)

	secrets := []string{"team-a-pass", "team-b-pass"}
	for _, volume := range w.sim.Volumes() {
		if volume.Export.Password == "" {
			t.Fatalf("volume %s has no CHAP password; this test would prove nothing", volume.Name)
		}
		secrets = append(secrets, volume.Export.Password)
	}
	_, metrics, err := replica.Get(w.ctx, "/metrics")
	w.must(err)
	_, page, err := replica.Get(w.ctx, "/")
	w.must(err)
	_, report, err := replica.Get(w.ctx, "/status.json")
	w.must(err)
	places := map[string]string{"log": replica.Log(), "metrics": metrics, "status page": page, "status report": report, "objects": w.readable()}
	if !strings.Contains(places["log"], `"level":"DEBUG`) {
		t.Error("the log has nothing below INFO; this test would prove little")
	}
	w.must(suite.DeleteClaims(w.ctx, "secret-a"))
	w.must(suite.DeleteClaims(w.ctx, "secret-b"))
	w.noResidue()
	places["log after deletion"] = replica.Log()
	for place, text := range places {
		for _, secret := range secrets {
			if strings.Contains(text, secret) || strings.Contains(text, base64(secret)) {
				t.Errorf("the %s shows a secret (%d characters)", place, len(secret))
			}
		}
	}
}
