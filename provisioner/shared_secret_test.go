package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const (
	oldKey = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="
	newKey = "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQg=="
)

func rbdDocument(key string) string {
	return fmt.Sprintf(`{"driver_volume_type": "rbd", "data": {"name": "volumes/NAME-OF-THE-VOLUME", "hosts": ["192.0.2.11"], "ports": ["6789"],
  "auth_enabled": true, "auth_username": "cinder", "keyring": "[client.cinder]\n\tkey = %s\n"}}`, key)
}

type cephBackends struct{ fakeBackends }

func (cephBackends) Mappings(string) map[string]mapping.Mapping {
	return map[string]mapping.Mapping{"rbd": {As: mapping.CSI, ClusterID: "ceph-1"}}
}

// newCephFixture returns a fixture with backends whose connections contain the key.
func newCephFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := newFixture(t, objects...)
	f.useBackends(cephBackends{f.backends})
	for _, volumes := range f.backends {
		volumes.document = rbdDocument(oldKey)
	}
	f.count()
	return f
}

func (f *fixture) provisionClaim(uid string) *corev1.PersistentVolume {
	f.t.Helper()
	pv, err := f.provision(f.claim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID = "data-"+uid, types.UID(uid) }))
	f.must(err)
	return pv
}

// endClaim deletes a claim that provisionClaim made.
func (f *fixture) endClaim(uid string) {
	f.t.Helper()
	claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data-" + uid)
	f.must(err)
	f.forgetClaim(claim)
	f.must(f.claimGone(f.t.Context(), types.UID(uid)))
}

// record saves a PersistentVolume as the library does, and shows it to the
// follow-up.
func (f *fixture) record(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	f.t.Helper()
	pv.UID = types.UID("uid-of-" + pv.Name)
	pv.Annotations[objects.AnnotationProvisionedBy] = "test"
	f.must(f.client.Tracker().Add(pv))
	f.cache(pv)
	f.journal.Finish(types.UID(pv.Annotations[objects.AnnotationClaimUID]))
	return pv
}

func (f *fixture) cache(pv *corev1.PersistentVolume) {
	f.t.Helper()
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(pv))
}

func (f *fixture) listSecrets() []corev1.Secret {
	f.t.Helper()
	list, err := f.client.CoreV1().Secrets("own").List(context.WithoutCancel(f.t.Context()), metav1.ListOptions{})
	f.must(err)
	return list.Items
}

func (f *fixture) hasShared(name string) bool {
	return slices.ContainsFunc(f.listSecrets(), func(s corev1.Secret) bool { return s.Name == name })
}

func sharedSecretOf(name, backend, cluster string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: name, Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy},
		Annotations: map[string]string{objects.AnnotationSharedBy: backend, objects.AnnotationCluster: cluster}}}
}

func TestVolumesOfABackendShareOneSecret(t *testing.T) {
	f := newCephFixture(t)
	first := f.provisionClaim("uid-1")
	secrets := f.listSecrets()
	if len(secrets) != 1 {
		t.Fatalf("%d Secrets", len(secrets))
	}
	secret := secrets[0]
	if !mappers.IsSharedSecretName(secret.Name, "gold") || !objects.IsSharedSecret(&secret, "gold", "cluster-1") || secret.Annotations[objects.AnnotationForPV] != "" {
		t.Errorf("the Secret is %s, labels %v, annotations %v", secret.Name, secret.Labels, secret.Annotations)
	}
	if first.Annotations[objects.AnnotationSecret] != secret.Name || first.Annotations[objects.AnnotationSecretNamespace] != "own" || first.Spec.CSI.NodeStageSecretRef.Name != secret.Name {
		t.Errorf("the PersistentVolume names %v and %v", first.Annotations, first.Spec.CSI.NodeStageSecretRef)
	}
	if origin, err := objects.OriginOf(first); err != nil || !origin.SharesSecret() {
		t.Errorf("read back as %+v, %v", origin, err)
	}

	f.backends["gold"].document = rbdDocument(newKey)
	second := f.provisionClaim("uid-2")
	secrets = f.listSecrets()
	if len(secrets) != 1 || second.Annotations[objects.AnnotationSecret] != secret.Name {
		t.Fatalf("%d Secrets; the second volume's is %s", len(secrets), second.Annotations[objects.AnnotationSecret])
	}
	if got := string(secrets[0].Data["userKey"]); got != newKey {
		t.Errorf("the key is %s, want the new one", got)
	}
}

