package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

func TestOnePodAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.start()
		f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "may be used by one pod at a time, and is published at "+u.pod(1))
		f.must(f.publish(u, 1, false))
		f.must(f.unpublish(u, 1))
		f.must(f.publish(u, 2, false))
		f.must(f.unpublish(u, 2))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAVolumeThatIsNotMountedIsNotPublished: otherwise pods would write to the node's
// own disk.
func TestAVolumeThatIsNotMountedIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.refuses(f.publish(u, 1, false), codes.FailedPrecondition, "is not staged at")
		f.must(f.stage(u))
		f.node.UnmountByHand(u.staging())
		f.refuses(f.publish(u, 1, false), codes.FailedPrecondition, "is no longer mounted at")
		f.node.MountByHand("sdz", u.staging(), "ext4")
		f.refuses(f.publish(u, 1, false), codes.FailedPrecondition, "is no longer mounted at")
		f.unharmed()
	})
}

func TestAForeignMountIsNotTakenForTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.node.MountByHand("sdz", u.pod(1), "ext4")
		f.refuses(f.publish(u, 1, false), codes.FailedPrecondition, "something other than volume gold/"+firstID+" is mounted at")
	})
}

// TestARawVolumeCanBeWrittenAfterAReader: kubelet does not unstage between two pods.
func TestARawVolumeCanBeWrittenAfterAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.block = true
		f.must(f.stage(u))
		f.must(f.publish(u, 1, true))
		f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "cannot be read-only for one pod and writable for another")
		f.must(f.unpublish(u, 1))
		f.must(f.publish(u, 2, false))
		if f.node.SetReadOnly(f.node.Devices()[0]) {
			t.Error("the device is still read-only")
		}
		f.refuses(f.publish(u, 3, true), codes.FailedPrecondition, "cannot be read-only for one pod and writable for another")
		f.must(f.unpublish(u, 2))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestOptionsOfMounts(t *testing.T) {
	for name, c := range map[string]struct {
		use             func(*use)
		readOnly        bool
		staged, shown   string
		writes, rawRead bool
	}{
		"none":            {use: func(*use) {}, staged: "_netdev,errors=remount-ro", writes: true},
		"of the pod":      {use: func(*use) {}, readOnly: true, staged: "_netdev,errors=remount-ro", shown: "remount,bind,ro"},
		"of the claim":    {use: func(u *use) { u.flags = []string{"noatime", "discard"} }, staged: "noatime,discard,_netdev,errors=remount-ro", shown: "remount,bind,noatime", writes: true},
		"xfs":             {use: func(u *use) { u.filesystem = "xfs" }, staged: "_netdev,nouuid", writes: true},
		"one reader":      {use: func(u *use) { u.mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY }, staged: "_netdev,ro,errors=remount-ro", shown: "remount,bind,ro"},
		"many readers":    {use: func(u *use) { u.mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY }, staged: "_netdev,ro,errors=remount-ro", shown: "remount,bind,ro"},
		"a reading array": {use: func(u *use) { u.arrayReads = true }, staged: "_netdev,ro,noload,errors=remount-ro", shown: "remount,bind,ro"},
		"SELinux": {use: func(u *use) { u.flags = []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`} },
			staged: `context="system_u:object_r:container_file_t:s0:c1,c2",_netdev,errors=remount-ro`, writes: true},
		"a raw volume": {use: func(u *use) { u.block = true }, writes: true},
		"a raw volume of one reader": {use: func(u *use) { u.block, u.mode = true, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY },
			rawRead: true, writes: true},
		"a raw volume for a reading pod": {use: func(u *use) { u.block = true }, readOnly: true, rawRead: true, writes: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				c.use(&u)
				if !u.block {
					*f.volume() = csinode.Volume{Bytes: gibibyte, Filesystem: u.filesystem, UUID: u.id, FilesystemBytes: gibibyte}
				}
				f.must(f.stage(u))
				if _, options, _, _ := f.node.MountedAt(u.staging()); options != c.staged {
					t.Errorf("staged with %q, want %q", options, c.staged)
				}
				f.must(f.publish(u, 1, c.readOnly))
				if _, options, _, _ := f.node.MountedAt(u.pod(1)); options != c.shown {
					t.Errorf("published with %q, want %q", options, c.shown)
				}
				if err := f.node.Write(u.pod(1), "x"); (err == nil) != c.writes {
					t.Errorf("a pod's write: %v", err)
				}
				if got := f.node.SetReadOnly(f.node.Devices()[0]); got != c.rawRead {
					t.Errorf("the device is read-only: %t", got)
				}
				f.must(f.unpublish(u, 1))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

func TestAReadOnlyMountDoesNotBecomeWritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.must(f.publish(u, 1, true))
		f.refuses(f.publish(u, 1, false), codes.AlreadyExists, "is published at "+u.pod(1)+" read-only")
	})
}

// TestWhatE2fsckSaysIsTakenAsKubeletTakesIt: 4 means that errors are left, 8 that e2fsck
// failed, as it does at features that are newer than itself, and -1 that it was killed.
func TestWhatE2fsckSaysIsTakenAsKubeletTakesIt(t *testing.T) {
	for code, used := range map[int]bool{1: true, 2: true, 3: true, 4: false, 5: false, 6: false, 8: true, 12: true, 16: true, 128: true, -1: false} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			*f.volume() = csinode.Volume{Bytes: gibibyte, Filesystem: "ext4", UUID: u.id, FilesystemBytes: gibibyte, NeedsCheck: code}
			if err := f.stage(u); (err == nil) != used {
				t.Errorf("after e2fsck's exit code %d: %v", code, err)
			}
			if used && !strings.Contains(f.log.String(), "filesystem was repaired, or could not be checked") {
				t.Errorf("nobody is told about exit code %d", code)
			}
		})
	}
}

func TestAVolumeGrows(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				way(&u, f.node)
				_, err := f.expand(u, 2*gibibyte)
				f.refuses(err, codes.NotFound, "is not staged on this node")
				f.must(f.stage(u))
				if _, err := f.expand(u, 2*gibibyte); err == nil || !strings.Contains(err.Error(), "at least 2147483648 are required") {
					t.Errorf("before the storage extended it: %v", err)
				}
				f.volume().Bytes = 2 * gibibyte
				for range 2 {
					if size, err := f.expand(u, 2*gibibyte); err != nil || size != 2*gibibyte {
						t.Errorf("%d, %v", size, err)
					}
				}
				inside := int64(2*gibibyte) - f.header()
				if !u.block && f.volume().FilesystemBytes != inside {
					t.Errorf("the filesystem has %d bytes", f.volume().FilesystemBytes)
				}
				if used := f.node.OpenedBytes(); u.encryption != nil && used != inside {
					t.Errorf("what is open has %d bytes", used)
				}
				f.must(f.stage(u))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestAPathThatIsShortKeepsTheMapFromGrowing: every path must have grown, because
// writes to a path that is too short according to the kernel would fail.
func TestAPathThatIsShortKeepsTheMapFromGrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal}
		f.must(f.stage(u))
		f.volume().Bytes = 2 * gibibyte
		f.target().Down[twoPortal] = true
		if _, err := f.expand(u, 2*gibibyte); err == nil {
			t.Error("it grew with a path that is down")
		}
		if f.volume().FilesystemBytes != gibibyte || slices.Contains(f.node.Calls(), "resize2fs") {
			t.Errorf("the filesystem has %d bytes", f.volume().FilesystemBytes)
		}
	})
}

func TestAVolumeThatWasExtendedElsewhereGrowsWhenItIsStaged(t *testing.T) {
	for _, filesystem := range []string{"ext4", "xfs"} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			*f.volume() = csinode.Volume{Bytes: 4 * gibibyte, Filesystem: filesystem, UUID: u.id, FilesystemBytes: gibibyte}
			u.filesystem, u.bytes = filesystem, 4*gibibyte
			f.must(f.stage(u))
			if f.volume().FilesystemBytes != 4*gibibyte {
				t.Errorf("the filesystem has %d bytes", f.volume().FilesystemBytes)
			}
		})
	}
}

func TestStatistics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		stats := func(id, at string) (*csi.NodeGetVolumeStatsResponse, error) {
			return f.service.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: at})
		}
		_, err := stats(u.handle(), u.pod(1))
		f.refuses(err, codes.NotFound, "is not mounted at")
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		response, err := stats(u.handle(), u.pod(1))
		if err != nil || response.Usage[0].Total != gibibyte || response.Usage[0].Available != gibibyte/4 || response.Usage[0].Used != gibibyte/2 || response.Usage[1].Used != 10 {
			t.Errorf("%v, %v", response, err)
		}
		f.target().Gone = true
		_, err = stats(u.handle(), u.pod(1))
		f.refuses(err, codes.Unavailable, "does not answer: ")
		f.target().Gone = false
		f.must(f.unpublish(u, 1))
		f.must(f.unstage(u))
		u.block = true
		*f.volume() = csinode.Volume{Bytes: gibibyte}
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		if response, err := stats(u.handle(), u.pod(1)); err != nil || response.Usage[0].Total != gibibyte {
			t.Errorf("%v, %v", response, err)
		}
	})
}

func TestTheNodeSaysWhoItIs(t *testing.T) {
	f := newFixture(t)
	info := func() (string, error) {
		response, err := f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
		return response.GetNodeId(), err
	}
	if id, err := info(); err != nil || id != "v1 node-1 i="+csinode.Initiator {
		t.Errorf("%q, %v", id, err)
	}
	f.node.Multipathd = true
	id, err := info()
	if n, parseErr := wire.ParseNodeID(id); err != nil || parseErr != nil || !n.Multipath || n.InitiatorName != csinode.Initiator {
		t.Errorf("%q, %v, %v", id, err, parseErr)
	}
	f.node.Missing["mkfs.ext4"], f.node.Missing["iscsiadm"], f.node.Missing["multipath"] = true, true, true
	_, err = info()
	for _, text := range []string{"mkfs.ext4 is not installed on the node; install", "iscsiadm is not installed on the node; install open-iscsi", "runs multipathd, but has no multipath"} {
		f.refuses(err, codes.FailedPrecondition, text)
	}
	if strings.Count(err.Error(), "iscsiadm is not installed") != 1 {
		t.Errorf("%v", err)
	}
	f.node.Missing = map[string]bool{}
	f.node.PutFile("/etc/iscsi/initiatorname.iscsi", "GenerateName=yes\n")
	_, err = info()
	f.refuses(err, codes.FailedPrecondition, "/etc/iscsi/initiatorname.iscsi has no line InitiatorName=iqn")
	f.node.RemoveFiles("/etc")
	_, err = info()
	f.refuses(err, codes.FailedPrecondition, "the node's iSCSI name cannot be read; install open-iscsi")
}

func TestRequestsThatLackSomething(t *testing.T) {
	f, u := newFixture(t), plain()
	ctx := context.Background()
	stage := func(change func(*csi.NodeStageVolumeRequest)) error {
		request := u.stageRequest(t)
		change(request)
		_, err := f.service.NodeStageVolume(ctx, request)
		return err
	}
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }), codes.InvalidArgument, "the request has no volume ID")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeId = strings.Repeat("x", 129) }), codes.InvalidArgument, "129 bytes")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "no-backend" }), codes.NotFound, "is not <backend>/<ID at Cinder>")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }), codes.InvalidArgument, "the request has no staging target path")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "relative" }), codes.InvalidArgument, `staging target path "relative" cannot be used`)
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "/a/.." }), codes.InvalidArgument, "cannot be used")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability = nil }), codes.InvalidArgument, "the request has no volume capability")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.AccessType = nil }), codes.InvalidArgument, "neither mount nor block")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "5" }), codes.InvalidArgument, "volume mount groups are not supported")
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{""} }), codes.InvalidArgument, `mount option "" cannot be used`)
	f.refuses(stage(func(r *csi.NodeStageVolumeRequest) { r.PublishContext = nil }), codes.InvalidArgument, "upgrade the node plugin")
	_, err := f.service.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: u.handle(), TargetPath: u.pod(1), VolumeCapability: u.capability()})
	f.refuses(err, codes.FailedPrecondition, "without a staging target path")
	_, err = f.service.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: u.handle(), StagingTargetPath: u.staging(), VolumeCapability: u.capability()})
	f.refuses(err, codes.InvalidArgument, "the request has no target path")
	_, err = f.service.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: u.handle()})
	f.refuses(err, codes.InvalidArgument, "the request has no target path")
	_, err = f.service.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: u.handle()})
	f.refuses(err, codes.InvalidArgument, "the request has no staging target path")
	_, err = f.service.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: u.handle()})
	f.refuses(err, codes.InvalidArgument, "the request has no volume path")
	_, err = f.service.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: u.handle(), VolumePath: "some/path"})
	f.refuses(err, codes.NotFound, `no volume can be at "some/path"`)
	_, err = f.service.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: u.handle()})
	f.refuses(err, codes.InvalidArgument, "the request has no volume path")
	_, err = f.service.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: u.handle(), VolumePath: u.pod(1), CapacityRange: &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}})
	f.refuses(err, codes.OutOfRange, "at least 2 and at most 1")
	f.clean()
}

func TestARecordOfALaterReleaseIsNotOverwritten(t *testing.T) {
	f, u := newFixture(t), plain()
	f.node.PutFile(f.service.state.file(kindVolumes, u.handle()), `{"version": 2, "boot": "boot-1"}`)
	f.refuses(f.stage(u), codes.Internal, "has version 2, but this plugin knows only 1")
}
