package app

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// twoBackends returns a newer policy than policyOf: it adds backend zinc.
func twoBackends() string {
	return strings.Replace(policyOf("newer", ""), "backends:\n", "backends:\n  - {name: zinc, auth: {cloud: zinc}}\n", 1)
}

func cloudsOfTwo() string {
	return cloudsOf("hunter2")[:len(cloudsOf("hunter2"))-2] + ", zinc: {auth: {auth_url: 'http://k/v3', user_id: z, password: hunter3, project_id: x}}}\n"
}

// TestANewerKeptPolicyKeepsItsCredentials: kubelets mount an edit at different times,
// and the lease moves to a replica that has the older policy in force and whose own
// file is bad by now. It does not replace the newer policy that is kept, so it must not
// remove the credentials of the backends that only the newer policy has.
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
	if err := newer.keepNow(t); err != nil {
		t.Fatal(err)
	}
	if _, credentials := newer.kept(t); len(credentials) != 2 {
		t.Fatalf("credentials of %d backends are kept, want 2", len(credentials))
	}

	older.write(t, "policy.yaml", "tenants: [")
	r.checkPolicyFile()
	if err := older.keepNow(t); err != nil {
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

// manyBackends returns a policy with the given number of backends, and its clouds.yaml,
// whose entries use the CA bundles in turn.
func manyBackends(comment string, count int, bundles ...string) (policyText, clouds string) {
	var backends, entries []string
	for i := range count {
		name := "b" + string(rune('a'+i))
		backends = append(backends, "  - {name: "+name+", auth: {cloud: "+name+"}}\n")
		entries = append(entries, name+": {cacert: "+bundles[i%len(bundles)]+", auth: {auth_url: 'https://"+name+"/v3', user_id: u, password: hunter2, project_id: x}}")
	}
	return "# " + comment + "\napiVersion: " + policy.APIVersion + "\nkind: Policy\nbackends:\n" + strings.Join(backends, "") +
		"tenants:\n  - {name: a, namespaces: [a], classes: [{storageClasses: [c], backends: [ba]}]}\n", "clouds: {" + strings.Join(entries, ", ") + "}\n"
}

// systemBundle returns a CA bundle as large as Debian 12's
// /etc/ssl/certs/ca-certificates.crt.
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

// TestManyBackendsWithTheSystemBundleAreKept: clouds.yaml commonly names the system's
// CA bundle as cacert, and every entry gets a copy of it.
func TestManyBackendsWithTheSystemBundleAreKept(t *testing.T) {
	const backends = 20
	policyText, clouds := manyBackends("own", backends, systemBundle(t))
	s := newStarter(t, policyText, clouds)
	if _, err := s.start(t); err != nil {
		t.Fatal(err)
	}
	if err := s.keepNow(t); err != nil {
		t.Error(err)
	}
	text, credentials := s.kept(t)
	if text != policyText || len(credentials) != backends {
		t.Errorf("kept a policy of %d bytes, want %d, and credentials of %d backends", len(text), len(policyText), len(credentials))
	}
	for _, config := range s.backendConfigs() {
		if last, _ := s.pool.LastGood(config); string(credentials[config.Name]) != string(last.Kept) {
			t.Errorf("the credentials of %s were changed", config.Name)
		}
	}
}

// TestARevokedPolicyDoesNotComeBack: the policy in force revoked a tenant's namespace,
// and its credentials are too large for a Secret. The previous policy must not stay in
// the Secret.
func TestARevokedPolicyDoesNotComeBack(t *testing.T) {
	var bundles []string
	for i := range 8 {
		noise := make([]byte, 160<<10)
		_, _ = rand.Read(noise)
		bundles = append(bundles, filepath.Join(t.TempDir(), fmt.Sprintf("bundle-%d.pem", i)))
		if err := os.WriteFile(bundles[i], []byte(authtest.NewAuthority(t).PEM+base64.StdEncoding.EncodeToString(noise)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, clouds := manyBackends("before", 1, bundles...)
	s := newStarter(t, strings.Replace(before, "namespaces: [a]", "namespaces: [a, revoked]", 1), clouds)
	r, err := s.start(t)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.keepNow(t); err != nil {
		t.Fatal(err)
	}
	now, clouds := manyBackends("now", len(bundles), bundles...)
	s.write(t, "policy.yaml", now)
	s.write(t, "clouds.yaml", clouds)
	r.checkPolicyFile()
	r.checkCredentials()
	k := &keeper{replica: s.replica}
	k.look(t.Context())
	if want := "has the policy, but no credentials: those of 8 backends"; !strings.Contains(k.failure, want) || testutil.ToFloat64(s.reloads.kept) != 0 {
		t.Errorf("the failure is %q, want %q; the gauge is %g", k.failure, want, testutil.ToFloat64(s.reloads.kept))
	}

	next := newStarter(t, "tenants: [", clouds)
	next.use(s.client)
	if _, err := next.start(t); err != nil {
		t.Fatal(err)
	}
	if text := string(next.policy.Load().Text()); text != now {
		t.Errorf("in force is %q", text)
	}
}

// TestABadFileReplacesOnlyWhatItCannotUse: a leader whose own files are bad may have an
// older policy and older credentials in force than another leader kept.
func TestABadFileReplacesOnlyWhatItCannotUse(t *testing.T) {
	newer := policyOf("newer", "")
	s := newStarter(t, policyOf("own", ""), cloudsOf("own"))
	r, err := s.start(t)
	if err != nil {
		t.Fatal(err)
	}
	config := s.backendConfigs()[0]
	last, _ := s.pool.LastGood(config)
	newerCredentials := []byte(strings.Replace(string(last.Kept), "own", "newer", 1))
	s.write(t, "policy.yaml", "tenants: [")
	s.write(t, "clouds.yaml", "clouds: [")
	r.checkPolicyFile()
	r.checkCredentials()
	for name, c := range map[string]struct {
		policy      string
		credentials []byte
		want        string
	}{
		"newer":           {newer, newerCredentials, "newer"},
		"damaged":         {"tenants: [", []byte("no"), "own"},
		"another cluster": {policyOf("newer", "clusterID: another\n"), nil, "own"},
	} {
		t.Run(name, func(t *testing.T) {
			s.save(t, c.policy, map[string][]byte{"gold": c.credentials, "of no backend": newerCredentials})
			if err := s.keepNow(t); err != nil {
				t.Fatal(err)
			}
			text, credentials := s.kept(t)
			if text != policyOf(c.want, "") || !strings.Contains(string(credentials["gold"]), `"password": "`+c.want+`"`) || len(credentials) != 1 {
				t.Errorf("kept %q and %d credentials", text, len(credentials))
			}
		})
	}
}

// TestWhatCannotBeKeptIsTold: it is reported once, and by a gauge until it can be kept.
func TestWhatCannotBeKeptIsTold(t *testing.T) {
	s := newStarter(t, policyOf("own", ""), cloudsOf("hunter2"))
	if _, err := s.start(t); err != nil {
		t.Fatal(err)
	}
	forbid := true
	s.client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return forbid, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no"))
	})
	k := &keeper{replica: s.replica}
	again := func() {
		k.again, k.next = true, time.Time{}
		k.look(t.Context())
	}
	again()
	again()
	if told := strings.Count(s.log.String(), "The policy and credentials in force are not kept"); told != 1 || testutil.ToFloat64(s.reloads.kept) != 0 {
		t.Errorf("told %d times; the gauge is %g", told, testutil.ToFloat64(s.reloads.kept))
	}
	forbid = false
	again()
	if text, _ := s.kept(t); text != policyOf("own", "") || testutil.ToFloat64(s.reloads.kept) != 1 || !strings.Contains(s.log.String(), "The policy and credentials in force are kept again") {
		t.Errorf("kept %q; the gauge is %g", text, testutil.ToFloat64(s.reloads.kept))
	}

	// If nothing has changed, it sends no request before the next try is due.
	asked := len(s.client.Actions())
	k.look(t.Context())
	if len(s.client.Actions()) != asked {
		t.Error("requests were sent without a reason")
	}
	// What somebody removes is written again.
	if err := s.client.CoreV1().Secrets("storage").Delete(t.Context(), s.lastGood.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again()
	if text, credentials := s.kept(t); text != policyOf("own", "") || len(credentials) != 1 {
		t.Errorf("kept %q", text)
	}
}
