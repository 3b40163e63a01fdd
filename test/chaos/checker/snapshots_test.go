package checker

import (
	"slices"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// withSnapshots returns a sound state with a snapshot that is ready, another
// cluster's snapshot, and a VolumeSnapshot that cannot be ready, with the reason.
func withSnapshots() State {
	s := sound()
	s.Snapshots = []cindersim.Snapshot{
		{ID: "s1", Name: "snapshot-1", Status: available, VolumeID: "v1", Metadata: map[string]string{StampCluster: cluster, stampContent: "snapcontent-1"}},
		{ID: "s2", Name: "snapshot-2", Status: available, VolumeID: "f1", Metadata: map[string]string{StampCluster: "another", stampContent: "snapcontent-2"}},
	}
	s.Contents = []SnapshotContent{{Name: "snapcontent-1", SnapshotID: "s1", VolumeID: "v1"}}
	s.VolumeSnapshots = []VolumeSnapshot{
		{Namespace: "a", Name: "snap-1", Content: "snapcontent-1", VolumeID: "v1", Ready: true},
		{Namespace: "a", Name: "snap-3", Content: "snapcontent-3", Explained: true},
	}
	s.Snapshots = append(s.Snapshots, cindersim.Snapshot{ID: "s4", Name: "snapshot-4", Status: available, VolumeID: "v1", Metadata: map[string]string{StampCluster: cluster, stampContent: "snapcontent-4", stampGroup: "g1"}})
	s.Backups = []cindersim.Backup{
		{ID: "b5", Name: "snapshot-5", Status: available, VolumeID: "v1", Metadata: map[string]string{StampCluster: cluster, stampContent: "snapcontent-5"}},
		{ID: "b6", Name: "snapshot-6", Status: available, VolumeID: "f1", Metadata: map[string]string{StampCluster: "another"}},
	}
	s.Contents = append(s.Contents, SnapshotContent{Name: "snapcontent-4", SnapshotID: "s4", VolumeID: "v1"}, SnapshotContent{Name: "snapcontent-5", SnapshotID: "backup:b5", VolumeID: "v1"})
	s.VolumeSnapshots = append(s.VolumeSnapshots, VolumeSnapshot{Namespace: "a", Name: "snapshot-4", Content: "snapcontent-4", VolumeID: "v1", Ready: true}, VolumeSnapshot{Namespace: "a", Name: "snap-5", Content: "snapcontent-5", VolumeID: "v1", Ready: true})
	s.Groups = []Group{{Namespace: "a", Name: "all", UID: "g1", Content: "groupsnapcontent-g1", VolumeID: "v1", Ready: true, Members: []GroupMember{{"s4", "v1", true}}}}
	s.GroupContents = []GroupContent{{"groupsnapcontent-g1", "v1"}}
	return s
}

func TestEndingFindsWhatIsPlantedAmongSnapshots(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(*State)
		want  []Finding
	}{
		{"nothing", func(*State) {}, nil},
		{"a snapshot that is not ready yet", func(s *State) {
			s.Contents[0].SnapshotID, s.VolumeSnapshots[0].Ready, s.VolumeSnapshots[0].Explained = "", false, true
		}, nil},
		{"a leaked snapshot", func(s *State) { s.Contents, s.VolumeSnapshots = s.Contents[1:], s.VolumeSnapshots[1:] },
			[]Finding{{LeakedSnapshot, "snapshot s1 (snapshot-1, available)", "VolumeSnapshotContent snapcontent-1 does not exist", "v1", ""}}},
		{"a second snapshot", func(s *State) {
			second := s.Snapshots[0]
			second.ID = "s9"
			s.Snapshots = append(s.Snapshots, second)
		}, []Finding{{LeakedSnapshot, "snapshot s9 (snapshot-1, available)", "VolumeSnapshotContent snapcontent-1 names snapshot s1", "v1", ""}}},
		{"a lost snapshot", func(s *State) { s.Snapshots = s.Snapshots[1:] },
			[]Finding{{LostSnapshot, "VolumeSnapshotContent snapcontent-1", "snapshot s1 does not exist", "v1", ""}}},
		{"a snapshot that was wrongly deleted", func(s *State) { s.Snapshots, s.Contents = s.Snapshots[1:], s.Contents[1:] },
			[]Finding{{LostSnapshot, "VolumeSnapshot a/snap-1", "is ready and VolumeSnapshotContent snapcontent-1 is gone", "v1", ""}}},
		{"a content that does not go", func(s *State) { s.VolumeSnapshots = s.VolumeSnapshots[1:] },
			[]Finding{{Stuck, "VolumeSnapshotContent snapcontent-1", "its VolumeSnapshot is gone and it is still there", "v1", ""}}},
		{"a VolumeSnapshot that does not go", func(s *State) { s.VolumeSnapshots[0].Asked = true },
			[]Finding{{Stuck, "VolumeSnapshot a/snap-1", "is deleted and does not go", "v1", ""}}},
		{"a VolumeSnapshot that waits in silence", func(s *State) { s.VolumeSnapshots[1].Explained = false },
			[]Finding{{Stuck, "VolumeSnapshot a/snap-3", "is not ready and nothing says why", "", ""}}},
		{"a leaked backup", func(s *State) { s.Contents, s.VolumeSnapshots = s.Contents[:2], s.VolumeSnapshots[:3] },
			[]Finding{{LeakedBackup, "backup b5 (snapshot-5, available)", "VolumeSnapshotContent snapcontent-5 does not exist", "v1", ""}}},
		{"a second backup", func(s *State) { s.Backups = append(s.Backups, s.Backups[0]); s.Backups[0].ID = "b9" },
			[]Finding{{LeakedBackup, "backup b9 (snapshot-5, available)", "VolumeSnapshotContent snapcontent-5 names backup:b5", "v1", ""}}},
		{"a lost backup", func(s *State) { s.Backups = s.Backups[1:] },
			[]Finding{{LostSnapshot, "VolumeSnapshotContent snapcontent-5", "snapshot backup:b5 does not exist", "v1", ""}}},
		{"a snapshot that a backup has left", func(s *State) {
			left := s.Snapshots[0]
			left.ID, left.Metadata = "s9", map[string]string{StampCluster: cluster, stampContent: "snapcontent-5"}
			s.Snapshots = append(s.Snapshots, left)
		}, []Finding{{LeakedSnapshot, "snapshot s9 (snapshot-1, available)", "VolumeSnapshotContent snapcontent-5 names snapshot backup:b5", "v1", ""}}},
		{"a group whose snapshots are being taken", func(s *State) {
			s.Groups[0].Ready, s.Groups[0].Explained, s.Groups[0].Members[0] = false, true, GroupMember{"", "v1", false}
			s.Contents = slices.Delete(s.Contents, 1, 2)
			s.VolumeSnapshots = slices.Delete(s.VolumeSnapshots, 2, 3)
		}, nil},
		{"what a group has left", func(s *State) {
			s.Groups, s.GroupContents, s.Contents, s.VolumeSnapshots = nil, nil, slices.Delete(s.Contents, 1, 2), slices.Delete(s.VolumeSnapshots, 2, 3)
		}, []Finding{{LeakedGroup, "snapshot s4 (snapshot-4, available)", "VolumeSnapshotContent snapcontent-4 does not exist", "v1", ""}}},
		{"a group without one of its snapshots", func(s *State) {
			s.Groups[0].Members = append(s.Groups[0].Members, GroupMember{"s5", "v2", true})
		}, []Finding{{TornGroup, "VolumeGroupSnapshot a/all", "is ready, and its snapshot s5 of volume v2 does not exist", "v2", ""}}},
		{"a group with the snapshot of another", func(s *State) { s.Snapshots[2].Metadata[stampGroup] = "g2" },
			[]Finding{{TornGroup, "VolumeGroupSnapshot a/all", `is ready, and its snapshot s4 (snapshot-4, available) is of volume v1 and group "g2"`, "v1", ""}}},
		{"a group without one of its VolumeSnapshots", func(s *State) { s.Groups[0].Members[0].Ready = false },
			[]Finding{{TornGroup, "VolumeGroupSnapshot a/all", "is ready, and the VolumeSnapshot of its snapshot s4 (snapshot-4, available) is not", "v1", ""}}},
		{"a group of nothing", func(s *State) { s.Groups[0].Members = nil },
			[]Finding{{TornGroup, "VolumeGroupSnapshot a/all", "is ready, and VolumeGroupSnapshotContent groupsnapcontent-g1 records no snapshot", "v1", ""}}},
		{"a group that does not go", func(s *State) { s.Groups[0].Asked = true },
			[]Finding{{Stuck, "VolumeGroupSnapshot a/all", "is deleted and does not go", "v1", ""}}},
		{"a group that waits in silence", func(s *State) { s.Groups[0].Ready = false },
			[]Finding{{Stuck, "VolumeGroupSnapshot a/all", "is not ready and nothing says why", "v1", ""}}},
		{"a group's content that does not go", func(s *State) { s.Groups = nil },
			[]Finding{{Stuck, "VolumeGroupSnapshotContent groupsnapcontent-g1", "its VolumeGroupSnapshot is gone and it is still there", "v1", ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := withSnapshots()
			c.plant(&s)
			if got := Ending(s); !slices.Equal(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestSnapshotsOfGivenVolumesAreStillOurs: removing one does not change the
// volume.
func TestSnapshotsOfGivenVolumesAreStillOurs(t *testing.T) {
	s := sound()
	before := s.Foreign["f1"]
	before.Snapshots = 1
	s.Foreign["f1"] = before
	if got := Foreign(s); got != nil {
		t.Errorf("%+v", got)
	}
}

// TestAGroupOfTheSameNameKeepsMembers: the snapshot-controller asks for the groups of deleted
// snapshots by name, so what is left of such a member is no finding until that group is gone.
func TestAGroupOfTheSameNameKeepsMembers(t *testing.T) {
	member := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "member", UID: "s1", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: groupv1.SchemeGroupVersion.String(), Kind: "VolumeGroupSnapshot", Name: "all", UID: "g1"},
	}}, Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")}}}
	for uid, kept := range map[types.UID]int{"g1": 1, "g2": 0} {
		group := &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "all", UID: uid}}
		group.Spec.Source.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Values: []string{"data"}}}}
		var s State
		Taken{Snapshots: []*snapshotv1.VolumeSnapshot{member}, Groups: []*groupv1.VolumeGroupSnapshot{group}, Requested: func(types.UID) bool { return true }}.AddTo(&s)
		if len(s.VolumeSnapshots) != kept {
			t.Errorf("beside group %s, %d members are judged, want %d", uid, len(s.VolumeSnapshots), kept)
		}
	}
}
