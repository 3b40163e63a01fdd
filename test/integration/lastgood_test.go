package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// lastGood returns the name of the world's Secret.
func (w *world) lastGood() string {
	return strings.ReplaceAll(w.provisioner, "/", "-") + "-last-good"
}

// kept waits until the Secret satisfies a condition.
func (w *world) kept(what string, satisfies func(*corev1.Secret) bool) *corev1.Secret {
	w.Helper()
	var found *corev1.Secret
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		secret, err := suite.Client.CoreV1().Secrets(harness.Namespace).Get(w.ctx, w.lastGood(), metav1.GetOptions{})
		if err != nil || !satisfies(secret) {
			return fmt.Sprintf("the Secret %s does not have %s", w.lastGood(), what), nil
		}
		found = secret
		return "", nil
	}))
	return found
}

// keptPolicy returns the policy in the Secret; empty if it cannot be read.
func keptPolicy(secret *corev1.Secret) string {
	reader, err := gzip.NewReader(bytes.NewReader(secret.Data["policy.yaml.gz"]))
	if err != nil {
		return ""
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(reader); err != nil {
		return ""
	}
	return text.String()
}

func zipped(w *world, text string) []byte {
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	_, err := writer.Write([]byte(text))
	w.must(err)
	w.must(writer.Close())
	return compressed.Bytes()
}

// onPolicy returns a condition for kept: the Secret has that policy.
func onPolicy(text string) func(*corev1.Secret) bool {
	return func(secret *corev1.Secret) bool { return keptPolicy(secret) == text }
}

// runOnce runs a replica that is expected to end by itself.
func (w *world) runOnce(arguments ...string) (exitCode int, output string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	exitCode, output, err := suite.Run(ctx, append([]string{"run", "--kubeconfig", "KUBECONFIG", "--namespace", harness.Namespace,
		"--provisioner-name", w.provisioner, "--listen", "127.0.0.1:0"}, arguments...)...)
	w.must(err)
	return exitCode, output
}

func (w *world) written(name, content string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), name)
	w.must(os.WriteFile(path, []byte(content), 0o600))
	return path
}

// TestBadPolicyLetsReplicasStart replaces all replicas while the policy is bad,
// each with another kind of bad file, and then repairs it.
//
//tier:outage
func TestBadPolicyLetsReplicasStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "drained", cindersim.Options{})
	good := w.policy
	revision := policy.RevisionOf([]byte(good))
	before := w.startThree(shortLease...)
	w.metric(w.leader(before), "standalone_cinder_last_good_kept 1")
	w.kept("the policy in force", onPolicy(good))

	var after []*harness.Replica
	for _, bad := range []struct {
		policy    string
		arguments []string
	}{
		{w.change("backends: [gold]", "backends: [golt]"), nil},
		{w.change("clusterID: cluster-drained", "clusterID: another"), nil},
		{"tenants: [", nil},
		{good, []string{"--policy=/nowhere/policy.yaml"}},
	} {
		w.policy = bad.policy
		replica := w.start(append(bad.arguments, shortLease...)...)
		w.metric(replica, "standalone_cinder_policy_last_reload_successful 0")
		w.metric(replica, `standalone_cinder_policy_info{revision="`+revision+`"} 1`)
		_, page, err := replica.Get(w.ctx, "/")
		w.must(err)
		for _, want := range []string{"revision " + revision + " (the last good one, kept in Secret " + harness.Namespace + "/" + w.lastGood() + ")", "the policy file is refused"} {
			if !strings.Contains(page, want) {
				t.Errorf("the status page lacks %q:\n%s", want, page)
			}
		}
		if !strings.Contains(replica.Log(), "Refused the policy file; the last good policy stays in force") {
			t.Error("the log does not tell it")
		}
		after = append(after, replica)
	}
	last := after[len(after)-1]
	after = after[:len(after)-1]
	last.Kill() // Its file cannot be mended.

	for _, replica := range before {
		replica.Kill()
	}
	leader := w.leader(after)
	w.waitLeaseEvent("PolicyRefused", "revision "+revision+" (the last good one, kept in Secret "+harness.Namespace+"/"+w.lastGood()+") stays in force")
	w.claim("a", "data", "gold", "1Gi")
	w.boundIn("a", "data")
	pvs, err := suite.PersistentVolumes(w.ctx, w.provisioner)
	w.must(err)
	for _, pv := range pvs {
		if got := pv.Annotations["standalone-cinder.openstack.org/policy-revision"]; got != revision {
			t.Errorf("a volume was made under revision %s, want %s", got, revision)
		}
	}
	w.metric(leader, "standalone_cinder_last_good_kept 1")
	w.kept("the last good policy, still", onPolicy(good))

	// The same policy again.
	for _, replica := range after {
		w.must(replica.WritePolicy(good))
	}
	w.waitLeaseEvent("PolicyReloaded", "the policy file is good again; its revision "+revision+" was in force all along")
	w.metric(leader, "standalone_cinder_policy_last_reload_successful 1")

	// Another one is in force, and kept, at once.
	better := strings.Replace(good, `namespaces: ["drained-b"]`, `namespaces: ["drained-b", "drained-stranger"]`, 1)
	for _, replica := range after {
		w.must(replica.WritePolicy(better))
	}
	w.claim("stranger", "data", "lab", "1Gi")
	w.boundIn("stranger", "data")
	w.kept("the new policy", onPolicy(better))
	w.must(suite.DeleteClaims(w.ctx, "drained-a"))
	w.must(suite.DeleteClaims(w.ctx, "drained-stranger"))
	w.noResidue()
}

