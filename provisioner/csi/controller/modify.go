package controller

import (
	"context"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Modifier changes the properties of a volume that a VolumeAttributesClass can set.
type Modifier interface {
	// Retype changes a volume's type. It may be repeated after any interruption.
	Retype(ctx context.Context, volume wire.Handle, volumeType string) error
}

// ParameterType is the only parameter of a VolumeAttributesClass.
const ParameterType = "type"

// typeOf returns the volume type that the parameters of a VolumeAttributesClass name.
func typeOf(parameters map[string]string) (string, error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != ParameterType {
			return "", status.Errorf(codes.InvalidArgument, "unknown parameter %q of a VolumeAttributesClass; only %s is supported", key, ParameterType)
		}
	}
	if parameters[ParameterType] == "" {
		return "", status.Errorf(codes.InvalidArgument, "a VolumeAttributesClass must name a volume type of Cinder by its parameter %s", ParameterType)
	}
	return parameters[ParameterType], nil
}

// ControllerModifyVolume implements csi.ControllerServer.
func (s *Server) ControllerModifyVolume(ctx context.Context, request *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	volumeType, err := typeOf(request.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	volume, err := handleIn("volume_id", request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return alone(ctx, s, volume.String(), func(ctx context.Context) (*csi.ControllerModifyVolumeResponse, error) {
		if err := s.Modifier.Retype(ctx, volume, volumeType); err != nil {
			return nil, answerWithoutRoom(err)
		}
		return &csi.ControllerModifyVolumeResponse{}, nil
	})
}
