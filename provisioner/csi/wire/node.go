package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// LongestNodeID is the limit for a node ID in a CSINode, in bytes.
const LongestNodeID = 256

// Node has the names that identify a node to Cinder and to storage arrays.
type Node struct {
	// Name is the name of the Node object.
	Name string
	// InitiatorName is the node's iSCSI name; empty if it has none.
	InitiatorName string
	// PortNames are the node's Fibre Channel port names, in lower case and
	// without colons, in order.
	PortNames []string
	// NodeNames are the Fibre Channel node names (WWNNs) of the ports, one for each of
	// PortNames, or none at all.
	NodeNames []string
	// HostNQN is the node's NVMe name; empty if it has none.
	HostNQN string
	// HostID is the node's NVMe host ID; empty if it has none.
	HostID string
	// Multipath reports whether the node runs multipathd.
	Multipath bool
}

// The fields of a node ID. They are always in the order of NodeID, so that a node
// always has the same ID.
const (
	nodeIDVersion  = "v1"
	fieldInitiator = "i="
	fieldPorts     = "w="
	fieldNodeNames = "a="
	fieldNQN       = "n="
	fieldHostID    = "h="
	fieldMultipath = "m"
)

// NodeID returns the node's ID in its CSINode, which cannot change while the driver is
// registered there. It fails if the ID would be too long, or if ParseNodeID could not
// read a name back.
func (n Node) NodeID() (string, error) {
	fields := []string{nodeIDVersion, n.Name}
	add := func(field, value string) {
		if value != "" {
			fields = append(fields, field+value)
		}
	}
	add(fieldInitiator, n.InitiatorName)
	add(fieldPorts, strings.Join(n.PortNames, ","))
	add(fieldNodeNames, strings.Join(n.shortNodeNames(), ","))
	add(fieldNQN, n.HostNQN)
	add(fieldHostID, n.HostID)
	if n.Multipath {
		fields = append(fields, fieldMultipath)
	}
	id := strings.Join(fields, " ")
	if len(id) > LongestNodeID {
		return "", fmt.Errorf("the names of node %s take %d bytes, and a node ID has room for %d", n.Name, len(id), LongestNodeID)
	}
	back, err := ParseNodeID(id)
	if err != nil || !back.equal(n) {
		return "", fmt.Errorf("the names of node %s cannot be encoded in a node ID: %q", n.Name, id)
	}
	return id, nil
}

func (n Node) equal(other Node) bool {
	return n.Name == other.Name && n.InitiatorName == other.InitiatorName && slices.Equal(n.PortNames, other.PortNames) &&
		slices.Equal(n.NodeNames, other.NodeNames) && n.HostNQN == other.HostNQN && n.HostID == other.HostID && n.Multipath == other.Multipath
}

// shortNodeNames returns the beginnings of the node names, up to the last digit that
// differs from those of the ports: there is little room, and usually only the first
// digits differ.
func (n Node) shortNodeNames() []string {
	var short []string
	for i, name := range n.NodeNames {
		if i < len(n.PortNames) && len(name) == len(n.PortNames[i]) {
			same := len(name)
			// Keep at least one digit, so that the entry is not empty.
			for same > 1 && name[same-1] == n.PortNames[i][same-1] {
				same--
			}
			name = name[:same]
		}
		short = append(short, name)
	}
	return short
}

// nodeNamesOf is the inverse of shortNodeNames.
func nodeNamesOf(short, ports []string) []string {
	if len(short) != len(ports) {
		return nil
	}
	names := slices.Clone(short)
	for i, port := range ports {
		if len(names[i]) < len(port) {
			names[i] += port[len(names[i]):]
		}
	}
	return names
}

// ParseNodeID reads what NodeID writes. It ignores fields that it does not know,
// because nodes may be upgraded first.
func ParseNodeID(id string) (Node, error) {
	fields := strings.Split(id, " ")
	if len(id) > LongestNodeID || len(fields) < 2 || fields[0] != nodeIDVersion || fields[1] == "" {
		return Node{}, fmt.Errorf("node ID %.300q is not one of this driver", id)
	}
	n := Node{Name: fields[1]}
	var nodeNames []string
	for _, field := range fields[2:] {
		switch {
		case strings.HasPrefix(field, fieldInitiator):
			n.InitiatorName = field[len(fieldInitiator):]
		case strings.HasPrefix(field, fieldPorts):
			n.PortNames = strings.Split(field[len(fieldPorts):], ",")
		case strings.HasPrefix(field, fieldNodeNames):
			nodeNames = strings.Split(field[len(fieldNodeNames):], ",")
		case strings.HasPrefix(field, fieldNQN):
			n.HostNQN = field[len(fieldNQN):]
		case strings.HasPrefix(field, fieldHostID):
			n.HostID = field[len(fieldHostID):]
		case field == fieldMultipath:
			n.Multipath = true
		}
	}
	n.NodeNames = nodeNamesOf(nodeNames, n.PortNames)
	return n, nil
}

// NameKind is what a name for arrays is for.
type NameKind string

// The kinds of names.
const (
	NameISCSI        NameKind = "iSCSI"
	NameNVMe         NameKind = "NVMe"
	NameFibreChannel NameKind = "Fibre Channel"
)

// SharedNames returns the names for arrays that two nodes share. The case of iSCSI names
// and port names does not matter; NVMe names are compared byte by byte.
func (n Node) SharedNames(other Node) map[NameKind]string {
	shared := map[NameKind]string{}
	if n.InitiatorName != "" && strings.EqualFold(n.InitiatorName, other.InitiatorName) {
		shared[NameISCSI] = n.InitiatorName
	}
	if n.HostNQN != "" && n.HostNQN == other.HostNQN {
		shared[NameNVMe] = n.HostNQN
	}
	// A driver may read port names as numbers.
	number := func(name string) string { return strings.TrimLeft(name, "0") }
	for _, name := range n.PortNames {
		if name != "" && slices.ContainsFunc(other.PortNames, func(other string) bool { return strings.EqualFold(number(name), number(other)) }) {
			shared[NameFibreChannel] = name
		}
	}
	return shared
}

// Key returns a short substitute for a node's name, for places where the name would be
// too long or have invalid characters: keys of a volume's metadata and of its Secret.
func (n Node) Key() string { return NodeKey(n.Name) }

// NodeKey returns the Key of the node with a name.
func NodeKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}
