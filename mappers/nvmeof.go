package mappers

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// nvmeof describes protocol nvmeof.
func nvmeof() protocol {
	return protocol{
		about: mapping.Protocol{
			Facts: []string{"nqn", "address", "port", "transport", "addresses", "uuid", "nguid", "namespace", "wwid"},
			Fields: []string{
				"target_nqn", "nqn", "portals", "target_portal", "target_port", "transport_type", "vol_uuid", "volume_uuid", "volume_nguid", "ns_id",
				"host_nqn", "alias", "volume_replicas", "replica_count", "writable", "target_lun",
			},
			// A subsystem may be shared by all volumes of an array.
			IdentityFacts: []string{"uuid", "nguid", "wwid"},
		},
		builtIn: mapNVMeOF,
		facts:   nvmeofFacts,
		missing: map[string]string{"uuid": unidentified, "nguid": unidentified, "wwid": unidentified},
	}
}

// unidentified explains the refusal of older-form connections, which Cinder's own NVMe
// targets send by default (cinder/volume/targets/nvmeof.py).
const unidentified = "the connection names neither vol_uuid nor volume_nguid, so nodes cannot tell which disk of the subsystem is the volume; set nvmeof_conn_info_version = 2 for the backend in cinder.conf if it has that option, or identify the volume in the mapping by .nvmeof.nqn and .nvmeof.namespace for a driver that can"

// mapNVMeOF refuses protocol nvmeof, for which Kubernetes has no native source.
func mapNVMeOF(r request) (Result, error) {
	_, mirrored, err := nvmeofFacts(r)
	if err != nil {
		return Result{}, err
	}
	what := ""
	if mirrored != nil {
		what = ", and this volume is mirrored over several targets (volume_replicas), which the driver has to understand"
	}
	return Result{}, refuse(MappingRequired, "Kubernetes has no volume source of its own for NVMe-oF%s; use mode csi, whose nodes connect by TCP, or name in mapping.nvmeof of the backend a CSI or FlexVolume driver that attaches such volumes", what)
}

// nvmePortal is one address of a subsystem.
type nvmePortal struct {
	address
	transport string
}

// nvmeofFacts reads both forms of NVMe-oF connections: flat keys, and a list of portals
// (described by the class NVMeOFConnProps of os-brick's connectors/nvmeof.py). A mirrored
// volume has separate targets for each replica, and none of them is the whole volume.
func nvmeofFacts(r request) (facts, *Refusal, error) {
	c := r.Connection
	if replicas, err := c.list("volume_replicas"); err != nil || len(replicas) > 0 {
		return nil, refuse(UnsupportedConnection, "the volume is mirrored over several targets (volume_replicas), and attaching one of them would split the mirror; write mapping.nvmeof from the fields of .connection for a driver that understands mirrors, or use a volume type without replicas"), err
	}
	nqn, err := c.nqn()
	if err != nil {
		return nil, nil, err
	}
	portals, err := c.nvmePortals()
	if err != nil {
		return nil, nil, err
	}
	uuid, err := c.hexID([]string{"vol_uuid", "volume_uuid", "uuid"}, "a UUID")
	if err != nil {
		return nil, nil, err
	}
	nguid, err := c.hexID([]string{"volume_nguid"}, "an NGUID of 32 hexadecimal digits")
	if err != nil {
		return nil, nil, err
	}
	namespace, err := c.namespaceID()
	if err != nil {
		return nil, nil, err
	}

	// One connect command uses one transport.
	primary := portals[0]
	var addresses []any
	for _, portal := range portals {
		if portal.transport == primary.transport {
			addresses = append(addresses, portal.address.String())
		}
	}
	wwid := ""
	switch {
	case uuid != "":
		uuid = dashed(uuid)
		wwid = "uuid." + uuid
	case nguid != "":
		wwid = "eui." + nguid
	}
	return facts{
		"nqn": nqn, "address": primary.host, "port": fmt.Sprint(primary.port), "transport": known(primary.transport), "addresses": addresses,
		"uuid": known(uuid), "nguid": known(nguid), "namespace": known(namespace), "wwid": known(wwid),
	}, nil, nil
}

// nqnPattern matches the name of an NVMe subsystem. Cinder's own target generates names
// without the date that the specification requires.
var nqnPattern = regexp.MustCompile(`^nqn\.[A-Za-z0-9][A-Za-z0-9.:_-]*$`)

// nqn reads the subsystem's name. One driver sends it as a list of one element.
func (c Connection) nqn() (string, error) {
	for _, key := range []string{"target_nqn", "nqn"} {
		value, present := c.value(key)
		if !present {
			continue
		}
		if list, ok := value.([]any); ok && len(list) == 1 {
			key, value = at(key, 0), list[0]
		}
		nqn, ok := value.(string)
		switch {
		case !ok:
			return "", c.wrongType(key, value, "a string")
		case len(nqn) > maxTargetNameLength || !nqnPattern.MatchString(nqn):
			return "", refuse(InvalidConnection, "%s is %s, expected the name of an NVMe subsystem (nqn. and letters, digits, \".\", \":\", \"_\" and \"-\", at most %d); correct the backend's driver or its settings", key, c.quote(nqn), maxTargetNameLength)
		}
		return nqn, nil
	}
	return "", refuse(InvalidConnection, "target_nqn is missing; check the cinder-volume log, because this backend's driver failed to describe the connection")
}

