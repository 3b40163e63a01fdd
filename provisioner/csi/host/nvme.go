package host

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// NVMe is a node's NVMe over TCP controllers, and their namespaces.
type NVMe struct{ *Host }

// NVMeHost holds the names by which NVMe subsystems know the node.
type NVMeHost struct{ NQN, ID string }

// Namespace is a disk's location in an NVMe subsystem.
type Namespace struct {
	// Subsystem is the subsystem's NQN.
	Subsystem string `json:"subsystem"`
	ID        int    `json:"id"`
}

// WantedNamespace is what is known about a volume's namespace before it is found.
type WantedNamespace struct {
	Subsystem string
	// ID is 0 if unknown.
	ID int
	// Identities are the IDs that the namespace must show, in the kernel's form: uuid.
	// and a UUID, or eui. and an NGUID.
	Identities []string
}

// Controller is a connection of the node's kernel to an NVMe subsystem. If several
// controllers of a subsystem have a namespace, the kernel combines them into one disk.
type Controller struct {
	// Name is the kernel's name, such as nvme1.
	Name, Subsystem, Transport, Portal, HostNQN, State string
}

// At reports whether the controller is connected to a portal.
func (c Controller) At(portal string) bool { return samePortal(c.Portal, portal) }

const live = "live"

var (
	// Names become kernel options, which are separated by commas. Cinder's own target
	// generates names without the date that the specification requires.
	nqn           = regexp.MustCompile(`^nqn\.[A-Za-z0-9][A-Za-z0-9.:_-]{0,218}$`)
	uuidForm      = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	namespaceName = regexp.MustCompile(`^nvme[0-9]+n[0-9]+$`)
)

// CheckSubsystem refuses an invalid subsystem.
func CheckSubsystem(subsystem, portal string, namespace int) error {
	host, port, ok := splitPortal(portal)
	address, err := netip.ParseAddr(host)
	switch {
	case !nqn.MatchString(subsystem):
		return Refuse(Malformed, "%q is not the name of an NVMe subsystem", subsystem)
	case !ok || err != nil || address.Zone() != "" || !portNumber.MatchString(port):
		// The zone of an IPv6 address could be any text.
		return Refuse(Malformed, "%q is not the IP address and port of an NVMe subsystem", portal)
	case namespace < 0:
		return Refuse(Malformed, "%d is not an NVMe namespace", namespace)
	}
	return nil
}

const (
	hostNQNFile = "/etc/nvme/hostnqn"
	hostIDFile  = "/etc/nvme/hostid"
	fabrics     = "/sys/class/nvme-fabrics/ctl"
)

// Names returns the node's names, and loads the required kernel modules.
func (h *NVMe) Names(ctx context.Context) (NVMeHost, error) {
	names, err := h.ReadNames()
	if err != nil {
		return NVMeHost{}, err
	}
	if _, err := h.root.ReadDir(fabrics); err != nil {
		if _, err := h.run(ctx, "modprobe", "nvme-tcp"); err != nil {
			return NVMeHost{}, fmt.Errorf("the node's kernel has no NVMe over TCP: %w", err)
		}
	}
	// Otherwise each controller would have its own disk, and two such disks would
	// bypass each other's caches.
	if h.NativeMultipath() != "Y" {
		return NVMeHost{}, errors.New("the node's kernel has NVMe multipath switched off; remove nvme_core.multipath=N from its command line")
	}
	return names, nil
}

// NativeMultipath returns Y if the kernel merges the paths of a namespace, and nothing
// until its module is loaded.
func (h *NVMe) NativeMultipath() string {
	return h.attribute("/sys/module/nvme_core/parameters/multipath")
}

