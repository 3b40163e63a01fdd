package provisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// newCSIFixture returns a fixture whose rule for StorageClass one is in mode csi.
func newCSIFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.csi()
	return f
}

func (f *fixture) csi() {
	f.t.Helper()
	f.inForce("{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], mode: csi}")
}

// attach adds a VolumeAttachment to the API server, and to the cache unless the watch
// is late.
func (f *fixture) attach(name, pv, node string, watched bool) *storagev1.VolumeAttachment {
	f.t.Helper()
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
	f.must(f.client.Tracker().Add(attachment))
	if watched {
		f.must(f.attachments.Add(attachment))
	}
	return attachment
}

func (f *fixture) detach(attachment *storagev1.VolumeAttachment) {
	f.t.Helper()
	f.must(f.client.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", attachment.Name))
	f.must(f.attachments.Delete(attachment))
}

func TestClaimInModeCSIGetsAVolumeOfTheDriver(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   corev1.CSIPersistentVolumeSource
	}{
		"a filesystem": {nil, corev1.CSIPersistentVolumeSource{FSType: "ext4"}},
		"raw block": {func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) },
			corev1.CSIPersistentVolumeSource{}},
		"one pod": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}, corev1.CSIPersistentVolumeSource{FSType: "ext4"}},
		"only reading": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}, corev1.CSIPersistentVolumeSource{FSType: "ext4", ReadOnly: true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCSIFixture(t)
			gold := f.backends["gold"]
			gold.document, gold.shared = "", true
			claim := f.claim(test.change)
			pv, err := f.provision(claim)
			f.must(err)
			test.want.Driver, test.want.VolumeHandle = "standalone-cinder.openstack.org", "gold/volume-1"
			test.want.NodeStageSecretRef = &corev1.SecretReference{Namespace: "own", Name: "pvc-uid-1-node"}
			if pv.Spec.CSI == nil || !reflect.DeepEqual(*pv.Spec.CSI, test.want) {
				t.Errorf("source %+v, want %+v", pv.Spec.CSI, test.want)
			}
			secret, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-node", metav1.GetOptions{})
			f.must(err)
			if len(secret.Data) != 0 || secret.Type != corev1.SecretTypeOpaque || !objects.IsSecretOf(secret, pv.Name) || secret.Annotations[objects.AnnotationCluster] != "cluster-1" {
				t.Errorf("secret %+v", secret)
			}
			for key, want := range map[string]string{
				objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a", objects.AnnotationRule: "tenants[0].classes[1]",
				objects.AnnotationProtocol: "csi", objects.AnnotationConnector: "", objects.AnnotationSecret: "pvc-uid-1-node", objects.AnnotationSecretNamespace: "own",
			} {
				if got := pv.Annotations[key]; got != want {
					t.Errorf("annotation %s is %q, want %q", key, got, want)
				}
			}
			if want := (map[string]string{objects.AnnotationTenant: "a", objects.AnnotationBackend: "gold"}); !maps.Equal(pv.Labels, want) {
				t.Errorf("labels %v, want %v", pv.Labels, want)
			}
			if _, has := pv.Annotations[objects.AnnotationConnector]; has {
				t.Error("it records a connector")
			}
			if len(gold.specs) != 1 || !gold.specs[0].CSI {
				t.Errorf("requested %+v", gold.specs)
			}
			origin, err := objects.OriginOf(pv)
			if err != nil || !origin.CSI {
				t.Errorf("origin %+v, %v", origin, err)
			}
		})
	}
}

func TestNodesOfABackendAreThoseOfItsVolumesInModeCSI(t *testing.T) {
	f := newFixture(t)
	f.inForce("backends: [gold, silver], fsType: xfs", "backends: [silver], mode: csi")
	pv, err := f.provision(f.both())
	f.must(err)
	if affinity := pv.Spec.NodeAffinity; affinity == nil || len(affinity.Required.NodeSelectorTerms[0].MatchExpressions) != 2 {
		t.Errorf("node affinity %v", affinity)
	}
}

