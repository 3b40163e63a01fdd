package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// ways are the ways of using a volume that every test of a volume's whole life tries.
var ways = map[string]func(*use, *csinode.Node){
	"ext4":              func(*use, *csinode.Node) {},
	"xfs":               func(u *use, _ *csinode.Node) { u.filesystem = "xfs" },
	"raw":               func(u *use, _ *csinode.Node) { u.block = true },
	"without passwords": func(u *use, n *csinode.Node) { u.open = true; n.Targets[iqn("vol-1")].Password = "" },
	"iser":              func(u *use, _ *csinode.Node) { u.protocol = "iser" },
	"multipath":         func(u *use, n *csinode.Node) { u.portals = []string{onePortal, twoPortal}; n.Multipathd = true },
	"raw by multipath": func(u *use, n *csinode.Node) {
		u.block, u.portals, n.Multipathd = true, []string{onePortal, twoPortal}, true
	},
	"a greedy multipath": func(_ *use, n *csinode.Node) { n.Multipathd, n.Greedy = true, true },
	"two portals without multipathd": func(u *use, _ *csinode.Node) {
		u.portals = []string{onePortal, twoPortal}
	},
	"by its default": func(u *use, _ *csinode.Node) { u.filesystem = "" },
	"nvme by two portals": func(u *use, n *csinode.Node) {
		byNVMe(u, n)
		u.filesystem, u.portals, n.Multipathd, n.Unloaded = "xfs", []string{oneNVMe, twoNVMe}, true, true
	},
	"raw by nvme": func(u *use, n *csinode.Node) {
		byNVMe(u, n)
		u.block, u.lun, n.Multipathd, n.Greedy = true, 0, true, true
	},
	"fibre channel": func(u *use, n *csinode.Node) {
		byFC(u, n)
		n.Multipathd, n.ScanDelay = true, 300*time.Millisecond
	},
	"raw by fibre channel without multipathd": func(u *use, n *csinode.Node) {
		byFC(u, n)
		u.block = true
	},
	"rbd": func(u *use, n *csinode.Node) {
		byRBD(u, n)
		n.NoRBD = true
	},
	"luks": func(u *use, _ *csinode.Node) { encrypt(u, 1) },
	"luks2 with xfs by a multipath": func(u *use, n *csinode.Node) {
		encrypt(u, 2)
		u.filesystem, u.portals, n.Multipathd = "xfs", []string{onePortal, twoPortal}, true
	},
	"raw luks2": func(u *use, _ *csinode.Node) { encrypt(u, 2); u.block = true },
	"luks by nvme": func(u *use, n *csinode.Node) {
		byNVMe(u, n)
		encrypt(u, 1)
	},
	"raw luks by fibre channel": func(u *use, n *csinode.Node) {
		byFC(u, n)
		encrypt(u, 1)
		u.block, n.Multipathd = true, true
	},
	// Cinder makes the header of images.
	"luks by rbd": func(u *use, n *csinode.Node) {
		byRBD(u, n)
		encrypt(u, 1)
		n.Ceph.Images[cephImage].LUKS = &csinode.LUKS{Version: 1, UUID: foreignID, Passphrase: passphrase}
	},
	"raw by rbd without a key": func(u *use, n *csinode.Node) {
		byRBD(u, n)
		u.block, u.filesystem, u.open, n.Ceph.Open = true, "xfs", true, true
	},
}

func TestAVolumeComesAndGoes(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				way(&u, f.node)
				for range 2 {
					f.must(f.stage(u))
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
					f.must(f.publish(u, 1, false))
					f.must(f.publish(u, 2, false))
					f.must(f.node.Write(u.pod(1), "written"))
					if v, _, _, found := f.node.MountedAt(u.pod(2)); !found || v != f.volume() || v.Data != "written" {
						t.Errorf("the pod sees %+v", v)
					}
					if !u.block && f.volume().UUID != u.id {
						t.Errorf("the filesystem's UUID is %s", f.volume().UUID)
					}
					f.must(f.unpublish(u, 1))
					f.must(f.unpublish(u, 2))
					f.must(f.unpublish(u, 2))
					f.must(f.unstage(u))
					f.must(f.unstage(u))
					if f.node.Exists(u.pod(1)) {
						t.Error("the pod's directory is left")
					}
					f.clean()
				}
				if f.volume().Data != "written" {
					t.Errorf("the data is %q", f.volume().Data)
				}
			})
		})
	}
}

