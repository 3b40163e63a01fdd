package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// quickSnapshots makes the simulator's delays visible but short.
func quickSnapshots() cindersim.Options {
	return cindersim.Options{CreateDelay: 100 * time.Millisecond, DeleteDelay: 100 * time.Millisecond, SnapshotDelay: 200 * time.Millisecond}
}

// boundFinalizer is what the snapshot-controller gives a VolumeSnapshot that is bound.
const boundFinalizer = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"

// snapshotWorld is a world with snapshots.
type snapshotWorld struct {
	*world
	client snapshotclient.Interface
	// class is the VolumeSnapshotClass with the policy Delete.
	class string
}

func newSnapshotWorld(t *testing.T, name string) *snapshotWorld {
	t.Helper()
	w := &snapshotWorld{world: newWorld(t, name, quickSnapshots()), class: name + "-delete"}
	var err error
	w.client, err = snapshotclient.NewForConfig(suite.Config)
	w.must(err)
	w.Cleanup(func() {
		if w.Failed() {
			w.Logf("the snapshot-controller said:\n%s", suite.SnapshotControllerLog())
		}
	})
	return w
}

func (w *snapshotWorld) install() {
	w.Helper()
	w.must(suite.InstallSnapshots(w.ctx))
	w.addClass(w.class, w.provisioner, snapshotv1.VolumeSnapshotContentDelete, nil)
}

func (w *snapshotWorld) addClass(name, driver string, policy snapshotv1.DeletionPolicy, change func(*snapshotv1.VolumeSnapshotClass)) {
	w.Helper()
	class := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver, DeletionPolicy: policy}
	if change != nil {
		change(class)
	}
	_, err := w.client.SnapshotV1().VolumeSnapshotClasses().Create(w.ctx, class, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = w.client.SnapshotV1().VolumeSnapshotClasses().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// take creates a VolumeSnapshot; an empty class leaves it out.
func (w *snapshotWorld) take(namespace, name, claim, class string) *snapshotv1.VolumeSnapshot {
	w.Helper()
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.name + "-" + namespace},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
	if class != "" {
		snapshot.Spec.VolumeSnapshotClassName = &class
	}
	made, err := w.client.SnapshotV1().VolumeSnapshots(snapshot.Namespace).Create(w.ctx, snapshot, metav1.CreateOptions{})
	w.must(err)
	return made
}

// ready waits until the VolumeSnapshot is bound and ready, and returns its
// content.
func (w *snapshotWorld) ready(namespace, name string) *snapshotv1.VolumeSnapshotContent {
	w.Helper()
	content, err := w.awaitReady(w.ctx, namespace, name)
	w.must(err)
	return content
}

func (w *snapshotWorld) awaitReady(ctx context.Context, namespace, name string) (content *snapshotv1.VolumeSnapshotContent, err error) {
	err = harness.Eventually(ctx, func() (string, error) {
		s, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if s.Status == nil || s.Status.ReadyToUse == nil || !*s.Status.ReadyToUse || s.Status.BoundVolumeSnapshotContentName == nil {
			return fmt.Sprintf("VolumeSnapshot %s is not ready: %+v", name, s.Status), nil
		}
		content, err = w.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, *s.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
		return "", err
	})
	return content, err
}

func (w *snapshotWorld) remove(namespace, name string) {
	w.Helper()
	w.must(w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Delete(w.ctx, name, metav1.DeleteOptions{}))
}

// bound waits until the snapshot-controller has bound a VolumeSnapshot. Deleted
// earlier, it would be gone at once, and its content would stay.
func (w *snapshotWorld) bound(namespace, name string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		snapshot, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err == nil && !slices.Contains(snapshot.Finalizers, boundFinalizer) {
			return "the snapshot-controller has not bound VolumeSnapshot " + name, nil
		}
		return "", err
	}))
}

// gone waits until neither the VolumeSnapshot nor its content is left.
func (w *snapshotWorld) gone(namespace, name string, uid types.UID) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
		content, contentErr := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, objects.SnapshotContentName(uid), metav1.GetOptions{})
		if apierrors.IsNotFound(err) && apierrors.IsNotFound(contentErr) {
			return "", nil
		}
		return fmt.Sprintf("VolumeSnapshot: %v; content: %+v, %v", err, content.ObjectMeta, contentErr), nil
	}))
}

