package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// newNVMe returns a node with a volume as namespace 1 of a subsystem.
func newNVMe(t *testing.T) (*fixture, use, *csinode.Subsystem) {
	f, u := newFixture(t), plain()
	byNVMe(&u, f.node)
	return f, u, f.node.Subsystems[subsystem("vol-1")]
}

// share puts another volume into the subsystem of the first one.
func share(u use, s *csinode.Subsystem) use {
	second := u
	second.id, second.lun, second.identities = secondID, 2, []string{"uuid." + secondID}
	s.Namespaces[2] = &csinode.Volume{Bytes: gibibyte, NamespaceUUID: secondID}
	return second
}

func TestTheNodeSaysItsNVMeNames(t *testing.T) {
	f, _, _ := newNVMe(t)
	info := func() (string, error) {
		response, err := f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
		return response.GetNodeId(), err
	}
	const both = "v1 node-1 i=" + csinode.Initiator + " n=" + csinode.HostNQN
	if id, err := info(); err != nil || id != both {
		t.Errorf("%q, %v", id, err)
	}
	f.node.PutFile("/etc/nvme/hostid", "4C4C4544-0043-4210-8051-b9c04f4e4d32\n")
	if id, err := info(); err != nil || id != both+" h=4c4c4544-0043-4210-8051-b9c04f4e4d32" {
		t.Errorf("with an ID of its own: %q, %v", id, err)
	}
	f.node.RemoveFiles("/etc/nvme/hostid")
	f.node.Missing["iscsiadm"] = true
	if id, err := info(); err != nil || id != "v1 node-1 n="+csinode.HostNQN {
		t.Errorf("without iSCSI: %q, %v", id, err)
	}
	for want, broken := range map[string]func(){
		"the node's kernel has no NVMe over TCP": func() { f.node.NoNVMe = true },
		"has NVMe multipath switched off":        func() { f.node.NoNVMe, f.node.SinglePath = false, true },
		"/etc/nvme/hostnqn has no name":          func() { f.node.PutFile("/etc/nvme/hostnqn", "nqn.a,b") },
		"/etc/nvme/hostid has no UUID":           func() { f.node.PutFile("/etc/nvme/hostnqn", "nqn.2026-01.org.example:node-1") },
	} {
		g, _, _ := newNVMe(t)
		g.node.Missing["iscsiadm"] = true
		f = g
		broken()
		_, err := info()
		f.refuses(err, codes.FailedPrecondition, want)
		f.refuses(err, codes.FailedPrecondition, "iscsiadm is not installed on the node; install open-iscsi")
	}
}

func TestVolumesThatShareASubsystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, first, s := newNVMe(t)
		second := share(first, s)
		first.portals, second.portals = []string{oneNVMe}, []string{oneNVMe, twoNVMe}
		f.must(f.stage(first))
		f.must(f.stage(second))
		f.must(f.publish(second, 1, false))
		f.must(f.unstage(first))
		f.must(f.node.Write(second.pod(1), "still there"))
		f.must(f.stage(first))
		f.must(f.unpublish(second, 1))
		f.must(f.unstage(second))
		f.must(f.unstage(first))
		f.clean()
		if s.Namespaces[2].Data != "still there" || s.Namespaces[2].UUID != secondID || s.Namespaces[1].UUID != firstID {
			t.Errorf("volumes %+v, %+v", s.Namespaces[1], s.Namespaces[2])
		}
	})
}

func TestConnectionsOfOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newNVMe(t)
		f.node.ConnectByHand(subsystem("vol-1"), oneNVMe, csinode.HostNQN)
		before := f.node.Left()
		u.portals = []string{oneNVMe, twoNVMe}
		f.must(f.stage(u))
		f.must(f.unstage(u))
		if left := f.node.Left(); !slices.Equal(left, before) {
			t.Errorf("left %q, want %q", left, before)
		}
		f.unharmed()
	})
}

func TestConnectionsThatOthersUseStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, s := newNVMe(t)
		share(u, s)
		f.must(f.stage(u))
		f.node.Hidden[f.node.Devices()[1]], f.node.Hidden[f.node.Devices()[0]] = true, true
		f.refuses(f.unstage(u), codes.Unavailable, "InUse: something still uses nvme0n")
		for _, device := range f.node.Devices() {
			f.node.Hidden[device] = f.nsid(device) == "2"
		}
		f.must(f.unstage(u))
		if left := f.node.Left(); len(left) != 4 {
			t.Errorf("left %q", left)
		}
		// The next volume that needs the connections ends them if nobody uses them.
		f.node.Hidden = map[string]bool{}
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func (f *fixture) nsid(device string) string {
	content, err := f.node.ReadFile("/sys/block/" + device + "/nsid")
	f.must(err)
	return strings.TrimSpace(string(content))
}

// TestASubsystemOfAnEarlierVolumeIsConnectedAnew: what the kernel knows about its
// namespaces may be outdated.
func TestASubsystemOfAnEarlierVolumeIsConnectedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, s := newNVMe(t)
		f.must(f.stage(u))
		stale := f.node.Devices()
		f.node.UnmountByHand(u.staging())
		f.node.RemoveFiles(stateDir + "/volumes")
		s.Namespaces[1] = &csinode.Volume{Bytes: 3 * gibibyte, NamespaceUUID: secondID}
		u.id, u.identities = secondID, []string{"uuid." + secondID}
		f.observed = nil
		f.must(f.stage(u))
		if f.observed[0] != "removed a disk" || slices.Equal(f.node.Devices(), stale) || s.Namespaces[1].FilesystemBytes != 3*gibibyte {
			t.Errorf("observed %q, disks %q, volume %+v", f.observed, f.node.Devices(), s.Namespaces[1])
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAKernelThatKnowsAnEarlierNamespaceIsToldToScan: connections of others are not
// replaced.
func TestAKernelThatKnowsAnEarlierNamespaceIsToldToScan(t *testing.T) {
	for name, now := range map[string]csinode.Volume{
		"extended":       {Bytes: 3 * gibibyte, NamespaceUUID: firstID},
		"another volume": {Bytes: gibibyte, NamespaceUUID: secondID},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u, s := newNVMe(t)
				f.node.ConnectByHand(subsystem("vol-1"), oneNVMe, csinode.HostNQN)
				s.Namespaces[1] = &now
				u.id, u.identities = now.NamespaceUUID, []string{"uuid." + now.NamespaceUUID}
				f.must(f.stage(u))
				known, err := f.node.ReadFile("/sys/block/" + f.node.Devices()[0] + "/uuid")
				if err != nil || strings.TrimSpace(string(known)) != now.NamespaceUUID || now.FilesystemBytes != now.Bytes {
					t.Errorf("the kernel knows %s, %v; the volume is %+v", known, err, now)
				}
				f.must(f.unstage(u))
				f.unharmed()
			})
		})
	}
}

