package integration

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// TestNobodyElseWritesATenantStatus: also a field that the program leaves out is taken away.
func TestNobodyElseWritesATenantStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "forge", cindersim.Options{})
	w.must(suite.AllowTenantStatus(w.ctx, w.provisioner))
	w.start("--tenant-status")
	w.shows("a", "it exists", func(s tenantStatus) bool {
		return s.Status.Tenant == "tenant-a" && s.Status.Quota["volumes"].Hard == nil
	})
	all := tenantStatuses(w, suite.Config).Namespace("forge-a")
	_, err := all.Patch(w.ctx, w.name, types.MergePatchType, []byte(`{"status": {"quota": {"volumes": {"hard": 7}}, "rulesNotShown": 3}}`), metav1.PatchOptions{FieldManager: "somebody"})
	w.must(err)
	_, text := w.shows("a", "it is repaired", func(s tenantStatus) bool { return s.Status.Quota["volumes"].Hard == nil })
	if strings.Contains(text, "rulesNotShown") {
		t.Error(text)
	}
}
