package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// NodeUnstageVolume takes a volume away from the node.
func (s *Service) NodeUnstageVolume(ctx context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	volume, err := readVolume(request.GetVolumeId())
	if err != nil {
		return nil, s.answer(err)
	}
	at, err := readPath("staging target path", request.GetStagingTargetPath())
	if err != nil {
		return nil, s.answer(err)
	}
	ctx, release, err := s.begin(ctx, volume)
	if err != nil {
		return nil, s.answer(err)
	}
	defer release()
	defer s.reporter.Changed()
	if err := s.unstage(ctx, volume, at); err != nil {
		return nil, s.answer(&remainder{err})
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (s *Service) unstage(ctx context.Context, volume, at string) error {
	r, unreadable := s.load(ctx, volume)
	if r == nil {
		// The mount shows everything that is needed.
		var err error
		if r, err = s.recover(ctx, volume, at); err != nil {
			return err
		}
	}
	switch {
	case r == nil && unreadable != nil:
		// Nothing else shows which disks are the volume's.
		return unreadable
	case r == nil:
		// Of all that the plugin did, only what is open can be left.
		if err := s.host.Unmount(ctx, at); err != nil {
			return err
		}
		return s.encrypted.close(ctx, &record{Volume: volume})
	case unreadable != nil:
		s.logger.Warn("volume is unstaged without its state file", "volume", volume, "error", unreadable)
	}
	if r.StagingPath != at {
		if err := s.host.Unmount(ctx, at); err != nil {
			return err
		}
	}
	if err := s.takeDown(ctx, r); err != nil {
		return err
	}
	s.logger.Info("volume is unstaged", "volume", volume, "path", at)
	return nil
}

// recover makes a record from what is mounted, and saves it: without the mount, nothing
// would show which disks and sessions are the volume's.
func (s *Service) recover(ctx context.Context, volume, at string) (*record, error) {
	mounts, err := s.host.MountsAt(at)
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	device, err := s.host.DeviceOf(mounts[0])
	if err != nil || device == "" {
		return nil, err
	}
	r := &record{Volume: volume, StagingPath: at, Filesystem: mounts[0].Type}
	r.Device = s.encrypted.trace(r, device)
	r.Map = s.host.MapID(r.Device)
	paths, err := s.host.Paths(r.Device)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(s.protocols)) {
		r.Disks, r.Paths, r.Initiator = nil, nil, ""
		known, err := s.protocols[name].retrace(ctx, r, paths)
		if err != nil {
			return nil, err
		}
		if known {
			r.Protocol = name
			return r, s.state.save(r)
		}
	}
	// A mount of anything else does not belong to this driver.
	return nil, nil
}

// takeDown removes everything of a volume from the node, and finally its record. It
// continues where an earlier attempt ended.
func (s *Service) takeDown(ctx context.Context, r *record) error {
	published, err := s.published(r)
	if err != nil {
		return err
	}
	if len(published) > 0 {
		return host.Refuse(host.InUse, "volume %s is still published at %s", r.Volume, published[0])
	}
	if err := s.host.FailEmptyMap(ctx, r.Device, r.Map); err != nil {
		return err
	}
	if err := s.cutOff(ctx, r); err != nil {
		return err
	}
	if err := s.host.Unmount(ctx, r.StagingPath); err != nil {
		return err
	}
	protocol, err := s.protocolOf(r)
	if err != nil {
		return err
	}
	if r.Staged {
		// From here on, it is not staged: what is left must be removed before it is
		// used again.
		r.Staged = false
		s.note(r)
	}
	if err := s.encrypted.close(ctx, r); err != nil {
		return err
	}
	if err := protocol.detach(ctx, r); err != nil {
		return err
	}
	return s.state.remove(r.Volume)
}

// cutOff keeps the last unmount from writing what is left of a filesystem into another
// volume, or over what another node wrote: while it was mounted, the storage may have
// given the LUN away, or to another node and back. Unless the volume is outdated, it
// cuts off only a disk that can be read and is not the volume's, because a silent disk
// may come back.
func (s *Service) cutOff(ctx context.Context, r *record) error {
	protocol, err := s.protocolOf(r)
	if err != nil || r.Device == "" {
		return err
	}
	if r.Filesystem == "" {
		// A raw volume's intended content is unknown, and it has no delayed writes: only
		// the processes that have it open write to it.
		if !r.Outdated {
			return nil
		}
		return protocol.cutOff(ctx, r)
	}
	// A record that was made from a mount has neither identities nor copies.
	if slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.Identity == "" }) {
		return nil
	}
	mounts, err := s.host.MountsAt(r.StagingPath)
	if err != nil || len(mounts) == 0 || !s.host.Shows(mounts[len(mounts)-1], r.used()) {
		return err
	}
	wrong := s.exchanged(ctx, r, protocol)
	if wrong == nil {
		return nil
	}
	var refusal *host.Refusal
	if errors.As(wrong, &refusal) {
		s.observer.Refused(string(refusal.Reason))
	}
	s.logger.Error("disk is not what it was when it was mounted; nothing more is written to it", "volume", r.Volume, "device", r.Device, "error", wrong)
	return protocol.cutOff(ctx, r)
}

// note saves a record that is kept only until the volume has gone. If the node's disk is
// full, the volume must still be able to go.
func (s *Service) note(r *record) {
	if err := s.state.save(r); err != nil {
		s.logger.Warn("state file of a volume that goes could not be written", "volume", r.Volume, "error", err)
	}
}

func (s *Service) protocolOf(r *record) (protocol, error) {
	found, known := s.protocols[r.Protocol]
	if !known {
		return protocol{}, fmt.Errorf("volume %s was staged by protocol %q, which this plugin does not know", r.Volume, r.Protocol)
	}
	return found, nil
}

// exchanged returns an error that says why a device is no longer what was mounted; nil
// if it still is.
func (s *Service) exchanged(ctx context.Context, r *record, protocol protocol) error {
	if r.Outdated {
		return host.Refuse(host.Outdated, "%s was detached and attached again", r.Device)
	}
	for _, disk := range r.Disks {
		now, err := protocol.inspect(ctx, disk)
		if err == nil && now.Identity != disk.Identity {
			return host.Refuse(host.WrongDisk, "%s was %s, but is now %s", disk.Name, disk.Identity, now.Identity)
		}
	}
	content, err := s.host.Look(ctx, r.Device)
	if err != nil {
		return nil
	}
	if !s.encrypted.shows(r, content) {
		return host.Refuse(host.WrongVolume, "%s holds %+v", r.Device, content)
	}
	return nil
}
