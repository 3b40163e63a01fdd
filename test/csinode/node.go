// Package csinode is a node for tests of the CSI node plugin: its kernel with sessions,
// disks, multipath maps and mounts, the storage that it reaches, and its programs. It
// notes every harm that a caller does, and can stop, as a crash would, at every change.
package csinode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// Initiator is the iSCSI name of a node that New makes.
const Initiator = "iqn.2026-01.org.example:node-1"

// ErrCrashed is what every call gets after a crash.
var ErrCrashed = errors.New("the plugin is dead")

// ErrInjected is a failure that a test asked for.
var ErrInjected = errors.New("injected failure")

// Volume is a volume of the storage.
type Volume struct {
	Bytes int64
	// Filesystem and UUID are those of its content, which is FilesystemBytes long.
	Filesystem, UUID string
	FilesystemBytes  int64
	// Junk means that the content is not a filesystem, and Unfinished that mkfs did not
	// finish it.
	Junk, Unfinished bool
	// Identity and Serial are what its disks say; empty means that the LUN's place
	// decides, as with tgt.
	Identity, Serial string
	// LUKS is nil unless the volume is encrypted, and Torn means that it has a part of a
	// header.
	LUKS *LUKS
	Torn bool
	// Data is what was written to its filesystem.
	Data string
	// NeedsCheck makes e2fsck exit with this code.
	NeedsCheck int
	// NamespaceUUID and NGUID, without dashes, are what its NVMe namespace says.
	NamespaceUUID, NGUID string
	// Elsewhere means that another node had it since it was mounted.
	Elsewhere bool
}

// Target is an iSCSI target.
type Target struct {
	Portals  []string
	LUNs     map[int]*Volume
	User     string
	Password string
	// At replaces the LUNs at some portals.
	At map[string]map[int]*Volume
	// Down portals do not answer.
	Down map[string]bool
	// Gone makes the disks of sessions dead.
	Gone bool
	// Behind, if it is set, replaces the LUNs: it returns what the target shows to an
	// initiator now.
	Behind func(initiator string, lun int) *Volume
}

type session struct {
	id, host              int
	target, portal, iface string
	initiator, state      string
	// rport is set for disks on Fibre Channel, which has no sessions.
	rport *rport
}

const loggedIn = "LOGGED_IN"

type disk struct {
	address host.Address
	name    string
	session *session
	bytes   int64
	// early is how often the disk cannot be opened yet.
	early int
	// offline disks fail every command.
	offline bool
	// shown is when the disk of the device appears.
	shown time.Time
}

type dmap struct {
	name, alias, wwid string
	paths             []string
	bytes             int64
	// failing maps hold nothing back.
	failing bool
}

// Layer is a device that the node has made of what it found on another device: a
// partition, a logical volume or an array.
type Layer struct {
	// Name is the kernel's name, and Alias that of device-mapper. ID begins with part or
	// LVM- and is empty for arrays.
	Name, Alias, ID string
	// On is the device below, and Partition the kernel's name of its partition, if the
	// layer is on that.
	On, Partition string
	// Open means that something uses it.
	Open bool
}

type mount struct {
	device, root, at, kind string
	readOnly, fsReadOnly   bool
	options                string
	// of is the volume that was mounted.
	of *Volume
}

