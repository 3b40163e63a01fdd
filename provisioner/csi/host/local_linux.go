package host

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func changeRoot(to string) *syscall.SysProcAttr { return &syscall.SysProcAttr{Chroot: to} }

// deviceLimit bounds an access to a device, which waits for a lost session until its
// replacement timeout.
const deviceLimit = 75 * time.Second

// generic is the kernel's sg_io_hdr.
type generic struct {
	interfaceID    int32
	direction      int32
	commandLength  uint8
	maxSenseLength uint8
	iovecCount     uint16
	length         uint32
	data           unsafe.Pointer
	command        unsafe.Pointer
	sense          unsafe.Pointer
	timeout        uint32
	flags          uint32
	packID         int32
	user           unsafe.Pointer
	status         uint8
	maskedStatus   uint8
	messageStatus  uint8
	senseLength    uint8
	hostStatus     uint16
	driverStatus   uint16
	residue        int32
	duration       uint32
	info           uint32
}

const (
	ioctlGeneric   = 0x2285 // SG_IO
	fromDevice     = -3     // SG_DXFER_FROM_DEV
	checkCondition = 0x02
	unitAttention  = 0x06
	illegalRequest = 0x05
	// driverSense means that the driver added sense data, which is not a failure.
	driverSense = 0x08
	// tries is how often a command is resent after a unit attention. A new session
	// reports one for its login, and perhaps one for a changed capacity.
	tries = 5
)

