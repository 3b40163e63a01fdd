package node

import (
	"context"
	"fmt"
	"math"
	"slices"

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
	used, err := s.host.Paths(r.Device)
	if err != nil {
		return 0, err
	}
	// Rescan every used path: the kernel makes no map larger than any of its paths,
	// working or not.
	size := int64(math.MaxInt64)
	for i, disk := range r.Disks {
		if !slices.Contains(used, disk.Name) {
			continue
		}
		if r.Disks[i], err = protocol.rescan(ctx, disk, least); err != nil && len(used) > 1 {
			err = fmt.Errorf("path %s of the volume does not answer with the new size; repair it, or take it out of the map (multipathd del path %s): %w", disk.Name, disk.Name, err)
		}
		if err != nil {
			return 0, err
		}
		size = min(size, r.Disks[i].Bytes)
	}
	if size == math.MaxInt64 {
		return 0, fmt.Errorf("%s has no path of the volume", r.Device)
	}
	if err := s.host.ResizeMap(ctx, r.Device, size); err != nil {
		return 0, err
	}
	r.Bytes = max(r.Bytes, least)
	if err := s.state.save(r); err != nil {
		return 0, err
	}
	return size, s.grow(ctx, r)
}
