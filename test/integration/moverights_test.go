package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestADrainNamesWhatItLeaves: a tenant's label, or a former volume that somebody kept, must
// not let an operator believe that the array can be switched off.
func TestADrainNamesWhatItLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "moveleft", cindersim.Options{})
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.start()
	_, err := suite.CreateClaim(w.ctx, harness.Claim("moveleft-b", "mine", "moveleft-lab", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Labels = map[string]string{annotation("copy"): "former"}
	}))
	w.must(err)
	_, err = suite.WaitBound(w.ctx, "moveleft-b", 1)
	w.must(err)
	code, output := w.volumeCommand("move", "--from-backend", "lab", "--to-backend", "gold", "--image", "none.example/program", "--apply")
	if code == 0 && !strings.Contains(output, "moveleft-b/mine") {
		t.Errorf("claim mine has a volume on backend lab, and the command that moves all of them says:\n%s", output)
	}
	w.must(suite.DeleteClaims(w.ctx, "moveleft-b"))
	w.noResidue()
}
