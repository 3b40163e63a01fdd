package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// TestAccountReachesNoSecretsOfOthers: whoever has the account of the program, and a
// node, could read any Secret through a PersistentVolume that names it, since a node may
// read what its pods' volumes need; or get other drivers' volumes, and what other
// programs look for in Secrets, such as the values of the next helm upgrade.
func TestAccountReachesNoSecretsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "reach", cindersim.Options{})
	w.start()
	account := attackerOf(w)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	volume := func(source corev1.PersistentVolumeSource) error {
		_, err := account.CoreV1().PersistentVolumes().Create(w.ctx, volumeOf("pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001", w.provisioner, source), dryRun)
		return err
	}
	secret := func(name string, kind corev1.SecretType, labels map[string]string) error {
		all := map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}
		maps.Copy(all, labels)
		_, err := account.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all, Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: kind,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")},
		}, dryRun)
		return err
	}
	in := func(namespace string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: namespace, Name: "database"}
	}
	iscsi := func(ref *corev1.SecretReference) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
			TargetPortal: "192.0.2.1:3260", IQN: "iqn.2026-01.example:x", Lun: 1, SessionCHAPAuth: ref != nil, SecretRef: ref}}
	}
	rbd := func(ref *corev1.SecretReference) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{CephMonitors: []string{"192.0.2.1"}, RBDImage: "volume-1", SecretRef: ref}}
	}
	flex := func(ref *corev1.SecretReference) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "example.com/disk", SecretRef: ref}}
	}
	csi := func(driver string, refer func(*corev1.CSIPersistentVolumeSource)) corev1.PersistentVolumeSource {
		source := &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "vol-1"}
		refer(source)
		return corev1.PersistentVolumeSource{CSI: source}
	}
	none := func(*corev1.CSIPersistentVolumeSource) {}
	ceph := func(refer func(*corev1.CSIPersistentVolumeSource)) func() error {
		return func() error { return volume(csi("rbd.csi.ceph.com", refer)) }
	}
	const forbiddenVolume = "may create PersistentVolumes only with Secrets of its own namespace; if a mapping of the policy names a Secret elsewhere"
	// The policies take effect some moments after they were made.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if volume(iscsi(in("reach-b"))) == nil || secret("sh.helm.release.v1.x.v2", corev1.SecretTypeOpaque, nil) == nil {
			return "the policies are not in force", nil
		}
		return "", nil
	}))
	for name, attack := range map[string]struct {
		try  func() error
		want string
	}{
		"iSCSI with a tenant's Secret":                 {func() error { return volume(iscsi(in("reach-b"))) }, forbiddenVolume},
		"iSCSI with a Secret of the claim's namespace": {func() error { return volume(iscsi(in(""))) }, forbiddenVolume},
		"rbd with a tenant's Secret":                   {func() error { return volume(rbd(in("reach-b"))) }, forbiddenVolume},
		"FlexVolume with a tenant's Secret":            {func() error { return volume(flex(in("reach-b"))) }, "FlexVolume driver example.com/disk"},
		"ceph-csi with a Secret to stage":              {ceph(func(s *corev1.CSIPersistentVolumeSource) { s.NodeStageSecretRef = in("kube-system") }), forbiddenVolume},
		"ceph-csi with a Secret to publish":            {ceph(func(s *corev1.CSIPersistentVolumeSource) { s.NodePublishSecretRef = in("kube-system") }), forbiddenVolume},
		"ceph-csi with a Secret to grow on the node":   {ceph(func(s *corev1.CSIPersistentVolumeSource) { s.NodeExpandSecretRef = in("kube-system") }), forbiddenVolume},
		"ceph-csi with a Secret to attach":             {ceph(func(s *corev1.CSIPersistentVolumeSource) { s.ControllerPublishSecretRef = in("kube-system") }), forbiddenVolume},
		"ceph-csi with a Secret to grow":               {ceph(func(s *corev1.CSIPersistentVolumeSource) { s.ControllerExpandSecretRef = in("kube-system") }), forbiddenVolume},
		"another CSI driver's volume":                  {func() error { return volume(csi("ebs.csi.example", none)) }, "may not create PersistentVolumes of the CSI driver ebs.csi.example; if a mapping"},
		"any FlexVolume":                               {func() error { return volume(flex(nil)) }, "may not create PersistentVolumes of the FlexVolume driver example.com/disk; if a mapping"},
		"the next release of Helm's":                   {func() error { return secret("sh.helm.release.v1.standalone-cinder.v2", "helm.sh/release.v1", nil) }, "may not write Secrets of type helm.sh/release.v1"},
		"the next release, of another type":            {func() error { return secret("sh.helm.release.v1.standalone-cinder.v2", corev1.SecretTypeOpaque, nil) }, "the name sh.helm.release.v1.standalone-cinder.v2"},
		"the next release with a generated name": {func() error {
			_, err := account.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "sh.helm.release.v1.standalone-cinder.v", Labels: map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}},
			}, dryRun)
			return err
		}, "the name sh.helm.release.v1.standalone-cinder.v"},
		"iSCSI with a tenant's Secret, applied": {func() error {
			pv := volumeOf("pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0002", w.provisioner, iscsi(in("reach-b")))
			pv.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}
			applied, err := json.Marshal(pv)
			w.must(err)
			_, err = account.CoreV1().PersistentVolumes().Patch(w.ctx, pv.Name, types.ApplyPatchType, applied, metav1.PatchOptions{FieldManager: "x", DryRun: dryRun.DryRun})
			return err
		}, forbiddenVolume},
		"the next release under another name": {func() error {
			return secret("innocent", corev1.SecretTypeOpaque, map[string]string{"owner": "helm", "name": "standalone-cinder"})
		}, "may not label Secrets for other programs"},
		"the credentials":           {func() error { return secret("standalone-cinder-clouds", corev1.SecretTypeOpaque, nil) }, "the name standalone-cinder-clouds"},
		"the logins of the metrics": {func() error { return secret("standalone-cinder-web", corev1.SecretTypeOpaque, nil) }, "the name standalone-cinder-web"},
		"a token":                   {func() error { return secret("token", corev1.SecretTypeServiceAccountToken, nil) }, "may not write Secrets of type kubernetes.io/service-account-token"},
		"a login at a registry":     {func() error { return secret("pull", corev1.SecretTypeDockerConfigJson, nil) }, "may not write Secrets of type kubernetes.io/dockerconfigjson"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := attack.try(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), attack.want) {
				t.Errorf("got %v, want it forbidden: %s", err, attack.want)
			}
		})
	}
	for name, err := range map[string]error{
		"iSCSI with CHAP":       volume(iscsi(in(harness.Namespace))),
		"iSCSI without":         volume(iscsi(nil)),
		"rbd":                   volume(rbd(in(harness.Namespace))),
		"ceph-csi":              ceph(func(s *corev1.CSIPersistentVolumeSource) { s.NodeStageSecretRef = in(harness.Namespace) })(),
		"mode csi":              volume(csi("standalone-cinder.openstack.org", func(s *corev1.CSIPersistentVolumeSource) { s.NodeStageSecretRef = in(harness.Namespace) })),
		"a Secret of CHAP":      secret("pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001-credentials", "kubernetes.io/iscsi-chap", nil),
		"a Secret of rbd":       secret("cinder-gold-1", "kubernetes.io/rbd", nil),
		"a Secret for ceph-csi": secret("cinder-gold-2", corev1.SecretTypeOpaque, nil),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What somebody else wrote on a Secret may stay.
	const labeled = "reach-labeled"
	made, err := account.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: labeled, Labels: map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}}}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = suite.Client.CoreV1().Secrets(harness.Namespace).Delete(context.Background(), labeled, metav1.DeleteOptions{})
	})
	made.Labels["backup.example/keep"] = "yes"
	made, err = suite.Client.CoreV1().Secrets(harness.Namespace).Update(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	made.Data = map[string][]byte{"password": []byte("x")}
	made, err = account.CoreV1().Secrets(harness.Namespace).Update(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	made.Labels["backup.example/keep"] = "no"
	if _, err = account.CoreV1().Secrets(harness.Namespace).Update(w.ctx, made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a label of somebody else: got %v, want it forbidden", err)
	}
}

// TestAccountLeavesClaimsOfOtherProvisionersAlone: their PersistentVolumes are named
// pvc-UID, too, so the annotation that names the claim's provisioner tells them apart.
func TestAccountLeavesClaimsOfOtherProvisionersAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "foreignclaim", cindersim.Options{})
	w.start()
	account := attackerOf(w)
	const volume = "pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d00ff"
	claim := func(name, pv, provisioner string) {
		_, err := suite.CreateClaim(w.ctx, harness.Claim("foreignclaim-stranger", name, "foreignclaim-unknown", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeName = pv
			if provisioner != "" {
				claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": provisioner}
			}
		}))
		w.must(err)
	}
	claim("foreign", volume, "ebs.csi.example")
	claim("ours", volume, w.provisioner)
	claim("driver", volume, "standalone-cinder.openstack.org")
	claim("bound", volume, "")
	claim("imported", "imported-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d00ff", "cinder.csi.openstack.org")
	pin := func(name string) error {
		_, err := account.CoreV1().PersistentVolumeClaims("foreignclaim-stranger").Patch(w.ctx, name, types.MergePatchType,
			[]byte(`{"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "standalone-cinder.openstack.org/content-is-copied"]}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	report := func(name string) error {
		_, err := account.CoreV1().PersistentVolumeClaims("foreignclaim-stranger").Patch(w.ctx, name, types.MergePatchType,
			[]byte(`{"status": {"capacity": {"storage": "2Gi"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if pin("foreign") == nil {
			return "the policy is not in force", nil
		}
		return "", nil
	}))
	for name, err := range map[string]error{"pins it": pin("foreign"), "reports on it": report("foreign")} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("another provisioner's claim: %s: got %v, want it forbidden", name, err)
		}
	}
	for _, name := range []string{"ours", "driver", "bound", "imported"} {
		w.must(pin(name))
		w.must(report(name))
	}
	w.must(suite.DeleteClaims(w.ctx, "foreignclaim-stranger"))
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
