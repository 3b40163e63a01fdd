package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

//tier:oldest
func TestClaimsOfTwoTenantsBindAndDeleteWithoutResidue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "two", cindersim.Options{CreateDelay: 300 * time.Millisecond, DeleteDelay: 200 * time.Millisecond})
	w.start()
	for i := range 25 {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
		w.claim("b", fmt.Sprintf("data-%d", i), "lab", "2500Mi")
	}
	a, err := suite.WaitBound(w.ctx, "two-a", 25)
	w.must(err)
	b, err := suite.WaitBound(w.ctx, "two-b", 25)
	w.must(err)
	if capacity := b[0].Status.Capacity.Storage().String(); capacity != "3Gi" {
		t.Errorf("the capacity of a claim of 2500Mi is %s, want Cinder's 3Gi", capacity)
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, v := range w.sim.Volumes() {
			if v.Status != "in-use" {
				return fmt.Sprintf("volume %s is %s", v.Name, v.Status), nil
			}
		}
		return "", nil
	}))
	if n := len(w.sim.Volumes()); n != 50 {
		t.Errorf("%d volumes for 50 claims", n)
	}
	checkVolume(w, a[0])

	w.must(suite.DeleteClaims(w.ctx, "two-a"))
	w.must(suite.DeleteClaims(w.ctx, "two-b"))
	w.noResidue()
	secrets, err := suite.Client.CoreV1().Secrets(harness.Namespace).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for _, secret := range secrets.Items {
		if secret.Annotations["standalone-cinder.openstack.org/cluster"] == "cluster-two" {
			t.Errorf("Secret %s is left", secret.Name)
		}
	}
}

// checkVolume looks at everything that is written for one claim.
func checkVolume(w *world, claim corev1.PersistentVolumeClaim) {
	w.Helper()
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	volume, ok := w.sim.Volume(pv.Annotations["standalone-cinder.openstack.org/volume-id"])
	if !ok {
		w.Fatalf("no volume for %s", pv.Name)
	}
	if volume.Name != pv.Name {
		w.Errorf("the volume of %s is named %s", pv.Name, volume.Name)
	}
	for key, want := range map[string]string{
		"standalone-cinder.openstack.org/cluster":       "cluster-" + w.name,
		"standalone-cinder.openstack.org/claim-uid":     string(claim.UID),
		"standalone-cinder.openstack.org/tenant":        "tenant-a",
		"standalone-cinder.openstack.org/storage-class": w.name + "-gold",
		"csi.storage.k8s.io/pvc/name":                   claim.Name,
		"csi.storage.k8s.io/pvc/namespace":              claim.Namespace,
		"csi.storage.k8s.io/pv/name":                    pv.Name,
		"costcenter":                                    "4711",
	} {
		if got := volume.Metadata[key]; got != want {
			w.Errorf("volume metadata %s is %q, want %q", key, got, want)
		}
	}
	iscsi := pv.Spec.ISCSI
	if iscsi == nil {
		w.Fatalf("%s is not an iSCSI volume: %+v", pv.Name, pv.Spec.PersistentVolumeSource)
	}
	if iscsi.FSType != "xfs" || iscsi.InitiatorName == nil || *iscsi.InitiatorName != "iqn.2026-01.example:"+w.name || !iscsi.SessionCHAPAuth {
		w.Errorf("iscsi source %+v", iscsi)
	}
	if fmt.Sprint(pv.Spec.MountOptions) != "[noatime]" {
		w.Errorf("mount options %v", pv.Spec.MountOptions)
	}
	if iscsi.SecretRef == nil || iscsi.SecretRef.Namespace != harness.Namespace {
		w.Fatalf("secretRef %+v, want one in %s", iscsi.SecretRef, harness.Namespace)
	}
	secret, err := suite.Client.CoreV1().Secrets(harness.Namespace).Get(w.ctx, iscsi.SecretRef.Name, metav1.GetOptions{})
	w.must(err)
	if secret.Type != "kubernetes.io/iscsi-chap" || len(secret.Data["node.session.auth.password"]) == 0 {
		w.Errorf("Secret type %s with %d keys", secret.Type, len(secret.Data))
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		w.Errorf("reclaim policy %s", pv.Spec.PersistentVolumeReclaimPolicy)
	}
}

// TestCredentialsOfAnEarlierAttemptAreReplaced: an earlier attempt wrote the Secret and
// died, and its volume's target got another password since.
//
//tier:outage
func TestCredentialsOfAnEarlierAttemptAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "again", cindersim.Options{})
	claim, err := suite.CreateClaim(w.ctx, harness.Claim("again-a", "data", "again-gold", "1Gi", nil))
	w.must(err)
	name := "pvc-" + string(claim.UID)
	secrets := suite.Client.CoreV1().Secrets(harness.Namespace)
	_, err = secrets.Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-credentials", Labels: map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"},
			Annotations: map[string]string{"standalone-cinder.openstack.org/persistent-volume": name, "standalone-cinder.openstack.org/cluster": "cluster-again"},
		},
		Type: "kubernetes.io/iscsi-chap",
		Data: map[string][]byte{"node.session.auth.username": []byte("earlier"), "node.session.auth.password": []byte("earlier")},
	}, metav1.CreateOptions{})
	w.must(err)
	w.start()
	_, err = suite.WaitBound(w.ctx, "again-a", 1)
	w.must(err)
	secret, err := secrets.Get(w.ctx, name+"-credentials", metav1.GetOptions{})
	w.must(err)
	if user := string(secret.Data["node.session.auth.username"]); user == "earlier" || user == "" {
		t.Errorf("the Secret's user is %q", user)
	}
	w.must(suite.DeleteClaims(w.ctx, "again-a"))
	w.noResidue()
}
