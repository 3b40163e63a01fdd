package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Expander enlarges volumes.
type Expander interface {
	// Expand makes a volume at least as large as requested, and returns its new size. It
	// may be repeated after any interruption.
	Expand(ctx context.Context, volume wire.Handle, bytes int64) (size int64, err error)
}

// ControllerExpandVolume implements csi.ControllerServer. The node must expand raw
// devices, too, because the kernel sees the new size only when every path is rescanned.
func (s *Server) ControllerExpandVolume(ctx context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	wanted, limit := request.GetCapacityRange().GetRequiredBytes(), request.GetCapacityRange().GetLimitBytes()
	switch {
	case wanted <= 0:
		return nil, status.Error(codes.InvalidArgument, "the request has no capacity_range with required_bytes")
	case limit > 0 && limit < roundUp(wanted):
		return nil, status.Errorf(codes.OutOfRange, "Cinder makes volumes of whole GiB, and no such size is from %d to %d bytes", wanted, limit)
	}
	volume, err := handleIn("volume_id", request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return alone(ctx, s, volume.String(), func(ctx context.Context) (*csi.ControllerExpandVolumeResponse, error) {
		size, err := s.Expander.Expand(ctx, volume, wanted)
		if err != nil {
			return nil, answerWithoutRoom(err)
		}
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
	})
}

func roundUp(bytes int64) int64 {
	return (bytes/gib + min(bytes%gib, 1)) * gib
}
