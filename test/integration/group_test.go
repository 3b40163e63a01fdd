package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
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

// groupWorld is a world with VolumeGroupSnapshots of the claims data and log of tenant b.
type groupWorld struct {
	*snapshotWorld
	mode, driver, consistency string
}

// TestGroupSnapshotsOfClaims: the leader dies while Cinder takes the snapshots of a group,
// and the next goes on, or takes all anew. They count before the first request, all or none. Each can be
// restored, none can be deleted alone, and they go with the group. Those that are kept can
// be taken up by their tenant, and by no other.
func TestGroupSnapshotsOfClaims(t *testing.T) {
	// Nothing is to be frozen, since no node has the volumes; but what the leader that died has
	// taken must not be used.
	for _, test := range []struct{ mode, consistency string }{{"native", "none"}, {"csi", "filesystem"}, {"native", "array"}, {"csi", "array"}} {
		mode := test.mode
		t.Run(mode+" "+test.consistency, func(t *testing.T) {
			t.Parallel()
			options := cindersim.Options{CreateDelay: 100 * time.Millisecond, DeleteDelay: 100 * time.Millisecond, SnapshotDelay: time.Second}
			name := "group-" + mode + "-" + test.consistency
			w := &groupWorld{&snapshotWorld{}, mode, "test.example/" + name, test.consistency}
			if mode == "csi" {
				w.world, w.driver = csiWorldAt(t, name, options), wire.DriverName
				w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
			} else {
				w.world = newWorld(t, name, options)
				w.must(suite.AllowGroups(w.ctx, w.provisioner))
			}
			w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    quota: {snapshots: 3}\n    volumeSize: {max: 10Gi}\n")
			w.policy = w.change("        backends: [lab]\n", "        backends: [lab]\n        groups: true\n")
			var err error
			w.client, err = snapshotclient.NewForConfig(suite.Config)
			w.must(err)
			w.must(suite.InstallSnapshots(w.ctx))
			w.Cleanup(func() {
				if w.Failed() {
					w.Logf("the snapshot-controller said:\n%s", suite.SnapshotControllerLog())
				}
			})
			w.addGroupClass("delete", snapshotv1.VolumeSnapshotContentDelete)
			w.addGroupClass("retain", snapshotv1.VolumeSnapshotContentRetain)
			kill := w.lead()
			for _, claim := range []string{"data", "log", "other"} {
				_, err := suite.CreateClaim(w.ctx, harness.Claim(name+"-b", claim, w.storageClass(), "1Gi", func(c *corev1.PersistentVolumeClaim) {
					if claim != "other" {
						c.Labels = map[string]string{"app": "db"}
					}
				}))
				w.must(err)
			}
			volumes := map[string]cindersim.Volume{}
			for _, claim := range []string{"data", "log", "other"} {
				volumes[claim] = w.volume(claim)
			}

			one := w.group("b", "one", "delete")
			w.stored(2)
			kill()
			kill = w.lead()
			content, members := w.grouped(one)
			w.membersAre(one, content, members, volumes)

			two := w.group("b", "two", "delete")
			const exceeded = "tenant tenant-b would use 4 of 3 snapshots"
			if mode == "native" {
				w.event("b", "two", "QuotaExceeded", exceeded)
			} else {
				w.contentRefused(objects.GroupContentName(two.UID), exceeded)
			}
			w.stored(2)
			w.removeGroup(two)
			w.groupGone(two)

			_, err = suite.CreateClaim(w.ctx, harness.Claim(name+"-b", "restored", w.storageClass(), "2Gi", func(claim *corev1.PersistentVolumeClaim) {
				group := snapshotv1.GroupName
				claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: members["log"].Name}
			}))
			w.must(err)
			if made := w.volume("restored"); made.SnapshotID != w.idOf(members["log"]) || made.SizeGiB != 2 {
				t.Errorf("the restored volume is %+v", made)
			}

			w.strangerGets(one, content)
			w.stored(2)

			w.must(w.client.SnapshotV1().VolumeSnapshots(name+"-b").Delete(w.ctx, members["data"].Name, metav1.DeleteOptions{}))
			w.event("b", members["data"].Name, "SnapshotDeletePending", "is not allowed as it belongs to group snapshot")
			w.stored(2)
			w.removeGroup(one)
			w.groupGone(one)
			w.stored(0)
			w.noGroups()

			kept := w.group("b", "kept", "retain")
			content, members = w.grouped(kept)
			w.removeGroup(kept)
			w.takeUp(content, members)
			w.stored(0)
			w.noGroups()
			w.clean()
			kill()
		})
	}
}

