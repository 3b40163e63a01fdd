package node

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// newRBD returns a node with a volume that is an image of a Ceph cluster.
func newRBD(t *testing.T) (*fixture, use, *csinode.Image) {
	f, u := newFixture(t), plain()
	byRBD(&u, f.node)
	return f, u, f.node.Ceph.Images[cephImage]
}

func TestANodeNeedsNoNameForRBD(t *testing.T) {
	f, _, _ := newRBD(t)
	f.node.Missing["iscsiadm"] = true
	response, err := f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	if err != nil || response.NodeId != "v1 node-1" {
		t.Errorf("%q, %v", response.GetNodeId(), err)
	}
	f.node.NoRBD = true
	_, err = f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	f.refuses(err, codes.FailedPrecondition, "to use only RBD, load the module rbd when the node starts")
}

// TestTheLineThatMapsAnImage: the line is what the kernel shows while the image is mapped.
func TestTheLineThatMapsAnImage(t *testing.T) {
	for name, test := range map[string]struct {
		way  func(*use, *csinode.Node)
		want string
	}{
		"for one node": {func(*use, *csinode.Node) {}, "10.0.0.1:6789,[2001:db8::2]:6789 noshare,mount_timeout=30,name=cinder,key=standalone-cinder,lock_timeout=50 " + strings.Replace(cephImage, "/", " ", 1) + " -"},
		"taken from a node that may write": {func(u *use, _ *csinode.Node) { u.taken = true },
			"10.0.0.1:6789,[2001:db8::2]:6789 noshare,mount_timeout=30,name=cinder,key=standalone-cinder,exclusive,lock_timeout=50 "},
		"for many writers": {func(u *use, n *csinode.Node) {
			u.block, u.mode, u.taken = true, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, true
			n.Ceph.Images[cephImage].Features = 1
		}, ",key=standalone-cinder,lock_timeout=50 "},
		"for many readers": {func(u *use, n *csinode.Node) {
			u.block, u.mode, u.arrayReads = true, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, true
			n.Ceph.Images[cephImage].Features |= csinode.Journaling
		}, ",key=standalone-cinder,read_only "},
		"of a cluster without keys": {func(u *use, n *csinode.Node) { u.open, n.Ceph.Open = true, true }, " noshare,mount_timeout=30,lock_timeout=50 "},
		"by the newer protocol": {func(u *use, n *csinode.Node) {
			n.Ceph.Monitors = []string{"10.0.0.1:3300"}
			u.paths = cephPaths(n)
		}, "10.0.0.1:3300 noshare,mount_timeout=30,ms_mode=prefer-crc,name=cinder,"},
		"by monitors of both protocols": {func(u *use, n *csinode.Node) {
			n.Ceph.Monitors = []string{"10.0.0.1:3300", "10.0.0.2:6789"}
			u.paths = cephPaths(n)
		}, "rbd 10.0.0.2:6789 noshare,mount_timeout=30,name=cinder,"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u, _ := newRBD(t)
				test.way(&u, f.node)
				f.must(f.stage(u))
				if calls := strings.Join(f.node.Calls(), "\n"); !strings.Contains(calls, test.want) {
					t.Errorf("calls:\n%s\nwant %s", calls, test.want)
				}
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

func TestImagesThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		way  func(*fixture, *use, *csinode.Image)
		code codes.Code
		want string
	}{
		"without exclusive-lock": {func(_ *fixture, _ *use, i *csinode.Image) { i.Features = 1 }, codes.FailedPrecondition,
			"UnsupportedImage: image " + cephImage + " lacks the feature exclusive-lock, without which two nodes could write to it; switch it on (rbd feature enable " + cephImage + " exclusive-lock)"},
		"without exclusive-lock, and taken": {func(_ *fixture, u *use, i *csinode.Image) { i.Features, u.taken = 1, true }, codes.FailedPrecondition, "lacks the feature exclusive-lock"},
		"with features that the kernel lacks": {func(_ *fixture, _ *use, i *csinode.Image) { i.Features |= csinode.Journaling | 1<<40 }, codes.FailedPrecondition,
			"UnsupportedImage: image " + cephImage + " has features that the node's kernel lacks: journaling, bit 40; switch them off"},
		"with a wrong key": {func(f *fixture, u *use, _ *csinode.Image) { u.cephKey = "c3dvcmRmaXNoLTI=" }, codes.Unauthenticated, "LoginRefused: the Ceph cluster refuses the user cinder"},
		"with a user that is none": {func(f *fixture, u *use, _ *csinode.Image) { u.cephUser = "a,secret=b" }, codes.InvalidArgument,
			"Malformed: the name of the Ceph user is not valid"},
		"that do not exist": {func(f *fixture, _ *use, _ *csinode.Image) { delete(f.node.Ceph.Images, cephImage) }, codes.Internal, "the Ceph cluster has no image " + cephImage},
		"of a cluster that does not answer": {func(f *fixture, _ *use, _ *csinode.Image) { f.node.Ceph.Down = true }, codes.Internal,
			"takes too long: the monitors do not answer"},
		"that are too small":               {func(_ *fixture, u *use, _ *csinode.Image) { u.bytes = 2 * gibibyte }, codes.FailedPrecondition, "WrongDisk: volume"},
		"with another volume's filesystem": {func(_ *fixture, _ *use, i *csinode.Image) { i.Filesystem, i.UUID = "ext4", foreignID }, codes.FailedPrecondition, "WrongVolume"},
		"that another program has exclusively": {func(f *fixture, _ *use, _ *csinode.Image) { f.must(f.node.MapByHand(cephImage, true)) }, codes.FailedPrecondition,
			"InUse: image " + cephImage + " is mapped elsewhere: another client has its exclusive lock"},
		"by paths to two images": {func(_ *fixture, u *use, _ *csinode.Image) { u.paths[1].Target += "x" }, codes.InvalidArgument, "the paths lead to several images"},
		"whose name is an option": {func(_ *fixture, u *use, _ *csinode.Image) {
			u.paths = []wire.Path{{Portal: "10.0.0.1:6789", Target: "volumes/a -,x"}}
		}, codes.InvalidArgument, `Malformed: "volumes/a -,x" is not the name of a pool and an image`},
		"whose monitor is an option": {func(_ *fixture, u *use, _ *csinode.Image) {
			u.paths = []wire.Path{{Portal: "10.0.0.1:6789 secret=x", Target: cephImage}}
		}, codes.InvalidArgument, "is not the IP address and port of a monitor"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u, image := newRBD(t)
				test.way(f, &u, image)
				before := f.node.Left()
				f.refuses(f.stage(u), test.code, test.want)
				if after := f.node.Left(); strings.Join(after, " ") != strings.Join(before, " ") {
					t.Errorf("left %q, want %q", after, before)
				}
				f.unharmed()
			})
		})
	}
}

