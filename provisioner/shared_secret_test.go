package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
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
	f.finish(types.UID(pv.Annotations[objects.AnnotationClaimUID]))
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

	// Each Secret goes with the last volume that uses it.
	f.endClaim("uid-1")
	f.must(f.delete(first))
	if f.hasShared(first.Annotations[objects.AnnotationSecret]) || !f.hasShared(second.Annotations[objects.AnnotationSecret]) {
		t.Errorf("after the first volume, the Secrets are %v", f.listSecrets())
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

func TestSharedSecretGoesWithTheLastVolume(t *testing.T) {
	other := func(change func(*corev1.PersistentVolume)) func(*fixture, string) {
		return func(f *fixture, name string) {
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "uid-other", Annotations: map[string]string{objects.AnnotationSecret: name}}}
			if change != nil {
				change(pv)
			}
			f.must(f.client.Tracker().Add(pv))
		}
	}
	mark := func(change func(*corev1.Secret)) func(*fixture, string) {
		return func(f *fixture, name string) {
			secret, err := f.client.CoreV1().Secrets("own").Get(f.t.Context(), name, metav1.GetOptions{})
			f.must(err)
			change(secret)
			_, err = f.client.CoreV1().Secrets("own").Update(f.t.Context(), secret, metav1.UpdateOptions{})
			f.must(err)
		}
	}
	refers := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "own", Name: name}
	}
	for _, c := range []struct {
		name   string
		before func(f *fixture, secret string)
		change func(pv *corev1.PersistentVolume)
		stays  bool
		doubt  bool
	}{
		{name: "nothing else needs it"},
		{name: "another volume needs it", stays: true, before: func(f *fixture, _ string) { f.record(f.provisionClaim("uid-2")) }},
		{name: "another volume needs it that the cache does not show yet", stays: true, before: other(nil)},
		{name: "a volume that an administrator recorded by hand needs it", stays: true, before: func(f *fixture, name string) {
			other(func(pv *corev1.PersistentVolume) {
				pv.Annotations, pv.Spec.CSI = nil, &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: refers(name)}
			})(f, name)
		}},
		{name: "a native volume needs it", stays: true, before: func(f *fixture, name string) {
			other(func(pv *corev1.PersistentVolume) {
				pv.Annotations, pv.Spec.RBD = nil, &corev1.RBDPersistentVolumeSource{SecretRef: refers(name)}
			})(f, name)
		}},
		{name: "a claim waits for an import", stays: true, before: func(f *fixture, _ string) {
			f.must(f.client.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "imported"},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: objects.ImportedPVName("volume-9")}}))
		}},
		{name: "a volume names another namespace's", before: func(f *fixture, name string) {
			other(func(pv *corev1.PersistentVolume) {
				pv.Annotations, pv.Spec.CSI = nil, &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: &corev1.SecretReference{Namespace: "kube-system", Name: name}}
			})(f, name)
		}},
		{name: "an attempt needs it", stays: true, before: func(f *fixture, _ string) { f.provisionClaim("uid-2") }},
		{name: "a former leader's volume may need it", stays: true, doubt: true, before: func(f *fixture, _ string) {
			f.ledger.Found("uid-3", ledger.Volume{Tenant: "a", GiB: 2}, "gold")
		}},
		{name: "another backend's volume does not", before: func(f *fixture, _ string) {
			f.ledger.Found("uid-3", ledger.Volume{Tenant: "a", GiB: 2}, "silver")
		}},
		{name: "it carries no label", stays: true, before: mark(func(s *corev1.Secret) { delete(s.Labels, objects.LabelManagedBy) })},
		{name: "it is not marked as shared", stays: true, before: mark(func(s *corev1.Secret) { delete(s.Annotations, objects.AnnotationSharedBy) })},
		{name: "it is another backend's", stays: true, before: mark(func(s *corev1.Secret) { s.Annotations[objects.AnnotationSharedBy] = "silver" })},
		{name: "it is another cluster's", stays: true, before: mark(func(s *corev1.Secret) { s.Annotations[objects.AnnotationCluster] = "cluster-2" })},
		{name: "the PersistentVolume names another namespace", stays: true, change: func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationSecretNamespace] = "kube-system" }},
		{name: "it is gone already", before: func(f *fixture, name string) {
			f.must(f.client.CoreV1().Secrets("own").Delete(f.t.Context(), name, metav1.DeleteOptions{}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newCephFixture(t)
			pv := f.record(f.provisionClaim("uid-1"))
			name := pv.Annotations[objects.AnnotationSecret]
			if c.before != nil {
				c.before(f, name)
			}
			if c.change != nil {
				c.change(pv)
			}
			f.must(f.delete(pv))
			if got := f.hasShared(name); got != c.stays {
				t.Errorf("the Secret exists: %t, want %t", got, c.stays)
			}
			if got := f.secrets.LastUncertain().Unix() != 0; got != c.doubt {
				t.Errorf("in doubt: %t, want %t", got, c.doubt)
			}
		})
	}
}

