// Package stamps says what the program writes into the metadata of volumes and snapshots:
// whose they are, how they are used, and what they must not be taken for.
package stamps

import (
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Prefix begins the keys that are this project's own.
const Prefix = "standalone-cinder.openstack.org/"

// The metadata keys of a volume. Claim and PersistentVolume use the keys that
// the Kubernetes CSI sidecars established, so that existing chargeback tools
// can read them.
const (
	KeyCluster      = Prefix + "cluster"
	KeyClusterUID   = Prefix + "kube-system-uid"
	KeyClaimUID     = Prefix + "claim-uid"
	KeyTenant       = Prefix + "tenant"
	KeyStorageClass = Prefix + "storage-class"
	KeyRequestedAt  = Prefix + "requested-at"
	// KeyRequest records what was requested of Cinder, to tell a volume of an earlier,
	// different request.
	KeyRequest  = Prefix + "requested"
	KeyWorkflow = Prefix + "workflow"
	// KeyMode says that nodes get the volume each for itself, by its value ModeCSI.
	// Without it, all nodes of the cluster share one connection.
	KeyMode = Prefix + "mode"
	// NodeRecordPrefix and a node's key are the key under which a volume of mode csi
	// records the attachment that was handed out to that node; see NodeRecord.
	NodeRecordPrefix = Prefix + "node."
	// UncleanPrefix and a node's key are the key of a note that the node may still write
	// to the volume; see Unclean.
	UncleanPrefix = Prefix + "unclean."
	// KeyFilesystemUUIDs is the first of the keys under which a volume of mode csi
	// records the UUIDs that its filesystem may have; see FilesystemUUIDsOf.
	KeyFilesystemUUIDs = Prefix + "filesystem-uuids"
	// KeyAttached is written before an attachment is completed. Cinder itself
	// leaves such a mark only with os-attach.
	KeyAttached = Prefix + "attached"
	// KeyContested is not empty on a volume that another party reserved while it
	// was being imported.
	KeyContested = Prefix + "contested"
	KeyNamespace = "csi.storage.k8s.io/pvc/namespace"
	KeyClaim     = "csi.storage.k8s.io/pvc/name"
	KeyPV        = "csi.storage.k8s.io/pv/name"
)

// ModeCSI is the value of KeyMode.
const ModeCSI = "csi"

// IsOurKey selects the metadata that the lifecycle reads: what it writes itself,
// and Cinder's marks.
func IsOurKey(key string) bool {
	switch key {
	case KeyNamespace, KeyClaim, KeyPV, cinder.MetadataReadOnly, cinder.MetadataAttachedMode,
		KeySnapshotNamespace, KeySnapshot, KeySnapshotContent:
		return true
	}
	return strings.HasPrefix(key, Prefix)
}

// LongestValue is the longest value that Cinder accepts for a metadata key.
const LongestValue = 255

// ClaimOf returns the UID of the claim that one of the cluster's volumes is stamped
// with; empty for volumes of others.
func ClaimOf(cluster string) func(v cinder.Volume) (uid string) {
	return func(v cinder.Volume) string {
		if v.Metadata[KeyCluster] != cluster {
			return ""
		}
		return v.Metadata[KeyClaimUID]
	}
}

// keysOfOne are the keys whose values are different for each claim or snapshot.
var keysOfOne = []string{KeyClaimUID, KeyClaim, KeyPV, KeyRequestedAt, KeySnapshotUID, KeySnapshot, KeySnapshotContent}

// Share copies metadata so that all volumes share common strings: the
// keys, and the values that do not differ between claims or snapshots. Each was decoded
// separately, and a listing of 20,000 volumes is kept for a leader's term.
func Share(metadata, texts map[string]string) map[string]string {
	share := func(text string) string {
		if known, ok := texts[text]; ok {
			return known
		}
		texts[text] = text
		return text
	}
	shared := make(map[string]string, len(metadata))
	for key, value := range metadata {
		switch {
		case strings.HasPrefix(key, NodeRecordPrefix):
		case slices.Contains(keysOfOne, key):
		default:
			value = share(value)
		}
		shared[share(key)] = value
	}
	return shared
}
