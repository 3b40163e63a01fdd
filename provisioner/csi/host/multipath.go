package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"
)

// mapPatience bounds the wait for a multipath map.
const mapPatience = 15 * time.Second

// MultipathRuns reports whether the node's multipathd is running.
func (h *SCSI) MultipathRuns(ctx context.Context) bool {
	if !h.root.Has("multipathd") {
		return false
	}
	// The answer begins with "pid" if it runs. Some releases exit with 0 either way.
	output, err := h.root.Run(ctx, Command{Tool: "multipathd", Arguments: []string{"show", "daemon"}, Limit: 10 * time.Second})
	return err == nil && strings.HasPrefix(output, "pid")
}

// NeedMultipath returns an error if a node whose multipathd runs lacks multipath.
func (h *SCSI) NeedMultipath() error {
	if !h.root.Has("multipath") {
		return errors.New("the node runs multipathd, but has no multipath; install multipath-tools")
	}
	return nil
}

// mapOf returns the multipath map of which a disk is a path; empty if there is none.
func (h *SCSI) mapOf(disk string) (string, error) {
	holders, err := h.holders(disk)
	if err != nil {
		return "", err
	}
	for _, holder := range holders {
		if h.isMap(holder) {
			return holder, nil
		}
	}
	return "", nil
}

// MapID returns a map's identifier, which is independent of its name; empty if the device
// is not a map.
func (h *SCSI) MapID(device string) string {
	if !h.isMap(device) {
		return ""
	}
	return h.mapperID(device)
}

// Join returns the device for all of a volume's disks. It is a map if there are several
// disks, or if multipathd already holds the only one. If more is true, the volume may get
// further disks later, and Join asks multipathd for a map of only one.
func (h *SCSI) Join(ctx context.Context, disks []Disk, more bool) (string, error) {
	runs := h.MultipathRuns(ctx)
	if runs {
		if err := h.offer(ctx, disks, more); err != nil {
			return "", err
		}
	} else if len(disks) > 1 {
		return "", fmt.Errorf("the volume has %d disks, and multipathd does not run", len(disks))
	}
	var device string
	joined, err := until(ctx, mapPatience, func() (bool, error) {
		maps := map[string]bool{}
		for _, d := range disks {
			found, err := h.mapOf(d.Name)
			if err != nil {
				return false, err
			}
			maps[found], device = true, found
		}
		if len(disks) == 1 && device == "" && !(runs && more) {
			device = disks[0].Name
			return true, nil
		}
		return len(maps) == 1 && !maps[""], nil
	})
	if err != nil {
		return "", err
	}
	if !joined && len(disks) == 1 {
		h.logger.Warn("multipathd makes no map of the only disk, so paths that come later cannot join", "disk", disks[0].Name)
		return disks[0].Name, nil
	}
	if !joined {
		return "", fmt.Errorf("multipathd made no map of all %d disks of the volume in %s; see multipath -v3", len(disks), mapPatience)
	}
	return device, h.refuseForeign(device, disks)
}

// Extend adds a disk to a map and waits until it is a path.
func (h *SCSI) Extend(ctx context.Context, device, id string, d Disk) error {
	if err := h.offer(ctx, []Disk{d}, true); err != nil {
		return err
	}
	return await(ctx, mapPatience, func() (bool, error) {
		found, err := h.mapOf(d.Name)
		return found == device && h.MapID(found) == id, err
	}, "multipathd did not add %s to %s in %s; see multipath -v3", d.Name, device, mapPatience)
}

// offer adds the disks to multipathd, which would not accept a single new one by itself.
func (h *SCSI) offer(ctx context.Context, disks []Disk, more bool) error {
	if len(disks) == 1 && !more {
		// udev's rules, which may give the disk to multipathd, run after the disk
		// appeared.
		if h.root.Has("udevadm") {
			// udevadm also waits for other devices. If it gives up too early, the device
			// cannot be mounted, and the next attempt finds the map.
			if _, err := h.run(ctx, "udevadm", "settle", "--timeout=10"); err != nil {
				h.logger.Info("udev is busy", "error", err)
			}
		}
		return nil
	}
	if _, err := h.run(ctx, "multipath", "-a", "/dev/"+disks[0].Name); err != nil {
		return err
	}
	for _, d := range disks {
		// multipathd answers "fail" for a path that it already has.
		if _, err := h.run(ctx, "multipathd", "add", "path", d.Name); err != nil {
			var tool *ToolError
			if !errors.As(err, &tool) {
				return err
			}
		}
	}
	return nil
}

// refuseForeign refuses a map with paths of other volumes, because writes could go there.
func (h *SCSI) refuseForeign(device string, disks []Disk) error {
	paths, err := h.Paths(device)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if !slices.ContainsFunc(disks, func(d Disk) bool { return d.Name == p }) {
			return Refuse(ForeignPath, "multipath map %s has path %s, which is not the volume's", device, p)
		}
	}
	return nil
}

// flushTries is how often a flush is tried, because udev briefly opens maps.
const flushTries = 5

