package mappers

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// NodeConnection is how a single node reaches a volume that is attached to it, through
// the CSI driver's node plugin. It has none of the limits of Kubernetes' own sources:
// paths may have different targets and any LUNs.
type NodeConnection struct {
	// Protocol is driver_volume_type in lower case.
	Protocol string
	// Paths lead to the same volume, the primary first. There is at least one.
	Paths []NodePath
	// Identities are the identifiers that the disk must report, if Cinder knows them:
	// "uuid." and a UUID, or "eui." and an NGUID, for NVMe; "naa." and an NAA identifier
	// for SCSI disks. Images of Ceph have none.
	Identities []string
	// ReadOnly means that Cinder grants the volume read-only.
	ReadOnly bool
	// Credentials are what the node logs in with; nil if it needs none.
	Credentials *NodeCredentials
	// Encryption is nil if the node has nothing to open.
	Encryption *Encryption
	// Limits are what the nodes hold.
	Limits Limits
	// Warnings describe, in sentences, what Cinder offered and the nodes do not use, and
	// Unenforced the limits that nodes do not hold.
	Warnings, Unenforced []string
}

// NodePath is one path to a volume.
type NodePath struct {
	// Portal is host:port; an IPv6 address has brackets. For Fibre Channel it lists the
	// node's own ports that reach the target, separated by commas, and is empty if they
	// are unknown.
	Portal string
	// Target is the name of the iSCSI target, of the NVMe subsystem, or of the storage's
	// Fibre Channel port; for RBD, pool/image. There, Portal is a monitor.
	Target string
	// LUN is the kernel's number of the logical unit, which differs from the array's in
	// some addressing modes. For NVMe it is the namespace's number, or 0 if that is
	// unknown.
	LUN int
}

// NodeCredentials are CHAP credentials, or a Ceph user and its key, and what opens an
// encrypted volume. Printing them shows nothing.
type NodeCredentials struct {
	User, Password string
	// DiscoveryUser and DiscoveryPassword are empty if discovery needs none.
	DiscoveryUser, DiscoveryPassword string
	// Passphrase is empty unless the node opens the volume.
	Passphrase string
	// AlsoPassphrase must open the volume, too, and FormerPassphrase no longer; empty if there
	// is none.
	AlsoPassphrase, FormerPassphrase string
}

const hiddenCredentials = "(credentials)"

// String hides the credentials.
func (NodeCredentials) String() string { return hiddenCredentials }

// GoString keeps %#v from printing the credentials.
func (NodeCredentials) GoString() string { return hiddenCredentials }

// LogValue keeps slog from printing the credentials.
func (NodeCredentials) LogValue() slog.Value { return slog.StringValue(hiddenCredentials) }

// MarshalJSON keeps JSON loggers from printing the credentials.
func (NodeCredentials) MarshalJSON() ([]byte, error) { return json.Marshal(hiddenCredentials) }

// NodeRequest is what is known about a volume and its node besides the connection.
type NodeRequest struct {
	// Encrypted is the volume's attribute at Cinder, and Encryption how its nodes open it;
	// nil if that is not known.
	Encrypted  bool
	Encryption *Encryption
	// Ports are the node's known Fibre Channel ports.
	Ports []string
	// CephUser is the operator's Ceph user with its key, which takes precedence over that
	// of a connection; nil if there is none.
	CephUser *NodeCredentials
}

// ForNode reads a connection that Cinder made for one node. The error is a *Refusal,
// without secrets.
func ForNode(c Connection, r NodeRequest) (NodeConnection, error) {
	if c.protocol == "" {
		return NodeConnection{}, refuse(InvalidConnection, "there is no connection; connect the volume before it is mapped")
	}
	read, known := forNodes[c.protocol]
	if !known {
		return NodeConnection{}, refuse(UnsupportedProtocol, "the nodes of the CSI driver do not support protocol %s (only %s); use mode native for this backend", c.protocol, strings.Join(NodeProtocols(), ", "))
	}
	sealed, err := c.Encrypted()
	if err != nil {
		return NodeConnection{}, err
	}
	if (sealed || r.Encrypted) && r.Encryption == nil {
		return NodeConnection{}, refuse(EncryptedVolume, "encrypted is true, but nothing says how nodes open the volume, so they would format it; use a volume type without encryption")
	}
	access, err := c.text("access_mode")
	if err != nil {
		return NodeConnection{}, err
	}
	if access != "" && access != "rw" && access != "ro" {
		return NodeConnection{}, refuse(InvalidConnection, "access_mode is %s, expected \"rw\" or \"ro\"; check the cinder-volume log", c.quote(access))
	}
	found, err := read(c, r)
	if err != nil {
		return NodeConnection{}, err
	}
	limits, unenforced, err := c.limits()
	if err != nil {
		return NodeConnection{}, err
	}
	if r.Encryption != nil && r.Encryption.LUKS != 0 {
		found.Encryption = r.Encryption
	}
	found.Protocol, found.ReadOnly, found.Warnings = c.protocol, access == "ro" || c.readOnly, append(found.Warnings, unenforced...)
	found.Limits, found.Unenforced = limits, unenforced
	return found, nil
}

