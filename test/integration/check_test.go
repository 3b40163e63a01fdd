package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// TestPolicyCheckTellsWhatAReloadWouldChange asks, with the rights of the
// program's own account, before a policy is shipped.
func TestPolicyCheckTellsWhatAReloadWouldChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "check", cindersim.Options{})
	w.start()
	w.claim("a", "data", "gold", "1Gi")
	w.claim("b", "data", "lab", "1Gi")
	w.claim("stranger", "data", "lab", "1Gi")
	w.boundIn("a", "data")
	w.boundIn("b", "data")
	_, err := suite.WaitEvent(w.ctx, "check-stranger", "data", "NoMatchingTenant", "")
	w.must(err)

	withoutLab := w.withoutLab()
	for _, c := range []struct {
		name, policy string
		code         int
		want         []string
	}{
		{"nothing changes", w.policy, 0, []string{"PendingDenied", "check-stranger/data"}},
		{"a backend goes", withoutLab, 1, []string{"BackendGone", "lab", "NewlyDenied", "check-b/data"}},
		{"a quota is exceeded", w.change("    metadata: {costcenter", "    quota: {volumes: 0}\n    metadata: {costcenter"), 0, []string{"OverQuota", "tenants[0].quota.volumes"}},
		{"a tenant is added to", w.change(`namespaces: ["check-b"]`, `namespaces: ["check-b", "check-stranger"]`), 0, []string{"PendingGranted", "check-stranger/data"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "policy.yaml")
			w.must(os.WriteFile(file, []byte(c.policy), 0o600))
			code, output, err := suite.Run(w.ctx, "policy", "check", file, "--kubeconfig", "KUBECONFIG", "--provisioner-name", w.provisioner)
			w.must(err)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(output, want) {
					t.Errorf("the answer lacks %q", want)
				}
			}
			t.Logf("exit code %d:\n%s", code, output)
		})
	}
	for _, namespace := range []string{"a", "b"} {
		w.must(suite.DeleteClaims(w.ctx, "check-"+namespace))
	}
	w.noResidue()
}
