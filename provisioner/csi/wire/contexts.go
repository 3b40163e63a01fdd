package wire

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LongestContext is the limit that the CSI specification sets for a context, in bytes.
const LongestContext = 4 << 10

// Connection says how a node reaches a volume that is attached to it. It has no
// credentials, because Kubernetes keeps it in the status of a VolumeAttachment, and
// sidecars log it.
type Connection struct {
	// Protocol is Cinder's driver_volume_type, such as iscsi.
	Protocol string
	// Paths lead to the same volume.
	Paths []Path
	// Credentials reports whether the node needs an entry of the volume's Secret to
	// log in. Without the entry it must not try.
	Credentials bool
	// Identities are the IDs that the disk must show, as far as Cinder knows them:
	// uuid. and a UUID, or eui. and an NGUID, or naa. and an NAA identifier.
	Identities []string
	// ReadOnly reports whether the array refuses writes.
	ReadOnly bool
	// Bytes is the size of the volume, or 0 if it is not known.
	Bytes int64
	// Shared means that other nodes may have the volume at the same time. The capability
	// with which a kubelet stages a volume shows only one of several access modes.
	Shared bool
	// Taken means that the volume was taken from another node, which may still write to it.
	Taken bool
	// Encryption is nil if the volume is not encrypted. Its key is in the credentials.
	Encryption *Encryption
	// Limits are nil if the volume has none.
	Limits *Limits
	// Volume is nil if the volume's handle and the PersistentVolume's attributes say what it
	// is. It is set for a volume that two claims have swapped.
	Volume *SwappedVolume
	// Attachment is Cinder's ID of the attachment. A volume that is detached and
	// attached again has another one.
	Attachment string
}

// SwappedVolume replaces what a handle and the attributes of a PersistentVolume say.
type SwappedVolume struct {
	// ID is Cinder's.
	ID string `json:"id"`
	Volume
}

// Path is one way to a volume.
type Path struct {
	// Portal is host:port; an IPv6 address has brackets. For Fibre Channel, it holds
	// the names of the node's own ports that reach the target, separated by commas, and
	// for RBD the address of a monitor.
	Portal string `json:"portal"`
	// Target is an iSCSI target's name, an NVMe subsystem's NQN, the name of a Fibre
	// Channel port of the storage, or a Ceph image's pool/image.
	Target string `json:"target"`
	// LUN is the SCSI LUN as the kernel numbers it, or the NVMe namespace, which is 0
	// if only the identities determine it.
	LUN int `json:"lun"`
}

const (
	keyVersion     = "version"
	keyProtocol    = "protocol"
	keyPaths       = "paths"
	keyIdentities  = "identities"
	keyCredentials = "credentials"
	keyReadOnly    = "readOnly"
	keyBytes       = "bytes"
	keyShared      = "shared"
	keyTaken       = "taken"
	keyAttachment  = "attachment"
	keyEncryption  = "encryption"
	keyLimits      = "limits"
	keyVolume      = "volume"

	contextVersion = "1"
	// encryptedVersion keeps plugins that do not know of encryption from a volume: they
	// would format what is behind it.
	encryptedVersion = "2"
	// swappedVersion keeps plugins that do not know of swaps from a volume: they would take
	// it for the one that its handle names.
	swappedVersion = "3"
	// bothVersion is that of an encrypted volume that was swapped. Plugins that know only
	// one of both would open it under a name that no other looks for.
	bothVersion = "4"
)

// versionFor returns the version that a context must have.
func versionFor(encrypted, swapped bool) string {
	switch {
	case encrypted && swapped:
		return bothVersion
	case encrypted:
		return encryptedVersion
	case swapped:
		return swappedVersion
	}
	return contextVersion
}

// PublishContext returns the connection in the form that a VolumeAttachment holds.
func (c Connection) PublishContext() (map[string]string, error) {
	paths, err := json.Marshal(c.Paths)
	if err != nil {
		return nil, err
	}
	context := map[string]string{
		keyVersion:     versionFor(c.Encryption != nil, c.Volume != nil),
		keyProtocol:    c.Protocol,
		keyPaths:       string(paths),
		keyCredentials: strconv.FormatBool(c.Credentials),
		keyReadOnly:    strconv.FormatBool(c.ReadOnly),
		keyBytes:       strconv.FormatInt(c.Bytes, 10),
	}
	if len(c.Identities) > 0 {
		context[keyIdentities] = strings.Join(c.Identities, ",")
	}
	if c.Shared {
		context[keyShared] = "true"
	}
	if c.Taken {
		context[keyTaken] = "true"
	}
	if c.Attachment != "" {
		context[keyAttachment] = c.Attachment
	}
	if c.Encryption != nil {
		context[keyEncryption] = c.Encryption.encode()
	}
	if c.Volume != nil {
		text, err := json.Marshal(c.Volume)
		if err != nil {
			return nil, err
		}
		context[keyVolume] = string(text)
	}
	if c.Limits != nil {
		context[keyLimits] = c.Limits.encode()
	}
	size := 0
	for key, value := range context {
		size += len(key) + len(value)
	}
	if size > LongestContext {
		return nil, fmt.Errorf("%d paths to a volume take %d bytes, and a VolumeAttachment has room for %d", len(c.Paths), size, LongestContext)
	}
	return context, nil
}