// TestAnInterruptedCallConverges kills the plugin before and after every change that
// the calls of a volume's life make, and makes the calls again.
func TestAnInterruptedCallConverges(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := []func(*fixture, use) error{
				(*fixture).stage,
				func(f *fixture, u use) error { return f.publish(u, 1, true) },
				func(f *fixture, u use) error { return f.unpublish(u, 1) },
				(*fixture).unstage,
			}
			for interrupted := range calls {
				for _, after := range []bool{false, true} {
					reached := true
					for nth := 1; reached; nth++ {
						synctest.Test(t, func(t *testing.T) {
							f, u := newFixture(t), plain()
							way(&u, f.node)
							for i, call := range calls {
								if i == interrupted {
									f.node.CrashAt(nth, after)
									_ = call(f, u)
									reached = f.node.Restart()
									f.start()
									if nth%2 == 0 {
										f.service.Tidy(context.Background())
									}
								}
								if err := call(f, u); err != nil {
									t.Fatalf("call %d after a crash at change %d (after it: %t): %v\n%s", i, nth, after, err, f.log.String())
								}
								if _, _, readOnly, _ := f.node.MountedAt(u.pod(1)); i == 1 && !u.block && !readOnly {
									t.Errorf("a read-only volume is writable after a crash at change %d (after it: %t)", nth, after)
								}
							}
							f.clean()
							if !u.block && f.volume().UUID != u.id {
								t.Errorf("the filesystem's UUID is %q", f.volume().UUID)
							}
							if t.Failed() {
								t.Logf("call %d, change %d, after it: %t", interrupted, nth, after)
							}
						})
						if nth > 200 {
							t.Fatal("a call makes more than 200 changes")
						}
					}
				}
			}
		})
	}
}

// TestAnInterruptedStagingIsUnstaged does the same for a pod that goes away in the
// meantime: kubelet unstages what it could not stage.
func TestAnInterruptedStagingIsUnstaged(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, after := range []bool{false, true} {
				reached := true
				for nth := 1; reached; nth++ {
					synctest.Test(t, func(t *testing.T) {
						f, u := newFixture(t), plain()
						way(&u, f.node)
						f.node.CrashAt(nth, after)
						_ = f.stage(u)
						reached = f.node.Restart()
						f.start()
						f.must(f.unstage(u))
						f.clean()
					})
				}
			}
		})
	}
}

// TestAFailedCallLeavesNothing fails every change once. Staging that failed for good
// must leave nothing, because kubelet does not unstage it.
func TestAFailedCallLeavesNothing(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			reached := true
			for nth := 1; reached; nth++ {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					way(&u, f.node)
					f.node.FailAt(nth)
					err := f.stage(u)
					reached = f.node.Reached()
					f.node.Restart()
					switch status.Code(err) {
					case codes.OK:
					case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded:
						f.must(f.unstage(u))
						f.clean()
					default:
						if !strings.Contains(err.Error(), csinode.ErrInjected.Error()) {
							t.Errorf("change %d: %v", nth, err)
						}
						f.clean()
					}
					f.must(f.stage(u))
					f.node.FailAt(nth)
					err = f.publish(u, 1, true)
					f.node.Restart()
					if _, _, _, found := f.node.MountedAt(u.pod(1)); found && err != nil && status.Code(err) != codes.Unavailable {
						t.Errorf("change %d: %v, and the pod's directory is left", nth, err)
					}
					f.must(f.publish(u, 1, true))
					if _, _, readOnly, _ := f.node.MountedAt(u.pod(1)); !readOnly && !u.block {
						t.Error("a read-only volume is writable")
					}
					f.node.FailAt(nth)
					if err = f.unpublish(u, 1); err != nil && status.Code(err) != codes.Unavailable {
						t.Errorf("change %d: %v", nth, err)
					}
					f.node.Restart()
					f.must(f.unpublish(u, 1))
					f.node.FailAt(nth)
					if err = f.unstage(u); err != nil && status.Code(err) != codes.Unavailable {
						t.Errorf("change %d: %v", nth, err)
					}
					f.node.Restart()
					f.must(f.unstage(u))
					f.clean()
				})
			}
		})
	}
}

