package node

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// volumeID is the form of a volume ID that can be a filesystem's UUID.
var volumeID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func readVolume(id string) (string, error) {
	if id == "" {
		return "", invalid("the request has no volume ID")
	}
	if len(id) > wire.LongestHandle {
		return "", invalid("the volume ID has %d bytes, and at most %d are possible", len(id), wire.LongestHandle)
	}
	return id, nil
}

func readPath(what, at string) (string, error) {
	if at == "" {
		return "", invalid("the request has no %s", what)
	}
	if clean := path.Clean(at); !path.IsAbs(at) || clean == "/" || strings.ContainsAny(at, "\x00\n") {
		return "", invalid("%s %q cannot be used", what, at)
	}
	return path.Clean(at), nil
}

// readVolumePath reads the volume's path in a call.
func readVolumePath(at string) (string, error) {
	if at != "" && !path.IsAbs(at) {
		return "", status.Errorf(codes.NotFound, "no volume can be at %q", at)
	}
	return readPath("volume path", at)
}

func (s *Service) readStage(request *csi.NodeStageVolumeRequest) (staging, error) {
	volume, err := readVolume(request.GetVolumeId())
	if err != nil {
		return staging{}, err
	}
	at, err := readPath("staging target path", request.GetStagingTargetPath())
	if err != nil {
		return staging{}, err
	}
	capability, err := readCapability(request.GetVolumeCapability())
	if err != nil {
		return staging{}, err
	}
	handle, err := wire.ParseHandle(volume)
	if err != nil {
		return staging{}, status.Error(codes.NotFound, err.Error())
	}
	connection, err := wire.ParsePublishContext(request.GetPublishContext())
	if err != nil {
		return staging{}, invalid("%v", err)
	}
	about, swappedID := wire.ParseVolumeContext(request.GetVolumeContext()), ""
	if swapped := connection.Volume; swapped != nil {
		swappedID, about = swapped.ID, swapped.Volume
	}
	if id := cmp.Or(swappedID, handle.ID); !volumeID.MatchString(id) {
		return staging{}, invalid("the volume's ID %q is not a lower-case UUID, so it cannot be the UUID of its filesystem", id)
	}
	protocol, known := s.protocols[connection.Protocol]
	if !known {
		return staging{}, refused("volume %s is reached by protocol %q, which this node plugin does not have", volume, connection.Protocol)
	}
	if err := protocol.check(connection); err != nil {
		return staging{}, err
	}
	w := staging{mountFlags: capability.mountFlags, refusesWrites: connection.ReadOnly, shared: connection.Shared, record: record{
		Volume: volume, SwappedID: swappedID, Protocol: connection.Protocol, Paths: connection.Paths, Identities: connection.Identities, Bytes: connection.Bytes, StagingPath: at, Attachment: connection.Attachment,
		Filesystem: capability.filesystem, Copied: about.FilesystemUUIDs, NeverFormat: about.NeverFormat,
		ReadOnly: connection.ReadOnly || capability.readOnly, NoWriters: capability.noWriters, ManyWriters: capability.manyWriters, Taken: connection.Taken,
		Encryption: connection.Encryption, Limits: connection.Limits,
	}}
	if connection.Credentials {
		if w.credentials, err = wire.CredentialsFor(s.name, request.GetSecrets()); err != nil {
			// They may arrive a moment later.
			return staging{}, status.Error(codes.Unavailable, err.Error())
		}
	}
	if about.Encrypted != "" && connection.Encryption == nil {
		return staging{}, refused("the PersistentVolume of volume %s says that nodes encrypt it, but the publish context does not say how; the program is older than the PersistentVolume. Nothing was changed", volume)
	}
	if connection.Encryption != nil && w.credentials.Passphrase == "" {
		return staging{}, status.Errorf(codes.Unavailable, "volume %s is encrypted, and the volume's Secret has no key of it for node %s; the volume is being attached again, or the program is older than the node plugin", volume, s.name)
	}
	return w, nil
}

type capability struct {
	// filesystem is empty for raw volumes.
	filesystem       string
	mountFlags       []string
	readOnly, single bool
	// noWriters means that no node may write to the volume, manyWriters that all may.
	noWriters, manyWriters bool
}

func readCapability(c *csi.VolumeCapability) (capability, error) {
	if c == nil {
		return capability{}, invalid("the request has no volume capability")
	}
	var read capability
	mode := c.GetAccessMode().GetMode()
	several := false
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		read.single = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		read.readOnly = true
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		read.readOnly, read.noWriters = true, true
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		several, read.manyWriters = true, mode == csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	default:
		return capability{}, invalid("access mode %s is not supported", mode)
	}
	if c.GetBlock() != nil {
		return read, nil
	}
	mount := c.GetMount()
	if mount == nil {
		return capability{}, invalid("the volume capability has neither mount nor block")
	}
	if several {
		return capability{}, invalid("a filesystem that several nodes mount, at least one of them for writing, would be destroyed; use a raw block volume")
	}
	// Kubelet sets it only for drivers that declare this capability.
	if mount.GetVolumeMountGroup() != "" {
		return capability{}, invalid("volume mount groups are not supported; kubelet changes the group of the files")
	}
	read.filesystem = mount.GetFsType()
	read.filesystem = cmp.Or(read.filesystem, host.Ext4)
	if read.filesystem != host.Ext4 && read.filesystem != host.XFS {
		return capability{}, invalid("filesystem %q is not supported; ext4 and xfs are", read.filesystem)
	}
	// Commas are valid only inside quotes, as in SELinux contexts.
	for _, flag := range mount.GetMountFlags() {
		if flag == "" || strings.ContainsAny(flag, "\x00\n") {
			return capability{}, invalid("mount option %q cannot be used", flag)
		}
	}
	read.mountFlags = slices.Clone(mount.GetMountFlags())
	return read, nil
}

type publication struct {
	volume, staging, target string
	attachment              string
	block, readOnly, single bool
	mountFlags              []string
}

func readPublish(request *csi.NodePublishVolumeRequest) (publication, error) {
	volume, err := readVolume(request.GetVolumeId())
	if err != nil {
		return publication{}, err
	}
	target, err := readPath("target path", request.GetTargetPath())
	if err != nil {
		return publication{}, err
	}
	c, err := readCapability(request.GetVolumeCapability())
	if err != nil {
		return publication{}, err
	}
	if request.GetStagingTargetPath() == "" {
		return publication{}, refused("volume %s is published without a staging target path", volume)
	}
	staging, err := readPath("staging target path", request.GetStagingTargetPath())
	if err != nil {
		return publication{}, err
	}
	return publication{
		volume: volume, staging: staging, target: target, attachment: wire.AttachmentOf(request.GetPublishContext()), block: c.filesystem == "", readOnly: request.GetReadonly() || c.readOnly,
		single: c.single, mountFlags: c.mountFlags,
	}, nil
}