// TestAnotherAttemptKeepsTheCredentialsOfNodes: attaching may have written some.
func TestAnotherAttemptKeepsTheCredentialsOfNodes(t *testing.T) {
	f := newCSIFixture(t)
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	secrets := f.client.CoreV1().Secrets("own")
	secret, err := secrets.Get(t.Context(), "pvc-uid-1-node", metav1.GetOptions{})
	f.must(err)
	secret.Data = map[string][]byte{"node.0": []byte("{}")}
	_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	f.must(err)
	_, err = f.provision(claim)
	f.must(err)
	if secret, err = secrets.Get(t.Context(), "pvc-uid-1-node", metav1.GetOptions{}); err != nil || string(secret.Data["node.0"]) != "{}" {
		t.Errorf("secret %v, %v", secret, err)
	}
}

func TestVolumeInModeCSIThatCannotBeUsedIsUndone(t *testing.T) {
	f := newCSIFixture(t)
	gold := f.backends["gold"]
	_, err := f.provision(f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	}))
	const want = "UnsupportedAccessMode: backend gold: access mode ReadOnlyMany needs a volume that several hosts may use at once, and Cinder says multiattach is false; " +
		`use a volume type with the extra spec multiattach="<is> True", or use ReadWriteOnce`
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant  %s", err, want)
	}
	wantCalls(t, gold, "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
}

// TestVolumeOfATypeThatNodesCannotUseIsUndone: the first attachment has shown that.
func TestVolumeOfATypeThatNodesCannotUseIsUndone(t *testing.T) {
	f := newCSIFixture(t)
	gold := f.backends["gold"]
	_, refused := mappers.ForNode(mappers.Connection{}, mappers.NodeRequest{})
	var asked []string
	f.attempts.nodesRefuse = func(backend, volumeType string) error {
		asked = append(asked, backend+" "+volumeType)
		return refused
	}
	_, err := f.provision(f.claim(nil))
	if err == nil || err.Error() != "InvalidConnection: backend gold: there is no connection; connect the volume before it is mapped" {
		t.Errorf("error %v", err)
	}
	if len(asked) != 1 || !strings.HasPrefix(asked[0], "gold ") {
		t.Errorf("asked %q", asked)
	}
	wantCalls(t, gold, "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
}

func TestUndoingRemovesTheSecretOfNodes(t *testing.T) {
	f := newCSIFixture(t)
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	f.forgetClaim(claim)
	f.must(f.claimGone(t.Context(), claim.UID))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
	if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-node", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret is left: %v", err)
	}
}

// TestNoCopyOfAnImageThatANodeKeepsForItself: a node that got an image of a lost node
// keeps out Cinder, too, and the copy would end in error again and again.
func TestNoCopyOfAnImageThatANodeKeepsForItself(t *testing.T) {
	f := newCSIFixture(t)
	source := f.claim(nil)
	pv, err := f.provision(source)
	f.must(err)
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", "test"
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: source.Namespace, Name: source.Name, UID: source.UID}
	f.store(pv)
	source.Spec.VolumeName, source.Status.Phase = pv.Name, corev1.ClaimBound
	f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), source, source.Namespace))
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(source))
	f.seen()
	taken, err := wire.Connection{Protocol: "rbd", Taken: true}.PublishContext()
	f.must(err)
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n2"}}
	attachment.Spec.Source.PersistentVolumeName, attachment.Status.AttachmentMetadata = &pv.Name, taken
	f.must(f.attachments.Add(attachment))
	clone := f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = "clone", "uid-2"
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source.Name}
	})
	if f.admits(clone) {
		t.Error("a copy is provisioned")
	}
	want := "Warning SourceNotReady claim team-a/" + source.Name + ", whose content this claim asks for, was taken from a lost node, so node n2 has its image mapped in a way that keeps out Cinder, too; "
	if events := f.newEvents(); len(events) != 2 || !strings.HasPrefix(events[1], want) {
		t.Errorf("events %q, want %q", events, want)
	}
	f.must(f.attachments.Delete(attachment))
	f.publish(parking.Node, "n2")
	f.wantRequeued("clone")
	// The decision may be older than the attachment.
	f.must(f.attachments.Add(attachment))
	if source, denial, err := f.sources.Live(t.Context(), clone, f.class); source != nil || denial == nil || err != nil {
		t.Errorf("at the last moment: %+v, %v", source, err)
	}
	f.blind = true
	if source, denial, err := f.sources.Live(t.Context(), clone, f.class); source != nil || denial != nil || err == nil {
		t.Errorf("before the VolumeAttachments are known: %+v, %+v", source, denial)
	}
	f.blind = false
	f.must(f.attachments.Delete(attachment))
	if !f.admits(clone) {
		t.Error("no copy is provisioned after the node has let go")
	}
}