// TestAVolumeIsTakenFromANode: a node whose client is dead is blocklisted, but one that
// lives gets the lock back, so the leader takes no volume from it.
func TestAVolumeIsTakenFromANode(t *testing.T) {
	for name, test := range map[string]struct {
		lose  func(*csinode.Node)
		again bool
	}{
		"dead":  {lose: (*csinode.Node).PowerOff},
		"alive": {lose: func(*csinode.Node) {}, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u, _ := newRBD(t)
				f.must(f.stage(u))
				f.must(f.publish(u, 1, false))
				f.must(f.node.Write(u.pod(1), "by the first"))
				first := f.node
				test.lose(first)
				f.node = first.Beside("iqn.2026-01.org.example:node-2")
				f.start()
				u.taken = true
				f.must(f.stage(u))
				if err := first.Write(u.pod(1), "too late"); err == nil {
					t.Error("the first node still writes")
				}
				f.must(f.publish(u, 1, false))
				f.must(f.node.Write(u.pod(1), "by the second"))
				if f.volume().Data != "by the second" {
					t.Errorf("the data is %q", f.volume().Data)
				}
				f.must(f.unpublish(u, 1))
				f.must(f.unstage(u))
				if err := first.Write(u.pod(1), "after the second"); (err == nil) != test.again {
					t.Errorf("the first node writes after the second has let go: %v", err)
				}
				f.unharmed()
			})
		})
	}
}

