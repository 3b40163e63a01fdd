package integration

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// The tests of this file let one tenant try to get at what is another's. Most
// of what they look for must not happen; each therefore waits for something
// that comes after it: an event about the attempt itself, or a later claim of
// the same tenant that is bound.

// annotation returns what the program calls its own annotations and metadata
// keys.
func annotation(name string) string { return "standalone-cinder.openstack.org/" + name }

// file makes a claim of a namespace of the world, and returns it with its UID.
func (w *world) file(namespace, name, class string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.Helper()
	claim, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-"+namespace, name, w.name+"-"+class, "1Gi", change))
	w.must(err)
	return claim
}

// boundVolume waits until a claim is bound and its volume is in use, and
// returns the PersistentVolume and the volume.
func (w *world) boundVolume(namespace, name string) (corev1.PersistentVolume, cindersim.Volume) {
	w.Helper()
	w.boundIn(namespace, name)
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	var volume cindersim.Volume
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		volume, _ = w.sim.Volume(pv.Annotations[annotation("volume-id")])
		if volume.Status != "in-use" {
			return fmt.Sprintf("the volume of claim %s/%s is %q", claim.Namespace, name, volume.Status), nil
		}
		return "", nil
	}))
	return *pv, volume
}

// untouched compares volumes with what they were.
func (w *world) untouched(what string, before ...cindersim.Volume) {
	w.Helper()
	for _, volume := range before {
		after, ok := w.sim.Volume(volume.ID)
		if !ok {
			w.Errorf("%s: volume %s is gone; it was %s with metadata %v", what, volume.Name, volume.Status, volume.Metadata)
		} else if !reflect.DeepEqual(after, volume) {
			w.Errorf("%s: volume %s was changed\nfrom %+v\nto   %+v", what, volume.Name, volume, after)
		}
	}
}

// add puts a volume into Cinder and returns it as it is there.
func (w *world) add(volume cindersim.Volume) cindersim.Volume {
	w.Helper()
	id, err := w.sim.AddVolume(volume)
	w.must(err)
	volume, _ = w.sim.Volume(id)
	return volume
}

// stamp returns the metadata that this world's program writes on a claim's
// volume.
func (w *world) stamp(claim *corev1.PersistentVolumeClaim) map[string]string {
	tenant := "tenant-a"
	if claim.Namespace == w.name+"-b" {
		tenant = "tenant-b"
	}
	return map[string]string{
		annotation("cluster"):              "cluster-" + w.name,
		annotation("claim-uid"):            string(claim.UID),
		annotation("tenant"):               tenant,
		annotation("storage-class"):        *claim.Spec.StorageClassName,
		"csi.storage.k8s.io/pvc/name":      claim.Name,
		"csi.storage.k8s.io/pv/name":       "pvc-" + string(claim.UID),
		"csi.storage.k8s.io/pvc/namespace": claim.Namespace,
	}
}

// label sets labels of a namespace; nil takes one away.
func (w *world) label(namespace string, labels map[string]any) {
	w.Helper()
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := "null"
		if labels[key] != nil {
			value = fmt.Sprintf("%q", labels[key])
		}
		pairs = append(pairs, fmt.Sprintf("%q:%s", key, value))
	}
	patch := `{"metadata":{"labels":{` + strings.Join(pairs, ",") + `}}}`
	_, err := suite.Client.CoreV1().Namespaces().Patch(w.ctx, w.name+"-"+namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	w.must(err)
}

// byLabels selects both tenants' namespaces by labels: NAME-a is tenant a's,
// NAME-stranger at first belongs to no tenant. Tenant b's rule accepts tenant
// a's class too, and sends it to its own backend.
func (w *world) byLabels() {
	w.Helper()
	w.policy = w.change(`namespaces: ["`+w.name+`-a"]`, `namespaceSelector: {matchLabels: {tenant-a: `+w.name+`}}`)
	w.policy = w.change(`namespaces: ["`+w.name+`-b"]`, `namespaceSelector: {matchLabels: {tenant-b: `+w.name+`}}`)
	w.allow(w.name + "-gold")
	w.label("a", map[string]any{"tenant-a": w.name})
	w.label("b", map[string]any{"tenant-b": w.name})
}

// creates counts the create requests that Cinder has performed or is performing.
func (w *world) creates() int { return w.sim.CountByOperation()["volume.create"] }

