package csinode

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// CephUser and CephKey are the user that a Ceph cluster of New admits.
const (
	CephUser = "cinder"
	CephKey  = "c3dvcmRmaXNoLTE="
)

// Features of images.
const (
	ExclusiveLock = 1 << 2
	Journaling    = 1 << 6
	// knownFeatures are those of the kernel.
	knownFeatures = 0x1bf
)

// Ceph is a cluster with images.
type Ceph struct {
	FSID     string
	Monitors []string
	// Open means that the cluster needs no key.
	Open   bool
	Images map[string]*Image
	// Down makes the cluster not answer.
	Down bool
}

// Image is an image of a Ceph cluster, by pool/image.
type Image struct {
	*Volume
	ID       string
	Features uint64
	// locker has the exclusive lock.
	locker *mapping
}

// mapping is an image that a node has mapped.
type mapping struct {
	number    int
	line      string
	image     *Image
	pool      string
	name      string
	bytes     int64
	readOnly  bool
	exclusive bool
	// blocklisted means that the cluster refuses the client.
	blocklisted bool
	// dead means that its node is.
	dead bool
}

// mayWrite takes the lock for a write, unless a client that lives keeps it. A client gets
// it back once that one has unmapped the image.
func (m *mapping) mayWrite() bool {
	if m.readOnly || m.image.Features&ExclusiveLock == 0 {
		return !m.readOnly
	}
	if l := m.image.locker; l != nil && l != m && !l.dead && l.exclusive {
		return false
	}
	m.image.locker = m
	return true
}

func (m *mapping) device() string { return fmt.Sprintf("rbd%d", m.number) }

func (n *Node) mappingOf(device string) *mapping {
	for _, m := range n.mappings {
		if m.device() == device {
			return m
		}
	}
	return nil
}

// behindMapping returns the volume that a mapping reaches.
func (n *Node) behindMapping(m *mapping) *Volume {
	if m.blocklisted || n.Ceph.Down {
		return nil
	}
	return m.image.Volume
}

// MapByHand maps an image past the plugin, as the program rbd does.
func (n *Node) MapByHand(image string, exclusive bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	options := "name=admin,key=client.admin"
	if n.Ceph.Open {
		options = "name=admin,noshare"
	}
	if exclusive {
		options += ",exclusive"
	}
	pool, name, _ := strings.Cut(image, "/")
	return n.mapImage(strings.Join([]string{n.Ceph.Monitors[0], options, pool, name, "-"}, " "), "admin")
}

// Blocklist makes the cluster refuse the client of a device.
func (n *Node) Blocklist(device string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mappingOf(device).blocklisted = true
}

// TellsRBD reports whether a test said so.
func (n *Node) TellsRBD(image string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Unanswered[image]
}

// TellRBD maps and unmaps images.
func (n *Node) TellRBD(_ context.Context, c host.RBDCall) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change("rbd "+c.Line, func() error {
		n.calls = append(n.calls, "rbd "+c.Line)
		if _, ok := n.tree()[c.File]; !ok {
			return &fs.PathError{Op: "open", Path: c.File, Err: syscall.ENOENT}
		}
		var err error
		switch path.Base(c.File) {
		case "add_single_major":
			user := ""
			if c.Key == CephKey && strings.Contains(c.Line, "key="+c.KeyName) {
				user = CephUser
			}
			err = n.mapImage(c.Line, user)
		case "remove_single_major":
			err = n.unmapImage(c.Line)
		default:
			err = syscall.EINVAL
		}
		if err != nil {
			err = &fs.PathError{Op: "write", Path: c.File, Err: err}
		}
		return err
	})
}

func (n *Node) mapImage(line, user string) error {
	words := strings.Fields(line)
	options := strings.Split(words[1], ",")
	if n.Ceph.Down || !slices.ContainsFunc(strings.Split(words[0], ","), func(m string) bool { return slices.Contains(n.Ceph.Monitors, m) }) {
		return syscall.ETIMEDOUT
	}
	if !n.Ceph.Open && user == "" {
		return syscall.EACCES
	}
	image := n.Ceph.Images[words[2]+"/"+words[3]]
	if image == nil {
		return syscall.ENOENT
	}
	m := &mapping{line: line, image: image, pool: words[2], name: words[3], bytes: image.Bytes, readOnly: slices.Contains(options, "read_only"), exclusive: slices.Contains(options, "exclusive")}
	if !m.readOnly && image.Features&^knownFeatures != 0 {
		return syscall.ENXIO
	}
	if !m.readOnly && m.exclusive && image.Features&ExclusiveLock == 0 {
		return syscall.EINVAL
	}
	if !m.readOnly && image.Features&ExclusiveLock != 0 {
		if l := image.locker; l != nil && !l.dead && l.exclusive {
			return syscall.EROFS
		}
		if l := image.locker; l != nil && l.dead {
			l.blocklisted = true
		}
		image.locker = m
	}
	for n.mappingOf(m.device()) != nil {
		m.number++
	}
	n.mappings = append(n.mappings, m)
	return nil
}

func (n *Node) unmapImage(line string) error {
	var number int
	force := strings.HasSuffix(line, " force")
	if _, err := fmt.Sscan(line, &number); err != nil {
		return syscall.EINVAL
	}
	m := n.mappingOf(fmt.Sprintf("rbd%d", number))
	if m == nil {
		return syscall.ENOENT
	}
	if n.claimed(m.device()) && !force {
		return syscall.EBUSY
	}
	if m.image.locker == m {
		m.image.locker = nil
	}
	n.mappings = slices.DeleteFunc(n.mappings, func(other *mapping) bool { return other == m })
	return nil
}

// PowerOff ends a node for good: its clients of Ceph die with their locks.
func (n *Node) PowerOff() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.mappings {
		m.dead = true
	}
	n.crashed = true
}

func (n *Node) refreshMapping(name string) error {
	m := n.mappingOf("rbd" + path.Base(path.Dir(name)))
	switch {
	case m.blocklisted:
		return syscall.ESHUTDOWN
	case n.Ceph.Down:
		return fmt.Errorf("the write to %s did not finish within %s", name, 90*time.Second)
	case n.Ceph.Images[m.pool+"/"+m.name] != m.image:
		return syscall.ENOENT
	}
	m.bytes = m.image.Bytes
	return nil
}

func (n *Node) rbdTree(files map[string]string) {
	if n.NoRBD || n.Ceph == nil {
		return
	}
	const bus = "/sys/bus/rbd/"
	for _, name := range []string{"add", "remove", "add_single_major", "remove_single_major"} {
		files[bus+name] = ""
	}
	files[bus+"supported_features"] = fmt.Sprintf("0x%x\n", knownFeatures)
	for _, m := range n.mappings {
		directory := fmt.Sprintf("%sdevices/%d/", bus, m.number)
		for name, value := range map[string]string{
			"config_info": m.line, "pool": m.pool, "name": m.name, "current_snap": "-", "pool_id": "2", "image_id": m.image.ID, "cluster_fsid": n.Ceph.FSID,
			"size": fmt.Sprint(m.bytes), "features": fmt.Sprintf("0x%016x", m.image.Features), "refresh": "",
		} {
			files[directory+name] = value + "\n"
		}
		n.block(files, m.device(), m.bytes)
	}
}
