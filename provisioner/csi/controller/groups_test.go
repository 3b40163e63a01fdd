package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// TestGroupRequests: a group's handle is its name, and it is as old as its oldest snapshot.
func TestGroupRequests(t *testing.T) {
	create := func(name string, volumes ...string) func(context.Context, *Server) (*csi.VolumeGroupSnapshot, error) {
		return func(ctx context.Context, s *Server) (*csi.VolumeGroupSnapshot, error) {
			answer, err := s.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: volumes})
			return answer.GetGroupSnapshot(), err
		}
	}
	remove := func(handle string) func(context.Context, *Server) (*csi.VolumeGroupSnapshot, error) {
		return func(ctx context.Context, s *Server) (*csi.VolumeGroupSnapshot, error) {
			_, err := s.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: []string{"gold/s1"}})
			return nil, err
		}
	}
	look := func(handle string) func(context.Context, *Server) (*csi.VolumeGroupSnapshot, error) {
		return func(ctx context.Context, s *Server) (*csi.VolumeGroupSnapshot, error) {
			answer, err := s.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: handle})
			return answer.GetGroupSnapshot(), err
		}
	}
	const made = "group [gold/v1 silver/v2] as groupsnapshot-u1, parameters map[]"
	for name, test := range map[string]struct {
		call    func(context.Context, *Server) (*csi.VolumeGroupSnapshot, error)
		err     error
		asked   string
		code    codes.Code
		message string
	}{
		"a group":                    {call: create("groupsnapshot-u1", "gold/v1", "silver/v2"), asked: made},
		"no name":                    {call: create("", "gold/v1"), code: codes.InvalidArgument, message: "the request has no name"},
		"no volumes":                 {call: create("groupsnapshot-u1"), code: codes.InvalidArgument, message: "the request has no source_volume_ids"},
		"a volume of another driver": {call: create("groupsnapshot-u1", "gold/v1", "vol-2"), code: codes.NotFound, message: `handle "vol-2" is not <backend>/<ID at Cinder>`},
		"a full quota": {call: create("groupsnapshot-u1", "gold/v1", "silver/v2"), err: &Failure{Kind: NoRoom, Message: "full"}, asked: made,
			code: codes.ResourceExhausted, message: "full"},
		"a deletion":             {call: remove("groupsnapshot-u1"), asked: "remove group groupsnapshot-u1"},
		"a deletion of nothing":  {call: remove(""), code: codes.InvalidArgument, message: "the request has no group_snapshot_id"},
		"a deletion that waits":  {call: remove("groupsnapshot-u1"), err: &Failure{Kind: "InUse", Message: "volumes depend on it"}, asked: "remove group groupsnapshot-u1", code: codes.FailedPrecondition, message: "volumes depend on it"},
		"a question":             {call: look("groupsnapshot-u1"), asked: "look at group groupsnapshot-u1"},
		"a question for nothing": {call: look(""), code: codes.InvalidArgument, message: "the request has no group_snapshot_id"},
		"a group that is none":   {call: look("x"), err: &Failure{Kind: "NotFound", Message: "none"}, asked: "look at group x", code: codes.NotFound, message: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := snapshotAs("s1"), snapshotAs("s2")
			first.Created, second.Created, second.Group = time.Unix(2000, 0), time.Unix(1000, 0), "groupsnapshot-u1"
			e := &engine{err: test.err, snapshots: []Snapshot{first, second}}
			got, err := test.call(t.Context(), newServer(e))
			check(t, err, test.code, test.message)
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
			if got != nil && (got.GetGroupSnapshotId() != "groupsnapshot-u1" || !got.GetReadyToUse() || got.GetCreationTime().GetSeconds() != 1000 || len(got.GetSnapshots()) != 2 || got.GetSnapshots()[1].GetGroupSnapshotId() != "groupsnapshot-u1") {
				t.Errorf("answered %v", got)
			}
		})
	}
}
