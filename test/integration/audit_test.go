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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestAuditTellsWhatIsNotAsItShouldBe breaks one thing of each kind, and asks
// with the rights of the program's own account.
func TestAuditTellsWhatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "audit", cindersim.Options{})
	leader := w.start()
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

	// A leader would remove the leftovers itself.
	w.must(leader.Stop(w.ctx))
	volumes := map[string]cindersim.Volume{}
	for _, claim := range claims {
		volumes[claim.Name] = w.sim.VolumesNamed(claim.Spec.VolumeName)[0]
	}
	w.must(w.sim.RemoveVolume(volumes["lost"].ID))
	w.must(w.sim.SetVolumeStatus(volumes["failed"].ID, "error"))
	// A copy of a stamp whose claim never existed, one of another cluster, and
	// a volume without a stamp.
	orphan := maps.Clone(volumes["well"].Metadata)
	delete(orphan, "readonly")
	delete(orphan, "attached_mode")
	delete(orphan, "standalone-cinder.openstack.org/attached")
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
		Annotations: map[string]string{"standalone-cinder.openstack.org/persistent-volume": "pvc-audit", "standalone-cinder.openstack.org/cluster": "cluster-audit"},
	}}, metav1.CreateOptions{})
	w.must(err)
	before := len(w.sim.Volumes())

	code, answer := w.audit()
	kinds := kindsOf(answer.Findings)
	for _, f := range answer.Findings {
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

	// The removal takes exactly the orphans, and only on request.
	code, answer = w.audit("--delete")
	if kinds := kindsOf(answer.Findings); code != 1 || !slices.Equal(kinds, []string{"MissingVolume", "StuckVolume"}) {
		t.Errorf("exit code %d, left %v", code, kinds)
	}
	if kinds := kindsOf(answer.Removed); !slices.Equal(kinds, []string{"OrphanSecret", "OrphanVolume"}) {
		t.Errorf("removed %v", kinds)
	}
	if after := len(w.sim.Volumes()); after != before-1 {
		t.Errorf("removing one orphan left %d of %d volumes", after, before)
	}
	_, err = suite.Client.CoreV1().Secrets(harness.Namespace).Get(w.ctx, "pvc-audit-credentials", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the orphaned Secret: %v", err)
	}
	w.start()
	w.must(suite.DeleteClaims(w.ctx, "audit-a"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
}

type auditFinding struct{ Kind, Message, Secret, Volume string }

type auditAnswer struct{ Findings, Removed []auditFinding }

func kindsOf(findings []auditFinding) []string {
	var kinds []string
	for _, f := range findings {
		kinds = append(kinds, f.Kind)
	}
	return kinds
}

// audit runs the subcommand with no grace.
func (w *world) audit(flags ...string) (code int, answer auditAnswer) {
	w.Helper()
	dir := w.TempDir()
	policyFile, clouds := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "clouds.yaml")
	w.must(os.WriteFile(policyFile, []byte(w.policy), 0o600))
	w.must(os.WriteFile(clouds, []byte(w.clouds), 0o600))
	code, output, err := suite.Run(w.ctx, append([]string{"audit", "--policy", policyFile, "--clouds-file", clouds, "--kubeconfig", "KUBECONFIG",
		"--namespace", harness.Namespace, "--provisioner-name", w.provisioner, "--grace", time.Duration(0).String(), "--output", "json"}, flags...)...)
	w.must(err)
	document, _, _ := strings.Cut(output, "\nstandalone-cinder: ")
	if err := json.Unmarshal([]byte(document), &answer); err != nil {
		w.Fatalf("exit code %d, %v:\n%s", code, err, output)
	}
	return code, answer
}

// TestLeaderAudits: the leader reports an old orphan by metrics and an event,
// and removes it only if the policy allows that.
func TestLeaderAudits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "auditor", cindersim.Options{})
	w.policy = strings.Replace(w.policy, "clusterID: cluster-auditor\n", "clusterID: cluster-auditor\naudit: {interval: 500ms, grace: 1m}\n", 1)
	replica := w.start()
	w.claim("a", "well", "gold", "1Gi")
	claims, err := suite.WaitBound(w.ctx, "auditor-a", 1)
	w.must(err)
	volume := w.sim.VolumesNamed(claims[0].Spec.VolumeName)[0]
	stamp := func(uid, cluster string) map[string]string {
		metadata := map[string]string{}
		for key, value := range volume.Metadata {
			metadata[key] = strings.ReplaceAll(value, string(claims[0].UID), uid)
		}
		delete(metadata, "readonly")
		delete(metadata, "attached_mode")
		delete(metadata, "standalone-cinder.openstack.org/attached")
		delete(metadata, "standalone-cinder.openstack.org/requested-at")
		metadata["standalone-cinder.openstack.org/cluster"] = cluster
		return metadata
	}
	plant := func(metadata map[string]string, age time.Duration) string {
		id, err := w.sim.AddVolume(cindersim.Volume{Name: "planted", Project: "team-a", Status: "available", SizeGiB: 1, Metadata: metadata, Created: time.Now().Add(-age)})
		w.must(err)
		return id
	}
	orphan := plant(stamp("0-0-1", "cluster-auditor"), 2*time.Hour)
	used := stamp("0-0-2", "cluster-auditor")
	used["readonly"] = "False"
	kept := []string{volume.ID, plant(used, 2*time.Hour), plant(stamp("0-0-3", "another"), 2*time.Hour), plant(nil, 2*time.Hour)}
	second := plant(stamp(string(claims[0].UID), "cluster-auditor"), 2*time.Hour)

	metric := `standalone_cinder_audit_findings{backend="gold",kind="OrphanVolume"} 2`
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, metrics, err := replica.Get(w.ctx, "/metrics")
		if err != nil || !strings.Contains(metrics, metric) {
			return "no metric " + metric, err
		}
		return "", nil
	}))
	if _, err := suite.WaitEvent(w.ctx, harness.Namespace, "test.example-auditor", "OrphanVolume", orphan); err != nil {
		t.Error(err)
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, exists := w.sim.Volume(second); exists {
			return "the second volume of a recorded claim exists", nil
		}
		return "", nil
	}))
	if _, exists := w.sim.Volume(orphan); !exists {
		t.Fatal("the orphan was removed although the policy does not say so")
	}

	w.must(replica.WritePolicy(strings.Replace(w.policy, "grace: 1m}", "grace: 1m, delete: true}", 1)))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, exists := w.sim.Volume(orphan); exists {
			return "the orphan exists", nil
		}
		return "", nil
	}))
	for _, id := range kept {
		if _, exists := w.sim.Volume(id); !exists {
			t.Errorf("volume %s is gone", id)
		}
	}
}