// SCSI sends a command to a disk.
func (l *Local) SCSI(ctx context.Context, disk string, command []byte, length int) ([]byte, error) {
	return answered(ctx, l, deviceLimit, "the inquiry of "+disk, func() ([]byte, error) {
		file, err := os.OpenFile(l.Path("/dev/"+disk), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close() //nolint:errcheck // Nothing was written.
		answer, err := generically(int(file.Fd()), command, length)
		if err != nil {
			return nil, fmt.Errorf("SCSI command %#x to %s: %w", command[0], disk, err)
		}
		return answer, nil
	})
}

func generically(descriptor int, command []byte, length int) ([]byte, error) {
	for try := 1; ; try++ {
		data, sense := make([]byte, length), make([]byte, 64)
		header := &generic{
			interfaceID: 'S', direction: fromDevice, timeout: 30_000,
			commandLength: uint8(len(command)), command: unsafe.Pointer(&command[0]),
			length: uint32(length), data: unsafe.Pointer(&data[0]),
			maxSenseLength: uint8(len(sense)), sense: unsafe.Pointer(&sense[0]),
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(descriptor), ioctlGeneric, uintptr(unsafe.Pointer(header)))
		runtime.KeepAlive(command)
		if errno != 0 {
			return nil, errno
		}
		if header.status == checkCondition && senseKey(sense[:header.senseLength]) == unitAttention && try < tries {
			continue
		}
		if header.status == checkCondition && senseKey(sense[:header.senseLength]) == illegalRequest {
			return nil, ErrNotSupported
		}
		if header.status != 0 || header.hostStatus != 0 || header.driverStatus&^driverSense != 0 {
			return nil, fmt.Errorf("status %#x, host %#x, driver %#x, sense %x", header.status, header.hostStatus, header.driverStatus, sense[:header.senseLength])
		}
		return data[:max(0, length-int(header.residue))], nil
	}
}

// ConnectNVMe connects the kernel to a subsystem. The connection is made in this
// process's network namespace, and reconnected in the host's.
func (l *Local) ConnectNVMe(ctx context.Context, portal, options string) error {
	// The kernel's attempt could not be interrupted.
	if err := l.Dial(ctx, portal); err != nil {
		return err
	}
	// Subsystems share portals, and a hanging one must not block the others.
	subsystem, _, _ := strings.Cut(options, ",")
	return l.bounded(ctx, setLimit, "the NVMe connection to "+portal+" ("+subsystem+")", func() error {
		file, err := os.OpenFile(l.Path("/dev/nvme-fabrics"), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = file.WriteString(options)
		return errors.Join(err, file.Close())
	})
}

// TellRBD writes to the kernel's file. A connection that the kernel makes belongs to this
// process's network namespace, which must be the node's.
func (l *Local) TellRBD(ctx context.Context, c RBDCall) error {
	var key []byte
	if c.Key != "" {
		var err error
		if key, err = base64.StdEncoding.DecodeString(c.Key); err != nil {
			return Refuse(Malformed, "the key of the Ceph user is not base64")
		}
	}
	// The kernel's waits for the cluster could not be interrupted, and one image must not
	// block the others.
	return l.bounded(ctx, setLimit, ordersFor(c.Image), func() error {
		if key != nil {
			// The kernel searches the keyrings of the thread that writes. A thread that is
			// not unlocked ends with this function, and its keyring with it.
			runtime.LockOSThread()
			id, err := unix.AddKey("ceph", c.KeyName, key, unix.KEY_SPEC_THREAD_KEYRING)
			clear(key)
			if err != nil {
				return fmt.Errorf("give the kernel the key of the Ceph user: %w", err)
			}
			defer unix.KeyctlInt(unix.KEYCTL_INVALIDATE, id, 0, 0, 0) //nolint:errcheck // It ends with the thread.
		}
		file, err := os.OpenFile(l.Path(c.File), os.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = file.WriteString(c.Line)
		return errors.Join(err, file.Close())
	})
}

// adminCommand is the kernel's nvme_passthru_cmd.
type adminCommand struct {
	opcode, flags              uint8
	_                          uint16
	namespace                  uint32
	_, _                       uint32
	metadata, address          uint64
	metadataLength, dataLength uint32
	// dwords are the command's dwords 10 to 15.
	dwords     [6]uint32
	timeout, _ uint32
}

const (
	ioctlAdminCommand = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD
	opcodeIdentify    = 0x06

	statusMask             = 0x7ff
	statusInvalidField     = 0x02
	statusInvalidNamespace = 0x0b
)

// Identify sends the command to a controller.
func (l *Local) Identify(ctx context.Context, controller string, structure byte, namespace uint32) ([]byte, error) {
	return answered(ctx, l, deviceLimit, "the inquiry of "+controller, func() ([]byte, error) {
		file, err := os.OpenFile(l.Path("/dev/"+controller), os.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close() //nolint:errcheck // Nothing was written.
		// The kernel gets the address of memory outside the garbage collector's control.
		memory, err := unix.Mmap(-1, 0, identifyLength, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, err
		}
		defer unix.Munmap(memory) //nolint:errcheck // It was mapped above.
		command := &adminCommand{
			opcode: opcodeIdentify, namespace: namespace, address: uint64(uintptr(unsafe.Pointer(&memory[0]))), dataLength: identifyLength,
			dwords: [6]uint32{uint32(structure)}, timeout: 30_000,
		}
		status, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), ioctlAdminCommand, uintptr(unsafe.Pointer(command)))
		switch {
		case errno != 0:
			return nil, fmt.Errorf("identify %d to %s: %w", structure, controller, errno)
		case status&statusMask == statusInvalidField:
			return nil, ErrNotSupported
		case status&statusMask == statusInvalidNamespace:
			return nil, fmt.Errorf("%s: %w", controller, ErrNoNamespace)
		case status != 0:
			return nil, fmt.Errorf("identify %d to %s: status %#x", structure, controller, status)
		}
		return append([]byte(nil), memory...), nil
	})
}

// ReadDevice bypasses the page cache, which may hold data of an earlier disk.
func (l *Local) ReadDevice(ctx context.Context, device string, offset int64, length int) ([]byte, error) {
	return answered(ctx, l, deviceLimit, "reading "+device, func() ([]byte, error) {
		file, err := os.OpenFile(l.Path("/dev/"+device), os.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close() //nolint:errcheck // Nothing was written.
		// The kernel requires page-aligned memory.
		memory, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, err
		}
		defer unix.Munmap(memory) //nolint:errcheck // It was mapped above.
		read := 0
		for read < length {
			n, err := file.ReadAt(memory[read:], offset+int64(read))
			read += n
			if err != nil {
				return nil, fmt.Errorf("%d bytes at %d of %s: %w", length, offset, device, err)
			}
		}
		return append([]byte(nil), memory...), nil
	})
}

// Claimed tries to open the device exclusively.
func (l *Local) Claimed(ctx context.Context, device string) (bool, error) {
	return answered(ctx, l, deviceLimit, "opening "+device, func() (bool, error) {
		file, err := os.OpenFile(l.Path("/dev/"+device), os.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EBUSY) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		return false, file.Close()
	})
}

// usageLimit is short, because kubelet asks often and waits for the answer.
const usageLimit = 5 * time.Second

// Usage reads how full a mounted filesystem is.
func (l *Local) Usage(ctx context.Context, path string) (Usage, error) {
	found, err := answered(ctx, l, usageLimit, "the statistics of "+path, func() (found unix.Statfs_t, err error) {
		err = unix.Statfs(l.Path(path), &found)
		return found, err
	})
	if err != nil {
		return Usage{}, err
	}
	size := found.Bsize
	return Usage{
		Bytes: int64(found.Blocks) * size, FreeBytes: int64(found.Bfree) * size, AvailableBytes: int64(found.Bavail) * size,
		Inodes: int64(found.Files), FreeInodes: int64(found.Ffree),
	}, nil
}

// Lock locks a file, which is removed when the lock is released.
func (l *Local) Lock(ctx context.Context, path string, wait bool) (release func(), err error) {
	path = l.Path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isStill(file, path) {
			return func() {
				// Remove it while it is locked: a process that opened it earlier sees
				// that it is gone and opens the next one.
				_ = os.Remove(path)
				_ = file.Close()
			}, nil
		}
		_ = file.Close()
		switch {
		case err == nil:
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case !wait:
			return nil, ErrLocked
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		case <-time.After(poll):
		}
	}
}

func isStill(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there) && there.Mode()&fs.ModeType == 0
}
