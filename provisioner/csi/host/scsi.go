package host

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// SCSI is a node's disks at SCSI addresses, and the multipath maps over them.
type SCSI struct{ *Host }

// Address is the kernel's address of a SCSI disk: host, channel, target and LUN.
type Address struct {
	Host    int `json:"host"`
	Channel int `json:"channel"`
	Target  int `json:"target"`
	LUN     int `json:"lun"`
}

// String returns the address in the form of sysfs.
func (a Address) String() string {
	return fmt.Sprintf("%d:%d:%d:%d", a.Host, a.Channel, a.Target, a.LUN)
}

func parseAddress(text string) (Address, bool) {
	parts := strings.Split(text, ":")
	var numbers [4]int
	if len(parts) != len(numbers) {
		return Address{}, false
	}
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return Address{}, false
		}
		numbers[i] = n
	}
	return Address{numbers[0], numbers[1], numbers[2], numbers[3]}, true
}

// Disk is a disk of the node.
type Disk struct {
	// Address is set for SCSI disks, Namespace for NVMe disks, and Image, which is
	// pool/image, for those of Ceph.
	Address   Address   `json:"address"`
	Namespace Namespace `json:"namespace,omitzero"`
	Image     string    `json:"image,omitempty"`
	// Name is the kernel's name, such as sdb.
	Name string `json:"name"`
	// Identity is the identity that the disk itself reports.
	Identity string `json:"identity"`
	// Bytes is the size that the disk itself reports.
	Bytes int64 `json:"bytes"`
}

// IsAt reports whether it is the SCSI disk at an address.
func (d Disk) IsAt(a Address) bool {
	return d.Namespace == Namespace{} && d.Image == "" && d.Address == a
}

func (a Address) directory() string { return "/sys/class/scsi_device/" + a.String() + "/device" }

// DiskAt returns the name of the disk at an address; empty if the kernel has none
// there.
func (h *SCSI) DiskAt(a Address) (string, error) {
	name, _, err := h.diskAt(a)
	return name, err
}

// diskAt returns the name of the disk at an address; empty if the kernel has none
// there. known reports whether the kernel has any device there.
func (h *SCSI) diskAt(a Address) (name string, known bool, err error) {
	if _, err := h.root.ReadDir(a.directory()); errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	} else if err != nil {
		return "", false, err
	}
	names, err := list(h.root, a.directory()+"/block")
	if err != nil || len(names) == 0 {
		return "", true, err
	}
	return names[0], true, nil
}

// AddressOf returns the address of the disk with a name.
func (h *SCSI) AddressOf(disk string) (Address, error) {
	names, err := h.root.ReadDir("/sys/block/" + disk + "/device/scsi_device")
	if err != nil {
		return Address{}, fmt.Errorf("%s is not a SCSI disk: %w", disk, err)
	}
	if len(names) != 1 {
		return Address{}, fmt.Errorf("%s is not one SCSI disk", disk)
	}
	address, ok := parseAddress(names[0])
	if !ok {
		return Address{}, fmt.Errorf("%s has address %q", disk, names[0])
	}
	return address, nil
}

// DisksOf lists the addresses of a host's devices that hold data. Arrays also show
// controllers and enclosures, which do not keep a session in use.
func (h *SCSI) DisksOf(host int) ([]Address, error) {
	names, err := list(h.root, "/sys/class/scsi_device")
	if err != nil {
		return nil, err
	}
	var found []Address
	for _, name := range names {
		address, ok := parseAddress(name)
		if !ok || address.Host != host {
			continue
		}
		// The types are processor, array controller, enclosure, well-known LUN, and no
		// device.
		if !slices.Contains([]string{"3", "12", "13", "30", "31"}, h.attribute(address.directory()+"/type")) {
			found = append(found, address)
		}
	}
	return found, nil
}

// scan makes the kernel scan one address.
func (h *SCSI) scan(ctx context.Context, a Address) error {
	err := h.root.Set(ctx, fmt.Sprintf("/sys/class/scsi_host/host%d/scan", a.Host), fmt.Sprintf("%d %d %d", a.Channel, a.Target, a.LUN))
	if err != nil {
		return fmt.Errorf("scan for %s: %w", a, err)
	}
	return nil
}

// scanPause is how long to wait before an address is scanned again.
const scanPause = 2 * time.Second

// Scan makes the kernel scan one address and waits for the disk.
func (h *SCSI) Scan(ctx context.Context, a Address) (string, error) {
	var name string
	var scanned time.Time
	err := await(ctx, patience, func() (bool, error) {
		var known bool
		var err error
		if name, known, err = h.diskAt(a); err != nil || name != "" {
			return err == nil, err
		}
		// The array may take a moment to export the LUN.
		if !known && time.Since(scanned) >= scanPause {
			if err := h.scan(ctx, a); err != nil {
				return false, err
			}
			scanned = time.Now()
		}
		return false, nil
	}, "the storage exposed no disk at %s within %s", a, patience)
	return name, err
}

