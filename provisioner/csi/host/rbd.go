package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// This file maps images of Ceph with the kernel's own client (drivers/block/rbd.c), by
// its files below /sys/bus/rbd, as the program rbd does.
//
// The kernel repeats the line that mapped an image in the file config_info, which root can
// read. A key that is part of the line (secret=) would show there for as long as the image
// is mapped. So the line only names the key, which is in a keyring of the thread that
// writes the line, until the kernel has copied it.
//
// Fencing is Ceph's exclusive lock, which the kernel takes when it maps an image that has
// the feature exclusive-lock. If the lock has an owner that is dead, that is, one that has
// not renewed its watch of the image for 30 s (osd_client_watch_timeout), the kernel first
// has the monitors blocklist the owner's address, and then breaks the lock. From then on
// the OSDs refuse all that the owner still sends, for as long as
// mon_osd_blocklist_default_expire says (one hour). The kernel waits for that within
// lock_timeout. An owner that lives finishes its writes and hands the lock over, also to
// Cinder, which needs it to extend an image or to take a snapshot; the kernel takes the
// lock back for the next write.
//
// With the option exclusive, the kernel never hands the lock over: another client's
// mapping, and its writes if it has mapped the image before, fail with EROFS. But so do
// Cinder's requests, which leave the volume in error_extending. So only what was taken
// from a node that may still write is mapped with this option (Seized). If that node's
// client is dead, it cannot write again. One that lives can once the image is unmapped, so
// the leader hands out only images of nodes that are declared off.
//
// The option noshare gives each image a client, and so an address, of its own. Without it,
// breaking the lock of one image would cut a node off from all its images, and a new
// mapping would use the blocklisted client again. QEMU has one client for each image, too.

// RBD is the node's kernel as a client of Ceph.
type RBD struct {
	host   *Host
	kernel RBDKernel
}

// RBDKernel gives orders to the kernel's Ceph client.
type RBDKernel interface {
	// TellRBD fails while an earlier order for the same image is not answered, which
	// TellsRBD reports.
	TellRBD(ctx context.Context, c RBDCall) error
	TellsRBD(image string) bool
}

// NewRBD returns the client of a node.
func NewRBD(host *Host, kernel RBDKernel) *RBD { return &RBD{host, kernel} }

// RBDCall is an order to the kernel's Ceph client. It prints without its key.
type RBDCall struct {
	// Image is pool/image.
	Image string
	// File is the kernel's file for the order, and Line what is written there.
	File, Line string
	// Key is that of the user, in Ceph's form, and KeyName the name by which the line
	// refers to it; the key is empty if the line needs none.
	KeyName, Key string
}

// String hides the key.
func (c RBDCall) String() string { return c.File + ": " + c.Line }

// GoString hides the key.
func (c RBDCall) GoString() string { return c.String() }

// Image is an image of a Ceph cluster.
type Image struct {
	// Monitors are the addresses of the cluster's monitors.
	Monitors   []string
	Pool, Name string
}

// String returns pool/name.
func (i Image) String() string { return i.Pool + "/" + i.Name }

// Sharing is what other clients may do with an image while it is mapped.
type Sharing string

const (
	// Locked means that the kernel writes only while it has the lock.
	Locked Sharing = "locked"
	// Seized means that it never hands the lock over.
	Seized Sharing = "exclusive"
	// ManyWriters means that all clients that map it so may write. An image need not have
	// the feature exclusive-lock.
	ManyWriters Sharing = "rw"
	// ManyReaders means that the kernel never writes. It takes no lock.
	ManyReaders Sharing = "ro"
)

// MappedImage is an image that this plugin has mapped on the node.
type MappedImage struct {
	Image
	// ID is the cluster's fsid, the ID of the pool, and that of the image, which is
	// another one after an image was deleted and made again.
	ID string
	// Features are bits.
	Features uint64
	// Device is the kernel's name, such as rbd0.
	Device string
	Bytes  int64
}

func (m MappedImage) disk() Disk {
	return Disk{Image: m.String(), Name: m.Device, Identity: m.ID, Bytes: m.Bytes}
}

const (
	rbdBus = "/sys/bus/rbd"
	// ownOptions begin the options in the line that maps an image, and so mark this plugin's
	// mappings: other programs begin with the user.
	ownOptions = "noshare,mount_timeout="
	// cephKeyName names the key in the line, and so marks them, too. A cluster without
	// authentication has no key.
	cephKeyName = "standalone-cinder"
	// monitorPatience and lockPatience are in seconds. Together, they are less than what
	// bounds the kernel's answer, and lockPatience is more than a dead client's watch
	// lasts.
	monitorPatience = 30
	lockPatience    = 50
	// msgr2Port is the port of monitors that speak the newer protocol.
	msgr2Port = 3300
	// longestLine is what the kernel reads of a write to sysfs.
	longestLine = 4095
)