// TestWhatIsNotProvenIsRefused has a row for every check of staging.
func TestWhatIsNotProvenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(*fixture, *use)
		code    codes.Code
		text    string
	}{
		"another volume's filesystem": {func(f *fixture, _ *use) { f.volume().Filesystem, f.volume().UUID = "ext4", foreignID },
			codes.FailedPrecondition, "WrongVolume: the disk of volume " + firstID},
		"another volume's filesystem of another type": {func(f *fixture, _ *use) { f.volume().Filesystem, f.volume().UUID = "xfs", foreignID },
			codes.FailedPrecondition, "WrongVolume: "},
		"data without a filesystem": {func(f *fixture, _ *use) { f.volume().Junk = true },
			codes.FailedPrecondition, "NotEmpty: the disk of volume " + firstID},
		"its filesystem of another type": {func(f *fixture, _ *use) { f.volume().Filesystem, f.volume().UUID = "xfs", firstID },
			codes.FailedPrecondition, "WrongFilesystem: volume " + firstID + " holds xfs, but ext4 was requested"},
		"an old filesystem": {func(f *fixture, _ *use) { f.volume().Filesystem, f.volume().UUID = "ext3", firstID },
			codes.FailedPrecondition, "holds ext3, but ext4 was requested"},
		"an empty disk that must not be written": {func(_ *fixture, u *use) { u.arrayReads = true },
			codes.FailedPrecondition, "none can be created on it, because it is read-only"},
		"a filesystem beyond repair": {func(f *fixture, _ *use) {
			f.volume().Filesystem, f.volume().UUID, f.volume().NeedsCheck = "ext4", firstID, 4
		}, codes.Internal, "e2fsck -p"},
		"a disk that is too small": {func(_ *fixture, u *use) { u.bytes = 2 * gibibyte },
			codes.FailedPrecondition, "WrongDisk: volume gold/" + firstID + " has 2147483648 bytes, and its disk"},
		"a LUN that is not exported": {func(_ *fixture, u *use) { u.lun = 7 },
			codes.Internal, "the storage exposed no disk at"},
		"a wrong password": {func(_ *fixture, u *use) { u.password = "swordfish-2" },
			codes.Unauthenticated, "LoginRefused: target iqn.2026-01.org.example:vol-1 at 10.0.0.1:3260 refuses the login of " + csinode.Initiator},
		"a portal that is down": {func(f *fixture, _ *use) { f.target().Down[onePortal] = true },
			codes.Internal, "path by 10.0.0.1:3260: iscsiadm -m node -T iqn.2026-01.org.example:vol-1 -p 10.0.0.1:3260 -I default --login failed with code 8"},
		"paths to different disks": {func(f *fixture, u *use) {
			u.portals, f.node.Multipathd = []string{onePortal, twoPortal}, true
			f.add("vol-2", &csinode.Volume{Bytes: gibibyte, Identity: "6001"})
			u.target = "vol-1"
		}, codes.OK, ""},
		"a map with a foreign path": {func(f *fixture, u *use) {
			u.portals, f.node.Multipathd, f.node.Greedy = []string{onePortal}, true, true
			f.add("vol-2", &csinode.Volume{Bytes: gibibyte})
			_, session := f.node.LogIn(iqn("vol-2"), onePortal, "iqn.2026-01.org.example:somebody")
			f.node.Find(session, 1)
		}, codes.FailedPrecondition, "ForeignPath: multipath map "},
		"a session's lost target": {func(f *fixture, _ *use) { f.target().Gone = true },
			codes.Internal, "failed with code 8"},
		"no mkfs": {func(f *fixture, _ *use) { f.node.Missing["mkfs.ext4"] = true },
			codes.FailedPrecondition, "MissingTool: mkfs.ext4 is not installed on the node"},
		"no xfs programs": {func(f *fixture, u *use) { f.node.Missing["mkfs.xfs"], u.filesystem = true, "xfs" },
			codes.FailedPrecondition, "MissingTool: mkfs.xfs is not installed on the node"},
		"a mkfs that gives another UUID": {func(f *fixture, _ *use) { f.node.Forgetful = true },
			codes.Internal, "mkfs.ext4 succeeded, but "},
		"a mount that the node does not see": {func(f *fixture, _ *use) { f.node.Unpropagated = true },
			codes.Internal, "mountPropagation: Bidirectional"},
		"a target's name that is an option": {func(_ *fixture, u *use) { u.target = "x y" },
			codes.InvalidArgument, "is not the name of an iSCSI target"},
		"a portal that is an option": {func(_ *fixture, u *use) { u.portals = []string{"--op:1"} },
			codes.InvalidArgument, `"--op:1" is not the address of an iSCSI portal`},
		"a LUN that cannot be": {func(_ *fixture, u *use) { u.lun = 32768 }, codes.InvalidArgument, "32768 is not an iSCSI LUN"},
		"an unknown protocol": {func(_ *fixture, u *use) { u.protocol = "storpool" },
			codes.FailedPrecondition, `is reached by protocol "storpool", which this node plugin does not have`},
		"an ID that is no UUID": {func(_ *fixture, u *use) { u.id = "volume-1" },
			codes.InvalidArgument, `the volume's ID "volume-1" is not a lower-case UUID`},
		"a filesystem for many writers": {func(_ *fixture, u *use) { u.mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER },
			codes.InvalidArgument, "would be destroyed; use a raw block volume"},
		"an unknown filesystem": {func(_ *fixture, u *use) { u.filesystem = "btrfs" }, codes.InvalidArgument, `filesystem "btrfs" is not supported`},
		"an unknown mode": {func(_ *fixture, u *use) { u.mode = csi.VolumeCapability_AccessMode_UNKNOWN },
			codes.InvalidArgument, "access mode UNKNOWN is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				c.arrange(f, &u)
				before := *f.volume()
				sessions := len(f.node.Left())
				err := f.stage(u)
				if c.code == codes.OK {
					f.must(err)
					return
				}
				f.refuses(err, c.code, c.text)
				if reason, _, _ := strings.Cut(status.Convert(err).Message(), ": "); !strings.Contains(reason, " ") && !slices.Contains(f.observed, "refused "+reason) {
					t.Errorf("observed %q, not the refusal %s", f.observed, reason)
				}
				if after := *f.volume(); after.Data != before.Data || after.UUID != before.UUID && !f.node.Forgetful && before != (csinode.Volume{Bytes: gibibyte}) {
					t.Errorf("the volume was changed: %+v", after)
				}
				if left := f.node.Left(); len(left) > sessions {
					t.Errorf("left: %q", left)
				}
				f.unharmed()
			})
		})
	}
}

func TestPathsThatLeadToDifferentDisksAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.node.Multipathd = true
		f.add("vol-2", &csinode.Volume{Bytes: gibibyte, Identity: "6001"})
		request := u.stageRequest(t)
		connection, err := wire.ParsePublishContext(request.GetPublishContext())
		f.must(err)
		connection.Paths = append(connection.Paths, wire.Path{Portal: twoPortal, Target: iqn("vol-2"), LUN: 1})
		request.PublishContext, err = connection.PublishContext()
		f.must(err)
		_, err = f.service.NodeStageVolume(context.Background(), request)
		f.refuses(err, codes.FailedPrecondition, "WrongDisk: the paths of volume gold/"+firstID+" lead to different disks")
		f.clean()
	})
}

func TestACopyKeepsTheUUIDOfItsSource(t *testing.T) {
	for _, filesystem := range []string{"ext4", "xfs"} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			u.filesystem = filesystem
			f.must(f.stage(u))
			f.add("vol-2", &csinode.Volume{Bytes: 2 * gibibyte, Filesystem: filesystem, UUID: firstID, FilesystemBytes: gibibyte, Identity: "6002"})
			clone := plain()
			clone.id, clone.target, clone.filesystem = secondID, "vol-2", filesystem
			f.refuses(f.stage(clone), codes.FailedPrecondition, "WrongVolume: ")
			clone.copied = []string{firstID}
			f.must(f.stage(clone))
			if v := f.node.Targets[iqn("vol-2")].LUNs[1]; v.UUID != firstID || v.FilesystemBytes != 2*gibibyte {
				t.Errorf("the copy is %+v", v)
			}
			f.must(f.unstage(clone))
			f.must(f.unstage(u))
			f.clean()
		})
	}
}

// TestASwappedVolumeIsNotThatOfTheHandle: what the node proves, makes and leaves alone is the
// volume that the leader names, whatever the attributes of the PersistentVolume say, also
// after a restart.
func TestASwappedVolumeIsNotThatOfTheHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.copied, u.imported = []string{firstID}, true
		u.swapped = &wire.SwappedVolume{ID: secondID}
		*f.volume() = csinode.Volume{Bytes: gibibyte, Filesystem: "ext4", UUID: firstID, FilesystemBytes: gibibyte}
		f.refuses(f.stage(u), codes.FailedPrecondition, "WrongVolume: ")
		f.clean()
		*f.volume() = csinode.Volume{Bytes: gibibyte}
		f.must(f.stage(u))
		if v := f.volume(); v.UUID != secondID {
			t.Errorf("the volume is %+v", v)
		}
		f.start()
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
		u.swapped = &wire.SwappedVolume{ID: firstID, Volume: wire.Volume{FilesystemUUIDs: []string{secondID}, NeverFormat: true}}
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
		*f.volume() = csinode.Volume{Bytes: gibibyte}
		f.refuses(f.stage(u), codes.FailedPrecondition, "WrongFilesystem: ")
		u.swapped = &wire.SwappedVolume{ID: "no UUID"}
		f.refuses(f.stage(u), codes.InvalidArgument, "is not a lower-case UUID")
		f.clean()
	})
}

// TestAnImportedVolumeIsNeverFormatted: its data may begin with zeros. It is mounted if
// its filesystem has an expected UUID.
func TestAnImportedVolumeIsNeverFormatted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.imported = true
		f.refuses(f.stage(u), codes.FailedPrecondition, "WrongFilesystem: volume "+firstID+" (or its source) was not created by this driver and disk ")
		if slices.ContainsFunc(f.node.Calls(), func(c string) bool { return strings.HasPrefix(c, "mkfs") }) || f.volume().Filesystem != "" {
			t.Errorf("the volume is %+v", f.volume())
		}
		f.clean()
		*f.volume() = csinode.Volume{Bytes: gibibyte, Filesystem: "ext4", UUID: secondID, FilesystemBytes: gibibyte}
		f.refuses(f.stage(u), codes.FailedPrecondition, "WrongVolume: ")
		u.copied = []string{secondID}
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestFormattingThatWasInterruptedIsDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		calls := slices.IndexFunc(f.node.Calls(), func(c string) bool { return strings.HasPrefix(c, "mkfs") })
		if calls < 0 {
			t.Fatal("nothing was formatted")
		}
		f.must(f.unstage(u))
		*f.volume() = csinode.Volume{Bytes: gibibyte}
		// Find by trial which change is mkfs: it leaves junk.
		for nth := 1; !f.volume().Junk; nth++ {
			f.node.CrashAt(nth, false)
			_ = f.stage(u)
			f.node.Restart()
			f.start()
			f.must(f.unstage(u))
		}
		// Junk on another disk is somebody's data.
		other := *f.volume()
		other.Identity = "6009"
		f.target().LUNs[1] = &other
		f.refuses(f.stage(u), codes.FailedPrecondition, "NotEmpty: ")
		other.Identity = ""
		f.must(f.stage(u))
		f.must(f.unstage(u))
		// After formatting has ended, junk is somebody's data as well.
		*f.volume() = csinode.Volume{Bytes: gibibyte, Junk: true}
		f.refuses(f.stage(u), codes.FailedPrecondition, "NotEmpty: ")
		f.clean()
	})
}