// TestFailOverKeepsTheSecretOfEarlierVolumes: the secondary cluster's key must not
// replace the key with which nodes stage the volumes of the primary.
func TestFailOverKeepsTheSecretOfEarlierVolumes(t *testing.T) {
	f := newCephFixture(t)
	first := f.record(f.provisionClaim("uid-1"))
	f.backends["gold"].document = strings.Replace(strings.Replace(rbdDocument(newKey), "192.0.2.11", "198.51.100.11", 1), `"auth_enabled"`, `"cluster_name": "secondary", "auth_enabled"`, 1)
	second := f.record(f.provisionClaim("uid-2"))
	keys := map[string]string{}
	for _, secret := range f.listSecrets() {
		keys[secret.Name] = string(secret.Data["userKey"])
	}
	if len(keys) != 2 || keys[first.Annotations[objects.AnnotationSecret]] != oldKey || keys[second.Annotations[objects.AnnotationSecret]] != newKey {
		t.Errorf("the keys are %v", keys)
	}
}

// TestStoredConnectionDoesNotReplaceTheKey: an attachment from before a change of the
// key still has the old one.
func TestStoredConnectionDoesNotReplaceTheKey(t *testing.T) {
	f := newCephFixture(t)
	f.backends["gold"].document, f.backends["gold"].stored = rbdDocument(newKey), true
	f.provisionClaim("uid-1")
	if got := string(f.listSecrets()[0].Data["userKey"]); got != newKey {
		t.Fatalf("without a Secret, the key is %s, want the stored one", got)
	}
	f.backends["gold"].document = rbdDocument(oldKey)
	f.provisionClaim("uid-2")
	if got := string(f.listSecrets()[0].Data["userKey"]); got != newKey {
		t.Errorf("a stored connection wrote the key %s over %s", got, newKey)
	}
	f.backends["gold"].stored = false
	f.provisionClaim("uid-3")
	if got := string(f.listSecrets()[0].Data["userKey"]); got != oldKey {
		t.Errorf("a fresh connection left the key %s", got)
	}
}

func TestSecretsOfCHAPStayOnePerVolume(t *testing.T) {
	f := newFixture(t)
	first, second := f.provisionClaim("uid-1"), f.provisionClaim("uid-2")
	if len(f.listSecrets()) != 2 || first.Annotations[objects.AnnotationSecret] != objects.SecretName(first.Name) || second.Annotations[objects.AnnotationSecret] != objects.SecretName(second.Name) {
		t.Errorf("%d Secrets, %s and %s", len(f.listSecrets()), first.Annotations[objects.AnnotationSecret], second.Annotations[objects.AnnotationSecret])
	}
}

// TestAnnotationOfASharedSecretMustMatchItsBackend: an annotation alone must not get an
// arbitrary Secret removed.
func TestAnnotationOfASharedSecretMustMatchItsBackend(t *testing.T) {
	f := newCephFixture(t)
	pv := f.record(f.provisionClaim("uid-1"))
	const silver = "silver-cephx-0123456789abcdef"
	f.must(f.client.Tracker().Add(sharedSecretOf(silver, "silver", "cluster-1")))
	for _, name := range []string{silver, "admin-token", "gold-cephx-0123456789ABCDEF", objects.SecretName("pvc-uid-2")} {
		damaged := pv.DeepCopy()
		damaged.Annotations[objects.AnnotationSecret] = name
		const want = "PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/secret names a Secret that was not made for this volume; nothing is deleted until it is fixed"
		if err := f.delete(damaged); err == nil || err.Error() != want {
			t.Errorf("%s: error %v\nwant %s", name, err, want)
		}
	}
	if !f.hasShared(silver) || !f.hasShared(pv.Annotations[objects.AnnotationSecret]) {
		t.Error("a Secret is gone")
	}
}

