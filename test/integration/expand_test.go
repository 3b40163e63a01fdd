package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

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

// volumeOf returns the volume of a claim.
func (w *world) volumeOf(claim *corev1.PersistentVolumeClaim) cindersim.Volume {
	w.Helper()
	if found := w.sim.VolumesNamed("pvc-" + string(claim.UID)); len(found) == 1 {
		return found[0]
	}
	return cindersim.Volume{Status: "missing"}
}

// ask makes a claim ask for a size.
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
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(w.ctx, claim.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "must support resize") {
			// The API server reads the StorageClass, which a test has just changed, from a cache.
			return err.Error(), nil
		}
		return "", err
	}))
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
	for _, condition := range harness.Conditions(now) {
		text += ", " + condition
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
	w := newWorld(t, "expand", cindersim.Options{ExtendDelay: 200 * time.Millisecond})
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
		w.told(files, "FilesystemSizeRefused", `is "21Gi", but the volume has 20Gi`)
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

// TestExpansionThatTheQuotaDenies: the expansion is tried again when another
// claim leaves room. Two claims cannot both get the last room.
func TestExpansionThatTheQuotaDenies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "growquota", cindersim.Options{ExtendDelay: 300 * time.Millisecond})
	w.policy = strings.Replace(w.policy, "    metadata: {costcenter", "    quota: {gigabytes: 30}\n    metadata: {costcenter", 1)
	w.start()
	w.served("a", "filler", "gold", "10Gi", nil)
	claims := []*corev1.PersistentVolumeClaim{w.served("a", "one", "gold", "5Gi", asBlock), w.served("a", "two", "gold", "5Gi", asBlock)}
	for _, claim := range claims {
		w.ask(claim, "15Gi")
	}
	const granted, denied = "cinder 15, pv 15Gi, claim 15Gi", "cinder 5, pv 5Gi, claim 5Gi"
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		both := []string{w.expansion(claims[0]), w.expansion(claims[1])}
		if both[0] == granted && both[1] == denied || both[0] == denied && both[1] == granted {
			return "", nil
		}
		return fmt.Sprintf("the claims are %q", both), nil
	}))
	loser := claims[0]
	if w.expansion(loser) == granted {
		loser = claims[1]
	}
	w.told(loser, "QuotaExceeded", "tenant tenant-a would use 40 of 30 GiB (tenants[0].quota.gigabytes)")
	w.must(suite.Client.CoreV1().PersistentVolumeClaims("growquota-a").Delete(w.ctx, "filler", metav1.DeleteOptions{}))
	w.becomes(loser, granted)
	w.must(suite.DeleteClaims(w.ctx, "growquota-a"))
	w.noResidue()
}

// TestExpansionThatThePolicyDenies leaves the claim as it is until a reload, other
// labels or another request admits it.
func TestExpansionThatThePolicyDenies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "growdeny", cindersim.Options{})
	w.policy = strings.Replace(w.policy, `namespaces: ["growdeny-a"]`, `namespaceSelector: {matchLabels: {tenant: growdeny-a}}`, 1)
	label := func(value string) {
		patch := fmt.Sprintf(`{"metadata": {"labels": {"tenant": %q}}}`, value)
		_, err := suite.Client.CoreV1().Namespaces().Patch(w.ctx, "growdeny-a", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		w.must(err)
	}
	label("growdeny-a")
	replica := w.start()

	large := w.served("b", "large", "lab", "5Gi", asBlock)
	w.ask(large, "11Gi")
	w.told(large, "VolumeTooLarge", "the volume would have 11 GiB, more than the 10Gi that tenants[1].volumeSize.max allows")
	w.ask(large, "9Gi")
	w.becomes(large, "cinder 9, pv 9Gi, claim 9Gi")
	w.ask(large, "12Gi")
	w.told(large, "VolumeTooLarge", "12 GiB")
	w.must(replica.WritePolicy(strings.Replace(w.policy, "max: 10Gi", "max: 12Gi", 1)))
	w.becomes(large, "cinder 12, pv 12Gi, claim 12Gi")

	moved := w.served("a", "moved", "gold", "5Gi", asBlock)
	label("nobody")
	w.ask(moved, "6Gi")
	w.told(moved, "NoMatchingTenant", "namespace growdeny-a belongs to no tenant")
	if is := w.expansion(moved); is != "cinder 5, pv 5Gi, claim 5Gi" {
		t.Errorf("the denied claim is %s", is)
	}
	label("growdeny-a")
	w.becomes(moved, "cinder 6, pv 6Gi, claim 6Gi")
	for _, namespace := range []string{"a", "b"} {
		w.must(suite.DeleteClaims(w.ctx, "growdeny-"+namespace))
	}
	w.noResidue()
}

