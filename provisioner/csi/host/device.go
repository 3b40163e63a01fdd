package host

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// What holds of every block device of a node: its size, its mounts, what claims it, and
// what the node itself found inside it.

// Size returns the size of a device according to the kernel.
func (h *Host) Size(device string) (int64, error) {
	sectors, err := strconv.ParseInt(h.attribute("/sys/block/"+device+"/size"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the size of %s: %w", device, err)
	}
	return sectors * 512, nil
}

// refuseUsed refuses a device that is mounted or claimed, in any namespace. A dead device
// counts as unused, because its data cannot be reached anyway.
func (h *Host) refuseUsed(ctx context.Context, device string) error {
	mounts, err := h.MountsOf(device)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return Refuse(InUse, "%s is still mounted at %s", device, mounts[0].At)
	}
	holders, err := h.holders(device)
	if err != nil {
		return err
	}
	for _, holder := range holders {
		if !h.isLayer(holder) {
			return Refuse(InUse, "%s is part of %s. If the node itself activated what it found inside the volume, stop that (vgchange -an, mdadm --stop), and keep LVM and mdadm off the disks of volumes", device, holder)
		}
		if err := h.refuseUsed(ctx, holder); err != nil {
			return fmt.Errorf("the node found %s inside %s; stop what uses it, and keep LVM and kpartx off the disks of volumes: %w", h.mapperName(holder), device, err)
		}
	}
	if len(holders) > 0 {
		// They claim the device, so nothing else can.
		return nil
	}
	claimed, err := h.root.Claimed(ctx, device)
	switch {
	case isDead(err):
		h.logger.Warn("device is dead, and taken for unused", "device", device, "error", err)
	case err != nil:
		return err
	case claimed:
		return Refuse(InUse, "something still uses %s, perhaps a mount in another container", device)
	}
	return nil
}

// holders returns the devices that are built on a device and on its partitions.
func (h *Host) holders(device string) ([]string, error) {
	directory := "/sys/block/" + device
	below, err := list(h.root, directory)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range append([]string{""}, below...) {
		if name != "" && !strings.HasPrefix(name, device) {
			continue
		}
		names, err := list(h.root, path.Join(directory, name, "holders"))
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	return all, nil
}

// isLayer reports whether a device is a partition or a logical volume, which the node's
// own rules create from the content of a raw volume, even if they are unused; or one that
// this driver opened, and of which a lost record left no other trace.
func (h *Host) isLayer(device string) bool {
	id := h.mapperID(device)
	return strings.HasPrefix(id, "part") || strings.HasPrefix(id, "LVM-") || strings.HasPrefix(id, cryptPrefix) && strings.HasPrefix(h.mapperName(device), LUKSPrefix)
}

func (h *Host) mapperName(device string) string {
	return h.attribute("/sys/block/" + device + "/dm/name")
}

func (h *Host) mapperID(device string) string {
	return h.attribute("/sys/block/" + device + "/dm/uuid")
}

// Unlayer removes a device's unused layers. One that stays harms only itself. The
// partitions of a map are left to multipath, which removes them with the map.
func (h *Host) Unlayer(ctx context.Context, device string) {
	holders, err := h.holders(device)
	for _, holder := range holders {
		if !h.isLayer(holder) {
			continue
		}
		h.Unlayer(ctx, holder)
		if h.isMap(device) && strings.HasPrefix(h.mapperID(holder), "part") {
			continue
		}
		remove := Command{Tool: "dmsetup", Arguments: []string{"remove", "--retry", h.mapperName(holder)}}
		if strings.HasPrefix(h.mapperID(holder), cryptPrefix) {
			remove = Command{Tool: cryptsetup, Arguments: []string{"close", h.mapperName(holder)}}
		}
		_, removeErr := h.call(ctx, remove)
		err = errors.Join(err, removeErr)
	}
	if err != nil {
		h.logger.Warn("what the node found inside the device is not removed", "device", device, "error", err)
	}
}

func (h *Host) isMap(device string) bool {
	return strings.HasPrefix(h.mapperID(device), "mpath-")
}

// Paths returns the disks of a device: those of a map, or the device itself.
func (h *Host) Paths(device string) ([]string, error) {
	if !h.isMap(device) {
		return []string{device}, nil
	}
	return list(h.root, "/sys/block/"+device+"/slaves")
}

// readByPath reads a part of a device. It never reads a map: a map may block a
// read for as long as no path works, and the blocked process cannot be killed.
func (h *Host) readByPath(ctx context.Context, device string, offset int64, length int) ([]byte, error) {
	paths, err := h.Paths(device)
	if err != nil {
		return nil, err
	}
	errs := []error{fmt.Errorf("no path of %s can be read", device)}
	for _, p := range paths {
		content, err := h.root.ReadDevice(ctx, p, offset, length)
		if err == nil {
			return content, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