func TestNamespacesThatAreNotProvenAreRefused(t *testing.T) {
	const nguid = "84d0c5f72349401c8672f76214d13cab"
	for name, test := range map[string]struct {
		change func(*use, *csinode.Subsystem)
		code   codes.Code
		want   string
	}{
		"another volume's UUID": {func(_ *use, s *csinode.Subsystem) { s.Namespaces[1].NamespaceUUID = foreignID }, codes.FailedPrecondition,
			"WrongDisk: namespace 1 of nqn.2026-01.org.example:vol-1 is uuid." + foreignID + ", but the volume's is uuid." + firstID},
		"another volume's NGUID": {func(u *use, s *csinode.Subsystem) {
			u.identities, s.Namespaces[1].NGUID = []string{"eui." + nguid}, strings.Repeat("1", 32)
		}, codes.FailedPrecondition, "but the volume's is eui." + nguid},
		"one of two identities": {func(u *use, s *csinode.Subsystem) {
			u.identities, s.Namespaces[1].NGUID = append(u.identities, "eui."+nguid), strings.Repeat("1", 32)
		}, codes.FailedPrecondition, "but the volume's is uuid." + firstID + "/eui." + nguid},
		"no such namespace": {func(u *use, _ *csinode.Subsystem) { u.lun = 7 }, codes.Internal,
			"shows 0 namespaces that could be the volume's (namespace 7, uuid." + firstID + ")"},
		"no such identity": {func(u *use, _ *csinode.Subsystem) { u.lun, u.identities = 0, []string{"uuid." + foreignID} }, codes.Internal,
			"shows 0 namespaces that could be the volume's (uuid." + foreignID + ")"},
		"a smaller namespace": {func(_ *use, s *csinode.Subsystem) { s.Namespaces[1].Bytes = gibibyte / 2 }, codes.FailedPrecondition, "WrongDisk: volume gold/" + firstID + " has 1073741824 bytes, and its disk"},
		"another filesystem": {func(_ *use, s *csinode.Subsystem) {
			s.Namespaces[1].Filesystem, s.Namespaces[1].UUID = "ext4", foreignID
		}, codes.FailedPrecondition,
			"WrongVolume: "},
		"paths to different namespaces": {func(u *use, s *csinode.Subsystem) {
			u.portals = []string{oneNVMe, twoNVMe}
			s.ByPortal = map[string]map[int]*csinode.Volume{twoNVMe: {1: {Bytes: gibibyte, NamespaceUUID: foreignID}}}
		}, codes.FailedPrecondition, "lead to different disks"},
		"no identity and no namespace": {func(u *use, _ *csinode.Subsystem) { u.lun, u.identities = 0, nil }, codes.InvalidArgument,
			"says neither which namespace of nqn.2026-01.org.example:vol-1 the volume is nor how it is identified"},
		"a portal without an address": {func(u *use, _ *csinode.Subsystem) { u.portals = []string{"storage.example:4420"} }, codes.InvalidArgument,
			`"storage.example:4420" is not the IP address and port of an NVMe subsystem`},
		"a portal with an option": {func(u *use, s *csinode.Subsystem) {
			u.portals = []string{"[fd00::1%x,hostnqn=nqn.2026-01.org.example:other]:4420"}
		}, codes.InvalidArgument, "is not the IP address and port of an NVMe subsystem"},
		"a subsystem with an option": {func(u *use, _ *csinode.Subsystem) { u.target = "vol-1,hostid=x" }, codes.InvalidArgument, "is not the name of an NVMe subsystem"},
		"no portal that answers":     {func(_ *use, s *csinode.Subsystem) { s.Down[oneNVMe] = true }, codes.Internal, "connection refused; the kernel's log says more"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u, s := newNVMe(t)
				test.change(&u, s)
				before := map[int]csinode.Volume{}
				for id, v := range s.Namespaces {
					before[id] = *v
				}
				f.refuses(f.stage(u), test.code, test.want)
				f.clean()
				for id, v := range s.Namespaces {
					if *v != before[id] {
						t.Errorf("namespace %d was %+v, and is %+v", id, before[id], *v)
					}
				}
			})
		})
	}
}