// TestBadCredentialsStopOnlyTheirBackend replaces all replicas while clouds.yaml is bad:
// they serve the other backends at once, and this one as soon as the file is good.
//
//tier:outage
func TestBadCredentialsStopOnlyTheirBackend(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "lostkeys", cindersim.Options{})
	good := w.clouds
	before := w.startThree(shortLease...)
	w.leader(before)
	var after []*harness.Replica
	for _, bad := range []string{good[:len(good)/3] + "\n  - ][", strings.ReplaceAll(good, `"team-a":`, `"team-x":`)} {
		w.clouds = bad
		replica := w.start(shortLease...)
		w.metric(replica, `standalone_cinder_credentials_read_success{backend="gold"} 0`)
		after = append(after, replica)
	}
	for _, replica := range before {
		replica.Kill()
	}
	w.leader(after)
	w.waitLeaseEvent("CredentialsUnreadable", "none were read before, so the backend cannot be used until they can be read")
	w.claim("a", "data", "gold", "1Gi")
	w.claim("b", "data", "lab", "1Gi")
	w.boundIn("b", "data")

	for _, replica := range after {
		w.must(replica.WriteClouds(good))
	}
	w.waitLeaseEvent("CredentialsReadable", "backend gold: the credentials can be read again and are in use")
	w.boundIn("a", "data")
	w.kept("the policy alone", func(secret *corev1.Secret) bool { return len(secret.Data) == 2 && keptPolicy(secret) == w.policy })
	for _, replica := range append(before, after...) {
		if strings.Contains(replica.Log(), "team-a-pass") {
			t.Error("a password is in the log")
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "lostkeys-a"))
	w.must(suite.DeleteClaims(w.ctx, "lostkeys-b"))
	w.noResidue()
}

func TestFirstStartWithABadFileFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "firsttime", cindersim.Options{})
	secret := "Secret " + harness.Namespace + "/" + w.lastGood()
	code, output := w.runOnce("--policy", w.written("policy.yaml", w.change("backends: [gold]", "backends: [golt]")), "--clouds-file", w.written("clouds.yaml", w.clouds))
	for _, want := range []string{"golt", "no earlier policy is kept in " + secret + " that could be used instead"} {
		if !strings.Contains(output, want) {
			t.Errorf("a bad policy: the output lacks %q", want)
		}
	}
	if code != 1 {
		t.Errorf("a bad policy: exit code %d", code)
	}
	code, output = w.runOnce("--policy", w.written("policy.yaml", w.withoutLab()), "--clouds-file", "/nowhere/clouds.yaml")
	if code != 1 || !strings.Contains(output, "--clouds-file /nowhere/clouds.yaml cannot be read: no such file or directory; these backends log in with its entries: gold (") {
		t.Errorf("no clouds.yaml: exit code %d", code)
	}
	if t.Failed() {
		t.Log(output)
	}
}