var (
	// Names become words of the line, whose options are separated by commas.
	cephName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	rbdDevice = regexp.MustCompile(`^rbd([0-9]+)$`)
)

// ImageAt returns the image with a name, pool/image, and refuses an invalid one.
func ImageAt(name string, monitors []string) (Image, error) {
	pool, image, _ := strings.Cut(name, "/")
	if !cephName.MatchString(pool) || !cephName.MatchString(image) {
		return Image{}, Refuse(Malformed, "%q is not the name of a pool and an image", name)
	}
	for _, monitor := range monitors {
		if at, err := netip.ParseAddrPort(monitor); err != nil || at.Addr().Zone() != "" || at.Port() == 0 {
			return Image{}, Refuse(Malformed, "%q is not the IP address and port of a monitor", monitor)
		}
	}
	return Image{monitors, pool, image}, nil
}

// Has returns an error unless the kernel's Ceph client is loaded.
func (r *RBD) Has() error {
	if _, err := r.host.root.ReadDir(rbdBus); err != nil {
		return errors.New("the node's kernel has not loaded its Ceph client; to use only RBD, load the module rbd when the node starts (/etc/modules-load.d)")
	}
	return nil
}

// load loads the kernel's Ceph client.
func (r *RBD) load(ctx context.Context) error {
	if r.Has() == nil {
		return nil
	}
	if _, err := r.host.run(ctx, "modprobe", "rbd"); err != nil {
		return fmt.Errorf("the node's kernel has no Ceph client: %w", err)
	}
	return nil
}

// line returns what maps an image.
func (i Image) line(how Sharing, user string) string {
	monitors, options := i.Monitors, []string{ownOptions + strconv.Itoa(monitorPatience)}
	older := slices.DeleteFunc(slices.Clone(monitors), func(m string) bool { return portOf(m) == msgr2Port })
	if len(older) > 0 {
		monitors = older
	} else {
		options = append(options, "ms_mode=prefer-crc") // Linux 5.11
	}
	if user != "" {
		options = append(options, "name="+user, "key="+cephKeyName)
	}
	switch how {
	case ManyReaders:
		options = append(options, "read_only")
	case Seized:
		options = append(options, "exclusive")
		fallthrough
	default:
		options = append(options, fmt.Sprintf("lock_timeout=%d", lockPatience))
	}
	return strings.Join([]string{strings.Join(monitors, ","), strings.Join(options, ","), i.Pool, i.Name, noSnapshot}, " ")
}

func portOf(address string) uint16 {
	at, _ := netip.ParseAddrPort(address)
	return at.Port()
}

// noSnapshot is the kernel's name for an image itself.
const noSnapshot = "-"

// mapped lists the images that this plugin has mapped.
func (r *RBD) mapped() ([]MappedImage, error) {
	numbers, err := list(r.host.root, rbdBus+"/devices")
	var found []MappedImage
	for _, number := range numbers {
		if m, ours := r.mapping(number); ours {
			found = append(found, m)
		}
	}
	return found, err
}

// mapping reads a mapping. It returns false if another program made it.
func (r *RBD) mapping(number string) (MappedImage, bool) {
	directory := rbdBus + "/devices/" + number + "/"
	line := strings.Fields(r.host.attribute(directory + "config_info"))
	if len(line) < 4 {
		return MappedImage{}, false
	}
	key := strings.Contains(line[1], "key=") || strings.Contains(line[1], "secret=")
	if !strings.HasPrefix(line[1], ownOptions) || key && !slices.Contains(strings.Split(line[1], ","), "key="+cephKeyName) {
		return MappedImage{}, false
	}
	m := MappedImage{Image: Image{strings.Split(line[0], ","), r.host.attribute(directory + "pool"), r.host.attribute(directory + "name")}, Device: "rbd" + number}
	m.ID = strings.Join([]string{strings.ToLower(r.host.attribute(directory + "cluster_fsid")), r.host.attribute(directory + "pool_id"), r.host.attribute(directory + "image_id")}, "/")
	var err error
	if m.Bytes, err = strconv.ParseInt(r.host.attribute(directory+"size"), 10, 64); err == nil {
		m.Features, err = strconv.ParseUint(r.host.attribute(directory+"features"), 0, 64)
	}
	return m, err == nil && r.host.attribute(directory+"current_snap") == noSnapshot && m.Pool == line[2] && m.Name == line[3]
}

