package integration

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestManifestsAreAcceptedByTheAPIServer applies what deploy/ contains; the replicas
// of all tests run with its rights and under its admission policies.
//
//tier:oldest
func TestManifestsAreAcceptedByTheAPIServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := suite.CreateNamespace(ctx, "team-a", nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"base/namespace.yaml", "base/serviceaccount.yaml", "base/rbac.yaml", "base/deployment.yaml", "base/poddisruptionbudget.yaml", "base/admissionpolicy.yaml",
		"components/network-policy/networkpolicy.yaml", "components/historic-volumes/rbac.yaml", "components/tenant-status/tenantstatus.yaml", "components/snapshot-schedules/snapshotschedules.yaml", "components/group-snapshots/groupsnapshots.yaml", "components/node-grow/nodegrow.yaml", "components/csi/csi.yaml", "components/taint-lost-nodes/taintlostnodes.yaml",
		"examples/storageclasses.yaml", "examples/claims.yaml",
	} {
		if err := suite.ApplyFile(ctx, "deploy/"+path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := suite.DeleteClaims(ctx, "team-a"); err != nil {
		t.Fatal(err)
	}
}

// TestAccountMayChangeOnlyWhatItMade attacks with the account of the program: RBAC
// would allow every one of these requests.
//
//tier:oldest
func TestAccountMayChangeOnlyWhatItMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "guarded", cindersim.Options{})
	w.start()
	config := rest.CopyConfig(suite.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", harness.Namespace, harness.Account(w.provisioner)),
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + harness.Namespace, "system:authenticated"},
	}
	account, err := kubernetes.NewForConfig(config)
	w.must(err)
	who, err := account.AuthenticationV1().SelfSubjectReviews().Create(w.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	w.must(err)
	if who.Status.UserInfo.Username != config.Impersonate.UserName {
		t.Fatalf("the attacker is %s", who.Status.UserInfo.Username)
	}

	foreign := volumeOf("guarded-foreign", "ebs.csi.example", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.example", VolumeHandle: "vol-1"}})
	_, err = suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, foreign, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = suite.Client.CoreV1().PersistentVolumes().Delete(context.Background(), foreign.Name, metav1.DeleteOptions{})
	})
	clouds := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "guarded-clouds", Namespace: harness.Namespace}, StringData: map[string]string{"clouds.yaml": "clouds: {}"}}
	_, err = suite.Client.CoreV1().Secrets(harness.Namespace).Create(w.ctx, clouds, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = suite.Client.CoreV1().Secrets(harness.Namespace).Delete(context.Background(), clouds.Name, metav1.DeleteOptions{})
	})
	iscsi := corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2026-01.example:x", Lun: 1}}
	ours := volumeOf("guarded-ours", w.provisioner, iscsi)
	// The policies take effect some moments after they were made.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := account.CoreV1().PersistentVolumes().Create(w.ctx, volumeOf("guarded-other", "ebs.csi.example", iscsi), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return "the policy is not in force", nil
		}
		return "", nil
	}))

	// One claim has a PersistentVolume that was made for it, one another's, and one
	// has none.
	w.claim("a", "data", "gold", "1Gi")
	_, err = suite.WaitBound(w.ctx, "guarded-a", 1)
	w.must(err)
	_, err = suite.CreateClaim(w.ctx, harness.Claim("guarded-b", "data", "guarded-none", "1Gi", nil))
	w.must(err)
	_, err = suite.CreateClaim(w.ctx, harness.Claim("guarded-stranger", "data", "guarded-unknown", "1Gi", nil))
	w.must(err)
	edit := func(namespace, change string) error {
		_, err := account.CoreV1().PersistentVolumeClaims(namespace).Patch(w.ctx, "data", types.MergePatchType, []byte(change), metav1.PatchOptions{})
		return err
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := account.CoreV1().PersistentVolumeClaims("guarded-a").Patch(w.ctx, "data", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return "the policy about claims is not in force", nil
		}
		return "", nil
	}))
	volumes, secrets := account.CoreV1().PersistentVolumes(), account.CoreV1().Secrets(harness.Namespace)
	retain := []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`)
	for name, attack := range map[string]func() error{
		"deletes another's PersistentVolume": func() error { return volumes.Delete(w.ctx, foreign.Name, metav1.DeleteOptions{}) },
		"changes another's PersistentVolume": func() error { return patch(w, account, foreign.Name, retain) },
		"claims another's PersistentVolume":  func() error { return patch(w, account, foreign.Name, provisionedBy(w.provisioner)) },
		"creates another's PersistentVolume": func() error { return create(w, account, volumeOf("guarded-new", "ebs.csi.example", iscsi)) },
		"creates one of a node's filesystem": func() error { return create(w, account, volumeOf("guarded-host", w.provisioner, hostPath())) },
		"disowns its own PersistentVolume":   func() error { return disown(w, account, ours) },
		"deletes a tenant's claim": func() error {
			return account.CoreV1().PersistentVolumeClaims("guarded-a").Delete(w.ctx, "data", metav1.DeleteOptions{})
		},
		"binds a tenant's claim":              func() error { return edit("guarded-stranger", `{"spec": {"volumeName": "guarded-foreign"}}`) },
		"relabels a tenant's claim":           func() error { return edit("guarded-a", `{"metadata": {"labels": {"a": "b"}}}`) },
		"annotates a tenant's claim":          func() error { return edit("guarded-a", `{"metadata": {"annotations": {"a": "b"}}}`) },
		"pins a tenant's claim":               func() error { return edit("guarded-a", `{"metadata": {"finalizers": ["example.com/forever"]}}`) },
		"deletes the backends' credentials":   func() error { return secrets.Delete(w.ctx, clouds.Name, metav1.DeleteOptions{}) },
		"replaces the backends' credentials":  func() error { return replace(w, account, clouds.Name) },
		"creates a Secret that is not marked": func() error { return plant(w, account, "guarded-token") },
		"shrinks a PersistentVolume":          func() error { return change(w, account, ours, `{"spec": {"capacity": {"storage": "1Mi"}}}`) },
		"grows one, and retains it differently": func() error {
			return change(w, account, ours, `{"spec": {"capacity": {"storage": "2Gi"}, "persistentVolumeReclaimPolicy": "Delete"}}`)
		},
		"reports on a claim with another volume": func() error { return reportOn(w, account, "guarded-b", `{"status": {"capacity": {"storage": "9Gi"}}}`) },
		"annotates a claim":                      func() error { return reportOn(w, account, "guarded-a", `{"metadata": {"annotations": {"a": "b"}}}`) },
		"loses a claim":                          func() error { return reportOn(w, account, "guarded-a", `{"status": {"phase": "Lost"}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := attack(); !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want it forbidden", err)
			}
		})
	}

	w.mayOnlyAskForAnotherNode(account)

	// What the program does all the time is allowed.
	w.must(change(w, account, ours, `{"spec": {"capacity": {"storage": "2Gi"}}}`))
	w.must(reportOn(w, account, "guarded-a", `{"status": {"capacity": {"storage": "1Gi"}}}`))
	w.must(edit("guarded-a", `{"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "standalone-cinder.openstack.org/content-is-copied"]}}`))
	w.must(edit("guarded-a", `{"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}`))
	// The type of the Secret still marks it if somebody removed its label.
	w.kept("the policy", onPolicy(w.policy))
	unlabel := []byte(`{"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}`)
	lastGood, err := suite.Client.CoreV1().Secrets(harness.Namespace).Patch(w.ctx, w.lastGood(), types.MergePatchType, unlabel, metav1.PatchOptions{})
	w.must(err)
	lastGood.Labels = map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}
	_, err = secrets.Update(w.ctx, lastGood, metav1.UpdateOptions{})
	w.must(err)
	for _, namespace := range []string{"guarded-a", "guarded-b", "guarded-stranger"} {
		w.must(suite.DeleteClaims(w.ctx, namespace))
	}
	w.noResidue()
}

