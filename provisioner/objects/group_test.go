package objects

import (
	"maps"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestRecordOfAGroup: what its content records is what the contents of its snapshots get,
// under the names by which the snapshot-controller makes those.
func TestRecordOfAGroup(t *testing.T) {
	group := GroupOrigin{Content: GroupContentName("g1"), Namespace: "team-a", Name: "db", UID: "g1", Consistency: policy.NotConsistent}
	for _, volume := range []string{"v1", "v2"} {
		m := group.NewMember(volume)
		m.VolumeID, m.Backend, m.Place, m.Tenant, m.Cluster, m.StorageClass = volume, "gold", cinder.NewPlace("http://cinder:8776/v3", "p1"), "a", "cluster-1", "fast"
		m.NeverFormat, m.Encrypted, m.FilesystemUUIDs = volume == "v2", "c1", []string{"6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"}
		group.Members = append(group.Members, m)
	}
	content := NewGroupContent(group, &groupv1.VolumeGroupSnapshotClass{Driver: "test"})
	read, err := GroupOriginOf(content)
	if err != nil || len(read.Members) != 2 || read.UID != "g1" || read.Consistency != policy.NotConsistent {
		t.Fatalf("read back is %+v (%v)", read, err)
	}
	for i, m := range read.Members {
		made := m.NewMemberContent(content, nil)
		if GroupOf(made) != "g1" || made.Name != "snapcontent-"+string(m.UID) || m.Name != "snapshot-"+string(m.UID) {
			t.Errorf("the member's content is %+v", made)
		}
		made.Spec.VolumeSnapshotRef.UID = "of the VolumeSnapshot"
		origin, err := SnapshotOriginOf(made)
		if err != nil || !maps.Equal(origin.Annotations(), group.Members[i].Annotations()) || origin.UID != m.UID || origin.Group != "g1" {
			t.Errorf("the member's content records %+v (%v)", origin, err)
		}
		s := cinder.Snapshot{Metadata: origin.Stamp().Metadata(nil)}
		if stamp := stamps.OfSnapshot(s); !m.Stamp().Owns(s) || stamp.Group != "g1" || SnapshotContentName(MemberUID("g1", m.VolumeHandle)) != stamp.Content {
			t.Errorf("the stamp is %+v", stamp)
		}
	}
	empty := content.DeepCopy()
	if empty.Spec.Source.VolumeHandles = nil; IsGroupRecorded(empty) {
		if read, err := GroupOriginOf(empty); err == nil {
			t.Errorf("a group of nothing is read as %+v", read)
		}
	}
	for name, change := range map[string]func(*snapshotv1.VolumeSnapshotContent){
		"of another group":   func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[AnnotationGroupHandle] = GroupHandle("g2") },
		"of another volume":  func(c *snapshotv1.VolumeSnapshotContent) { *c.Spec.Source.VolumeHandle = "v3" },
		"for an existing":    func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Source.VolumeHandle = nil },
		"of no group at all": func(c *snapshotv1.VolumeSnapshotContent) { delete(c.Annotations, AnnotationGroupHandle) },
	} {
		made := read.Members[0].NewMemberContent(content, nil)
		if change(made); GroupOf(made) != "" {
			t.Errorf("a content %s counts as one of the group", name)
		}
	}
}