// stored waits until Cinder has that many snapshots.
func (w *snapshotWorld) stored(count int) []cindersim.Snapshot {
	w.Helper()
	var all []cindersim.Snapshot
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if all = w.sim.Snapshots(); len(all) != count {
			return fmt.Sprintf("Cinder has %d snapshots, want %d", len(all), count), nil
		}
		return "", nil
	}))
	return all
}

func (w *snapshotWorld) event(namespace, name, reason, text string) {
	w.Helper()
	if namespace != "default" {
		namespace = w.name + "-" + namespace
	}
	_, err := suite.WaitEvent(w.ctx, namespace, name, reason, text)
	w.must(err)
}

// clean removes everything and looks for what is left.
func (w *snapshotWorld) clean() {
	w.Helper()
	for _, namespace := range []string{"a", "b"} {
		w.must(w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		w.must(suite.DeleteClaims(w.ctx, w.name+"-"+namespace))
	}
	w.stored(0)
	w.noResidue()
}

// TestSnapshotsBeginWhenTheirCRDsAreInstalled runs beside no other test, since it
// removes the CRDs that earlier ones may have installed.
//
//tier:outage
func TestSnapshotsBeginWhenTheirCRDsAreInstalled(t *testing.T) {
	w := newSnapshotWorld(t, "snap-crds")
	w.must(suite.RemoveSnapshots(w.ctx))
	replica := w.start()
	w.claim("b", "data", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	const said = "Taking no snapshots until the snapshot CRDs are installed"
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !strings.Contains(replica.Log(), said) {
			return "the replica does not say that the CRDs are missing", nil
		}
		return "", nil
	}))
	w.install()
	w.take("b", "nightly", "data", w.class)
	w.ready("b", "nightly")
	if said := strings.Count(replica.Log(), said); said != 1 {
		t.Errorf("the replica said %d times that the CRDs are missing", said)
	}
	w.clean()
}

func TestSnapshotIsBoundAndDeleted(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-life")
	w.install()
	replica := w.start()
	w.claim("a", "data", "gold", "2Gi")
	w.claim("b", "data", "lab", "1Gi")
	for _, namespace := range []string{"a", "b"} {
		_, err := suite.WaitBound(w.ctx, w.name+"-"+namespace, 1)
		w.must(err)
	}
	made := w.take("a", "nightly", "data", w.class)
	content := w.ready("a", "nightly")
	stored := w.stored(1)[0]
	origin, err := objects.SnapshotOriginOf(content)
	w.must(err)
	if origin.SnapshotID != stored.ID || origin.VolumeID != stored.VolumeID || origin.Tenant != "tenant-a" || origin.Backend != "gold" || origin.Cluster != "cluster-"+w.name ||
		origin.StorageClass != w.name+"-gold" || !origin.Place.IsKnown() || content.Name != objects.SnapshotContentName(made.UID) {
		t.Errorf("the content records %+v; Cinder has %+v", origin, stored)
	}
	if status := content.Status; *status.RestoreSize != 2<<30 || *status.CreationTime == 0 || *content.Spec.VolumeSnapshotClassName != w.class {
		t.Errorf("the content is %+v", content)
	}
	if stored.Metadata["standalone-cinder.openstack.org/recorded"] == "" {
		t.Errorf("the snapshot is not marked: %v", stored.Metadata)
	}
	snapshot, err := w.client.SnapshotV1().VolumeSnapshots(made.Namespace).Get(w.ctx, made.Name, metav1.GetOptions{})
	w.must(err)
	if snapshot.Status.RestoreSize.Value() != 2<<30 || snapshot.Status.Error != nil {
		t.Errorf("the VolumeSnapshot's status is %+v", snapshot.Status)
	}
	// A class of another driver is none of this program's business.
	w.addClass(w.name+"-foreign", "csi.example.org", snapshotv1.VolumeSnapshotContentDelete, nil)
	foreign := w.take("a", "foreign", "data", w.name+"-foreign")
	// A namespace that is no tenant's, and a claim of another namespace, get nothing.
	w.take("a", "of-nobody", "of-b", w.class)
	w.event("a", "of-nobody", "ClaimNotBound", "claim of-b does not exist")
	w.remove("a", "of-nobody")
	w.remove("a", "nightly")
	w.gone("a", "nightly", made.UID)
	w.stored(0)
	for _, line := range []string{`"Took a snapshot"`, `"Deleted a snapshot"`} {
		at := strings.Index(replica.Log(), line)
		if at < 0 || !strings.Contains(strings.SplitN(replica.Log()[at:], "\n", 2)[0], `"requestID":"req-`) {
			t.Errorf("the audit trail has no line %s with a request ID", line)
		}
	}
	if events, err := suite.Client.CoreV1().Events(foreign.Namespace).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=foreign,source=standalone-cinder"}); err != nil || len(events.Items) > 0 {
		t.Errorf("events about a snapshot of another driver: %v %v", events.Items, err)
	}
	w.remove("a", "foreign")
	w.clean()
}

