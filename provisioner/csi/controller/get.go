package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// ControllerGetVolume implements csi.ControllerServer.
func (s *Server) ControllerGetVolume(ctx context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no volume_id")
	}
	handle, err := wire.ParseHandle(request.GetVolumeId())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	found, err := s.Engine.Listed(ctx, handle)
	if err != nil {
		return nil, answer(err)
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: volumeOf(found), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.NodeIDs},
	}, nil
}