func (w *groupWorld) storageClass() string {
	if w.mode == "csi" {
		return w.name + "-driver"
	}
	return w.name + "-lab"
}

// lead starts a replica, with the real csi-snapshotter in mode csi.
func (w *groupWorld) lead() (kill func()) {
	if w.mode == "native" {
		return w.start(shortLease...).Kill
	}
	replica, sidecars := w.startBeside(shortLease, suite.Snapshotter(w.ctx, w.provisioner))
	return func() { replica.Kill(); sidecars[0].Stop() }
}

// volume returns the volume of a claim of tenant b.
func (w *groupWorld) volume(claim string) cindersim.Volume {
	w.Helper()
	if w.mode == "native" {
		_, v := w.boundVolume("b", claim)
		return v
	}
	_, v := w.madeFor(claim)
	return v
}

func (w *groupWorld) addGroupClass(name string, policy snapshotv1.DeletionPolicy) {
	w.Helper()
	parameters := map[string]string{"consistency": w.consistency}
	if w.consistency == "array" {
		parameters["groupType"] = "consistent"
	}
	class := &groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name}, Driver: w.driver, DeletionPolicy: policy, Parameters: parameters}
	_, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotClasses().Create(w.ctx, class, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = w.client.GroupsnapshotV1().VolumeGroupSnapshotClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{})
	})
}

// noGroups checks that no group is left at Cinder.
func (w *groupWorld) noGroups() {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if left := w.sim.Groups(); len(left) > 0 {
			return fmt.Sprintf("groups are left: %+v", left), nil
		}
		return "", nil
	}))
}

// group creates a VolumeGroupSnapshot of the claims with the label.
func (w *groupWorld) group(namespace, name, class string) *groupv1.VolumeGroupSnapshot {
	w.Helper()
	class = w.name + "-" + class
	made, err := w.client.GroupsnapshotV1().VolumeGroupSnapshots(w.name+"-"+namespace).Create(w.ctx, &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: groupv1.VolumeGroupSnapshotSpec{
			VolumeGroupSnapshotClassName: &class,
			Source:                       groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	return made
}

// grouped waits until a VolumeGroupSnapshot and its VolumeSnapshots are ready. It returns
// its content and the VolumeSnapshots by their claims.
func (w *groupWorld) grouped(of *groupv1.VolumeGroupSnapshot) (content *groupv1.VolumeGroupSnapshotContent, members map[string]*snapshotv1.VolumeSnapshot) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		group, err := w.client.GroupsnapshotV1().VolumeGroupSnapshots(of.Namespace).Get(w.ctx, of.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if group.Status == nil || group.Status.ReadyToUse == nil || !*group.Status.ReadyToUse {
			return fmt.Sprintf("VolumeGroupSnapshot %s is not ready: %+v", of.Name, group.Status), nil
		}
		if content, err = w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, *group.Status.BoundVolumeGroupSnapshotContentName, metav1.GetOptions{}); err != nil {
			return "", err
		}
		all, err := w.client.SnapshotV1().VolumeSnapshots(of.Namespace).List(w.ctx, metav1.ListOptions{})
		members = map[string]*snapshotv1.VolumeSnapshot{}
		for i, s := range all.Items {
			if owner := objects.OwnerGroup(s.OwnerReferences); owner == nil || owner.UID != of.UID {
				continue
			}
			if s.Status == nil || s.Status.ReadyToUse == nil || !*s.Status.ReadyToUse || s.Status.VolumeGroupSnapshotName == nil {
				return fmt.Sprintf("VolumeSnapshot %s is not ready: %+v", s.Name, s.Status), err
			}
			members[*s.Spec.Source.PersistentVolumeClaimName] = &all.Items[i]
		}
		if len(members) != 2 || members["data"] == nil || members["log"] == nil {
			return fmt.Sprintf("the VolumeSnapshots are %v", members), err
		}
		return "", err
	}))
	return content, members
}