// MappedAt returns the image that a device is, if this plugin mapped it.
func (r *RBD) MappedAt(device string) (MappedImage, bool) {
	number := rbdDevice.FindStringSubmatch(device)
	if number == nil {
		return MappedImage{}, false
	}
	return r.mapping(number[1])
}

// CephUser is a user of a Ceph cluster with its key. A cluster without authentication has
// none.
type CephUser struct{ Name, Key string }

// String hides the key.
func (u CephUser) String() string { return u.Name }

// GoString hides the key.
func (u CephUser) GoString() string { return u.Name }

// Map maps an image that this plugin has not mapped. The caller must hold the
// image's lock.
func (r *RBD) Map(ctx context.Context, i Image, how Sharing, user CephUser) (Disk, error) {
	if user.Name != "" && !cephName.MatchString(user.Name) {
		return Disk{}, Refuse(Malformed, "the name of the Ceph user is not valid")
	}
	if err := r.load(ctx); err != nil {
		return Disk{}, err
	}
	if err := r.order(ctx, i, how, user); err != nil {
		return Disk{}, r.explain(ctx, i, how, user, err)
	}
	all, err := r.mappingsOf(i)
	if err != nil {
		return Disk{}, err
	}
	if len(all) != 1 {
		return Disk{}, fmt.Errorf("after image %s was mapped, the kernel shows %d mappings of it", i, len(all))
	}
	if lacks := all[0].Features&exclusiveLock == 0; lacks && (how == Locked || how == Seized) {
		return Disk{}, errors.Join(noLock(i), r.Unmap(ctx, all[0]))
	}
	disk := all[0].disk()
	err = await(ctx, patience, func() (bool, error) {
		size, err := r.host.Size(disk.Name)
		return err == nil && size == disk.Bytes, nil
	}, "image %s has no device %s of %d bytes after %s", i, disk.Name, disk.Bytes, patience)
	return disk, err
}

func (r *RBD) order(ctx context.Context, i Image, how Sharing, user CephUser) error {
	line := i.line(how, user.Name)
	if len(line) > longestLine {
		return Refuse(Malformed, "the addresses of the monitors are too many")
	}
	return r.kernel.TellRBD(ctx, RBDCall{Image: i.String(), File: r.file("add"), Line: line, KeyName: cephKeyName, Key: user.Key})
}

// file returns the kernel's file for mapping or unmapping. Unless the module is loaded
// with single_major=N, the kernel takes no orders by the older ones.
func (r *RBD) file(order string) string {
	if names, err := r.host.root.ReadDir(rbdBus); err == nil && !slices.Contains(names, order+"_single_major") {
		return rbdBus + "/" + order
	}
	return rbdBus + "/" + order + "_single_major"
}

func (r *RBD) mappingsOf(i Image) ([]MappedImage, error) {
	all, err := r.mapped()
	return slices.DeleteFunc(all, func(m MappedImage) bool { return m.String() != i.String() }), err
}

// MappingsOf lists this plugin's mappings of an image. It fails while the kernel has not
// answered an earlier order for the image, which may still map it.
func (r *RBD) MappingsOf(i Image) ([]MappedImage, error) {
	if r.kernel.TellsRBD(i.String()) {
		return nil, fmt.Errorf("the kernel has not answered an earlier order for image %s; do its monitors and OSDs answer?", i)
	}
	return r.mappingsOf(i)
}

// explain adds to a failure to map an image what the kernel says only in its log.
func (r *RBD) explain(ctx context.Context, i Image, how Sharing, user CephUser, err error) error {
	switch {
	case errors.Is(err, syscall.EROFS):
		return Refuse(InUse, "image %s is mapped elsewhere: another client has its exclusive lock and does not release it; 'rbd lock ls %s' shows who", i, i)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return Refuse(LoginRefused, "the Ceph cluster refuses the user %s; check its key, and that it has the capabilities 'profile rbd' for monitors and OSDs, which let it break the lock of a dead client", user.Name)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("the Ceph cluster has no image %s: %w", i, err)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("mapping image %s takes too long: the monitors do not answer, or another client has its exclusive lock and does not answer: %w", i, err)
	case (errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.EINVAL)) && how != ManyReaders:
		if why := r.lacks(ctx, i, how, user); why != nil {
			return why
		}
	}
	return fmt.Errorf("map image %s: %w; the kernel's log says more", i, err)
}

