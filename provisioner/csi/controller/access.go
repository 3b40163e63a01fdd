package controller

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
)

// access is an access mode's requirements for an attachment.
type access struct{ readOnly, shared bool }

var accessOf = map[csi.VolumeCapability_AccessMode_Mode]access{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        {},
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: {},
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  {},
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   {readOnly: true},
	csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    {readOnly: true, shared: true},
	csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  {shared: true},
	csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   {shared: true},
}

// accessFor reads a capability. mistake describes what is wrong with it; empty if nothing
// is.
func accessFor(capability *csi.VolumeCapability) (of access, mistake string) {
	of, known := accessOf[capability.GetAccessMode().GetMode()]
	switch {
	case capability.GetMount() == nil && capability.GetBlock() == nil:
		return of, "the volume capability has no access type"
	case !known:
		return of, "the volume capability has no access mode that the driver knows"
	case of.shared && !of.readOnly && capability.GetBlock() == nil:
		return of, "a volume that several nodes write to must be a raw block device: the filesystems of nodes destroy each other's data"
	}
	return of, ""
}