// Node is the node.
type Node struct {
	// mu is one for all nodes of a storage, since they share its volumes.
	mu *sync.Mutex
	// initiator is the node's iSCSI name.
	initiator string
	// contents are those that were read; see once.
	contents map[string][]byte

	Boot    string
	Targets map[string]*Target
	// Subsystems are those of NVMe.
	Subsystems map[string]*Subsystem
	// FCHosts are the node's Fibre Channel ports, and FCTargets those of the storage, by
	// their names; see Fabric.
	FCHosts   []*FCHost
	FCTargets map[string]*FCTarget
	// Ceph is the cluster that the node reaches. NoRBD makes the kernel lack its client
	// until it is loaded, and Unanswered are images for which it has not done an order.
	Ceph       *Ceph
	NoRBD      bool
	Unanswered map[string]bool
	// Missing are programs that the node lacks.
	Missing map[string]bool
	// Multipathd means that multipathd runs. If Greedy, it takes single paths,
	// too.
	Multipathd, Greedy bool
	// Hidden are devices that are mounted in another namespace only.
	Hidden map[string]bool
	// Unpropagated makes mounts appear for the plugin only.
	Unpropagated bool
	// Delay is how long every program runs.
	Delay time.Duration
	// Layers are on disks and maps.
	Layers []*Layer
	// Before is called before every program, which does not run if Before returns an
	// error. It may change the node.
	Before func(command string) error
	// AfterRead is called after a device was read.
	AfterRead func(device string)
	// Queues makes maps hold everything back while no path answers, until somebody
	// switches that off.
	Queues bool
	// Forgetful makes mkfs ignore the UUID that it is given, as an old one might.
	Forgetful bool
	// MapDelay is how long multipathd takes to make a map.
	MapDelay time.Duration
	// ScanDelay is how long a new device is known before it has a disk.
	ScanDelay time.Duration
	// Full means that there is no room for a file.
	Full bool
	// Early is how often a new disk cannot be opened yet.
	Early int
	// Kept makes the kernel keep disks that are deleted.
	Kept bool
	// Reuse makes the kernel give the names of disks that are gone to new ones.
	Reuse bool
	// NoNVMe makes the kernel lack NVMe over fabrics, and Unloaded until it is loaded.
	NoNVMe, Unloaded bool
	// Internal makes all controllers parts of the node.
	Internal bool
	// SinglePath switches the kernel's NVMe multipath off.
	SinglePath bool
	// IscsidConf is what the node's iscsid.conf sets in new records.
	IscsidConf map[string]string
	// Cgroups are the directories of cgroups on the node, below /sys/fs/cgroup, and what
	// their io.max has by device; nil if a cgroup has no io.max. Without
	// any, the node has version 1.
	Cgroups map[string]map[string]string
	// FreezeDelay is how long it takes to freeze filesystems. GuardsDie makes what has
	// filesystems frozen die with the plugin.
	FreezeDelay time.Duration
	GuardsDie   bool
	// Links are directories that are symbolic links, and where they lead.
	Links map[string]string

	files       map[string][]byte
	modified    map[string]time.Time
	booted      time.Time
	dirs        map[string]bool
	locks       map[string]bool
	records     map[string]map[string]string
	wwids       map[string]bool
	sessions    []*session
	rports      []*rport
	disks       []*disk
	maps        []*dmap
	controllers []*controller
	heads       []*head
	mappings    []*mapping
	opened      []*opened
	mounts      []*mount
	setro       map[string]bool
	frozen      map[string]freezer // by device
	guards      []*Guard
	calls       []string
	harm        []string
	nextID      int
	effects     int
	crashAt     int
	applied     bool
	failAt      int
	crashed     bool
	lastWrite   string
	waits       []string
}

// New makes a node without sessions.
func New() *Node { return newNode(&sync.Mutex{}, Initiator) }

// Root returns the node as the Root of a Host.
func (n *Node) Root() host.Root { return host.Root{Files: n, Devices: n, Tools: n, Network: n} }

// Beside makes another node of the same storage, with another iSCSI name.
func (n *Node) Beside(initiator string) *Node {
	other := newNode(n.mu, initiator)
	other.Targets, other.Subsystems, other.FCTargets, other.Ceph = n.Targets, n.Subsystems, n.FCTargets, n.Ceph
	return other
}

func newNode(mu *sync.Mutex, initiator string) *Node {
	return &Node{
		mu: mu, initiator: initiator,
		Boot: "boot-1", Targets: map[string]*Target{}, Subsystems: map[string]*Subsystem{}, FCTargets: map[string]*FCTarget{}, Missing: map[string]bool{}, Hidden: map[string]bool{},
		files: map[string][]byte{
			"/etc/iscsi/initiatorname.iscsi": []byte("## a comment\nInitiatorName=" + initiator + "\n"),
		},
		modified: map[string]time.Time{}, booted: time.Now(),
		dirs: map[string]bool{}, locks: map[string]bool{}, records: map[string]map[string]string{}, wwids: map[string]bool{}, setro: map[string]bool{}, frozen: map[string]freezer{},
	}
}

// CrashAt makes the node's plugin die at the nth change from now, before or after it
// has its effect.
func (n *Node) CrashAt(nth int, after bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.effects, n.crashAt, n.applied, n.failAt = 0, nth, after, 0
}