// TestSharedSecretOfAnImportStays: the import writes the Secret before its removal, and
// records its PersistentVolume after the listing.
func TestSharedSecretOfAnImportStays(t *testing.T) {
	f := newCephFixture(t)
	pv := f.record(f.provisionClaim("uid-1"))
	name := pv.Annotations[objects.AnnotationSecret]
	resource := corev1.SchemeGroupVersion.WithResource("secrets")
	secret := f.listSecrets()[0]
	secret.ResourceVersion = "1"
	f.must(f.client.Tracker().Update(resource, &secret, "own"))
	f.client.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		changed := secret.DeepCopy()
		changed.ResourceVersion = "2"
		f.must(f.client.Tracker().Update(resource, changed, "own"))
		return false, nil, nil
	})
	// The fake client's tracker ignores preconditions.
	f.client.PrependReactor("delete", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		wanted := action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions.ResourceVersion
		live, err := f.client.Tracker().Get(resource, "own", name)
		f.must(err)
		if wanted != nil && *wanted != live.(*corev1.Secret).ResourceVersion {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), name, errors.New("it was changed"))
		}
		return false, nil, nil
	})
	f.must(f.delete(pv))
	if !f.hasShared(name) {
		t.Error("the Secret that an import has just written is gone")
	}
	if f.secrets.LastUncertain().Unix() == 0 {
		t.Error("no sweep will look at the Secret again")
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

func TestLastTwoVolumesAtOnceLeaveNoSecret(t *testing.T) {
	for range 20 {
		f := newCephFixture(t)
		var origins []objects.Origin
		for i := range 8 {
			pv := f.record(f.provisionClaim(fmt.Sprintf("uid-%d", i)))
			origin, err := objects.OriginOf(pv)
			f.must(err)
			origins = append(origins, origin)
		}
		var all sync.WaitGroup
		for _, origin := range origins {
			all.Go(func() {
				if err := f.secrets.VolumeRemoved(context.WithoutCancel(t.Context()), types.UID("uid-of-"+origin.PVName), origin); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if left := f.listSecrets(); len(left) != 0 {
			t.Fatalf("%d Secrets are left", len(left))
		}
	}
}

// TestSharedSecretExistsWhileItIsNeeded: volumes come and go concurrently. Every
// attempt that needs the Secret finds it, and in the end it is gone.
func TestSharedSecretExistsWhileItIsNeeded(t *testing.T) {
	f := newCephFixture(t)
	const name = "gold-cephx-0123456789abcdef"
	secret := mappers.Secret{Namespace: "own", Name: name, Type: corev1.SecretTypeOpaque, Shared: true, Data: map[string][]byte{"userKey": []byte(oldKey)}}
	ctx := context.WithoutCancel(t.Context())
	pvs := f.factory.Core().V1().PersistentVolumes().Informer().GetStore()
	expect := func(when string) {
		if _, err := f.client.CoreV1().Secrets("own").Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for round := range 25 {
				id := fmt.Sprintf("%d-%d", worker, round)
				claim := types.UID("uid-" + id)
				if _, err := f.secrets.Keep(ctx, claim, "pvc-"+string(claim), "gold", secret, true); err != nil {
					t.Error(err)
				}
				expect("before the PersistentVolume is saved")
				if round%3 == 2 { // the attempt is undone
					used := f.secrets.UsedBy(claim)
					f.finish(claim)
					f.secrets.AttemptUndone(ctx, "gold", used)
					continue
				}
				pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-" + id, UID: types.UID("pv-" + id),
					Annotations: map[string]string{objects.AnnotationSecret: name, objects.AnnotationSecretNamespace: "own"}}}
				if err := f.client.Tracker().Add(pv); err != nil {
					t.Error(err)
				}
				expect("when the PersistentVolume is saved")
				f.finish(claim)
				expect("when the attempt is over")
				if round%2 == 0 { // otherwise the cache never shows it
					_ = pvs.Add(pv)
				}
				expect("while the PersistentVolume exists")
				if err := f.secrets.VolumeRemoved(ctx, pv.UID, objects.Origin{PVName: pv.Name, Backend: "gold", Secret: name, SecretNamespace: "own"}); err != nil {
					t.Error(err)
				}
				if err := f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", pv.Name); err != nil {
					t.Error(err)
				}
				_ = pvs.Delete(pv)
				f.secrets.VolumeGone(pv.UID)
			}
		})
	}
	all.Wait()
	if f.hasShared(name) {
		t.Error("the Secret is left")
	}
	if n := f.secrets.Remembered(name); n > 0 {
		t.Errorf("%d attempts and PersistentVolumes are remembered", n)
	}
}

