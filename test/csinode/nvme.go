package csinode

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// HostNQN and HostID are the node's own NVMe names.
const (
	HostNQN = "nqn.2014-08.org.nvmexpress:uuid:6953a373-c3f7-4ea8-ae77-105c393012ff"
	HostID  = "6953a373-c3f7-4ea8-ae77-105c393012ff"
)

// Subsystem is an NVMe subsystem. The kernel sees a change of its namespaces when it is
// told to scan.
type Subsystem struct {
	Portals    []string
	Namespaces map[int]*Volume
	// Down portals do not answer.
	Down map[string]bool
	// ByPortal are namespaces that a portal shows instead.
	ByPortal map[string]map[int]*Volume
}

type controller struct {
	name, subsystem, portal, host string
}

// head is the disk that the kernel makes from a namespace.
type head struct {
	name, subsystem string
	id              int
	uuid, nguid     string
	bytes           int64
}

// ConnectByHand connects a subsystem past the plugin, as an administrator
// would.
func (n *Node) ConnectByHand(subsystem, portal, hostNQN string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.connect(subsystem, portal, hostNQN)
}

// Scan makes the kernel look at all namespaces, as it does when a subsystem tells it to.
func (n *Node) Scan() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.scanNamespaces()
}

func (n *Node) connect(subsystem, portal, hostNQN string) {
	n.nextID++
	n.controllers = append(n.controllers, &controller{fmt.Sprintf("nvme%d", n.nextID), subsystem, portal, hostNQN})
	n.scanNamespaces()
}

// ConnectNVMe connects the kernel to a subsystem.
func (n *Node) ConnectNVMe(_ context.Context, portal, options string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := map[string]string{}
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		o[key] = value
	}
	return n.change("connect "+options, func() error {
		n.calls = append(n.calls, "connect "+options)
		s := n.Subsystems[o["nqn"]]
		switch {
		case n.NoNVMe || n.Unloaded:
			return syscall.ENOENT
		case o["transport"] != "tcp" || o["hostnqn"] != HostNQN || o["hostid"] != HostID || net.JoinHostPort(o["traddr"], o["trsvcid"]) != portal:
			return syscall.EINVAL
		case s == nil || !slices.Contains(s.Portals, portal) || s.Down[portal]:
			return syscall.ECONNREFUSED
		case slices.ContainsFunc(n.controllers, func(c *controller) bool {
			return c.subsystem == o["nqn"] && c.portal == portal && c.host == o["hostnqn"]
		}):
			return syscall.EALREADY
		}
		n.connect(o["nqn"], portal, o["hostnqn"])
		return nil
	})
}

func (n *Node) state(c *controller) string {
	if s := n.Subsystems[c.subsystem]; s == nil || s.Down[c.portal] {
		return "connecting"
	}
	return "live"
}

// shown returns the namespaces that a controller has at the subsystem.
func (n *Node) shown(c *controller) map[int]*Volume {
	s := n.Subsystems[c.subsystem]
	if n.state(c) != "live" {
		return nil
	}
	if of, ok := s.ByPortal[c.portal]; ok {
		return of
	}
	return s.Namespaces
}

// behind returns the volume that a disk reaches.
func (n *Node) behind(h *head) *Volume {
	for _, c := range n.controllers {
		if c.subsystem == h.subsystem && n.state(c) == "live" {
			return n.shown(c)[h.id]
		}
	}
	return nil
}

func (n *Node) headOf(device string) *head {
	for _, h := range n.heads {
		if h.name == device {
			return h
		}
	}
	return nil
}

// scanNamespaces does what the kernel does: a namespace that identifies itself as
// another one gets another disk.
func (n *Node) scanNamespaces() {
	kept := n.heads[:0:0]
	for _, h := range n.heads {
		connected := slices.ContainsFunc(n.controllers, func(c *controller) bool { return c.subsystem == h.subsystem })
		alive := slices.ContainsFunc(n.controllers, func(c *controller) bool { return c.subsystem == h.subsystem && n.state(c) == "live" })
		v := n.behind(h)
		if connected && (!alive || v != nil && v.NamespaceUUID == h.uuid && v.NGUID == h.nguid) {
			if v != nil {
				h.bytes = v.Bytes
			}
			kept = append(kept, h)
		}
	}
	n.heads = kept
	for _, c := range n.controllers {
		for id, v := range n.shown(c) {
			if !slices.ContainsFunc(n.heads, func(h *head) bool { return h.subsystem == c.subsystem && h.id == id }) {
				n.nextID++
				n.heads = append(n.heads, &head{fmt.Sprintf("nvme0n%d", n.nextID), c.subsystem, id, v.NamespaceUUID, v.NGUID, v.Bytes})
			}
		}
	}
}