func (w *groupWorld) memberContent(of *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotContent {
	w.Helper()
	content, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, *of.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	w.must(err)
	return content
}

func (w *groupWorld) idOf(member *snapshotv1.VolumeSnapshot) string {
	w.Helper()
	return objects.SnapshotHandleOf(w.memberContent(member))
}

// membersAre checks what Cinder has, and what the contents record, of a group.
func (w *groupWorld) membersAre(of *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent, members map[string]*snapshotv1.VolumeSnapshot, volumes map[string]cindersim.Volume) {
	w.Helper()
	if origin, err := objects.GroupOriginOf(content); err != nil || len(origin.Members) != 2 || origin.UID != of.UID {
		w.Errorf("the content records %+v (%v)", origin, err)
	}
	stored := w.stored(2)
	for _, g := range w.sim.Groups() {
		if w.consistency != "array" || len(g.Volumes) > 0 || len(g.Snapshots) != 1 {
			w.Errorf("Cinder has the group %+v", g)
		}
	}
	for claim, member := range members {
		var origin objects.SnapshotOrigin
		w.must(harness.Eventually(w.ctx, func() (problem string, err error) {
			if origin, err = objects.SnapshotOriginOf(w.memberContent(member)); err != nil {
				problem = err.Error()
			}
			return problem, nil
		}))
		i := slices.IndexFunc(stored, func(s cindersim.Snapshot) bool { return s.ID == origin.SnapshotID })
		if origin.VolumeID != volumes[claim].ID || origin.Tenant != "tenant-b" || origin.Group != of.UID || i < 0 {
			w.Errorf("the content of claim %s records %+v, Cinder has %+v", claim, origin, stored)
			continue
		}
		if s := stored[i]; s.VolumeID != volumes[claim].ID || s.Metadata[annotation("group-uid")] != string(of.UID) || s.Metadata[annotation("recorded")] != "true" || s.Metadata[annotation("snapshot-uid")] != string(origin.UID) {
			w.Errorf("the snapshot of claim %s is %+v", claim, s)
		}
	}
}

func (w *groupWorld) removeGroup(of *groupv1.VolumeGroupSnapshot) {
	w.Helper()
	w.must(w.client.GroupsnapshotV1().VolumeGroupSnapshots(of.Namespace).Delete(w.ctx, of.Name, metav1.DeleteOptions{}))
}

// groupGone waits until nothing of a group is left in Kubernetes.
func (w *groupWorld) groupGone(of *groupv1.VolumeGroupSnapshot) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := w.client.GroupsnapshotV1().VolumeGroupSnapshots(of.Namespace).Get(w.ctx, of.Name, metav1.GetOptions{})
		content, contentErr := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, objects.GroupContentName(of.UID), metav1.GetOptions{})
		all, listErr := w.client.SnapshotV1().VolumeSnapshots(of.Namespace).List(w.ctx, metav1.ListOptions{})
		contents, contentsErr := w.client.SnapshotV1().VolumeSnapshotContents().List(w.ctx, metav1.ListOptions{})
		if listErr != nil || contentsErr != nil {
			return "", fmt.Errorf("%w, %w", listErr, contentsErr)
		}
		var left []string
		for _, s := range all.Items {
			if owner := objects.OwnerGroup(s.OwnerReferences); owner != nil && owner.UID == of.UID {
				left = append(left, fmt.Sprintf("VolumeSnapshot %s %+v", s.Name, s.ObjectMeta))
			}
		}
		for i := range contents.Items {
			if objects.GroupOf(&contents.Items[i]) == of.UID {
				left = append(left, fmt.Sprintf("content %s %+v", contents.Items[i].Name, contents.Items[i].ObjectMeta))
			}
		}
		if apierrors.IsNotFound(err) && apierrors.IsNotFound(contentErr) && len(left) == 0 {
			return "", nil
		}
		return fmt.Sprintf("VolumeGroupSnapshot: %v; content: %+v, %v; left: %s", err, content.ObjectMeta, contentErr, left), nil
	}))
}