// FlushMap removes a multipath map and waits until it is gone. It refuses if the map is
// in use.
func (h *SCSI) FlushMap(ctx context.Context, device string) error {
	if err := h.refuseUsed(ctx, device); err != nil {
		return err
	}
	h.Unlayer(ctx, device)
	name := h.mapperName(device)
	var last error
	tried := 0
	gone, err := until(ctx, patience, func() (bool, error) {
		if _, err := h.root.ReadDir("/sys/block/" + device); errors.Is(err, fs.ErrNotExist) {
			return true, nil
		} else if err != nil {
			return false, err
		}
		if tried < flushTries {
			tried++
			_, last = h.run(ctx, "multipath", "-f", name)
		}
		return false, nil
	})
	if err == nil && !gone {
		err = errors.Join(fmt.Errorf("multipath map %s (%s) still exists after %s", name, device, patience), last)
	}
	return err
}

// FlushEmptyMap removes the map with an ID if it has lost all its disks. Otherwise the
// disks belong to another volume, and FlushEmptyMap only refuses if the map is in use.
func (h *SCSI) FlushEmptyMap(ctx context.Context, device, id string) error {
	if id == "" || h.MapID(device) != id {
		return nil
	}
	paths, err := h.Paths(device)
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		return h.refuseUsed(ctx, device)
	}
	if err := h.FailWithoutPaths(ctx, device, id); err != nil {
		return err
	}
	return h.FlushMap(ctx, device)
}

// RemoveWithMap removes a disk, and before it the map of which it is a path. If the map
// is in use, RemoveWithMap refuses, unless foreign reports that the map is another
// volume's: multipathd has then merged two volumes with the same identity, and the disk
// is removed from the map.
func (h *SCSI) RemoveWithMap(ctx context.Context, a Address, foreign func(device string) (bool, error)) (removed bool, err error) {
	name, known, err := h.diskAt(a)
	if err != nil {
		return false, err
	}
	if name != "" {
		if err := h.leaveMap(ctx, name, foreign); err != nil {
			return false, err
		}
	}
	return known, h.RemoveDisk(ctx, a)
}

func (h *SCSI) leaveMap(ctx context.Context, disk string, foreign func(device string) (bool, error)) error {
	device, err := h.mapOf(disk)
	if err != nil || device == "" {
		return err
	}
	used := h.FlushMap(ctx, device)
	var refusal *Refusal
	if !errors.As(used, &refusal) || refusal.Reason != InUse {
		return used
	}
	if merged, err := foreign(device); err != nil || !merged {
		return errors.Join(used, err)
	}
	if _, err := h.run(ctx, "multipathd", "del", "path", disk); err != nil {
		return err
	}
	return await(ctx, mapPatience, func() (bool, error) {
		device, err := h.mapOf(disk)
		return device == "", err
	}, "disk %s is still a path of %s after %s", disk, device, mapPatience)
}

// FailEmptyMap makes the map with an ID fail its blocked requests if it has lost all its
// disks: processes waiting for it cannot be killed and would wait forever.
func (h *SCSI) FailEmptyMap(ctx context.Context, device, id string) error {
	paths, err := h.Paths(device)
	if err != nil || len(paths) > 0 {
		return err
	}
	return h.FailWithoutPaths(ctx, device, id)
}

// FailWithoutPaths makes the map with an ID fail writes instead of blocking them until a
// path returns.
func (h *SCSI) FailWithoutPaths(ctx context.Context, device, id string) error {
	if id == "" || h.MapID(device) != id {
		return nil
	}
	_, err := h.run(ctx, "multipathd", "disablequeueing", "map", h.mapperName(device))
	return err
}

// ResizeMap grows a map to the size of its paths.
func (h *SCSI) ResizeMap(ctx context.Context, device string, least int64) error {
	if !h.isMap(device) {
		return nil
	}
	name := h.mapperName(device)
	var last error
	grown, err := until(ctx, mapPatience, func() (bool, error) {
		size, err := h.Size(device)
		if err != nil || size >= least {
			return err == nil, err
		}
		// Resize only this map: a reconfiguration would affect all of the node's maps.
		_, last = h.run(ctx, "multipathd", "resize", "map", name)
		return false, nil
	})
	if err == nil && !grown {
		err = errors.Join(fmt.Errorf("multipath map %s did not grow to %d bytes in %s", name, least, mapPatience), last)
	}
	return err
}

// Enlarge makes the kernel see that a device, which consists of some of the disks, has grown
// to at least the given size, and returns the size. rescan makes it see that of one disk.
func (h *SCSI) Enlarge(ctx context.Context, device string, disks []Disk, least int64, rescan func(context.Context, Disk, int64) (Disk, error)) (int64, error) {
	used, err := h.Paths(device)
	if err != nil {
		return 0, err
	}
	// Rescan every used path: the kernel makes no map larger than any of its paths,
	// working or not.
	size := int64(math.MaxInt64)
	for i, disk := range disks {
		if !slices.Contains(used, disk.Name) {
			continue
		}
		if disks[i], err = rescan(ctx, disk, least); err != nil && len(used) > 1 {
			err = fmt.Errorf("path %s of the volume does not answer with the new size; repair it, or take it out of the map (multipathd del path %s): %w", disk.Name, disk.Name, err)
		}
		if err != nil {
			return 0, err
		}
		size = min(size, disks[i].Bytes)
	}
	if size == math.MaxInt64 {
		return 0, fmt.Errorf("%s has no path of the volume", device)
	}
	return size, h.ResizeMap(ctx, device, size)
}
