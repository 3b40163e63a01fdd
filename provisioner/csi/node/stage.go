package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// NodeStageVolume attaches a volume to the node and mounts its filesystem.
func (s *Service) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	wanted, err := s.readStage(request)
	if err != nil {
		return nil, s.answer(err)
	}
	whole, release, err := s.begin(ctx, wanted.record.Volume)
	if err != nil {
		return nil, s.answer(err)
	}
	defer release()
	end, err := s.turns.take(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	defer s.reporter.Changed()
	started := time.Now()
	if err := s.stage(whole, wanted); err != nil {
		return nil, s.answer(err)
	}
	s.logger.Info("volume is staged", "volume", wanted.record.Volume, "path", wanted.record.StagingPath, "duration", time.Since(started).Round(time.Millisecond).String())
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *Service) stage(ctx context.Context, w staging) error {
	found, err := s.load(ctx, w.record.Volume)
	if err != nil {
		return err
	}
	if found == nil {
		if found, err = s.recover(ctx, w.record.Volume, w.record.StagingPath); err != nil {
			return err
		}
	}
	if found != nil {
		if done, err := s.reuse(ctx, found, w); done || err != nil {
			if done && err == nil {
				s.encrypted.agree(ctx, found, w, s.isVolumes)
			}
			return err
		}
	}
	r := w.record
	if r.Initiator, err = s.protocols[r.Protocol].initiator(ctx); err != nil {
		return err
	}
	// The state file before the report, and both before anything else.
	if err := s.state.save(&r); err != nil {
		return err
	}
	if err := s.reporter.Staging(ctx, r.Attachment); err != nil {
		return &remainder{errors.Join(err, s.state.remove(r.Volume))}
	}
	err = s.bring(ctx, &r, w)
	if err == nil {
		s.encrypted.agree(ctx, &r, w, s.isVolumes)
		return nil
	}
	if undone := s.takeDown(ctx, &r); undone != nil {
		return &remainder{fmt.Errorf("%w; what was done could not be undone: %w", err, undone)}
	}
	return err
}

// reuse handles a volume that was staged before, perhaps partly. If it is intact, the
// call is done. If it is neither intact nor in use, it is taken down.
func (s *Service) reuse(ctx context.Context, found *record, w staging) (done bool, err error) {
	if found.Staged {
		published, err := s.published(found)
		if err != nil {
			return false, err
		}
		mounted, err := s.stagedAt(found)
		if err != nil {
			return false, err
		}
		if found.volumeID() != w.record.volumeID() {
			return false, refused("volume %s is still staged as volume %s at Cinder, and is volume %s by now; it was swapped. Stop its pods on this node, so that it is unstaged", found.Volume, found.volumeID(), w.record.volumeID())
		}
		if mounted && (found.StagingPath != w.record.StagingPath || found.Filesystem != w.record.Filesystem || found.ReadOnly != w.record.ReadOnly) {
			return false, status.Errorf(codes.AlreadyExists, "volume %s is already staged at %s, with another path, filesystem or access than requested", found.Volume, found.StagingPath)
		}
		wrong := s.outdated(ctx, found, w.record.Attachment)
		if wrong == nil {
			wrong = s.intact(ctx, found, mounted)
		}
		if wrong == nil {
			return true, s.grow(ctx, found)
		}
		if len(published) > 0 {
			return false, refused("volume %s is staged, but not usable, and is published at %s: %v. Stop the pods that use it", found.Volume, published[0], wrong)
		}
		s.logger.Warn("volume is staged, but not usable; it is staged again", "volume", found.Volume, "error", wrong)
	}
	if err := s.takeDown(ctx, found); err != nil {
		return false, &remainder{err}
	}
	return false, nil
}

// stagedAt reports whether a volume is mounted where its record says. It returns true
// for a raw volume, which is not mounted.
func (s *Service) stagedAt(r *record) (bool, error) {
	if r.Filesystem == "" {
		return true, nil
	}
	mounts, err := s.host.MountsAt(r.StagingPath)
	return len(mounts) > 0, err
}

