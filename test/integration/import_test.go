package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// listedVolume is what volume list says about one volume.
type listedVolume struct {
	ID, Claim, PersistentVolume, Why string
	Importable                       bool
}

// volumeCommand runs a volume command as an operator.
func (w *world) volumeCommand(name string, flags ...string) (code int, output string) {
	w.Helper()
	return w.operator("volume", name, flags...)
}

// operator runs a command about volumes or snapshots as an operator.
func (w *world) operator(of, name string, flags ...string) (code int, output string) {
	w.Helper()
	dir := w.TempDir()
	policyFile, clouds := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "clouds.yaml")
	w.must(os.WriteFile(policyFile, []byte(w.policy), 0o600))
	w.must(os.WriteFile(clouds, []byte(w.clouds), 0o600))
	kubeconfig, err := suite.Administrator(dir, "", nil)
	w.must(err)
	code, output, err = suite.Run(w.ctx, append([]string{of, name, "--policy", policyFile, "--clouds-file", clouds, "--kubeconfig", kubeconfig,
		"--provisioner-name", w.provisioner}, flags...)...)
	w.must(err)
	return code, output
}

// importVolume runs volume import for a claim of tenant a.
func (w *world) importVolume(volume, claim string, flags ...string) (code int, output string) {
	w.Helper()
	return w.volumeCommand("import", append([]string{"--backend", "gold", "--volume", volume, "--namespace", w.name + "-a", "--claim", claim,
		"--storage-class", w.name + "-gold", "--secret-namespace", harness.Namespace}, flags...)...)
}

// list returns what volume list says, by volume ID.
func (w *world) list() map[string]listedVolume {
	w.Helper()
	code, output := w.volumeCommand("list", "--output", "json", "--backend", "gold")
	var answer struct{ Volumes []listedVolume }
	if err := json.Unmarshal([]byte(output), &answer); err != nil || code != 0 {
		w.Fatalf("exit code %d, %v:\n%s", code, err, output)
	}
	byID := map[string]listedVolume{}
	for _, v := range answer.Volumes {
		byID[v.ID] = v
	}
	return byID
}

// imported waits until a claim has an imported volume, in use.
func (w *world) imported(claim, volume string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	w.Helper()
	var bound *corev1.PersistentVolumeClaim
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		var err error
		bound, err = suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-a").Get(w.ctx, claim, metav1.GetOptions{})
		if err != nil || bound.Status.Phase != corev1.ClaimBound || bound.Spec.VolumeName != "imported-"+volume {
			return fmt.Sprintf("%s is %s to %q", claim, bound.Status.Phase, bound.Spec.VolumeName), err
		}
		v, _ := w.sim.Volume(volume)
		if v.Status != "in-use" || len(v.Attachments) != 1 || !v.Export.Present {
			return "its volume is " + describe([]cindersim.Volume{v}), nil
		}
		return "", nil
	}))
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, bound.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	return bound, pv
}