// ReadNames returns the node's names.
func (h *NVMe) ReadNames() (NVMeHost, error) {
	content, err := h.root.ReadFile(hostNQNFile)
	if err != nil {
		return NVMeHost{}, fmt.Errorf("the node's NVMe name cannot be read; install nvme-cli: %w", err)
	}
	names := NVMeHost{NQN: strings.TrimSpace(string(content)), ID: strings.ToLower(h.attribute(hostIDFile))}
	if !nqn.MatchString(names.NQN) {
		return NVMeHost{}, fmt.Errorf("%s has no name that begins with nqn", hostNQNFile)
	}
	if names.ID == "" {
		// nvme-cli does the same. Kernels refuse to use one name with several IDs.
		names.ID = strings.ToLower(names.NQN[strings.LastIndexByte(names.NQN, ':')+1:])
	}
	if !uuidForm.MatchString(names.ID) {
		return NVMeHost{}, fmt.Errorf("%s has no UUID", hostIDFile)
	}
	return names, nil
}

// Controllers lists the controllers of a subsystem, including other programs'
// connections.
func (h *NVMe) Controllers(subsystem string) ([]Controller, error) {
	names, err := list(h.root, "/sys/class/nvme")
	if err != nil {
		return nil, err
	}
	var found []Controller
	for _, name := range names {
		directory := "/sys/class/nvme/" + name + "/"
		if h.attribute(directory+"subsysnqn") != subsystem {
			continue
		}
		options := map[string]string{}
		for option := range strings.SplitSeq(h.attribute(directory+"address"), ",") {
			key, value, _ := strings.Cut(option, "=")
			options[key] = value
		}
		found = append(found, Controller{
			Name: name, Subsystem: subsystem, Transport: h.attribute(directory + "transport"), Portal: net.JoinHostPort(options["traddr"], options["trsvcid"]),
			HostNQN: h.attribute(directory + "hostnqn"), State: h.attribute(directory + "state"),
		})
	}
	return found, nil
}

func (h *NVMe) controllersAt(subsystem, portal string) ([]Controller, error) {
	all, err := h.Controllers(subsystem)
	return slices.DeleteFunc(all, func(c Controller) bool { return !c.At(portal) }), err
}

// Seconds until a lost controller is retried, and seconds that writes may wait for one
// (Linux 5.11). It is retried forever (ctrl_loss_tmo=-1), as iSCSI sessions are: a portal
// that was down for an hour returns as a path.
const (
	reconnectDelay = 2
	failAfter      = 60
)

// Connect returns once a controller connects the node to a subsystem, and creates the
// connection if there is none. The caller must hold the subsystem's lock.
func (h *NVMe) Connect(ctx context.Context, subsystem, portal string, as NVMeHost) error {
	exists, err := h.connected(ctx, subsystem, portal, recovery)
	if err != nil || exists {
		return err
	}
	address, port, _ := splitPortal(portal)
	options := fmt.Sprintf("nqn=%s,transport=tcp,traddr=%s,trsvcid=%s,hostnqn=%s,hostid=%s,reconnect_delay=%d,fast_io_fail_tmo=%d,ctrl_loss_tmo=-1",
		subsystem, address, port, as.NQN, as.ID, reconnectDelay, failAfter)
	err = h.root.ConnectNVMe(ctx, portal, options)
	if err != nil && !errors.Is(err, syscall.EALREADY) {
		return fmt.Errorf("connect %s to %s at %s: %w; the kernel's log says more", as.NQN, subsystem, portal, err)
	}
	exists, err = h.connected(ctx, subsystem, portal, patience)
	if err == nil && !exists {
		err = fmt.Errorf("connecting %s to %s at %s made no controller", as.NQN, subsystem, portal)
	}
	return err
}

// connected waits until a controller works, or until there is none.
func (h *NVMe) connected(ctx context.Context, subsystem, portal string, limit time.Duration) (exists bool, err error) {
	err = await(ctx, limit, func() (bool, error) {
		found, err := h.controllersAt(subsystem, portal)
		exists = len(found) > 0
		return !exists || slices.ContainsFunc(found, func(c Controller) bool { return c.State == live }), err
	}, "the connection to %s at %s is lost", subsystem, portal)
	return exists, err
}

