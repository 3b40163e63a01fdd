package provisioner

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
)

func TestProvisionRecordsEverythingThatDeleteNeeds(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	f.class.MountOptions = []string{"noatime"}
	pv, err := f.provision(claim)
	f.must(err)
	if size := pv.Spec.Capacity.Storage().String(); size != "2Gi" {
		t.Errorf("1500Mi became %s, want the 2Gi that Cinder creates", size)
	}
	secret, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{})
	f.must(err)
	if string(secret.Data["node.session.auth.password"]) != "hush-hush-hush" {
		t.Error("the Secret lacks the CHAP password")
	}
	for key, value := range pv.Annotations {
		if strings.Contains(value, "hush") {
			t.Errorf("annotation %s contains the password", key)
		}
	}
	origin, err := objects.OriginOf(pv)
	f.must(err)
	want := objects.Origin{PVName: "pvc-uid-1", VolumeID: "volume-1", Backend: "gold", Protocol: "iscsi", Cluster: "cluster-1", ClaimUID: "uid-1",
		Connector: cinder.Connector{Host: "k8s", Initiator: "iqn.2026-01.example:gold"}, Secret: "pvc-uid-1-credentials", SecretNamespace: "own"}
	if origin.PVName != want.PVName || origin.Target().VolumeID != want.VolumeID || origin.Backend != want.Backend || origin.Secret != want.Secret ||
		origin.Connector.Initiator != want.Connector.Initiator || origin.Target().Stamp.PV != "pvc-uid-1" || origin.Protocol != want.Protocol {
		t.Errorf("the origin read back is %+v, want %+v", origin, want)
	}
	// The library gives a saved object its UID.
	pv.UID = "pv-uid"
	f.must(f.delete(pv))
	// Deleting the object is a change that makes the library call Delete again.
	f.must(f.delete(pv))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "remove volume-1 historic=false")
	if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{}); err == nil {
		t.Error("the Secret is left after the deletion")
	}
}

func TestProvisionContinuesAnEarlierAttempt(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	// The credentials changed between the attempts.
	f.backends["gold"].document = strings.ReplaceAll(iscsiDocument, "hush-hush-hush", "other-password")
	_, err = f.provision(claim)
	f.must(err)
	secret, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{})
	f.must(err)
	if string(secret.Data["node.session.auth.password"]) != "other-password" {
		t.Error("the Secret of the earlier attempt was not updated")
	}
}

func TestForeignSecretIsNotOverwritten(t *testing.T) {
	f := newFixture(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "pvc-uid-1-credentials"}, Data: map[string][]byte{"a": []byte("b")}})
	_, err := f.provision(f.claim(nil))
	const want = "secret own/pvc-uid-1-credentials exists but was not made by standalone-cinder; rename or remove it"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestRefusedConnectionIsUndoneAndReported(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].document = `{"driver_volume_type": "iscsi", "data": {"encrypted": true}}`
	_, err := f.provision(f.claim(nil))
	if err == nil || !strings.HasPrefix(err.Error(), "EncryptedVolume: backend gold: ") {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
	if _, begun := f.journal.Beginning("uid-1"); begun {
		t.Error("the undone attempt is still remembered")
	}
}

// TestManyWritersNeedAVolumeForSeveralHosts: only Cinder's answer shows whether the
// volume allows several hosts.
func TestManyWritersNeedAVolumeForSeveralHosts(t *testing.T) {
	many := func(claim *corev1.PersistentVolumeClaim) {
		block := corev1.PersistentVolumeBlock
		claim.Spec.VolumeMode, claim.Spec.AccessModes = &block, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	f := newFixture(t)
	_, err := f.provision(f.claim(many))
	if err == nil || !strings.HasPrefix(err.Error(), "UnsupportedAccessMode: backend gold: access mode ReadWriteMany needs ") {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
	f = newFixture(t)
	f.backends["gold"].shared = true
	pv, err := f.provision(f.claim(many))
	f.must(err)
	if !slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}) {
		t.Errorf("access modes %v", pv.Spec.AccessModes)
	}
}

func TestMountOptionsOfTheClassRefuseAFlexVolume(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].document = `{"driver_volume_type": "flex", "data": {"a": "b"}}`
	_, err := f.provision(f.claim(nil))
	f.must(err)
	f = newFixture(t)
	f.backends["gold"].document = `{"driver_volume_type": "flex", "data": {"a": "b"}}`
	f.class.MountOptions = []string{"noatime"}
	_, err = f.provision(f.claim(nil))
	if err == nil || !strings.HasPrefix(err.Error(), "InvalidMapping: backend gold: the StorageClass has mountOptions") {
		t.Errorf("error %v", err)
	}
}