// TestImportAVolume imports a volume beside the leader, keeps it when its claim is
// deleted, imports it again for another claim, and deletes it with that claim.
func TestImportAVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "import", cindersim.Options{})
	w.policy = strings.Replace(w.policy, "clusterID: cluster-import\n", "clusterID: cluster-import\naudit: {interval: 500ms, grace: 1m, delete: true}\n", 1)
	leader := w.start()
	before := w.add(cindersim.Volume{Name: "old data", Project: "team-a", SizeGiB: 3, Metadata: map[string]string{"owner": "somebody"}})
	if v := w.list()[before.ID]; !v.Importable || v.Why != "" {
		t.Errorf("listed as %+v", v)
	}

	code, output := w.importVolume("old data", "data")
	if code != 0 || !strings.Contains(output, "name: imported-"+before.ID) || !strings.Contains(output, "1. create claim import-a/data") {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	w.untouched("only a plan was made", before)
	if _, err := suite.Client.CoreV1().PersistentVolumeClaims("import-a").Get(w.ctx, "data", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the plan made a claim: %v", err)
	}

	code, output = w.importVolume("old data", "data", "--size", "2Gi", "--apply")
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	claim, pv := w.imported("data", before.ID)
	volume, _ := w.sim.Volume(before.ID)
	if strings.Contains(output, volume.Export.Password) {
		t.Error("the output has the password")
	}
	if size := pv.Spec.Capacity.Storage().String(); size != "3Gi" || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain ||
		pv.Annotations[annotation("claim-uid")] != string(claim.UID) || pv.Annotations[annotation("tenant")] != "tenant-a" {
		t.Errorf("the PersistentVolume is %s, %+v", size, pv)
	}
	if volume.Metadata["owner"] != "somebody" || volume.Metadata["costcenter"] != "4711" || volume.Metadata[annotation("claim-uid")] != string(claim.UID) {
		t.Errorf("the volume's metadata is %v", volume.Metadata)
	}
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="gigabytes",scope="tenant",type="used"} 3`)

	// Nothing is left to do, and nobody else gets it.
	if code, output = w.importVolume(before.ID, "data", "--apply"); code != 0 || !strings.Contains(output, "already imported") {
		t.Errorf("again: exit code %d:\n%s", code, output)
	}
	if code, output = w.importVolume(before.ID, "other", "--apply"); code != 1 || !strings.Contains(output, "PersistentVolume imported-"+before.ID+" names volume") {
		t.Errorf("for another claim: exit code %d:\n%s", code, output)
	}
	if v := w.list()[before.ID]; v.Importable || v.PersistentVolume != pv.Name || v.Claim != "import-a/data" {
		t.Errorf("listed as %+v", v)
	}
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}

	// Its claim grows like any other.
	w.ask(claim, "4Gi")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		now, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
		if err == nil && now.Spec.Capacity.Storage().String() != "4Gi" {
			return "the PersistentVolume has " + now.Spec.Capacity.Storage().String(), nil
		}
		return "", err
	}))

	// With Retain, the volume outlives claim and PersistentVolume.
	w.must(suite.DeleteClaims(w.ctx, "import-a"))
	w.released(pv.Name)
	if code, output = w.importVolume(before.ID, "next", "--apply"); code != 1 || !strings.Contains(output, "PersistentVolume "+pv.Name+" names volume") {
		t.Errorf("while its PersistentVolume exists: exit code %d:\n%s", code, output)
	}
	kept, _ := w.sim.Volume(before.ID)
	w.must(suite.Client.CoreV1().PersistentVolumes().Delete(w.ctx, pv.Name, metav1.DeleteOptions{}))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	if code, answer := w.audit("--delete"); code != 1 || len(answer.Removed) > 0 {
		t.Errorf("exit code %d, the audit removed %+v", code, answer.Removed)
	}
	w.untouched("it was kept", kept)
	if v := w.list()[before.ID]; !v.Importable {
		t.Errorf("kept, and listed as %+v", v)
	}

	// A new leader, which knows nothing of the past.
	w.must(leader.Stop(w.ctx))
	leader = w.start()
	if code, output = w.importVolume(before.ID, "next", "--reclaim-policy", "Delete", "--apply"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	w.imported("next", before.ID)
	w.must(suite.DeleteClaims(w.ctx, "import-a"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	w.noResidue()
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="gigabytes",scope="tenant",type="used"} 0`)
}