// handMade makes a VolumeGroupSnapshot for existing snapshots.
func (w *groupWorld) handMade(namespace, name string, handles []string) *groupv1.VolumeGroupSnapshot {
	w.Helper()
	namespace, content := w.name+"-"+namespace, w.name+"-"+name
	_, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Create(w.ctx, &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: content},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: w.driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: namespace, Name: name},
			Source: groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: content, VolumeSnapshotHandles: handles}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	made, err := w.client.GroupsnapshotV1().VolumeGroupSnapshots(namespace).Create(w.ctx, &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       groupv1.VolumeGroupSnapshotSpec{Source: groupv1.VolumeGroupSnapshotSource{VolumeGroupSnapshotContentName: &content}},
	}, metav1.CreateOptions{})
	w.must(err)
	return made
}

// contentRefused waits until the csi-snapshotter tells why. The reason of its event depends on
// how often it has asked.
func (w *groupWorld) contentRefused(name, why string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		now, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there is no content " + name, nil
		}
		if err != nil || now.Status != nil && now.Status.Error != nil && strings.Contains(*now.Status.Error.Message, why) {
			return "", err
		}
		return fmt.Sprintf("the content is not refused: %+v", now.Status), nil
	}))
}

// free removes a content if it is not being deleted soon after its VolumeGroupSnapshot: the
// snapshot-controller deletes it, and has the csi-snapshotter free it, only if it had bound it.
func (w *groupWorld) free(name string) {
	w.Helper()
	if w.mode == "native" {
		return // our own controller has no such excuse
	}
	contents := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents()
	var err error
	for range 50 {
		if _, err = contents.Get(w.ctx, name, metav1.GetOptions{}); err != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err == nil {
		if err = contents.Delete(w.ctx, name, metav1.DeleteOptions{}); err == nil {
			_, err = contents.Patch(w.ctx, name, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
		}
	}
	if !apierrors.IsNotFound(err) {
		w.must(err)
	}
}

// handMadeGone deletes what handMade made, and waits until it is gone.
func (w *groupWorld) handMadeGone(of *groupv1.VolumeGroupSnapshot) {
	w.Helper()
	w.removeGroup(of)
	w.free(*of.Spec.Source.VolumeGroupSnapshotContentName)
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	began := time.Now()
	w.must(harness.Eventually(ctx, func() (string, error) {
		groups := w.client.GroupsnapshotV1().VolumeGroupSnapshots(of.Namespace)
		_, err := groups.Get(w.ctx, of.Name, metav1.GetOptions{})
		if err == nil && w.mode != "native" && time.Since(began) > 20*time.Second {
			// The snapshot-controller may have missed that the content has gone.
			_, err = groups.Patch(w.ctx, of.Name, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
		}
		content, contentErr := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, *of.Spec.Source.VolumeGroupSnapshotContentName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && apierrors.IsNotFound(contentErr) {
			return "", nil
		}
		return fmt.Sprintf("VolumeGroupSnapshot: %v; content: %+v, %v", err, content.ObjectMeta, contentErr), nil
	}))
}

// strangerGets lets an administrator give a group's snapshots, and then its volumes, to
// another tenant: neither works, and nothing is deleted.
func (w *groupWorld) strangerGets(one *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) {
	w.Helper()
	var handles []string
	for _, info := range content.Status.VolumeSnapshotInfoList {
		handles = append(handles, info.SnapshotHandle)
	}
	stolen := w.handMade("a", "stolen", handles)
	const missing = "has no snapshot"
	if w.mode == "native" {
		w.event("a", "stolen", "GroupMemberMissing", missing)
	} else {
		w.contentRefused(w.name+"-stolen", missing)
	}
	w.handMadeGone(stolen)
	if w.mode == "native" {
		w.orphanGoes(content)
		return
	}
	owner := w.group("a", "owner", "delete") // it selects nothing
	class := w.name + "-delete"
	_, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Create(w.ctx, &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: objects.GroupContentName(owner.UID)},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: w.driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeGroupSnapshotClassName: &class,
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID},
			Source:                 groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: content.Spec.Source.VolumeHandles},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	w.contentRefused(objects.GroupContentName(owner.UID), "is not bound to a claim in namespace "+owner.Namespace)
	w.removeGroup(owner)
	w.free(objects.GroupContentName(owner.UID))
	w.groupGone(owner)
}

// orphanGoes makes a content as a leader does that dies just when the VolumeGroupSnapshot is
// deleted: nobody else would ever delete it.
func (w *groupWorld) orphanGoes(like *groupv1.VolumeGroupSnapshotContent) {
	w.Helper()
	of, err := objects.GroupOriginOf(like)
	w.must(err)
	orphan := objects.GroupOrigin{Content: objects.GroupContentName("gone"), Namespace: of.Namespace, Name: "gone", UID: "gone"}
	m := orphan.NewMember(of.Members[0].VolumeHandle)
	m.VolumeID, m.Backend, m.Place, m.Tenant, m.Cluster, m.StorageClass = of.Members[0].VolumeID, "lab", of.Members[0].Place, "tenant-b", of.Members[0].Cluster, of.Members[0].StorageClass
	orphan.Members = []objects.Member{m}
	made := objects.NewGroupContent(orphan, &groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-delete"}, Driver: w.driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete})
	_, err = w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Create(w.ctx, made, metav1.CreateOptions{})
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		left, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, made.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("the content whose group is gone is left: %+v", left.ObjectMeta), err
	}))
}