func TestSharedSecretIsWrittenDespiteOtherWriters(t *testing.T) {
	const name = "gold-cephx-0123456789abcdef"
	secret := mappers.Secret{Namespace: "own", Name: name, Type: corev1.SecretTypeOpaque, Shared: true, Data: map[string][]byte{"userKey": []byte(newKey)}}
	resource := schema.GroupResource{Resource: "secrets"}
	conflicts := func(n int) func(*fixture) {
		return func(f *fixture) {
			f.client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
				n--
				return n >= 0, nil, apierrors.NewConflict(resource, name, errors.New("changed"))
			})
		}
	}
	typed := sharedSecretOf(name, "gold", "cluster-1")
	typed.Type = "kubernetes.io/rbd"
	old := sharedSecretOf(name, "gold", "cluster-1")
	old.Type, old.Data = corev1.SecretTypeOpaque, map[string][]byte{"userKey": []byte(oldKey)}
	const foreign = "secret own/" + name + " exists but was not made by standalone-cinder for the volumes of backend gold; rename or remove it"
	for _, c := range []struct {
		name   string
		exists *corev1.Secret
		before func(f *fixture)
		want   string // error
	}{
		{name: "another claim creates it first", before: func(f *fixture) {
			f.client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
				f.must(f.client.Tracker().Add(old.DeepCopy()))
				return true, nil, apierrors.NewAlreadyExists(resource, name)
			})
		}},
		{name: "another claim changes it first", exists: old, before: conflicts(2)},
		{name: "others change it all the time", exists: old, before: conflicts(100), want: "secret own/" + name + " was changed 5 times by others during the update"},
		{name: "it is an operator's", exists: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: name}}, want: foreign},
		{name: "it is another backend's", exists: sharedSecretOf(name, "silver", "cluster-1"), want: foreign},
		{name: "it is another cluster's", exists: sharedSecretOf(name, "gold", "cluster-2"), want: foreign},
		{name: "it is of another type", exists: typed, want: foreign},
	} {
		t.Run(c.name, func(t *testing.T) {
			var objects []runtime.Object
			if c.exists != nil {
				objects = append(objects, c.exists.DeepCopy())
			}
			f := newCephFixture(t, objects...)
			if c.before != nil {
				c.before(f)
			}
			_, err := f.secrets.Keep(t.Context(), "pvc-uid-1", "gold", secret, true)
			if c.want != "" {
				if err == nil || err.Error() != c.want {
					t.Errorf("error %v\nwant %s", err, c.want)
				}
				return
			}
			f.must(err)
			if got := string(f.listSecrets()[0].Data["userKey"]); got != newKey {
				t.Errorf("the key is %s", got)
			}
		})
	}
}

// TestSharedSecretGoesAfterItsBackend: neither the deletion of the last volume nor the
// end of the last attempt removes it. An attempt that began before the policy lost the
// backend keeps it.
func TestSharedSecretGoesAfterItsBackend(t *testing.T) {
	f := newCephFixture(t)
	f.provisionClaim("uid-1")
	f.endClaim("uid-1")
	pv := f.record(f.provisionClaim("uid-2"))
	name := pv.Annotations[objects.AnnotationSecret]
	f.must(f.delete(pv))
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Delete(pv))
	f.followup.VolumeGone(pv)
	f.provisionClaim("uid-3")
	// sweep does what all audits of some hours do.
	sweep := func() {
		t.Helper()
		for range 2 {
			f.must(f.SweepSecrets(t.Context()))
			for _, secret := range f.listSecrets() {
				if secret.Annotations[objects.AnnotationUnneededSince] != "" {
					secret.Annotations[objects.AnnotationUnneededSince] = time.Now().Add(-2 * objects.UnneededKept).UTC().Format(time.RFC3339)
					_, err := f.client.CoreV1().Secrets("own").Update(t.Context(), &secret, metav1.UpdateOptions{})
					f.must(err)
				}
			}
		}
	}
	expect := func(want bool, when string) {
		t.Helper()
		if sweep(); f.hasShared(name) != want {
			t.Errorf("%s, the Secret exists: %t", when, !want)
		}
	}
	expect(true, "while its backend is in the policy")
	f.current.Store(parsePolicy(t, strings.NewReplacer("[gold, silver]", "[silver]", "[gold]", "[silver]", "name: gold", "name: bronze").Replace(testPolicy)))
	expect(true, "while an attempt may save a PersistentVolume")
	f.endClaim("uid-3")
	expect(false, "when nothing counts on the backend")
}