func TestClaimDeletedDuringProvisioningIsUndone(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
	}{
		{name: "before the connection", err: &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "down"}},
		{name: "before the PersistentVolume"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(nil)
			gold := f.backends["gold"]
			gold.err = c.err
			gold.onCall = func() {
				if len(gold.calls) == 1 {
					f.forgetClaim(claim)
				}
			}
			if _, err := f.provision(claim); !isIgnored(err) {
				t.Errorf("error %v, want one that the library ignores", err)
			}
			wantCalls(t, gold, "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
		})
	}
}

func TestTransientFailureKeepsTheVolumeForTheNextAttempt(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	f.backends["gold"].err = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "down"}
	f.backends["gold"].hasVolumeOf = map[string]bool{"uid-1": true}
	if _, err := f.provision(claim); cinder.KindOf(err) != cinder.KindUnavailable {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
	// When its claim is deleted afterwards, the attempt is undone.
	f.forgetClaim(claim)
	f.must(f.claimGone(t.Context(), claim.UID))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
	f.must(f.claimGone(t.Context(), claim.UID))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
}

func TestRecordedVolumeIsNotUndoneWhenItsClaimGoes(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	pv, err := f.provision(claim)
	f.must(err)
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(pv))
	f.forgetClaim(claim)
	f.must(f.claimGone(t.Context(), claim.UID))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

// TestRecordedVolumeIsNotUndoneBeforeTheCacheKnows covers the time between the
// PersistentVolume's creation and its arrival in the cache. With the reclaim
// policy Retain, nothing may ever delete the volume.
func TestRecordedVolumeIsNotUndoneBeforeTheCacheKnows(t *testing.T) {
	for name, end := range map[string]func(*fixture, *corev1.PersistentVolumeClaim){
		"the claim is deleted": func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.forgetClaim(claim)
			f.must(f.claimGone(t.Context(), claim.UID))
		},
		"another attempt meets a connection that is refused": func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.backends["gold"].document = `{"driver_volume_type": "iscsi", "data": {"encrypted": true}}`
			if _, err := f.provision(claim); err == nil {
				t.Error("the connection was mapped")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(nil)
			pv, err := f.provision(claim)
			f.must(err)
			_, err = f.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
			f.must(err)
			end(f, claim)
			for _, call := range f.backends["gold"].calls {
				if strings.HasPrefix(call, "abandon") {
					t.Errorf("the volume of a recorded PersistentVolume was removed: %s", call)
				}
			}
			if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{}); err != nil {
				t.Error("the Secret of a recorded PersistentVolume was removed")
			}
		})
	}
}

func TestBackendThatHasTheVolumeIsKept(t *testing.T) {
	f := newFixture(t)
	f.class.Name = "both"
	f.backends["silver"].listed = []cinder.Volume{f.stamped("uid-1")}
	claim := f.claim(nil)
	for range 2 {
		_, err := f.provision(claim)
		f.must(err)
	}
	wantCalls(t, f.backends["gold"])
	wantCalls(t, f.backends["silver"], "connect pvc-uid-1 2 GiB", "connect pvc-uid-1 2 GiB")
	const want = "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver"
	if events := f.newEvents(); len(events) != 1 || events[0] != want {
		t.Errorf("events %q, want %q once", events, want)
	}
}

func TestNoVolumeIsCreatedWhileABackendThatMayHaveOneCannotBeListed(t *testing.T) {
	f := newFixture(t)
	f.class.Name = "both"
	f.backends["silver"].listErr = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "silver", Message: "down"}
	_, err := f.provision(f.claim(nil))
	const want = "cannot list the volumes that backend silver already has: backend silver: down"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	wantCalls(t, f.backends["gold"])
}

func TestUnsavedPersistentVolumeIsNeverUndoneByTheLibrary(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	f.must(f.delete(pv))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

func TestHandingOverWritesNoErrors(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	f.backends["gold"].err = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "cut"}
	close(f.stop)
	if f.admits(claim) || f.ShouldDelete(t.Context(), nil) {
		t.Error("a replica that hands over takes new work")
	}
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
}