// FailAt makes the nth change from now fail without having an effect.
func (n *Node) FailAt(nth int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.effects, n.crashAt, n.failAt = 0, 0, nth
}

// Restart starts the plugin again. It reports whether it had crashed.
func (n *Node) Restart() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	crashed := n.crashed
	n.crashed, n.crashAt, n.failAt = false, 0, 0
	n.locks = map[string]bool{}
	return crashed
}

// Reboot starts the node again: what is in memory is lost.
func (n *Node) Reboot(boot string) {
	n.Restart()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.booted = time.Now()
	n.Boot, n.sessions, n.disks, n.maps, n.mounts = boot, nil, nil, nil, nil
	n.killGuards()
	clear(n.frozen)
	n.controllers, n.heads, n.rports, n.Layers, n.opened = nil, nil, nil, nil, nil
	for _, m := range n.mappings {
		m.dead = true
	}
	n.mappings = nil
}

// Reached reports whether the crash or the failure that was asked for happened.
func (n *Node) Reached() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.crashed || n.failAt > 0 && n.effects >= n.failAt
}

// Harm returns what callers did that loses or shows somebody's data.
func (n *Node) Harm() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.harm)
}

// Waits returns what waited for a map that holds everything back. Nobody can end such
// a wait.
func (n *Node) Waits() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.waits)
}

// use notes that something waits for a device's map, if it does.
func (n *Node) use(device, by string) {
	device = n.below(device)
	for _, m := range n.maps {
		if m.name == device && n.Queues && !m.failing && n.volumeOf(device) == nil {
			n.waits = append(n.waits, by+" "+device)
		}
	}
}

// Calls returns the programs that ran, without secrets.
func (n *Node) Calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

// Left returns everything that is on the node because of volumes.
func (n *Node) Left() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var left []string
	for _, m := range n.mounts {
		left = append(left, "mount "+m.at)
	}
	for _, m := range n.maps {
		left = append(left, "map "+m.name)
	}
	for _, d := range n.disks {
		left = append(left, "disk "+d.address.String())
	}
	for _, s := range n.sessions {
		left = append(left, fmt.Sprintf("session %d", s.id))
	}
	for _, o := range n.opened {
		left = append(left, "opened "+o.alias)
	}
	for _, l := range n.Layers {
		left = append(left, "layer "+l.Name)
	}
	for _, c := range n.controllers {
		left = append(left, "controller "+c.name)
	}
	for _, h := range n.heads {
		left = append(left, "namespace "+h.name)
	}
	for _, m := range n.mappings {
		left = append(left, "mapping "+m.device())
	}
	for key := range n.records {
		left = append(left, "record "+key)
	}
	for file := range n.files {
		if !strings.HasPrefix(file, "/etc/") && !strings.Contains(file, "/formatting/") {
			left = append(left, "file "+file)
		}
	}
	for device := range n.frozen {
		left = append(left, "frozen "+device)
	}
	for lock := range n.locks {
		left = append(left, "lock "+lock)
	}
	slices.Sort(left)
	return left
}

// Files returns the files that were written.
func (n *Node) Files() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	files := map[string]string{}
	for name, content := range n.files {
		files[name] = string(content)
	}
	return files
}

// PutFile writes a file.
func (n *Node) PutFile(name, content string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files[name], n.modified[name] = []byte(content), time.Now()
}

// RemoveFiles removes the files below a directory.
func (n *Node) RemoveFiles(below string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.files, func(name string, _ []byte) bool { return strings.HasPrefix(name, below) })
}

// LogIn makes a session past the plugin, as kubelet or an administrator would,
// under any initiator name.
func (n *Node) LogIn(target, portal, initiator string) (host, id int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	iface := "default"
	if initiator != n.initiator {
		// Kubelet makes an interface for each volume that has an initiator name.
		iface = portal + ":volume"
	}
	s := n.newSession(target, portal, iface, initiator)
	return s.host, s.id
}

// Lose makes sessions to a target lose it.
func (n *Node) Lose(target string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sessions {
		if s.target == target {
			s.state = "FAILED"
		}
	}
}

