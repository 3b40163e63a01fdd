package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// metric waits until the replica's metrics have a line.
func (w *world) metric(replica *harness.Replica, line string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, body, err := replica.Get(w.ctx, "/metrics")
		if err == nil && !strings.Contains(body, "\n"+line+"\n") {
			return "no metric " + line, nil
		}
		return "", err
	}))
}

// leaderMetric waits until the replica that leads by then exports a metric, and
// returns that replica.
func (w *world) leaderMetric(replicas []*harness.Replica, line string) *harness.Replica {
	w.Helper()
	var leader *harness.Replica
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, replica := range replicas {
			if !replica.Leads(w.ctx) {
				continue
			}
			leader = replica
			if _, body, err := replica.Get(w.ctx, "/metrics"); err != nil || strings.Contains(body, "\n"+line+"\n") {
				return "", err
			}
		}
		return "no leader exports " + line, nil
	}))
	return leader
}

// leaseEvents returns the messages of the events with a reason that are about
// the program itself.
func (w *world) leaseEvents(reason string) []string {
	w.Helper()
	events, err := suite.Client.CoreV1().Events(harness.Namespace).List(w.ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Lease,involvedObject.name=" + strings.ReplaceAll(w.provisioner, "/", "-") + ",reason=" + reason,
	})
	w.must(err)
	var messages []string
	for _, event := range events.Items {
		messages = append(messages, event.Message)
	}
	return messages
}

func (w *world) waitLeaseEvent(reason, text string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, message := range w.leaseEvents(reason) {
			if strings.Contains(message, text) {
				return "", nil
			}
		}
		return fmt.Sprintf("no event %s with %q", reason, text), nil
	}))
}

// change edits the policy.
func (w *world) change(before, after string) string {
	w.Helper()
	changed := strings.Replace(w.policy, before, after, 1)
	if changed == w.policy {
		w.Fatalf("the policy has no %q", before)
	}
	return changed
}

// TestReloadAdmitsWhatWasDenied denies claims for different reasons, and lets
// one reload lift them all, on replicas that lead and that follow.
//
//tier:outage
func TestReloadAdmitsWhatWasDenied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "reload", cindersim.Options{})
	final := w.policy
	w.policy = w.change("  - name: gold\n", "  - name: gold\n    suspended: true\n")
	w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    volumeSize: {max: 10Gi}\n    quota: {volumes: 0}\n")
	replicas := w.startThree(shortLease...)
	leader := w.leader(replicas)
	w.claim("a", "suspended", "gold", "1Gi")
	w.claim("b", "quota", "lab", "1Gi")
	w.claim("stranger", "tenant", "lab", "1Gi")
	w.claim("b", "large", "lab", "11Gi")
	for _, c := range []struct{ namespace, name, reason string }{
		{"a", "suspended", "BackendsSuspended"}, {"b", "quota", "QuotaExceeded"}, {"stranger", "tenant", "NoMatchingTenant"}, {"b", "large", "VolumeTooLarge"},
	} {
		_, err := suite.WaitEvent(w.ctx, "reload-"+c.namespace, c.name, c.reason, "")
		w.must(err)
	}

	final = strings.Replace(final, `namespaces: ["reload-b"]`, `namespaces: ["reload-b", "reload-stranger"]`, 1)
	for _, replica := range replicas {
		w.must(replica.WritePolicy(final))
	}
	for _, namespace := range []string{"a", "stranger"} {
		_, err := suite.WaitBound(w.ctx, "reload-"+namespace, 1)
		w.must(err)
	}
	w.boundIn("b", "quota")
	for _, replica := range replicas {
		w.metric(replica, "standalone_cinder_policy_last_reload_successful 1")
	}
	w.waitLeaseEvent("PolicyReloaded", "is now in force (was")

	// A follower that leads later does so under the same policy.
	leader.Kill()
	w.claim("stranger", "later", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, "reload-stranger", 2)
	w.must(err)
	for _, namespace := range []string{"a", "b", "stranger"} {
		w.must(suite.DeleteClaims(w.ctx, "reload-"+namespace))
	}
	w.noResidue()
}

// boundIn waits until one claim is bound.
func (w *world) boundIn(namespace, name string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s/%s is %s", claim.Namespace, name, claim.Status.Phase), nil
		}
		return "", err
	}))
}

func TestBadPolicyChangesNothingAndIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "badpolicy", cindersim.Options{})
	replica := w.start()
	w.metric(replica, "standalone_cinder_leader 1")

	w.must(replica.WritePolicy(w.change("backends: [gold]", "backends: [golt, silver, bronze, tin]")))
	w.metric(replica, "standalone_cinder_policy_last_reload_successful 0")
	w.waitLeaseEvent("PolicyRefused", `golt`)
	w.claim("a", "data", "gold", "1Gi")
	w.boundIn("a", "data")

	w.must(replica.WritePolicy(w.change("clusterID: cluster-badpolicy", "clusterID: another")))
	w.waitLeaseEvent("PolicyRefused", `changing it from "cluster-badpolicy" to "another" would assign all existing volumes to another cluster`)

	w.must(replica.WritePolicy(w.policy))
	w.metric(replica, "standalone_cinder_policy_last_reload_successful 1")
	if told := w.leaseEvents("PolicyRefused"); len(told) != 2 {
		t.Errorf("two refusals were told by %d events: %q", len(told), told)
	}
	w.must(suite.DeleteClaims(w.ctx, "badpolicy-a"))
	w.noResidue()
}

