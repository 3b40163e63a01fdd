package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Roots are what a template may name, with what is below each; nil says that
// the root is a value itself. Below "connection" stands whatever the driver
// sends.
func Roots(protocol string) map[string][]string {
	roots := map[string][]string{
		"connection": {},
		"volume":     {"id", "name", "size", "type", "zone"},
		"claim":      {"namespace", "name", "uid"},
		"pv":         {"name"},
		"connector":  {"host", "initiator", "nqn"},
		"tenant":     nil,
		"fsType":     nil,
		"readOnly":   nil,
	}
	if facts := factNames(protocol); facts != nil {
		roots[protocol] = facts
	}
	return roots
}

// factNames are what the mappers read from the connections of a protocol,
// whatever form the driver chose, and have checked.
func factNames(protocol string) []string {
	switch protocol {
	case "fibre_channel":
		return []string{"targets", "lun", "luns"}
	case "iscsi", "iser":
		return []string{"portal", "iqn", "lun", "portals", "iqns", "luns"}
	case "nfs":
		return []string{"export", "server", "path", "file", "format", "options"}
	case "nvmeof":
		return []string{"nqn", "address", "port", "transport", "addresses", "uuid", "nguid", "namespace", "wwid"}
	case "rbd":
		return []string{"pool", "image", "monitors", "user", "key"}
	}
	return nil
}

// unknown says what is wrong with the path of a value, or nothing.
func (u Use) unknown(path []string) string {
	roots := Roots(u.Protocol)
	children, known := roots[path[0]]
	written := "." + strings.Join(path, ".")
	switch {
	case !known && factNames(path[0]) != nil:
		return fmt.Sprintf("%s is known for connections of protocol %s only", written, path[0])
	case !known:
		return fmt.Sprintf("unknown value %s%s", written, among(path[0], slices.Sorted(maps.Keys(roots))))
	case children == nil && len(path) > 1:
		return fmt.Sprintf("unknown value %s: .%s has no fields", written, path[0])
	case children == nil:
		return ""
	case len(path) == 1:
		if path[0] == "connection" {
			return ".connection is no value as a whole, since it may hold credentials; name a field of it"
		}
		return fmt.Sprintf("%s is no value; name a field of it: %s", written, strings.Join(children, ", "))
	case path[0] == "connection":
		return ""
	case !slices.Contains(children, path[1]):
		return fmt.Sprintf("unknown value %s%s", written, among(path[1], children))
	case len(path) > 2:
		return fmt.Sprintf("unknown value %s: .%s.%s has no fields", written, path[0], path[1])
	}
	return ""
}

// among ends a sentence about an unknown name.
func among(name string, known []string) string {
	for _, candidate := range known {
		if strings.EqualFold(candidate, name) || strings.HasPrefix(candidate, name) || len(name) > 3 && strings.HasPrefix(name, candidate) {
			return fmt.Sprintf("; did you mean .%s?", candidate)
		}
	}
	return "; there are " + strings.Join(known, ", ")
}

// perNode says why a field of a connection holds for one node only, or nothing.
func perNode(protocol, field string) string {
	if protocol == "storpool" && field == "client_id" {
		return "it is the StorPool number of the one host that the connector named"
	}
	return ""
}

// decorations are the fields that Cinder's volume manager adds to what drivers
// send (cinder/volume/manager.py, initialize_connection).
var decorations = []string{
	"volume_id", "qos_specs", "access_mode", "encrypted", "cacheable", "discard", "enforce_multipath",
	"logical_block_size", "physical_block_size",
}

// KnownFields are the fields that Cinder's drivers are known to send with a
// protocol; nil where none are known. Drivers may send others.
func KnownFields(protocol string) []string {
	own := map[string][]string{
		"iscsi": {"target_portal", "target_iqn", "target_lun", "target_portals", "target_iqns", "target_luns", "target_discovered",
			"auth_method", "auth_username", "auth_password", "discovery_auth_method", "discovery_auth_username", "discovery_auth_password",
			"addressing_mode", "wwn"},
		"fibre_channel": {"target_wwn", "target_wwns", "target_lun", "target_luns", "target_discovered", "initiator_target_map",
			"initiator_target_lun_map", "addressing_mode", "wwn", "map_info"},
		"rbd": {"name", "hosts", "ports", "cluster_name", "auth_enabled", "auth_username", "secret_type", "secret_uuid", "keyring"},
		"nvmeof": {"target_nqn", "nqn", "portals", "target_portal", "target_port", "transport_type", "vol_uuid", "volume_uuid", "volume_nguid", "ns_id",
			"host_nqn", "alias", "volume_replicas", "replica_count", "writable", "target_lun"},
		"nfs":      {"export", "name", "options", "format"},
		"quobyte":  {"export", "name", "options", "format"},
		"storpool": {"client_id", "volume"},
		"gpfs":     {"name", "device_path"},
		"scaleio": {"scaleIO_volname", "scaleIO_volume_id", "hostIP", "serverIP", "serverPort", "serverUsername", "serverPassword", "serverToken",
			"iopsLimit", "bandwidthLimit", "config_group", "failed_over"},
	}
	own["iser"] = own["iscsi"]
	if own[protocol] == nil {
		return nil
	}
	return append(own[protocol], decorations...)
}
