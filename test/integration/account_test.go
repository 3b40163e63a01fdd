package integration

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestAccountMayNotBecomeAnother: whoever has the account of the program could
// make a Secret with its label and the type of a token. Kubernetes would then
// write a token of any other service account of the namespace into it, which the
// account may read.
func TestAccountMayNotBecomeAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "become", cindersim.Options{})
	w.start()
	account := attackerOf(w)
	secret := func(kind corev1.SecretType, label string) error {
		_, err := account.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name: "become-another", Namespace: harness.Namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": label},
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"},
		}, Type: kind}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if secret(corev1.SecretTypeOpaque, "somebody") == nil {
			return "the policy is not in effect", nil
		}
		return "", nil
	}))
	w.must(secret(corev1.SecretTypeOpaque, "standalone-cinder"))
	if err := secret(corev1.SecretTypeServiceAccountToken, "standalone-cinder"); !apierrors.IsForbidden(err) {
		t.Errorf("a token of another service account: got %v, want it forbidden", err)
	}
}

// TestAccountMayNotMoveAVolumeToAnotherClaim: the program never changes the spec of
// a PersistentVolume. If its account could, it could hand a bound volume of one
// tenant to a claim of another.
func TestAccountMayNotMoveAVolumeToAnotherClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "moved", cindersim.Options{})
	w.start()
	account := attackerOf(w)
	pv := volumeOf("moved-volume", w.provisioner, corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2026-01.example:x", Lun: 1}})
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "moved-a", Name: "victim"}
	_, err := suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = suite.Client.CoreV1().PersistentVolumes().Delete(context.Background(), pv.Name, metav1.DeleteOptions{})
	})
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if patch(w, account, pv.Name, provisionedBy("ebs.csi.example")) == nil {
			return "the policy is not in effect", patch(w, suite.Client, pv.Name, provisionedBy(w.provisioner))
		}
		return "", nil
	}))
	if err := patch(w, account, pv.Name, []byte(`{"spec": {"claimRef": {"namespace": "moved-b", "name": "thief"}}}`)); !apierrors.IsForbidden(err) {
		t.Errorf("the claim of another tenant: got %v, want it forbidden", err)
	}
}

// TestHistoricVolumesOfTheOwnNamespaceAreDeleted: the historic provisioner wrote
// its Secrets, without a label, into the namespaces of the claims. A claim in
// the namespace that the program itself runs in (kube-system, or one that has
// both an application and its provisioner) leaves such a Secret there. The role
// allows deleting it. If the admission policy forbade that, the volume at Cinder
// would be gone, and its PersistentVolume would stay Failed forever.
func TestHistoricVolumesOfTheOwnNamespaceAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ownhistoric", cindersim.Options{})
	w.start()
	const name = "ownhistoric-1"
	w.historicVolumeIn(harness.Namespace, name, "cinder-dynamic-pvc-0b5ed9a3", "standalone-cinder.k8s.io")
	w.Cleanup(func() {
		_ = suite.Client.CoreV1().Secrets(harness.Namespace).Delete(context.Background(), name+"-secret", metav1.DeleteOptions{})
		_ = suite.Client.CoreV1().PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(harness.Namespace).Delete(w.ctx, name, metav1.DeleteOptions{}))
	if err := harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		events, listErr := suite.Client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=VolumeFailedDelete"})
		if listErr == nil && len(events.Items) > 0 {
			t.Fatalf("%d volumes are left at Cinder, and the PersistentVolume stays: %s", len(w.sim.Volumes()), events.Items[0].Message)
		}
		return "the PersistentVolume is not gone", err
	}); err != nil {
		t.Error(err)
	}
}

// attackerOf returns a client with the account of a world's program.
func attackerOf(w *world) kubernetes.Interface {
	w.Helper()
	account, err := kubernetes.NewForConfig(attackerConfig(w))
	w.must(err)
	return account
}

func attackerConfig(w *world) *rest.Config {
	config := rest.CopyConfig(suite.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", harness.Namespace, harness.Account(w.provisioner)),
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + harness.Namespace, "system:authenticated"},
	}
	return config
}

// TestAccountMayDeleteOnlyHistoricSecretsOfTenants: the component historic-volumes
// lets the account delete the Secrets that the historic provisioner left in a
// tenant's namespace. RBAC cannot tell these Secrets from others of the tenant, so
// the admission policy must look beyond the program's own namespace.
func TestAccountMayDeleteOnlyHistoricSecretsOfTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tenantsecret", cindersim.Options{})
	w.must(suite.ApplyFile(w.ctx, "deploy/components/historic-volumes/rbac.yaml"))
	w.start()
	const namespace = "tenantsecret-b"
	_, err := suite.Client.RbacV1().RoleBindings(namespace).Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "standalone-cinder-historic-volumes"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "standalone-cinder-historic-volumes"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: harness.Namespace, Name: harness.Account(w.provisioner)}},
	}, metav1.CreateOptions{})
	w.must(err)
	_, err = suite.Client.CoreV1().Secrets(namespace).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "database-password"}}, metav1.CreateOptions{})
	w.must(err)
	account := attackerOf(w)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := account.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "not-ours"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return "the policy is not in effect", nil
		}
		return "", nil
	}))
	if err := account.CoreV1().Secrets(namespace).Delete(w.ctx, "database-password", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant's own Secret: got %v, want it forbidden", err)
	}
}