// RemoveDisks removes the disks behind a device from the kernel, as an administrator or
// the kernel itself does, even if they are in use. A map stays, without paths.
func (n *Node) RemoveDisks(device string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	gone := []string{device}
	for _, m := range n.maps {
		if m.name == device {
			gone, m.paths = m.paths, nil
		}
	}
	n.disks = slices.DeleteFunc(n.disks, func(d *disk) bool { return slices.Contains(gone, d.name) })
}

// DropPath takes a path out of its map, as an administrator does with multipathd.
func (n *Node) DropPath(disk string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.maps {
		m.paths = slices.DeleteFunc(m.paths, func(p string) bool { return p == disk })
	}
}

// Dial reaches a portal.
func (n *Node) Dial(_ context.Context, portal string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.Targets {
		if slices.Contains(t.Portals, portal) && !t.Down[portal] && !t.Gone {
			return nil
		}
	}
	for _, s := range n.Subsystems {
		if slices.Contains(s.Portals, portal) && !s.Down[portal] {
			return nil
		}
	}
	return syscall.ECONNREFUSED
}

// Find makes the kernel find a LUN of a session.
func (n *Node) Find(session, lun int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sessions {
		if s.id == session {
			n.scan(s, lun)
			return n.disks[len(n.disks)-1].name
		}
	}
	return ""
}

// MountByHand mounts a device where nobody asked for it.
func (n *Node) MountByHand(device, at, kind string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounts = append(n.mounts, &mount{device: device, root: "/", at: at, kind: kind})
}

// UnmountByHand undoes the topmost mount of a path.
func (n *Node) UnmountByHand(at string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unmount(at)
}

// MakeReadOnly does what the kernel does after a filesystem error.
func (n *Node) MakeReadOnly(at string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.mounts {
		if m.at == at {
			m.fsReadOnly = true
		}
	}
}

// Devices returns the kernel's names of the disks.
func (n *Node) Devices() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for _, d := range n.disks {
		names = append(names, d.name)
	}
	for _, h := range n.heads {
		names = append(names, h.name)
	}
	for _, m := range n.mappings {
		names = append(names, m.device())
	}
	return names
}

// MountedAt describes the topmost mount of a path: the volume and the options.
func (n *Node) MountedAt(at string) (v *Volume, options string, readOnly, found bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range slices.Backward(n.mounts) {
		if m.at == n.Resolve(at) {
			return n.volumeOf(m.device), m.options, m.readOnly, true
		}
	}
	return nil, "", false, false
}

// Write is where a kernel writes a filesystem that it has mounted.
type Write struct {
	// At is the path of the mount, and Target and LUN the address of its disk.
	At, Target string
	LUN        int
	// Of is the volume that was mounted, and Behind the one that is at the address now;
	// nil if there is none.
	Of, Behind *Volume
}

// Writes returns, for each of some nodes of one storage, where its kernel writes, all at
// one moment.
func Writes(nodes ...*Node) [][]Write {
	if len(nodes) == 0 {
		return nil
	}
	nodes[0].mu.Lock()
	defer nodes[0].mu.Unlock()
	all := make([][]Write, len(nodes))
	for i, n := range nodes {
		seen := map[string]bool{}
		for _, m := range n.mounts {
			if m.of == nil || m.fsReadOnly || seen[m.device] {
				continue
			}
			seen[m.device] = true
			w := Write{At: m.at, Of: m.of}
			if d := n.diskOf(n.below(m.device)); d != nil && d.session != nil {
				w.Target, w.LUN, w.Behind = d.session.target, d.address.LUN, n.live(d)
			}
			all[i] = append(all[i], w)
		}
	}
	return all
}

// Flush writes the same to all filesystems that the kernel has mounted, as it does late with
// what pods have written: wherever the disks lead by now. The data may depend on the volume
// that was mounted.
func (n *Node) Flush(data func(of *Volume) string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.mounts {
		if v := n.volumeOf(m.device); v != nil && m.of != nil && !m.fsReadOnly {
			v.Data = data(m.of)
		}
	}
}