// takeUp gives the snapshots that a group left behind to new VolumeSnapshots, and those to
// a new group. They go with the VolumeSnapshots.
func (w *groupWorld) takeUp(content *groupv1.VolumeGroupSnapshotContent, members map[string]*snapshotv1.VolumeSnapshot) {
	w.Helper()
	var handles []string
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, member := range members {
			if _, err := w.client.SnapshotV1().VolumeSnapshots(member.Namespace).Get(w.ctx, member.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("VolumeSnapshot %s is there: %v", member.Name, err), nil
			}
		}
		return "", nil
	}))
	w.must(w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Delete(w.ctx, content.Name, metav1.DeleteOptions{}))
	for _, member := range members {
		left := w.memberContent(member)
		handles = append(handles, *left.Status.SnapshotHandle)
		w.must(w.client.SnapshotV1().VolumeSnapshotContents().Delete(w.ctx, left.Name, metav1.DeleteOptions{}))
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		group, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, content.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the group's content is there: %+v, %v", group.ObjectMeta, err), nil
		}
		for _, member := range members {
			if left, err := w.client.SnapshotV1().VolumeSnapshotContents().Get(w.ctx, *member.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("a content is there: %+v, %v", left.ObjectMeta, err), nil
			}
		}
		return "", nil
	}))
	w.stored(2)
	again := w.handMade("b", "again", handles)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		group, err := w.client.GroupsnapshotV1().VolumeGroupSnapshots(again.Namespace).Get(w.ctx, again.Name, metav1.GetOptions{})
		if err == nil && (group.Status == nil || group.Status.ReadyToUse == nil || !*group.Status.ReadyToUse) {
			return fmt.Sprintf("VolumeGroupSnapshot %s is not ready: %+v", again.Name, group.Status), nil
		}
		return "", err
	}))
	var uids []types.UID
	for i, handle := range handles {
		name := fmt.Sprintf("again-%d", i)
		made, err := w.client.SnapshotV1().VolumeSnapshotContents().Create(w.ctx, &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: w.driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotRef: corev1.ObjectReference{Namespace: w.name + "-b", Name: name},
				Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
			},
		}, metav1.CreateOptions{})
		w.must(err)
		s, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-b").Create(w.ctx, &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &made.Name}},
		}, metav1.CreateOptions{})
		w.must(err)
		uids = append(uids, s.UID)
		w.ready("b", name)
	}
	w.handMadeGone(again)
	w.stored(2)
	for i, uid := range uids {
		w.remove("b", fmt.Sprintf("again-%d", i))
		w.gone("b", fmt.Sprintf("again-%d", i), uid)
	}
}