// TestEscapeByClaimAnnotationsPicksNothing writes on a claim all that the
// program and its historic predecessor ever wrote on objects, with the values
// of another tenant's volume.
func TestEscapeByClaimAnnotationsPicksNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escnote", cindersim.Options{})
	w.start()
	w.claim("b", "victim", "lab", "1Gi")
	victimPV, victim := w.boundVolume("b", "victim")
	foreign := map[string]string{
		"cinderVolumeId": victim.ID, "standaloneCinderProvisionerIdentity": "some-pod",
		"k8s.io/CloneOf": "escnote-b/victim", "smartclone": "true",
		"pv.kubernetes.io/provisioned-by": w.provisioner, "pv.kubernetes.io/bound-by-controller": "yes",
		annotation("rule"): "tenants[1].classes[0]",
	}
	for key, value := range victimPV.Annotations {
		foreign[key] = value
	}
	// Kubernetes itself reads this one: it would take the claim for lost.
	delete(foreign, "pv.kubernetes.io/bind-completed")
	for _, key := range slices.Sorted(maps.Keys(foreign)) {
		w.file("a", "by-"+strings.ToLower(strings.NewReplacer("/", "-", ".", "-").Replace(key)), "gold", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{key: foreign[key]}
		})
	}
	w.file("a", "by-all", "gold", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = foreign
		c.Labels = map[string]string{annotation("tenant"): "tenant-b", annotation("backend"): "lab"}
	})
	bound, err := suite.WaitBound(w.ctx, "escnote-a", len(foreign)+1)
	w.must(err)
	for _, claim := range bound {
		pv, volume := w.boundVolume("a", claim.Name)
		if volume.Project != w.sim.ProjectID("team-a") || volume.Type != "iscsi" || volume.SourceID != "" || volume.ID == victim.ID {
			t.Errorf("claim %s got volume %+v", claim.Name, volume)
		}
		for key, want := range w.stamp(&claim) {
			if volume.Metadata[key] != want {
				t.Errorf("claim %s: metadata %s is %q, want %q", claim.Name, key, volume.Metadata[key], want)
			}
		}
		for key, want := range map[string]string{"tenant": "tenant-a", "backend": "gold", "cluster": "cluster-escnote", "claim-uid": string(claim.UID), "rule": "tenants[0].classes[0]"} {
			if got := pv.Annotations[annotation(key)]; got != want {
				t.Errorf("claim %s: annotation %s of its PersistentVolume is %q, want %q", claim.Name, key, got, want)
			}
		}
		if pv.Annotations["cinderVolumeId"] != "" || pv.Spec.ISCSI.FSType != "xfs" {
			t.Errorf("claim %s: PersistentVolume %+v", claim.Name, pv)
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "escnote-a"))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n != 1 {
			return fmt.Sprintf("%d volumes are left", n), nil
		}
		return "", nil
	}))
	w.untouched("claims with its annotations came and went", victim)
}

// TestEscapeByAnotherClassGetsNothing names another tenant's StorageClass in the
// annotation that Kubernetes prefers to the spec, and this program for the
// StorageClass of another one.
func TestEscapeByAnotherClassGetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escclass", cindersim.Options{})
	w.must(suite.CreateClass(w.ctx, "escclass-other", "other.example.org/"+w.name, nil))
	// Tenant a may use every class, so that only the class's own provisioner
	// keeps the claim out.
	w.policy = w.change(`storageClasses: ["escclass-gold"]`, `storageClasses: ["escclass-gold", "escclass-other"]`)
	w.start()
	const beta = "volume.beta.kubernetes.io/storage-class"
	lab, empty := "escclass-lab", ""
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"spec-own": func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{beta: lab} },
		"spec-empty": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{beta: lab}
			c.Spec.StorageClassName = &empty
		},
		"spec-none": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{beta: lab}
			c.Spec.StorageClassName = nil
		},
		"spec-other": func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &lab },
	} {
		w.file("a", name, "gold", change)
		_, err := suite.WaitEvent(w.ctx, "escclass-a", name, "NoMatchingClass", "tenant tenant-a has no rule for StorageClass escclass-lab")
		w.must(err)
	}
	w.file("a", "claimed", "other", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{
			"volume.kubernetes.io/storage-provisioner":      w.provisioner,
			"volume.beta.kubernetes.io/storage-provisioner": w.provisioner,
		}
	})
	w.claim("a", "later", "gold", "1Gi")
	w.boundIn("a", "later")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims("escclass-a").Get(w.ctx, "claimed", metav1.GetOptions{})
		if err == nil && claim.Annotations["volume.kubernetes.io/storage-provisioner"] == w.provisioner {
			return "Kubernetes has not said yet whose claim it is", nil
		}
		return "", err
	}))
	if n := w.creates(); n != 1 {
		t.Errorf("%d volumes were made, want that of the later claim", n)
	}
	pvs, err := suite.PersistentVolumes(w.ctx, w.provisioner)
	w.must(err)
	if len(pvs) != 1 {
		t.Errorf("%d PersistentVolumes, want one", len(pvs))
	}
	w.must(suite.DeleteClaims(w.ctx, "escclass-a"))
	w.noResidue()
}

// TestEscapeByNamesLikeAnothersGetsNothingOfTheirs makes namespaces that begin,
// end or continue like tenant a's, and a claim with the name of another's
// PersistentVolume.
func TestEscapeByNamesLikeAnothersGetsNothingOfTheirs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escname", cindersim.Options{})
	w.policy = w.change(`namespaces: ["escname-b"]`, `namespaces: ["escname-b", "escname-a-*"]`)
	w.start()
	w.claim("a", "victim", "gold", "1Gi")
	victimPV, victim := w.boundVolume("a", "victim")
	long := "a-" + strings.Repeat("x", 63-len("escname-a-"))
	for _, namespace := range []string{"a2", "a-evil", "my", "team-a", "tenant-a", long} {
		w.must(suite.CreateNamespace(w.ctx, "escname-"+namespace, map[string]string{"tenant": "tenant-a", "name": "escname-a"}))
	}
	for namespace, reason := range map[string]string{
		"a2": "NoMatchingTenant", "team-a": "NoMatchingTenant", "tenant-a": "NoMatchingTenant", "my": "NoMatchingTenant",
		// Of another tenant, by its pattern, and so without tenant a's class.
		"a-evil": "NoMatchingClass", long: "NoMatchingClass", "b": "NoMatchingClass",
	} {
		w.claim(namespace, "victim", "gold", "1Gi")
		_, err := suite.WaitEvent(w.ctx, "escname-"+namespace, "victim", reason, "")
		w.must(err)
	}
	if n := w.creates(); n != 1 {
		t.Errorf("%d volumes were made, want tenant a's alone", n)
	}
	// Objects of the pattern's tenant there belong to that tenant.
	w.claim(long, "own", "lab", "1Gi")
	_, own := w.boundVolume(long, "own")
	if own.Metadata[annotation("tenant")] != "tenant-b" || own.Project != cindersim.DefaultNoauthProject {
		t.Errorf("volume %+v", own)
	}
	// The name of another's PersistentVolume, and of another's volume.
	w.claim("b", victimPV.Name, "lab", "1Gi")
	pv, twin := w.boundVolume("b", victimPV.Name)
	if pv.Name == victimPV.Name || twin.Name == victim.Name || twin.ID == victim.ID {
		t.Errorf("claim %s got %s with volume %s", victimPV.Name, pv.Name, twin.Name)
	}
	w.must(suite.DeleteClaims(w.ctx, "escname-b"))
	w.must(suite.DeleteClaims(w.ctx, "escname-"+long))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n != 1 {
			return fmt.Sprintf("%d volumes are left", n), nil
		}
		return "", nil
	}))
	w.untouched("a claim of its name came and went", victim)
	w.must(suite.DeleteClaims(w.ctx, "escname-a"))
	w.noResidue()
}