// RemoveDisk removes a disk from the kernel and waits until it is gone. It refuses if the
// disk is in use.
func (h *SCSI) RemoveDisk(ctx context.Context, a Address) error {
	name, known, err := h.diskAt(a)
	if err != nil || !known {
		return err
	}
	if name != "" {
		if err := h.refuseUsed(ctx, name); err != nil {
			return err
		}
		h.Unlayer(ctx, name)
	}
	if err := h.root.Set(ctx, a.directory()+"/delete", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove disk %s: %w", a, err)
	}
	return await(ctx, patience, func() (bool, error) {
		_, known, err := h.diskAt(a)
		return !known, err
	}, "disk %s (%s) still exists after %s", name, a, patience)
}

// dead are the errors of a device that will never answer again. A device that does not
// answer at all may return, and then pending writes arrive.
var dead = []syscall.Errno{syscall.ENXIO, syscall.EIO, syscall.ENODEV, syscall.ENOENT}

func isDead(err error) bool {
	return slices.ContainsFunc(dead, func(d syscall.Errno) bool { return errors.Is(err, d) })
}

// Inspect asks the disk itself for its identity and size.
func (h *SCSI) Inspect(ctx context.Context, a Address, name string) (Disk, error) {
	identity, err := h.identity(ctx, name)
	if err != nil {
		return Disk{}, err
	}
	bytes, err := h.capacity(ctx, name)
	if err != nil {
		return Disk{}, err
	}
	return Disk{Address: a, Name: name, Identity: identity, Bytes: bytes}, nil
}

// InspectAgain is Inspect for a disk that may have disappeared, so that its name could by
// now be another disk's.
func (h *SCSI) InspectAgain(ctx context.Context, d Disk) (Disk, error) {
	if err := h.isStillAt(d); err != nil {
		return Disk{}, err
	}
	found, err := h.Inspect(ctx, d.Address, d.Name)
	if err != nil {
		return Disk{}, err
	}
	return found, h.isStillAt(d)
}

func (h *SCSI) isStillAt(d Disk) error {
	name, _, err := h.diskAt(d.Address)
	if err == nil && name != d.Name {
		err = fmt.Errorf("%s is no longer at %s", d.Name, d.Address)
	}
	return err
}

// InspectNew is InspectAgain for a disk that the kernel has just found, which can be
// opened only a moment after it appears.
func (h *SCSI) InspectNew(ctx context.Context, a Address, name string) (Disk, error) {
	var found Disk
	var last error
	_, err := until(ctx, patience, func() (bool, error) {
		found, last = h.InspectAgain(ctx, Disk{Address: a, Name: name})
		if isDead(last) {
			return false, nil
		}
		return true, last
	})
	if err == nil {
		err = last
	}
	return found, err
}

const (
	commandInquiry      = 0x12
	commandServiceIn    = 0x9e
	serviceReadCapacity = 0x10

	pageSerial         = 0x80
	pageIdentification = 0x83

	// inquiryLength is enough for most answers, and small enough for every disk;
	// longestInquiry is the most that a command can request.
	inquiryLength  = 252
	longestInquiry = 1<<16 - 1
)

// ErrNotSupported is a disk's answer to an inquiry that it does not support.
var ErrNotSupported = errors.New("the disk does not support this")

// identity returns the disk's designator and serial number.
func (h *SCSI) identity(ctx context.Context, disk string) (string, error) {
	page, err := h.inquire(ctx, disk, pageIdentification)
	if err != nil {
		return "", err
	}
	designator, err := parseDesignators(page)
	if err != nil {
		return "", fmt.Errorf("%s: %w", disk, err)
	}
	page, err = h.inquire(ctx, disk, pageSerial)
	// A serial number is optional.
	if err != nil && !errors.Is(err, ErrNotSupported) {
		return "", err
	}
	identity := designator + "/" + printable(page)
	if identity == "/" {
		return "", Refuse(WrongDisk, "disk %s reports no identity", disk)
	}
	return identity, nil
}

