// Package stamps defines what the program writes into the metadata of volumes and
// snapshots: their owner, their use, and marks that rule out mistakes.
//
// See docs/decisions.md, "Stamps".
package stamps

import (
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Prefix begins this project's own keys.
const Prefix = "standalone-cinder.openstack.org/"

// The metadata keys of a volume. Claim and PersistentVolume use the keys established by
// the Kubernetes CSI sidecars, so that existing chargeback tools can read them.
const (
	KeyCluster    = Prefix + "cluster"
	KeyClusterUID = Prefix + "kube-system-uid"
	// KeyClaimUID is the UID of the claim that the volume was created for. It is part of
	// the volume's identity and stays when another claim gets the PersistentVolume.
	KeyClaimUID = Prefix + "claim-uid"
	// KeyReboundTo is the UID of the claim that got the volume later; see Holder.
	KeyReboundTo = Prefix + "rebound-to"
	// KeyPVUID is the UID of the PersistentVolume if it was created well after the volume
	// and has been seen in use, or if it was bound to another claim; see IsRestored.
	KeyPVUID        = Prefix + "pv-uid"
	KeyTenant       = Prefix + "tenant"
	KeyStorageClass = Prefix + "storage-class"
	KeyRequestedAt  = Prefix + "requested-at"
	// KeyRequest records the create request, to recognize a volume of an earlier,
	// different request.
	KeyRequest  = Prefix + "requested"
	KeyWorkflow = Prefix + "workflow"
	// KeyMode, with the value ModeCSI, means that nodes attach the volume individually.
	// Without it, all nodes of the cluster share one connection.
	KeyMode = Prefix + "mode"
	// NodeRecordPrefix and a node's key form the key under which a volume of mode csi
	// records the attachment that was handed out to that node; see NodeRecord. It has
	// neither a slash nor a dot: Cinder cannot find a key with a slash in a URL, so such
	// a key can never be deleted, and Cinder may take the text after a dot for a format.
	NodeRecordPrefix = "standalone-cinder-node-"
	// KeyFilesystemUUIDs is the first of the keys under which a volume of mode csi
	// records the UUIDs that its filesystem may have; see FilesystemUUIDsOf.
	KeyFilesystemUUIDs = Prefix + "filesystem-uuids"
	// KeyAttached is written before an attachment is completed. Cinder itself
	// leaves such a mark only with os-attach.
	KeyAttached = Prefix + "attached"
	// KeyVolumeMode, with the value VolumeModeBlock, means that pods used the volume as a
	// raw device.
	KeyVolumeMode = Prefix + "volume-mode"
	// KeySwap is not empty on a volume that is being given to another PersistentVolume in
	// exchange for that one's volume; see IsBeingSwapped.
	KeySwap = Prefix + "swap"
	// KeyStampedAt is when the stamp was requested again of a volume that Cinder restored from a
	// backup. An earlier request may still arrive for a while.
	KeyStampedAt = Prefix + "stamped-at"
	// KeyContested is set on a volume that another party reserved during its import.
	KeyContested = Prefix + "contested"
	KeyNamespace = "csi.storage.k8s.io/pvc/namespace"
	KeyClaim     = "csi.storage.k8s.io/pvc/name"
	KeyPV        = "csi.storage.k8s.io/pv/name"
)

// ModeCSI is the value of KeyMode, VolumeModeBlock that of KeyVolumeMode.
const (
	ModeCSI         = "csi"
	VolumeModeBlock = "Block"
)

// IsOurKey selects the metadata that the lifecycle reads: its own keys and Cinder's
// marks.
func IsOurKey(key string) bool {
	switch key {
	case KeyNamespace, KeyClaim, KeyPV, cinder.MetadataReadOnly, cinder.MetadataAttachedMode, cinder.MetadataSourceBackup,
		KeySnapshotNamespace, KeySnapshot, KeySnapshotContent:
		return true
	}
	return strings.HasPrefix(key, Prefix) || strings.HasPrefix(key, NodeRecordPrefix)
}

// LongestValue is the length of the longest metadata value that Cinder accepts.
const LongestValue = 255

// ClaimOf returns the UID of the claim that one of the cluster's volumes was created for;
// empty for other volumes.
func ClaimOf(cluster string) func(v cinder.Volume) (uid string) {
	return func(v cinder.Volume) string {
		switch {
		case v.Metadata[KeyCluster] != cluster:
			return ""
		case IsBeingSwapped(v):
			return "swap of " + v.ID // no claim's
		}
		return v.Metadata[KeyClaimUID]
	}
}

// keysOfOne are the keys whose values are different for each claim or snapshot.
var keysOfOne = []string{KeyClaimUID, KeyReboundTo, KeyPVUID, KeyClaim, KeyPV, KeyRequestedAt, KeyStampedAt, KeySnapshotUID, KeySnapshot, KeySnapshotContent}

// Share copies a volume so that it shares common strings with all others: the keys of
// metadata, and the values that do not differ between claims. Each was decoded
// separately, and a listing of 20,000 volumes is kept for a leader's term.
func Share(v cinder.Volume, texts map[string]string) cinder.Volume {
	v.Type, v.Zone, v.Status = shared(v.Type, texts), shared(v.Zone, texts), shared(v.Status, texts)
	v.Metadata = shareMetadata(v.Metadata, v.Name, texts)
	return v
}

// ShareSnapshot does the same for a snapshot.
func ShareSnapshot(s cinder.Snapshot, texts map[string]string) cinder.Snapshot {
	s.Metadata = shareMetadata(s.Metadata, s.Name, texts)
	return s
}

// shareMetadata also turns values into substrings of the name, which contains the claim's
// UID.
func shareMetadata(metadata map[string]string, name string, texts map[string]string) map[string]string {
	smaller := make(map[string]string, len(metadata))
	for key, value := range metadata {
		switch {
		case strings.HasPrefix(key, NodeRecordPrefix), strings.HasPrefix(key, KeyEncryption):
		case slices.Contains(keysOfOne, key):
			if at := strings.Index(name, value); at >= 0 {
				value = name[at : at+len(value)]
			}
		default:
			value = shared(value, texts)
		}
		smaller[shared(key, texts)] = value
	}
	return smaller
}

// shared returns the first copy of a text.
func shared[T ~string](text T, texts map[string]string) T {
	known, ok := texts[string(text)]
	if !ok {
		known = string(text)
		texts[known] = known
	}
	return T(known)
}
