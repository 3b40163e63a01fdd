package integration

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// importPolicy lets tenants a and b import volumes of backend gold.
func (w *world) importPolicy() {
	w.policy = strings.Replace(w.policy, "        fsType: xfs\n", "        fsType: xfs\n        import: {names: [\"a-*\", shared], metadata: {import: \"yes\"}}\n", 1)
	w.policy = strings.Replace(w.policy, "        backends: [lab]\n", "        backends: [lab]\n      - storageClasses: [\""+w.name+"-gold\"]\n        backends: [gold]\n        import: {names: [shared]}\n", 1)
}

// asks makes a claim of a tenant that asks for a volume.
func (w *world) asks(namespace, name, class, size, volume string) *corev1.PersistentVolumeClaim {
	w.Helper()
	claim, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-"+namespace, name, w.name+"-"+class, size, func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{annotation("import-volume"): volume}
	}))
	w.must(err)
	return claim
}

// TestTenantImportsAVolume: a claim with the annotation gets the volume, keeps it
// when it is deleted, and the tenant imports it again, under a leader that knows
// nothing of the past.
func TestTenantImportsAVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "timport", cindersim.Options{})
	w.importPolicy()
	w.policy = strings.Replace(w.policy, "    metadata: {costcenter: \"4711\"}\n", "    metadata: {costcenter: \"4711\"}\n    quota: {volumes: 1, gigabytes: 3}\n", 1)
	w.policy = strings.Replace(w.policy, "clusterID: cluster-timport\n", "clusterID: cluster-timport\naudit: {interval: 500ms, grace: 1m, delete: true}\n", 1)
	leader := w.start()
	granted := map[string]string{"import": "yes"}
	before := w.add(cindersim.Volume{Name: "a-data", Project: "team-a", SizeGiB: 3, Metadata: granted})

	claim := w.asks("a", "data", "gold", "2Gi", "a-data")
	_, pv := w.imported("data", before.ID)
	if size := pv.Spec.Capacity.Storage().String(); size != "3Gi" || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain ||
		pv.Annotations[annotation("claim-uid")] != string(claim.UID) || pv.Annotations[annotation("tenant")] != "tenant-a" {
		t.Errorf("the PersistentVolume is %s, %+v", size, pv)
	}
	_, err := suite.WaitEvent(w.ctx, "timport-a", "data", "VolumeImported", "tenant tenant-a, rule tenants[0].classes[0]: volume "+before.ID+" (3 GiB) of backend gold is imported")
	w.must(err)
	if volumes := w.sim.Volumes(); len(volumes) != 1 {
		t.Errorf("a volume was made besides: %s", describe(volumes))
	}
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="gigabytes",scope="tenant",type="used"} 3`)
	w.metric(leader, `standalone_cinder_volume_imports_total{outcome="success"} 1`)
	if _, line, _ := strings.Cut(leader.Log(), "Imported a volume"); !strings.Contains(strings.SplitN(line, "\n", 2)[0], `"requestID":"req-`) {
		t.Errorf("the audit line has no request ID: %.400s", line)
	}

	// No room is left for another, and the claim waits for it.
	other := w.add(cindersim.Volume{Name: "a-other", Project: "team-a", SizeGiB: 1, Metadata: granted})
	w.asks("a", "other", "gold", "1Gi", other.ID)
	_, err = suite.WaitEvent(w.ctx, "timport-a", "other", "QuotaExceeded", "tenant-a")
	w.must(err)
	w.untouched("the quota is full", other)
	w.must(suite.Client.CoreV1().PersistentVolumeClaims("timport-a").Delete(w.ctx, "other", metav1.DeleteOptions{}))

	// The volume outlives claim and PersistentVolume, and the next leader imports it
	// for the tenant's next claim, whose pod comes later. Its room is counted once.
	w.must(suite.DeleteClaims(w.ctx, "timport-a"))
	w.released(pv.Name)
	w.must(suite.Client.CoreV1().PersistentVolumes().Delete(w.ctx, pv.Name, metav1.DeleteOptions{}))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	w.must(leader.Stop(w.ctx))
	leader = w.start()
	_, err = suite.Client.StorageV1().StorageClasses().Get(w.ctx, "timport-gold", metav1.GetOptions{})
	w.must(err)
	w.asks("a", "next", "gold", "3Gi", before.ID)
	w.imported("next", before.ID)
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="gigabytes",scope="tenant",type="used"} 3`)

	_, err = suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv.Name, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "timport-a"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, exists := w.sim.Volume(before.ID); exists {
			return "the volume is not deleted", nil
		}
		return "", nil
	}))
}

// TestTenantImportsForAPodThatComesLater: a StorageClass that waits for the first
// consumer does not delay an import.
func TestTenantImportsForAPodThatComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "timportwait", cindersim.Options{})
	w.importPolicy()
	w.policy = strings.Replace(w.policy, `["timportwait-gold"]`, `["timportwait-gold", "timportwait-wait"]`, 1)
	w.must(suite.CreateClass(w.ctx, "timportwait-wait", w.provisioner, func(class *storagev1.StorageClass) {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		class.VolumeBindingMode, class.Parameters = &mode, map[string]string{"type": "iscsi"}
	}))
	w.start()
	volume := w.add(cindersim.Volume{Name: "shared", Project: "team-a", SizeGiB: 1, Metadata: map[string]string{"import": "yes"}})
	w.asks("a", "data", "wait", "1Gi", "shared")
	w.imported("data", volume.ID)
}

// TestTenantsImportIsRefused: what a rule does not grant looks like what does not
// exist, nothing is changed, and nothing is made in its place.
func TestTenantsImportIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "timportno", cindersim.Options{})
	w.importPolicy()
	w.start()
	add := func(name string, metadata map[string]string) cindersim.Volume {
		return w.add(cindersim.Volume{Name: name, Project: "team-a", SizeGiB: 1, Metadata: metadata})
	}
	granted := map[string]string{"import": "yes"}
	secret, unmarked, small := add("secret", granted), add("a-unmarked", nil), add("a-small", granted)
	first, second := add("a-twice", granted), add("a-twice", granted)
	stamp := func(tenant, cluster string) map[string]string {
		return map[string]string{"import": "yes", annotation("cluster"): cluster, annotation("tenant"): tenant, annotation("claim-uid"): "gone",
			"csi.storage.k8s.io/pv/name": "pvc-gone", "csi.storage.k8s.io/pvc/namespace": "timportno-b", "csi.storage.k8s.io/pvc/name": "gone", annotation("attached"): "true"}
	}
	theirs, foreign := add("a-theirs", stamp("tenant-b", "cluster-timportno")), add("a-foreign", stamp("tenant-a", "other"))
	busy := w.add(cindersim.Volume{Name: "a-busy", Project: "team-a", SizeGiB: 1, Status: "error", Metadata: granted})
	all := w.sim.Volumes()
	notFound := func(wanted string) string {
		return fmt.Sprintf("tenants[0].classes[0].import grants no volume with the ID or the name %q on the backends of the rule; correct the claim's annotation, or ask an operator", wanted)
	}
	for name, c := range map[string]struct{ namespace, class, size, wanted, reason, want string }{
		"none":      {"a", "gold", "1Gi", "none", "ImportedVolumeNotFound", notFound("none")},
		"outside":   {"a", "gold", "1Gi", secret.ID, "ImportedVolumeNotFound", notFound(secret.ID)},
		"unmarked":  {"a", "gold", "1Gi", unmarked.Name, "ImportedVolumeNotFound", notFound(unmarked.Name)},
		"theirs":    {"a", "gold", "1Gi", theirs.ID, "ImportedVolumeNotFound", notFound(theirs.ID)},
		"foreign":   {"a", "gold", "1Gi", foreign.ID, "ImportedVolumeNotFound", notFound(foreign.ID)},
		"too-large": {"a", "gold", "2Gi", small.ID, "ImportRefused", "requests 2Gi, but volume " + small.ID + " has 1 GiB; extend it first, or request less"},
		"busy":      {"a", "gold", "1Gi", busy.ID, "ImportFailed", "only an available volume without any can be imported"},
		"twice":     {"a", "gold", "1Gi", "a-twice", "AmbiguousVolume", `2 volumes that tenants[0].classes[0].import grants have the name "a-twice": ` + min(first.ID, second.ID) + ", " + max(first.ID, second.ID)},
		"empty":     {"a", "gold", "1Gi", "", "InvalidClaim", "is empty; give the ID or the name of a volume"},
		"no-import": {"b", "lab", "1Gi", "shared", "ImportNotGranted", "tenants[1].classes[0] grants no volumes that exist at Cinder"},
	} {
		w.asks(c.namespace, name, c.class, c.size, c.wanted)
		if _, err := suite.WaitEvent(w.ctx, w.name+"-"+c.namespace, name, c.reason, c.want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := w.sim.Volumes(); !reflect.DeepEqual(after, all) {
		t.Errorf("the volumes were changed to %s", describe(after))
	}
}

// TestTwoTenantsWantOneVolume: only one of them gets it. For the other it is as if
// it did not exist, also when the first one has left it behind.
func TestTwoTenantsWantOneVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "timporttwo", cindersim.Options{})
	w.importPolicy()
	w.start()
	volume := w.add(cindersim.Volume{Name: "shared", Project: "team-a", SizeGiB: 1, Metadata: map[string]string{"import": "yes"}})
	type wish struct{ namespace, name string }
	wishes := []wish{{"a", "one"}, {"b", "one"}, {"a", "two"}, {"b", "two"}}
	for _, want := range wishes {
		w.asks(want.namespace, want.name, "gold", "1Gi", "shared")
	}
	var winner wish
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, want := range wishes {
			claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+want.namespace).Get(w.ctx, want.name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if claim.Status.Phase == corev1.ClaimBound {
				winner = want
				return "", nil
			}
		}
		return "no claim is bound", nil
	}))
	for _, want := range wishes {
		reason := "ImportRefused"
		switch {
		case want == winner:
			continue
		case want.namespace != winner.namespace:
			reason = "ImportedVolumeNotFound"
		}
		_, err := suite.WaitEvent(w.ctx, w.name+"-"+want.namespace, want.name, reason, "")
		w.must(err)
	}
	if volumes := w.sim.Volumes(); len(volumes) != 1 || volumes[0].ID != volume.ID {
		t.Errorf("the volumes are %s", describe(volumes))
	}
}
