package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// rescue runs volume import for a claim of tenant b in mode csi.
func (w *world) rescue(volume, claim string, flags ...string) (code int, output string) {
	w.Helper()
	return w.volumeCommand("import", append([]string{"--backend", "lab", "--volume", volume, "--namespace", w.name + "-b", "--claim", claim,
		"--storage-class", w.name + "-lab", "--secret-namespace", harness.Namespace}, flags...)...)
}

// leftBehind waits until a claim of tenant b is gone, and removes its PersistentVolume,
// whose volume stays.
func (w *world) leftBehind(claim, pv string) {
	w.Helper()
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Delete(w.ctx, claim, metav1.DeleteOptions{}))
	w.released(pv)
	w.must(suite.Client.CoreV1().PersistentVolumes().Delete(w.ctx, pv, metav1.DeleteOptions{}))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return pv + " is there", err
	}))
}

// importedInModeCSI waits until a claim of tenant b has a volume in mode csi, which is
// available.
func (w *world) importedInModeCSI(claim, volume, filesystems string) csiVolume {
	w.Helper()
	var pv *corev1.PersistentVolume
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		bound, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Get(w.ctx, claim, metav1.GetOptions{})
		if err != nil || bound.Status.Phase != corev1.ClaimBound || bound.Spec.VolumeName != "imported-"+volume {
			return fmt.Sprintf("%s is %s to %q", claim, bound.Status.Phase, bound.Spec.VolumeName), err
		}
		pv, err = suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, bound.Spec.VolumeName, metav1.GetOptions{})
		return "", err
	}))
	want := map[string]string{"neverFormat": "true"}
	if filesystems != "" {
		want["filesystemUUIDs"] = filesystems
	}
	source := pv.Spec.CSI
	if source == nil || source.Driver != wire.DriverName || source.VolumeHandle != "lab/"+volume || !maps.Equal(source.VolumeAttributes, want) {
		w.Fatalf("the source is %+v", source)
	}
	secret, err := suite.Client.CoreV1().Secrets(harness.Namespace).Get(w.ctx, source.NodeStageSecretRef.Name, metav1.GetOptions{})
	w.must(err)
	v, _ := w.sim.Volume(volume)
	if len(secret.Data) > 0 || v.Status != "available" || len(v.Attachments) > 0 || v.Metadata[annotation("mode")] != "csi" || v.Metadata[annotation("attached")] != "true" {
		w.Errorf("the Secret has %d entries, the volume is %s with %v", len(secret.Data), describe([]cindersim.Volume{v}), v.Metadata)
	}
	return csiVolume{id: volume, pv: pv.Name}
}

