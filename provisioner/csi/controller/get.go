package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ControllerGetVolume implements csi.ControllerServer.
func (s *Server) ControllerGetVolume(ctx context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	handle, err := handleIn("volume_id", request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	found, err := s.Attacher.Listed(ctx, handle)
	if err != nil {
		return nil, answer(err)
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: volumeOf(found), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.NodeIDs},
	}, nil
}