// TestExpansionThatCinderRefuses: the expansion is infeasible until the user
// asks for less, or somebody repairs the volume.
func TestExpansionThatCinderRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "growfail", cindersim.Options{ExtendDelay: 100 * time.Millisecond})
	w.policy = strings.Replace(w.policy, "    metadata: {costcenter", "    quota: {gigabytes: 40}\n    metadata: {costcenter", 1)
	replica := w.start()
	project := w.sim.ProjectID("team-a")
	w.sim.SetQuota(project, map[string]int{"gigabytes": 20})
	full := w.served("a", "full", "gold", "10Gi", asBlock)
	w.ask(full, "35Gi")
	w.becomes(full, "cinder 10, pv 10Gi, claim 10Gi, allocated 35Gi, ControllerResizeInfeasible, ControllerResizeError")
	w.told(full, "VolumeResizeFailed", "Cinder's own quota of backend gold has no room")
	// What it reserved is free again.
	w.metric(replica, `standalone_cinder_quota{name="tenant-a",resource="gigabytes",scope="tenant",type="used"} 10`)
	w.ask(full, "12Gi")
	w.becomes(full, "cinder 12, pv 12Gi, claim 12Gi")
	w.sim.SetQuota(project, map[string]int{"gigabytes": -1})

	broken := w.served("a", "broken", "gold", "10Gi", nil)
	w.sim.Inject(cindersim.Fault{Kind: cindersim.FailBackend, Operation: "action.os-extend", Volume: w.volumeOf(broken).ID, Times: 1})
	w.ask(broken, "20Gi")
	w.becomes(broken, "cinder 10, pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInfeasible, ControllerResizeError")
	failure := w.told(broken, "VolumeResizeFailed", "an OpenStack administrator must set its status: cinder reset-state --state in-use")
	if strings.Contains(failure.Message, "req-") {
		t.Errorf("the event has the ID of a request: %s", failure.Message)
	}
	w.must(w.sim.SetVolumeStatus(w.volumeOf(broken).ID, "in-use"))
	w.ask(broken, "15Gi")
	w.becomes(broken, "cinder 15, pv 15Gi, claim 10Gi, allocated 15Gi, NodeResizePending, FileSystemResizePending")
	w.acknowledge(broken, "15Gi")
	w.becomes(broken, "cinder 15, pv 15Gi, claim 15Gi")
	w.must(suite.DeleteClaims(w.ctx, "growfail-a"))
	w.noResidue()
}

// TestExpansionWhileABackendIsSilent: the expansion waits for the backend
// without a storm of requests, and does not delay one at another backend.
//
//tier:outage
func TestExpansionWhileABackendIsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "growwait", cindersim.Options{})
	w.policy = strings.Replace(w.policy, "    auth: {cloud: team-a}", "    auth: {cloud: team-a}\n    timeouts: {request: 1s}", 1)
	w.start()
	var silent []*corev1.PersistentVolumeClaim
	for i := range 6 {
		silent = append(silent, w.served("a", fmt.Sprintf("silent-%d", i), "gold", "1Gi", asBlock))
	}
	other := w.served("b", "other", "lab", "1Gi", asBlock)
	hole := w.sim.Inject(cindersim.Fault{Kind: cindersim.HangBefore, Match: func(r cindersim.Request) bool { return r.Endpoint == cindersim.Cinder }})
	for _, claim := range silent {
		w.ask(claim, "2Gi")
	}
	w.ask(other, "2Gi")
	w.becomes(other, "cinder 2, pv 2Gi, claim 2Gi")
	for _, claim := range silent {
		w.told(claim, "BackendUnavailable", "backend gold")
	}
	hole.Remove()
	for _, claim := range silent {
		w.becomes(claim, "cinder 2, pv 2Gi, claim 2Gi")
	}
	for _, namespace := range []string{"a", "b"} {
		w.must(suite.DeleteClaims(w.ctx, "growwait-"+namespace))
	}
	w.noResidue()
}