// TestDamagedLastGoodIsToldAndRepaired: what somebody edited is checked like a
// file, and the next good start replaces it.
//
//tier:outage
func TestDamagedLastGoodIsToldAndRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "damaged", cindersim.Options{})
	good := w.policy
	kubeSystem, err := suite.Client.CoreV1().Namespaces().Get(w.ctx, "kube-system", metav1.GetOptions{})
	w.must(err)
	secrets := suite.Client.CoreV1().Secrets(harness.Namespace)
	_, err = secrets.Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: w.lastGood(), Labels: map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}}, Type: "standalone-cinder.openstack.org/last-good",
		Data: map[string][]byte{
			"kube-system-uid": []byte(kubeSystem.UID),
			"policy.yaml.gz":  zipped(w, w.change("backends: [lab]", "backends: [edited]")),
		},
	}, metav1.CreateOptions{})
	w.must(err)
	bad := w.change("backends: [gold]", "backends: [golt]")
	code, output := w.runOnce("--policy", w.written("policy.yaml", bad), "--clouds-file", w.written("clouds.yaml", w.clouds))
	for _, want := range []string{"golt", "edited", "the last good policy, kept in Secret " + harness.Namespace + "/" + w.lastGood() + ", cannot be used either"} {
		if !strings.Contains(output, want) {
			t.Errorf("the output lacks %q:\n%s", want, output)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d; the output:\n%s", code, output)
	}

	first := w.start(shortLease...)
	w.kept("the good policy", onPolicy(good))
	// Without leader election, too, a leader keeps the policy, and a start uses
	// it.
	first.Kill()
	w.policy = bad
	second := w.start("--leader-elect=false")
	w.waitLeaseEvent("PolicyRefused", "golt")
	w.kept("the good policy, still", onPolicy(good))
	w.must(secrets.Delete(w.ctx, w.lastGood(), metav1.DeleteOptions{}))
	w.must(second.WritePolicy(good))
	w.kept("the policy after it was deleted", onPolicy(good))
}

// TestStartWaitsForTheAPIServer: with a bad file, only the API server knows
// whether the start can go on.
//
//tier:outage
func TestStartWaitsForTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unreached", cindersim.Options{})
	first := w.start(shortLease...)
	w.kept("the policy", onPolicy(w.policy))
	first.Kill()
	transport, err := suite.APIServerTransport()
	w.must(err)
	proxy, err := faultproxy.Start(faultproxy.Options{Target: suite.Config.Host, Transport: transport, TLS: true})
	w.must(err)
	t.Cleanup(proxy.Close)
	// client-go tries up to eleven times before it returns an error.
	const lost = 12
	var asked atomic.Int32
	proxy.Judge(func(r faultproxy.Request) faultproxy.Verdict {
		if strings.HasSuffix(r.Path, w.lastGood()) && asked.Add(1) <= lost {
			return faultproxy.LoseBefore
		}
		return faultproxy.Pass
	})
	replica, err := suite.StartReplica(w.ctx, harness.ReplicaOptions{
		Policy: "tenants: [", Clouds: w.clouds, Provisioner: w.provisioner, Arguments: shortLease,
		APIServer: proxy.URL(), APIServerAuthority: proxy.Authority(),
	})
	w.must(err)
	t.Cleanup(replica.Kill)
	if !strings.Contains(replica.Log(), "Cannot read the last good policy yet; trying again") {
		t.Errorf("of %d requests %d were lost; the log:\n%s", asked.Load(), lost, replica.Log())
	}
	w.metric(replica, "standalone_cinder_policy_last_reload_successful 0")
}
