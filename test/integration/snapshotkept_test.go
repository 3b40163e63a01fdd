package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// keptWorld is a world whose snapshots are kept, and named again by contents that
// somebody makes.
type keptWorld struct {
	*snapshotWorld
	// driver is that of the snapshots' class.
	driver string
	// number is that of the last snapshot that was taken.
	number int
}

// newKeptWorld makes tenants that may and may not have the snapshots of tenant-b.
func newKeptWorld(t *testing.T, name string, csi bool) *keptWorld {
	t.Helper()
	options := cindersim.Options{SnapshotDelay: 200 * time.Millisecond}
	w := &keptWorld{driver: wire.DriverName}
	if csi {
		w.snapshotWorld = &snapshotWorld{world: csiWorldAt(t, name, options)}
	} else {
		w.snapshotWorld = &snapshotWorld{world: newWorld(t, name, options)}
		w.driver = w.provisioner
	}
	w.class = name + "-delete"
	for _, namespace := range []string{"b2", "c", "backup"} {
		w.must(suite.CreateNamespace(w.ctx, name+"-"+namespace, nil))
	}
	w.policy = w.change(`["`+name+`-b"]`, `["`+name+`-b", "`+name+`-b2"]`)
	w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    quota: {snapshots: 1}\n    volumeSize: {max: 10Gi}\n")
	w.policy = w.change("clusterID: cluster-"+name+"\n", "clusterID: cluster-"+name+"\naudit: {interval: 500ms, grace: 1m}\n")
	rule := "    classes:\n      - storageClasses: [\"" + name + "-lab\"]\n        backends: [lab]\n"
	if csi {
		rule += "        mode: csi\n"
	}
	w.policy += "  - name: tenant-c\n    namespaces: [\"" + name + "-c\"]\n" + rule +
		"  - name: backup\n    namespaces: [" + name + "-backup]\n    restoreAnySnapshot: true\n    quota: {gigabytes: 50, snapshots: 10}\n" + rule
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	var err error
	w.client, err = snapshotclient.NewForConfig(suite.Config)
	w.must(err)
	w.Cleanup(func() {
		if w.Failed() {
			w.Logf("the snapshot-controller said:\n%s", suite.SnapshotControllerLog())
		}
	})
	w.must(suite.InstallSnapshots(w.ctx))
	w.addClass(w.class, w.driver, snapshotv1.VolumeSnapshotContentDelete, nil)
	return w
}

// keep takes a snapshot of a claim, keeps it at Cinder, and returns its handle.
func (w *keptWorld) keep() string {
	w.Helper()
	w.number++
	name := fmt.Sprintf("taken-%d", w.number)
	w.take("b", name, "data", w.class)
	content := w.ready("b", name)
	handle := *content.Status.SnapshotHandle
	w.setPolicy(content.Name, snapshotv1.VolumeSnapshotContentRetain)
	w.remove("b", name)
	w.noSnapshot("b", name)
	// The snapshot-controller may have seen only the former policy, and deletes it, too.
	if err := w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, content.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		w.must(err)
	}
	w.noContent(content.Name)
	return handle
}