// mayOnlyAskForAnotherNode attacks claims without a volume, of which the program may
// remove the annotation with the selected node.
func (w *world) mayOnlyAskForAnotherNode(account kubernetes.Interface) {
	w.Helper()
	const selectedNode = "volume.kubernetes.io/selected-node"
	made := func(name, provisioner string) {
		_, err := suite.CreateClaim(w.ctx, harness.Claim("guarded-stranger", name, "guarded-unknown", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Labels = map[string]string{"app": "database"}
			claim.Annotations = map[string]string{selectedNode: "node-1", "volume.kubernetes.io/storage-provisioner": provisioner, "example.com/note": "mine"}
		}))
		w.must(err)
	}
	made("unbound", w.provisioner)
	made("foreign", "ebs.csi.example")
	_, err := suite.Client.CoreV1().PersistentVolumeClaims("guarded-a").Patch(w.ctx, "data", types.MergePatchType, []byte(`{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-1"}}}`), metav1.PatchOptions{})
	w.must(err)
	for name, attack := range map[string]struct{ namespace, claim, change, subresource string }{
		"selects a node itself":                  {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-2"}}}`},
		"selects no node, but leaves that":       {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": ""}}}`},
		"removes the author's annotation":        {change: `{"metadata": {"annotations": {"example.com/note": null}}}`},
		"removes the author's annotation, too":   {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null, "example.com/note": null}}}`},
		"changes the author's annotation, too":   {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null, "example.com/note": "yours"}}}`},
		"adds an annotation, too":                {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null, "example.com/more": "x"}}}`},
		"moves the node to the older annotation": {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null, "volume.alpha.kubernetes.io/selected-node": "node-2"}}}`},
		"relabels it, too":                       {change: `{"metadata": {"labels": {"app": "other"}, "annotations": {"volume.kubernetes.io/selected-node": null}}}`},
		"removes its finalizers, too":            {change: `{"metadata": {"finalizers": null, "annotations": {"volume.kubernetes.io/selected-node": null}}}`},
		"adds the program's finalizer, too":      {change: `{"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "standalone-cinder.openstack.org/content-is-copied"], "annotations": {"volume.kubernetes.io/selected-node": null}}}`},
		"gives it an owner, too":                 {change: `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}], "annotations": {"volume.kubernetes.io/selected-node": null}}}`},
		"binds it, too":                          {change: `{"spec": {"volumeName": "guarded-foreign"}, "metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`},
		"reports on it":                          {change: `{"status": {"phase": "Lost"}}`, subresource: "status"},
		"does it by the status":                  {change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`, subresource: "status"},
		"of another provisioner's claim":         {claim: "foreign", change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`},
		"of a bound claim":                       {namespace: "guarded-a", claim: "data", change: `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`},
	} {
		w.Run(name, func(t *testing.T) {
			claims := account.CoreV1().PersistentVolumeClaims(cmp.Or(attack.namespace, "guarded-stranger"))
			var subresources []string
			if attack.subresource != "" {
				subresources = append(subresources, attack.subresource)
			}
			_, err := claims.Patch(w.ctx, cmp.Or(attack.claim, "unbound"), types.MergePatchType, []byte(attack.change), metav1.PatchOptions{}, subresources...)
			if !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want it forbidden", err)
			}
		})
	}
	after, err := account.CoreV1().PersistentVolumeClaims("guarded-stranger").Patch(w.ctx, "unbound", types.MergePatchType, []byte(`{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`), metav1.PatchOptions{})
	w.must(err)
	if _, selected := after.Annotations[selectedNode]; selected || after.Annotations["example.com/note"] != "mine" || after.Labels["app"] != "database" {
		w.Errorf("the claim has the annotations %v and labels %v", after.Annotations, after.Labels)
	}
}

