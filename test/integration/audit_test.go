package integration

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestAuditTellsWhatIsNotAsItShouldBe breaks one thing of each kind, and asks
// with the rights of the program's own account.
func TestAuditTellsWhatIsNotAsItShouldBe(t *testing.T) {
	w := newWorld(t, "audit", cindersim.Options{})
	w.start()
	for _, name := range []string{"well", "lost", "failed"} {
		w.claim("a", name, "gold", "1Gi")
	}
	claims, err := suite.WaitBound(w.ctx, "audit-a", 3)
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, v := range w.sim.Volumes() {
			if v.Status != "in-use" {
				return v.Name + " is " + v.Status, nil
			}
		}
		return "", nil
	}))
	if code, answer := w.audit(); code != 0 || len(answer.Findings) != 0 {
		t.Fatalf("exit code %d, findings %+v", code, answer.Findings)
	}

	volumes := map[string]cindersim.Volume{}
	for _, claim := range claims {
		volumes[claim.Name] = w.sim.VolumesNamed(claim.Spec.VolumeName)[0]
	}
	w.must(w.sim.RemoveVolume(volumes["lost"].ID))
	w.must(w.sim.SetVolumeStatus(volumes["failed"].ID, "error"))
	// A copy of a stamp whose claim never was, one of another cluster, and one of
	// nobody's.
	orphan := maps.Clone(volumes["well"].Metadata)
	delete(orphan, "readonly")
	delete(orphan, "attached_mode")
	for key, value := range orphan {
		orphan[key] = strings.ReplaceAll(value, string(claims[0].UID), "0-0-0")
	}
	for _, claim := range claims {
		for key, value := range orphan {
			orphan[key] = strings.ReplaceAll(value, string(claim.UID), "0-0-0")
		}
	}
	other := maps.Clone(orphan)
	other["standalone-cinder.openstack.org/cluster"] = "another"
	for _, metadata := range []map[string]string{orphan, other, nil} {
		_, err := w.sim.AddVolume(cindersim.Volume{Name: "planted", Project: "team-a", Status: "available", SizeGiB: 1, Metadata: metadata})
		w.must(err)
	}
	_, err = suite.Client.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-audit-credentials", Labels: map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"},
		Annotations: map[string]string{"standalone-cinder.openstack.org/persistent-volume": "pvc-audit"},
	}}, metav1.CreateOptions{})
	w.must(err)
	before := len(w.sim.Volumes())

	code, answer := w.audit()
	var kinds []string
	for _, f := range answer.Findings {
		if f.Kind == "OrphanSecret" && f.Secret != "pvc-audit-credentials" {
			continue // of a test that runs beside this one
		}
		kinds = append(kinds, f.Kind)
		if strings.Contains(f.Message, "password") {
			t.Errorf("a finding tells too much: %+v", f)
		}
	}
	if want := []string{"MissingVolume", "OrphanSecret", "OrphanVolume", "StuckVolume"}; code != 1 || !slices.Equal(kinds, want) {
		t.Errorf("exit code %d, findings %+v, want one each of %v", code, answer.Findings, want)
	}
	if after := len(w.sim.Volumes()); after != before {
		t.Errorf("an audit left %d of %d volumes", after, before)
	}
	w.must(suite.Client.CoreV1().Secrets(harness.Namespace).Delete(w.ctx, "pvc-audit-credentials", metav1.DeleteOptions{}))
	w.must(suite.DeleteClaims(w.ctx, "audit-a"))
	w.must(suite.WaitNoPersistentVolumes(w.ctx, w.provisioner))
}

type auditAnswer struct {
	Findings []struct{ Kind, Message, Secret string }
}

// audit runs the subcommand with no grace.
func (w *world) audit() (code int, answer auditAnswer) {
	w.Helper()
	dir := w.TempDir()
	policyFile, clouds := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "clouds.yaml")
	w.must(os.WriteFile(policyFile, []byte(w.policy), 0o600))
	w.must(os.WriteFile(clouds, []byte(w.clouds), 0o600))
	code, output, err := suite.Run(w.ctx, "audit", "--policy", policyFile, "--clouds-file", clouds, "--kubeconfig", "KUBECONFIG",
		"--namespace", harness.Namespace, "--provisioner-name", w.provisioner, "--grace", time.Duration(0).String(), "--output", "json")
	w.must(err)
	document, _, _ := strings.Cut(output, "\nstandalone-cinder: ")
	if err := json.Unmarshal([]byte(document), &answer); err != nil {
		w.Fatalf("exit code %d, %v:\n%s", code, err, output)
	}
	return code, answer
}