// inquire reads a page of vital product data, without its header. If the page is longer
// than requested, as with long target names, it requests all of it.
func (h *SCSI) inquire(ctx context.Context, disk string, page byte) ([]byte, error) {
	for length := inquiryLength; ; {
		answer, err := h.root.SCSI(ctx, disk, []byte{commandInquiry, 1, page, byte(length >> 8), byte(length), 0}, length)
		if err != nil {
			return nil, err
		}
		if len(answer) < 4 || answer[1] != page {
			return nil, fmt.Errorf("%s answers an inquiry of page %#x with %x", disk, page, answer)
		}
		// The upper bits are not zero if the target no longer has such a LUN.
		if answer[0] != 0 {
			return nil, Refuse(WrongDisk, "%s is no longer a disk: its type is %#x", disk, answer[0])
		}
		whole := min(4+int(binary.BigEndian.Uint16(answer[2:4])), longestInquiry)
		if whole <= length {
			return answer[4:min(whole, len(answer))], nil
		}
		length = whole
	}
}

// parseDesignators returns the best of the designators that a disk reports.
func parseDesignators(page []byte) (string, error) {
	best, bestRank := "", 0
	for len(page) > 0 {
		if len(page) < 4 || len(page) < 4+int(page[3]) {
			return "", fmt.Errorf("its designators are truncated: %x", page)
		}
		kind, of, text, value := page[1]&0xf, page[1]>>4&3, page[0]&0xf, page[4:4+int(page[3])]
		page = page[4+int(page[3]):]
		// Other designators name the port or the target.
		if of != 0 {
			continue
		}
		rank := map[byte]int{3: 4, 2: 3, 8: 2, 1: 1}[kind]
		if rank > bestRank {
			name := hex.EncodeToString(value)
			if text != 1 {
				name = printable(value)
			}
			best, bestRank = map[byte]string{3: "naa.", 2: "eui.", 8: "", 1: "t10."}[kind]+name, rank
		}
	}
	return best, nil
}

func printable(value []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, string(value)))
}

// capacity asks the disk for its size.
func (h *SCSI) capacity(ctx context.Context, disk string) (int64, error) {
	command := make([]byte, 16)
	command[0], command[1], command[13] = commandServiceIn, serviceReadCapacity, 32
	answer, err := h.root.SCSI(ctx, disk, command, 32)
	if err != nil {
		return 0, err
	}
	if len(answer) < 12 {
		return 0, fmt.Errorf("%s: unexpected answer %x to READ CAPACITY", disk, answer)
	}
	last, block := binary.BigEndian.Uint64(answer), binary.BigEndian.Uint32(answer[8:])
	if block == 0 || last >= 1<<62/uint64(block) {
		return 0, fmt.Errorf("%s reports %d blocks of %d bytes", disk, last, block)
	}
	return int64(last+1) * int64(block), nil
}

// senseKey returns the key that tells what happened to a command.
func senseKey(sense []byte) byte {
	switch {
	case len(sense) > 2 && sense[0]&0x7f >= 0x70 && sense[0]&0x7f < 0x72:
		return sense[2] & 0xf
	case len(sense) > 1 && sense[0]&0x7f >= 0x72:
		return sense[1] & 0xf
	}
	return 0
}

// CutOff makes the kernel fail all of a disk's pending writes.
func (h *SCSI) CutOff(ctx context.Context, a Address) error {
	if _, known, err := h.diskAt(a); err != nil || !known {
		return err
	}
	// The kernel requires the newline.
	return h.root.Set(ctx, a.directory()+"/state", "offline\n")
}

// Rescan makes the kernel reread a disk's size, and waits until both agree on at least
// the given number of bytes.
func (h *SCSI) Rescan(ctx context.Context, d Disk, least int64) (Disk, error) {
	return untilLarge(ctx, d, least, h.Size,
		func() (Disk, error) { return h.Inspect(ctx, d.Address, d.Name) },
		func() error { return h.root.Set(ctx, path.Join(d.Address.directory(), "rescan"), "1") })
}

// untilLarge waits until storage and kernel agree on a disk's size, which is at least the
// given number of bytes. size reads what the kernel says, inspect what the storage says, and
// rescan makes the kernel read that, too.
func untilLarge(ctx context.Context, d Disk, least int64, size func(name string) (int64, error), inspect func() (Disk, error), rescan func() error) (Disk, error) {
	now, err := Disk{}, error(nil)
	var seen int64
	agreed, err := until(ctx, patience, func() (bool, error) {
		if now, err = inspect(); err != nil {
			return false, err
		}
		if now.Identity != d.Identity {
			return false, Refuse(WrongDisk, "%s was %s, but is now %s", d.Name, d.Identity, now.Identity)
		}
		if seen, err = size(d.Name); err != nil {
			return false, err
		}
		if now.Bytes >= least && seen == now.Bytes {
			return true, nil
		}
		return false, rescan()
	})
	if err == nil && !agreed {
		err = fmt.Errorf("disk %s has %d bytes at the storage and %d in the kernel after %s; at least %d are required", d.Name, now.Bytes, seen, patience, least)
	}
	return now, err
}