func (w *keptWorld) setPolicy(content string, policy snapshotv1.DeletionPolicy) {
	w.Helper()
	_, err := w.client.SnapshotV1().VolumeSnapshotContents().Patch(w.ctx, content, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"spec": {"deletionPolicy": %q}}`, policy)), metav1.PatchOptions{})
	w.must(err)
}

func (w *keptWorld) noSnapshot(namespace, name string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "VolumeSnapshot " + name + " is still there", err
	}))
}

func (w *keptWorld) noContent(name string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		content, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("VolumeSnapshotContent %s is still there: %+v %+v", name, content.ObjectMeta, content.Status), err
	}))
}

// again names a snapshot by a new content and a new VolumeSnapshot, as an administrator
// does, or Kubernetes' own test.
func (w *keptWorld) again(handle, namespace, name string, policy snapshotv1.DeletionPolicy, change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshot {
	w.Helper()
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: w.driver, DeletionPolicy: policy, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: w.name + "-" + namespace, Name: name},
		},
	}
	if change != nil {
		change(content)
	}
	_, err := w.client.SnapshotV1().VolumeSnapshotContents().Create(w.ctx, content, metav1.CreateOptions{})
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

// restored makes a claim from a VolumeSnapshot, and returns its volume.
func (w *keptWorld) restored(namespace, name string) (*corev1.PersistentVolume, cindersim.Volume) {
	w.Helper()
	_, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-"+namespace, "from-"+name, w.name+"-lab", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		group := snapshotv1.GroupName
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
	}))
	w.must(err)
	var pv *corev1.PersistentVolume
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).Get(w.ctx, "from-"+name, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return "the restored claim is not bound", err
		}
		pv, err = suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		return "", err
	}))
	volumes := w.sim.VolumesNamed(pv.Name)
	if len(volumes) != 1 {
		w.Fatalf("%d volumes are named %s", len(volumes), pv.Name)
	}
	return pv, volumes[0]
}

func (w *keptWorld) used(replica *harness.Replica, tenant string, count int) {
	w.Helper()
	w.metric(replica, fmt.Sprintf(`standalone_cinder_quota{name=%q,resource="snapshots",scope="tenant",type="used"} %d`, tenant, count))
}

// notReady waits a while for a VolumeSnapshot to become ready, which must not happen.
func (w *keptWorld) notReady(namespace, name string) {
	w.Helper()
	for range 10 {
		s, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		content, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, w.name+"-"+name, metav1.GetOptions{})
		w.must(err)
		isReady := func(ready *bool) bool { return ready != nil && *ready }
		if s.Status != nil && isReady(s.Status.ReadyToUse) || content.Status != nil && isReady(content.Status.ReadyToUse) {
			w.Fatalf("VolumeSnapshot %s is ready: %+v, content %+v", name, s.Status, content.Status)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestKeptSnapshotIsNamedAgain replays what Kubernetes' own test of pre-provisioned
// snapshots does, for both deletionPolicies, in the same namespace, in another one of
// the tenant, and in those of other tenants. What is ready can be restored, counts once
// where it is, and goes or stays as its policy says. What is not granted never becomes
// ready, and goes without a trace.
func TestKeptSnapshotIsNamedAgain(t *testing.T) {
	t.Parallel()
	keptSnapshotsAreNamedAgain(t, "keptnative", false)
}

// TestKeptSnapshotIsNamedAgainInModeCSI has the program's driver to itself.
func TestKeptSnapshotIsNamedAgainInModeCSI(t *testing.T) {
	keptSnapshotsAreNamedAgain(t, "keptcsi", true)
}

func keptSnapshotsAreNamedAgain(t *testing.T, name string, csi bool) {
	w := newKeptWorld(t, name, csi)
	var replica *harness.Replica
	if csi {
		replica, _ = w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))
	} else {
		replica = w.start(shortLease...)
	}
	w.claim("b", "data", "lab", "1Gi")
	claims, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	source, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claims[0].Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	for _, test := range []struct {
		namespace, tenant string
		policy            snapshotv1.DeletionPolicy
		denied            bool
	}{
		{"b", "tenant-b", snapshotv1.VolumeSnapshotContentDelete, false},
		{"b", "tenant-b", snapshotv1.VolumeSnapshotContentRetain, false},
		{"b2", "tenant-b", snapshotv1.VolumeSnapshotContentDelete, false},
		{"b2", "tenant-b", snapshotv1.VolumeSnapshotContentRetain, false},
		{"backup", "backup", snapshotv1.VolumeSnapshotContentDelete, false},
		{"backup", "backup", snapshotv1.VolumeSnapshotContentRetain, false},
		{"c", "tenant-c", snapshotv1.VolumeSnapshotContentDelete, true},
		{"c", "tenant-c", snapshotv1.VolumeSnapshotContentRetain, true},
		{"stranger", "", snapshotv1.VolumeSnapshotContentDelete, true},
	} {
		name := strings.ToLower(test.namespace + "-" + string(test.policy))
		handle := w.keep()
		w.used(replica, "tenant-b", 1)
		before := w.stored(1)[0]
		w.again(handle, test.namespace, name, test.policy, nil)
		if test.denied {
			reason := "SnapshotImportRefused"
			if test.tenant == "" {
				reason = "NoMatchingTenant"
			}
			w.event(test.namespace, name, reason, "")
			w.event("default", w.name+"-"+name, reason, "")
			w.notReady(test.namespace, name)
			w.remove(test.namespace, name)
			w.noSnapshot(test.namespace, name)
			// The snapshot-controller may not have protected the VolumeSnapshot yet, and
			// then leaves the content.
			if err := w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, w.name+"-"+name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
				w.must(err)
			}
			w.noContent(w.name + "-" + name)
			if after := w.stored(1)[0]; fmt.Sprint(after.Metadata) != fmt.Sprint(before.Metadata) {
				t.Errorf("%s: the snapshot changed from %v to %v", name, before.Metadata, after.Metadata)
			}
			w.used(replica, "tenant-b", 1)
			w.must(w.sim.RemoveSnapshot(before.ID))
			w.used(replica, "tenant-b", 0) // after an audit
			continue
		}
		content := w.ready(test.namespace, name)
		origin, err := objects.SnapshotOriginOf(content)
		w.must(err)
		if *content.Status.SnapshotHandle != handle || origin.Tenant != test.tenant || origin.StorageClass != w.name+"-lab" || *content.Status.RestoreSize != 1<<30 {
			t.Errorf("%s: the content records %+v, status %+v", name, origin, content.Status)
		}
		for tenant, count := range map[string]int{"tenant-b": 0, "backup": 0, test.tenant: 1} {
			w.used(replica, tenant, count)
		}
		pv, volume := w.restored(test.namespace, name)
		if volume.SnapshotID != before.ID {
			t.Errorf("%s: the restored volume is %+v", name, volume)
		}
		if csi && (pv.Spec.CSI.VolumeAttributes["filesystemUUIDs"] != source.Annotations[objects.AnnotationVolume] || pv.Spec.CSI.VolumeAttributes["neverFormat"] != "") {
			t.Errorf("%s: the restored volume has the attributes %v", name, pv.Spec.CSI.VolumeAttributes)
		}
		w.must(suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+test.namespace).Delete(w.ctx, "from-"+name, metav1.DeleteOptions{}))
		w.remove(test.namespace, name)
		w.noSnapshot(test.namespace, name)
		if test.policy == snapshotv1.VolumeSnapshotContentRetain {
			w.stored(1)
			w.used(replica, test.tenant, 1)
			// As the cleanup of Kubernetes' test does.
			w.setPolicy(content.Name, snapshotv1.VolumeSnapshotContentDelete)
			w.must(w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, content.Name, metav1.DeleteOptions{}))
		}
		w.noContent(content.Name)
		w.stored(0)
		w.used(replica, test.tenant, 0)
	}
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.noResidue()
}

// TestMistakesWithKeptSnapshots: an administrator names a snapshot that somebody has, twice,
// by a wrong handle, in a copy of another content, or an earlier version has called a
// content ready. Beside the real csi-snapshotter, each is told, nothing is lost, and
// everything can be deleted.
//
//tier:outage
func TestMistakesWithKeptSnapshots(t *testing.T) {
	w := newKeptWorld(t, "keptmistakes", true)
	replica, _ := w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))
	w.claim("b", "data", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	const del = snapshotv1.VolumeSnapshotContentDelete
	contents := w.client.SnapshotV1().VolumeSnapshotContents()
	end := func(namespace, name string) {
		t.Helper()
		if err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+namespace).Delete(w.ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			w.must(err)
		}
		w.noSnapshot(namespace, name)
		if err := contents.Delete(w.ctx, w.name+"-"+name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			w.must(err)
		}
		w.noContent(w.name + "-" + name)
	}
	told := func(namespace, name, reason, text string) {
		t.Helper()
		w.event(namespace, name, reason, text)
		w.event("default", w.name+"-"+name, reason, text)
		w.notReady(namespace, name)
	}

	// Somebody has it.
	w.take("b", "owner", "data", w.class)
	handle := *w.ready("b", "owner").Status.SnapshotHandle
	w.again(handle, "b2", "early", del, nil)
	told("b2", "early", "SnapshotImportRefused", "which exists; to free the snapshot, set its deletionPolicy to Retain")
	end("b2", "early")
	w.stored(1)
	owner := w.ready("b", "owner")
	w.again(handle, "b2", "late", del, nil)
	told("b2", "late", "SnapshotImportRefused", "belongs to VolumeSnapshotContent "+owner.Name)
	// It is kept, and the one that waits gets it as soon as it is free.
	w.setPolicy(owner.Name, snapshotv1.VolumeSnapshotContentRetain)
	w.remove("b", "owner")
	w.noSnapshot("b", "owner")
	if err := contents.Delete(w.ctx, owner.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		w.must(err)
	}
	w.noContent(owner.Name)
	w.ready("b2", "late")
	w.used(replica, "tenant-b", 1)

	// Two contents name it: neither deletion removes it while the other one does.
	w.again(handle, "b", "second", del, nil)
	told("b", "second", "SnapshotImportRefused", "belongs to VolumeSnapshotContent "+w.name+"-late")
	w.remove("b2", "late")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		content, err := contents.Get(w.ctx, w.name+"-late", metav1.GetOptions{})
		if err == nil && content.DeletionTimestamp == nil {
			return "the content is not deleted", nil
		}
		return "", err
	}))
	time.Sleep(time.Second) // the sidecar asks
	w.stored(1)
	end("b", "second")
	w.noSnapshot("b2", "late")
	w.noContent(w.name + "-late")
	w.stored(0)
	w.used(replica, "tenant-b", 0)

	// Both at the same moment.
	handle = w.keep()
	w.again(handle, "b", "one", del, nil)
	w.again(handle, "b2", "other", del, nil)
	var winner, loser [2]string
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, pair := range [][2][2]string{{{"b", "one"}, {"b2", "other"}}, {{"b2", "other"}, {"b", "one"}}} {
			s, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-"+pair[0][0]).Get(w.ctx, pair[0][1], metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse {
				winner, loser = pair[0], pair[1]
				return "", nil
			}
		}
		return "neither is ready", nil
	}))
	w.notReady(loser[0], loser[1])
	w.used(replica, "tenant-b", 1)
	end(loser[0], loser[1])
	w.stored(1)
	w.ready(winner[0], winner[1])
	end(winner[0], winner[1])
	w.stored(0)
	w.used(replica, "tenant-b", 0)

	// A wrong handle, and one of another form.
	w.again("lab/00000000-0000-4000-8000-000000000000", "b", "nothing", del, nil)
	w.event("b", "nothing", "SnapshotImportRefused", "has kept no snapshot with the ID")
	w.event("default", w.name+"-nothing", "SnapshotImportRefused", "the projects of the backends have no snapshot with this ID: lab")
	end("b", "nothing")
	handle = w.keep()
	w.again(strings.TrimPrefix(handle, "lab/"), "b", "bare", del, nil)
	told("b", "bare", "SnapshotImportRefused", "is not <backend>/<ID at Cinder>")
	end("b", "bare")
	w.again("gold/"+strings.TrimPrefix(handle, "lab/"), "b", "elsewhere", del, nil)
	w.event("default", w.name+"-elsewhere", "SnapshotImportRefused", "backend gold is not one that the policy grants tenant tenant-b here: lab")
	end("b", "elsewhere")
	w.stored(1)

	// A backup program copies all annotations of a content, in a namespace that may not
	// have the snapshot, and then in one that may restore any.
	w.again(handle, "b", "backed-up", snapshotv1.VolumeSnapshotContentRetain, nil)
	annotations := w.ready("b", "backed-up").Annotations
	end("b", "backed-up")
	copied := func(content *snapshotv1.VolumeSnapshotContent) { content.Annotations = annotations }
	w.again(handle, "c", "stolen", del, copied)
	w.event("c", "stolen", "ImportNotGranted", "tenant tenant-c has kept no snapshot")
	w.notReady("c", "stolen")
	w.used(replica, "tenant-b", 1)
	end("c", "stolen")
	w.again(handle, "backup", "moved", del, copied)
	w.ready("backup", "moved")
	w.used(replica, "backup", 1)
	w.used(replica, "tenant-b", 0)
	end("backup", "moved")
	w.stored(0)
	w.used(replica, "backup", 0)

	// An earlier version has called it ready.
	handle = w.keep()
	for _, namespace := range []string{"c", "b"} {
		name := "earlier-" + namespace
		w.again(handle, namespace, name, del, nil)
		_, err := contents.Patch(w.ctx, w.name+"-"+name, types.MergePatchType,
			fmt.Appendf(nil, `{"status": {"snapshotHandle": %q, "creationTime": 1, "restoreSize": %d, "readyToUse": true, "error": null}}`, handle, 1<<30), metav1.PatchOptions{}, "status")
		w.must(err)
		if namespace == "c" {
			w.event("c", name, "SnapshotImportRefused", "has kept no snapshot with the ID")
			end("c", name)
			w.stored(1)
			continue
		}
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			content, err := contents.Get(w.ctx, w.name+"-"+name, metav1.GetOptions{})
			if err == nil && (!objects.IsSnapshotRecorded(content) || !objects.IsSnapshotReady(content)) {
				return "the content does not have the snapshot", nil
			}
			return "", err
		}))
		if pv, volume := w.restored("b", name); "lab/"+volume.SnapshotID != handle {
			t.Errorf("PersistentVolume %s is made from %s", pv.Name, volume.SnapshotID)
		}
		w.must(suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Delete(w.ctx, "from-"+name, metav1.DeleteOptions{}))
		end("b", name)
		w.stored(0)
	}
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.noResidue()
}