func volumeOf(name, provisioner string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              "guarded-none",
			PersistentVolumeSource:        source,
		},
	}
}

func hostPath() corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
}

func provisionedBy(provisioner string) []byte {
	return fmt.Appendf(nil, `{"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": %q}}}`, provisioner)
}

func create(w *world, account kubernetes.Interface, pv *corev1.PersistentVolume) error {
	_, err := account.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	return err
}

func patch(w *world, account kubernetes.Interface, name string, change []byte) error {
	_, err := account.CoreV1().PersistentVolumes().Patch(w.ctx, name, types.StrategicMergePatchType, change, metav1.PatchOptions{})
	return err
}

// disown creates a PersistentVolume of the provisioner, gives it away, and removes
// it again.
func disown(w *world, account kubernetes.Interface, pv *corev1.PersistentVolume) error {
	w.must(create(w, account, pv))
	err := patch(w, account, pv.Name, provisionedBy("ebs.csi.example"))
	w.must(account.CoreV1().PersistentVolumes().Delete(w.ctx, pv.Name, metav1.DeleteOptions{}))
	return err
}

// change creates a PersistentVolume of the provisioner, changes it, and removes it
// again.
func change(w *world, account kubernetes.Interface, pv *corev1.PersistentVolume, change string) error {
	pv = pv.DeepCopy()
	pv.Name, pv.Spec.PersistentVolumeSource.ISCSI.IQN = fmt.Sprintf("guarded-changed-%d", time.Now().UnixNano()), "iqn.2026-01.example:changed"
	w.must(create(w, account, pv))
	err := patch(w, account, pv.Name, []byte(change))
	w.must(account.CoreV1().PersistentVolumes().Delete(w.ctx, pv.Name, metav1.DeleteOptions{}))
	return err
}

// reportOn patches the status of the claim in a namespace.
func reportOn(w *world, account kubernetes.Interface, namespace, patch string) error {
	_, err := account.CoreV1().PersistentVolumeClaims(namespace).Patch(w.ctx, "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

func replace(w *world, account kubernetes.Interface, name string) error {
	secrets := account.CoreV1().Secrets(harness.Namespace)
	secret, err := secrets.Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	secret.Labels = map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}
	secret.Data = map[string][]byte{"clouds.yaml": []byte("clouds: {gold: {}}")}
	_, err = secrets.Update(w.ctx, secret, metav1.UpdateOptions{})
	return err
}

// plant tries to get a token of another account.
func plant(w *world, account kubernetes.Interface, name string) error {
	_, err := account.CoreV1().Secrets(harness.Namespace).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	return err
}