//tier:outage
func TestVolumesOfARemovedBackendAreStillDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "removed", cindersim.Options{})
	replica := w.start()
	w.claim("b", "data", "lab", "1Gi")
	w.boundIn("b", "data")
	start, end := strings.Index(w.policy, "  - name: lab\n"), strings.Index(w.policy, "tenants:\n")
	without := w.policy[:start] + w.policy[end:]
	without = without[:strings.Index(without, "  - name: tenant-b\n")]
	w.must(replica.WritePolicy(without))
	w.waitLeaseEvent("BackendMissing", "backend lab is not in the policy, but has PersistentVolumes (1)")
	w.metric(replica, `standalone_cinder_missing_backend_persistentvolumes{backend="lab"} 1`)
	w.must(suite.DeleteClaims(w.ctx, "removed-b"))
	w.noResidue()
}

// TestReconfiguredBackendIsUsedAtOnce fixes a wrong endpoint by a reload.
//
//tier:outage
func TestReconfiguredBackendIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "mended", cindersim.Options{})
	good := w.policy
	w.policy = w.change(w.sim.NoauthEndpoint(), "http://127.0.0.1:9/v3")
	replica := w.start()
	w.claim("b", "data", "lab", "1Gi")
	_, err := suite.WaitEvent(w.ctx, "mended-b", "data", "ProvisioningFailed", "backend lab")
	w.must(err)
	w.must(replica.WritePolicy(good))
	w.boundIn("b", "data")
	w.must(suite.DeleteClaims(w.ctx, "mended-b"))
	w.noResidue()
}

// TestRotatedCredentialsFailNoClaim rotates a password while claims come in a
// stream: the file changes after the password has.
//
//tier:outage
func TestRotatedCredentialsFailNoClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "stream", cindersim.Options{CreateDelay: 200 * time.Millisecond})
	replica := w.start()
	w.metric(replica, "standalone_cinder_leader 1")
	const claims = 30
	for i := range claims {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
		switch i {
		case 10:
			w.must(w.sim.SetPassword("team-a", "team-a-new-pass"))
			w.must(replica.WriteClouds(strings.ReplaceAll(w.clouds, "team-a-pass", "team-a-new-pass")))
		case 20:
			w.sim.ExpireTokens()
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, err := suite.WaitBound(w.ctx, "stream-a", claims)
	w.must(err)
	if strings.Contains(replica.Log(), `"reason":"ProvisioningFailed"`) {
		t.Error("a claim failed because of a rotated password")
	}
	w.must(suite.DeleteClaims(w.ctx, "stream-a"))
	w.noResidue()
}

// TestBrokenCredentialsFileKeepsTheOldOnes leaves a file half-written.
//
//tier:outage
func TestBrokenCredentialsFileKeepsTheOldOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "halfway", cindersim.Options{})
	replica := w.start()
	w.claim("a", "before", "gold", "1Gi")
	w.boundIn("a", "before")
	w.must(replica.WriteClouds(w.clouds[:len(w.clouds)/3] + "\n  - ]["))
	w.metric(replica, `standalone_cinder_credentials_read_success{backend="gold"} 0`)
	w.waitLeaseEvent("CredentialsUnreadable", "clouds.yaml")
	w.claim("a", "meanwhile", "gold", "1Gi")
	w.boundIn("a", "meanwhile")
	w.must(replica.WriteClouds(w.clouds))
	w.metric(replica, `standalone_cinder_credentials_read_success{backend="gold"} 1`)
	w.must(suite.DeleteClaims(w.ctx, "halfway-a"))
	w.noResidue()
}

func TestStorageClassMadeAnewAdmitsItsClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "class", cindersim.Options{})
	w.allow("class-odd")
	w.start()
	w.must(suite.CreateClass(w.ctx, "class-odd", w.provisioner, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"iops": "1000"}
	}))
	_, err := suite.CreateClaim(w.ctx, harness.Claim("class-b", "data", "class-odd", "1Gi", nil))
	w.must(err)
	_, err = suite.WaitEvent(w.ctx, "class-b", "data", "ParameterNotAllowed", "iops")
	w.must(err)
	w.must(suite.Client.StorageV1().StorageClasses().Delete(w.ctx, "class-odd", metav1.DeleteOptions{}))
	w.must(suite.CreateClass(w.ctx, "class-odd", w.provisioner, nil))
	w.boundIn("b", "data")
	w.must(suite.DeleteClaims(w.ctx, "class-b"))
	w.noResidue()
}