// ParsePublishContext reads what PublishContext writes.
func ParsePublishContext(context map[string]string) (Connection, error) {
	encryption, encrypted := context[keyEncryption]
	swapped, isSwapped := context[keyVolume]
	if version := context[keyVersion]; version != versionFor(encrypted, isSwapped) {
		return Connection{}, fmt.Errorf("the publish context has version %q, and this node knows %s to %s; upgrade the node plugin", version, contextVersion, bothVersion)
	}
	c := Connection{Protocol: context[keyProtocol], Attachment: AttachmentOf(context)}
	if text := context[keyIdentities]; text != "" {
		c.Identities = strings.Split(text, ",")
	}
	c.Taken = IsTaken(context)
	_, c.Shared = context[keyShared]
	var errs [7]error
	errs[0] = json.Unmarshal([]byte(context[keyPaths]), &c.Paths)
	c.Credentials, errs[1] = strconv.ParseBool(context[keyCredentials])
	c.ReadOnly, errs[2] = strconv.ParseBool(context[keyReadOnly])
	c.Bytes, errs[3] = strconv.ParseInt(context[keyBytes], 10, 64)
	if encrypted {
		c.Encryption, errs[4] = parseEncryption(encryption)
	}
	if text, limited := context[keyLimits]; limited {
		c.Limits, errs[5] = parseLimits(text)
	}
	if isSwapped {
		c.Volume = &SwappedVolume{}
		if errs[6] = json.Unmarshal([]byte(swapped), c.Volume); errs[6] == nil && c.Volume.ID == "" {
			errs[6] = errors.New("the swapped volume has no ID")
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return Connection{}, fmt.Errorf("the publish context cannot be read: %w", err)
	}
	if c.Protocol == "" || len(c.Paths) == 0 || slices.ContainsFunc(c.Paths, func(p Path) bool { return p.Portal == "" || p.Target == "" || p.LUN < 0 }) {
		return Connection{}, errors.New("the publish context has no protocol, or a path without portal, target or LUN")
	}
	return c, nil
}

// AttachmentOf reads the attachment from a publish context; empty if it names none.
func AttachmentOf(context map[string]string) string { return context[keyAttachment] }

// IsTaken reports whether a publish context says that the volume was taken from a lost
// node. Earlier releases write nothing about it.
func IsTaken(context map[string]string) bool {
	_, taken := context[keyTaken]
	return taken
}

// ProtocolOf returns the protocol that a publish context names.
func ProtocolOf(context map[string]string) string { return context[keyProtocol] }

// OnlyTaken returns what IsTaken reads of a publish context.
func OnlyTaken(context map[string]string) map[string]string {
	if !IsTaken(context) {
		return nil
	}
	return map[string]string{keyTaken: context[keyTaken]}
}

// Volume is what a PersistentVolume tells the nodes about its volume, in its
// volumeAttributes, or as JSON if it has another one than at first.
type Volume struct {
	// FilesystemUUIDs are the UUIDs that the volume's filesystem may have besides the
	// volume's own ID: those of the volumes whose content it is a copy of, or those
	// that an administrator recorded.
	FilesystemUUIDs []string `json:"filesystemUUIDs,omitempty"`
	// NeverFormat means that the volume may hold data that nothing recognizes, so no
	// filesystem may be made on it, however empty it looks.
	NeverFormat bool `json:"neverFormat,omitempty"`
	// Encrypted is not empty for a volume that nodes encrypt by a rule of the policy: the UID
	// of the claim for which the volume's key, or that of the volume that it is a copy of,
	// was made. Such a volume is refused without a key, even if everything else that says so
	// has vanished.
	Encrypted string `json:"encrypted,omitempty"`
}

const (
	keyFilesystemUUIDs = "filesystemUUIDs"
	keyNeverFormat     = "neverFormat"
	keyEncrypted       = "encrypted"
)

// Context returns the volumeAttributes of the PersistentVolume.
func (v Volume) Context() map[string]string {
	context := map[string]string{}
	if len(v.FilesystemUUIDs) > 0 {
		context[keyFilesystemUUIDs] = strings.Join(v.FilesystemUUIDs, ",")
	}
	if v.NeverFormat {
		context[keyNeverFormat] = "true"
	}
	if v.Encrypted != "" {
		context[keyEncrypted] = v.Encrypted
	}
	if len(context) == 0 {
		return nil
	}
	return context
}

// ParseVolumeContext reads what Context writes. It ignores other attributes, because
// Kubernetes and sidecars add some.
func ParseVolumeContext(context map[string]string) Volume {
	var v Volume
	if text := context[keyFilesystemUUIDs]; text != "" {
		v.FilesystemUUIDs = strings.Split(text, ",")
	}
	// Any value counts, because formatting is the one thing that cannot be undone.
	_, v.NeverFormat = context[keyNeverFormat]
	if origin, encrypted := context[keyEncrypted]; encrypted {
		v.Encrypted = cmp.Or(origin, "unknown")
	}
	return v
}