// The bits of an image's features, by their number.
var imageFeatures = []string{"layering", "striping", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling", "data-pool", "operations", "migrating", "non-primary", "dirty-cache"}

const exclusiveLock = 1 << 2

func noLock(i Image) error {
	return Refuse(UnsupportedImage, "image %s lacks the feature exclusive-lock, without which two nodes could write to it; switch it on (rbd feature enable %s exclusive-lock). Cinder makes images of multiattach types without it: use another type for volumes of one node", i, i)
}

// lacks maps an image for reading, which few features prevent, in order to see its
// features, and returns why it cannot be mapped; nil if they do not show that.
func (r *RBD) lacks(ctx context.Context, i Image, how Sharing, user CephUser) error {
	if r.order(ctx, i, ManyReaders, user) != nil {
		return nil
	}
	all, err := r.mappingsOf(i)
	if err != nil || len(all) != 1 {
		return err
	}
	if err := r.Unmap(ctx, all[0]); err != nil {
		return err
	}
	knows, err := strconv.ParseUint(r.host.attribute(rbdBus+"/supported_features"), 0, 64)
	if err != nil {
		return err
	}
	switch missing := all[0].Features &^ knows; {
	case missing != 0:
		var names []string
		for bit := range 64 {
			if missing&(1<<bit) != 0 {
				names = append(names, featureName(bit))
			}
		}
		return Refuse(UnsupportedImage, "image %s has features that the node's kernel lacks: %s; switch them off (rbd feature disable %s %s), and for new images in rbd_default_features of cinder-volume's ceph.conf", i, strings.Join(names, ", "), i, strings.Join(names, " "))
	case how == Seized && all[0].Features&exclusiveLock == 0:
		return noLock(i)
	}
	return nil
}

func featureName(bit int) string {
	if bit < len(imageFeatures) {
		return imageFeatures[bit]
	}
	return fmt.Sprintf("bit %d", bit)
}

// unmapPatience bounds the wait for a device that something, such as udev, has open for a
// moment.
const unmapPatience = 10 * time.Second

// Unmap removes a mapping. It refuses if the device is in use, and never forces it.
func (r *RBD) Unmap(ctx context.Context, m MappedImage) error {
	if now, ours := r.MappedAt(m.Device); !ours || now.ID != m.ID {
		return nil
	}
	if err := r.host.refuseUsed(ctx, m.Device); err != nil {
		return err
	}
	r.host.Unlayer(ctx, m.Device)
	number := strings.TrimPrefix(m.Device, "rbd")
	closed, err := until(ctx, unmapPatience, func() (bool, error) {
		err := r.kernel.TellRBD(ctx, RBDCall{Image: m.String(), File: r.file("remove"), Line: number})
		if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EINPROGRESS) {
			return false, nil
		}
		if errors.Is(err, syscall.ENOENT) {
			return true, nil
		}
		return true, err
	})
	if err == nil && !closed {
		err = Refuse(InUse, "something on the node still has %s open, which is image %s", m.Device, m)
	}
	return err
}

// Fail ends a mapping even if it is in use. Requests that the kernel has sent are
// answered first; later ones, such as what the node still holds back for a mounted
// filesystem, fail.
func (r *RBD) Fail(ctx context.Context, d Disk) error {
	m, ours := r.MappedAt(d.Name)
	if !ours || m.ID != d.Identity {
		return nil
	}
	err := r.kernel.TellRBD(ctx, RBDCall{Image: m.String(), File: r.file("remove"), Line: strings.TrimPrefix(d.Name, "rbd") + " force"})
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

// Inspect makes the kernel read an image's header again, and returns what it says. It
// fails if the cluster no longer has the image, or has blocklisted the mapping.
func (r *RBD) Inspect(ctx context.Context, d Disk) (Disk, error) {
	number := strings.TrimPrefix(d.Name, "rbd")
	if m, ours := r.MappedAt(d.Name); !ours || m.String() != d.Image {
		return Disk{}, fmt.Errorf("%s is no longer image %s", d.Name, d.Image)
	}
	if err := r.host.root.Set(ctx, rbdBus+"/devices/"+number+"/refresh", "1"); err != nil {
		if errors.Is(err, syscall.ESHUTDOWN) {
			return Disk{}, fmt.Errorf("the Ceph cluster has blocklisted this node's mapping of image %s, as it does when another client takes the lock of one that did not answer: %w", d.Image, err)
		}
		return Disk{}, fmt.Errorf("read the header of image %s: %w", d.Image, err)
	}
	m, ours := r.MappedAt(d.Name)
	if !ours || m.String() != d.Image {
		return Disk{}, fmt.Errorf("%s is no longer image %s", d.Name, d.Image)
	}
	return m.disk(), nil
}

// Rescan makes the kernel see an image's size, and waits until its device has at
// least the given number of bytes.
func (r *RBD) Rescan(ctx context.Context, d Disk, least int64) (Disk, error) {
	// Reading the header is what makes the kernel see the size.
	return untilLarge(ctx, d, least, r.host.Size, func() (Disk, error) { return r.Inspect(ctx, d) }, func() error { return nil })
}
