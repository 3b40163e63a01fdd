package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// historicVolume makes what the historic provisioner left behind for a claim
// that is deleted now: a volume without stamp, attached under its host name, a
// CHAP Secret in the claim's namespace and a PersistentVolume that names
// neither backend nor connector.
func (w *world) historicVolume(name, volumeName, host string) {
	w.Helper()
	w.historicVolumeIn(w.name+"-b", name, volumeName, host)
}

func (w *world) historicVolumeIn(namespace, name, volumeName, host string) {
	w.Helper()
	id, err := w.sim.AddVolume(cindersim.Volume{
		Name: volumeName, Project: cindersim.DefaultNoauthProject, Status: "in-use", AttachStatus: "attached",
		Attachments: []cindersim.Attachment{{Host: host}},
	})
	w.must(err)
	_, err = suite.Client.CoreV1().Secrets(namespace).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-secret"},
		Type:       "kubernetes.io/iscsi-chap",
		Data:       map[string][]byte{"node.session.auth.username": []byte("u"), "node.session.auth.password": []byte("p")},
	}, metav1.CreateOptions{})
	w.must(err)
	claim, err := suite.CreateClaim(w.ctx, harness.Claim(namespace, name, w.name+"-none", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = name
	}))
	w.must(err)
	_, err = suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":     w.provisioner,
			"standaloneCinderProvisionerIdentity": "some-earlier-pod",
			"cinderVolumeId":                      id,
		}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              w.name + "-none",
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "127.0.0.1:3260", IQN: "iqn.2010-10.org.openstack:volume-" + id, Lun: 1,
				SessionCHAPAuth: true, SecretRef: &corev1.SecretReference{Name: name + "-secret"},
			}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
}

func TestVolumesOfTheHistoricProvisionerAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "historic", cindersim.Options{})
	w.must(suite.ApplyFile(w.ctx, "deploy/components/historic-volumes/rbac.yaml"))
	_, err := suite.Client.RbacV1().RoleBindings("historic-b").Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "standalone-cinder-historic-volumes"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "standalone-cinder-historic-volumes"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: harness.Namespace, Name: harness.Account(w.provisioner)}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.start()
	w.historicVolume("historic-1", "cinder-dynamic-pvc-0b5ed9a3", "standalone-cinder.k8s.io")
	_, err = suite.WaitBound(w.ctx, "historic-b", 1)
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "historic-b"))
	w.noResidue()
	if _, err := suite.Client.CoreV1().Secrets("historic-b").Get(w.ctx, "historic-1-secret", metav1.GetOptions{}); err == nil {
		t.Error("the CHAP Secret in the claim's namespace is left")
	}
}

func TestVolumeThatDoesNotLookHistoricIsNotTouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "foreign", cindersim.Options{})
	w.start()
	w.historicVolume("foreign-1", "database of somebody else", "compute-1")
	_, err := suite.WaitBound(w.ctx, "foreign-b", 1)
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "foreign-b"))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		events, err := suite.Client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=foreign-1,reason=VolumeFailedDelete"})
		if err != nil || len(events.Items) > 0 {
			return "", err
		}
		return "no event says that the volume is kept", nil
	}))
	volumes := w.sim.Volumes()
	if len(volumes) != 1 || volumes[0].Status != "in-use" || len(volumes[0].Attachments) != 1 {
		t.Errorf("the foreign volume was touched: %+v", volumes)
	}
	for operation, count := range w.sim.CountByOperation() {
		if operation != "volume.get" && operation != "volume.list" && operation != "snapshot.list" && operation[:5] != "auth." && count > 0 {
			t.Errorf("%d requests %s", count, operation)
		}
	}
}