// TestVolumeInModeCSIIsRescued: the PersistentVolume of the driver and its claim are gone,
// and the volume is imported again, by an operator, and then for a tenant's claim. The real
// external-attacher attaches it to nodes, and no node may use it during an import.
func TestVolumeInModeCSIIsRescued(t *testing.T) {
	w := csiWorld(t, "importcsi")
	w.policy = w.change("        mode: csi\n", "        mode: csi\n        import: {names: [\"*\"]}\n")
	c := csiCluster{name: w.name, cluster: "cluster-" + w.name, sim: w.sim, project: cindersim.DefaultNoauthProject, backend: "lab", provisioner: w.provisioner}
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.must(c.register(w.ctx, 2))
	t.Cleanup(func() {
		for n := range 2 {
			_ = suite.Client.StorageV1().CSINodes().Delete(context.Background(), c.node(n), metav1.DeleteOptions{})
		}
	})
	s := w.startWithSidecar()
	w.claim("b", "data", "lab", "1Gi")
	pv, made := w.madeFor("data")
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv.Name, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`), metav1.PatchOptions{})
	w.must(err)
	first := csiVolume{id: made.ID, pv: pv.Name}
	w.must(c.attachTo(w.ctx, first, 0))
	_, err = c.attached(w.ctx, first, 0)
	w.must(err)
	if code, output := w.rescue(made.ID, "next", "--apply"); code != 1 || !strings.Contains(output, "PersistentVolume "+pv.Name+" names volume") {
		t.Errorf("while its PersistentVolume exists: exit code %d:\n%s", code, output)
	}
	w.must(c.detachFrom(w.ctx, first, 0))
	w.must(c.detached(w.ctx, first, 0))
	w.leftBehind("data", pv.Name)
	kept, _ := w.sim.Volume(made.ID)

	// A node says that it uses the volume, whatever VolumeAttachments say.
	user, err := suite.Client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-user"}}, metav1.CreateOptions{})
	w.must(err)
	user.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName("kubernetes.io/csi/" + wire.DriverName + "^lab/" + made.ID)}
	_, err = suite.Client.CoreV1().Nodes().UpdateStatus(w.ctx, user, metav1.UpdateOptions{})
	w.must(err)
	if code, output := w.rescue(made.ID, "next", "--apply"); code != 1 || !strings.Contains(output, "node "+user.Name+" still uses volume "+made.ID) {
		t.Errorf("while a node uses it: exit code %d:\n%s", code, output)
	}
	w.must(suite.Client.CoreV1().Nodes().Delete(w.ctx, user.Name, metav1.DeleteOptions{}))
	w.untouched("it was refused", kept)
	w.noClaimsOf("b")

	code, output := w.rescue(made.ID, "next")
	if code != 0 || !strings.Contains(output, "volumeHandle: lab/"+made.ID) || !strings.Contains(output, "in mode csi") || strings.Contains(output, "follows from the connection") {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	w.untouched("only a plan was made", kept)
	if code, output := w.rescue(made.ID, "next", "--apply"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	second := w.importedInModeCSI("next", made.ID, "")
	if code, output := w.rescue(made.ID, "next", "--apply"); code != 0 || !strings.Contains(output, "already imported") {
		t.Errorf("again: exit code %d:\n%s", code, output)
	}
	// What is left of the PersistentVolume that was deleted by hand is its empty Secret.
	if code, answer := w.audit("--delete"); code != 0 || len(answer.Findings) > 0 || !slices.Equal(kindsOf(answer.Removed), []string{"OrphanSecret"}) {
		t.Errorf("exit code %d, the audit finds %+v, and removed %+v", code, answer.Findings, answer.Removed)
	}
	w.must(c.attachTo(w.ctx, second, 1))
	_, err = c.attached(w.ctx, second, 1)
	w.must(err)
	w.must(c.detachFrom(w.ctx, second, 1))
	w.must(c.detached(w.ctx, second, 1))

	// A tenant gets it under the next leader, and it ends like any other.
	w.leftBehind("next", second.pv)
	w.must(s.Stop(w.ctx))
	w.startWithSidecar()
	w.asks("b", "tenants", "lab", "1Gi", made.ID)
	third := w.importedInModeCSI("tenants", made.ID, "")
	w.must(c.attachTo(w.ctx, third, 0))
	_, err = c.attached(w.ctx, third, 0)
	w.must(err)
	w.must(c.detachFrom(w.ctx, third, 0))
	w.must(c.detached(w.ctx, third, 0))

	// One that was never in mode csi needs somebody who knows its filesystem.
	foreign := w.add(cindersim.Volume{Name: "foreign", Project: cindersim.DefaultNoauthProject, SizeGiB: 1})
	if code, output := w.rescue(foreign.ID, "foreign", "--apply"); code != 1 || !strings.Contains(output, "give it with --filesystem-uuid") {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	w.untouched("nobody knows its filesystem", foreign)
	if code, output := w.rescue(foreign.ID, "foreign", "--apply", "--filesystem-uuid", strings.ToUpper(oldFilesystem), "--reclaim-policy", "Delete"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	w.importedInModeCSI("foreign", foreign.ID, oldFilesystem)
	_, err = suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, third.pv, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	w.noResidue()
	if left := w.secretsOf(t); len(left) > 0 {
		t.Errorf("%d Secrets are left, such as %s", len(left), left[0].Name)
	}
}
