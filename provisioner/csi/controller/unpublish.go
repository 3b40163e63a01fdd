package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// ControllerUnpublishVolume implements csi.ControllerServer.
func (s *Server) ControllerUnpublishVolume(ctx context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no volume_id")
	}
	volume, err := wire.ParseHandle(request.GetVolumeId())
	if err != nil {
		// The driver never creates volumes with such handles, so it has attached none.
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return alone(ctx, s, volume.String(), func(ctx context.Context) (*csi.ControllerUnpublishVolumeResponse, error) {
		if err := s.Attacher.Unpublish(ctx, volume, request.GetNodeId()); err != nil {
			return nil, answer(err)
		}
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	})
}
