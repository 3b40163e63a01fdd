package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// DeleteVolume implements csi.ControllerServer.
func (s *Server) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no volume_id")
	}
	volume, err := wire.ParseHandle(request.GetVolumeId())
	if err != nil {
		// The driver never creates volumes with such handles.
		return &csi.DeleteVolumeResponse{}, nil
	}
	return whileWaiting(ctx, s, "the volume "+volume.String(), func(ctx context.Context) (*csi.DeleteVolumeResponse, error) {
		if err := s.Maker.Delete(ctx, volume); err != nil {
			return nil, answer(err)
		}
		return &csi.DeleteVolumeResponse{}, nil
	})
}