// forNodes has, by protocol, the function that reads a connection for the nodes.
var forNodes = map[string]func(Connection, NodeRequest) (NodeConnection, error){
	"fibre_channel": fibreChannelForNode,
	"iscsi":         iscsiForNode,
	"iser":          iscsiForNode,
	"nvmeof":        nvmeofForNode,
	ProtocolRBD:     rbdForNode,
}

// NodeProtocols returns the protocols by which nodes of the CSI driver attach volumes.
func NodeProtocols() []string { return slices.Sorted(maps.Keys(forNodes)) }

func iscsiForNode(c Connection, _ NodeRequest) (NodeConnection, error) {
	paths, warnings, err := iscsiConnection{c, true}.paths()
	if err != nil {
		return NodeConnection{}, err
	}
	found := NodeConnection{Warnings: warnings}
	for _, path := range paths {
		lun, err := c.kernelLUN(path.lun)
		if err != nil {
			return NodeConnection{}, err
		}
		found.Paths = append(found.Paths, NodePath{Portal: path.portal.String(), Target: path.target, LUN: lun})
	}
	found.Identities = c.wwn()
	found.Credentials, err = c.nodeCredentials()
	return found, err
}

// volumeNAA is a 128-bit NAA identifier, as udev writes it. Only logical units have one.
var volumeNAA = regexp.MustCompile(`^3(6[0-9a-f]{31})$`)

// wwn returns the disk's identifier, as Pure Storage's drivers send it. Other drivers use
// the field for other things, which are ignored.
func (c Connection) wwn() []string {
	value, _ := c.value("wwn")
	text, _ := value.(string)
	if found := volumeNAA.FindStringSubmatch(strings.ToLower(text)); found != nil {
		return []string{"naa." + found[1]}
	}
	return nil
}

// fibreChannelForNode reads which ports of the storage the node's ports reach. If the
// connection names the initiators, no other port of the node is used: there, the LUN may
// be another volume.
func fibreChannelForNode(connection Connection, r NodeRequest) (NodeConnection, error) {
	ports := r.Ports
	c, err := readFC(connection)
	if err != nil {
		return NodeConnection{}, err
	}
	pairs, err := c.paths()
	if err != nil {
		return NodeConnection{}, err
	}
	shown := c.masking.initiators()
	ours := slices.Clone(ports)
	if len(shown) > 0 {
		ours = slices.DeleteFunc(slices.Clone(shown), func(initiator string) bool { return len(ports) > 0 && !slices.Contains(ports, initiator) })
		if len(ours) == 0 {
			return NodeConnection{}, refuse(InvalidConnector, "%s exposes the volume only to %s, none of which is a port of the node (%s); correct the array's entry of the host, or the zones", initiatorsKey, some(shown), some(ports))
		}
	}
	var found NodeConnection
	var hidden []string
	for _, pair := range pairs {
		from := slices.DeleteFunc(slices.Clone(ours), func(initiator string) bool {
			return len(shown) > 0 && !slices.Contains(c.masking.targets[initiator], pair.target)
		})
		if len(shown) > 0 && len(from) == 0 {
			hidden = append(hidden, pair.target)
			continue
		}
		lun, err := c.kernelLUN(pair.lun)
		if err != nil {
			return NodeConnection{}, err
		}
		found.Paths = append(found.Paths, NodePath{Portal: strings.Join(from, ","), Target: pair.target, LUN: lun})
	}
	found.Identities = c.wwn()
	if len(hidden) > 0 {
		found.Warnings = append(found.Warnings, fmt.Sprintf("the array exposes the volume to no port of the node at %s", some(hidden)))
	}
	var without []string
	for _, port := range ports {
		if !slices.Contains(ours, port) {
			without = append(without, port)
		}
	}
	if len(without) > 0 {
		found.Warnings = append(found.Warnings, fmt.Sprintf("the array exposes the volume to %d of the node's %d ports, not to %s", len(ours), len(ports), some(without)))
	}
	return found, nil
}

// flatBit marks flat space addressing in the first byte of a LUN, in the number that the
// kernel derives from the LUN.
const flatBit = 1 << 14

