package attach

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

type kind = wire.NameKind

const (
	iscsi        = wire.NameISCSI
	nvme         = wire.NameNVMe
	fibreChannel = wire.NameFibreChannel
	// none is for Ceph, which knows clients by their users.
	none kind = ""
)

// kindFor returns the kind of the name by which arrays know a node with a protocol.
func kindFor(protocol string) kind {
	switch protocol {
	case "nvmeof":
		return nvme
	case "fibre_channel":
		return fibreChannel
	case mappers.ProtocolRBD:
		return none
	}
	return iscsi
}

// doubles says, by kind, which other node has a node's name. Arrays must not learn such
// a name: they would show a volume to both. Volumes that need no name of the kind are not
// concerned.
type doubles map[kind]string

// without returns the node without the names that others have.
func (d doubles) without(node wire.Node) wire.Node {
	if d[iscsi] != "" {
		node.InitiatorName = ""
	}
	if d[nvme] != "" {
		node.HostNQN, node.HostID = "", ""
	}
	if d[fibreChannel] != "" {
		node.PortNames, node.NodeNames = nil, nil
	}
	return node
}

// check returns an error if a node has no name by which arrays know it, and it alone,
// with a protocol, even if the array made an export without that name.
func (d doubles) check(node wire.Node, protocol string) error {
	of := kindFor(protocol)
	if d[of] != "" {
		return &controller.Failure{Kind: controller.DuplicateInitiator, Message: d[of]}
	}
	if of == none {
		return nil
	}
	name, lacks := node.InitiatorName, "iSCSI name; install open-iscsi there"
	switch of {
	case nvme:
		name, lacks = node.HostNQN, "NVMe name; install nvme-cli there"
	case fibreChannel:
		name, lacks = strings.Join(node.PortNames, ","), "online Fibre Channel port; check its HBAs"
	}
	if name != "" {
		return nil
	}
	return &controller.Failure{Kind: controller.Unmappable, Message: fmt.Sprintf("the volume is attached by %s, but node %s has registered no %s, and restart its node plugin", protocol, node.Name, lacks)}
}

// explain adds to Cinder's failure which names it was not told: drivers refuse a node
// without the name that they need, and do not say why it has none.
func (d doubles) explain(err error) error {
	var failed *controller.Failure
	if len(d) == 0 || !errors.As(err, &failed) || failed.Kind == controller.DuplicateInitiator {
		return err
	}
	told := *failed
	told.Message += " (" + d.String() + ")"
	return &told
}

// String lists the messages.
func (d doubles) String() string { return strings.Join(slices.Sorted(maps.Values(d)), "; ") }

// routesKept is how long the route to a volume is remembered. It may change, because an
// OpenStack administrator may move the volume to other storage.
const routesKept = 10 * time.Minute

// route is how nodes reach a volume.
type route struct {
	protocol string
	targets  []string
	// refused is why the node of that name cannot use the connection at all; nil if it can.
	refused error
	node    string
	seen    time.Time
}

// routes remembers the routes to volumes that a node could not take. A route shows only
// when a volume is attached, so every repetition would make another attachment.
type routes struct {
	mu   sync.Mutex
	seen map[wire.Handle]route
}

func (r *routes) of(volume wire.Handle) (route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.seen, func(_ wire.Handle, seen route) bool { return time.Since(seen.seen) > routesKept })
	found, known := r.seen[volume]
	return found, known
}

func (r *routes) remember(volume wire.Handle, of route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[volume] = of
}

// fits returns an error if a node cannot take a volume by its route.
func (e *Engine) fits(node wire.Node, shared doubles, by route) error {
	if by.refused != nil {
		if by.node == node.Name {
			return by.refused
		}
		return nil // it may be able to
	}
	if err := shared.check(node, by.protocol); err != nil {
		return err
	}
	return e.isApart(node.Name, by)
}

// isApart returns an error if a node uses native volumes of one of the route's iSCSI
// targets. The kubelet finds the disks of native volumes by the name of the target and the
// LUN, whoever logged in: it would mount the driver's disks, and delete them.
func (e *Engine) isApart(node string, by route) error {
	if kindFor(by.protocol) != iscsi {
		return nil
	}
	if !e.Nodes.Known() {
		return fmt.Errorf("the nodes are not read yet, so it is not known whether node %s uses native volumes of the volume's target", node)
	}
	found := e.Nodes.Get(node)
	if found == nil {
		return nil
	}
	names := slices.Clone(found.Status.VolumesInUse)
	for _, attached := range found.Status.VolumesAttached {
		names = append(names, attached.Name)
	}
	for _, name := range names {
		for _, target := range by.targets {
			// The name is the prefix, the portal, the target and the LUN.
			if strings.HasPrefix(string(name), "kubernetes.io/iscsi/") && strings.Contains(strings.ToLower(string(name)), ":"+strings.ToLower(target)+":") {
				return &controller.Failure{Kind: controller.NativeInUse, Message: fmt.Sprintf("node %s uses native volumes of target %s, and the kubelet would take the driver's session to it for its own, so the node gets no volume of that target in mode csi; keep the nodes of the two modes apart (docs/how-to/choose-mode.md#keep-the-modes-on-separate-nodes)", node, target)}
			}
		}
	}
	return nil
}
