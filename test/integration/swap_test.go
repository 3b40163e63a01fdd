package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestSwapVolumes: two claims exchange their volumes, which are at two backends. From then
// on, everything about a claim is done with the volume that it has, under the handle that
// Kubernetes knows.
func TestSwapVolumes(t *testing.T) {
	w := newWorld(t, "swap", cindersim.Options{})
	w.withCSI("{}")
	w.policy = w.change("    workflow: reserve\n", "    mode: csi\n")
	w.policy = w.change(`      - storageClasses: ["swap-lab"]
        backends: [lab]
`, `      - storageClasses: ["swap-lab"]
        backends: [lab, gold]
      - storageClasses: ["swap-gold"]
        backends: [gold, lab]
`)
	w.policy = w.change("clusterID: cluster-swap\n", "clusterID: cluster-swap\naudit: {interval: 500ms, grace: 1m, delete: true}\n")
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	s := w.startWithSidecar()
	c := csiCluster{name: w.name, cluster: "cluster-swap", sim: w.sim}
	w.must(c.register(w.ctx, 2))
	t.Cleanup(func() {
		for n := range 2 {
			_ = suite.Client.StorageV1().CSINodes().Delete(t.Context(), c.node(n), metav1.DeleteOptions{})
		}
	})
	w.claim("b", "data", "lab", "1Gi")
	w.claim("b", "yesterday", "gold", "1Gi")
	claims, err := suite.WaitBound(w.ctx, "swap-b", 2)
	w.must(err)
	slices.SortFunc(claims, func(a, b corev1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
	has := func(claim corev1.PersistentVolumeClaim, backend string, volume cindersim.Volume) csiVolume {
		t.Helper()
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		w.must(err)
		at, err := objects.LocationOf(pv)
		w.must(err)
		now, found := w.sim.Volume(at.ID)
		if at.Backend != backend || pv.Labels[annotation("backend")] != backend || at.ID != volume.ID || !found || now.Metadata["csi.storage.k8s.io/pv/name"] != pv.Name ||
			now.Metadata[annotation("claim-uid")] != string(claim.UID) || now.Metadata[annotation("swap")] != "" || pv.Annotations[annotation("swap")] != "" {
			t.Errorf("claim %s has volume %s, want %s/%s; its metadata is %v, and the annotations %v", claim.Name, at, backend, volume.ID, now.Metadata, pv.Annotations)
		}
		return csiVolume{id: at.ID, pv: pv.Name}
	}
	a, b := w.sim.VolumesNamed(claims[0].Spec.VolumeName)[0], w.sim.VolumesNamed(claims[1].Spec.VolumeName)[0]
	for _, id := range []string{a.ID, b.ID} {
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			if now, _ := w.sim.Volume(id); now.Metadata[annotation("attached")] == "" {
				return "volume " + id + " is not marked yet", nil
			}
			return "", nil
		}))
	}
	first := has(claims[0], "lab", a)
	has(claims[1], "gold", b)
	swap := func(wantCode int, want string, flags ...string) {
		t.Helper()
		code, output := w.volumeCommand("swap", append([]string{"swap-b/data", "--with", "yesterday"}, flags...)...)
		if code != wantCode || !strings.Contains(output, want) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s", flags, code, wantCode, want, output)
		}
	}
	swap(0, fmt.Sprintf("claim swap-b/data (PersistentVolume %s): volume gold/%s instead of lab/%s", claims[0].Spec.VolumeName, b.ID, a.ID))
	w.must(c.attachTo(w.ctx, first, 0))
	_, err = c.attached(w.ctx, first, 0)
	w.must(err)
	swap(1, "claim data is in use on node "+c.node(0), "--apply")
	w.must(c.detachFrom(w.ctx, first, 0))
	w.must(c.detached(w.ctx, first, 0))
	has(claims[0], "lab", a)

	swap(0, "volume gold/"+b.ID, "--apply")
	has(claims[0], "gold", b)
	has(claims[1], "lab", a)
	swap(0, "have each other's volumes; nothing to do", "--apply")
	swap(0, "volume lab/"+a.ID, "--apply", "--back")
	has(claims[0], "lab", a)
	swap(0, "do not have each other's volumes; nothing to do", "--apply", "--back")
	swap(0, "volume gold/"+b.ID, "--apply")
	first, second := has(claims[0], "gold", b), has(claims[1], "lab", a)
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}
	for n, v := range []csiVolume{first, second} {
		w.must(c.attachTo(w.ctx, v, n))
		connection, err := c.attached(w.ctx, v, n)
		w.must(err)
		if connection.Volume == nil || connection.Volume.ID != v.id {
			t.Errorf("the node is told of volume %+v, want %s", connection.Volume, v.id)
		}
	}
	// A new leader knows no more than the objects say.
	s.Attacher.Stop()
	w.must(s.Stop(w.ctx))
	w.startWithSidecar()
	for n, v := range []csiVolume{first, second} {
		w.must(c.detachFrom(w.ctx, v, n))
		w.must(c.detached(w.ctx, v, n))
	}
	w.must(suite.Client.CoreV1().PersistentVolumeClaims("swap-b").Delete(w.ctx, "data", metav1.DeleteOptions{}))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, found := w.sim.Volume(b.ID); found {
			return "volume " + b.ID + " is there", nil
		}
		return "", nil
	}))
	has(claims[1], "lab", a)
	w.must(c.attachTo(w.ctx, second, 1))
	_, err = c.attached(w.ctx, second, 1)
	w.must(err)
	w.must(c.detachFrom(w.ctx, second, 1))
	w.must(c.detached(w.ctx, second, 1))
	w.must(suite.DeleteClaims(w.ctx, "swap-b"))
	w.noResidue()
}