// TestAStaleDiskIsRemovedBeforeTheScan: a LUN is reused after a failed unstage, and the
// kernel still has the old disk in its place.
func TestAStaleDiskIsRemovedBeforeTheScan(t *testing.T) {
	for name, lost := range map[string]bool{"under a live session": false, "under a lost session": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				_, session := f.node.LogIn(iqn("vol-1"), onePortal, csinode.Initiator)
				stale := f.node.Find(session, 1)
				f.target().LUNs[1] = &csinode.Volume{Bytes: 3 * gibibyte}
				if lost {
					f.node.Lose(iqn("vol-1"))
				}
				f.must(f.stage(u))
				if want := []string{"removed a disk", "step attach", "step filesystem", "step mount", "step grow"}; !slices.Equal(f.observed, want) {
					t.Errorf("observed %q, want %q", f.observed, want)
				}
				if slices.Contains(f.node.Devices(), stale) || f.volume().FilesystemBytes != 3*gibibyte {
					t.Errorf("disks %q, volume %+v", f.node.Devices(), f.volume())
				}
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

func TestAStaleDiskThatIsInUseIsNotRemoved(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, string){
		"mounted":                      func(f *fixture, disk string) { f.node.MountByHand(disk, "/mnt", "ext4") },
		"mounted in another namespace": func(f *fixture, disk string) { f.node.Hidden[disk] = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				_, session := f.node.LogIn(iqn("vol-1"), onePortal, csinode.Initiator)
				disk := f.node.Find(session, 1)
				arrange(f, disk)
				// It is left where it was, so kubelet must be told to try again.
				f.refuses(f.stage(u), codes.Unavailable, "InUse: ")
				if !slices.Contains(f.node.Devices(), disk) {
					t.Error("the disk was removed")
				}
				f.unharmed()
			})
		})
	}
}

// TestALUNThatIsStagedIsNotGivenToAnotherVolume: a LUN is reused while the node still
// has the volume that had it.
func TestALUNThatIsStagedIsNotGivenToAnotherVolume(t *testing.T) {
	for _, multipath := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, first := newFixture(t), plain()
			if multipath {
				f.node.Multipathd, first.portals = true, []string{onePortal, twoPortal}
			}
			f.must(f.stage(first))
			f.must(f.publish(first, 1, false))
			// The storage gives target and LUN to another volume.
			f.target().LUNs[1] = &csinode.Volume{Bytes: gibibyte}
			second := first
			second.id = secondID
			err := f.stage(second)
			f.refuses(err, codes.FailedPrecondition, "InUse: LUN 1 of target iqn.2026-01.org.example:vol-1 is volume gold/"+firstID+" on this node")
			// The first volume is not staged again on what is there now.
			f.refuses(f.stage(first), codes.FailedPrecondition, "is staged, but not usable, and is published at")
			f.must(f.unpublish(first, 1))
			// What the kernel still has of its filesystem is not written anywhere.
			f.must(f.unstage(first))
			if *f.volume() != (csinode.Volume{Bytes: gibibyte}) {
				t.Errorf("the other volume was written: %+v", f.volume())
			}
			f.must(f.stage(second))
			f.must(f.unstage(second))
			f.clean()
		})
	}
}

// TestAVolumeThatWasDetachedWhileItWasStagedIsNotUsed: a node was cut off from the
// cluster. Kubernetes detached the volume by force, another node wrote to it, and the
// volume came back before the first node had unmounted it.
func TestAVolumeThatWasDetachedWhileItWasStagedIsNotUsed(t *testing.T) {
	for name, use := range map[string]func(*fixture, use) error{
		"published": func(f *fixture, u use) error { return f.publish(u, 2, false) },
		"staged":    func(f *fixture, u use) error { return f.stage(u) },
	} {
		for _, multipath := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, multipath %t", name, multipath), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					if multipath {
						f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal}
					}
					u.attachment = "attachment-1"
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
					f.must(f.stage(u))
					f.volume().Data = "of another node"
					u.attachment = "attachment-2"
					for range 2 {
						f.refuses(use(f, u), codes.FailedPrecondition, "was detached from the node while it was staged")
					}
					if err := f.node.Write(u.pod(1), "of this node"); err == nil {
						t.Error("the first pod can still write")
					}
					f.start()
					f.must(f.unpublish(u, 1))
					if f.volume().Data != "of another node" {
						t.Errorf("the volume has %q", f.volume().Data)
					}
					if name == "published" {
						f.must(f.unstage(u))
					}
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
}

