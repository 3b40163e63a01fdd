package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// twoBackends is a newer policy than policyOf: it adds backend zinc.
func twoBackends() string {
	return strings.Replace(policyOf("newer", ""), "backends:\n", "backends:\n  - {name: zinc, auth: {cloud: zinc}}\n", 1)
}

func cloudsOfTwo() string {
	return cloudsOf("hunter2")[:len(cloudsOf("hunter2"))-2] + ", zinc: {auth: {auth_url: 'http://k/v3', user_id: z, password: hunter3}}}\n"
}

// TestANewerKeptPolicyKeepsItsCredentials: kubelets mount an edit at different
// times, and the lease moves to a replica that has the older policy in force and
// whose own file is bad by now. It leaves the newer policy that is kept, as it
// should, but removes the credentials of the backends that only the newer policy
// has. A replica that then starts with bad files gets a policy whose backend has
// no credentials.
func TestANewerKeptPolicyKeepsItsCredentials(t *testing.T) {
	older := newStarter(t, policyOf("older", ""), cloudsOfTwo())
	r, err := older.start(t)
	if err != nil {
		t.Fatal(err)
	}
	newer := newStarter(t, twoBackends(), cloudsOfTwo())
	newer.use(older.client)
	if _, err := newer.start(t); err != nil {
		t.Fatal(err)
	}
	if err := newer.keep(t.Context(), newer.inForce()); err != nil {
		t.Fatal(err)
	}
	if _, credentials := newer.kept(t); len(credentials) != 2 {
		t.Fatalf("credentials of %d backends are kept, want 2", len(credentials))
	}

	older.write(t, "policy.yaml", "tenants: [")
	r.lookAtPolicy()
	if err := older.keep(t.Context(), older.inForce()); err != nil {
		t.Fatal(err)
	}
	text, credentials := older.kept(t)
	if text != twoBackends() {
		t.Fatalf("kept %q", text)
	}
	if len(credentials["zinc"]) == 0 {
		t.Error("the policy that is kept has backend zinc, whose credentials are no longer kept")
	}
}

// TestWhatAnotherClusterKeptIsNotUsed: a backup of the namespace is restored into
// a second cluster (a drill, or a clone), with the Secret that the first cluster's
// leader wrote. The operator gives the second cluster a clusterID of its own, in
// a file without a mistake. The program refuses the file and works with the
// first cluster's policy under the first cluster's ID: its volumes that are not
// yet recorded have no claim here, and count as unneeded.
func TestWhatAnotherClusterKeptIsNotUsed(t *testing.T) {
	first := newStarter(t, policyOf("first", "clusterID: production\n"), cloudsOf("hunter2"))
	if _, err := first.start(t); err != nil {
		t.Fatal(err)
	}
	if err := first.keep(t.Context(), first.inForce()); err != nil {
		t.Fatal(err)
	}
	restored, err := first.client.CoreV1().Secrets("storage").Get(t.Context(), first.lastGood.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	drill := newStarter(t, policyOf("drill", "clusterID: drill\n"), cloudsOf("hunter2"))
	kubeSystem, err := drill.client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeSystem.UID = "another-kube-system-uid"
	if _, err := drill.client.CoreV1().Namespaces().Update(t.Context(), kubeSystem, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	copied := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: restored.Name, Namespace: restored.Namespace, Labels: restored.Labels, Annotations: restored.Annotations},
		Type: restored.Type, Data: restored.Data}
	if _, err := drill.client.CoreV1().Secrets("storage").Create(t.Context(), copied, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := drill.start(t); err != nil {
		t.Fatal(err)
	}
	if drill.App.cluster != "drill" {
		t.Errorf("the replica works as cluster %q, want drill", drill.App.cluster)
	}
}

// manyBackends is a policy with that many backends, and its clouds.yaml, whose
// entries trust the same bundle of authorities.
func manyBackends(comment, bundle string, count int) (policyText, clouds string) {
	var backends, entries []string
	for i := range count {
		name := "b" + string(rune('a'+i))
		backends = append(backends, "  - {name: "+name+", auth: {cloud: "+name+"}}\n")
		entries = append(entries, name+": {cacert: "+bundle+", auth: {auth_url: 'https://"+name+"/v3', user_id: u, password: hunter2}}")
	}
	return "# " + comment + "\napiVersion: " + policy.APIVersion + "\nkind: Policy\nbackends:\n" + strings.Join(backends, "") +
		"tenants:\n  - {name: a, namespaces: [a], classes: [{storageClasses: [c], backends: [ba]}]}\n", "clouds: {" + strings.Join(entries, ", ") + "}\n"
}

// systemBundle is as large as /etc/ssl/certs/ca-certificates.crt of Debian 12.
func systemBundle(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for text.Len() < 213<<10 {
		text.WriteString(authtest.NewAuthority(t).PEM)
	}
	path := filepath.Join(t.TempDir(), "ca-certificates.crt")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFiveBackendsWithTheSystemBundleAreKept: clouds.yaml commonly names the
// bundle of the system as cacert. Each entry keeps a copy of it, uncompressed,
// so that five backends exceed a Secret, and neither policy nor credentials are
// kept, for good.
func TestFiveBackendsWithTheSystemBundleAreKept(t *testing.T) {
	policyText, clouds := manyBackends("own", systemBundle(t), 5)
	s := newStarter(t, policyText, clouds)
	if _, err := s.start(t); err != nil {
		t.Fatal(err)
	}
	if err := s.keep(t.Context(), s.inForce()); err != nil {
		t.Error(err)
	}
	if text, _ := s.kept(t); text != policyText {
		t.Errorf("kept a policy of %d bytes, want %d", len(text), len(policyText))
	}
}

// TestARevokedPolicyDoesNotComeBack: the policy in force revoked a tenant's
// namespace, but could not be kept, because it and its credentials are too large
// for a Secret. The Secret still has the policy before it. A replica that starts
// with a bad file then grants again what was revoked, and the warning about the
// failure says that no replica could start.
func TestARevokedPolicyDoesNotComeBack(t *testing.T) {
	bundle := systemBundle(t)
	before, clouds := manyBackends("before", bundle, 1)
	s := newStarter(t, strings.Replace(before, "namespaces: [a]", "namespaces: [a, revoked]", 1), clouds)
	r, err := s.start(t)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.keep(t.Context(), s.inForce()); err != nil {
		t.Fatal(err)
	}
	now, clouds := manyBackends("now", bundle, 6)
	s.write(t, "policy.yaml", now)
	s.write(t, "clouds.yaml", clouds)
	r.lookAtPolicy()
	r.lookAtCredentials()
	keepErr := s.keep(t.Context(), s.inForce())

	next := newStarter(t, "tenants: [", clouds)
	next.use(s.client)
	if _, err := next.start(t); err != nil {
		return // No policy is better than one that was replaced.
	}
	if text := string(next.policy.Load().Text()); strings.Contains(text, "revoked") {
		t.Errorf("a policy is in force that was replaced long ago (what replaced it was not kept: %v)", keepErr)
	}
}
