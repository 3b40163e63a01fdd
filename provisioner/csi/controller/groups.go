package controller

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Grouper takes and removes the snapshots of groups of volumes.
type Grouper interface {
	// TakeGroup takes the snapshots of the group of that name, which is also its handle, or
	// finds them. It returns when all are ready.
	TakeGroup(ctx context.Context, volumes []wire.Handle, name string, parameters map[string]string) ([]Snapshot, error)
	// RemoveGroup removes all snapshots of a group. It succeeds if they are already gone.
	RemoveGroup(ctx context.Context, handle string) error
	// GroupStatus returns the snapshots of a group, all of them ready, or an error.
	GroupStatus(ctx context.Context, handle string) ([]Snapshot, error)
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (s *Server) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}},
	}}}, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer.
func (s *Server) CreateVolumeGroupSnapshot(ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	switch {
	case request.GetName() == "":
		return nil, status.Error(codes.InvalidArgument, "the request has no name")
	case len(request.GetSourceVolumeIds()) == 0:
		return nil, status.Error(codes.InvalidArgument, "the request has no source_volume_ids")
	}
	var volumes []wire.Handle
	for _, id := range request.GetSourceVolumeIds() {
		volume, err := wire.ParseHandle(id)
		if err != nil {
			return nil, status.Error(codes.NotFound, err.Error())
		}
		volumes = append(volumes, volume)
	}
	return aloneWith(ctx, s, groupSubject(request.GetName()), func(ctx context.Context) (*csi.CreateVolumeGroupSnapshotResponse, error) {
		taken, err := s.Groups.TakeGroup(ctx, volumes, request.GetName(), request.GetParameters())
		if err != nil {
			return nil, answerWithoutRoom(err)
		}
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: groupMessage(request.GetName(), taken)}, nil
	})
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer. What the group's object
// records, rather than the call, says which snapshots belong to it.
func (s *Server) DeleteVolumeGroupSnapshot(ctx context.Context, request *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if request.GetGroupSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no group_snapshot_id")
	}
	return aloneWith(ctx, s, groupSubject(request.GetGroupSnapshotId()), func(ctx context.Context) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
		if err := s.Groups.RemoveGroup(ctx, request.GetGroupSnapshotId()); err != nil {
			return nil, answer(err)
		}
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	})
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (s *Server) GetVolumeGroupSnapshot(ctx context.Context, request *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if request.GetGroupSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no group_snapshot_id")
	}
	all, err := s.Groups.GroupStatus(ctx, request.GetGroupSnapshotId())
	if err != nil {
		return nil, answer(err)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: groupMessage(request.GetGroupSnapshotId(), all)}, nil
}

// groupSubject names what the calls for a group are about.
func groupSubject(handle string) string { return "group " + handle }

func groupMessage(handle string, all []Snapshot) *csi.VolumeGroupSnapshot {
	message := &csi.VolumeGroupSnapshot{GroupSnapshotId: handle, ReadyToUse: true}
	var created time.Time
	for _, one := range all {
		if message.Snapshots = append(message.Snapshots, one.message()); created.IsZero() || one.Created.Before(created) {
			created = one.Created
		}
	}
	message.CreationTime = timestamppb.New(created)
	return message
}
