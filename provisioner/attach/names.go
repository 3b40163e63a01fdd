package attach

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// hasNameFor returns an error if a node has not registered the name by which arrays
// know it with a protocol, even if the array made an export without that name.
func hasNameFor(node wire.Node, protocol string) error {
	name, lacks := node.InitiatorName, "iSCSI name; install open-iscsi there"
	switch protocol {
	case "nvmeof":
		name, lacks = node.HostNQN, "NVMe name; install nvme-cli there"
	case "fibre_channel":
		name, lacks = strings.Join(node.PortNames, ","), "online Fibre Channel port; check its HBAs"
	}
	if name != "" {
		return nil
	}
	return &controller.Failure{Kind: controller.Unmappable, Message: fmt.Sprintf("the volume is attached by %s, but node %s has registered no %s, and restart its node plugin", protocol, node.Name, lacks)}
}

// protocolsKept is how long the protocol of a volume is remembered. It may change,
// because an OpenStack administrator may move the volume to other storage.
const protocolsKept = 10 * time.Minute

// protocols remembers the protocols of volumes that a node without the matching name
// was to get. The protocol shows only when a volume is attached, so every repetition
// would make another attachment.
type protocols struct {
	mu   sync.Mutex
	seen map[wire.Handle]seenProtocol
}

type seenProtocol struct {
	protocol string
	at       time.Time
}

// check calls hasNameFor if the protocol of the volume is known.
func (p *protocols) check(to controller.PublishRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for volume, seen := range p.seen {
		if time.Since(seen.at) > protocolsKept {
			delete(p.seen, volume)
		}
	}
	seen, known := p.seen[to.Volume]
	if !known {
		return nil
	}
	return hasNameFor(to.Node, seen.protocol)
}

// learn calls hasNameFor, and remembers the protocol if the node lacks the name.
func (p *protocols) learn(to controller.PublishRequest, protocol string) error {
	err := hasNameFor(to.Node, protocol)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen[to.Volume] = seenProtocol{protocol, time.Now()}
	}
	return err
}
