package controlplane

import (
	"context"
	"fmt"
	"os"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// bindStatic makes a volume, the claim for it and waits until they are bound.
// The claim comes once the binder knows the volume, for the reason that
// bindProbe gives.
func bindStatic(t *testing.T, client kubernetes.Interface, volumeName, claimName string) {
	t.Helper()
	volume, claim := staticVolume(volumeName, "default", claimName)
	if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), volume, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, volumeName, meta.GetOptions{})
		if err == nil && volume.Status.Phase != core.VolumeAvailable {
			err = fmt.Errorf("volume %s is %s", volumeName, volume.Status.Phase)
		}
		return err
	})
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, bound(client, "default", claimName, volumeName))
}

func testBinding(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	ctx := t.Context()
	bindStatic(t, client, "pv-one", "claim-one")

	// A bound volume that is deleted stays until its claim is gone.
	if err := client.CoreV1().PersistentVolumes().Delete(ctx, "pv-one", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kept, err := client.CoreV1().PersistentVolumes().Get(ctx, "pv-one", meta.GetOptions{})
	if err != nil || kept.DeletionTimestamp == nil {
		t.Fatalf("a deleted bound volume: %v, marked %v; want it kept and marked", err, kept.DeletionTimestamp)
	}
	if err := client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "claim-one", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		_, err := client.CoreV1().PersistentVolumes().Get(ctx, "pv-one", meta.GetOptions{})
		return gone(err)
	})
}

func testScheduler(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	mustApply(t, plane, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: Node
metadata: {name: somewhere}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-late}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: late
  persistentVolumeReclaimPolicy: Retain
  iscsi: {targetPortal: "127.0.0.1:3260", iqn: "iqn.2010-10.org.openstack:late", lun: 1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: late}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: late
  resources: {requests: {storage: 1Gi}}
`)
	node, err := client.CoreV1().Nodes().Get(t.Context(), "somewhere", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = core.ResourceList{core.ResourcePods: resource.MustParse("100")}
	node.Status.Capacity = node.Status.Allocatable
	node.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim, err := client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "late", meta.GetOptions{})
	if err != nil || claim.Status.Phase != core.ClaimPending {
		t.Fatalf("before there is a pod: %v, %s; want it Pending", err, claim.Status.Phase)
	}
	mustApply(t, plane, `
apiVersion: v1
kind: Pod
metadata: {name: consumer}
spec:
  # The admission plugin marks every new node, and no controller is there to
  # see that it is ready.
  tolerations: [{operator: Exists}]
  containers: [{name: main, image: none, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: late}}]
`)
	eventually(t, bound(client, "default", "late", "pv-late"))
	eventually(t, func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods("default").Get(ctx, "consumer", meta.GetOptions{})
		if err == nil && pod.Spec.NodeName != "somewhere" {
			err = fmt.Errorf("the pod is on %q", pod.Spec.NodeName)
		}
		return err
	})
}

func testNamespaceRemoval(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	mustApply(t, plane, `
apiVersion: v1
kind: Namespace
metadata: {name: doomed}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: inside, namespace: doomed}
`)
	eventually(t, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("doomed").Get(ctx, "default", meta.GetOptions{})
		return err
	})
	if err := client.CoreV1().Namespaces().Delete(t.Context(), "doomed", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, "doomed", meta.GetOptions{})
		return gone(err)
	})
}

func testRBAC(t *testing.T, plane *ControlPlane) {
	mustApply(t, plane, `
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: team-a}
`)
	path, err := plane.ServiceAccountKubeconfig(t.Context(), "team-a", "reader")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, mode %v; want it readable by its owner only", err, info.Mode())
	}
	client := clientFrom(t, path)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := review.Status.UserInfo.Username, "system:serviceaccount:team-a:reader"; got != want {
		t.Errorf("the kubeconfig is of %s, want %s", got, want)
	}

	list := func(ctx context.Context, namespace string) error {
		_, err := client.CoreV1().Secrets(namespace).List(ctx, meta.ListOptions{})
		return err
	}
	if err := list(t.Context(), "team-a"); !apierrors.IsForbidden(err) {
		t.Fatalf("without a role: got %v, want Forbidden", err)
	}
	mustApply(t, plane, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: team-a}
rules: [{apiGroups: [""], resources: [secrets], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: team-a}]
`)
	eventually(t, func(ctx context.Context) error { return list(ctx, "team-a") })
	if err := list(t.Context(), "default"); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: got %v, want Forbidden", err)
	}
}

func selfReview() *authentication.SelfSubjectReview { return &authentication.SelfSubjectReview{} }