// Disconnect removes a controller and waits until it is gone. Disks without another
// controller lose writes that have not reached the storage.
func (h *NVMe) Disconnect(ctx context.Context, c Controller) error {
	directory := "/sys/class/nvme/" + c.Name
	if err := h.root.Set(ctx, directory+"/delete_controller", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disconnect %s from %s: %w", c.Name, c.Subsystem, err)
	}
	return await(ctx, patience, func() (bool, error) {
		return h.attribute(directory+"/subsysnqn") != c.Subsystem, nil
	}, "controller %s of %s still exists after %s", c.Name, c.Subsystem, patience)
}

// NamespaceOf returns the namespace of the disk with a name.
func (h *NVMe) NamespaceOf(disk string) (Namespace, bool) {
	if !namespaceName.MatchString(disk) {
		return Namespace{}, false
	}
	id, err := strconv.Atoi(h.attribute("/sys/block/" + disk + "/nsid"))
	found := Namespace{h.attribute("/sys/block/" + disk + "/device/subsysnqn"), id}
	return found, err == nil && found.Subsystem != ""
}

// NamespacesOf returns the names of the disks of a subsystem.
func (h *NVMe) NamespacesOf(subsystem string) ([]string, error) {
	names, err := list(h.root, "/sys/block")
	return slices.DeleteFunc(names, func(name string) bool {
		at, ok := h.NamespaceOf(name)
		return !ok || at.Subsystem != subsystem
	}), err
}

// Use returns how a disk is used; nil if it is not.
func (h *NVMe) Use(ctx context.Context, disk string) (inUse, err error) {
	err = h.refuseUsed(ctx, disk)
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Reason == InUse {
		return err, nil
	}
	return nil, err
}

// identified is a namespace's self-description.
type identified struct {
	uuid, nguid, eui string
	bytes            int64
}

func (i identified) identity(of Namespace) string {
	var names []string
	if i.uuid != "" {
		names = append(names, "uuid."+i.uuid)
	}
	if i.nguid != "" {
		names = append(names, "eui."+i.nguid)
	}
	if i.eui != "" {
		names = append(names, "eui."+i.eui)
	}
	if len(names) == 0 {
		// Its location is its only identity.
		return fmt.Sprintf("%s/%d", of.Subsystem, of.ID)
	}
	return strings.Join(names, "/")
}

// is reports whether the namespace has the identity. Some of Cinder's drivers send an
// NGUID as a UUID, in the form in which the kernel shows namespaces without a UUID.
func (i identified) is(identity string) bool {
	kind, value, _ := strings.Cut(identity, ".")
	value = digitsOf(value)
	uuid := digitsOf(i.uuid)
	uuid = cmp.Or(uuid, i.nguid)
	return value != "" && (kind == "uuid" && value == uuid || kind == "eui" && (value == i.nguid || i.nguid == "" && value == i.eui))
}

// contradicts reports whether the namespace has an ID of that kind, but a different one.
func (i identified) contradicts(identity string) bool {
	says := i.nguid != "" || i.uuid != "" && strings.HasPrefix(identity, "uuid.") || i.eui != "" && strings.HasPrefix(identity, "eui.")
	return says && !i.is(identity)
}

func digitsOf(id string) string { return strings.ToLower(strings.ReplaceAll(id, "-", "")) }

// The structures of the command Identify.
const (
	identifyNamespace   = 0
	identifyDescriptors = 3

	identifyLength = 4096
)

// ErrNoNamespace is a controller's answer about a namespace that it does not have.
var ErrNoNamespace = errors.New("the controller has no such namespace")