func TestCopyNamesTheFilesystemsOfItsLineage(t *testing.T) {
	f := newCSIFixture(t)
	f.backends["gold"].apart = true
	bound := func(name, uid, source string) *corev1.PersistentVolume {
		claim := f.claim(func(c *corev1.PersistentVolumeClaim) {
			c.Name, c.UID = name, types.UID(uid)
			if source != "" {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
			}
		})
		pv, err := f.provision(claim)
		f.must(err)
		pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = types.UID("pv-of-"+uid), "test"
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		f.store(pv)
		f.must(f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim.Namespace, claim.Name))
		claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
		f.must(f.client.Tracker().Add(claim))
		f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(claim))
		f.seen()
		return pv
	}
	bound("first", "uid-1", "")
	second, third := bound("second", "uid-2", "first"), bound("third", "uid-3", "second")
	for pv, want := range map[*corev1.PersistentVolume]string{second: "volume-of-uid-1", third: "volume-of-uid-2,volume-of-uid-1"} {
		if got := pv.Spec.CSI.VolumeAttributes["filesystemUUIDs"]; got != want {
			t.Errorf("PersistentVolume %s: %q, want %q", pv.Name, got, want)
		}
		if never := pv.Spec.CSI.VolumeAttributes["neverFormat"]; never != "" {
			t.Errorf("PersistentVolume %s has neverFormat %q", pv.Name, never)
		}
	}
	// The volume records them, too, because its PersistentVolume may be gone later.
	specs := f.backends["gold"].specs
	if got := strings.Join(specs[len(specs)-1].FilesystemUUIDs, ","); got != "volume-of-uid-2,volume-of-uid-1" {
		t.Errorf("the volume of the third claim records %q", got)
	}
	// An imported volume is never formatted, nor is a copy of it, nor a copy of that
	// copy.
	imported := bound("imported", "uid-6", "")
	imported.Spec.CSI.VolumeAttributes = map[string]string{"neverFormat": "true"}
	f.store(imported)
	bound("copy", "uid-7", "imported")
	if again := bound("copy-of-copy", "uid-8", "copy"); again.Spec.CSI.VolumeAttributes["neverFormat"] != "true" {
		t.Errorf("the copy of a copy of an imported volume has %v", again.Spec.CSI.VolumeAttributes)
	}
	// When the rule changes, no volume of the driver becomes a copy of a native one.
	f.inForce("", "")
	native := bound("native", "uid-4", "")
	f.csi()
	if f.admits(f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = "fifth", "uid-5"
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "native"}
	})) {
		t.Errorf("a copy of %s is provisioned", native.Name)
	}
	if events := f.newEvents(); len(events) == 0 || !strings.HasPrefix(events[len(events)-1], "Warning UnsupportedMode claim team-a/native, whose content this claim asks for, is a native volume") && !strings.HasPrefix(events[len(events)-1], "Warning UnsupportedMode claim team-a/native is a native volume") {
		t.Errorf("events %q", events)
	}
	// An administrator records the UUID of its filesystem.
	native.Annotations[objects.AnnotationFilesystemUUIDs] = "6F3D7F7C-8b0f-4b43-8d4e-3f3b9d3f6a11"
	f.store(native)
	f.board.Publish(parking.SourceClaim("team-a", "native"))
	f.wantRequeued("fifth")
	if fifth := bound("fifth", "uid-5", "native"); fifth.Spec.CSI == nil || fifth.Spec.CSI.VolumeAttributes["filesystemUUIDs"] != "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11" || fifth.Spec.CSI.VolumeAttributes["neverFormat"] != "true" {
		t.Errorf("source %+v", fifth.Spec.PersistentVolumeSource)
	}
}