// nvmePortals reads the portals; there is at least one.
func (c Connection) nvmePortals() ([]nvmePortal, error) {
	list, err := c.list("portals")
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		portal, err := c.flatNVMePortal()
		return []nvmePortal{portal}, err
	}
	var portals []nvmePortal
	for i, element := range list {
		portal, err := c.nvmePortal(at("portals", i), element)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(portals, portal) {
			portals = append(portals, portal)
		}
	}
	return portals, nil
}

// nvmePortal reads [address, port, transport], or "address:port".
func (c Connection) nvmePortal(field string, value any) (nvmePortal, error) {
	if text, ok := value.(string); ok {
		read, err := parsePortal(text)
		if err != nil {
			return nvmePortal{}, refuse(InvalidConnection, "%s is %s, which %v; correct the backend's addresses", field, c.quote(text), err)
		}
		transport, err := c.transport("transport_type", c.data["transport_type"])
		return nvmePortal{read, transport}, err
	}
	parts, ok := value.([]any)
	if !ok || len(parts) < 2 || len(parts) > 3 {
		return nvmePortal{}, c.wrongType(field, value, "a list of address, port and transport")
	}
	var transport any
	if len(parts) == 3 {
		transport = parts[2]
	}
	return c.newNVMePortal(field+"[0]", parts[0], field+"[1]", parts[1], field+"[2]", transport)
}

func (c Connection) flatNVMePortal() (nvmePortal, error) {
	for _, key := range []string{portalKey, "target_port"} {
		if _, present := c.value(key); !present {
			return nvmePortal{}, refuse(InvalidConnection, "%s is missing, and there is no list of portals; check the cinder-volume log, because this backend's driver failed to describe the connection", key)
		}
	}
	return c.newNVMePortal(portalKey, c.data[portalKey], "target_port", c.data["target_port"], "transport_type", c.data["transport_type"])
}

func (c Connection) newNVMePortal(hostField string, host any, portField string, port any, transportField string, transport any) (nvmePortal, error) {
	name, ok := host.(string)
	if !ok {
		return nvmePortal{}, c.wrongType(hostField, host, "a string")
	}
	digits, ok := numeral(port)
	if !ok {
		return nvmePortal{}, c.wrongType(portField, port, "a number")
	}
	read, err := newAddress(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"), digits, strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]"))
	if err != nil {
		return nvmePortal{}, refuse(InvalidConnection, "portal %s, port %s (%s and %s) %v; correct the backend's addresses", c.quote(name), c.quote(digits), hostField, portField, err)
	}
	kind, err := c.transport(transportField, transport)
	return nvmePortal{read, kind}, err
}

// transport returns the word that nvme connect accepts. It is empty if the driver does
// not send one.
func (c Connection) transport(field string, value any) (string, error) {
	if value == nil {
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", c.wrongType(field, value, "a string")
	}
	switch strings.ToLower(text) {
	case "tcp":
		return "tcp", nil
	case "rdma", "rocev2", "roce":
		return "rdma", nil
	}
	return "", refuse(UnsupportedConnection, "%s is %s, expected tcp or rdma; use a backend with one of these", field, c.quote(text))
}

// hexID reads the first of several fields that hold a 128-bit identifier, with or without
// dashes, as 32 lower-case digits. Others must agree.
func (c Connection) hexID(keys []string, what string) (string, error) {
	found := ""
	for _, key := range keys {
		text, err := c.text(key)
		if err != nil {
			return "", err
		}
		if text == "" {
			continue
		}
		digits := strings.ToLower(strings.ReplaceAll(text, "-", ""))
		if !hex128.MatchString(digits) || strings.Trim(digits, "0") == "" {
			return "", refuse(InvalidConnection, "%s is %s, expected %s; check the cinder-volume log, because this backend's driver failed to describe the connection", key, c.quote(text), what)
		}
		if found != "" && digits != found {
			return "", refuse(InvalidConnection, "%s contradicts %s, so it is unclear which volume is meant; check the cinder-volume log, because this backend's driver failed to describe the connection", key, keys[0])
		}
		found = digits
	}
	return found, nil
}

var hex128 = regexp.MustCompile(`^[0-9a-f]{32}$`)

// dashed writes 32 digits as a UUID.
func dashed(digits string) string {
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-")
}

// namespaceID reads the volume's number within the subsystem.
func (c Connection) namespaceID() (string, error) {
	value, present := c.value("ns_id")
	if !present {
		return "", nil
	}
	digits, _ := numeral(value)
	if !wholeNumber.MatchString(digits) || digits == "0" || len(digits) > len("4294967295") {
		return "", c.wrongType("ns_id", value, "a number from 1 on")
	}
	return digits, nil
}
