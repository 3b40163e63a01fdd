package provisioner

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// escapePolicy has two tenants that select their namespaces by labels. Each has a
// backend and a StorageClass, and both use a third StorageClass.
const escapePolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: gold}
  - name: silver
    auth: {cloud: silver}
tenants:
  - name: a
    namespaceSelector: {matchLabels: {a: "yes"}}
    quota: {volumes: 1}
    classes:
      - {storageClasses: [one, only-a], backends: [gold], volumeType: ssd}
  - name: b
    namespaceSelector: {matchLabels: {b: "yes"}}
    quota: {volumes: 1}
    classes:
      - {storageClasses: [one, only-b], backends: [silver]}
`

var (
	ofA = map[string]string{"a": "yes"}
	ofB = map[string]string{"b": "yes"}
)

// newEscape puts escapePolicy in force, with namespace team-a in tenant a.
func newEscape(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.current.Store(parsePolicy(t, escapePolicy))
	_, err := f.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, metav1.CreateOptions{})
	f.must(err)
	f.label(ofA)
	f.cacheLabels(ofA)
	f.noteEarlier()
	return f
}

// label changes the labels of namespace team-a at the API server.
func (f *fixture) label(labels map[string]string) {
	f.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: labels}}
	_, err := f.client.CoreV1().Namespaces().Update(context.WithoutCancel(f.t.Context()), namespace, metav1.UpdateOptions{})
	f.must(err)
}

// cacheLabels changes the labels of namespace team-a in the cache.
func (f *fixture) cacheLabels(labels map[string]string) {
	f.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: labels}}
	f.must(f.factory.Core().V1().Namespaces().Informer().GetStore().Add(namespace))
}

// watchedBackends let a test see which volumes are requested, and act while a backend
// is being listed.
type watchedBackends struct {
	fakeBackends
	specs  *[]backends.Spec
	onList func()
	// lookupErr is why a backend cannot report whether it has a volume.
	lookupErr error
}

func (w *watchedBackends) Unrecorded(name string) (Unrecorded, error) {
	volumes, err := w.of(name)
	return watchedVolumes{volumes, w}, err
}

func (w *watchedBackends) Listing(name string) (Listing, error) {
	volumes, err := w.of(name)
	return watchedVolumes{volumes, w}, err
}

type watchedVolumes struct {
	*fakeVolumes
	watch *watchedBackends
}

func (w watchedVolumes) Connect(ctx context.Context, spec backends.Spec) (backends.Connected, error) {
	*w.watch.specs = append(*w.watch.specs, spec)
	return w.fakeVolumes.Connect(ctx, spec)
}

func (w watchedVolumes) HasVolumeOf(ctx context.Context, stamp stamps.Volume) (bool, error) {
	if w.watch.lookupErr != nil {
		return false, w.watch.lookupErr
	}
	return w.fakeVolumes.HasVolumeOf(ctx, stamp)
}

func (w watchedVolumes) Volumes(ctx context.Context) ([]cinder.Volume, error) {
	if w.watch.onList != nil {
		w.watch.onList()
	}
	return w.fakeVolumes.Volumes(ctx)
}

// TestEscapeByAnnotationsOrLabelsOfAClaimDecidesNothing sets on a claim every
// annotation and label that this program or the historic one ever wrote or read.
func TestEscapeByAnnotationsOrLabelsOfAClaimDecidesNothing(t *testing.T) {
	made := func(change func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolume, backends.Spec) {
		f := newEscape(t)
		var specs []backends.Spec
		f.useBackends(&watchedBackends{fakeBackends: f.backends, specs: &specs})
		pv, err := f.provision(f.claim(change))
		f.must(err)
		wantCalls(t, f.backends["silver"])
		wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
		specs[0].Permit = nil // functions are never equal
		return pv, specs[0]
	}
	plain, plainSpec := made(nil)
	if plainSpec.Type != "ssd" {
		t.Fatalf("the rule's volume type is not used: %+v", plainSpec)
	}
	foreign := map[string]string{
		objects.AnnotationVolume: "volume-of-b", objects.AnnotationBackend: "silver", objects.AnnotationTenant: "b", objects.AnnotationRule: "tenants[1].classes[0]",
		objects.AnnotationProtocol: "rbd", objects.AnnotationConnector: `{"host":"evil"}`, objects.AnnotationCluster: "cluster-2", objects.AnnotationClaimUID: "uid-of-b",
		objects.AnnotationRevision: "0", objects.AnnotationSecret: "admin", objects.AnnotationSecretNamespace: "kube-system", objects.AnnotationForPV: "pvc-of-b",
		objects.AnnotationProvisionedBy: "other", objects.HistoricVolume: "volume-of-b", objects.HistoricIdentity: "some-pod",
		"k8s.io/CloneOf": "team-b/data", "smartclone": "true", "type": "hdd", "availability": "az2", "fsType": "ext2",
		"csi.storage.k8s.io/fstype": "ext2", "csi.storage.k8s.io/pv/name": "pvc-of-b", "csi.storage.k8s.io/pvc/namespace": "team-b",
		objects.AnnotationBetaStorageProvisioner: "other", "volume.kubernetes.io/selected-node": "node-of-b", "a": "no", "b": "yes",
	}
	for _, key := range slices.Sorted(maps.Keys(foreign)) {
		t.Run(key, func(t *testing.T) {
			pv, spec := made(func(c *corev1.PersistentVolumeClaim) {
				c.Annotations[key] = foreign[key]
				c.Labels = map[string]string{key: foreign[key]}
			})
			if !reflect.DeepEqual(pv, plain) {
				t.Errorf("the PersistentVolume is\n%+v\nwant\n%+v", pv, plain)
			}
			if !reflect.DeepEqual(spec, plainSpec) {
				t.Errorf("the volume is requested as\n%+v\nwant\n%+v", spec, plainSpec)
			}
		})
	}
	t.Run("all at once", func(t *testing.T) {
		pv, spec := made(func(c *corev1.PersistentVolumeClaim) { maps.Copy(c.Annotations, foreign); c.Labels = foreign })
		if !reflect.DeepEqual(pv, plain) || !reflect.DeepEqual(spec, plainSpec) {
			t.Errorf("%+v\n%+v", pv, spec)
		}
	})
}

// TestEscapeByTheOldClassAnnotationGetsNoOthersClass covers the annotation that
// Kubernetes still prefers to spec.storageClassName: the policy must decide by the one
// that takes effect.
func TestEscapeByTheOldClassAnnotationGetsNoOthersClass(t *testing.T) {
	own, other, empty := "only-a", "only-b", ""
	for _, c := range []struct {
		name       string
		spec       *string
		annotation string
	}{
		{"no class in the spec", nil, other},
		{"an empty class in the spec", &empty, other},
		{"its own class in the spec", &own, other},
		{"the other's class in the spec", &other, other},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newEscape(t)
			for _, name := range []string{own, other} {
				class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "test"}
				f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(class))
			}
			claim := f.claim(func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.StorageClassName = c.spec
				claim.Annotations[corev1.BetaStorageClassAnnotation] = c.annotation
			})
			if f.admits(claim) {
				t.Error("admitted")
			}
			f.wantEvent("Warning NoMatchingClass tenant a has no rule for StorageClass only-b (tenants[0].classes)")
			if _, counts := f.ledger.PositionOf(claim.UID); counts {
				t.Error("room is reserved for a claim that is denied")
			}
		})
	}
}

// TestEscapeByNamingThisProvisionerForAnothersClassCountsNowhere: a claim's author
// forged the annotation that Kubernetes writes. The library ignores the claim, because
// its StorageClass belongs to another provisioner, so the claim must not take room or a
// turn either.
func TestEscapeByNamingThisProvisionerForAnothersClassCountsNowhere(t *testing.T) {
	f := newEscape(t)
	f.class.Provisioner = "other.example.org"
	f.count()
	claim := f.claim(nil)
	if f.admits(claim) {
		t.Error("a claim of another provisioner's StorageClass is admitted")
	}
	if _, counts := f.ledger.PositionOf(claim.UID); counts {
		t.Error("a claim of another provisioner's StorageClass counts")
	}
	if events := f.newEvents(); len(events) > 0 {
		t.Errorf("events %q", events)
	}
}

// TestEscapeThroughLabelsThatAreGone removes a namespace's labels while its claim
// waits. When the work begins, the labels at the API server count.
func TestEscapeThroughLabelsThatAreGone(t *testing.T) {
	for _, c := range []struct {
		name   string
		labels map[string]string
		seen   bool
		event  string
	}{
		{"seen by the cache", nil, true, "Warning NoMatchingTenant namespace team-a belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
		{"not yet seen by the cache", nil, false, "Warning NoMatchingTenant namespace team-a belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
		{"of two tenants, seen", map[string]string{"a": "yes", "b": "yes"}, true, "Warning AmbiguousTenant namespace team-a matches several tenants equally well: a (tenants[0]), b (tenants[1]); list its name in one of them, or exclude it from the selectors of the others"},
		{"of two tenants, not yet seen", map[string]string{"a": "yes", "b": "yes"}, false, "Warning AmbiguousTenant namespace team-a matches several tenants equally well: a (tenants[0]), b (tenants[1]); list its name in one of them, or exclude it from the selectors of the others"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newEscape(t)
			f.count()
			claim := f.claim(nil)
			if !f.admits(claim) {
				t.Fatal("not admitted")
			}
			f.label(c.labels)
			if c.seen {
				f.cacheLabels(c.labels)
			}
			if _, err := f.provision(claim); !isIgnored(err) {
				t.Errorf("error %v, want one that the library ignores", err)
			}
			f.wantEvent(c.event)
			wantCalls(t, f.backends["gold"])
			wantCalls(t, f.backends["silver"])
			if _, counts := f.ledger.PositionOf(claim.UID); counts {
				t.Error("the room that was reserved under the old labels is kept")
			}
		})
	}
}

// TestEscapeThroughARecreatedNamespace deletes the namespace of an admitted claim.
func TestEscapeThroughARecreatedNamespace(t *testing.T) {
	f := newEscape(t)
	claim := f.claim(nil)
	f.must(f.client.CoreV1().Namespaces().Delete(t.Context(), "team-a", metav1.DeleteOptions{}))
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	// The next owner creates the namespace again, with a claim of the same name.
	_, err := f.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: ofB}}, metav1.CreateOptions{})
	f.must(err)
	f.forgetClaim(claim)
	f.claim(func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-2" })
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	wantCalls(t, f.backends["gold"])
	wantCalls(t, f.backends["silver"])
}

// TestEscapeThroughLabelsThatGoWhileBackendsAreListed removes the label after the
// decision and before the first request for a volume: listing a backend can take
// minutes.
func TestEscapeThroughLabelsThatGoWhileBackendsAreListed(t *testing.T) {
	f := newEscape(t)
	f.useBackends(&watchedBackends{fakeBackends: f.backends, specs: new([]backends.Spec), onList: func() { f.label(nil) }})
	if _, err := f.provision(f.claim(nil)); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	wantCalls(t, f.backends["gold"])
}

// TestEscapeThroughLabelsThatGoWhileCinderIsAskedIsFinished removes the label while
// Cinder creates the volume. The claim was admitted, so it is served.
func TestEscapeThroughLabelsThatGoWhileCinderIsAskedIsFinished(t *testing.T) {
	for name, labels := range map[string]map[string]string{"none": nil, "another tenant's": ofB} {
		t.Run(name, func(t *testing.T) {
			f := newEscape(t)
			f.backends["gold"].onCall = func() { f.label(labels); f.cacheLabels(labels) }
			pv, err := f.provision(f.claim(nil))
			f.must(err)
			if pv.Annotations[objects.AnnotationTenant] != "a" || pv.Annotations[objects.AnnotationBackend] != "gold" {
				t.Errorf("annotations %v", pv.Annotations)
			}
		})
	}
}

// TestEscapeThroughLabelsThatChangeBetweenAttemptsLeavesNothingHalf changes the
// labels after a first attempt has created a volume and failed. The volume is
// either finished for its original tenant or undone. It must not be left at
// Cinder as an orphan, or given to another tenant whose rules do not name its
// backend.
func TestEscapeThroughLabelsThatChangeBetweenAttemptsLeavesNothingHalf(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		// ofB is the backend of tenant b.
		ofB string
	}{
		"no tenant's":      {labels: nil, ofB: "silver"},
		"two tenants'":     {labels: map[string]string{"a": "yes", "b": "yes"}, ofB: "silver"},
		"another tenant's": {labels: ofB, ofB: "silver"},
		"another tenant's, who shares the backend": {labels: ofB, ofB: "gold"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newEscape(t)
			f.current.Store(parsePolicy(t, strings.Replace(escapePolicy, "backends: [silver]", "backends: ["+c.ofB+"]", 1)))
			gold := f.backends["gold"]
			gold.err = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "lost"}
			gold.hasVolumeOf, gold.touched = map[string]bool{"uid-1": true}, map[string]bool{"uid-1": true}
			claim := f.claim(nil)
			if _, err := f.provision(claim); err == nil {
				t.Fatal("the first attempt succeeded")
			}
			gold.err = nil
			f.label(c.labels)
			f.cacheLabels(c.labels)
			var pv *corev1.PersistentVolume
			if f.admits(claim) {
				pv, _ = f.provision(claim)
			}
			undone := slices.Contains(gold.calls, "abandon pvc-uid-1")
			switch {
			case pv == nil && !undone:
				t.Errorf("the volume is left at Cinder, and the claim is denied; the backend was called: %s", strings.Join(gold.calls, "; "))
			case pv != nil && pv.Annotations[objects.AnnotationTenant] != "a" && !undone:
				t.Errorf("the volume that was created for tenant a is given to tenant %s", pv.Annotations[objects.AnnotationTenant])
			case pv != nil && pv.Annotations[objects.AnnotationTenant] == "b" && pv.Annotations[objects.AnnotationBackend] != c.ofB:
				t.Errorf("tenant b gets a volume on backend %s", pv.Annotations[objects.AnnotationBackend])
			}
		})
	}
}

// TestEscapeThroughAnOutageKeepsNoRoomForADeniedClaim: an attempt has begun when its
// backend goes down, and its namespace belongs to no tenant by the time the backend is
// back. Nothing was created, so the room must be free for others.
func TestEscapeThroughAnOutageKeepsNoRoomForADeniedClaim(t *testing.T) {
	f := newEscape(t)
	gold := f.backends["gold"]
	gold.err = errGoldDown
	watched := &watchedBackends{fakeBackends: f.backends, specs: new([]backends.Spec), lookupErr: errGoldDown}
	f.useBackends(watched)
	gold.onCall = func() { gold.health = errGoldDown }
	claim := f.claim(nil)
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.label(nil)
	f.cacheLabels(nil)
	gold.err, gold.health, gold.onCall = nil, nil, nil
	watched.lookupErr = nil
	f.publish(parking.Backend, "gold")
	if f.admits(claim) {
		// Undoing takes a worker.
		if _, err := f.provision(claim); !isIgnored(err) {
			t.Errorf("error %v, want one that the library ignores", err)
		}
	}
	if used := f.ledger.Usage(policy.TenantScope, "a"); used.Volumes != 0 {
		t.Errorf("tenant a counts %d volumes and has none", used.Volumes)
	}
}

// TestEscapeByAStampInAnothersBackendDrawsNoClaimThere: a user with access to the
// project of backend gold has stamped a volume for a claim of tenant b, whose
// rule names silver. Adopting it would write tenant b's data into a foreign
// project.
func TestEscapeByAStampInAnothersBackendDrawsNoClaimThere(t *testing.T) {
	for name, rules := range map[string]string{
		"of no rule of the tenant":      "",
		"of another rule of the tenant": "\n      - {storageClasses: [rare], backends: [gold]}",
	} {
		t.Run(name, func(t *testing.T) {
			f := newEscape(t)
			f.current.Store(parsePolicy(t, strings.TrimSpace(escapePolicy)+rules+"\n"))
			f.label(ofB)
			f.cacheLabels(ofB)
			forged := f.stamped("uid-1")
			forged.Metadata[policy.StampPrefix+"tenant"] = "b"
			f.backends["gold"].listed = []cinder.Volume{forged}
			f.count()
			claim := f.claim(nil)
			if f.admits(claim) {
				if pv, err := f.provision(claim); err == nil && pv.Annotations[objects.AnnotationBackend] != "silver" {
					t.Errorf("tenant b gets a volume on backend %s", pv.Annotations[objects.AnnotationBackend])
				}
			}
			for _, call := range f.backends["gold"].calls {
				// A volume that was never attached may be removed.
				if call != "abandon pvc-uid-1" {
					t.Errorf("backend gold was called: %s", call)
				}
			}
		})
	}
}

// TestEscapeByAStampInAnothersBackendUsesUpNoQuota: a user with access to the
// project of backend gold has stamped a volume with the name of tenant b, which
// cannot use gold. The volume must not use up tenant b's quota.
func TestEscapeByAStampInAnothersBackendUsesUpNoQuota(t *testing.T) {
	f := newEscape(t)
	f.label(ofB)
	f.cacheLabels(ofB)
	forged := f.stamped("uid-of-none")
	forged.Metadata[policy.StampPrefix+"tenant"] = "b"
	f.backends["gold"].listed = []cinder.Volume{forged}
	f.count()
	if used := f.ledger.Usage(policy.TenantScope, "b"); used.Volumes != 0 {
		t.Errorf("tenant b counts %d volumes and has none", used.Volumes)
	}
	if !f.admits(f.claim(nil)) {
		t.Errorf("tenant b is denied: %q", f.newEvents())
	}
}

// TestEscapeByASecretOfTheSameNameDoesNotDeleteIt: the program refused to overwrite a
// foreign Secret, and must not remove it with the claim either.
func TestEscapeByASecretOfTheSameNameDoesNotDeleteIt(t *testing.T) {
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "pvc-uid-1-credentials"}, Data: map[string][]byte{"clouds.yaml": []byte("x")}}
	f := newFixture(t, foreign)
	claim := f.claim(nil)
	if _, err := f.provision(claim); err == nil {
		t.Fatal("the Secret was taken for one of ours")
	}
	f.forgetClaim(claim)
	if err := f.claimGone(t.Context(), claim.UID); err != nil {
		t.Logf("undoing says: %v", err)
	}
	if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), foreign.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("a Secret that was not made by this program is gone: %v", err)
	}
}

// TestEscapeByAPersistentVolumeOfAnotherClusterDeletesNothing: a PersistentVolume came
// here with the backup of another cluster. Its volume has a valid stamp, and the other
// cluster still uses it.
func TestEscapeByAPersistentVolumeOfAnotherClusterDeletesNothing(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	f.backends["gold"].calls = nil
	pv.UID = "pv-uid"
	pv.Annotations[objects.AnnotationProvisionedBy] = "test"
	pv.Annotations[objects.AnnotationCluster] = "cluster-2"
	if err := f.delete(pv); err == nil {
		t.Error("the deletion of another cluster's volume succeeded")
	}
	wantCalls(t, f.backends["gold"])
}

// TestEscapeByAHistoricPersistentVolumeDeletesNoVolumeOfAnother: a released
// PersistentVolume of the historic provisioner, whose volumes have no stamps, names a
// volume that another PersistentVolume also names.
func TestEscapeByAHistoricPersistentVolumeDeletesNoVolumeOfAnother(t *testing.T) {
	historic := func(name string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{
			objects.HistoricIdentity: "x", objects.HistoricVolume: "volume-9", objects.AnnotationProvisionedBy: "test"}}}
	}
	used, released := historic("used"), historic("released")
	used.Status.Phase, released.Status.Phase = corev1.VolumeBound, corev1.VolumeReleased
	f := newFixture(t, used, released)
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(used))
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(released))
	f.backends["silver"].hasVolume = map[string]bool{"volume-9": true}
	if err := f.delete(released); err == nil {
		t.Error("the deletion of a volume that another PersistentVolume names succeeded")
	}
	wantCalls(t, f.backends["silver"])
}

// TestEscapeByAReplacedSecretDoesNotDeleteIt: a user has replaced the Secret of a
// recorded volume with another of the same name.
func TestEscapeByAReplacedSecretDoesNotDeleteIt(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	secrets := f.client.CoreV1().Secrets("own")
	f.must(secrets.Delete(t.Context(), "pvc-uid-1-credentials", metav1.DeleteOptions{}))
	_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "pvc-uid-1-credentials"}}, metav1.CreateOptions{})
	f.must(err)
	f.must(f.delete(pv))
	if _, err := secrets.Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{}); err != nil {
		t.Errorf("a Secret that was not made by this program is gone: %v", err)
	}
}