// TestSharedSecretThatIsNeededAgainDuringItsRemoval: a PersistentVolume that is saved
// after the last check of attempts is in the listing. An attempt that begins after that
// check waits, and creates the Secret again.
func TestSharedSecretThatIsNeededAgainDuringItsRemoval(t *testing.T) {
	f := newCephFixture(t)
	pv := f.record(f.provisionClaim("uid-1"))
	name := pv.Annotations[objects.AnnotationSecret]
	secret := mappers.Secret{Namespace: "own", Name: name, Type: corev1.SecretTypeOpaque, Shared: true, Data: map[string][]byte{"userKey": []byte(oldKey)}}
	ended := make(chan error, 1)
	var asked atomic.Bool
	f.client.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !asked.Swap(true) {
			go func() {
				_, err := f.secrets.Keep(context.WithoutCancel(t.Context()), "uid-2", "pvc-uid-1", "gold", secret, true)
				ended <- err
			}()
		}
		return false, nil, nil
	})
	f.must(f.delete(pv))
	f.must(<-ended)
	if !asked.Load() || !f.hasShared(name) {
		t.Errorf("the API server got the request: %t; the Secret exists: %t", asked.Load(), f.hasShared(name))
	}
}

func TestSharedSecretStaysWhenTheListingFails(t *testing.T) {
	f := newCephFixture(t)
	pv := f.record(f.provisionClaim("uid-1"))
	var fail atomic.Bool
	fail.Store(true)
	f.client.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fail.Load(), nil, errors.New("the API server is down")
	})
	if err := f.delete(pv); err == nil || !strings.Contains(err.Error(), "the API server is down") {
		t.Errorf("error %v", err)
	}
	if !f.hasShared(pv.Annotations[objects.AnnotationSecret]) {
		t.Error("the Secret is gone")
	}
	fail.Store(false)
	f.must(f.delete(pv))
	if f.hasShared(pv.Annotations[objects.AnnotationSecret]) {
		t.Error("the Secret is left")
	}
}

func TestUndoingTheLastAttemptRemovesTheSharedSecret(t *testing.T) {
	f := newCephFixture(t)
	first, second := f.provisionClaim("uid-1"), f.provisionClaim("uid-2")
	name := first.Annotations[objects.AnnotationSecret]
	if second.Annotations[objects.AnnotationSecret] != name {
		t.Fatal("the claims do not share a Secret")
	}
	f.endClaim("uid-1")
	if !f.hasShared(name) {
		t.Fatal("the Secret is gone while an attempt needs it")
	}
	f.endClaim("uid-2")
	if f.hasShared(name) {
		t.Error("the Secret is left")
	}
}

func TestUndoingLeavesTheSharedSecretToTheSweepWhenTheListingFails(t *testing.T) {
	f := newCephFixture(t)
	name := f.provisionClaim("uid-1").Annotations[objects.AnnotationSecret]
	var fail atomic.Bool
	fail.Store(true)
	f.client.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fail.Load(), nil, errors.New("the API server is down")
	})
	f.endClaim("uid-1")
	if !f.hasShared(name) || f.secrets.LastUncertain().Unix() == 0 {
		t.Fatal("the Secret is gone, or no sweep is due")
	}
	fail.Store(false)
	f.must(f.SweepSecrets(t.Context()))
	if f.hasShared(name) {
		t.Error("the Secret is left")
	}
}

func TestSweepRemovesUnneededSharedSecrets(t *testing.T) {
	const name = "gold-cephx-0123456789abcdef"
	for _, c := range []struct {
		name   string
		secret *corev1.Secret
		before func(f *fixture)
		stays  bool
	}{
		{name: "nothing needs it", secret: sharedSecretOf(name, "gold", "cluster-1")},
		{name: "its backend is not in the policy", secret: sharedSecretOf("bronze-cephx-0123456789abcdef", "bronze", "cluster-1")},
		{name: "a volume needs it", stays: true, secret: sharedSecretOf(name, "gold", "cluster-1"), before: func(f *fixture) {
			f.must(f.client.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{objects.AnnotationSecret: name}}}))
		}},
		{name: "an attempt needs it", stays: true, secret: sharedSecretOf(name, "gold", "cluster-1"), before: func(f *fixture) {
			_, err := f.secrets.Keep(f.t.Context(), "uid-1", "pvc-uid-1", "gold", mappers.Secret{Name: name, Shared: true}, false)
			f.must(err)
		}},
		{name: "a former leader's volume may need it", stays: true, secret: sharedSecretOf(name, "gold", "cluster-1"), before: func(f *fixture) {
			f.ledger.Found("uid-3", ledger.Volume{Tenant: "a", GiB: 2}, "gold")
		}},
		{name: "its backend was not listed yet", stays: true, secret: sharedSecretOf(name, "gold", "cluster-1"), before: func(f *fixture) {
			f.placement.Recount("gold")
		}},
		{name: "it is another cluster's", stays: true, secret: sharedSecretOf(name, "gold", "cluster-2")},
		{name: "it is not marked", stays: true, secret: sharedSecretOf(name, "", "cluster-1")},
		{name: "it is one volume's", stays: true, secret: credentialsOf("pvc-x")},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newCephFixture(t, c.secret)
			if c.before != nil {
				c.before(f)
			}
			f.must(f.SweepSecrets(t.Context()))
			if got := f.hasShared(c.secret.Name); got != c.stays {
				t.Errorf("the Secret exists: %t, want %t", got, c.stays)
			}
		})
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
			_, err := f.secrets.Keep(t.Context(), "uid-1", "pvc-uid-1", "gold", secret, true)
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

