package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestAttacherMayDoItsWorkAndNoMore makes the requests of the external-attacher with
// the account, the roles and the admission policies that it has in a cluster.
func TestAttacherMayDoItsWorkAndNoMore(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"base/namespace.yaml", "base/serviceaccount.yaml", "base/admissionpolicy.yaml", "components/csi/csi.yaml"} {
		must(suite.ApplyFile(ctx, "deploy/"+path))
	}
	config := rest.CopyConfig(suite.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:standalone-cinder:standalone-cinder",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:standalone-cinder", "system:authenticated"},
	}
	account, err := kubernetes.NewForConfig(config)
	must(err)

	const driver = "standalone-cinder.openstack.org"
	source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "gold/attacher"}}
	pv, err := suite.Client.CoreV1().PersistentVolumes().Create(ctx, volumeOf("attacher-volume", "openstack.org/standalone-cinder", source), metav1.CreateOptions{})
	must(err)
	attach := func(name, attacher string) {
		t.Helper()
		_, err := suite.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: attacher, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}},
		}, metav1.CreateOptions{})
		must(err)
	}
	attach("attacher-ours", driver)
	attach("attacher-foreign", "ebs.csi.example")
	t.Cleanup(func() {
		free := []byte(`{"metadata": {"finalizers": null}}`)
		for _, name := range []string{"attacher-ours", "attacher-foreign"} {
			_, _ = suite.Client.StorageV1().VolumeAttachments().Patch(context.Background(), name, types.MergePatchType, free, metav1.PatchOptions{})
			_ = suite.Client.StorageV1().VolumeAttachments().Delete(context.Background(), name, metav1.DeleteOptions{})
		}
		_, _ = suite.Client.CoreV1().PersistentVolumes().Patch(context.Background(), pv.Name, types.MergePatchType, free, metav1.PatchOptions{})
		_ = suite.Client.CoreV1().PersistentVolumes().Delete(context.Background(), pv.Name, metav1.DeleteOptions{})
	})

	edit := func(name, change string, subresources ...string) error {
		_, err := account.StorageV1().VolumeAttachments().Patch(ctx, name, types.MergePatchType, []byte(change), metav1.PatchOptions{}, subresources...)
		return err
	}
	const pinned = `{"metadata": {"finalizers": ["external-attacher/standalone-cinder-openstack-org"], "annotations": {"csi.alpha.kubernetes.io/node-id": "n1"}}}`
	const forbidden = "the account of standalone-cinder may change only VolumeAttachments of its own driver, and not their spec"
	// Roles and policies take effect some moments after they were made.
	must(harness.Eventually(ctx, func() (string, error) {
		if err := edit("attacher-foreign", pinned); err == nil || !strings.Contains(err.Error(), forbidden) {
			return "the policy is not in force", nil
		}
		return "", nil
	}))
	if err := edit("attacher-foreign", `{"status": {"attached": true}}`, "status"); err == nil || !strings.Contains(err.Error(), forbidden) {
		t.Errorf("the status of another driver's VolumeAttachment: got %v, want %s", err, forbidden)
	}

	must(edit("attacher-ours", pinned))
	must(edit("attacher-ours", `{"status": {"attached": true, "attachmentMetadata": {"protocol": "iscsi"}}}`, "status"))
	_, err = account.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.JSONPatchType,
		[]byte(`[{"op": "add", "path": "/metadata/finalizers/-", "value": "external-attacher/standalone-cinder-openstack-org"}]`), metav1.PatchOptions{})
	must(err)
	must(suite.Client.StorageV1().VolumeAttachments().Delete(ctx, "attacher-ours", metav1.DeleteOptions{}))
	must(edit("attacher-ours", `{"status": {"attached": false, "attachmentMetadata": null}}`, "status"))
	must(edit("attacher-ours", `{"metadata": {"finalizers": null}}`))
	_, err = account.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	must(err)
}