func TestRetainedSnapshotStaysAndCounts(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-retain")
	w.policy = strings.Replace(w.policy, "  - name: tenant-b\n", "  - name: tenant-b\n    quota: {snapshots: 1}\n", 1) + "audit: {interval: 2s}\n"
	w.install()
	w.addClass(w.name+"-retain", w.provisioner, snapshotv1.VolumeSnapshotContentRetain, func(class *snapshotv1.VolumeSnapshotClass) {
		class.Annotations = map[string]string{objects.AnnotationDefaultSnapshotClass: "true"}
	})
	replica := w.start()
	w.claim("b", "data", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	// Without a class, the default one counts.
	w.take("b", "kept", "data", "")
	content := w.ready("b", "kept")
	if content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentRetain {
		t.Errorf("the content is %+v", content.Spec)
	}
	w.remove("b", "kept")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-b").Get(w.ctx, "kept", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the VolumeSnapshot is still there", err
	}))
	w.must(w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, content.Name, metav1.DeleteOptions{}))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, content.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the content is still there", err
	}))
	// The next leader, and its audits, leave the snapshot alone and count it.
	w.must(replica.Stop(w.ctx))
	replica = w.start()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !strings.Contains(replica.Log(), "Kept a snapshot that no VolumeSnapshotContent names") {
			return "the retained snapshot is not reported", nil
		}
		return "", nil
	}))
	stored := w.stored(1)[0]
	w.take("b", "second", "data", w.class)
	w.event("b", "second", "QuotaExceeded", "tenant tenant-b would use 2 of 1 snapshots (tenants[1].quota.snapshots)")
	// Once somebody has removed it, the audit finds room.
	w.must(w.sim.RemoveSnapshot(stored.ID))
	w.ready("b", "second")
	w.clean()
}

