package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestBackendsOfOneProject: two backends of the policy see each other's volumes.
// Neither takes them for its own, for orphans, or for second volumes, under a
// leader that began with them and under the next.
//
//tier:outage
func TestBackendsOfOneProject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "project", cindersim.Options{CreateDelay: 300 * time.Millisecond})
	w.policy = strings.NewReplacer(
		"clusterID: cluster-project\n", "clusterID: cluster-project\naudit: {interval: 500ms, grace: 1s, delete: true}\n",
		"tenants:\n", fmt.Sprintf("  - name: annex\n    auth: {noauth: {endpoint: %q, user: admin, project: %s}}\n    workflow: attachment\n    connector: {host: annex}\ntenants:\n",
			w.sim.NoauthEndpoint(), cindersim.DefaultNoauthProject),
		"        backends: [lab]\n", "        backends: [lab]\n      - storageClasses: [project-annex]\n        backends: [annex]\n",
	).Replace(w.policy)
	w.must(suite.CreateClass(w.ctx, "project-annex", w.provisioner, func(*storagev1.StorageClass) {}))
	first := w.start()
	const each = 10
	for i := range each {
		w.claim("b", fmt.Sprintf("lab-%d", i), "lab", "1Gi")
		w.claim("b", fmt.Sprintf("annex-%d", i), "annex", "1Gi")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n < each {
			return fmt.Sprintf("only %d volumes were begun", n), nil
		}
		return "", nil
	}))
	first.Kill()
	w.start()
	allServed := func() (string, error) {
		inUse := 0
		volumes := w.sim.Volumes()
		for _, v := range volumes {
			if v.Status == "in-use" {
				inUse++
			}
		}
		if len(volumes) != 2*each || inUse != 2*each {
			return fmt.Sprintf("%d volumes, %d of them in use, for %d claims", len(volumes), inUse, 2*each), nil
		}
		return "", nil
	}
	_, err := suite.WaitBound(w.ctx, "project-b", 2*each)
	w.must(err)
	w.must(harness.Eventually(w.ctx, allServed))
	// 15 s after its beginning a leader lists again, to find volumes that an
	// earlier leader requested.
	select {
	case <-time.After(18 * time.Second):
	case <-w.ctx.Done():
	}
	if wrong, _ := allServed(); wrong != "" {
		t.Error(wrong)
	}
	w.must(suite.DeleteClaims(w.ctx, "project-b"))
	w.noResidue()
}
