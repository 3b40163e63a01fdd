package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (s *Server) ValidateVolumeCapabilities(ctx context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	handle, err := handleIn("volume_id", request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the request has no volume_capabilities")
	}
	volume, err := s.Attacher.Volume(ctx, handle)
	if err != nil {
		return nil, answer(err)
	}
	if why := cannot(volume, request); why != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: request.GetVolumeContext(), VolumeCapabilities: request.GetVolumeCapabilities(),
	}}, nil
}

// cannot names the requested properties that the volume lacks.
func cannot(volume Volume, request *csi.ValidateVolumeCapabilitiesRequest) string {
	for key, value := range request.GetVolumeContext() {
		if volume.Context[key] != value {
			return "the volume context is not that of the PersistentVolume"
		}
	}
	if len(request.GetParameters()) > 0 || len(request.GetMutableParameters()) > 0 {
		return "the driver has no parameters"
	}
	for _, capability := range request.GetVolumeCapabilities() {
		of, mistake := accessFor(capability)
		if mistake != "" {
			return mistake
		}
		if of.shared && !volume.MultiAttach {
			return "only one node at a time can have the volume: its type has no multiattach"
		}
	}
	return ""
}