func (n *Node) setController(name, attribute string) error {
	if attribute == "rescan_controller" {
		n.scanNamespaces()
		return nil
	}
	i := slices.IndexFunc(n.controllers, func(c *controller) bool { return c.name == name })
	if attribute != "delete_controller" || i < 0 {
		return syscall.EINVAL
	}
	subsystem := n.controllers[i].subsystem
	n.controllers = slices.Delete(n.controllers, i, i+1)
	if slices.ContainsFunc(n.controllers, func(c *controller) bool { return c.subsystem == subsystem }) {
		return nil
	}
	for _, h := range n.heads {
		for _, m := range n.mounts {
			if m.device == h.name && h.subsystem == subsystem && m.of == n.Subsystems[subsystem].Namespaces[h.id] && !m.of.Elsewhere {
				n.harm = append(n.harm, "the connection was ended under "+h.name)
			}
		}
	}
	n.heads = slices.DeleteFunc(n.heads, func(h *head) bool { return h.subsystem == subsystem })
	return nil
}

// Identify answers as a controller.
func (n *Node) Identify(_ context.Context, name string, structure byte, namespace uint32) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return nil, ErrCrashed
	}
	i := slices.IndexFunc(n.controllers, func(c *controller) bool { return c.name == name })
	if i < 0 {
		return nil, syscall.ENOENT
	}
	answer := make([]byte, 4096)
	v := n.shown(n.controllers[i])[int(namespace)]
	switch {
	case n.state(n.controllers[i]) != "live":
		return nil, syscall.EIO
	case v == nil && structure == 0:
		return answer, nil
	case v == nil:
		return nil, host.ErrNoNamespace
	}
	nguid, err := hex.DecodeString(v.NGUID)
	if err != nil {
		return nil, err
	}
	if structure == 0 {
		binary.LittleEndian.PutUint64(answer, uint64(v.Bytes/512))
		answer[26], answer[128+4+2] = 1, 9 // the second format
		copy(answer[104:], nguid)
		return answer, nil
	}
	id, err := hex.DecodeString(strings.ReplaceAll(v.NamespaceUUID, "-", ""))
	if err != nil || len(id) == 0 {
		return answer, err
	}
	answer[0], answer[1] = 3, 16
	copy(answer[4:], id)
	return answer, nil
}

func (n *Node) nvmeTree(files map[string]string) {
	if !n.NoNVMe && !n.Unloaded {
		files["/sys/class/nvme-fabrics/ctl/uevent"] = ""
	}
	files["/sys/module/nvme_core/parameters/multipath"] = map[bool]string{false: "Y\n", true: "N\n"}[n.SinglePath]
	for _, c := range n.controllers {
		directory := "/sys/class/nvme/" + c.name + "/"
		address, port, _ := net.SplitHostPort(c.portal)
		files[directory+"subsysnqn"] = c.subsystem + "\n"
		files[directory+"transport"] = "tcp\n"
		if n.Internal {
			files[directory+"transport"] = "pcie\n"
		}
		files[directory+"address"] = "traddr=" + address + ",trsvcid=" + port + ",src_addr=10.0.0.9\n"
		files[directory+"hostnqn"] = c.host + "\n"
		files[directory+"state"] = n.state(c) + "\n"
		files[directory+"delete_controller"], files[directory+"rescan_controller"] = "", ""
	}
	for _, h := range n.heads {
		directory := "/sys/block/" + h.name + "/"
		files[directory+"nsid"] = fmt.Sprintf("%d\n", h.id)
		files[directory+"device/subsysnqn"] = h.subsystem + "\n"
		if h.uuid != "" {
			files[directory+"uuid"] = h.uuid + "\n"
		}
		if h.nguid != "" {
			files[directory+"nguid"] = h.nguid + "\n"
		}
		n.block(files, h.name, h.bytes)
		// The path below it must not be used as a disk.
		files["/sys/block/"+strings.Replace(h.name, "n", "c0n", 2)+"/nsid"] = fmt.Sprintf("%d\n", h.id)
	}
}