func TestStorageClassMayNameTheDriver(t *testing.T) {
	ofDriver := func(c *corev1.PersistentVolumeClaim) {
		c.Annotations[objects.AnnotationStorageProvisioner] = wire.DriverName
	}
	f := newFixture(t)
	f.class.Provisioner = wire.DriverName
	claim := f.claim(ofDriver)
	if f.admits(claim) {
		t.Error("a claim of another program's driver is provisioned")
	}
	if events := f.newEvents(); len(events) > 0 {
		t.Errorf("events %q", events)
	}
	f.csi()
	f.PolicyChanged()
	f.wantRequeued("data")
	if !f.admits(claim) {
		t.Errorf("not provisioned in mode csi: %q", f.newEvents())
	}
	pv, err := f.provision(claim)
	f.must(err)
	if pv.Spec.CSI == nil {
		t.Errorf("source %+v", pv.Spec.PersistentVolumeSource)
	}
	f.newEvents()

	// Another StorageClass has a rule in mode csi, and this one does not.
	f = newFixture(t)
	f.inForce("backends: [gold, silver], fsType: xfs", "backends: [gold], mode: csi")
	f.class.Provisioner = wire.DriverName
	if f.admits(f.claim(ofDriver)) {
		t.Error("a native claim of the driver's StorageClass is provisioned")
	}
	f.wantEvent("Warning UnsupportedMode StorageClass one names the CSI driver standalone-cinder.openstack.org as its provisioner, but tenants[0].classes[1] makes native volumes on backend gold; give the rule mode: csi, or name the program itself as the provisioner")

	// The author of a claim cannot choose the provisioner by the claim's annotation.
	f = newCSIFixture(t)
	f.class.Provisioner = "ebs.csi.example"
	if f.admits(f.claim(ofDriver)) {
		t.Error("a claim of another provisioner's StorageClass is provisioned")
	}
	if events := f.newEvents(); len(events) > 0 {
		t.Errorf("events %q", events)
	}
}

const stillAttached = "Normal VolumeStillAttached VolumeAttachment csi-1 (node a), csi-2 (node b) still attaches the volume; the deletion continues when Kubernetes has removed it"

// remedyAttached follows once that has lasted.
const remedyAttached = "; if the node is permanently lost, delete its Node object or taint it with node.kubernetes.io/out-of-service"