// outdated returns an error if the volume was detached from the node while it was staged,
// as Kubernetes does by force with a node that it has lost. Another node may have written
// to the volume since, so this node must not write to it anymore.
func (s *Service) outdated(ctx context.Context, r *record, attachment string) error {
	// The pods of a multi-writer volume expect writes by other nodes.
	same := r.NoWriters || r.ManyWriters || attachment == "" || r.Attachment == "" || attachment == r.Attachment
	if same && !r.Outdated {
		return nil
	}
	r.Outdated = true
	if err := errors.Join(s.state.save(r), s.cutOff(ctx, r)); err != nil {
		return err
	}
	return host.Refuse(host.Outdated, "volume %s was detached from the node while it was staged, and may have been written by another node since; it can be used again once no pod on this node uses it", r.Volume)
}

// intact returns an error if a staged volume cannot be used.
func (s *Service) intact(ctx context.Context, r *record, mounted bool) error {
	if !mounted {
		return fmt.Errorf("nothing is mounted at %s", r.StagingPath)
	}
	if err := s.isVolumes(ctx, r); err != nil {
		return err
	}
	if r.Filesystem == "" {
		return nil
	}
	mounts, err := s.host.MountsAt(r.StagingPath)
	if err != nil {
		return err
	}
	top := mounts[len(mounts)-1]
	if !s.host.Shows(top, r.used()) {
		return fmt.Errorf("%s shows device %s instead of %s", r.StagingPath, top.Number, r.used())
	}
	if top.FilesystemReadOnly && !r.ReadOnly {
		return errors.New("the kernel made the filesystem read-only, as it does after an error")
	}
	if r.Encryption != nil {
		return nil // isVolumes has seen its header
	}
	content, err := s.host.Look(ctx, r.Device)
	if err != nil {
		return err
	}
	_, err = host.Judge(r.Device, content, host.Wanted{Volume: r.volumeID(), Copied: r.Copied, Filesystem: r.Filesystem, ReadOnly: true})
	return err
}

// isVolumes returns an error unless the device consists of the volume's disks.
func (s *Service) isVolumes(ctx context.Context, r *record) error {
	protocol, err := s.protocolOf(r)
	if err != nil {
		return err
	}
	if err := protocol.refresh(ctx, r); err != nil {
		return err
	}
	paths, err := s.host.Paths(r.Device)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if !slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.Name == p }) {
			return host.Refuse(host.ForeignPath, "%s has path %s, which is not the volume's", r.Device, p)
		}
	}
	answers := 0
	var silent error
	for _, disk := range r.Disks {
		now, err := protocol.inspect(ctx, disk)
		if err != nil {
			silent = err
			continue
		}
		if now.Identity != disk.Identity {
			return host.Refuse(host.WrongDisk, "%s was %s, but is now %s", disk.Name, disk.Identity, now.Identity)
		}
		answers++
	}
	if answers == 0 {
		return fmt.Errorf("no path of the volume answers: %w", silent)
	}
	return s.encrypted.isVolumes(ctx, r)
}

// bring stages a volume that is not on the node at all.
func (s *Service) bring(ctx context.Context, r *record, w staging) error {
	started, steps := time.Now(), startTimer(s.observer)
	if err := s.protocols[r.Protocol].attach(ctx, r, w.credentials); err != nil {
		return err
	}
	device, err := s.protocols[r.Protocol].join(ctx, r)
	if err != nil {
		return err
	}
	r.Device, r.Map = device, s.host.MapID(device)
	if err := s.state.save(r); err != nil {
		return err
	}
	steps.done(StepAttach)
	s.logger.Info("volume has its disks", "volume", r.Volume, "device", r.Device, "paths", len(r.Disks), "duration", time.Since(started).Round(time.Millisecond).String())
	if r.Encryption != nil {
		if err := s.encrypted.open(ctx, r, w, s.isVolumes); err != nil {
			return err
		}
		steps.done(StepOpen)
	}
	if err := s.encrypted.refuseUnopened(ctx, r); err != nil {
		return err
	}
	if r.Filesystem == "" {
		if r.ReadOnly {
			err = s.host.SetReadOnly(ctx, r.used(), true)
		}
	} else {
		err = s.mount(ctx, r, w, steps)
	}
	if err != nil {
		return err
	}
	r.Staged = true
	return s.state.save(r)
}