// TestImportIsRefused: whatever prevents an import leaves the volume as it is,
// and no claim behind.
func TestImportIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "importno", cindersim.Options{})
	w.policy = strings.Replace(w.policy, "        fsType: xfs\n", "        fsType: xfs\n        volumeSize: {max: 5Gi}\n", 1)
	w.start()
	served := w.served("a", "served", "gold", "1Gi", nil)
	theirs := w.volumeOf(served)
	of := func(v cindersim.Volume) cindersim.Volume {
		if v.SizeGiB == 0 {
			v.SizeGiB = 1
		}
		v.Project = "team-a"
		return w.add(v)
	}
	stamped := func(change func(metadata map[string]string)) map[string]string {
		metadata := maps.Clone(theirs.Metadata)
		change(metadata)
		return metadata
	}
	free := of(cindersim.Volume{Name: "free"})
	large := of(cindersim.Volume{Name: "large", SizeGiB: 9})
	handled := of(cindersim.Volume{Name: "handled"})
	w.must(suite.CreateClass(w.ctx, "importno-foreign", "example.com/other", nil))
	foreign := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "importno-csi"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: served.Spec.Resources.Requests[corev1.ResourceStorage]}, AccessModes: served.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, StorageClassName: "importno-foreign",
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "cinder.csi.openstack.org", VolumeHandle: handled.ID}},
		},
	}
	_, err := suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, foreign, metav1.CreateOptions{})
	w.must(err)
	t.Cleanup(func() { w.discard(foreign.Name) })
	for name, c := range map[string]struct {
		volume cindersim.Volume
		flags  []string
		want   string
	}{
		"in error":                {of(cindersim.Volume{Name: "broken", Status: "error"}), nil, "only an available volume"},
		"reserved":                {of(cindersim.Volume{Name: "reserved", Status: "attaching"}), nil, "only an available volume"},
		"of another cluster":      {of(cindersim.Volume{Metadata: stamped(func(m map[string]string) { m[annotation("cluster")] = "other" })}), nil, `the stamp of cluster "other"`},
		"of a claim that exists":  {of(cindersim.Volume{Metadata: stamped(func(m map[string]string) { m["csi.storage.k8s.io/pv/name"] = "gone" })}), nil, "claim importno-a/served, which exists"},
		"of a PV that exists":     {theirs, nil, "PersistentVolume " + served.Spec.VolumeName + " names volume"},
		"of cinder-csi":           {handled, nil, "PersistentVolume importno-csi names volume"},
		"too small":               {free, []string{"--size", "2Gi"}, "requests 2Gi, but volume"},
		"too large for the rule":  {large, nil, "VolumeTooLarge"},
		"another tenant's class":  {free, []string{"--storage-class", "importno-lab"}, "NoMatchingClass"},
		"a stranger's namespace":  {free, []string{"--namespace", "importno-stranger"}, "NoMatchingTenant"},
		"no such namespace":       {free, []string{"--namespace", "importno-none"}, "does not exist"},
		"no such class":           {free, []string{"--storage-class", "importno-none"}, "does not exist"},
		"another's class":         {free, []string{"--storage-class", "importno-foreign"}, `belongs to the provisioner "example.com/other"`},
		"shared by several hosts": {free, []string{"--access-mode", "RWX", "--volume-mode", "Block"}, "multiattach"},
		"a claim that has one":    {free, []string{"--claim", "served"}, "is for PersistentVolume"},
	} {
		t.Run(name, func(t *testing.T) {
			code, output := w.importVolume(c.volume.ID, "refused", append(c.flags, "--apply")...)
			if code != 1 || !strings.Contains(output, c.want) {
				t.Errorf("exit code %d, want 1 and %q:\n%s", code, c.want, output)
			}
			after, _ := w.sim.Volume(c.volume.ID)
			if !reflect.DeepEqual(after.Metadata, c.volume.Metadata) || after.Status != c.volume.Status {
				t.Errorf("the volume was changed from %+v to %+v", c.volume, after)
			}
			if _, err := suite.Client.CoreV1().PersistentVolumeClaims("importno-a").Get(w.ctx, "refused", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("a claim is left: %v", err)
			}
		})
	}
	if code, output := w.importVolume("no such volume", "refused", "--apply"); code != 1 {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	// Only its connection shows that it cannot be mounted. It is free again, and
	// with the claim gone, another claim may get it.
	ceph := of(cindersim.Volume{Name: "ceph", Type: "rbd"})
	for _, claim := range []string{"first", "second"} {
		code, output := w.importVolume(ceph.ID, claim, "--apply")
		if after, _ := w.sim.Volume(ceph.ID); code != 1 || !strings.Contains(output, "rbd") || after.Status != "available" || len(after.Attachments) > 0 {
			t.Errorf("exit code %d, %s:\n%s", code, describe([]cindersim.Volume{after}), output)
		}
		w.must(suite.DeleteClaims(w.ctx, "importno-a"))
		w.noClaims()
	}
}

// noClaims waits until tenant a has no claim.
func (w *world) noClaims() {
	w.Helper()
	w.noClaimsOf("a")
}

// noClaimsOf waits until a tenant has no claim.
func (w *world) noClaimsOf(tenant string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claims, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+tenant).List(w.ctx, metav1.ListOptions{})
		if err == nil && len(claims.Items) > 0 {
			return fmt.Sprintf("%d claims are left", len(claims.Items)), nil
		}
		return "", err
	}))
}