// retained makes a claim of tenant b whose volume outlives it, and deletes the
// claim.
func (w *world) retained(name string) (corev1.PersistentVolume, cindersim.Volume) {
	w.Helper()
	retain := corev1.PersistentVolumeReclaimRetain
	w.must(suite.CreateClass(w.ctx, w.name+"-retain", w.provisioner, func(class *storagev1.StorageClass) { class.ReclaimPolicy = &retain }))
	w.claim("b", name, "retain", "1Gi")
	pv, volume := w.boundVolume("b", name)
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.released(pv.Name)
	return pv, volume
}

func (w *world) released(pvName string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pvName, metav1.GetOptions{})
		if err == nil && pv.Status.Phase != corev1.VolumeReleased {
			return fmt.Sprintf("PersistentVolume %s is %s", pvName, pv.Status.Phase), nil
		}
		return "", err
	}))
}

// discard removes a PersistentVolume as an administrator does, and leaves the
// volume alone.
func (w *world) discard(pvName string) {
	w.Helper()
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pvName, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	w.must(err)
	if err := suite.Client.CoreV1().PersistentVolumes().Delete(w.ctx, pvName, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		w.must(err)
	}
}

// TestEscapeByVolumeNameOrDataSourceGetsNothing asks for another tenant's
// retained PersistentVolume, and for a copy of another tenant's claim.
func TestEscapeByVolumeNameOrDataSourceGetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escbind", cindersim.Options{})
	w.allow("escbind-retain")
	w.policy = w.change(`storageClasses: ["escbind-gold"]`, `storageClasses: ["escbind-gold", "escbind-retain"]`)
	w.start()
	pv, kept := w.retained("victim")
	asked := w.creates()

	w.file("a", "victim", "retain", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv.Name })
	_, err := suite.WaitEvent(w.ctx, "escbind-a", "victim", "FailedBinding", "already bound to a different claim")
	w.must(err)
	// The same owner's next claim of the same name is not the old one either.
	w.file("b", "victim", "retain", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv.Name })
	_, err = suite.WaitEvent(w.ctx, "escbind-b", "victim", "FailedBinding", "already bound to a different claim")
	w.must(err)

	group, other := "snapshot.storage.k8s.io", "escbind-b"
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"source": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "victim"}
		},
		"reference": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "victim"}
		},
		"snapshot": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "victim"}
		},
		"annotation": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{"k8s.io/CloneRequest": other + "/victim"}
		},
	} {
		w.file("a", name, "gold", change)
		reason, text := "UnsupportedDataSource", `victim"`
		switch name {
		case "source", "reference":
			// The claim of that name in its own namespace, which has no volume.
			reason, text = "SourceNotReady", "claim escbind-a/victim, whose content this claim asks for, is not bound yet"
		case "snapshot":
			reason, text = "SourceNotFound", "VolumeSnapshot escbind-a/victim, whose content this claim asks for, does not exist"
		}
		_, err := suite.WaitEvent(w.ctx, "escbind-a", name, reason, text)
		w.must(err)
	}
	// Kubernetes drops a reference into another namespace, or keeps it with a
	// feature gate: the claim is either rejected or a normal empty one.
	claim := w.file("a", "crossing", "gold", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "victim", Namespace: &other}
	})
	if claim.Spec.DataSourceRef != nil || claim.Spec.DataSource != nil {
		_, err := suite.WaitEvent(w.ctx, "escbind-a", "crossing", "UnsupportedDataSource", `victim"`)
		w.must(err)
	} else {
		if _, volume := w.boundVolume("a", "crossing"); volume.SourceID != "" || volume.SnapshotID != "" {
			t.Errorf("the volume has content: %+v", volume)
		}
		asked++
	}
	if n := w.creates(); n != asked {
		t.Errorf("%d volumes were made for claims that are refused", n-asked)
	}
	after, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
	w.must(err)
	if after.Status.Phase != corev1.VolumeReleased || after.Spec.ClaimRef.UID != pv.Spec.ClaimRef.UID {
		t.Errorf("PersistentVolume %s is %s for %+v", pv.Name, after.Status.Phase, after.Spec.ClaimRef)
	}
	w.untouched("claims asked for it", kept)
	w.discard(pv.Name)
}