// mount proves that the filesystem is the volume's, or makes one, and mounts it.
func (s *Service) mount(ctx context.Context, r *record, w staging, steps *timer) error {
	content, err := s.encrypted.content(ctx, r)
	if err != nil {
		return err
	}
	begun, err := s.state.formatBegun(r, layerFilesystem)
	if err != nil {
		return err
	}
	filesystem := host.Wanted{Volume: r.volumeID(), Copied: r.Copied, Filesystem: r.Filesystem, ReadOnly: r.ReadOnly, Begun: begun, NeverFormat: s.encrypted.neverFormat(r), Options: s.make[r.Filesystem]}
	format, err := host.Judge(r.used(), content, filesystem)
	if err != nil {
		return err
	}
	if !r.ReadOnly {
		// What was read may be another disk that has the name now, and what it holds may
		// be a copy of the volume.
		if err := s.isVolumes(ctx, r); err != nil {
			return err
		}
	}
	switch {
	case format:
		if err := s.state.beginFormat(r, layerFilesystem); err != nil {
			return err
		}
		if err := s.host.Format(ctx, r.used(), content, filesystem); err != nil {
			return err
		}
		s.logger.Info("volume got a filesystem", "volume", r.Volume, "device", r.used(), "filesystem", r.Filesystem)
	case !r.ReadOnly:
		if err := s.host.Check(ctx, r.used(), r.Filesystem); err != nil {
			return err
		}
	}
	if format || begun {
		if err := s.state.endFormat(r); err != nil {
			return err
		}
	}
	steps.done(StepFilesystem)
	options := host.Options(r.Filesystem, w.mountFlags, r.ReadOnly, w.refusesWrites)
	if err := s.host.Mount(ctx, r.used(), r.StagingPath, r.Filesystem, options); err != nil {
		return err
	}
	// What was checked and mounted by its name must still be the volume.
	if err := s.intact(ctx, r, true); err != nil {
		return err
	}
	steps.done(StepMount)
	err = s.grow(ctx, r)
	if err == nil {
		steps.done(StepGrow)
	}
	return err
}

// grow makes what is opened, and the filesystem, as large as the volume, which may be a
// copy of a smaller volume, or may have been extended while it was staged nowhere.
func (s *Service) grow(ctx context.Context, r *record) error {
	if r.ReadOnly {
		return nil
	}
	if err := s.encrypted.grow(ctx, r); err != nil || r.Filesystem == "" {
		return err
	}
	return s.host.Grow(ctx, r.used(), r.StagingPath, r.Filesystem)
}

// published lists the paths at which the volume is published.
func (s *Service) published(r *record) ([]string, error) {
	var found []string
	for _, at := range r.Targets {
		mounts, err := s.host.MountsAt(at)
		if err != nil {
			return nil, err
		}
		if len(mounts) > 0 {
			found = append(found, at)
		}
	}
	return found, nil
}

// staging is what a call asks for. Printing it shows nothing: fmt calls no methods of
// unexported fields.
type staging struct {
	record        record
	credentials   wire.Credentials
	mountFlags    []string
	refusesWrites bool
	// shared means that other nodes may have the volume, too.
	shared bool
}

// String keeps the credentials out of %v.
func (w staging) String() string { return w.record.Volume }

// GoString keeps the credentials out of %#v.
func (w staging) GoString() string { return w.record.Volume }