// TestTwoClaimsWantOneVolume: the second import fails whatever the first one has
// done, and the claim of a failed one is gone.
func TestTwoClaimsWantOneVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "importtwo", cindersim.Options{})
	w.start()
	volume := w.add(cindersim.Volume{Name: "wanted", Project: "team-a", SizeGiB: 1})
	results := make(chan string, 4)
	for n := range cap(results) {
		go func() {
			code, output := w.importVolume(volume.ID, fmt.Sprintf("claim-%d", n), "--apply")
			results <- fmt.Sprintf("%d %s", code, output)
		}()
	}
	won := 0
	for range cap(results) {
		result := <-results
		if strings.HasPrefix(result, "0 ") {
			won++
		} else if !strings.Contains(result, "waits for the same volume") && !strings.Contains(result, "names volume") {
			t.Errorf("it says %s", result)
		}
	}
	if won > 1 {
		t.Errorf("%d imports succeeded", won)
	}
	if won == 0 {
		// All of them saw another one; the volume is untouched, and the next gets it.
		w.noClaims()
		w.untouched("nobody got it", volume)
		if code, output := w.importVolume(volume.ID, "claim-0", "--apply"); code != 0 {
			t.Fatalf("exit code %d:\n%s", code, output)
		}
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claims, err := suite.Client.CoreV1().PersistentVolumeClaims("importtwo-a").List(w.ctx, metav1.ListOptions{})
		if err != nil || len(claims.Items) != 1 || claims.Items[0].Status.Phase != corev1.ClaimBound {
			return "not exactly one claim is bound", err
		}
		return "", nil
	}))
	// Its PersistentVolume is to be deleted with the claim after all.
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, "imported-"+volume.ID, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "importtwo-a"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	w.noResidue()
}

// TestImportVolumesOfAnotherDriver: one command imports what its PersistentVolumes name. What
// is refused stops no other, and a second run continues.
func TestImportVolumesOfAnotherDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "importmany", cindersim.Options{})
	w.start()
	namespace := w.name + "-a"
	var list corev1.PersistentVolumeList
	var volumes []cindersim.Volume
	for n := range 3 {
		v := w.add(cindersim.Volume{Name: fmt.Sprintf("pvc-%d", n), Project: "team-a", SizeGiB: 1 + n})
		volumes = append(volumes, v)
		list.Items = append(list.Items, corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: v.Name},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: "standard", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: fmt.Sprintf("data-%d", n)},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "cinder.csi.openstack.org", VolumeHandle: v.ID}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		})
	}
	// The claim of one was deleted before, perhaps long ago.
	list.Items[2].Status.Phase = corev1.VolumeReleased
	text, err := json.Marshal(list)
	w.must(err)
	file := filepath.Join(t.TempDir(), "pvs.json")
	w.must(os.WriteFile(file, text, 0o600))
	many := func(flags ...string) (int, string) {
		return w.volumeCommand("import", append([]string{"--backend", "gold", "--from-pvs", file, "--storage-class", "standard=" + w.name + "-gold", "--secret-namespace", harness.Namespace}, flags...)...)
	}
	// Its claim has not been deleted yet.
	w.claim("a", "data-1", "elsewhere", "1Gi")

	code, output := many()
	if code != 1 || strings.Count(output, "ready") < 2 || !strings.Contains(output, "1 of 3 volumes are not imported") {
		t.Fatalf("the plan: exit code %d:\n%s", code, output)
	}
	if strings.Count(output, "was not Bound") != 1 || !strings.Contains(output, "PersistentVolume pvc-2 was not Bound when the file was written") {
		t.Errorf("the plan does not warn about the volume whose claim was gone:\n%s", output)
	}
	for _, v := range volumes {
		w.untouched("only a plan was made", v)
	}
	if code, output = many("--apply"); code != 1 || !strings.Contains(output, "[3/3] "+namespace+"/data-2: imported") || !strings.Contains(output, "claim "+namespace+"/data-1") {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	w.imported("data-0", volumes[0].ID)
	w.imported("data-2", volumes[2].ID)
	w.untouched("its claim exists", volumes[1])
	claims := suite.Client.CoreV1().PersistentVolumeClaims(namespace)
	w.must(claims.Delete(w.ctx, "data-1", metav1.DeleteOptions{}))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, err := claims.Get(w.ctx, "data-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "the claim is still there", err
		}
		return "", nil
	}))
	if code, output = many("--apply"); code != 0 || strings.Count(output, "already imported") < 2 {
		t.Fatalf("again: exit code %d:\n%s", code, output)
	}
	w.imported("data-1", volumes[1].ID)
}