func TestNamespacesAreFoundByWhatIsKnown(t *testing.T) {
	const nguid = "84d0c5f72349401c8672f76214d13cab"
	for name, change := range map[string]func(*use, *csinode.Volume){
		"by its number": func(u *use, _ *csinode.Volume) { u.identities = nil },
		"by its UUID":   func(u *use, _ *csinode.Volume) { u.lun = 0 },
		"by its NGUID":  func(u *use, v *csinode.Volume) { u.lun, u.identities, v.NGUID = 0, []string{"eui." + nguid}, nguid },
		"by both": func(u *use, v *csinode.Volume) {
			u.lun, u.identities, v.NGUID = 0, append(u.identities, "eui."+nguid), nguid
		},
		"by its UUID alone":        func(u *use, _ *csinode.Volume) { u.identities = append(u.identities, "eui."+nguid) },
		"by an NGUID sent as UUID": func(u *use, v *csinode.Volume) { v.NamespaceUUID, v.NGUID = "", strings.ReplaceAll(u.id, "-", "") },
		"by a number, as it says nothing": func(u *use, v *csinode.Volume) {
			u.identities, v.NamespaceUUID = nil, ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u, s := newNVMe(t)
				share(u, s)
				change(&u, s.Namespaces[1])
				f.must(f.stage(u))
				f.must(f.stage(u))
				if v, _, _, found := f.node.MountedAt(u.staging()); !found || v != s.Namespaces[1] {
					t.Errorf("mounted is %+v", v)
				}
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

func TestASubsystemThatIsConnectedUnderAnotherNameIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newNVMe(t)
		f.node.ConnectByHand(subsystem("vol-1"), twoNVMe, "nqn.2026-01.org.example:other")
		f.refuses(f.stage(u), codes.FailedPrecondition, "ForeignPath: subsystem nqn.2026-01.org.example:vol-1 is also connected under the name nqn.2026-01.org.example:other")
	})
}

// TestANamespaceThatIsStagedIsNotGivenToAnotherVolume: a namespace's number is reused
// while the node still has the volume that had it.
func TestANamespaceThatIsStagedIsNotGivenToAnotherVolume(t *testing.T) {
	for name, sharing := range map[string]bool{"alone": false, "in a shared subsystem": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, first, s := newNVMe(t)
				third := share(first, s)
				f.must(f.stage(first))
				if sharing {
					f.must(f.stage(third))
				}
				f.must(f.publish(first, 1, false))
				s.Namespaces[1] = &csinode.Volume{Bytes: gibibyte, NamespaceUUID: foreignID}
				second := first
				second.id, second.identities = foreignID, []string{"uuid." + foreignID}
				f.refuses(f.stage(second), codes.FailedPrecondition, "InUse: namespace 1 of nqn.2026-01.org.example:vol-1 is volume gold/"+firstID+" on this node")
				f.refuses(f.stage(first), codes.FailedPrecondition, "is staged, but not usable, and is published at")
				f.must(f.unpublish(first, 1))
				f.must(f.unstage(first))
				if *s.Namespaces[1] != (csinode.Volume{Bytes: gibibyte, NamespaceUUID: foreignID}) {
					t.Errorf("the other volume was written: %+v", s.Namespaces[1])
				}
				f.must(f.stage(second))
				f.must(f.unstage(second))
				if sharing {
					f.must(f.unstage(third))
				}
				f.clean()
			})
		})
	}
}

func TestANamespaceThatWasDetachedWhileItWasStagedIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, s := newNVMe(t)
		u.attachment = "attachment-1"
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		s.Namespaces[1].Data, s.Namespaces[1].Elsewhere = "of another node", true
		u.attachment = "attachment-2"
		for range 2 {
			f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "was detached from the node while it was staged")
		}
		if err := f.node.Write(u.pod(1), "of this node"); err == nil {
			t.Error("the first pod can still write")
		}
		f.must(f.unpublish(u, 1))
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
		if s.Namespaces[1].Data != "of another node" {
			t.Errorf("the volume has %q", s.Namespaces[1].Data)
		}
	})
}

