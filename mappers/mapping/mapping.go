// Package mapping has the rules about connections that the policy's checks and
// the mappers share. It imports nothing of the module.
package mapping

import (
	"regexp"
	"slices"
)

// Initiator is the form of the iSCSI name under which nodes log in. It is
// narrower than what the API server accepts as a PersistentVolume's initiatorName
// (pkg/apis/core/validation in Kubernetes) and than RFC 3722: kubelet builds file
// names and globs from it.
var Initiator = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+:[a-z0-9._:-]+|eui\.[0-9A-Fa-f]{16}|naa\.[0-9A-Fa-f]{32})$`)

// LongestInitiator is the longest iSCSI name (RFC 7143, section 4.2.7.2).
const LongestInitiator = 223

// NativeProtocols are those with a volume source in Kubernetes itself, as Cinder
// names them (driver_volume_type).
func NativeProtocols() []string { return []string{"iscsi", "iser", "fibre_channel", "rbd"} }

// HasNativeSource says whether a protocol is one of them.
func HasNativeSource(protocol string) bool { return slices.Contains(NativeProtocols(), protocol) }
