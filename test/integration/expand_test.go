package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// newExpandable makes a world whose StorageClasses allow expansion.
func newExpandable(t *testing.T, name string, options cindersim.Options) *world {
	t.Helper()
	w := newWorld(t, name, options)
	for _, class := range []string{"gold", "lab"} {
		_, err := suite.Client.StorageV1().StorageClasses().Patch(w.ctx, name+"-"+class, types.MergePatchType, []byte(`{"allowVolumeExpansion": true}`), metav1.PatchOptions{})
		w.must(err)
	}
	return w
}

// served makes a claim and waits until it is bound and its volume in use.
func (w *world) served(namespace, name, class, size string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.Helper()
	claim, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-"+namespace, name, w.name+"-"+class, size, change))
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err = suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return name + " is not bound", err
		}
		if v := w.volumeOf(claim); v.Status != "in-use" {
			return "the volume is " + v.Status, nil
		}
		return "", nil
	}))
	return claim
}

// volumeOf is the volume of a claim.
func (w *world) volumeOf(claim *corev1.PersistentVolumeClaim) cindersim.Volume {
	w.Helper()
	if found := w.sim.VolumesNamed("pvc-" + string(claim.UID)); len(found) == 1 {
		return found[0]
	}
	return cindersim.Volume{Status: "missing"}
}

// ask has a claim ask for a size.
func (w *world) ask(claim *corev1.PersistentVolumeClaim, size string) {
	w.Helper()
	w.patchClaim(claim, fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size))
}

// acknowledge says that the filesystem of a claim has a size.
func (w *world) acknowledge(claim *corev1.PersistentVolumeClaim, size string) {
	w.Helper()
	w.patchClaim(claim, fmt.Sprintf(`{"metadata": {"annotations": {"standalone-cinder.openstack.org/filesystem-grown": %q}}}`, size))
}

func (w *world) patchClaim(claim *corev1.PersistentVolumeClaim, patch string) {
	w.Helper()
	_, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(w.ctx, claim.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	w.must(err)
}

// expansion describes a claim, its PersistentVolume and its volume in one line.
func (w *world) expansion(claim *corev1.PersistentVolumeClaim) string {
	w.Helper()
	now, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(w.ctx, claim.Name, metav1.GetOptions{})
	w.must(err)
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, now.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	text := fmt.Sprintf("cinder %d, pv %s, claim %s", w.volumeOf(claim).SizeGiB, pv.Spec.Capacity.Storage(), now.Status.Capacity.Storage())
	if allocated, ok := now.Status.AllocatedResources[corev1.ResourceStorage]; ok {
		text += ", allocated " + allocated.String()
	}
	if state := now.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; state != "" {
		text += ", " + string(state)
	}
	for _, condition := range now.Status.Conditions {
		text += ", " + string(condition.Type)
	}
	return text
}

// becomes waits until an expansion is as described.
func (w *world) becomes(claim *corev1.PersistentVolumeClaim, want string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if is := w.expansion(claim); is != want {
			return fmt.Sprintf("claim %s is: %s, want: %s", claim.Name, is, want), nil
		}
		return "", nil
	}))
}

func (w *world) told(claim *corev1.PersistentVolumeClaim, reason, text string) corev1.Event {
	w.Helper()
	event, err := suite.WaitEvent(w.ctx, claim.Namespace, claim.Name, reason, text)
	w.must(err)
	return event
}

func asBlock(claim *corev1.PersistentVolumeClaim) {
	block := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &block
}

const pending20 = "cinder 20, pv 20Gi, claim 10Gi, allocated 20Gi, NodeResizePending, FileSystemResizePending"

// TestExpansion covers both volume modes, in both workflows and for two tenants.
func TestExpansion(t *testing.T) {
	t.Parallel()
	w := newExpandable(t, "expand", cindersim.Options{ExtendDelay: 200 * time.Millisecond})
	w.policy = strings.Replace(w.policy, "volumeSize: {max: 10Gi}", "volumeSize: {max: 20Gi}", 1)
	replica := w.start()
	for _, at := range []struct{ namespace, class string }{{"a", "gold"}, {"b", "lab"}} {
		block := w.served(at.namespace, "block", at.class, "1500Mi", asBlock)
		// Rounded up, the volume has that already.
		w.ask(block, "2Gi")
		w.ask(block, "4500Mi")
		w.becomes(block, "cinder 5, pv 5Gi, claim 5Gi")
		w.told(block, "VolumeResizeSuccessful", "a node that uses it shows the new size after iscsiadm -m node -T iqn.")

		files := w.served(at.namespace, "files", at.class, "10Gi", nil)
		w.ask(files, "20Gi")
		w.becomes(files, pending20)
		how := w.told(files, "FileSystemResizeRequired", "the kubelet does not grow the filesystem of such a volume")
		if !strings.Contains(how.Message, "standalone-cinder.openstack.org/filesystem-grown=20Gi") {
			t.Errorf("the event does not say what to write: %s", how.Message)
		}
		w.acknowledge(files, "21Gi")
		w.told(files, "FilesystemSizeRefused", `says "21Gi", but the volume has 20Gi`)
		w.becomes(files, pending20)
		w.acknowledge(files, "20Gi")
		w.becomes(files, "cinder 20, pv 20Gi, claim 20Gi")
		if volume := w.volumeOf(files); volume.Status != "in-use" || len(volume.Attachments) != 1 {
			t.Errorf("the volume is %s with %d attachments", volume.Status, len(volume.Attachments))
		}
	}
	if n := strings.Count(replica.Log(), `"Expanded a volume"`); n != 4 {
		t.Errorf("the audit trail has %d expansions, want 4", n)
	}
	if asked := w.sim.CountByOperation()["action.os-extend"]; asked != 4 {
		t.Errorf("%d extensions were requested, want 4", asked)
	}
	w.metric(replica, `standalone_cinder_expand_duration_seconds_count{backend="gold",outcome="success"} 2`)
	w.metric(replica, `standalone_cinder_quota{name="gold",resource="gigabytes",scope="backend",type="used"} 25`)
	for _, namespace := range []string{"a", "b"} {
		w.must(suite.DeleteClaims(w.ctx, "expand-"+namespace))
	}
	w.noResidue()
}