// TestEscapeByANamespaceMadeAnewGetsNothingOfTheOldOwner deletes a namespace
// with a kept and a deleted volume, and gives its name to another tenant and
// then to none.
//
//tier:outage
func TestEscapeByANamespaceMadeAnewGetsNothingOfTheOldOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escanew", cindersim.Options{})
	w.byLabels()
	w.allow("escanew-retain")
	w.policy = w.change(`storageClasses: ["escanew-gold"]`, `storageClasses: ["escanew-gold", "escanew-retain"]`)
	w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    volumeSize: {max: 10Gi}\n    quota: {volumes: 2}\n")
	w.start()
	pv, kept := w.retained("data")
	w.claim("b", "second", "lab", "1Gi")
	w.boundVolume("b", "second")

	w.remake("b", map[string]string{"tenant-a": w.name})
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n != 1 {
			return fmt.Sprintf("%d volumes, want the retained one", n), nil
		}
		return "", nil
	}))
	// The name is tenant a's now: what it gets there is tenant a's.
	w.claim("b", "data", "gold", "1Gi")
	anew, volume := w.boundVolume("b", "data")
	if anew.Name == pv.Name || anew.Annotations[annotation("backend")] != "gold" || volume.Metadata[annotation("tenant")] != "tenant-a" {
		t.Errorf("the new owner got %s on %s for %s", anew.Name, anew.Annotations[annotation("backend")], volume.Metadata[annotation("tenant")])
	}
	// The kept volume counts to tenant b wherever it has a namespace: of two
	// more claims one is bound.
	w.must(suite.CreateNamespace(w.ctx, "escanew-elsewhere", map[string]string{"tenant-b": w.name}))
	w.claim("elsewhere", "first", "lab", "1Gi")
	w.boundIn("elsewhere", "first")
	w.claim("elsewhere", "third", "lab", "1Gi")
	_, err := suite.WaitEvent(w.ctx, "escanew-elsewhere", "third", "QuotaExceeded", "tenant tenant-b would use 3 of 2 volumes")
	w.must(err)

	// Now it has no tenant: the former one is not remembered by the name.
	w.remake("b", nil)
	for _, class := range []string{"gold", "lab", "retain"} {
		w.claim("b", "data-"+class, class, "1Gi")
		_, err := suite.WaitEvent(w.ctx, "escanew-b", "data-"+class, "NoMatchingTenant", "")
		w.must(err)
	}
	w.file("b", "data", "retain", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv.Name })
	_, err = suite.WaitEvent(w.ctx, "escanew-b", "data", "FailedBinding", "already bound to a different claim")
	w.must(err)
	w.untouched("its namespace changed hands twice", kept)
	w.discard(pv.Name)
}

// remake deletes a namespace with all that is in it and makes it again.
func (w *world) remake(namespace string, labels map[string]string) {
	w.Helper()
	name := w.name + "-" + namespace
	w.must(suite.Client.CoreV1().Namespaces().Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().Namespaces().Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "namespace " + name + " is still there", err
	}))
	w.must(suite.CreateNamespace(w.ctx, name, labels))
}

// TestEscapeThroughALabelTakenWhileTheClaimWaitsForRoom takes a namespace's label
// away while its claim waits for a quota.
//
//tier:outage
func TestEscapeThroughALabelTakenWhileTheClaimWaitsForRoom(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels map[string]any
		reason string
		text   string
	}{
		"nobody": {map[string]any{"tenant-a": nil}, "NoMatchingTenant", "belongs to no tenant"},
		"both":   {map[string]any{"tenant-b": "escwait-both"}, "AmbiguousTenant", "tenant-a (tenants[0]), tenant-b (tenants[1])"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "escwait-"+name, cindersim.Options{})
			w.byLabels()
			w.policy = w.change("    metadata: {costcenter", "    quota: {volumes: 1}\n    metadata: {costcenter")
			w.start()
			w.must(suite.CreateNamespace(w.ctx, w.name+"-home", map[string]string{"tenant-a": w.name}))
			w.claim("home", "first", "gold", "1Gi")
			w.boundVolume("home", "first")
			w.claim("a", "quota", "gold", "1Gi")
			_, err := suite.WaitEvent(w.ctx, w.name+"-a", "quota", "QuotaExceeded", "")
			w.must(err)
			w.label("a", c.labels)
			_, err = suite.WaitEvent(w.ctx, w.name+"-a", "quota", c.reason, c.text)
			w.must(err)
			// Room becomes free and the claim is checked again; the label
			// decides.
			w.must(suite.DeleteClaims(w.ctx, w.name+"-home"))
			w.noResidue()
			w.claim("home", "second", "gold", "1Gi")
			_, second := w.boundVolume("home", "second")
			if volumes := w.sim.Volumes(); len(volumes) != 1 || volumes[0].ID != second.ID {
				t.Errorf("%d volumes, want that of the later claim", len(volumes))
			}
			w.must(suite.DeleteClaims(w.ctx, w.name+"-home"))

			w.label("a", map[string]any{"tenant-a": w.name, "tenant-b": nil})
			w.boundVolume("a", "quota")
			w.must(suite.DeleteClaims(w.ctx, w.name+"-a"))
			w.noResidue()
		})
	}
}

