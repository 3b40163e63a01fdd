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

// growableCSI returns a csiWorld with StorageClasses that allow expansion, and a
// quota for tenant b.
func growableCSI(t *testing.T, name, quota string, options cindersim.Options) *world {
	w := csiWorldAt(t, name, options)
	w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    quota: "+quota+"\n    volumeSize: {max: 10Gi}\n")
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	return w
}

// madeCSI makes a claim and waits for its volume.
func (w *world) madeCSI(name, class, size string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.Helper()
	_, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-b", name, w.name+"-"+class, size, change))
	w.must(err)
	w.madeFor(name)
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	return claim
}

// Sidecars serve every volume of the driver in a cluster, so no test with one runs
// beside another.

// reaches waits until an expansion is as described, whatever its conditions.
func (w *world) reaches(claim *corev1.PersistentVolumeClaim, want string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if is := w.expansion(claim); is != want && !strings.HasPrefix(is, want+", ") {
			return fmt.Sprintf("claim %s is: %s, want: %s", claim.Name, is, want), nil
		}
		return "", nil
	}))
}

// seenByItsNode says what a kubelet says once the node sees the new size, which the claims
// of raw devices wait for as well.
func (w *world) seenByItsNode(claim *corev1.PersistentVolumeClaim, size string) {
	w.Helper()
	patch := fmt.Sprintf(`{"status": {"capacity": {"storage": %q}, "allocatedResourceStatuses": null, "conditions": null}}`, size)
	_, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(w.ctx, claim.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	w.must(err)
}

// TestClaimsInModeCSIGrow: the real csi-resizer expands them. A quota without room is
// not a verdict about the claim: nothing counts for the next leader, and the expansion
// is tried again when there is room.
func TestClaimsInModeCSIGrow(t *testing.T) {
	w := growableCSI(t, "growcsi", "{gigabytes: 12}", cindersim.Options{ExtendDelay: 100 * time.Millisecond})
	replica, sidecars := w.startBeside(shortLease, suite.Resizer(w.ctx, w.provisioner))
	files, block := w.madeCSI("files", "lab", "1Gi", nil), w.madeCSI("block", "driver", "1500Mi", asBlock)
	w.ask(files, "2500Mi")
	w.reaches(files, "cinder 3, pv 3Gi, claim 1Gi, allocated 2500Mi, NodeResizePending")
	w.ask(block, "4Gi")
	w.reaches(block, "cinder 4, pv 4Gi, claim 2Gi, allocated 4Gi, NodeResizePending")
	w.seenByItsNode(block, "4Gi")

	w.ask(block, "10Gi")
	w.told(block, "VolumeResizeFailed", "QuotaExceeded: tenant tenant-b would use 13 of 12 GiB")
	const refused = "cinder 4, pv 4Gi, claim 4Gi, allocated 10Gi, ControllerResizeInProgress"
	w.reaches(block, refused)
	replica.Kill()
	sidecars[0].Stop()
	next, _ := w.startBeside(shortLease, suite.Resizer(w.ctx, w.provisioner))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !next.Leads(w.ctx) {
			return "the next replica does not lead", nil
		}
		return "", nil
	}))
	other := w.madeCSI("other", "lab", "5Gi", nil)
	w.metric(next, `standalone_cinder_quota{name="tenant-b",resource="gigabytes",scope="tenant",type="used"} 12`)
	w.reaches(block, refused)
	w.unclaim("b", other.Name)
	w.reaches(block, "cinder 4, pv 4Gi, claim 4Gi, allocated 10Gi, ControllerResizeInProgress")
	w.unclaim("b", files.Name)
	w.reaches(block, "cinder 10, pv 10Gi, claim 4Gi, allocated 10Gi, NodeResizePending")
	w.seenByItsNode(block, "10Gi")
	w.metric(next, `standalone_cinder_quota{name="tenant-b",resource="gigabytes",scope="tenant",type="used"} 10`)

	// What the policy never grants is infeasible.
	w.ask(block, "11Gi")
	w.told(block, "VolumeResizeFailed", "VolumeTooLarge")
	w.reaches(block, "cinder 10, pv 10Gi, claim 10Gi, allocated 11Gi, ControllerResizeInfeasible")
	w.must(suite.DeleteClaims(w.ctx, "growcsi-b"))
	w.noResidue()
}

// TestGrowthInModeCSISurvivesItsLeader: a leader that dies while Cinder extends a
// volume is followed by one that counts and finishes what was begun, and asks for
// nothing twice.
//
//tier:outage
func TestGrowthInModeCSISurvivesItsLeader(t *testing.T) {
	w := growableCSI(t, "growthcsi", "{gigabytes: 10}", cindersim.Options{ExtendDelay: 3 * time.Second})
	replica, sidecars := w.startBeside(shortLease, suite.Resizer(w.ctx, w.provisioner))
	block := w.madeCSI("block", "lab", "1Gi", asBlock)
	w.ask(block, "6Gi")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if v := w.volumeOf(block); v.Status != "extending" {
			return "the volume is " + v.Status, nil
		}
		return "", nil
	}))
	replica.Kill()
	sidecars[0].Stop()
	next, _ := w.startBeside(shortLease, suite.Resizer(w.ctx, w.provisioner))
	w.reaches(block, "cinder 6, pv 6Gi, claim 1Gi, allocated 6Gi, NodeResizePending")
	w.metric(next, `standalone_cinder_quota{name="tenant-b",resource="gigabytes",scope="tenant",type="used"} 6`)
	w.must(suite.DeleteClaims(w.ctx, "growthcsi-b"))
	w.noResidue()
}