// TestVolumeInModeCSIWaitsForItsAttachments covers nodes that exist and nodes that do
// not.
func TestVolumeInModeCSIWaitsForItsAttachments(t *testing.T) {
	for name, watched := range map[string]bool{"the cache shows them": true, "the watch is late": false} {
		t.Run(name, func(t *testing.T) {
			f := newCSIFixture(t)
			pv := f.recorded()
			other := f.attach("csi-3", "pvc-another", "a", watched)
			second, first := f.attach("csi-2", pv.Name, "b", watched), f.attach("csi-1", pv.Name, "a", watched)
			f.node("a", watched)
			f.released(pv)
			for range 3 {
				if f.ShouldDelete(t.Context(), pv) {
					if err := f.deleteReleased(pv); !isIgnored(err) {
						t.Fatalf("error %v, want one that the library ignores", err)
					}
				}
			}
			wantCalls(t, f.backends["gold"])
			f.wantEvent(stillAttached)
			f.detach(second)
			f.publish(parking.Node, "b")
			f.wantRequeued(pv.Name)
			f.ShouldDelete(t.Context(), pv)
			if err := f.deleteReleased(pv); !isIgnored(err) {
				t.Fatalf("error %v, want one that the library ignores", err)
			}
			f.detach(first)
			f.publish(parking.Node, "a")
			f.wantRequeued(pv.Name)
			if !f.ShouldDelete(t.Context(), pv) {
				t.Fatal("not deleted after it was detached")
			}
			f.must(f.deleteReleased(pv))
			wantCalls(t, f.backends["gold"], "remove volume-1 historic=false")
			if _, err := f.client.CoreV1().Secrets("own").Get(t.Context(), "pvc-uid-1-node", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the Secret is left: %v", err)
			}
			f.detach(other)
		})
	}
}

func TestAttachmentsThatCannotBeReadStopADeletion(t *testing.T) {
	f := newCSIFixture(t)
	pv := f.recorded()
	f.client.PrependReactor("list", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	const want = "cannot tell whether the volume of PersistentVolume pvc-uid-1 is still attached to a node: cannot list the VolumeAttachments: forbidden"
	if err := f.delete(pv); err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"])
}

// TestDeletionInModeCSIIsRetriedWithoutAWatch covers a program that does not watch
// VolumeAttachments.
func TestDeletionInModeCSIIsRetriedWithoutAWatch(t *testing.T) {
	f := newCSIFixture(t)
	f.blind = true
	pv := f.recorded()
	f.attach("csi-1", pv.Name, "a", false)
	f.attach("csi-2", pv.Name, "b", false)
	if err := f.delete(pv); err == nil || isIgnored(err) || "Normal VolumeStillAttached "+err.Error() != stillAttached+remedyAttached {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"])
}

// TestPersistentVolumeInModeCSIWithAnotherHandleIsDamaged: the handle cannot be
// changed, but the annotations can.
func TestPersistentVolumeInModeCSIWithAnotherHandleIsDamaged(t *testing.T) {
	f := newCSIFixture(t)
	pv := f.recorded()
	pv.Annotations[objects.AnnotationVolume] = "volume-2"
	const want = `PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/volume-id and standalone-cinder.openstack.org/backend make the handle "gold/volume-2", but spec.csi.volumeHandle has "gold/volume-1"; nothing is deleted until it is fixed`
	if err := f.delete(pv); err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
	wantCalls(t, f.backends["gold"])
}

// TestVolumeThatAStaticPersistentVolumeNamesIsKept: an administrator may have made
// the object by hand, without this program's annotations.
func TestVolumeThatAStaticPersistentVolumeNamesIsKept(t *testing.T) {
	f := newCSIFixture(t)
	claim := f.claim(nil)
	_, err := f.provision(claim)
	f.must(err)
	f.store(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/volume-1"}}}})
	f.forgetClaim(claim)
	f.must(f.claimGone(context.WithoutCancel(t.Context()), claim.UID))
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

// attributesFixture returns a fixture whose rule for StorageClass one is in mode csi
// and grants the type ssd to VolumeAttributesClasses, and the class quick, which asks
// for ssd.
func attributesFixture(t *testing.T) (f *fixture, classes map[string]*storagev1.VolumeAttributesClass) {
	t.Helper()
	f = newFixture(t)
	f.inForce("{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], mode: csi, volumeTypes: [ssd]}")
	classes = map[string]*storagev1.VolumeAttributesClass{
		"quick": {ObjectMeta: metav1.ObjectMeta{Name: "quick"}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "ssd"}},
		"large": {ObjectMeta: metav1.ObjectMeta{Name: "large"}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "hdd"}},
	}
	f.attributesClass = func(name string) (*storagev1.VolumeAttributesClass, error) {
		if class, has := classes[name]; has {
			return class, nil
		}
		return nil, apierrors.NewNotFound(storagev1.Resource("volumeattributesclasses"), name)
	}
	return f, classes
}

func named(class string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &class }
}

// TestVolumeAttributesClassAtCreation: the volume gets the type. The PersistentVolume
// gets the class, without which Kubernetes would not bind the claim.
func TestVolumeAttributesClassAtCreation(t *testing.T) {
	f, _ := attributesFixture(t)
	f.backends["gold"].volumeType = "ssd"
	pv, err := f.provision(f.claim(named("quick")))
	f.must(err)
	if name := pv.Spec.VolumeAttributesClassName; name == nil || *name != "quick" {
		t.Errorf("the PersistentVolume has the class %v", name)
	}
	if specs := f.backends["gold"].specs; len(specs) != 1 || specs[0].Type != "ssd" {
		t.Errorf("requested %+v", specs)
	}

	f, _ = attributesFixture(t)
	f.must(f.provisionError(f.claim(named("large")), "the claim is denied; its event gives the reason"))
	if events := f.newEvents(); len(events) != 1 || events[0] != `Warning ParameterNotAllowed a VolumeAttributesClass asks for volumes of type "hdd", which tenants[0].classes[1].volumeTypes does not list` {
		t.Errorf("events %q", events)
	}
}

// TestClaimWaitsForItsVolumeAttributesClass: the claim comes back when the class is
// created.
func TestClaimWaitsForItsVolumeAttributesClass(t *testing.T) {
	f, classes := attributesFixture(t)
	class := classes["quick"]
	delete(classes, "quick")
	claim := f.claim(named("quick"))
	if f.admits(claim) {
		t.Error("the claim is admitted")
	}
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], `Warning VolumeAttributesClassNotFound VolumeAttributesClass "quick" does not exist`) {
		t.Errorf("events %q", events)
	}
	classes["quick"] = class
	f.publish(parking.Attributes, "quick")
	if len(f.requeued) != 1 || !f.admits(claim) {
		t.Errorf("requeued %v", f.requeued)
	}
}

