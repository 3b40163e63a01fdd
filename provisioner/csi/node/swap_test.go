package node

import (
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// TestWhatIsStagedIsNotTheSwappedVolume: a node has a volume of many writers, or of many
// readers, staged, its Node object is deleted (so nobody counts it any more) or its report is
// lost, the claims swap their volumes, and the node comes back. For such volumes another
// attachment proves nothing.
func TestWhatIsStagedIsNotTheSwappedVolume(t *testing.T) {
	for name, mode := range map[string]csi.VolumeCapability_AccessMode_Mode{
		"many writers": csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		"many readers": csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				u.block, u.filesystem, u.mode, u.attachment = true, "", mode, "attachment-1"
				*f.volume() = csinode.Volume{Bytes: gibibyte}
				f.must(f.stage(u))
				u.attachment, u.swapped = "attachment-2", &wire.SwappedVolume{ID: secondID}
				u.target, u.lun = "vol-2", 2 // that of the swapped volume, which is not here
				if err := f.stage(u); err == nil {
					t.Errorf("volume %s is taken for %s", firstID, secondID)
				}
			})
		})
	}
}