// TestASharedSubsystemIsNotCutOff: other volumes would lose what was written to them.
func TestASharedSubsystemIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, s := newNVMe(t)
		second := share(u, s)
		u.attachment = "attachment-1"
		f.must(f.stage(u))
		f.must(f.stage(second))
		f.must(f.publish(second, 1, false))
		s.Namespaces[1].Elsewhere = true
		u.attachment = "attachment-2"
		f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "alone: it shares its NVMe subsystem (volume gold/"+secondID+" is staged")
		f.refuses(f.unstage(u), codes.Unavailable, "cannot discard the pending writes of volume ")
		f.must(f.node.Write(second.pod(1), "written"))
		f.must(f.unpublish(second, 1))
		f.must(f.unstage(second))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestANamespaceGrows(t *testing.T) {
	for name, u := range map[string]func(*use){"ext4": func(*use) {}, "xfs": func(u *use) { u.filesystem = "xfs" }, "raw": func(u *use) { u.block = true }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, of, s := newNVMe(t)
				u(&of)
				f.must(f.stage(of))
				s.Namespaces[1].Bytes = 2 * gibibyte
				size, err := f.expand(of, 2*gibibyte)
				if f.must(err); size != 2*gibibyte || !of.block && s.Namespaces[1].FilesystemBytes != 2*gibibyte {
					t.Errorf("%d bytes, %+v", size, s.Namespaces[1])
				}
				_, err = f.expand(of, 3*gibibyte)
				f.refuses(err, codes.Internal, "at least 3221225472 are required")
				f.must(f.unstage(of))
				f.clean()
			})
		})
	}
}

func TestAPortalThatIsDownIsDoneWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, s := newNVMe(t)
		u.portals = []string{oneNVMe, twoNVMe}
		s.Down[oneNVMe] = true
		f.must(f.stage(u))
		if !strings.Contains(f.log.String(), "volume has fewer paths than it could") {
			t.Error(f.log.String())
		}
		delete(s.Down, oneNVMe)
		f.must(f.stage(u))
		s.Down[twoNVMe] = true
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAVolumeByNVMeIsUnstagedWithoutItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newNVMe(t)
		u.portals = []string{oneNVMe, twoNVMe}
		f.must(f.stage(u))
		f.node.RemoveFiles(stateDir)
		f.must(f.unstage(u))
		f.clean()
		f.must(f.stage(u))
		f.node.RemoveFiles(stateDir)
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestADiskOfTheNodeIsNotTakenForAVolume: only its mount is undone.
func TestADiskOfTheNodeIsNotTakenForAVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u, _ := newNVMe(t)
		f.node.Internal = true
		f.node.ConnectByHand(subsystem("vol-1"), oneNVMe, "")
		before := f.node.Left()
		f.node.MountByHand(f.node.Devices()[0], u.staging(), "ext4")
		f.must(f.unstage(u))
		if left := f.node.Left(); !slices.Equal(left, before) {
			t.Errorf("left %q, want %q", left, before)
		}
	})
}

func TestTenVolumesOfOneSubsystemAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, first, s := newNVMe(t)
		first.portals = []string{oneNVMe, twoNVMe}
		f.node.Delay = 10 * time.Millisecond
		volumes := []use{first}
		for i := 2; i <= 10; i++ {
			v := first
			v.id = fmt.Sprintf("0b1c5a52-3a3f-4a64-9a59-%012d", i)
			v.lun, v.identities = i, []string{"uuid." + v.id}
			s.Namespaces[i] = &csinode.Volume{Bytes: gibibyte, NamespaceUUID: v.id}
			volumes = append(volumes, v)
		}
		for _, call := range []func(use) error{f.stage, f.unstage} {
			var all sync.WaitGroup
			for _, v := range volumes {
				all.Go(func() {
					if err := call(v); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		f.clean()
		for id, v := range s.Namespaces {
			if v.UUID != v.NamespaceUUID {
				t.Errorf("namespace %d has the filesystem %s", id, v.UUID)
			}
		}
	})
}

func TestPublishContextsOfNVMe(t *testing.T) {
	c := wire.Connection{Protocol: protocolNVMeOF, Identities: []string{"uuid.a", "eui.b"}, Paths: []wire.Path{{Portal: oneNVMe, Target: "nqn.a"}}}
	context, err := c.PublishContext()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := wire.ParsePublishContext(context); err != nil || !slices.Equal(back.Identities, c.Identities) {
		t.Errorf("%+v, %v", back, err)
	}
	c.Identities = nil
	if context, err = c.PublishContext(); err != nil || slices.Contains(slices.Collect(maps.Keys(context)), "identities") {
		t.Errorf("%v, %v", context, err)
	}
}
