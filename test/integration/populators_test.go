package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// fromImage makes a claim ask for content that a populator has.
func fromImage(claim *corev1.PersistentVolumeClaim) {
	group := "example.org"
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Image", Name: "debian"}
}

// withPopulators adds a populator's namespace to the world, which a pattern of tenant a
// matches.
func (w *world) withPopulators() {
	w.Helper()
	w.must(suite.CreateNamespace(w.ctx, w.name+"-populators", nil))
	w.policy = strings.Replace(w.policy, `namespaces: ["`+w.name+`-a"]`, `namespaces: ["`+w.name+`-a", "`+w.name+`-p*"]`, 1) +
		"populators: [{namespace: " + w.name + "-populators}]\n"
}

// handOver gives the PersistentVolume of a populator's claim to the claim that waits, as
// lib-volume-populator does, and removes the former when the latter is bound.
func (w *world) handOver(prime, to *corev1.PersistentVolumeClaim, pvName string) {
	w.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"claimRef": map[string]any{
		"namespace": to.Namespace, "name": to.Name, "uid": to.UID, "resourceVersion": to.ResourceVersion,
	}}})
	w.must(err)
	_, err = suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pvName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims(to.Namespace).Get(w.ctx, to.Name, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return "the claim that waits is not bound", err
		}
		return "", nil
	}))
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(prime.Namespace).Delete(w.ctx, prime.Name, metav1.DeleteOptions{}))
}

// TestPopulatorsClaimIsServedOnBehalfOfAnother: the claim that waits for a populator is
// left alone, the populator's own counts for its tenant, and the volume ends with the
// claim that got it.
func TestPopulatorsClaimIsServedOnBehalfOfAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "populate", cindersim.Options{})
	w.withPopulators()
	replica := w.start()

	waiting := w.file("b", "data", "lab", fromImage)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, status, err := replica.Get(w.ctx, "/status.json?namespace=populate-b&claim=data")
		if err != nil || !strings.Contains(status, `"left"`) || !strings.Contains(status, "waits for a volume populator of example.org/Image") {
			return "the claim is not reported as left: " + status, err
		}
		return "", nil
	}))
	nobodys := w.file("populators", "prime-0f6c2d3e-8a41-4c5b-9d7e-1234567890ab", "gold", nil)
	_, err := suite.WaitEvent(w.ctx, nobodys.Namespace, nobodys.Name, "NoPopulatedClaim", "no claim has the UID 0f6c2d3e-8a41-4c5b-9d7e-1234567890ab")
	w.must(err)
	prime := w.file("populators", "prime-"+string(waiting.UID), "lab", nil)
	pv, volume := w.boundVolume("populators", prime.Name)
	if tenant, stamped := pv.Annotations[annotation("tenant")], volume.Metadata[annotation("tenant")]; tenant != "tenant-b" || stamped != "tenant-b" {
		t.Errorf("the PersistentVolume is tenant %s's, the volume tenant %s's", tenant, stamped)
	}
	if volume.Project != cindersim.DefaultNoauthProject {
		t.Errorf("the volume is in project %s", volume.Project)
	}

	w.handOver(prime, waiting, pv.Name)
	_, err = suite.WaitEvent(w.ctx, waiting.Namespace, waiting.Name, "Rebound", "tenant tenant-b")
	w.must(err)
	second := w.file("populators", "other-"+string(waiting.UID), "lab", nil)
	_, err = suite.WaitEvent(w.ctx, second.Namespace, second.Name, "NoPopulatedClaim", "has PersistentVolume "+pv.Name+" already")
	w.must(err)
	events, err := suite.Client.CoreV1().Events(waiting.Namespace).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=data,type=Warning"})
	w.must(err)
	if len(events.Items) > 0 {
		t.Errorf("warnings about the claim: %s", events.Items[0].Message)
	}
	if n := w.creates(); n != 1 {
		t.Errorf("%d volumes were made", n)
	}
	w.unclaim("b", "data")
	w.must(suite.DeleteClaims(w.ctx, "populate-populators"))
	w.noResidue()
}

// TestEscapePopulatorAsksForNobodyWhoIsGone: another claim has the name of the one that
// was to be filled, or a claim wants no populator.
func TestEscapePopulatorAsksForNobodyWhoIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unpopulate", cindersim.Options{})
	w.withPopulators()
	w.start()
	waiting := w.file("b", "data", "lab", fromImage)
	w.unclaim("b", "data")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumeClaims("unpopulate-b").Get(w.ctx, "data", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the claim is still there", err
	}))
	w.file("b", "data", "lab", fromImage)
	prime := w.file("populators", "prime-"+string(waiting.UID), "lab", nil)
	_, err := suite.WaitEvent(w.ctx, prime.Namespace, prime.Name, "NoPopulatedClaim", fmt.Sprintf("no claim has the UID %s", waiting.UID))
	w.must(err)
	for _, ordinary := range []func(*corev1.PersistentVolumeClaim){nil, contentOf("data")} {
		name := "ordinary"
		if ordinary != nil {
			name = "copy"
		}
		claim := w.file("stranger", name, "lab", ordinary)
		prime := w.file("populators", "prime-"+string(claim.UID), "lab", nil)
		_, err := suite.WaitEvent(w.ctx, prime.Namespace, prime.Name, "NoPopulatedClaim", "does not ask for the content of an object that populators serve")
		w.must(err)
	}
	if n := w.creates(); n != 0 {
		t.Errorf("%d volumes were made", n)
	}
}