// TestAReadOnlyVolumeThatWasDetachedIsUsedOn: nobody writes to it, so nothing that the
// kernel has of it is outdated.
func TestAReadOnlyVolumeThatWasDetachedIsUsedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.must(f.unstage(u))
		u.mode, u.arrayReads, u.attachment = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, true, "attachment-1"
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		u.attachment = "attachment-2"
		f.must(f.publish(u, 2, false))
		f.must(f.stage(u))
		f.must(f.unpublish(u, 1))
		f.must(f.unpublish(u, 2))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAVolumeThatWasDetachedIsNotReadOnThoughOthersMayWrite: what the kernel has of it
// may be older than what another node has written since.
func TestAVolumeThatWasDetachedIsNotReadOnThoughOthersMayWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.must(f.unstage(u))
		u.arrayReads, u.attachment = true, "attachment-1"
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		u.attachment = "attachment-2"
		if err := f.publish(u, 2, false); !strings.Contains(fmt.Sprint(err), "may have been written by another node since") {
			t.Errorf("a second pod: %v", err)
		}
		f.must(f.unpublish(u, 1))
		f.must(f.unpublish(u, 2))
		f.must(f.stage(u))
		f.must(f.publish(u, 2, false))
		f.must(f.unpublish(u, 2))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAVolumeThatIsSilentIsNotCutOff: writes to it may still arrive.
func TestAVolumeThatIsSilentIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.target().Gone = true
		f.must(f.unstage(u))
		if strings.Contains(f.log.String(), "nothing more is written") {
			t.Error("it was cut off")
		}
		f.clean()
	})
}

func TestTwoVolumesOfOneIdentityAreNotMergedByMultipathd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, first := newFixture(t), plain()
		f.node.Multipathd = true
		first.portals = []string{onePortal, twoPortal}
		f.must(f.stage(first))
		f.must(f.publish(first, 1, false))
		f.add("vol-2", &csinode.Volume{Bytes: gibibyte})
		second := plain()
		second.id, second.target = secondID, "vol-2"
		f.refuses(f.stage(second), codes.FailedPrecondition, "and so has that of volume gold/"+firstID)
		f.must(f.node.Write(first.pod(1), "mine"))
		if len(f.node.Devices()) != 2 {
			t.Errorf("disks: %q", f.node.Devices())
		}
		f.must(f.unpublish(first, 1))
		f.must(f.unstage(first))
		f.clean()
	})
}

func TestAPathThatIsDownIsDoneWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal}
		f.target().Down[onePortal] = true
		f.must(f.stage(u))
		if !strings.Contains(f.log.String(), "volume has fewer paths than it could") {
			t.Error("nobody is told")
		}
		if left := strings.Join(f.node.Left(), " "); strings.Contains(left, onePortal) {
			t.Errorf("credentials are kept for a portal that is not used: %s", left)
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAMapIsWaitedFor(t *testing.T) {
	for delay, works := range map[time.Duration]bool{5 * time.Second: true, time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			f.node.Multipathd, u.portals, f.node.MapDelay = true, []string{onePortal, twoPortal}, delay
			err := f.stage(u)
			if works {
				f.must(err)
				f.must(f.unstage(u))
			} else {
				f.refuses(err, codes.Internal, "multipathd made no map of all 2 disks of the volume in 15s")
				// A disk that is gone by then is in no map.
				return
			}
			f.clean()
		})
	}
}