// TestEscapeThroughALabelTakenDuringAnOutage takes a namespace's label away while
// its claim waits for a backend that does not answer.
//
//tier:outage
func TestEscapeThroughALabelTakenDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels map[string]any
		reason string
		text   string
	}{
		"nobody": {map[string]any{"tenant-a": nil}, "NoMatchingTenant", "belongs to no tenant"},
		"both":   {map[string]any{"tenant-b": "escdown-both"}, "AmbiguousTenant", "tenant-a (tenants[0]), tenant-b (tenants[1])"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "escdown-"+name, cindersim.Options{})
			w.byLabels()
			replica := w.start()
			w.must(suite.CreateNamespace(w.ctx, w.name+"-home", map[string]string{"tenant-a": w.name}))
			outage := w.fail(cindersim.Cinder)
			w.claim("a", "outage", "gold", "1Gi")
			_, err := suite.WaitEvent(w.ctx, w.name+"-a", "outage", "BackendUnavailable", "backend gold: ")
			w.must(err)
			w.metric(replica, `standalone_cinder_backend_up{backend="gold"} 0`)
			w.label("a", c.labels)
			_, err = suite.WaitEvent(w.ctx, w.name+"-a", "outage", c.reason, c.text)
			w.must(err)
			outage.Remove()
			w.metric(replica, `standalone_cinder_backend_up{backend="gold"} 1`)
			w.claim("home", "later", "gold", "1Gi")
			_, later := w.boundVolume("home", "later")
			if volumes := w.sim.Volumes(); len(volumes) != 1 || volumes[0].ID != later.ID {
				t.Errorf("%d volumes, want that of the later claim", len(volumes))
			}
			w.must(suite.DeleteClaims(w.ctx, w.name+"-home"))
			w.noResidue()
		})
	}
}

// TestEscapeThroughALabelTakenWhileTheBackendIsListed removes the label after
// the claim was admitted and before a volume is requested: the leader is still
// listing the backend.
func TestEscapeThroughALabelTakenWhileTheBackendIsListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "esclist", cindersim.Options{})
	w.byLabels()
	listing := w.sim.Inject(cindersim.Fault{Kind: cindersim.Delay, Delay: 4 * time.Second, Operation: "volume.list",
		Match: func(r cindersim.Request) bool { return r.Endpoint == cindersim.Cinder }})
	w.claim("a", "data", "gold", "1Gi")
	w.start()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if listing.Matched() == 0 {
			return "the backend is not being listed", nil
		}
		return "", nil
	}))
	// The listing takes four seconds; the claim is admitted in the first.
	time.Sleep(time.Second)
	if w.creates() > 0 {
		t.Fatal("the volume is made already; this test would prove nothing")
	}
	w.label("a", map[string]any{"tenant-a": nil})
	short, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	if _, err := suite.WaitEvent(short, "esclist-a", "data", "NoMatchingTenant", ""); err != nil {
		t.Error(err)
	}
	if n := w.creates(); n > 0 {
		t.Errorf("%d volumes were made for a namespace that was nobody's by then", n)
	}
}

// TestEscapeThroughALabelChangedWhileCinderMakesTheVolumeIsFinished changes the
// label while the create request is on its way, and while the volume is being
// made: the claim was granted, and is served as it was granted.
//
//tier:outage
func TestEscapeThroughALabelChangedWhileCinderMakesTheVolumeIsFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escmake", cindersim.Options{CreateDelay: 2 * time.Second})
	w.byLabels()
	w.start()
	w.sim.Inject(cindersim.Fault{Kind: cindersim.Delay, Delay: 2 * time.Second, Operation: "volume.create", Times: 1})
	for _, c := range []struct {
		name   string
		begun  func() bool
		labels map[string]any
	}{
		{"asked", func() bool { return w.creates() == 1 }, map[string]any{"tenant-a": nil}},
		{"making", func() bool { return len(w.sim.Volumes()) == 2 }, map[string]any{"tenant-a": nil, "tenant-b": w.name}},
	} {
		w.label("a", map[string]any{"tenant-a": w.name, "tenant-b": nil})
		w.claim("a", c.name, "gold", "1Gi")
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			if !c.begun() {
				return "nothing was begun for claim " + c.name, nil
			}
			return "", nil
		}))
		w.label("a", c.labels)
		pv, volume := w.boundVolume("a", c.name)
		if pv.Annotations[annotation("tenant")] != "tenant-a" || pv.Annotations[annotation("backend")] != "gold" || volume.Metadata[annotation("tenant")] != "tenant-a" {
			t.Errorf("claim %s: annotations %v, metadata %v", c.name, pv.Annotations, volume.Metadata)
		}
	}
	// The volumes' owner is not determined again when they are deleted.
	w.must(suite.DeleteClaims(w.ctx, "escmake-a"))
	w.noResidue()
}

