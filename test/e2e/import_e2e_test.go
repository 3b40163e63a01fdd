//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestImportedVolumesHaveTheirBytes imports, beside the running replicas, a volume
// that somebody made at Cinder and one that a claim left with Retain.
func TestImportedVolumesHaveTheirBytes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	w := startWorld(ctx, t)
	const namespace, class = "team-b", "lab"
	dir := t.TempDir()
	policyFile := filepath.Join(dir, "policy.yaml")
	must(t, os.WriteFile(policyFile, []byte(policyOf(w.env)), 0o600))
	kubeconfig, err := w.Administrator(dir, "", nil)
	must(t, err)
	imported := func(volume, claim string, flags ...string) *corev1.PersistentVolume {
		t.Helper()
		code, output, err := w.Run(ctx, append([]string{"volume", "import", "--policy", policyFile, "--clouds-file", w.env.CloudsFile, "--kubeconfig", kubeconfig,
			"--backend", class, "--volume", volume, "--namespace", namespace, "--claim", claim, "--storage-class", class, "--apply"}, flags...)...)
		must(t, err)
		if code != 0 {
			t.Fatalf("exit code %d:\n%s", code, output)
		}
		_, err = w.WaitBound(ctx, namespace, 1)
		must(t, err)
		pv := w.persistentVolume(ctx, t, namespace, claim)
		if pv.Name != "imported-"+volume {
			t.Errorf("claim %s has PersistentVolume %s", claim, pv.Name)
		}
		return pv
	}
	pattern := bytes.Repeat([]byte("kept through all imports;"), 64)[:512]
	reads := func(pv *corev1.PersistentVolume) {
		t.Helper()
		read, err := w.disk(t, pv).Read(ctx, 1<<20, 512)
		must(t, err)
		if !bytes.Equal(read, pattern) {
			t.Errorf("%s reads %.40q", pv.Name, read)
		}
	}
	// letGo deletes a claim and its PersistentVolume; the volume is kept.
	letGo := func(claim string, pv *corev1.PersistentVolume) {
		t.Helper()
		must(t, w.Client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, claim, metav1.DeleteOptions{}))
		must(t, harness.Eventually(ctx, func() (string, error) {
			now, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
			if err != nil || now.Status.Phase == corev1.VolumeReleased {
				return "", err
			}
			return pv.Name + " is " + string(now.Status.Phase), nil
		}))
		must(t, w.Client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{}))
		must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	}

	_, err = w.CreateClaim(ctx, harness.Claim(namespace, "first", class, "1Gi", nil))
	must(t, err)
	_, err = w.WaitBound(ctx, namespace, 1)
	must(t, err)
	pv := w.persistentVolume(ctx, t, namespace, "first")
	must(t, w.disk(t, pv).Write(ctx, 1<<20, pattern))
	_, err = w.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`), metav1.PatchOptions{})
	must(t, err)
	kept := pv.Annotations[annotationVolume]
	letGo("first", pv)

	pv = imported(kept, "second")
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("the imported volume has the reclaim policy %s", pv.Spec.PersistentVolumeReclaimPolicy)
	}
	reads(pv)
	letGo("second", pv)

	// With Delete, it ends like any other.
	pv = imported(kept, "third", "--reclaim-policy", "Delete")
	reads(pv)
	must(t, w.DeleteClaims(ctx, namespace))
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, w.env) }))

	foreign, err := createVolume(ctx, w.env, "made by hand", w.env.Types.ISCSIMultipath)
	must(t, err)
	pv = imported(foreign, "fourth", "--reclaim-policy", "Delete")
	must(t, w.disk(t, pv).Write(ctx, 1<<20, pattern))
	reads(pv)
	must(t, w.DeleteClaims(ctx, namespace))
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) {
		var answer struct {
			Volumes []struct{ ID string } `json:"volumes"`
		}
		err := ask(ctx, w.env, "/volumes?all_tenants=1", &answer)
		if err == nil && slices.ContainsFunc(answer.Volumes, func(v struct{ ID string }) bool { return v.ID == foreign || v.ID == kept }) {
			return "an imported volume is left at Cinder", nil
		}
		return "", err
	}))
}
