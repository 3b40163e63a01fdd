package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The filesystems that volumes can have.
const (
	Ext4 = "ext4"
	XFS  = "xfs"
)

// Content describes the beginning of a device.
type Content struct {
	// Filesystem is the type of the filesystem; empty if none is recognized.
	Filesystem string
	// UUID is the filesystem's.
	UUID string
	// Bytes is the size of the filesystem.
	Bytes int64
	// Unfinished is the UUID of a filesystem that mkfs has not finished.
	Unfinished string
	// Empty means that the beginning is all zeros.
	Empty bool
	// LUKS is the header of an encrypted device, in which only what is opened from it
	// has a filesystem.
	LUKS LUKS
	// Unreadable means that the device begins as a LUKS header does, and goes on otherwise.
	Unreadable bool
}

// beginning is how much of a device is read. Every filesystem, partition table and volume
// manager writes something there.
const beginning = 2 << 20

// Look reads the beginning of the device itself, or of a path if it is a map.
func (h *Host) Look(ctx context.Context, device string) (Content, error) {
	content, err := h.readByPath(ctx, device, 0, beginning)
	if err != nil {
		return Content{}, err
	}
	if len(content) != beginning {
		return Content{}, fmt.Errorf("%s gave %d bytes instead of %d", device, len(content), beginning)
	}
	return recognize(content), nil
}

// recognize reads superblocks: xfs_sb in the kernel's xfs_format.h, and
// ext4_super_block in its ext4.h.
func recognize(content []byte) Content {
	var found Content
	xfs := bytes.HasPrefix(content, []byte("XFSB"))
	super := content[1024:2048]
	ext := binary.LittleEndian.Uint16(super[0x38:]) == 0xef53
	encrypted := readLUKS(content)
	switch {
	case encrypted.Version != 0:
		found.LUKS = encrypted
	case xfs && ext:
		// If there are two signatures, one is a leftover, but it is unknown which.
		return Content{Filesystem: "ext and xfs"}
	case xfs && content[126] != 0:
		// mkfs.xfs writes the superblock first and clears sb_inprogress at the end.
		found.Unfinished = uuid(content[32:48])
	case xfs:
		size, blocks := binary.BigEndian.Uint32(content[4:]), binary.BigEndian.Uint64(content[8:])
		found = Content{Filesystem: XFS, UUID: uuid(content[32:48]), Bytes: int64(blocks) * int64(size)}
	case ext:
		found = Content{Filesystem: "ext2", UUID: uuid(super[0x68:0x78])}
		if binary.LittleEndian.Uint32(super[0x5c:])&0x4 != 0 { // It has a journal.
			found.Filesystem = "ext3"
		}
		incompatible := binary.LittleEndian.Uint32(super[0x60:])
		blocks := uint64(binary.LittleEndian.Uint32(super[0x4:]))
		if incompatible&0x40 != 0 { // It has extents.
			found.Filesystem = Ext4
		}
		if incompatible&0x80 != 0 { // It counts blocks in 64 bits.
			blocks |= uint64(binary.LittleEndian.Uint32(super[0x150:])) << 32
		}
		found.Bytes = int64(blocks) << (10 + min(binary.LittleEndian.Uint32(super[0x18:]), 6))
	default:
		found.Empty, found.Unreadable = isEmpty(content), bytes.HasPrefix(content, luksMagic)
	}
	return found
}

func uuid(b []byte) string {
	return strings.Join([]string{hex.EncodeToString(b[:4]), hex.EncodeToString(b[4:6]), hex.EncodeToString(b[6:8]), hex.EncodeToString(b[8:10]), hex.EncodeToString(b[10:16])}, "-")
}

// Wanted describes a volume's intended filesystem.
type Wanted struct {
	// Volume is the volume's ID, which becomes the filesystem's UUID.
	Volume string
	// Copied are the IDs of volumes that it may be a copy of.
	Copied []string
	// Filesystem is the type.
	Filesystem string
	// ReadOnly means that nothing may be written.
	ReadOnly bool
	// Begun means that formatting of this very disk has begun but not ended.
	Begun bool
	// NeverFormat means that the volume, or the source of its copy, existed before its
	// claim. Then seemingly empty content may be data: a disk image may begin with zeros.
	NeverFormat bool
	// Options are further options of mkfs.
	Options []string
}

// Judge decides what to do with a device's content: use it, or format the device. It
// refuses everything else, because another volume's data would be used or lost.
//
// See docs/decisions.md, "What a disk must prove".
func Judge(device string, c Content, w Wanted) (format bool, err error) {
	switch {
	case c.Unreadable:
		return false, unreadable(device, w)
	case c.LUKS.Version != 0:
		return false, Refuse(WrongFilesystem, "the disk of volume %s (%s) is encrypted with LUKS%d, but Cinder says that the volume is not; nothing was changed", w.Volume, device, c.LUKS.Version)
	case c.UUID != "" && c.UUID != w.Volume && !slices.Contains(w.Copied, c.UUID):
		return false, Refuse(WrongVolume, "the disk of volume %s (%s) holds a filesystem with the UUID %s; a filesystem of this volume has the volume's ID as its UUID. Nothing was changed", w.Volume, device, c.UUID)
	case c.UUID != "" && c.Filesystem != w.Filesystem:
		return false, Refuse(WrongFilesystem, "volume %s holds %s, but %s was requested", w.Volume, c.Filesystem, w.Filesystem)
	case c.UUID != "":
		return false, nil
	case w.ReadOnly:
		return false, Refuse(WrongFilesystem, "volume %s holds no filesystem, and none can be created on it, because it is read-only", w.Volume)
	case w.NeverFormat:
		return false, Refuse(WrongFilesystem, "volume %s (or its source) was not created by this driver and disk %s has no known filesystem; such a volume is never formatted, so nothing was changed", w.Volume, device)
	// Only mkfs of this very volume leaves an unfinished filesystem with its UUID.
	case c.Empty, w.Begun && c.Filesystem == "", c.Unfinished == w.Volume:
		return true, nil
	}
	return false, notEmpty(device, w, beginning)
}