// ask asks a controller about a namespace.
func (h *NVMe) ask(ctx context.Context, c Controller, id int) (identified, error) {
	answer, err := h.root.Identify(ctx, c.Name, identifyNamespace, uint32(id))
	if err != nil {
		return identified{}, err
	}
	if len(answer) != identifyLength {
		return identified{}, fmt.Errorf("%s describes namespace %d in %d bytes", c.Name, id, len(answer))
	}
	blocks, shift := binary.LittleEndian.Uint64(answer), answer[128+4*int(answer[26]&0xf)+2]
	if blocks == 0 {
		return identified{}, fmt.Errorf("%s: %w", c.Name, ErrNoNamespace)
	}
	if shift < 9 || shift > 16 || blocks >= 1<<62>>shift {
		return identified{}, fmt.Errorf("%s reports that namespace %d has %d blocks of 2^%d bytes", c.Name, id, blocks, shift)
	}
	found := identified{bytes: int64(blocks) << shift, nguid: nonZero(answer[104:120]), eui: nonZero(answer[120:128])}
	answer, err = h.root.Identify(ctx, c.Name, identifyDescriptors, uint32(id))
	if errors.Is(err, ErrNotSupported) {
		return found, nil
	}
	if err != nil {
		return identified{}, err
	}
	for len(answer) >= 4 && answer[1] > 0 && len(answer) >= 4+int(answer[1]) {
		kind, value := answer[0], answer[4:4+int(answer[1])]
		answer = answer[4+len(value):]
		switch {
		case kind == 1 && len(value) == 8:
			found.eui = nonZero(value)
		case kind == 2 && len(value) == 16:
			found.nguid = nonZero(value)
		case kind == 3 && len(value) == 16 && nonZero(value) != "":
			found.uuid = uuid(value)
		}
	}
	return found, nil
}

func nonZero(value []byte) string {
	if text := hex.EncodeToString(value); strings.Trim(text, "0") != "" {
		return text
	}
	return ""
}

// askAll asks every working controller. All of them must agree.
func (h *NVMe) askAll(ctx context.Context, at Namespace) (identified, error) {
	controllers, err := h.Controllers(at.Subsystem)
	if err != nil {
		return identified{}, err
	}
	var found identified
	var by string
	var errs []error
	for _, c := range controllers {
		if c.State != live {
			continue
		}
		now, err := h.ask(ctx, c, at.ID)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if by != "" && now != found {
			return identified{}, Refuse(WrongDisk, "the paths of namespace %d of %s lead to different disks: by %s it is %s of %d bytes, by %s %s of %d bytes",
				at.ID, at.Subsystem, by, found.identity(at), found.bytes, c.Name, now.identity(at), now.bytes)
		}
		found, by = now, c.Name
	}
	switch {
	case slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, ErrNoNamespace) }):
		// If another controller still has the namespace, it is being removed or added.
		return identified{}, errors.Join(errs...)
	case by == "":
		return identified{}, errors.Join(append(errs, fmt.Errorf("no connection to %s works", at.Subsystem))...)
	}
	return found, nil
}

