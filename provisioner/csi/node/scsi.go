package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// scsi is what the protocols with SCSI disks have in common.
type scsi struct {
	host     *host.SCSI
	state    *state
	observer Observer
	logger   *slog.Logger
}

// multipath reports whether multipathd runs. Without it a volume has one path, because
// several disks would bypass each other's caches.
func (p scsi) multipath(ctx context.Context, r *record, paths int) bool {
	runs := p.host.MultipathRuns(ctx)
	if !runs && paths > 1 {
		p.logger.Warn("multipathd is not running, so the volume has only one of its paths, and its pods fail if that path fails", "volume", r.Volume, "paths", paths)
	}
	return runs
}

// places returns where the kernel has, or would have, the disks of a record's paths.
type places func(*record) ([]host.Address, error)

// joinAll also joins disks that appeared meanwhile and that multipathd has added to the
// map.
func (p scsi) joinAll(ctx context.Context, r *record, at places) (string, error) {
	device, err := p.host.Join(ctx, r.Disks, len(r.Paths) > 1)
	var refusal *host.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != host.ForeignPath {
		return device, err
	}
	disks, presentErr := p.present(ctx, r, at)
	if presentErr != nil || len(disks) == 0 || slices.Equal(disks, r.Disks) {
		return "", errors.Join(err, presentErr)
	}
	r.Disks = disks
	if err := p.state.save(r); err != nil {
		return "", err
	}
	return p.host.Join(ctx, r.Disks, len(r.Paths) > 1)
}

// present returns the disks that the kernel now has at the record's places, if they
// identify themselves as the volume.
func (p scsi) present(ctx context.Context, r *record, at places) ([]host.Disk, error) {
	addresses, err := at(r)
	if err != nil {
		return nil, err
	}
	var disks []host.Disk
	for _, address := range addresses {
		name, err := p.host.DiskAt(address)
		if err != nil {
			return nil, err
		}
		known := slices.IndexFunc(r.Disks, func(d host.Disk) bool { return d.Address == address && d.Name == name })
		switch {
		case name == "":
		case known >= 0:
			// Whether it is still the volume's disk is checked elsewhere.
			disks = append(disks, r.Disks[known])
		default:
			disk, err := p.host.Inspect(ctx, address, name)
			if err == nil && disk.Identity == r.Disks[0].Identity {
				disks = append(disks, disk)
			}
		}
	}
	return disks, nil
}

// update records the paths that the kernel lost and found, for volumes with a map.
// Without a map, a disk that is gone is lost to its mount.
func (p scsi) update(ctx context.Context, r *record, at places) error {
	if len(r.Disks) == 0 || slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.Name == r.Device }) {
		return nil
	}
	disks, err := p.present(ctx, r, at)
	if err != nil || len(disks) == 0 || slices.Equal(disks, r.Disks) {
		return err
	}
	p.logger.Info("paths of the volume have changed", "volume", r.Volume, "before", len(r.Disks), "now", len(disks))
	r.Disks = disks
	return p.state.save(r)
}

// complete has nothing to do if the kernel finds paths by itself.
func (p scsi) complete(context.Context, *record) error { return nil }

func (p scsi) inspect(ctx context.Context, disk host.Disk) (host.Disk, error) {
	return p.host.InspectAgain(ctx, disk)
}

func (p scsi) forget(context.Context, *record) error { return nil }

func (p scsi) rescan(ctx context.Context, disk host.Disk, least int64) (host.Disk, error) {
	return p.host.Rescan(ctx, disk, least)
}

