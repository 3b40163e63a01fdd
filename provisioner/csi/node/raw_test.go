package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// rawWays are the ways of using a raw volume.
func rawWays() map[string]func(*use, *csinode.Node) {
	found := map[string]func(*use, *csinode.Node){}
	for name, way := range ways {
		if strings.HasPrefix(name, "raw") {
			found[name] = way
		}
	}
	return found
}

// TestWhatTheNodeFindsInARawVolumeDoesNotKeepItThere: its rules make devices of
// partitions and of volume groups, which nobody asked for.
func TestWhatTheNodeFindsInARawVolumeDoesNotKeepItThere(t *testing.T) {
	for wayName, way := range rawWays() {
		for name, layers := range map[string]func(device string) []*csinode.Layer{
			"a partition": func(on string) []*csinode.Layer {
				return []*csinode.Layer{{Name: "dm-90", Alias: "mpatha-part1", ID: "part1-mpath-3600", On: on}}
			},
			"a logical volume": func(on string) []*csinode.Layer {
				return []*csinode.Layer{{Name: "dm-91", Alias: "vg-root", ID: "LVM-abc", On: on}, {Name: "dm-92", Alias: "vg-swap", ID: "LVM-def", On: on}}
			},
			"a logical volume on a mapped partition": func(on string) []*csinode.Layer {
				return []*csinode.Layer{{Name: "dm-90", Alias: "mpatha-part1", ID: "part1-mpath-3600", On: on}, {Name: "dm-91", Alias: "vg-root", ID: "LVM-abc", On: "dm-90"}}
			},
			"a logical volume on the kernel's partition": func(on string) []*csinode.Layer {
				return []*csinode.Layer{{Name: "dm-91", Alias: "vg-root", ID: "LVM-abc", On: on, Partition: on + "1"}}
			},
		} {
			t.Run(wayName+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					way(&u, f.node)
					f.must(f.stage(u))
					f.node.Layers = layers(f.device(u))
					f.must(f.publish(u, 1, false))
					f.must(f.unpublish(u, 1))
					f.must(f.unstage(u))
					f.clean()
				})
			})
		}
	}
}

// TestALayerThatCannotBeRemovedKeepsNoDisk: nothing has it open, so nothing is lost.
func TestALayerThatCannotBeRemovedKeepsNoDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.block = true
		f.must(f.stage(u))
		f.node.Missing["dmsetup"] = true
		f.node.Layers = []*csinode.Layer{{Name: "dm-91", Alias: "vg-root", ID: "LVM-abc", On: f.device(u)}}
		f.must(f.unstage(u))
		if left := f.node.Left(); len(left) != 1 || !strings.Contains(f.log.String(), "dmsetup is not installed") {
			t.Errorf("left %q\n%s", left, f.log.String())
		}
		f.unharmed()
	})
}

// TestWhatIsUsedInsideARawVolumeKeepsItAndAllItsPaths: the error says what to do.
func TestWhatIsUsedInsideARawVolumeKeepsItAndAllItsPaths(t *testing.T) {
	for name, layer := range map[string]csinode.Layer{
		"a partition":      {Name: "dm-90", Alias: "mpatha-part1", ID: "part1-mpath-3600", Open: true},
		"a logical volume": {Name: "dm-91", Alias: "vg-root", ID: "LVM-abc", Open: true},
		"an array":         {Name: "md127"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				ways["raw by multipath"](&u, f.node)
				f.must(f.stage(u))
				layer.On = f.device(u)
				f.node.Layers = []*csinode.Layer{&layer}
				text := "something still uses " + layer.Name
				if layer.ID == "" {
					text = "keep LVM and mdadm off"
				}
				for range 3 {
					f.refuses(f.unstage(u), codes.Unavailable, text)
				}
				if paths := f.node.Devices(); len(paths) != 2 || slices.ContainsFunc(f.node.Calls(), func(c string) bool { return strings.Contains(c, "del path") }) {
					t.Errorf("the map has lost a path: %q", paths)
				}
				f.node.Layers = nil
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestAStaleMapThatIsInUseKeepsItsPaths: nobody knows whose it is.
func TestAStaleMapThatIsInUseKeepsItsPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		ways["multipath"](&u, f.node)
		f.must(f.stage(u))
		device := f.device(u)
		f.node.UnmountByHand(u.staging())
		f.node.MountByHand(device, "/mnt", "ext4")
		f.node.RemoveFiles(stateDir)
		f.start()
		for range 2 {
			f.refuses(f.stage(u), codes.Unavailable, "is still mounted at /mnt")
		}
		if len(f.node.Devices()) != 2 || slices.ContainsFunc(f.node.Calls(), func(c string) bool { return strings.Contains(c, "del path") }) {
			t.Errorf("the map has lost a path: %q", f.node.Devices())
		}
		f.unharmed()
	})
}

// TestARawVolumeThatWasDetachedIsCutOff: another node may have it by now.
func TestARawVolumeThatWasDetachedIsCutOff(t *testing.T) {
	for name, way := range rawWays() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				way(&u, f.node)
				u.attachment = "attachment-1"
				f.must(f.stage(u))
				f.must(f.publish(u, 1, false))
				u.attachment = "attachment-2"
				f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "was detached from the node while it was staged")
				if err := f.node.Write(u.pod(1), "of this node"); err == nil {
					t.Error("the first pod can still write")
				}
				f.start()
				f.must(f.unpublish(u, 1))
				f.must(f.unstage(u))
				f.must(f.stage(u))
				f.must(f.publish(u, 2, false))
				f.must(f.node.Write(u.pod(2), "of this node"))
				f.must(f.unpublish(u, 2))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestAVolumeOfManyWritersOutlivesItsAttachment: its pods expect what others write.
func TestAVolumeOfManyWritersOutlivesItsAttachment(t *testing.T) {
	for name, way := range rawWays() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				way(&u, f.node)
				u.mode, u.attachment = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "attachment-1"
				if u.encryption != nil {
					f.refuses(f.stage(u), codes.FailedPrecondition, "several nodes may have it at once")
					f.volume().LUKS = &csinode.LUKS{Version: 1, UUID: firstID, Passphrase: passphrase}
				}
				f.must(f.stage(u))
				f.must(f.publish(u, 1, false))
				u.attachment = "attachment-2"
				f.must(f.publish(u, 2, false))
				f.must(f.stage(u))
				for pod := range 2 {
					f.must(f.node.Write(u.pod(pod+1), fmt.Sprintf("of pod %d", pod)))
					f.must(f.unpublish(u, pod+1))
				}
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestACutOffThatFailsIsTriedAgain at each use of the volume: the first pod still writes.
func TestACutOffThatFailsIsTriedAgain(t *testing.T) {
	for name, way := range ways {
		if strings.Contains(name, "nvme") {
			continue // a subsystem is disconnected instead
		}
		t.Run(name, func(t *testing.T) {
			for nth := 1; nth < 8; nth++ {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					way(&u, f.node)
					u.attachment = "attachment-1"
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
					u.attachment = "attachment-2"
					f.node.FailAt(nth)
					if err := f.publish(u, 2, false); err == nil {
						t.Error("an outdated volume was published")
					}
					f.node.Restart()
					f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "was detached from the node while it was staged")
					if err := f.node.Write(u.pod(1), "of this node"); err == nil {
						t.Errorf("change %d failed, and the first pod can still write", nth)
					}
				})
			}
		})
	}
}