func TestDeleteTouchesNothingWhenThePersistentVolumeIsDamaged(t *testing.T) {
	f := newFixture(t)
	sound, err := f.provision(f.claim(nil))
	f.must(err)
	f.backends["gold"].calls = nil
	for _, c := range []struct {
		name, want string
		damage     func(*corev1.PersistentVolume)
	}{
		{"no backend", "PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/backend is missing; nothing is deleted until it is fixed",
			func(pv *corev1.PersistentVolume) { delete(pv.Annotations, objects.AnnotationBackend) }},
		{"broken connector", "PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/connector is not JSON; nothing is deleted until it is fixed",
			func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationConnector] = "k8s" }},
		{"another's Secret", "PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/secret names a Secret that was not made for this volume; nothing is deleted until it is fixed",
			func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationSecret] = "admin-token" }},
		{"no volume", "PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/volume-id is missing, and so is cinderVolumeId; nothing is deleted until it is fixed",
			func(pv *corev1.PersistentVolume) { delete(pv.Annotations, objects.AnnotationVolume) }},
		{"unknown backend", `PersistentVolume pvc-uid-1: backend "bronze" is not in the policy`,
			func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationBackend] = "bronze" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			pv := sound.DeepCopy()
			pv.UID = "pv-uid"
			c.damage(pv)
			if err := f.delete(pv); err == nil || err.Error() != c.want {
				t.Errorf("error %v\nwant %s", err, c.want)
			}
			wantCalls(t, f.backends["gold"])
		})
	}
}

func TestBackendOfAHistoricVolumeIsFoundAndRecorded(t *testing.T) {
	historic := func() *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "pv-uid", Annotations: map[string]string{objects.HistoricIdentity: "x", objects.HistoricVolume: "volume-9"}},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Namespace: "team-a", UID: types.UID("uid-9")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
					SecretRef: &corev1.SecretReference{Name: "old-secret"}}},
			},
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "old-secret"}}
	f := newFixture(t, historic(), secret)
	err := f.delete(historic())
	const want = "volume volume-9 of the historic provisioner is at none of the policy's backends (gold, silver); add its backend, or, if the volume is gone, remove PersistentVolume old by hand"
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
	f.backends["silver"].hasVolume = map[string]bool{"volume-9": true}
	f.keepPersistentVolumes()
	f.wantObjectKept(f.delete(historic()))
	wantCalls(t, f.backends["gold"])
	wantCalls(t, f.backends["silver"], "remove volume-9 historic=true")
	noted, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), "old", metav1.GetOptions{})
	f.must(err)
	if noted.Annotations[objects.AnnotationBackend] != "silver" || objects.PlaceOf(noted) != f.backends["silver"].Place() {
		t.Errorf("noted is %v", noted.Annotations)
	}
	if _, err := f.client.CoreV1().Secrets("team-a").Get(t.Context(), "old-secret", metav1.GetOptions{}); err == nil {
		t.Error("the Secret in the claim's namespace is left")
	}
	// A later leader finds the recorded backend. It does not search the others for a
	// volume that is gone.
	f.backends["silver"].hasVolume = nil
	f.followup.VolumeGone(noted)
	f.wantObjectKept(f.delete(noted))
}

// keepPersistentVolumes makes the API server delete no PersistentVolume.
func (f *fixture) keepPersistentVolumes() {
	f.client.PrependReactor("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is down")
	})
}

func (f *fixture) wantObjectKept(err error) {
	f.t.Helper()
	if err == nil || !strings.HasSuffix(err.Error(), ", whose volume is gone: the API server is down") {
		f.t.Errorf("error %v", err)
	}
}

// TestDeletedObjectIsNotDeletedAgain: the library calls Delete again until the cache
// shows that the object is gone.
func TestDeletedObjectIsNotDeletedAgain(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	pv.Finalizers = []string{"kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"}
	f.released(pv)
	f.keepPersistentVolumes()
	f.wantObjectKept(f.deleteReleased(pv))
	if !f.ShouldDelete(t.Context(), pv) {
		t.Fatal("the object was not deleted, and nothing will delete it")
	}
	f.client.ReactionChain = f.client.ReactionChain[1:]
	f.client.ClearActions()
	f.must(f.deleteReleased(pv))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "remove volume-1 historic=false")
	var done []string
	for _, action := range f.client.Actions() {
		done = append(done, action.GetVerb()+" "+action.GetResource().Resource)
	}
	if want := []string{"patch persistentvolumes", "delete persistentvolumes"}; !slices.Equal(done, want) {
		t.Errorf("the API server was asked to %q, want %q", done, want)
	}
	if f.ShouldDelete(t.Context(), pv) {
		t.Error("a deleted object would be deleted again")
	}
	f.followup.VolumeGone(pv)
	if f.journal.IsRemoved(pv.UID) || f.journal.IsDeleted(pv.UID) {
		t.Error("the journal remembers an object that is gone")
	}
}

func TestFailedRemovalKeepsTheSecret(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	f.backends["gold"].err = errors.New("attached elsewhere")
	if err := f.delete(pv); err == nil {
		t.Error("the deletion succeeded")
	}
	if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{}); err != nil {
		t.Error("the Secret was removed before its volume")
	}
}