// Write writes to the filesystem or the device at a path, as a pod does.
func (n *Node) Write(at, data string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range slices.Backward(n.mounts) {
		if m.at != n.Resolve(at) {
			continue
		}
		v := n.volumeOf(m.device)
		if v == nil {
			return syscall.EIO
		}
		if m.readOnly || m.fsReadOnly {
			return syscall.EROFS
		}
		if _, frozen := n.frozen[m.device]; frozen {
			return ErrBlocked
		}
		if of := n.mappingOf(n.below(m.device)); of != nil && !of.mayWrite() {
			return syscall.EIO
		}
		v.Data = data
		return nil
	}
	n.harm = append(n.harm, "a pod wrote to the node's own disk at "+at)
	return nil
}

// Read returns what was written to the filesystem or the device at a path.
func (n *Node) Read(at string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range slices.Backward(n.mounts) {
		if m.at == n.Resolve(at) {
			if v := n.volumeOf(m.device); v != nil {
				return v.Data, nil
			}
			return "", syscall.EIO
		}
	}
	return "", fs.ErrNotExist
}

// SetReadOnly reports whether the kernel refuses writes to a device.
func (n *Node) SetReadOnly(device string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setro[device]
}

// change does something that a crash can come before or after.
func (n *Node) change(what string, do func() error) error {
	if n.crashed {
		return ErrCrashed
	}
	n.effects++
	n.lastWrite = what
	switch {
	case n.crashAt > 0 && n.effects == n.crashAt && !n.applied:
		n.crash()
		return ErrCrashed
	case n.failAt > 0 && n.effects == n.failAt:
		return fmt.Errorf("%s: %w", what, ErrInjected)
	}
	err := do()
	if n.crashAt > 0 && n.effects == n.crashAt {
		n.crash()
		return ErrCrashed
	}
	return err
}

func (n *Node) crash() {
	n.crashed = true
	n.orphan()
}

// ReadFile reads a file.
func (n *Node) ReadFile(name string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return nil, ErrCrashed
	}
	if content, ok := n.files[name]; ok {
		return content, nil
	}
	if content, ok := n.tree()[name]; ok {
		return []byte(content), nil
	}
	return nil, fs.ErrNotExist
}

// Resolve follows the links.
func (n *Node) Resolve(name string) string {
	for link, to := range n.Links {
		if rest, below := strings.CutPrefix(name+"/", link+"/"); below {
			name = strings.TrimSuffix(to+"/"+rest, "/")
		}
	}
	return name
}

