package mapping

import "regexp"

// Initiator matches the iSCSI names under which nodes can log in. It is
// narrower than what the API server accepts as a PersistentVolume's initiatorName
// (pkg/apis/core/validation in Kubernetes) and than RFC 3722, because kubelet
// builds file names and globs from it.
var Initiator = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+:[a-z0-9._:-]+|eui\.[0-9A-Fa-f]{16}|naa\.[0-9A-Fa-f]{32})$`)

// LongestInitiator is the length of the longest iSCSI name (RFC 7143, section
// 4.2.7.2).
const LongestInitiator = 223