// TestVolumeElsewhereKeepsPersistentVolumeAndSecret: a 404 from another place does not
// prove that the volume is gone.
func TestVolumeElsewhereKeepsPersistentVolumeAndSecret(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	if objects.PlaceOf(pv) != f.backends["gold"].Place() {
		t.Errorf("recorded is %v", pv.Annotations)
	}
	pv.UID = "pv-uid"
	f.backends["gold"].err = &cinder.Error{Kind: backends.KindElsewhere, Backend: "gold", Place: f.backends["gold"].Place(), Message: "volume volume-1 is elsewhere"}
	const want = "backend gold: volume volume-1 is elsewhere; its PersistentVolume stays; put the configuration and credentials of backend gold back to what they were, or, " +
		"if the volume is certainly gone, run: kubectl annotate pv pvc-uid-1 --overwrite " +
		"standalone-cinder.openstack.org/endpoint=http://cinder:8776/v3 standalone-cinder.openstack.org/project-id=p1"
	err = f.delete(pv)
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
	if r := retry.For(err); r.Outcome != "elsewhere" {
		t.Errorf("retried like %+v", r)
	}
	if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-credentials", metav1.GetOptions{}); err != nil {
		t.Error("the Secret was removed although the volume may be in use")
	}
}

func lastPatch(f *fixture) string {
	var last string
	for _, action := range f.client.Actions() {
		if patch, is := action.(clienttesting.PatchAction); is {
			last = string(patch.GetPatch())
		}
	}
	return last
}

// TestMissingPlaceIsRecorded: an earlier version recorded no place, or Cinder now
// has another address.
func TestMissingPlaceIsRecorded(t *testing.T) {
	for name, change := range map[string]func(annotations map[string]string){
		"not recorded": func(annotations map[string]string) { delete(annotations, objects.AnnotationEndpoint) },
		"another address": func(annotations map[string]string) {
			annotations[objects.AnnotationEndpoint] = "https://cinder:8776/v3"
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pv, err := f.provision(f.claim(nil))
			f.must(err)
			pv.UID = "pv-uid"
			change(pv.Annotations)
			f.keepPersistentVolumes()
			f.wantObjectKept(f.delete(pv))
			noted, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
			f.must(err)
			if objects.PlaceOf(noted) != f.backends["gold"].Place() {
				t.Errorf("recorded is %v", noted.Annotations)
			}
			// The API server would reject the patch for an object with another UID.
			if patch := lastPatch(f); !strings.Contains(patch, `"uid":"pv-uid"`) {
				t.Errorf("the patch %s does not name the object", patch)
			}
		})
	}
}

func TestPersistentVolumeIsBoundToTheNodesOfItsBackend(t *testing.T) {
	for backend, want := range map[string]string{
		"gold":   "null",
		"silver": `{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"storage","operator":"In","values":["fc"]},{"key":"zone","operator":"In","values":["a"]}]}]}}`,
	} {
		f := newFixture(t)
		f.class.Name = "both"
		f.inForce("backends: [gold, silver]", "backends: ["+backend+"]")
		pv, err := f.provision(f.claim(nil))
		f.must(err)
		got, err := json.Marshal(pv.Spec.NodeAffinity)
		f.must(err)
		if string(got) != want {
			t.Errorf("on backend %s: %s, want %s", backend, got, want)
		}
	}
}

// TestClaimWhosePersistentVolumeIsSavedIsNotConnectedAgain: the library calls Provision
// again if the object has not reached the cache yet. If a second connection failed,
// that would remove the export of a volume that a pod is about to use.
func TestClaimWhosePersistentVolumeIsSavedIsNotConnectedAgain(t *testing.T) {
	for name, prepare := range map[string]func(f *fixture){
		"by this leader": func(f *fixture) {
			pv, err := f.provision(f.claim(nil))
			f.must(err)
			f.must(f.client.Tracker().Add(pv))
		},
		"by an earlier leader": func(f *fixture) {
			f.claim(nil)
			f.backends["gold"].listed = []cinder.Volume{f.stamped("uid-1")}
			f.must(f.client.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1"}}))
		},
		"by an earlier leader, as the cache has shown since the library looked": func(f *fixture) {
			pv, err := f.provision(f.claim(nil))
			f.must(err)
			f.newTerm(nil)
			f.record(pv)
			f.seen()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			prepare(f)
			gold := f.backends["gold"]
			gold.calls = nil
			claim, err := f.Claims.PersistentVolumeClaims("team-a").Get("data")
			f.must(err)
			if _, err := f.provision(claim); !isIgnored(err) {
				t.Errorf("error %v, want one that the library ignores", err)
			}
			wantCalls(t, gold)
		})
	}
}