// TestEscapeThroughALabelChangedBetweenAttemptsLeavesNothingHalf lets a first
// attempt fail after its volume was made, and changes the label before the next.
// The volume is finished for the tenant that it was made for, or it is undone.
//
//tier:outage
func TestEscapeThroughALabelChangedBetweenAttemptsLeavesNothingHalf(t *testing.T) {
	t.Parallel()
	for name, labels := range map[string]map[string]any{
		"nobody": {"tenant-a": nil},
		"other":  {"tenant-a": nil, "tenant-b": "eschalf-other"},
		"both":   {"tenant-b": "eschalf-both"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "eschalf-"+name, cindersim.Options{})
			w.byLabels()
			w.start()
			refused := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "attachment.create", Code: 409})
			w.claim("a", "data", "gold", "1Gi")
			w.must(harness.Eventually(w.ctx, func() (string, error) {
				if refused.Applied() == 0 {
					return "the first attempt has not failed", nil
				}
				return "", nil
			}))
			w.label("a", labels)
			refused.Remove()
			short, cancel := context.WithTimeout(w.ctx, 20*time.Second)
			defer cancel()
			err := harness.Eventually(short, func() (string, error) {
				pvs, err := suite.PersistentVolumes(w.ctx, w.provisioner)
				if err != nil {
					return "", err
				}
				for _, pv := range pvs {
					volume, _ := w.sim.Volume(pv.Annotations[annotation("volume-id")])
					if tenant, made := pv.Annotations[annotation("tenant")], volume.Metadata[annotation("tenant")]; tenant != made {
						return "", fmt.Errorf("a volume that was made for %s on backend %s is given to %s", made, pv.Annotations[annotation("backend")], tenant)
					}
				}
				if volumes := w.sim.Volumes(); len(volumes) != len(pvs) {
					return fmt.Sprintf("%d volumes at Cinder and %d PersistentVolumes; the volume is %s", len(volumes), len(pvs), volumes[0].Status), nil
				}
				return "", nil
			})
			if err != nil {
				t.Error(err)
			}
			w.must(suite.DeleteClaims(w.ctx, w.name+"-a"))
			w.noResidue()
		})
	}
}

// TestEscapeByVolumesThatImitateOursAdoptsNone puts volumes into Cinder, before
// the program first looks, that are almost those of claims.
func TestEscapeByVolumesThatImitateOursAdoptsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escfake", cindersim.Options{})
	gold := w.file("a", "data", "gold", nil)
	lab := w.file("b", "data", "lab", nil)
	another := w.file("stranger", "data", "gold", nil)
	with := func(claim *corev1.PersistentVolumeClaim, key, value string) map[string]string {
		stamp := w.stamp(claim)
		stamp[key] = value
		return stamp
	}
	without := func(claim *corev1.PersistentVolumeClaim, key string) map[string]string {
		stamp := w.stamp(claim)
		delete(stamp, key)
		return stamp
	}
	var imitations []cindersim.Volume
	for _, claim := range []*corev1.PersistentVolumeClaim{gold, lab} {
		name := "pvc-" + string(claim.UID)
		project := map[*corev1.PersistentVolumeClaim]string{gold: "team-a", lab: cindersim.DefaultNoauthProject}[claim]
		for _, metadata := range []map[string]string{
			nil,
			{annotation("claim-uid"): string(claim.UID)},
			with(claim, annotation("claim-uid"), string(another.UID)),
			with(claim, annotation("claim-uid"), strings.ToUpper(string(claim.UID))),
			with(claim, annotation("cluster"), "cluster-other"),
			with(claim, annotation("cluster"), ""),
			with(claim, "csi.storage.k8s.io/pv/name", "pvc-"+string(another.UID)),
			without(claim, annotation("cluster")),
			without(claim, annotation("claim-uid")),
			without(claim, "csi.storage.k8s.io/pv/name"),
		} {
			for _, status := range []string{"available", "attaching", "error"} {
				imitations = append(imitations, w.add(cindersim.Volume{Name: name, Project: project, Status: status, Metadata: metadata}))
			}
		}
	}
	// Our own stamp in other projects: the noauth account is an administrator's,
	// and could change these.
	for _, project := range []string{"team-b", "admin"} {
		imitations = append(imitations, w.add(cindersim.Volume{Name: "pvc-" + string(lab.UID), Project: project, Metadata: w.stamp(lab)}))
	}
	imitations = append(imitations, w.add(cindersim.Volume{Name: "pvc-" + string(gold.UID), Project: "team-b", Metadata: w.stamp(gold)}))
	w.start()
	own := map[string]bool{}
	for _, namespace := range []string{"a", "b"} {
		_, volume := w.boundVolume(namespace, "data")
		for _, imitation := range imitations {
			if volume.ID == imitation.ID {
				t.Errorf("the claim in %s got a volume that is not its own: %+v", namespace, volume)
			}
		}
		own[volume.ID] = true
	}
	if n := w.creates(); n != 2 {
		t.Errorf("%d volumes were made for 2 claims", n)
	}
	w.must(suite.DeleteClaims(w.ctx, "escfake-a"))
	w.must(suite.DeleteClaims(w.ctx, "escfake-b"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	for _, volume := range w.sim.Volumes() {
		if own[volume.ID] {
			t.Errorf("the claims are gone, and volume %s is %s", volume.Name, volume.Status)
		}
	}
	w.untouched("a claim that it imitates came and went", imitations...)
}

// TestEscapeByAStampInOnesOwnProject shows what an attacker can achieve who may
// change volumes in the project of a claim's backend and knows the claim's UID
// before its volume is created. Nothing at Cinder distinguishes such a volume
// from one that an earlier leader created and could not record, so it becomes
// the claim's. That is accepted: such an attacker can read, change or delete
// every volume of the project without this program, and reaches no other
// project. But a volume that is in use elsewhere, or too small, is not adopted.
func TestEscapeByAStampInOnesOwnProject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escown", cindersim.Options{})
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range []string{"ready", "larger", "instance", "small"} {
		claims[name] = w.file("a", name, "gold", func(c *corev1.PersistentVolumeClaim) {
			if name == "small" {
				c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
			}
		})
	}
	forge := func(name string, volume cindersim.Volume) cindersim.Volume {
		volume.Name, volume.Project, volume.Metadata = "prepared", "team-a", w.stamp(claims[name])
		return w.add(volume)
	}
	ready := forge("ready", cindersim.Volume{})
	larger := forge("larger", cindersim.Volume{SizeGiB: 7})
	instance := forge("instance", cindersim.Volume{Status: "in-use", Attachments: []cindersim.Attachment{{Instance: "6b0c9d3e-1111-4222-8333-444455556666"}}})
	small := forge("small", cindersim.Volume{})
	w.start()

	for name, volume := range map[string]cindersim.Volume{"ready": ready, "larger": larger} {
		pv, got := w.boundVolume("a", name)
		if got.ID != volume.ID {
			t.Errorf("claim %s got volume %s, and the forged one is %s", name, got.Name, volume.Status)
		}
		// It counts as what it is.
		if size := pv.Spec.Capacity.Storage().Value() >> 30; size != int64(volume.SizeGiB) {
			t.Errorf("claim %s: a volume of %d GiB is recorded with %d", name, volume.SizeGiB, size)
		}
	}
	_, err := suite.WaitEvent(w.ctx, "escown-a", "instance", "ProvisioningFailed", "is attached elsewhere (6b0c9d3e-1111-4222-8333-444455556666); detach it there first")
	w.must(err)
	_, err = suite.WaitEvent(w.ctx, "escown-a", "small", "ProvisioningFailed", "has 1 GiB, but the claim requests 2 GiB")
	w.must(err)
	w.untouched("it was stamped and is in use", instance)
	w.untouched("it was stamped and is too small", small)
	if n := w.creates(); n != 0 {
		t.Errorf("%d volumes were made beside those that are stamped", n)
	}
}