//tier:outage
func TestSnapshotQuotaReturnsWhenRoomIsFreed(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-quota")
	w.policy = strings.Replace(w.policy, "        backends: [lab]\n", "        backends: [lab]\n        quota: {snapshots: 2}\n", 1)
	w.install()
	replica := w.start()
	w.claim("b", "data", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	for _, name := range []string{"one", "two"} {
		w.take("b", name, "data", w.class)
		w.ready("b", name)
	}
	w.take("b", "three", "data", w.class)
	w.event("b", "three", "QuotaExceeded", "would use 3 of 2 snapshots (tenants[1].classes[0].quota.snapshots)")
	for _, line := range []string{
		`standalone_cinder_quota{name="tenants[1].classes[0]",resource="snapshots",scope="class",type="used"} 2`,
		`standalone_cinder_quota{name="tenants[1].classes[0]",resource="snapshots",scope="class",type="hard"} 2`,
		`standalone_cinder_quota{name="tenant-b",resource="snapshots",scope="tenant",type="used"} 2`,
		`standalone_cinder_pending_snapshots{kind="VolumeSnapshot",reason="QuotaExceeded",state="denied"} 1`,
	} {
		w.metric(replica, line)
	}
	w.stored(2)
	// The next leader counts the same.
	w.must(replica.Stop(w.ctx))
	w.start()
	w.take("b", "four", "data", w.class)
	w.event("b", "four", "QuotaExceeded", "would use 3 of 2 snapshots")
	w.remove("b", "four")
	w.remove("b", "one")
	w.ready("b", "three")
	w.clean()
}

func TestSnapshotsNeverCrossTenants(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-tenants")
	w.policy = strings.Replace(w.policy, `namespaces: ["snap-tenants-b"]`, `namespaces: ["snap-tenants-b"]
    namespaceSelector: {matchLabels: {team: b}}`, 1)
	w.install()
	replica := w.start()
	w.claim("a", "data", "gold", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-a", 1)
	w.must(err)
	for name, test := range map[string]struct{ class, reason, text string }{
		"parameters": {w.name + "-parameters", "ParameterNotAllowed", `parameter "volume-type" of the VolumeSnapshotClass is not known`},
	} {
		w.addClass(test.class, w.provisioner, snapshotv1.VolumeSnapshotContentDelete, func(class *snapshotv1.VolumeSnapshotClass) {
			class.Parameters = map[string]string{"volume-type": "fast"}
		})
		w.take("a", name, "data", test.class)
		w.event("a", name, test.reason, test.text)
		w.remove("a", name)
	}
	// The namespace moves to the other tenant, and its volume stays with the first.
	w.must(replica.WritePolicy(strings.NewReplacer(`"snap-tenants-a"`, `"other"`, `"snap-tenants-b"`, `"snap-tenants-a"`, "snap-tenants-lab", "snap-tenants-*").Replace(w.policy)))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !strings.Contains(replica.Log(), "Reloaded the policy") {
			return "the policy is not reloaded", nil
		}
		return "", nil
	}))
	w.take("a", "stolen", "data", w.class)
	w.event("a", "stolen", "OtherTenant", "belongs to tenant tenant-b (tenants[1]), but the volume was made for tenant tenant-a")
	// A content that names a snapshot by its ID is not served, since no rule grants it.
	handle := "11111111-2222-4333-8444-555555555555"
	imported := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-imported", Annotations: map[string]string{annotation("storage-class"): w.name + "-lab"}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: w.name + "-a", Name: "imported"}, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			Driver: w.provisioner, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
		},
	}
	_, err = w.client.SnapshotV1().VolumeSnapshotContents().Create(w.ctx, imported, metav1.CreateOptions{})
	w.must(err)
	_, err = w.client.SnapshotV1().VolumeSnapshots(w.name+"-a").Create(w.ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "imported"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &imported.Name}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.event("default", imported.Name, "ImportNotGranted", "grants no others that exist at Cinder")
	w.bound("a", "imported")
	w.remove("a", "imported")
	w.event("default", imported.Name, "SnapshotKept", handle)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, imported.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the imported content is still there", err
	}))
	w.stored(0)
	// When the namespace is the first tenant's again, the snapshot is taken.
	w.must(replica.WritePolicy(w.policy))
	w.ready("a", "stolen")
	w.clean()
}

// TestVolumeWaitsForItsSnapshots: the deletion says once what it waits for, and
// comes back when the last snapshot is gone.
func TestVolumeWaitsForItsSnapshots(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-waits")
	w.install()
	w.start()
	w.claim("b", "data", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	w.take("b", "nightly", "data", w.class)
	w.ready("b", "nightly")
	pvs, err := suite.PersistentVolumes(w.ctx, w.provisioner)
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.event("default", pvs[0].Name, "VolumeHasSnapshots", "VolumeSnapshot "+w.name+"-b/nightly (")
	deletes := func() int {
		return len(slices.DeleteFunc(w.sim.Journal(), func(e cindersim.Entry) bool { return e.Operation != "volume.delete" }))
	}
	before := deletes()
	w.remove("b", "nightly")
	w.noResidue()
	if n := deletes() - before; n != 1 {
		t.Errorf("after the snapshot was gone, %d requests deleted the volume", n)
	}
	events, err := suite.Client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pvs[0].Name})
	w.must(err)
	said := 0
	for _, event := range events.Items {
		if event.Reason == "VolumeHasSnapshots" {
			said += int(max(event.Count, 1))
		}
	}
	if said != 1 {
		t.Errorf("the PersistentVolume's events say %d times that it has snapshots", said)
	}
}