// unreadable gives no advice to overwrite anything: whoever destroys a header destroys all
// data.
func unreadable(device string, w Wanted) error {
	return Refuse(NotEmpty, "the disk of volume %s (%s) begins with a LUKS header that this driver cannot read: it is damaged, of another version, or being encrypted anew; look at it with cryptsetup luksDump. Nothing was changed", w.Volume, device)
}

// notEmpty refuses a disk that must begin with zeros.
func notEmpty(device string, w Wanted, zeros int64) error {
	return Refuse(NotEmpty, "the disk of volume %s (%s) holds no filesystem, but is not empty either, so it is not formatted. If formatting was interrupted on another node, overwrite its first %d MiB with zeros", w.Volume, device, zeros>>20)
}

// formatLimit bounds mkfs and growing, which are slow on large disks.
const formatLimit = 30 * time.Minute

// Format creates and verifies the filesystem. It discards nothing, because the volume is
// new, and some storage takes hours to discard everything.
func (h *Host) Format(ctx context.Context, device string, c Content, w Wanted) error {
	if _, err := h.call(ctx, Command{Tool: "mkfs." + w.Filesystem, Arguments: makeArguments("/dev/"+device, c, w), Limit: formatLimit}); err != nil {
		return err
	}
	made, err := h.Look(ctx, device)
	if err == nil && (made.Filesystem != w.Filesystem || made.UUID != w.Volume) {
		err = fmt.Errorf("mkfs.%s succeeded, but %s holds %+v", w.Filesystem, device, made)
	}
	return err
}

func makeArguments(file string, c Content, w Wanted) []string {
	arguments := []string{"-q", "-F", "-E", "nodiscard", "-m", "0", "-U", w.Volume}
	if w.Filesystem == XFS {
		arguments = []string{"-q", "-K", "-m", "uuid=" + w.Volume}
		if !c.Empty {
			arguments = append(arguments, "-f")
		}
	}
	return append(append(arguments, w.Options...), file)
}

// Exit codes of e2fsck, which can be combined.
const (
	errorsLeft       = 4
	operationalError = 8
)

// Check repairs what can be repaired without asking. Like kubelet, it refuses only a
// filesystem whose errors remain: e2fsck also fails on features newer than itself, which
// the kernel may know. An interrupted repair could do harm, so there is no time limit.
func (h *Host) Check(ctx context.Context, device, filesystem string) error {
	// xfs recovers when mounted and needs no such check.
	if filesystem != Ext4 {
		return nil
	}
	_, err := h.call(ctx, Command{Tool: "e2fsck", Arguments: []string{"-p", "/dev/" + device}, Limit: Unlimited})
	var tool *ToolError
	// A negative code means that it was killed.
	if errors.As(err, &tool) && tool.Code > 0 && tool.Code&(errorsLeft|operationalError) != errorsLeft {
		h.logger.Warn("filesystem was repaired, or could not be checked", "device", device, "code", tool.Code, "output", tool.Output)
		return nil
	}
	return err
}

// netdev tells systemd that a mount needs the network.
const netdev = "_netdev"

// Options returns the options with which a volume's filesystem is mounted.
func Options(filesystem string, given []string, readOnly, refusesWrites bool) []string {
	// Without _netdev, systemd stops the node's network before it unmounts the
	// filesystem.
	options := append(slices.Clone(given), netdev)
	add := func(option string) {
		if !slices.Contains(options, option) {
			options = append(options, option)
		}
	}
	if readOnly {
		options = slices.DeleteFunc(options, func(o string) bool { return o == "rw" })
		add("ro")
	}
	if filesystem == XFS {
		// A copy has the UUID of its source, which may be mounted on the same node.
		add("nouuid")
	}
	if refusesWrites {
		// The journal cannot be replayed.
		add(map[string]string{Ext4: "noload", XFS: "norecovery"}[filesystem])
	}
	if filesystem == Ext4 && !slices.ContainsFunc(given, func(o string) bool { return strings.HasPrefix(o, "errors=") }) {
		// After an error, more writes could do more harm, and pods would not notice.
		add("errors=remount-ro")
	}
	return options
}

// Grow grows a mounted filesystem to the size of its device.
func (h *Host) Grow(ctx context.Context, device, at, filesystem string) error {
	content, err := h.Look(ctx, device)
	if err != nil {
		return err
	}
	size, err := h.Size(device)
	if err != nil || content.Bytes >= size {
		return err
	}
	if filesystem == XFS {
		_, err = h.call(ctx, Command{Tool: "xfs_growfs", Arguments: []string{at}, Limit: formatLimit})
		return err
	}
	_, err = h.call(ctx, Command{Tool: "resize2fs", Arguments: []string{"/dev/" + device}, Limit: formatLimit})
	return err
}

// IsReadOnly reports whether the kernel refuses writes to a device.
func (h *Host) IsReadOnly(device string) bool {
	return h.attribute("/sys/block/"+device+"/ro") == "1"
}

// SetReadOnly makes the kernel refuse writes to a device, or accept them again.
func (h *Host) SetReadOnly(ctx context.Context, device string, readOnly bool) error {
	option := "--setrw"
	if readOnly {
		option = "--setro"
	}
	_, err := h.run(ctx, "blockdev", option, "/dev/"+device)
	return err
}