// FindNamespace waits for a volume's namespace and asks the namespace itself for its
// identity: the kernel's information may be older than the storage's.
func (h *NVMe) FindNamespace(ctx context.Context, w WantedNamespace) (Disk, error) {
	var found Disk
	var last error
	var scanned time.Time
	ok, err := until(ctx, patience, func() (bool, error) {
		var final bool
		found, final, last = h.lookForNamespace(ctx, w)
		if last == nil || final {
			return true, last
		}
		if time.Since(scanned) >= 2*time.Second {
			scanned = time.Now()
			return false, h.ScanNamespaces(ctx, w.Subsystem)
		}
		return false, nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("after %s: %w", patience, last)
	}
	return found, err
}

func (h *NVMe) lookForNamespace(ctx context.Context, w WantedNamespace) (found Disk, final bool, err error) {
	names, err := h.NamespacesOf(w.Subsystem)
	if err != nil {
		return Disk{}, true, err
	}
	var candidates []Disk
	for _, name := range names {
		at, ok := h.NamespaceOf(name)
		known := h.known(name)
		if ok && (at.ID == w.ID || w.ID == 0 && slices.ContainsFunc(w.Identities, known.is)) {
			candidates = append(candidates, Disk{Name: name, Namespace: at})
		}
	}
	if len(candidates) != 1 {
		return Disk{}, false, fmt.Errorf("subsystem %s shows %d namespaces that could be the volume's (%s)", w.Subsystem, len(candidates), describe(w))
	}
	found = candidates[0]
	now, err := h.askAll(ctx, found.Namespace)
	if err != nil {
		return Disk{}, false, err
	}
	known := h.known(found.Name)
	if known.bytes != now.bytes || now.uuid != "" && known.uuid != now.uuid || now.nguid != "" && known.nguid != now.nguid {
		return Disk{}, false, fmt.Errorf("the kernel knows %s as %s of %d bytes, but at the storage it is %s of %d bytes",
			found.Name, known.identity(found.Namespace), known.bytes, now.identity(found.Namespace), now.bytes)
	}
	found.Identity, found.Bytes = now.identity(found.Namespace), now.bytes
	proven := len(w.Identities) == 0
	for _, want := range w.Identities {
		proven = proven || now.is(want)
	}
	if !proven || slices.ContainsFunc(w.Identities, now.contradicts) {
		return Disk{}, true, Refuse(WrongDisk, "namespace %d of %s is %s, but the volume's is %s", found.Namespace.ID, w.Subsystem, found.Identity, strings.Join(w.Identities, "/"))
	}
	return found, false, nil
}

func describe(w WantedNamespace) string {
	var parts []string
	if w.ID != 0 {
		parts = append(parts, fmt.Sprintf("namespace %d", w.ID))
	}
	return strings.Join(append(parts, w.Identities...), ", ")
}

// known returns what the kernel knows about a namespace.
func (h *NVMe) known(disk string) identified {
	directory := "/sys/block/" + disk + "/"
	size, _ := h.Size(disk)
	return identified{uuid: strings.ToLower(h.attribute(directory + "uuid")), nguid: digitsOf(h.attribute(directory + "nguid")), bytes: size}
}

// ScanNamespaces makes the kernel scan the namespaces of a subsystem.
func (h *NVMe) ScanNamespaces(ctx context.Context, subsystem string) error {
	controllers, err := h.Controllers(subsystem)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if c.State != live {
			continue
		}
		if err := h.root.Set(ctx, "/sys/class/nvme/"+c.Name+"/rescan_controller", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("scan %s: %w", c.Name, err)
		}
	}
	return nil
}

// InspectNamespace asks a namespace itself for its identity and size.
func (h *NVMe) InspectNamespace(ctx context.Context, d Disk) (Disk, error) {
	if at, ok := h.NamespaceOf(d.Name); !ok || at != d.Namespace {
		return Disk{}, fmt.Errorf("%s is no longer namespace %d of %s", d.Name, d.Namespace.ID, d.Namespace.Subsystem)
	}
	now, err := h.askAll(ctx, d.Namespace)
	if err != nil {
		return Disk{}, err
	}
	return Disk{Name: d.Name, Namespace: d.Namespace, Identity: now.identity(d.Namespace), Bytes: now.bytes}, nil
}

// RescanNamespace makes the kernel reread a namespace's size, and waits until both agree
// on at least the given number of bytes.
func (h *NVMe) RescanNamespace(ctx context.Context, d Disk, least int64) (Disk, error) {
	return untilLarge(ctx, d, least, h.Size,
		func() (Disk, error) { return h.InspectNamespace(ctx, d) },
		func() error { return h.ScanNamespaces(ctx, d.Namespace.Subsystem) })
}

// DropExchanged makes the kernel drop a disk whose namespace the storage has replaced
// with something else. It returns false if the kernel keeps the disk.
func (h *NVMe) DropExchanged(ctx context.Context, d Disk) (dropped bool, err error) {
	if err := h.ScanNamespaces(ctx, d.Namespace.Subsystem); err != nil {
		return false, err
	}
	return until(ctx, recovery, func() (bool, error) {
		at, ok := h.NamespaceOf(d.Name)
		return !ok || at != d.Namespace, nil
	})
}
