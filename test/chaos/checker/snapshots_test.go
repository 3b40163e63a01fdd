package checker

import (
	"slices"
	"testing"

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
		{"a leaked snapshot", func(s *State) { s.Contents, s.VolumeSnapshots = nil, nil },
			[]Finding{{LeakedSnapshot, "snapshot s1 (snapshot-1, available)", "VolumeSnapshotContent snapcontent-1 does not exist", "v1", ""}}},
		{"a second snapshot", func(s *State) {
			second := s.Snapshots[0]
			second.ID = "s9"
			s.Snapshots = append(s.Snapshots, second)
		}, []Finding{{LeakedSnapshot, "snapshot s9 (snapshot-1, available)", "VolumeSnapshotContent snapcontent-1 names snapshot s1", "v1", ""}}},
		{"a lost snapshot", func(s *State) { s.Snapshots = s.Snapshots[1:] },
			[]Finding{{LostSnapshot, "VolumeSnapshotContent snapcontent-1", "snapshot s1 does not exist", "v1", ""}}},
		{"a snapshot that was wrongly deleted", func(s *State) { s.Snapshots, s.Contents = nil, nil },
			[]Finding{{LostSnapshot, "VolumeSnapshot a/snap-1", "is ready and VolumeSnapshotContent snapcontent-1 is gone", "v1", ""}}},
		{"a content that does not go", func(s *State) { s.VolumeSnapshots = s.VolumeSnapshots[1:] },
			[]Finding{{Stuck, "VolumeSnapshotContent snapcontent-1", "its VolumeSnapshot is gone and it is still there", "v1", ""}}},
		{"a VolumeSnapshot that does not go", func(s *State) { s.VolumeSnapshots[0].Asked = true },
			[]Finding{{Stuck, "VolumeSnapshot a/snap-1", "is deleted and does not go", "v1", ""}}},
		{"a VolumeSnapshot that waits in silence", func(s *State) { s.VolumeSnapshots[1].Explained = false },
			[]Finding{{Stuck, "VolumeSnapshot a/snap-3", "is not ready and nothing says why", "", ""}}},
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