// cutOffAt cuts off a record's map and the disks at addresses, unless another volume
// has them.
func (p scsi) cutOffAt(ctx context.Context, r *record, addresses []host.Address) error {
	if err := p.host.FailWithoutPaths(ctx, r.Device, r.Map); err != nil {
		return err
	}
	for _, address := range addresses {
		other, err := p.state.claimant(address, r.Volume)
		if err == nil && other == "" {
			err = p.host.CutOff(ctx, address)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// disks returns the disks with the given names; nil if they are not all SCSI disks.
func (p scsi) disks(names []string) []host.Disk {
	var disks []host.Disk
	for _, name := range names {
		address, err := p.host.AddressOf(name)
		if err != nil {
			return nil
		}
		disks = append(disks, host.Disk{Address: address, Name: name})
	}
	return disks
}

// clear removes a leftover disk from the place of the volume's. It belongs to an earlier
// volume, and the kernel may still have that volume's size and data for it.
func (p scsi) clear(ctx context.Context, r *record, at host.Address, target string) error {
	other, err := p.state.claimant(at, r.Volume)
	if err != nil {
		return err
	}
	if other != "" {
		return host.Refuse(host.InUse, "LUN %d of target %s is volume %s on this node, which is still staged, but the storage now gives its LUN to volume %s", at.LUN, target, other, r.Volume)
	}
	removed, err := p.host.RemoveWithMap(ctx, at, p.foreign(r, at))
	if err != nil {
		return fmt.Errorf("the disk that is already at %s cannot be removed: %w", at, err)
	}
	if removed {
		p.observer.RemovedDisk()
		p.logger.Warn("disk of an earlier volume was still there and is removed", "volume", r.Volume, "address", at.String())
	}
	return nil
}

// inspectNew asks a disk that the kernel has just found for its identity, and refuses one
// that is too small.
func (p scsi) inspectNew(ctx context.Context, r *record, at host.Address, name string) (host.Disk, error) {
	disk, err := p.host.InspectNew(ctx, at, name)
	if err == nil && disk.Bytes < r.Bytes {
		err = host.Refuse(host.WrongDisk, "volume %s has %d bytes, and its disk %s has %d", r.Volume, r.Bytes, name, disk.Bytes)
	}
	return disk, err
}

// accept proves that the disks of the paths are one volume, not shared with another
// volume, and saves the record with them.
func (p scsi) accept(r *record, disks []host.Disk, failures []error, multipath bool) error {
	if len(disks) == 0 {
		return errors.Join(failures...)
	}
	if len(failures) > 0 {
		p.logger.Warn("volume has fewer paths than it could", "volume", r.Volume, "paths", len(disks), "error", errors.Join(failures...))
	}
	for _, disk := range disks[1:] {
		if disk.Identity != disks[0].Identity || disk.Bytes != disks[0].Bytes {
			return host.Refuse(host.WrongDisk, "the paths of volume %s lead to different disks: %s is %s of %d bytes, %s is %s of %d bytes",
				r.Volume, disks[0].Name, disks[0].Identity, disks[0].Bytes, disk.Name, disk.Identity, disk.Bytes)
		}
	}
	if named, _, _ := strings.Cut(disks[0].Identity, "/"); len(r.Identities) > 0 && !slices.Contains(r.Identities, named) {
		return host.Refuse(host.WrongDisk, "the disk %s of volume %s is %s, but Cinder names %s", disks[0].Name, r.Volume, named, strings.Join(r.Identities, ", "))
	}
	if multipath {
		other, err := p.state.namesake(disks[0].Identity, r.Volume)
		if err != nil {
			return err
		}
		if other != "" {
			return host.Refuse(host.WrongDisk, "the disk of volume %s has the identity %s, and so has that of volume %s, which is staged here; multipathd would take them for one", r.Volume, disks[0].Identity, other)
		}
	}
	r.Disks = disks
	return p.state.save(r)
}

// foreign returns a function that reports whether a used map with the disk at an address
// is not the volume's: another volume has it, or this one, whose disk it is, has none yet.
func (p scsi) foreign(r *record, at host.Address) func(string) (bool, error) {
	return func(device string) (bool, error) {
		if r.Device == "" && slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.Address == at }) {
			return true, nil
		}
		return p.ofAnother(r, device)
	}
}

// ofAnother reports whether a device is another volume's.
func (p scsi) ofAnother(r *record, device string) (bool, error) {
	other, err := p.state.other(r.Volume, func(o *record) bool { return o.Device == device })
	return other != "", err
}

// remove removes the disks at addresses, unless another volume has them, and the record's
// map. It succeeds only if nothing on the node can write to the volume anymore: its disks
// and map are gone, and could be opened exclusively before.
func (p scsi) remove(ctx context.Context, r *record, addresses []host.Address) error {
	var errs []error
	for _, address := range addresses {
		other, err := p.state.claimant(address, r.Volume)
		if err == nil && other == "" {
			_, err = p.host.RemoveWithMap(ctx, address, p.foreign(r, address))
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	another, err := p.ofAnother(r, r.Device)
	if err != nil || another {
		return err
	}
	return p.host.FlushEmptyMap(ctx, r.Device, r.Map)
}