// TestTypeThatCinderShowsInAnotherWayIsRight: Cinder accepts the ID of a type, but
// shows its name.
func TestTypeThatCinderShowsInAnotherWayIsRight(t *testing.T) {
	const id = "8b0f4b43-8d4e-4f3b-9d3f-6a116f3d7f7c"
	f, classes := attributesFixture(t)
	f.inForce("{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], mode: csi, volumeTypes: ["+id+"]}")
	classes["quick"].Parameters["type"] = id
	gold := f.backends["gold"]
	gold.volumeType = "ssd"
	claim := f.claim(named("quick"))
	for range 3 {
		if _, err := f.provision(claim); err != nil {
			t.Error(err)
		}
	}
	for _, call := range gold.calls {
		if strings.HasPrefix(call, "abandon") {
			t.Errorf("the volume is made and removed again and again: %q", gold.calls)
			break
		}
	}
}

// TestClaimThatNamesAnotherClassMeanwhileBeginsAgain: a PersistentVolume with the
// earlier class would never be bound.
func TestClaimThatNamesAnotherClassMeanwhileBeginsAgain(t *testing.T) {
	f, _ := attributesFixture(t)
	old := f.claim(named("quick")).DeepCopy()
	f.claim(nil)
	f.must(f.provisionError(old, "the claim names another VolumeAttributesClass than when the policy decided"))
	wantCalls(t, f.backends["gold"])
}

// provisionError returns nil if provisioning fails with the wanted error.
func (f *fixture) provisionError(claim *corev1.PersistentVolumeClaim, want string) error {
	_, err := f.provision(claim)
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		return fmt.Errorf("error %w, want %s", err, want)
	}
	return nil
}