// TestEscapeByAStampAtAnothersBackendDrawsNoClaimThere puts volumes with the
// stamps of tenant a's claims into the backend of tenant b, where no rule sends
// tenant a's claims. Adopting one would write tenant a's data into a project of
// tenant b. A volume that was never attached and carries the cluster's stamp
// may be removed: an earlier leader with another policy would have left the
// same.
func TestEscapeByAStampAtAnothersBackendDrawsNoClaimThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escdraw", cindersim.Options{})
	names := []string{"ready", "instance", "later"}
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range names[:2] {
		claims[name] = w.file("a", name, "gold", nil)
	}
	forge := func(name string, volume cindersim.Volume) cindersim.Volume {
		volume.Name, volume.Project, volume.Metadata = "pvc-"+string(claims[name].UID), cindersim.DefaultNoauthProject, w.stamp(claims[name])
		return w.add(volume)
	}
	forge("ready", cindersim.Volume{})
	instance := forge("instance", cindersim.Volume{Status: "in-use", Attachments: []cindersim.Attachment{{Instance: "6b0c9d3e-1111-4222-8333-444455556666"}}})
	w.start()
	claims["later"] = w.file("a", "later", "gold", nil)
	w.boundIn("a", "later")
	// An event that explains why there is no volume is as good as a volume.
	for _, name := range names {
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, "pvc-"+string(claims[name].UID), metav1.GetOptions{})
			if err == nil {
				if backend := pv.Annotations[annotation("backend")]; backend != "gold" {
					t.Errorf("claim %s of tenant a gets a volume on backend %s", name, backend)
				}
				return "", nil
			}
			if !apierrors.IsNotFound(err) {
				return "", err
			}
			events, err := suite.Client.CoreV1().Events("escdraw-a").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",type=Warning"})
			if err == nil && len(events.Items) == 0 {
				return "claim " + name + " is neither served nor told why not", nil
			}
			return "", err
		}))
	}
	w.untouched("it was stamped and is in use", instance)
	for _, volume := range w.sim.Volumes() {
		if volume.Project == cindersim.DefaultNoauthProject && (volume.Export.Present || len(volume.Export.ConnectedHosts) > 0) {
			t.Errorf("a volume of tenant b's project was connected for tenant a: %+v", volume)
		}
	}
}

// forged puts a released PersistentVolume into the cluster that is a copy of a
// real one, except for what change alters. Its claim never existed.
func (w *world) forged(name string, real corev1.PersistentVolume, uid types.UID, change func(annotations map[string]string)) corev1.PersistentVolume {
	w.Helper()
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: maps.Clone(real.Annotations)},
		Spec:       *real.Spec.DeepCopy(),
	}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: w.name + "-stranger", Name: "never", UID: uid}
	delete(pv.Annotations, annotation("secret"))
	pv.Annotations[annotation("claim-uid")] = string(uid)
	change(pv.Annotations)
	made, err := suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	w.must(err)
	return *made
}

