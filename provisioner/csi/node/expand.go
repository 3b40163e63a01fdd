package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeExpandVolume makes the node see an extended volume's new size and grows its
// filesystem.
func (s *Service) NodeExpandVolume(ctx context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	volume, err := readVolume(request.GetVolumeId())
	if err != nil {
		return nil, s.answer(err)
	}
	at, err := readVolumePath(request.GetVolumePath())
	if err != nil {
		return nil, s.answer(err)
	}
	least, most := request.GetCapacityRange().GetRequiredBytes(), request.GetCapacityRange().GetLimitBytes()
	if least < 0 || most < 0 || most > 0 && least > most {
		return nil, status.Errorf(codes.OutOfRange, "a volume cannot have at least %d and at most %d bytes", least, most)
	}
	ctx, release, err := s.begin(ctx, volume)
	if err != nil {
		return nil, s.answer(err)
	}
	defer release()
	size, err := s.expand(ctx, volume, at, least)
	if err != nil {
		return nil, s.answer(err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

func (s *Service) expand(ctx context.Context, volume, at string, least int64) (int64, error) {
	r, err := s.state.load(volume)
	if err != nil {
		return 0, err
	}
	if r == nil || !r.Staged {
		return 0, status.Errorf(codes.NotFound, "volume %s is not staged on this node", volume)
	}
	if r.Filesystem != "" && at != r.StagingPath {
		// A restarted kubelet does not know for certain where a raw device is.
		mounts, err := s.host.MountsAt(at)
		if err != nil {
			return 0, err
		}
		if len(mounts) == 0 {
			return 0, status.Errorf(codes.NotFound, "volume %s is not mounted at %s", volume, at)
		}
	}
	protocol, err := s.protocolOf(r)
	if err != nil {
		return 0, err
	}
	if err := protocol.refresh(ctx, r); err != nil {
		return 0, err
	}
	size, err := s.host.Enlarge(ctx, r.Device, r.Disks, least, protocol.rescan)
	if err != nil {
		return 0, err
	}
	r.Bytes = max(r.Bytes, least)
	if err := s.state.save(r); err != nil {
		return 0, err
	}
	return size, s.grow(ctx, r)
}