func TestFailedSharedSecretRequestCausesALaterSweep(t *testing.T) {
	f := newCephFixture(t)
	f.client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the answer was lost")
	})
	_, err := f.provision(f.claim(nil))
	if err == nil || !strings.Contains(err.Error(), "cannot create Secret own/gold-cephx-") {
		t.Errorf("error %v", err)
	}
	if f.secrets.LastUncertain().Unix() == 0 {
		t.Error("no sweep is due")
	}
}

// TestClaimThatLeavesABackendNoLongerNeedsItsSecret: the attempt's volume is
// undone, and then the API server does not answer. No backend takes the claim, and
// it is deleted.
func TestClaimThatLeavesABackendNoLongerNeedsItsSecret(t *testing.T) {
	f := newCephFixture(t)
	f.noteEarlier()
	f.class.Name = "both"
	f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(f.class))
	f.provisionClaim("uid-1")
	name := f.listSecrets()[0].Name
	claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data-uid-1")
	f.must(err)
	silent := true
	f.client.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if silent && strings.HasSuffix(action.(clienttesting.GetAction).GetName(), "-credentials") {
			return true, nil, errors.New("no answer")
		}
		return false, nil, nil
	})
	f.backends["gold"].document = `{"driver_volume_type": "unheard-of", "data": {}}`
	if _, err := f.provision(claim); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Fatalf("the volume was undone: %v", err)
	}
	silent = false
	f.backends["gold"].health, f.backends["silver"].health = errGoldDown, errGoldDown
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Fatalf("error %v, want one that the library ignores", err)
	}
	f.endClaim("uid-1")
	f.backends["gold"].health, f.backends["silver"].health = nil, nil
	f.must(f.SweepSecrets(t.Context()))
	if f.hasShared(name) {
		t.Error("the Secret is left")
	}
}

// TestEndOfAnAwaitedImportSweepsSecrets: the claim may have been the only user of one.
func TestEndOfAnAwaitedImportSweepsSecrets(t *testing.T) {
	for volume, swept := range map[string]bool{objects.ImportedPVName("volume-9"): true, "another": false} {
		f := newCephFixture(t)
		f.followup.ClaimGone(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-9"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}})
		if got := f.secrets.LastUncertain().Unix() != 0; got != swept {
			t.Errorf("a sweep is due after the claim for %s: %t, want %t", volume, got, swept)
		}
	}
}

// TestSweepThatFindsASharedSecretChangedIsRepeated: an import writes the Secret
// during the sweep, and is refused before it records a PersistentVolume.
func TestSweepThatFindsASharedSecretChangedIsRepeated(t *testing.T) {
	f := newCephFixture(t)
	pv := f.record(f.provisionClaim("uid-1"))
	name := pv.Annotations[objects.AnnotationSecret]
	resource := corev1.SchemeGroupVersion.WithResource("secrets")
	// The object is removed by hand, and the volume with it.
	f.must(f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", pv.Name))
	f.secrets.AttemptOver("uid-1")
	f.secrets.MayBeUnrecorded = func(string) bool { return false }
	f.secrets.PersistentVolumes = corelisters.NewPersistentVolumeLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}))
	conflicts := 0
	f.client.PrependReactor("delete", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts == 1 {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), name, errors.New("it was changed"))
		}
		return false, nil, nil
	})
	err := f.secrets.Sweep(t.Context())
	if conflicts != 1 {
		t.Fatalf("%d deletions: %v", conflicts, err)
	}
	if f.hasShared(name) && err == nil && f.secrets.LastUncertain().Unix() == 0 {
		t.Error("the Secret stays, the sweep counts as done, and no sweep will look at the Secret again")
	}
}
