package integration

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestATenantDoesNotChooseTheImageOfCopyingPods: a Deployment of a tenant has the labels that
// the command looks for. The chart's own has others if nameOverride is set, and then the
// tenant's image runs as root beside the volumes of every tenant that is moved; otherwise, no
// volume is moved any more without --image.
func TestATenantDoesNotChooseTheImageOfCopyingPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "moveimage", cindersim.Options{})
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.claim("b", "data", "gold", "1Gi")
	labels := map[string]string{"app.kubernetes.io/name": "standalone-cinder", "app.kubernetes.io/component": "provisioner"}
	deployments := suite.Client.AppsV1().Deployments("moveimage-a")
	_, err := deployments.Create(w.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: labels}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "standalone-cinder", Image: "tenant.example/evil"}}}},
	}}, metav1.CreateOptions{})
	w.must(err)
	t.Cleanup(func() { w.must(deployments.Delete(context.Background(), "mine", metav1.DeleteOptions{})) })
	if code, output := w.volumeCommand("move", "moveimage-b/data", "--to-backend", "gold", "--apply"); !strings.Contains(output, "give --image") {
		t.Errorf("the Deployment of tenant a gives the image of the pod for tenant b: exit code %d, %s", code, output)
	}
}