// kernelLUN returns Linux's number for a LUN of the array. The modes are os-brick's
// (lun_for_addressing in initiator/linuxscsi.py).
func (c Connection) kernelLUN(lun int32) (int, error) {
	mode, err := c.text("addressing_mode")
	if err != nil {
		return 0, err
	}
	switch mode {
	case "", "SAM", "transparent":
		return int(lun), nil
	case "SAM2":
		if lun < 256 {
			return int(lun), nil
		}
	case "SAM3-flat":
	default:
		return 0, refuse(InvalidConnection, "addressing_mode is %s, expected SAM, SAM2, SAM3-flat or transparent; check the cinder-volume log", c.quote(mode))
	}
	if lun >= flatBit {
		return 0, refuse(InvalidConnection, "LUN %d cannot be reached in addressing_mode %s, which ends at %d; check the cinder-volume log", lun, mode, flatBit-1)
	}
	return int(lun) + flatBit, nil
}

// nvmeofForNode reads both forms of NVMe-oF connections. Nodes connect over TCP.
func nvmeofForNode(c Connection, _ NodeRequest) (NodeConnection, error) {
	if replicas, err := c.list("volume_replicas"); err != nil || len(replicas) > 0 {
		return NodeConnection{}, orRefuse(err, UnsupportedConnection, "the volume is mirrored over several targets (volume_replicas), which the nodes do not support; use a volume type without replicas")
	}
	nqn, err := c.nqn()
	if err != nil {
		return NodeConnection{}, err
	}
	portals, err := c.nvmePortals()
	if err != nil {
		return NodeConnection{}, err
	}
	namespace, err := c.namespaceID()
	if err != nil {
		return NodeConnection{}, err
	}
	var found NodeConnection
	uuid, err := c.hexID([]string{"vol_uuid", "volume_uuid", "uuid"}, "a UUID")
	if err != nil {
		return NodeConnection{}, err
	}
	if uuid != "" {
		found.Identities = append(found.Identities, "uuid."+dashed(uuid))
	}
	nguid, err := c.hexID([]string{"volume_nguid"}, "an NGUID of 32 hexadecimal digits")
	if err != nil {
		return NodeConnection{}, err
	}
	if nguid != "" {
		found.Identities = append(found.Identities, "eui."+nguid)
	}
	if namespace == "" && len(found.Identities) == 0 {
		return NodeConnection{}, refuse(InvalidConnection, "the connection names neither vol_uuid nor volume_nguid nor ns_id, so nodes cannot tell which disk of the subsystem is the volume; set nvmeof_conn_info_version = 2 for the backend in cinder.conf if it has that option")
	}
	number := 0
	if namespace != "" {
		if number, err = strconv.Atoi(namespace); err != nil {
			return NodeConnection{}, c.wrongType("ns_id", namespace, "a number from 1 on")
		}
	}
	others := map[string]bool{}
	for _, portal := range portals {
		if portal.transport != "tcp" && portal.transport != "" {
			others[portal.transport] = true
			continue
		}
		if address, err := netip.ParseAddr(portal.host); err != nil || address.Zone() != "" {
			return NodeConnection{}, refuse(InvalidConnection, "portal %s has no IP address, which the nodes' kernels need; correct the backend's addresses", c.quote(portal.address.String()))
		}
		found.Paths = append(found.Paths, NodePath{Portal: portal.address.String(), Target: nqn, LUN: number})
	}
	transports := strings.Join(slices.Sorted(maps.Keys(others)), ", ")
	switch {
	case len(found.Paths) == 0:
		return NodeConnection{}, refuse(UnsupportedConnection, "transport_type is %s, and the nodes of the CSI driver connect by tcp; use a backend with NVMe over TCP", transports)
	case transports != "":
		found.Warnings = append(found.Warnings, "portals by "+transports+" are not used; the nodes of the CSI driver connect by tcp")
	}
	credentials, err := c.nodeCredentials()
	if err == nil && credentials != nil {
		err = refuse(UnsupportedConnection, "the connection has credentials, but the nodes of the CSI driver do not support NVMe authentication; disable it for the backend")
	}
	return found, err
}

// orRefuse returns the error, or a refusal if there is none.
func orRefuse(err error, reason Reason, message string) error {
	if err != nil {
		return err
	}
	return refuse(reason, "%s", message)
}

// nodeCredentials reads the credentials for sessions. Credentials for discovery alone are
// useless: nodes perform no discovery.
func (c Connection) nodeCredentials() (*NodeCredentials, error) {
	data := map[string][]byte{}
	session, err := c.chap("", "session.", data)
	if err != nil {
		return nil, err
	}
	if _, err := c.chap("discovery_", "discovery.", data); err != nil {
		return nil, err
	}
	if !session {
		return nil, nil
	}
	return &NodeCredentials{
		User: string(data["session.username"]), Password: string(data["session.password"]),
		DiscoveryUser: string(data["discovery.username"]), DiscoveryPassword: string(data["discovery.password"]),
	}, nil
}