func TestAStagedVolumeIsLookedAtAgain(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(*fixture, use)
		text    string
	}{
		"unmounted":             {func(f *fixture, u use) { f.node.UnmountByHand(u.staging()) }, "nothing is mounted at"},
		"read-only by an error": {func(f *fixture, u use) { f.node.MakeReadOnly(u.staging()) }, "the kernel made the filesystem read-only"},
		"another disk":          {func(f *fixture, _ use) { f.volume().Serial = "other" }, "WrongDisk: "},
		"another filesystem": {func(f *fixture, _ use) {
			f.target().LUNs[1] = &csinode.Volume{Bytes: gibibyte, Filesystem: "ext4", UUID: foreignID, FilesystemBytes: gibibyte}
		}, "WrongVolume: "},
		"dead": {func(f *fixture, _ use) { f.target().Gone = true }, "no path of the volume answers"},
		"another device on top": {func(f *fixture, u use) { f.node.MountByHand("sdz", u.staging(), "ext4") },
			"globalmount shows device "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				f.must(f.stage(u))
				f.must(f.publish(u, 1, false))
				c.arrange(f, u)
				f.refuses(f.stage(u), codes.FailedPrecondition, c.text)
				f.must(f.unpublish(u, 1))
				// Nobody uses the volume any more, so it is staged again, and what is
				// there then is checked as always.
				f.target().Gone = false
				if name == "another filesystem" {
					f.refuses(f.stage(u), codes.FailedPrecondition, c.text)
					f.clean()
					return
				}
				f.must(f.stage(u))
				f.must(f.publish(u, 1, false))
				f.must(f.unpublish(u, 1))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestANewDiskIsWaitedFor: the kernel shows the disk before it can be opened, as it
// does on a busy node.
func TestANewDiskIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.node.Early = 7
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAVolumeIsStagedInOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		raw := u
		raw.block = true
		f.refuses(f.stage(raw), codes.AlreadyExists, "is already staged at "+u.staging()+", with another path, filesystem or access than requested")
		f.refuses(f.publish(raw, 1, false), codes.InvalidArgument, "is not staged for this kind of access")
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestARestartOfTheNodeForgetsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.node.Reboot("boot-2")
		f.start()
		f.refuses(f.publish(u, 1, false), codes.FailedPrecondition, "is not staged")
		f.service.Tidy(context.Background())
		if files := f.node.Files(); len(files) != 1 {
			t.Errorf("files: %v", files)
		}
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.must(f.unpublish(u, 1))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestUnstagingWorksWithout(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, use){
		"the record":  func(f *fixture, _ use) { f.node.RemoveFiles(stateDir) },
		"the device":  func(f *fixture, _ use) { f.target().Gone = true },
		"the target":  func(f *fixture, _ use) { delete(f.node.Targets, iqn("vol-1")) },
		"the session": func(f *fixture, _ use) { f.node.Lose(iqn("vol-1")) },
		"the mount":   func(f *fixture, u use) { f.node.UnmountByHand(u.staging()) },
		"everything":  func(f *fixture, _ use) { f.node.Reboot("boot-2"); f.node.RemoveFiles(stateDir) },
		"a known name": func(f *fixture, _ use) {
			f.node.PutFile("/etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.2026-01.org.example:new\n")
		},
		"a record that can be read": func(f *fixture, u use) {
			f.node.PutFile(f.service.state.file(kindVolumes, u.handle()), "{")
		},
		"a record and a device": func(f *fixture, _ use) { f.node.RemoveFiles(stateDir); f.target().Gone = true },
	} {
		for _, multipath := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, multipath %t", name, multipath), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					if multipath {
						f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal}
					}
					f.must(f.stage(u))
					arrange(f, u)
					f.start()
					f.must(f.unstage(u))
					left := slices.DeleteFunc(f.node.Left(), func(l string) bool { return name == "everything" && strings.HasPrefix(l, "record ") })
					if len(left) > 0 {
						t.Errorf("left: %q", left)
					}
					f.unharmed()
				})
			})
		}
	}
}

// TestWhatOnlyAnUnreadableRecordKnowsIsNotForgotten: no mount shows raw volumes. To
// report them as unstaged would free the LUN of a disk that the node still has.
func TestWhatOnlyAnUnreadableRecordKnowsIsNotForgotten(t *testing.T) {
	for name, c := range map[string]struct{ content, text string }{
		"damaged":            {"{", "cannot be read"},
		"of a later release": {`{"version": 2, "boot": "boot-1"}`, "has version 2, but this plugin knows only 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				u.block = true
				f.must(f.stage(u))
				file := f.service.state.file(kindVolumes, u.handle())
				readable := f.node.Files()[file]
				f.node.PutFile(file, c.content)
				f.refuses(f.unstage(u), codes.Unavailable, c.text)
				f.node.PutFile(file, readable)
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

func TestAVolumeWhoseStateFileIsLostIsStagedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.node.RemoveFiles(stateDir)
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.node.RemoveFiles(stateDir)
		// While a pod uses the volume, it stays.
		f.refuses(f.stage(u), codes.Unavailable, "InUse: ")
		f.must(f.unpublish(u, 1))
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestWhatIsLeftIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(*fixture, use)
		text    string
	}{
		"a pod":               {func(f *fixture, u use) { f.must(f.publish(u, 1, false)) }, "InUse: volume gold/" + firstID + " is still published at"},
		"a mount by hand":     {func(f *fixture, _ use) { f.node.MountByHand(f.node.Devices()[0], "/mnt", "ext4") }, "is still mounted at /mnt"},
		"another namespace":   {func(f *fixture, _ use) { f.node.Hidden[f.node.Devices()[0]] = true }, "perhaps a mount in another container"},
		"a disk that stays":   {func(f *fixture, _ use) { f.node.Kept = true }, "still exists after 30s"},
		"a missing program":   {func(f *fixture, _ use) { f.node.Missing["iscsiadm"] = true }, "iscsiadm is not installed on the node"},
		"a record of another": {func(f *fixture, u use) { f.unknownProtocol(u) }, `was staged by protocol "fc"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				f.must(f.stage(u))
				c.arrange(f, u)
				f.refuses(f.unstage(u), codes.Unavailable, c.text)
				f.unharmed()
			})
		})
	}
}

func (f *fixture) unknownProtocol(u use) {
	r, err := f.service.state.load(u.handle())
	f.must(err)
	r.Protocol = "fc"
	f.must(f.service.state.save(r))
}

// TestSessionsOfOthersStay: kubelet's native volumes use another initiator name, and
// other volumes use the same target. Beside a native session, nothing more is staged:
// kubelet would take the driver's disks for its own.
func TestSessionsOfOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.target().LUNs[2] = &csinode.Volume{Bytes: gibibyte, Serial: "two"}
		second := plain()
		second.id, second.lun = secondID, 2
		f.must(f.stage(u))
		f.must(f.stage(second))
		_, native := f.node.LogIn(iqn("vol-1"), twoPortal, "iqn.2026-01.org.example:cluster")
		theirs := f.node.Find(native, 1)
		f.must(f.unstage(u))
		if devices := f.node.Devices(); len(devices) != 2 || devices[1] != theirs {
			t.Errorf("disks: %q", devices)
		}
		f.refuses(f.stage(u), codes.FailedPrecondition, "ForeignPath: the node is also logged in to target "+iqn("vol-1")+" under the name iqn.2026-01.org.example:cluster")
		// What is staged already can be used, and goes.
		f.must(f.stage(second))
		f.must(f.publish(second, 1, false))
		f.must(f.unpublish(second, 1))
		f.must(f.unstage(second))
		f.refuses(f.stage(second), codes.FailedPrecondition, "ForeignPath: ")
		want := []string{"disk ", "session "}
		left := f.node.Left()
		if len(left) != 2 || !strings.HasPrefix(left[0], want[0]) || !strings.HasPrefix(left[1], want[1]) {
			t.Errorf("left: %q", left)
		}
		// Sessions to other targets are nobody's business.
		f.add("vol-2", &csinode.Volume{Bytes: gibibyte})
		second.target, second.lun = "vol-2", 1
		f.must(f.stage(second))
		f.must(f.unstage(second))
		f.unharmed()
	})
}

func TestTwentyVolumesOfOneTargetAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.node.Delay = 20 * time.Millisecond
		f.target().LUNs = map[int]*csinode.Volume{}
		var uses []use
		for i := range 20 {
			u := plain()
			u.id, u.lun = fmt.Sprintf("%08d-e84c-4ef1-816f-76fcd478cebd", i), i+1
			f.target().LUNs[u.lun] = &csinode.Volume{Bytes: gibibyte}
			uses = append(uses, u)
		}
		all := func(do func(use) error) {
			var wait sync.WaitGroup
			for _, u := range uses {
				wait.Go(func() {
					if err := do(u); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
		}
		all(f.stage)
		for _, u := range uses {
			if v := f.target().LUNs[u.lun]; v.UUID != u.id {
				t.Errorf("LUN %d has %s", u.lun, v.UUID)
			}
		}
		all(f.unstage)
		f.clean()
	})
}

func TestASecondCallForAVolumeIsAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.node.Delay = time.Second
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() {
			_, err := f.service.NodeStageVolume(ctx, u.stageRequest(t))
			ended <- err
		}()
		time.Sleep(time.Second / 2)
		f.refuses(f.stage(u), codes.Aborted, "another call for volume gold/"+firstID+" is in progress on this node")
		f.refuses(f.unstage(u), codes.Aborted, "")
		// Kubelet gives up, but the call goes on.
		cancel()
		f.must(<-ended)
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestSecretsOfAnotherNodeAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		request := u.stageRequest(t)
		for _, value := range request.Secrets {
			request.Secrets = map[string]string{wire.SecretKey("node-2"): value}
		}
		_, err := f.service.NodeStageVolume(context.Background(), request)
		f.refuses(err, codes.Unavailable, "the volume's Secret has no entry for node node-1")
		f.clean()
	})
}

// halts is a Reporter that lets no call go on until it may.
type halts struct {
	begun chan string
	may   chan struct{}
}

func (h halts) Staging(_ context.Context, attachment string) error {
	h.begun <- attachment
	<-h.may
	return nil
}
func (halts) Changed() {}

// TestASmallNodeStagesAFewVolumesAtOnce: the others wait, and one whose caller gives up has
// left nothing.
func TestASmallNodeStagesAFewVolumesAtOnce(t *testing.T) {
	f := newFixture(t)
	h := halts{begun: make(chan string, 100), may: make(chan struct{})}
	f.service.reporter, f.service.turns = h, make(turns, 2)
	const volumes = 6
	staged := make(chan error, volumes)
	uses := make([]use, volumes)
	for i := range uses {
		uses[i] = plain()
		uses[i].id, uses[i].target = fmt.Sprintf("86a25cac-e84c-4ef1-816f-76fcd478ceb%d", i), fmt.Sprintf("vol-%d", i)
		f.add(uses[i].target, &csinode.Volume{Bytes: gibibyte})
	}
	for _, u := range uses[:2] {
		go func() { staged <- f.stage(u) }()
		<-h.begun
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.service.NodeStageVolume(ctx, uses[2].stageRequest(t)); status.Code(err) != codes.Canceled {
		t.Errorf("a call that waits in vain ends with %v", err)
	}
	if r, err := f.service.load(t.Context(), uses[2].handle()); r != nil || err != nil {
		t.Errorf("it left %+v, %v", r, err)
	}
	for _, u := range uses[2:] {
		go func() { staged <- f.stage(u) }()
	}
	for ended := range volumes {
		if begun := 2 + len(h.begun); begun > ended+2 {
			t.Errorf("%d calls began, and %d ended", begun, ended)
		}
		h.may <- struct{}{}
		if err := <-staged; err != nil {
			t.Error(err)
		}
	}
}