// TestContentWithoutItsVolumeSnapshotIsRemoved: such contents come from a deletion
// at the very moment when the content was written.
func TestContentWithoutItsVolumeSnapshotIsRemoved(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-late")
	w.install()
	w.claim("b", "data", "lab", "1Gi")
	replica := w.start()
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	w.take("b", "model", "data", w.class)
	model := w.ready("b", "model")
	w.must(replica.Stop(w.ctx))
	late := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Annotations: model.Annotations, Finalizers: []string{objects.SnapshotFinalizer}}, Spec: model.Spec}
	late.Spec.VolumeSnapshotRef.Name, late.Spec.VolumeSnapshotRef.UID = "gone", "99999999-2222-4333-8444-555555555555"
	late.Name = objects.SnapshotContentName(late.Spec.VolumeSnapshotRef.UID)
	_, err = w.client.SnapshotV1().VolumeSnapshotContents().Create(w.ctx, late, metav1.CreateOptions{})
	w.must(err)
	w.start()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, late.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the late content is still there", err
	}))
	w.stored(1)
	w.clean()
}

// TestRestoredVolumeHasTheSnapshotsContent: a claim with a VolumeSnapshot as its
// data source waits until that is ready, and gets a volume made from it.
func TestRestoredVolumeHasTheSnapshotsContent(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-restore")
	w.install()
	w.start()
	w.claim("b", "data", "lab", "2Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	restore := func(name, size string) {
		group := snapshotv1.GroupName
		_, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-b", name, w.name+"-lab", size, func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "nightly"}
		}))
		w.must(err)
	}
	restore("restored", "2Gi")
	w.event("b", "restored", "SourceNotFound", "VolumeSnapshot "+w.name+"-b/nightly, whose content this claim asks for, does not exist")
	w.take("b", "nightly", "data", w.class)
	w.ready("b", "nightly")
	_, err = suite.WaitBound(w.ctx, w.name+"-b", 2)
	w.must(err)
	id := w.sim.Snapshots()[0].ID
	made := slices.DeleteFunc(w.sim.Volumes(), func(v cindersim.Volume) bool { return v.SnapshotID != id })
	if len(made) != 1 || made[0].SizeGiB != 2 {
		t.Errorf("made from the snapshot: %+v", made)
	}
	restore("small", "1Gi")
	w.event("b", "small", "VolumeTooSmall", "the volume would have 1 GiB, but VolumeSnapshot "+w.name+"-b/nightly has 2 GiB")
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.clean()
}

