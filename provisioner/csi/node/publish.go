package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// NodePublishVolume shows a staged volume to a pod.
func (s *Service) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	p, err := readPublish(request)
	if err != nil {
		return nil, s.answer(err)
	}
	ctx, release, err := s.begin(ctx, p.volume)
	if err != nil {
		return nil, s.answer(err)
	}
	defer release()
	return &csi.NodePublishVolumeResponse{}, s.answer(s.publish(ctx, p))
}

func (s *Service) publish(ctx context.Context, p publication) error {
	r, err := s.state.load(p.volume)
	if err != nil {
		return err
	}
	if r == nil || !r.Staged || r.StagingPath != p.staging {
		return refused("volume %s is not staged at %s", p.volume, p.staging)
	}
	if err := s.outdated(ctx, r, p.attachment); err != nil {
		return err
	}
	if (r.Filesystem == "") != p.block {
		return invalid("volume %s is not staged for this kind of access", p.volume)
	}
	// Without the mount, the directory would show the node's own disk.
	staged, err := s.host.MountsAt(r.StagingPath)
	if err != nil {
		return err
	}
	if !p.block && (len(staged) == 0 || !s.host.Shows(staged[len(staged)-1], r.used())) {
		return refused("volume %s is no longer mounted at %s", p.volume, p.staging)
	}
	if p.block {
		// Without a mount, another disk may have taken its name since staging.
		if err := s.isVolumes(ctx, r); err != nil {
			return err
		}
	}
	published, err := s.published(r)
	if err != nil {
		return err
	}
	published = slices.DeleteFunc(published, func(at string) bool { return at == p.target })
	if p.single && len(published) > 0 {
		return refused("volume %s may be used by one pod at a time, and is published at %s", p.volume, published[0])
	}
	readOnly := p.readOnly || r.ReadOnly
	if p.block && !r.ReadOnly && readOnly != s.host.IsReadOnly(r.used()) {
		if len(published) > 0 {
			return refused("raw volume %s cannot be read-only for one pod and writable for another", p.volume)
		}
		if err := s.host.SetReadOnly(ctx, r.used(), readOnly); err != nil {
			return err
		}
	}
	done, err := s.present(ctx, r, p, readOnly)
	if err != nil {
		return err
	}
	if done {
		s.limiter.hold(ctx, r, p.target)
		return nil
	}
	if !slices.Contains(r.Targets, p.target) {
		r.Targets = append(r.Targets, p.target)
		if err := s.state.save(r); err != nil {
			return err
		}
	}
	s.limiter.hold(ctx, r, p.target)
	if err := s.show(ctx, r, p, readOnly); err != nil {
		if undone := s.hide(ctx, r, p.target); undone != nil {
			return &remainder{fmt.Errorf("%w; what was done could not be undone: %w", err, undone)}
		}
		return err
	}
	return nil
}

// present reports whether the target already shows the volume. If a crash kept a mount
// from becoming read-only, present makes it so.
func (s *Service) present(ctx context.Context, r *record, p publication, readOnly bool) (bool, error) {
	mounts, err := s.host.MountsAt(p.target)
	if err != nil || len(mounts) == 0 {
		return false, err
	}
	top := mounts[len(mounts)-1]
	if !s.host.Shows(top, r.used()) {
		return false, refused("something other than volume %s is mounted at %s", p.volume, p.target)
	}
	if !slices.Contains(r.Targets, p.target) {
		r.Targets = append(r.Targets, p.target)
		if err := s.state.save(r); err != nil {
			return false, err
		}
	}
	if !p.block && top.ReadOnly && !readOnly {
		return false, status.Errorf(codes.AlreadyExists, "volume %s is published at %s read-only", p.volume, p.target)
	}
	return true, s.host.Rebind(ctx, p.target, bindOptions(p, readOnly))
}

func (s *Service) show(ctx context.Context, r *record, p publication, readOnly bool) error {
	from, make := r.StagingPath, s.host.MakeDir
	if p.block {
		from, make = "/dev/"+r.used(), s.host.MakeFile
	}
	if err := make(p.target); err != nil {
		return err
	}
	return s.host.Bind(ctx, from, p.target, bindOptions(p, readOnly))
}

// bindable are the options of a mount. The filesystem's options were given to staging.
var bindable = []string{"ro", "noexec", "exec", "nosuid", "suid", "nodev", "dev", "noatime", "nodiratime", "relatime", "nosymfollow"}

func bindOptions(p publication, readOnly bool) []string {
	if p.block {
		return nil
	}
	options := slices.DeleteFunc(slices.Clone(p.mountFlags), func(o string) bool { return !slices.Contains(bindable, o) })
	if readOnly && !slices.Contains(options, "ro") {
		options = append(options, "ro")
	}
	return options
}

// NodeUnpublishVolume removes a volume from a pod.
func (s *Service) NodeUnpublishVolume(ctx context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	volume, err := readVolume(request.GetVolumeId())
	if err != nil {
		return nil, s.answer(err)
	}
	at, err := readPath("target path", request.GetTargetPath())
	if err != nil {
		return nil, s.answer(err)
	}
	ctx, release, err := s.begin(ctx, volume)
	if err != nil {
		return nil, s.answer(err)
	}
	defer release()
	r, err := s.state.load(volume)
	if err != nil {
		// The pod must be able to end; the record no longer matters for that.
		s.logger.Warn("volume is unpublished without its state file", "volume", volume, "error", err)
		r = nil
	}
	if err := s.hide(ctx, r, at); err != nil {
		return nil, s.answer(&remainder{err})
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (s *Service) hide(ctx context.Context, r *record, at string) error {
	if err := s.host.Unmount(ctx, at); err != nil {
		return err
	}
	if err := s.host.Remove(at); err != nil {
		return err
	}
	if r == nil || !slices.Contains(r.Targets, at) {
		return nil
	}
	s.limiter.lift(ctx, r, at)
	// A path at which nothing is mounted does no harm.
	r.Targets = slices.DeleteFunc(r.Targets, func(t string) bool { return t == at })
	s.note(r)
	return nil
}

// NodeGetVolumeStats returns how full a volume is.
func (s *Service) NodeGetVolumeStats(ctx context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	volume, err := readVolume(request.GetVolumeId())
	if err != nil {
		return nil, s.answer(err)
	}
	at, err := readVolumePath(request.GetVolumePath())
	if err != nil {
		return nil, s.answer(err)
	}
	mounts, err := s.host.MountsAt(at)
	if err != nil {
		return nil, s.answer(err)
	}
	if len(mounts) == 0 {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %s", volume, at)
	}
	top := mounts[len(mounts)-1]
	if top.Type == "devtmpfs" {
		size, err := s.sizeOf(top)
		if err != nil {
			return nil, s.answer(err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
	usage, err := s.host.Usage(ctx, at)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "volume %s does not answer: %v", volume, err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: usage.Bytes, Available: usage.AvailableBytes, Used: usage.Bytes - usage.FreeBytes},
		{Unit: csi.VolumeUsage_INODES, Total: usage.Inodes, Available: usage.FreeInodes, Used: usage.Inodes - usage.FreeInodes},
	}}, nil
}

func (s *Service) sizeOf(m host.Mount) (int64, error) {
	device, err := s.host.DeviceOf(m)
	if err != nil {
		return 0, err
	}
	return s.host.Size(device)
}