// ReadDir lists a directory.
func (n *Node) ReadDir(name string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return nil, ErrCrashed
	}
	found := map[string]bool{}
	collect := func(file string) {
		if rest, ok := strings.CutPrefix(file, name+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			found[first] = true
		}
	}
	for file := range n.files {
		collect(file)
	}
	if strings.HasPrefix(name, "/sys/") {
		for file := range n.tree() {
			collect(file)
		}
	}
	if len(found) == 0 {
		return nil, fs.ErrNotExist
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Replace writes a file.
func (n *Node) Replace(name string, content []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change("write "+name, func() error {
		if n.Full {
			return syscall.ENOSPC
		}
		n.files[name], n.modified[name] = slices.Clone(content), time.Now()
		return nil
	})
}

// Modified returns when a file was written.
func (n *Node) Modified(name string) (time.Time, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.files[name]; !ok {
		return time.Time{}, fs.ErrNotExist
	}
	return n.modified[name], nil
}

// MakeDir makes a directory.
func (n *Node) MakeDir(name string) error { return n.make(name) }

// MakeFile makes a file.
func (n *Node) MakeFile(name string) error { return n.make(name) }

func (n *Node) make(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change("make "+name, func() error {
		n.dirs[n.Resolve(name)] = true
		return nil
	})
}

// Remove removes a file or a directory.
func (n *Node) Remove(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change("remove "+name, func() error {
		name := n.Resolve(name)
		if slices.ContainsFunc(n.mounts, func(m *mount) bool { return m.at == name }) {
			return syscall.EBUSY
		}
		delete(n.files, name)
		delete(n.dirs, name)
		return nil
	})
}

// Exists reports whether a directory or a file of a mount is there.
func (n *Node) Exists(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dirs[n.Resolve(name)]
}

// Lock takes a lock.
func (n *Node) Lock(ctx context.Context, name string, wait bool) (func(), error) {
	for {
		n.mu.Lock()
		if n.crashed {
			n.mu.Unlock()
			return nil, ErrCrashed
		}
		if n.Full && !strings.HasPrefix(name, "/run/") {
			n.mu.Unlock()
			return nil, syscall.ENOSPC
		}
		if !n.locks[name] {
			n.locks[name] = true
			n.mu.Unlock()
			return func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				delete(n.locks, name)
			}, nil
		}
		n.mu.Unlock()
		if !wait {
			return nil, host.ErrLocked
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// Set writes to sysfs.
func (n *Node) Set(_ context.Context, name, value string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change("set "+name, func() error { return n.set(name, value) })
}

func (n *Node) set(name, value string) error {
	if at, ok := strings.CutSuffix(name, "/io.max"); ok && strings.HasPrefix(name, cgroupRoot) {
		return n.limit(at, value)
	}
	if _, ok := n.tree()[name]; !ok {
		return fs.ErrNotExist
	}
	if strings.HasPrefix(name, "/sys/class/nvme/") {
		return n.setController(path.Base(path.Dir(name)), path.Base(name))
	}
	if strings.HasPrefix(name, "/sys/bus/rbd/") {
		return n.refreshMapping(name)
	}
	if strings.HasPrefix(name, "/sys/class/scsi_host/") {
		var number, channel, target, lun int
		if _, err := fmt.Sscanf(path.Base(path.Dir(name)), "host%d", &number); err != nil {
			return err
		}
		if _, err := fmt.Sscanf(value, "%d %d %d", &channel, &target, &lun); err != nil {
			return syscall.EINVAL
		}
		for _, s := range n.sessions {
			if s.host == number {
				n.scan(s, lun)
			}
		}
		n.scanFC(number, target, lun)
		return nil
	}
	for _, d := range n.disks {
		if !strings.HasPrefix(name, "/sys/class/scsi_device/"+d.address.String()+"/") {
			continue
		}
		if path.Base(name) == "state" {
			if value != "offline\n" {
				return syscall.EINVAL
			}
			d.offline = true
			return nil
		}
		if path.Base(name) == "rescan" {
			if v := n.live(d); v != nil {
				d.bytes = v.Bytes
			}
		} else if !n.Kept {
			n.delete(d)
		}
		return nil
	}
	return fs.ErrNotExist
}

func (n *Node) scan(s *session, lun int) {
	v := n.exported(s, lun)
	at := addressOf(s, lun)
	if v == nil || slices.ContainsFunc(n.disks, func(d *disk) bool { return d.address == at }) {
		return
	}
	n.nextID++
	d := &disk{at, n.freeName(), s, v.Bytes, n.Early, false, time.Now().Add(n.ScanDelay)}
	n.disks = append(n.disks, d)
	if n.Multipathd && (n.Greedy || n.wwids[n.identityOf(d)]) {
		n.addPath(d)
	}
}

func (n *Node) freeName() string {
	first := n.nextID
	if n.Reuse {
		first = 1
	}
	for i := first; ; i++ {
		name := fmt.Sprintf("sd%c%c", 'a'+i/26, 'a'+i%26)
		if n.diskOf(name) == nil {
			return name
		}
	}
}

func (n *Node) delete(d *disk) {
	if n.claimed(d.name) {
		n.harm = append(n.harm, "disk "+d.name+" was deleted while it was in use")
	}
	n.disks = slices.DeleteFunc(n.disks, func(other *disk) bool { return other == d })
	for _, m := range n.maps {
		m.paths = slices.DeleteFunc(m.paths, func(p string) bool { return p == d.name })
	}
}

func (n *Node) exported(s *session, lun int) *Volume {
	if !n.answers(s) {
		return nil
	}
	if s.rport != nil {
		return n.FCTargets[s.rport.name].LUNs[lun]
	}
	if behind := n.Targets[s.target].Behind; behind != nil {
		return behind(s.initiator, lun)
	}
	if luns, ok := n.Targets[s.target].At[s.portal]; ok {
		return luns[lun]
	}
	return n.Targets[s.target].LUNs[lun]
}

// answers reports whether the storage behind a session answers at all.
func (n *Node) answers(s *session) bool {
	if s.rport != nil {
		t := n.FCTargets[s.rport.name]
		return t != nil && !t.Gone && s.rport.state == "Online"
	}
	t := n.Targets[s.target]
	return t != nil && !t.Gone && s.state == loggedIn && !t.Down[s.portal]
}

// live returns what the array shows at a disk's place now.
func (n *Node) live(d *disk) *Volume {
	if d.offline {
		return nil
	}
	return n.exported(d.session, d.address.LUN)
}

func (n *Node) diskOf(device string) *disk {
	for _, m := range n.maps {
		if m.name == device {
			for _, p := range m.paths {
				if d := n.diskOf(p); d != nil && n.live(d) != nil {
					return d
				}
			}
			return nil
		}
	}
	for _, d := range n.disks {
		if d.name == device {
			return d
		}
	}
	return nil
}

func (n *Node) volumeOf(device string) *Volume {
	device = n.below(device)
	if h := n.headOf(device); h != nil {
		return n.behind(h)
	}
	if m := n.mappingOf(device); m != nil {
		return n.behindMapping(m)
	}
	if d := n.diskOf(device); d != nil {
		return n.live(d)
	}
	return nil
}

func (n *Node) identityOf(d *disk) string {
	v := n.live(d)
	if v == nil {
		return ""
	}
	if v.Identity != "" {
		return v.Identity
	}
	return fmt.Sprintf("60000000%08x", d.address.LUN)
}

// claimed reports whether something holds a device.
func (n *Node) claimed(device string) bool {
	open := slices.ContainsFunc(n.Layers, func(l *Layer) bool { return l.On == device && l.Open })
	return n.Hidden[device] || open || n.isOpened(device) || slices.ContainsFunc(n.mounts, func(m *mount) bool { return m.device == device }) ||
		slices.ContainsFunc(n.maps, func(m *dmap) bool { return slices.Contains(m.paths, device) })
}

// carries reports whether a device has a layer.
func (n *Node) carries(device string) bool {
	return slices.ContainsFunc(n.Layers, func(l *Layer) bool { return l.On == device })
}

// free removes a layer that nothing uses.
func (n *Node) free(l *Layer) bool {
	if l.Open || n.carries(l.Name) {
		return false
	}
	n.Layers = slices.DeleteFunc(n.Layers, func(other *Layer) bool { return other == l })
	return true
}

// Claimed opens a device exclusively.
func (n *Node) Claimed(_ context.Context, device string) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return false, ErrCrashed
	}
	n.use(device, "opening")
	for _, l := range n.Layers {
		if l.Name == device {
			return l.Open || n.carries(device), nil
		}
	}
	if n.volumeOf(device) == nil && !n.Hidden[device] {
		return false, syscall.ENXIO
	}
	return n.Hidden[device] || n.carries(device) || n.isOpened(device) || slices.ContainsFunc(n.maps, func(m *dmap) bool { return slices.Contains(m.paths, device) }), nil
}

// Usage reads how full a filesystem is.
func (n *Node) Usage(_ context.Context, at string) (host.Usage, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range slices.Backward(n.mounts) {
		if v := n.volumeOf(m.device); m.at == n.Resolve(at) && v != nil {
			return host.Usage{Bytes: v.FilesystemBytes, FreeBytes: v.FilesystemBytes / 2, AvailableBytes: v.FilesystemBytes / 4, Inodes: 100, FreeInodes: 90}, nil
		}
	}
	return host.Usage{}, errors.New("the statistics of " + at + " did not finish within 5s")
}

func (n *Node) newSession(target, portal, iface, initiator string) *session {
	n.nextID++
	s := &session{n.nextID, n.nextID + 100, target, portal, iface, initiator, loggedIn, nil}
	n.sessions = append(n.sessions, s)
	return s
}

func (n *Node) unmount(at string) bool {
	for i, m := range slices.Backward(n.mounts) {
		if m.at == n.Resolve(at) {
			n.mounts = slices.Delete(n.mounts, i, i+1)
			n.use(m.device, "umount of")
			last := !slices.ContainsFunc(n.mounts, func(other *mount) bool { return other.device == m.device })
			if v := n.volumeOf(m.device); last && m.of != nil && v != nil && v != m.of {
				n.harm = append(n.harm, "what was left of a filesystem was written to another volume at "+at)
			}
			return true
		}
	}
	return false
}

func sortedKeys[K cmp.Ordered, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }
