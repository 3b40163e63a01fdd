package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Mount is a mount on the node.
type Mount struct {
	// At is the directory or file that it covers.
	At string
	// Number is the device's, as major:minor.
	Number string
	// Root is the mounted part of the filesystem.
	Root string
	// Type is the filesystem's.
	Type string
	// ReadOnly applies to this mount, and FilesystemReadOnly to all mounts of the
	// filesystem: the kernel sets it after an error.
	ReadOnly, FilesystemReadOnly bool
}

// mountTable is the table of the node's first process. It shows what kubelet and
// containers see, even if this process sees something else. k8s.io/mount-utils reads its
// own container's table and would miss that a mount does not reach the node.
const mountTable = "/proc/1/mountinfo"

// Mounts lists the node's mounts.
func (h *Host) Mounts() ([]Mount, error) {
	content, err := h.root.ReadFile(mountTable)
	if err != nil {
		return nil, err
	}
	return parseMounts(string(content))
}

// parseMounts reads a mountinfo file, see proc(5).
func parseMounts(text string) ([]Mount, error) {
	var mounts []Mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(rest) < 2 {
			return nil, fmt.Errorf("%s has the line %q", mountTable, line)
		}
		mount := Mount{Number: fields[2], Root: unescape(fields[3]), At: unescape(fields[4]), Type: rest[0], ReadOnly: hasOption(fields[5], "ro")}
		if len(rest) > 2 {
			mount.FilesystemReadOnly = hasOption(rest[2], "ro")
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

func hasOption(options, option string) bool {
	return slices.Contains(strings.Split(options, ","), option)
}

// unescape reads the octal escapes of mountinfo.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// MountsAt lists the mounts at a path; the last one is the topmost. The path may contain
// links, such as a kubelet's directory that is one, but the kernel's table does not.
func (h *Host) MountsAt(at string) ([]Mount, error) {
	all, err := h.Mounts()
	at = path.Join(h.root.Resolve(path.Dir(at)), path.Base(at))
	return slices.DeleteFunc(all, func(m Mount) bool { return m.At != at }), err
}

// MountsOf lists the mounts of a device's filesystem, and those of the device itself as a
// file.
func (h *Host) MountsOf(device string) ([]Mount, error) {
	number := h.attribute("/sys/block/" + device + "/dev")
	all, err := h.Mounts()
	return slices.DeleteFunc(all, func(m Mount) bool { return (number == "" || m.Number != number) && !m.isOfDevice(device) }), err
}

// isOfDevice reports whether the mount shows a device as a file.
func (m Mount) isOfDevice(device string) bool {
	return m.Type == "devtmpfs" && strings.TrimSuffix(m.Root, "//deleted") == "/"+device
}

// Shows reports whether a mount shows a device: its filesystem, or the device as a
// file.
func (h *Host) Shows(m Mount, device string) bool {
	return m.isOfDevice(device) || m.Number != "" && m.Number == h.attribute("/sys/block/"+device+"/dev")
}

// DeviceOf returns the kernel's name of a mount's block device; empty if it has none.
func (h *Host) DeviceOf(m Mount) (string, error) {
	if m.Type == "devtmpfs" {
		return strings.TrimSuffix(path.Base(m.Root), "//deleted"), nil
	}
	content, err := h.root.ReadFile("/sys/dev/block/" + m.Number + "/uevent")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("the kernel does not name device %s", m.Number)
}

// Mount mounts a device's filesystem.
func (h *Host) Mount(ctx context.Context, device, at, filesystem string, options []string) error {
	if err := h.root.MakeDir(at); err != nil {
		return err
	}
	return h.mount(ctx, at, "-t", filesystem, "-o", strings.Join(options, ","), "/dev/"+device, at)
}

// Bind shows a directory or file at another path. The options apply to the mount, not to
// the filesystem.
func (h *Host) Bind(ctx context.Context, from, at string, options []string) error {
	if err := h.mount(ctx, at, "--bind", "-o", netdev, from, at); err != nil {
		return err
	}
	return h.Rebind(ctx, at, options)
}

// Rebind changes the options of a bind mount.
func (h *Host) Rebind(ctx context.Context, at string, options []string) error {
	if len(options) == 0 {
		return nil
	}
	return h.mount(ctx, at, "-o", strings.Join(append([]string{"remount", "bind"}, options...), ","), at)
}

func (h *Host) mount(ctx context.Context, at string, arguments ...string) error {
	if _, err := h.run(ctx, "mount", arguments...); err != nil {
		return err
	}
	mounts, err := h.MountsAt(at)
	if err == nil && len(mounts) == 0 {
		_, err = h.run(ctx, "umount", at)
		err = errors.Join(fmt.Errorf("%s is mounted for the node plugin only, and not for the node; mount the node's root directory into its container with mountPropagation: Bidirectional", at), err)
	}
	return err
}

// deepestStack bounds how many mounts on one path are undone.
const deepestStack = 20

// Unmount undoes every mount on a path.
func (h *Host) Unmount(ctx context.Context, at string) error {
	for range deepestStack {
		mounts, err := h.MountsAt(at)
		if err != nil || len(mounts) == 0 {
			return err
		}
		if _, err := h.run(ctx, "umount", path.Clean(at)); err != nil {
			// A hanging umount has already removed the mount from the table.
			var tool *ToolError
			if !errors.As(err, &tool) {
				return err
			}
			// Another process may have been faster.
			if again, lookErr := h.MountsAt(at); lookErr != nil || len(again) >= len(mounts) {
				return errors.Join(err, lookErr)
			}
		}
	}
	return fmt.Errorf("%s is still mounted after %d unmounts", at, deepestStack)
}

// MakeDir makes a directory for a mount.
func (h *Host) MakeDir(at string) error { return h.root.MakeDir(at) }

// MakeFile makes a file for the mount of a device.
func (h *Host) MakeFile(at string) error { return h.root.MakeFile(at) }

// Remove removes what a mount covered: a file, or an empty directory.
func (h *Host) Remove(at string) error { return h.root.Remove(at) }

// Usage reads how full the filesystem at a path is.
func (h *Host) Usage(ctx context.Context, at string) (Usage, error) { return h.root.Usage(ctx, at) }