func TestABlocklistedVolumeIsStagedAgainOnceNoPodUsesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.node.Blocklist("rbd0")
		f.refuses(f.stage(u), codes.FailedPrecondition, "the Ceph cluster has blocklisted this node's mapping")
		f.must(f.unpublish(u, 1))
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAnImageThatWasDetachedIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		u.attachment = "attachment-1"
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		u.attachment = "attachment-2"
		f.refuses(f.stage(u), codes.FailedPrecondition, "Outdated")
		if devices := f.node.Devices(); len(devices) > 0 {
			t.Errorf("devices %q", devices)
		}
		f.must(f.unpublish(u, 1))
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAnImageGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, image := newRBD(t)
		f.must(f.stage(u))
		image.Bytes = 3 * gibibyte
		if size, err := f.expand(u, 3*gibibyte); err != nil || size != 3*gibibyte || image.FilesystemBytes != 3*gibibyte {
			t.Errorf("%d bytes, a filesystem of %d, %v", size, image.FilesystemBytes, err)
		}
		if _, err := f.expand(u, 4*gibibyte); err == nil || !strings.Contains(err.Error(), "at least 4294967296 are required") {
			t.Errorf("a size that it does not have: %v", err)
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestMappingsOfOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, image := newRBD(t)
		f.must(f.node.MapByHand(cephImage, false))
		before := f.node.Left()
		f.must(f.stage(u))
		f.must(f.unstage(u))
		if left := f.node.Left(); strings.Join(left, " ") != strings.Join(before, " ") {
			t.Errorf("left %q, want %q", left, before)
		}
		// An image with its name is another one.
		f.must(f.stage(u))
		f.node.Ceph.Images[cephImage] = &csinode.Image{Volume: image.Volume, ID: "other", Features: image.Features}
		if err := f.stage(u); err != nil {
			t.Errorf("the image that has taken the name is not staged: %v", err)
		}
		f.must(f.unstage(u))
		f.unharmed()
	})
}

// TestMappingsOfOthersWithoutAKeyStay: nothing names a key in a cluster without keys.
func TestMappingsOfOthersWithoutAKeyStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		u.open, f.node.Ceph.Open = true, true
		f.must(f.node.MapByHand(cephImage, false))
		before := f.node.Left()
		f.must(f.stage(u))
		f.must(f.unstage(u))
		if left := f.node.Left(); strings.Join(left, " ") != strings.Join(before, " ") {
			t.Errorf("left %q, want %q", left, before)
		}
	})
}

// TestAnOrderThatTheKernelHasNotAnswered: it may map the image later.
func TestAnOrderThatTheKernelHasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		f.node.Unanswered = map[string]bool{cephImage: true}
		f.refuses(f.stage(u), codes.Unavailable, "the kernel has not answered an earlier order for image "+cephImage)
		f.refuses(f.unstage(u), codes.Unavailable, "the kernel has not answered")
		f.node.Unanswered = nil
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAnImageThatIsOpenStaysMapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		f.must(f.stage(u))
		f.node.UnmountByHand(u.staging())
		f.node.Hidden["rbd0"] = true
		f.refuses(f.unstage(u), codes.Unavailable, "InUse: something still uses rbd0")
		f.node.Hidden = map[string]bool{}
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAnImageOfALostStateFileIsFoundByItsMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		f.must(f.stage(u))
		f.node.RemoveFiles(stateDir + "/volumes")
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestTwoVolumesDoNotShareAnImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newRBD(t)
		f.must(f.stage(u))
		second := u
		second.id = secondID
		f.refuses(f.stage(second), codes.FailedPrecondition, "InUse: image "+cephImage+" is volume gold/"+firstID+" on this node, which is still staged, but the storage now gives it to volume gold/"+secondID)
		f.must(f.unstage(u))
		f.clean()
	})
}