// TestSnapshotThatExistsIsImported: a content that names a snapshot at Cinder is
// bound by the snapshot-controller and served if the tenant's rule grants it; a claim
// gets its content; it counts; and it goes or stays as the deletionPolicy says.
func TestSnapshotThatExistsIsImported(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snap-import")
	w.importPolicy()
	w.policy = strings.Replace(w.policy, "    metadata: {costcenter: \"4711\"}\n", "    metadata: {costcenter: \"4711\"}\n    quota: {snapshots: 1}\n", 1)
	w.policy = strings.Replace(w.policy, "clusterID: cluster-snap-import\n", "clusterID: cluster-snap-import\naudit: {interval: 500ms, grace: 1m, delete: true}\n", 1)
	w.install()
	leader := w.start()
	granted := map[string]string{"import": "yes"}
	volume := w.add(cindersim.Volume{Name: "somebody's", Project: "team-a", SizeGiB: 2})
	exists := func(name string, metadata map[string]string) string {
		id, err := w.sim.AddSnapshot(volume.ID, name, metadata)
		w.must(err)
		return id
	}
	old, secret := exists("a-data", granted), exists("secret", granted)
	bring := func(id, namespace, class, name string, policy snapshotv1.DeletionPolicy) *snapshotv1.VolumeSnapshot {
		t.Helper()
		content, err := w.client.SnapshotV1().VolumeSnapshotContents().Create(w.ctx,
			objects.NewImportedSnapshotContent(id, w.name+"-"+namespace, name, w.provisioner, w.name+"-"+class, policy, nil), metav1.CreateOptions{})
		w.must(err)
		w.Cleanup(func() {
			_ = w.client.SnapshotV1().VolumeSnapshotContents().Delete(context.Background(), content.Name, metav1.DeleteOptions{})
		})
		snapshot, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Create(w.ctx, &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content.Name}},
		}, metav1.CreateOptions{})
		w.must(err)
		return snapshot
	}
	left := func(snapshot *snapshotv1.VolumeSnapshot, alsoContent bool) {
		t.Helper()
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			_, err := w.client.SnapshotV1().VolumeSnapshots(snapshot.Namespace).Get(w.ctx, snapshot.Name, metav1.GetOptions{})
			_, contentErr := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, contentName(snapshot), metav1.GetOptions{})
			if apierrors.IsNotFound(err) && (apierrors.IsNotFound(contentErr) || !alsoContent) {
				return "", nil
			}
			return fmt.Sprintf("VolumeSnapshot: %v; content: %v", err, contentErr), nil
		}))
	}
	// What the rule does not grant is as if it did not exist, and nothing changes.
	const notFound = "has kept no snapshot with the ID "
	refused := bring(secret, "a", "gold", "secret", snapshotv1.VolumeSnapshotContentDelete)
	w.event("a", "secret", "ImportedSnapshotNotFound", notFound+fmt.Sprintf("%q", secret))
	w.event("default", contentName(refused), "ImportedSnapshotNotFound", notFound+fmt.Sprintf("%q", secret))
	theirs := bring(old, "b", "lab", "theirs", snapshotv1.VolumeSnapshotContentDelete)
	w.event("b", "theirs", "ImportNotGranted", "grants no others that exist at Cinder")
	w.bound("a", "secret")
	w.bound("b", "theirs")
	for _, denied := range []*snapshotv1.VolumeSnapshot{refused, theirs} {
		w.must(w.client.SnapshotV1().VolumeSnapshots(denied.Namespace).Delete(w.ctx, denied.Name, metav1.DeleteOptions{}))
		left(denied, true)
	}
	for _, s := range w.stored(2) {
		if len(s.Metadata) != 1 {
			t.Errorf("snapshot %s has the metadata %v", s.Name, s.Metadata)
		}
	}

	imported := bring(old, "a", "gold", "old", snapshotv1.VolumeSnapshotContentRetain)
	content := w.ready("a", "old")
	if content.Name != contentName(imported) || objects.SnapshotHandleOf(content) != old || *content.Status.RestoreSize != 2<<30 {
		t.Errorf("the content is %+v, with %+v", content.ObjectMeta, content.Status)
	}
	w.event("a", "old", "SnapshotImported", "tenant tenant-a, rule tenants[0].classes[0]: snapshot "+old+" (2 GiB) of backend gold is imported; its deletionPolicy is Retain")
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="snapshots",scope="tenant",type="used"} 1`)
	w.metric(leader, `standalone_cinder_snapshot_imports_total{outcome="success"} 1`)
	group := snapshotv1.GroupName
	_, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-a", "restored", w.name+"-gold", "2Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "old"}
	}))
	w.must(err)
	_, err = suite.WaitBound(w.ctx, w.name+"-a", 1)
	w.must(err)
	if made := slices.DeleteFunc(w.sim.Volumes(), func(v cindersim.Volume) bool { return v.SnapshotID != old }); len(made) != 1 {
		t.Errorf("%d volumes were made from the snapshot", len(made))
	}
	// It uses the quota.
	w.take("a", "another", "restored", w.class)
	w.event("a", "another", "QuotaExceeded", "would use 2 of 1 snapshots")

	// Retained, it stays and counts, until the tenant imports it again, to delete it.
	w.remove("a", "old")
	left(imported, false)
	w.must(w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, contentName(imported), metav1.DeleteOptions{}))
	left(imported, true)
	w.stored(2)
	// Now by the command, dry run first.
	command := func(apply ...string) (code int, output string) {
		return w.operator("snapshot", "import", append([]string{"--backend", "gold", "--snapshot", "a-data", "--namespace", w.name + "-a", "--volume-snapshot", "again",
			"--storage-class", w.name + "-gold", "--deletion-policy", "Delete"}, apply...)...)
	}
	if code, output := w.operator("snapshot", "list"); code != 0 || !strings.Contains(output, old) || !strings.Contains(output, w.name+"-a/old of cluster cluster-snap-import") {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	if code, output := command(); code != 0 || !strings.Contains(output, "# 1. create VolumeSnapshotContent imported-"+old) {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	if _, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-a").Get(w.ctx, "again", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the plan made a VolumeSnapshot: %v", err)
	}
	for range 2 {
		if code, output := command("--apply"); code != 0 {
			t.Fatalf("exit code %d:\n%s", code, output)
		}
		w.ready("a", "again")
	}
	again, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-a").Get(w.ctx, "again", metav1.GetOptions{})
	w.must(err)
	w.remove("a", "again")
	left(again, true)
	w.ready("a", "another") // there is room again
	for _, s := range w.stored(2) {
		if s.ID == old {
			t.Error("the imported snapshot is still there")
		}
	}
	w.must(w.sim.RemoveSnapshot(secret))
	w.remove("a", "another")
	w.stored(0)
	w.must(suite.DeleteClaims(w.ctx, w.name+"-a"))
}

// TestAccountMayChangeOnlySnapshotsOfItsDriver: whoever has the account of the
// program could delete other drivers' VolumeSnapshotContents, and with them their
// snapshots, or hand the content of one tenant to the VolumeSnapshot of another.
func TestAccountMayChangeOnlySnapshotsOfItsDriver(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "snapaccount")
	w.install()
	w.start()
	config := attackerConfig(w.world)
	account, err := snapshotclient.NewForConfig(config)
	w.must(err)
	contents := account.SnapshotV1().VolumeSnapshotContents()
	handle, dryRun := "snapshot-of-another", []string{metav1.DryRunAll}
	content := func(driver string) *snapshotv1.VolumeSnapshotContent {
		return &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "snapaccount-"},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
				Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "snapaccount-a", Name: "victim"},
			},
		}
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, err := contents.Create(w.ctx, content("ebs.csi.example"), metav1.CreateOptions{DryRun: dryRun}); err == nil {
			return "the policy is not in effect", nil
		}
		return "", nil
	}))
	_, err = contents.Create(w.ctx, content(w.provisioner), metav1.CreateOptions{DryRun: dryRun})
	w.must(err)

	made := map[string]*snapshotv1.VolumeSnapshotContent{}
	for _, driver := range []string{"ebs.csi.example", w.provisioner} {
		made[driver], err = w.client.SnapshotV1().VolumeSnapshotContents().Create(w.ctx, content(driver), metav1.CreateOptions{})
		w.must(err)
		w.Cleanup(func() {
			_ = w.client.SnapshotV1().VolumeSnapshotContents().Delete(context.Background(), made[driver].Name, metav1.DeleteOptions{})
		})
	}
	snapshot := w.take("a", "victim", "data", "")
	patchContent := func(driver, change string) error {
		_, err := contents.Patch(w.ctx, made[driver].Name, types.MergePatchType, []byte(change), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
	patchSnapshot := func(change string) error {
		_, err := account.SnapshotV1().VolumeSnapshots(snapshot.Namespace).Patch(w.ctx, snapshot.Name, types.MergePatchType, []byte(change), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
	for name, allowed := range map[string]error{
		"an annotation on a content": patchContent(w.provisioner, `{"metadata": {"annotations": {"a": "b"}}}`),
		"a class that is missing":    patchSnapshot(fmt.Sprintf(`{"spec": {"volumeSnapshotClassName": %q}}`, w.class)),
	} {
		if allowed != nil {
			t.Errorf("%s: %v, want it allowed", name, allowed)
		}
	}
	for name, forbidden := range map[string]error{
		"deleting another driver's content":     contents.Delete(w.ctx, made["ebs.csi.example"].Name, metav1.DeleteOptions{DryRun: dryRun}),
		"annotating another driver's content":   patchContent("ebs.csi.example", `{"metadata": {"annotations": {"a": "b"}}}`),
		"taking over another driver's content":  patchContent("ebs.csi.example", fmt.Sprintf(`{"spec": {"driver": %q}}`, w.provisioner)),
		"moving a content to another namespace": patchContent(w.provisioner, `{"spec": {"volumeSnapshotRef": {"namespace": "snapaccount-b"}}}`),
		"deleting a content with a snapshot":    patchContent(w.provisioner, `{"spec": {"deletionPolicy": "Delete"}}`),
		"a finalizer on a VolumeSnapshot":       patchSnapshot(`{"metadata": {"finalizers": ["example.com/stays"]}}`),
		"a label on a VolumeSnapshot":           patchSnapshot(`{"metadata": {"labels": {"a": "b"}}}`),
	} {
		if !apierrors.IsForbidden(forbidden) {
			t.Errorf("%s: %v, want it forbidden", name, forbidden)
		}
	}
}