// TestEscapeByAPersistentVolumeThatNamesAnothersVolumeDeletesNothing releases
// PersistentVolumes that look like this program's and name volumes of other
// tenants, claims, clusters and programs.
func TestEscapeByAPersistentVolumeThatNamesAnothersVolumeDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escpv", cindersim.Options{})
	w.start()
	w.claim("a", "data", "gold", "1Gi")
	w.claim("b", "data", "lab", "1Gi")
	own, first := w.boundVolume("a", "data")
	other, second := w.boundVolume("b", "data")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "x", UID: "4e1f6f0e-0000-4000-8000-000000000001"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new(string)}}
	foreign := w.stamp(claim)
	foreign[annotation("cluster")] = "cluster-other"
	cluster := w.add(cindersim.Volume{Name: "pvc-" + string(claim.UID), Project: "team-a", Metadata: foreign})
	plain := w.add(cindersim.Volume{Name: "database", Project: "team-a"})
	elsewhere := w.add(cindersim.Volume{Name: "database", Project: "team-b"})
	at := func(backend string, volume cindersim.Volume) func(map[string]string) {
		return func(a map[string]string) { a[annotation("backend")], a[annotation("volume-id")] = backend, volume.ID }
	}
	for i, c := range []struct {
		real   corev1.PersistentVolume
		uid    types.UID
		change func(map[string]string)
		says   string
	}{
		{own, "4e1f6f0e-0000-4000-8000-000000000002", at("gold", first), "it is not touched"},
		{own, own.Spec.ClaimRef.UID, at("gold", first), "it is not touched"},
		{own, other.Spec.ClaimRef.UID, at("lab", second), "it is not touched"},
		{other, other.Spec.ClaimRef.UID, at("lab", first), "it is not touched"}, // the administrator sees it
		{own, claim.UID, at("gold", cluster), "it is not touched"},
		{own, claim.UID, at("gold", plain), "it is not touched"},
		{own, claim.UID, at("lab", elsewhere), "it is not touched"},
		{own, claim.UID, func(a map[string]string) { delete(a, annotation("claim-uid")) }, "claim-uid is missing"},
		{own, claim.UID, func(a map[string]string) { delete(a, annotation("cluster")) }, "cluster is missing"},
		{own, claim.UID, func(a map[string]string) { delete(a, annotation("backend")) }, "backend is missing"},
		{own, claim.UID, func(a map[string]string) { delete(a, annotation("volume-id")) }, "volume-id is missing"},
		{own, claim.UID, func(a map[string]string) { a[annotation("claim-uid")] = string(own.Spec.ClaimRef.UID) }, "it is not touched"},
		{own, claim.UID, func(a map[string]string) { a[annotation("connector")] = "{" }, "connector is not JSON"},
		{own, claim.UID, func(a map[string]string) { a[annotation("secret")] = own.Name + "-credentials" }, "names a Secret that was not made for this volume"},
		// The historic kind, whose volumes have no stamp: their name must
		// match, and no other PersistentVolume may name them.
		{own, claim.UID, func(a map[string]string) {
			delete(a, annotation("volume-id"))
			delete(a, annotation("backend"))
			a["cinderVolumeId"], a["standaloneCinderProvisionerIdentity"] = plain.ID, "pod"
		}, "does not look like a volume of the historic provisioner; it is not touched"},
		{own, claim.UID, func(a map[string]string) {
			delete(a, annotation("volume-id"))
			delete(a, annotation("backend"))
			a["cinderVolumeId"], a["standaloneCinderProvisionerIdentity"] = first.ID, "pod"
		}, "and so does PersistentVolume " + own.Name},
	} {
		pv := w.forged(fmt.Sprintf("escpv-%d", i), c.real, c.uid, c.change)
		w.says(pv, "VolumeFailedDelete", c.says)
		w.discard(pv.Name)
	}
	// All but the claim's UID agrees.
	stamp := w.stamp(claim)
	stamp["csi.storage.k8s.io/pv/name"] = "escpv-twin"
	twin := w.add(cindersim.Volume{Name: "escpv-twin", Project: "team-a", Metadata: stamp})
	pv := w.forged("escpv-twin", own, "4e1f6f0e-0000-4000-8000-000000000003", at("gold", twin))
	w.says(pv, "VolumeFailedDelete", "it is not touched")
	w.discard(pv.Name)
	w.untouched("PersistentVolumes that name it were released", first, second, cluster, plain, elsewhere, twin)
	if _, err := suite.Client.CoreV1().Secrets(harness.Namespace).Get(w.ctx, own.Name+"-credentials", metav1.GetOptions{}); err != nil {
		t.Errorf("the Secret of a volume in use: %v", err)
	}
}

// TestEscapeByAPersistentVolumeOfAnotherClusterDeletesNothing releases an object
// that was copied from another cluster as it was, as a backup may do: its own
// record and the volume's stamp agree, and the volume is that cluster's.
func TestEscapeByAPersistentVolumeOfAnotherClusterDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "escfar", cindersim.Options{})
	w.start()
	w.claim("a", "data", "gold", "1Gi")
	own, _ := w.boundVolume("a", "data")
	const uid = types.UID("4e1f6f0e-0000-4000-8000-00000000000f")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "x", UID: uid}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new(string)}}
	stamp := w.stamp(claim)
	stamp[annotation("cluster")] = "cluster-other"
	volume := w.add(cindersim.Volume{Name: "pvc-" + string(uid), Project: "team-a", Metadata: stamp})
	pv := w.forged("pvc-"+string(uid), own, uid, func(a map[string]string) {
		a[annotation("volume-id")], a[annotation("cluster")] = volume.ID, "cluster-other"
	})
	short, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	err := harness.Eventually(short, func() (string, error) {
		if _, ok := w.sim.Volume(volume.ID); !ok {
			return "", fmt.Errorf("the volume of another cluster was deleted")
		}
		events, err := suite.Client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pv.Name + ",reason=VolumeFailedDelete"})
		if err == nil && len(events.Items) == 0 {
			return "no event says that the volume is kept", nil
		}
		return "", err
	})
	if err != nil {
		t.Error(err)
	}
	w.untouched("a copy of its PersistentVolume was released", volume)
}

// says waits for an event about a PersistentVolume.
func (w *world) says(pv corev1.PersistentVolume, reason, text string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		events, err := suite.Client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pv.Name + ",reason=" + reason})
		if err != nil {
			return "", err
		}
		var said []string
		for _, event := range events.Items {
			if strings.Contains(event.Message, text) {
				return "", nil
			}
			said = append(said, event.Message)
		}
		return fmt.Sprintf("no event %s with %q about %s, but %q", reason, text, pv.Name, said), nil
	}))
}
