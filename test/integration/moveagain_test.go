package integration

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestADrainEndsWhatItHasBegun: a drain was interrupted when the claim had its new volume, and
// both volumes were still reserved, so no pod of the claim starts. It is run again, with the
// rights that deploy/examples/drain.yaml gives to a CronJob.
func TestADrainEndsWhatItHasBegun(t *testing.T) {
	w, node := withCopyingNode(t, "moveagain")
	for _, path := range []string{"base/deployment.yaml", "examples/drain.yaml"} {
		w.must(suite.ApplyFile(w.ctx, "deploy/"+path))
	}
	kubeconfig, err := suite.ControlPlane().ServiceAccountKubeconfig(w.ctx, harness.Namespace, "standalone-cinder-drain")
	w.must(err)
	w.claim("b", "data", "lab", "1Gi")
	_, err = suite.WaitBound(w.ctx, "moveagain-b", 1)
	w.must(err)

	drain := func() (int, string) {
		return w.volumeCommand("move", "--from-backend", "lab", "--to-backend", "gold", "--storage-class", "moveagain-gold", "--apply", "--kubeconfig", kubeconfig)
	}
	node.prepare(`{}`, nil)
	fault := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "action.os-unreserve", Code: 403})
	code, output := drain()
	fault.Remove()
	if code != 1 || fault.Applied() == 0 {
		t.Fatalf("exit code %d: %s", code, output)
	}
	v, err := node.boundTo(w.ctx, "data")
	w.must(err)
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, v.pv, metav1.GetOptions{})
	w.must(err)
	if pv.Annotations[objects.AnnotationBackend] != "gold" {
		t.Fatalf("the claim has a volume of backend %s", pv.Annotations[objects.AnnotationBackend])
	}
	code, output = drain()
	if now, _ := w.sim.Volume(v.id); now.Status != "available" || now.Metadata[annotation("swap")] != "" {
		t.Errorf("the drain ends with exit code %d, and volume %s of claim data is %s, reserved for the swap, so no pod gets it:\n%s", code, v.id, now.Status, output)
	}
	single, said := w.volumeCommand("move", "moveagain-b/data", "--to-backend", "gold", "--image", "none.example/program", "--storage-class", "moveagain-gold", "--apply")
	if now, _ := w.sim.Volume(v.id); single != 0 || now.Status != "available" || strings.Contains(said, "is ended first") {
		t.Errorf("the command for the claim: exit code %d, the volume is %s: %s", single, now.Status, said)
	}
	w.must(suite.DeleteClaims(w.ctx, "moveagain-b"))
	w.noResidue()
}
