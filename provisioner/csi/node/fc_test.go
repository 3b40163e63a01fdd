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

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// newFC returns a node with multipathd and a volume with four paths.
func newFC(t *testing.T) (*fixture, use) {
	f, u := newFixture(t), plain()
	byFC(&u, f.node)
	f.node.Multipathd = true
	return f, u
}

func (f *fixture) fcTarget(i int) *csinode.FCTarget { return f.node.FCTargets["0x"+fcTargets[i]] }

func TestTheNodeSaysItsFibreChannelPorts(t *testing.T) {
	const names = "v1 node-1 i=" + csinode.Initiator
	for name, test := range map[string]struct {
		change func(*csinode.Node)
		want   string
	}{
		"two ports":       {func(*csinode.Node) {}, names + " w=10000000c9a1b2c1,10000000c9a1b2c2 a=2,2"},
		"one is offline":  {func(n *csinode.Node) { n.FCHosts[0].State = "Linkdown" }, names + " w=10000000c9a1b2c2 a=2"},
		"no node name":    {func(n *csinode.Node) { n.FCHosts[1].NodeName = "0xffffffffffffffff" }, names + " w=10000000c9a1b2c1,10000000c9a1b2c2"},
		"one has no name": {func(n *csinode.Node) { n.FCHosts[0].Name = "0x0" }, names + " w=10000000c9a1b2c2 a=2"},
		"none is online": {func(n *csinode.Node) {
			n.FCHosts[0].State, n.FCHosts[1].State = "Linkdown", "Offline"
		}, names},
		"too many for a node ID": {func(n *csinode.Node) {
			for i := range 12 {
				n.FCHosts = append(n.FCHosts, &csinode.FCHost{Number: 20 + i, Name: fmt.Sprintf("0x20000000000000%02d", i+1), State: "Online"})
			}
		}, names},
	} {
		t.Run(name, func(t *testing.T) {
			f, u := newFixture(t), plain()
			byFC(&u, f.node)
			test.change(f.node)
			response, err := f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
			if err != nil || response.GetNodeId() != test.want {
				t.Errorf("%q, %v; want %q", response.GetNodeId(), err, test.want)
			}
		})
	}
	f, u := newFC(t)
	f.node.Missing["iscsiadm"] = true
	if response, err := f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{}); err != nil || !strings.HasPrefix(response.GetNodeId(), "v1 node-1 w=") {
		t.Errorf("without iSCSI: %q, %v", response.GetNodeId(), err)
	}
	f.node.FCHosts[0].State, f.node.FCHosts[1].State = "Linkdown", "Offline"
	_, err := f.service.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	f.refuses(err, codes.FailedPrecondition, "no Fibre Channel port of the node is online: 10000000c9a1b2c1 is Linkdown, 10000000c9a1b2c2 is Offline; look at its cables and the switches")
	f.refuses(f.stage(u), codes.Internal, "no Fibre Channel port of the node is online")
	f.node.FCHosts = nil
	f.refuses(f.stage(u), codes.Internal, "the node has no Fibre Channel port; /sys/class/fc_host lists none")
	f.clean()
}

// TestEveryReachedPortIsScannedForOneLUN: no other LUN or port is scanned, although the
// driver names pairs that the zones do not connect.
func TestEveryReachedPortIsScannedForOneLUN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		export(f.node, &csinode.Volume{Bytes: gibibyte, UUID: foreignID, Filesystem: "ext4"}, 7)
		f.must(f.stage(u))
		r, err := f.service.state.load(u.handle())
		f.must(err)
		var addresses []string
		for _, d := range r.Disks {
			addresses = append(addresses, d.Address.String())
		}
		want := []string{"5:0:0:16684", "5:0:1:16684", "6:0:2:16684", "6:0:3:16684"}
		if !slices.Equal(addresses, want) || !strings.HasPrefix(r.Device, "dm-") || len(f.node.Devices()) != 4 {
			t.Errorf("disks %q, device %s, on the node %q", addresses, r.Device, f.node.Devices())
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestWhatIsNotReachedIsNamed: an operator can look up port names, but not numbers.
func TestWhatIsNotReachedIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		arrange func(*fixture, *use)
		code    codes.Code
		want    string
	}{
		"no zone": {func(f *fixture, _ *use) {
			for i := range fcTargets[1:] {
				f.fcTarget(i).Gone = true
			}
			f.fcTarget(3).Gone = true
			f.node.FCTargets["0x500a0981aaaaaa01"] = &csinode.FCTarget{Zones: []string{"0x" + fcPorts[0]}}
			f.node.Fabric()
		}, codes.Internal, "none of the storage's ports 500a098180feeb01, 500a098190feeb01, 500a098280feeb01, 500a098290feeb01 is visible from the node's ports 10000000c9a1b2c1, 10000000c9a1b2c2 after 30s; check the switches' zones. Visible ports: 500a0981aaaaaa01"},
		"no masking": {func(f *fixture, _ *use) { f.unexport() }, codes.Internal,
			"the storage exposes no disk as LUN 16684 of port 500a098180feeb01 from port 10000000c9a1b2c1 (5:0:0:16684); check the array's masking"},
		"other HBAs": {func(_ *fixture, u *use) { u.paths[0].Portal, u.paths = "10000000c9000001", u.paths[:1] }, codes.Internal,
			"the storage exposes the volume to the ports 10000000c9000001, but the node has 10000000c9a1b2c1, 10000000c9a1b2c2; if its HBAs were replaced"},
		"the port that is named is down": {func(f *fixture, u *use) {
			u.paths = []wire.Path{{Portal: fcPorts[0], Target: fcTargets[0], LUN: flatLUN}}
			f.node.FCHosts[0].State = "Linkdown"
			f.node.Fabric()
		}, codes.Internal, "none of the node's ports that the storage exposes the volume to is online: 10000000c9a1b2c1 is Linkdown"},
		"a name that is none": {func(_ *fixture, u *use) { u.paths[0].Target = "500A098180FEEB01" }, codes.InvalidArgument,
			`Malformed: "500A098180FEEB01" is not the name of a Fibre Channel port`},
		"an initiator that is none": {func(_ *fixture, u *use) { u.paths[0].Portal = fcPorts[0] + "," }, codes.InvalidArgument, `Malformed: "" is not the name`},
		"a LUN that is none":        {func(_ *fixture, u *use) { u.paths[0].LUN = 1 << 40 }, codes.InvalidArgument, "is not a LUN"},
		"another filesystem": {func(f *fixture, _ *use) { f.volume().Filesystem, f.volume().UUID = "ext4", foreignID }, codes.FailedPrecondition,
			"WrongVolume: "},
		"a smaller disk": {func(f *fixture, _ *use) { f.volume().Bytes /= 2 }, codes.FailedPrecondition, "WrongDisk: "},
		"ports with different disks": {func(f *fixture, _ *use) {
			f.fcTarget(3).LUNs[flatLUN] = &csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}
		}, codes.FailedPrecondition, "lead to different disks"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFC(t)
				test.arrange(f, &u)
				f.refuses(f.stage(u), test.code, test.want)
				f.clean()
			})
		})
	}
}

func (f *fixture) unexport() {
	for _, t := range f.node.FCTargets {
		delete(t.LUNs, flatLUN)
	}
}

// TestInitiatorsThatTheArrayDoesNotNameAreNotUsed: for them, the LUN may be another
// volume.
func TestInitiatorsThatTheArrayDoesNotNameAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		other := &csinode.Volume{Bytes: gibibyte}
		f.fcTarget(2).LUNs[flatLUN], f.fcTarget(3).LUNs[flatLUN] = other, other
		for i := range u.paths {
			u.paths[i].Portal = fcPorts[0]
		}
		f.must(f.stage(u))
		if got := len(f.node.Devices()); got != 2 {
			t.Errorf("%d disks", got)
		}
		f.must(f.unstage(u))
		f.clean()
		if *other != (csinode.Volume{Bytes: gibibyte}) {
			t.Errorf("the other volume is %+v", other)
		}
	})
}

func TestPathsWithLUNsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		v := f.volume()
		v.Identity = "600000000000000f"
		for i := range 2 {
			f.fcTarget(2 + i).LUNs = map[int]*csinode.Volume{80: v}
			u.paths[2+i].LUN = 80
		}
		f.must(f.stage(u))
		if got := len(f.node.Devices()); got != 4 {
			t.Errorf("%d disks", got)
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestDisksThatTheKernelFoundByItselfAreMadeAnew: the kernel may have the size of an
// earlier volume or, without multipathd, several disks for one volume.
func TestDisksThatTheKernelFoundByItselfAreMadeAnew(t *testing.T) {
	for _, multipath := range []bool{true, false} {
		t.Run(fmt.Sprintf("multipathd %t", multipath), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFC(t)
				f.node.Multipathd = multipath
				f.loseAll()
				f.findAll()
				if got := len(f.node.Devices()); got != 4 {
					t.Fatalf("%d disks", got)
				}
				f.volume().Bytes *= 2
				f.must(f.stage(u))
				want := map[bool]int{true: 4, false: 1}[multipath]
				if got := len(f.node.Devices()); got != want || f.volume().FilesystemBytes != 2*gibibyte {
					t.Errorf("%d disks, %+v", got, f.volume())
				}
				if warned := strings.Contains(f.log.String(), "multipathd is not running, so the volume has only one of its paths"); warned == multipath {
					t.Error(f.log.String())
				}
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestAPortThatIsZonedLaterIsWaitedFor: Cinder may make the zone for the volume.
func TestAPortThatIsZonedLaterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		f.node.Greedy = true
		f.loseAll()
		for i := range fcTargets {
			time.AfterFunc(time.Duration(3000+50*i)*time.Millisecond, func() { f.node.ShowPorts(true, "0x"+fcTargets[i]) })
		}
		f.must(f.stage(u))
		time.Sleep(time.Second)
		f.must(f.stage(u))
		r, err := f.service.state.load(u.handle())
		if f.must(err); len(r.Disks) != 4 {
			t.Errorf("disks %+v", r.Disks)
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestPortsThatAreLostMeanwhile: the next attempt finds them.
func TestPortsThatAreLostMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		f.node.Greedy, f.node.Delay = true, time.Second
		f.loseAll()
		f.findAll()
		// At that time, the map of the disks that the kernel found is being flushed.
		time.AfterFunc(500*time.Millisecond, f.loseAll)
		f.refuses(f.stage(u), codes.Internal, "the storage's ports 500a098180feeb01, 500a098190feeb01, 500a098280feeb01, 500a098290feeb01 were lost just now")
		f.findAll()
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestFibreChannelPathsThatAreDownAreDoneWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		f.fcTarget(0).LUNs = nil
		f.fcTarget(1).Gone = true
		f.node.Fabric()
		f.must(f.stage(u))
		if got := len(f.node.Devices()); got != 2 || !strings.Contains(f.log.String(), "volume has fewer paths than it could") {
			t.Errorf("%d disks; %s", got, f.log.String())
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestPathsThatComeBackAreTheVolumes: after an outage of a switch, the kernel has other
// names for the disks, and their earlier names may belong to other disks.
func TestPathsThatComeBackAreTheVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		before := f.node.Devices()
		f.fcTarget(0).Gone, f.fcTarget(1).Gone = true, true
		f.node.Fabric()
		f.must(f.stage(u))
		f.volume().Bytes = 2 * gibibyte
		if size, err := f.expand(u, 2*gibibyte); err != nil || size != 2*gibibyte {
			t.Errorf("by two paths: %d bytes, %v", size, err)
		}
		f.fcTarget(0).Gone, f.fcTarget(1).Gone = false, false
		f.node.Fabric()
		f.must(f.stage(u))
		r, err := f.service.state.load(u.handle())
		f.must(err)
		if now := f.node.Devices(); len(r.Disks) != 4 || slices.Equal(now, before) {
			t.Errorf("disks %+v; the node had %q, and has %q", r.Disks, before, now)
		}
		f.volume().Bytes = 3 * gibibyte
		if size, err := f.expand(u, 3*gibibyte); err != nil || size != 3*gibibyte || f.volume().FilesystemBytes != 3*gibibyte {
			t.Errorf("by four paths: %d bytes, %v, %+v", size, err, f.volume())
		}
		f.must(f.node.Write(u.pod(1), "still there"))
		f.must(f.unpublish(u, 1))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestUnstagingAfterAnOutage: the disks and maps that are left are removed.
func TestUnstagingAfterAnOutage(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, *use){
		"all paths are lost":      func(f *fixture, _ *use) { f.loseAll() },
		"all paths were lost":     func(f *fixture, _ *use) { f.loseAll(); f.findAll() },
		"all paths are blocked":   func(f *fixture, _ *use) { f.blockAll() },
		"the volume is not shown": func(f *fixture, _ *use) { f.unexport() },
		"the record is lost":      func(f *fixture, _ *use) { f.node.RemoveFiles(stateDir) },
		"a path that was down is there now": func(f *fixture, _ *use) {
			f.loseAll()
			f.findAll()
			f.node.Multipathd = false
		},
		"an HBA has no name any more": func(f *fixture, _ *use) { f.node.FCHosts[0].Name = "0x0" },
	} {
		for _, multipath := range []bool{true, false} {
			if name == "a path that was down is there now" && multipath {
				continue
			}
			t.Run(fmt.Sprintf("%s, multipath %t", name, multipath), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFC(t)
					f.node.Multipathd = multipath
					f.must(f.stage(u))
					arrange(f, &u)
					f.start()
					f.must(f.unstage(u))
					f.clean()
				})
			})
		}
	}
}

func (f *fixture) loseAll() { f.node.ShowPorts(false) }

func (f *fixture) findAll() { f.node.ShowPorts(true) }

func (f *fixture) blockAll() {
	for _, target := range fcTargets {
		f.node.Block("0x" + target)
	}
}

// TestALUNOfAStagedVolumeIsNotGivenToAnother: the array gave the LUN away too early.
func TestALUNOfAStagedVolumeIsNotGivenToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, first := newFC(t)
		f.must(f.stage(first))
		f.must(f.publish(first, 1, false))
		other := &csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}
		export(f.node, other, flatLUN)
		second := first
		second.id = secondID
		f.refuses(f.stage(second), codes.FailedPrecondition, "InUse: LUN 16684 of target 500a098180feeb01 is volume gold/"+firstID)
		f.must(f.unpublish(first, 1))
		f.must(f.unstage(first))
		if *other != (csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}) {
			t.Errorf("the other volume was written: %+v", other)
		}
		f.must(f.stage(second))
		f.must(f.unstage(second))
		f.clean()
	})
}

// TestAVolumeByFibreChannelThatWasDetachedIsCutOff: all paths are cut off, including
// those that came back.
func TestAVolumeByFibreChannelThatWasDetachedIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		u.attachment = "attachment-1"
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.fcTarget(0).Gone = true
		f.node.Fabric()
		f.fcTarget(0).Gone = false
		f.node.Fabric()
		f.volume().Data, f.volume().Elsewhere = "of another node", true
		u.attachment = "attachment-2"
		f.refuses(f.publish(u, 2, false), codes.FailedPrecondition, "was detached from the node while it was staged")
		if err := f.node.Write(u.pod(1), "of this node"); err == nil {
			t.Error("the first pod can still write")
		}
		f.must(f.unpublish(u, 1))
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestTheNumbersOfAnHBAThatIsGoneAreNotTheVolumes: each iSCSI session has its own SCSI
// host, whose number may be that of the HBA.
func TestTheNumbersOfAnHBAThatIsGoneAreNotTheVolumes(t *testing.T) {
	for name, outdated := range map[string]bool{"unstaged": false, "cut off": true} {
		t.Run(name, func(t *testing.T) {
			f, u := newFC(t)
			f.add("foreign", &csinode.Volume{Bytes: gibibyte})
			number, session := f.node.LogIn(iqn("foreign"), onePortal, csinode.Initiator)
			disk := f.node.Find(session, 1)
			at := host.Address{Host: number, LUN: 1}
			r := &record{
				Volume: u.handle(), Protocol: protocolFibreChannel, Paths: []wire.Path{{Portal: "10000000c9000001", Target: fcTargets[0], LUN: 1}},
				StagingPath: u.staging(), Disks: []host.Disk{{Address: at, Name: disk, Identity: "naa.1", Bytes: gibibyte}}, Device: disk, Staged: true,
			}
			f.must(f.service.state.save(r))
			if outdated {
				f.must(f.service.protocols[protocolFibreChannel].cutOff(t.Context(), r))
			}
			if _, err := f.service.host.Inspect(t.Context(), at, disk); err != nil {
				t.Errorf("the other disk: %v", err)
			}
			f.must(f.unstage(u))
			if !slices.Contains(f.node.Devices(), disk) {
				t.Error("the other disk was removed")
			}
		})
	}
}

func TestTenVolumesOfOneArrayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, first := newFC(t)
		f.node.Delay, f.node.ScanDelay = 10*time.Millisecond, 100*time.Millisecond
		volumes := []use{first}
		for i := 2; i <= 10; i++ {
			v := first
			v.id, v.paths = fmt.Sprintf("0b1c5a52-3a3f-4a64-9a59-%012d", i), fcWays(i)
			export(f.node, &csinode.Volume{Bytes: gibibyte}, i)
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
		for _, v := range volumes[1:] {
			if got := f.fcTarget(0).LUNs[v.paths[0].LUN].UUID; got != v.id {
				t.Errorf("the filesystem of %s is %s", v.id, got)
			}
		}
	})
}

// TestANewDiskThatGoesIsNotLookedForByItsName: by then, another disk may have that
// name.
func TestANewDiskThatGoesIsNotLookedForByItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		f.node.Multipathd, f.node.Reuse, f.node.Early = false, true, 100
		u.paths = u.paths[:1]
		blank := csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}
		other := blank
		time.AfterFunc(time.Second, func() {
			f.loseAll()
			f.node.Early = 0
			f.node.FCTargets["0x500a0981aaaaaa01"] = &csinode.FCTarget{LUNs: map[int]*csinode.Volume{7: &other}, Zones: []string{"0x" + fcPorts[1]}}
			f.node.Fabric()
		})
		f.refuses(f.stage(u), codes.Internal, "sdab is no longer at 5:0:0:16684")
		if other != blank {
			t.Errorf("the other volume was written: %+v", other)
		}
		f.unharmed()
	})
}

// TestADiskThatGoesBeforeItIsFormattedIsNotFormatted: another disk may have its name.
func TestADiskThatGoesBeforeItIsFormattedIsNotFormatted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFC(t)
		f.node.Reuse, f.node.Delay = true, time.Second
		u.paths = u.paths[:1]
		blank := csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}
		other := blank
		time.AfterFunc(2500*time.Millisecond, func() {
			f.loseAll()
			f.node.FCTargets["0x500a0981aaaaaa01"] = &csinode.FCTarget{LUNs: map[int]*csinode.Volume{7: &other}, Zones: []string{"0x" + fcPorts[1]}}
			f.node.Fabric()
		})
		f.refuses(f.stage(u), codes.Internal, "sdab is no longer at 5:0:0:16684")
		if other != blank {
			t.Errorf("the other volume was written: %+v", other)
		}
		f.unharmed()
	})
}

// TestARawVolumeWhoseDiskIsGoneIsNotPublished: another disk may have its name, and
// would be given to the pod.
func TestARawVolumeWhoseDiskIsGoneIsNotPublished(t *testing.T) {
	for name, readOnly := range map[string]bool{"for writing": false, "for reading": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFC(t)
				f.node.Multipathd, f.node.Reuse, u.block = false, true, true
				f.must(f.stage(u))
				f.loseAll()
				other := &csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}
				f.node.FCTargets["0x500a0981aaaaaa01"] = &csinode.FCTarget{LUNs: map[int]*csinode.Volume{7: other}, Zones: []string{"0x" + fcPorts[1]}}
				f.node.Fabric()
				f.refuses(f.publish(u, 1, readOnly), codes.Internal, "sdab is no longer at 5:0:0:16684")
				if v, _, _, found := f.node.MountedAt(u.pod(1)); found {
					t.Errorf("the pod has %+v", v)
				}
				if f.service.host.IsReadOnly("sdab") {
					t.Error("the other disk was made read-only")
				}
				f.unharmed()
			})
		})
	}
}

// TestTheEmptyMapOfAnotherVolumeStays: an earlier attempt has removed the volume's own
// map, and the kernel gave its name to the next one.
func TestTheEmptyMapOfAnotherVolumeStays(t *testing.T) {
	for name, block := range map[string]bool{"raw": true, "mounted": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFC(t)
				f.must(f.stage(u))
				other := u
				other.id, other.paths, other.block = secondID, fcWays(7), block
				export(f.node, &csinode.Volume{Bytes: gibibyte, Identity: "600000000000000f"}, 7)
				f.must(f.stage(other))
				f.must(f.publish(other, 1, false))
				its, err := f.service.state.load(other.handle())
				f.must(err)
				f.must(f.unstage(u))
				r := *its
				r.Volume, r.StagingPath, r.Paths, r.Disks, r.Targets, r.Staged = u.handle(), u.staging(), u.paths, nil, nil, false
				f.must(f.service.state.save(&r))
				f.loseAll()
				f.must(f.unstage(u))
				if left := f.node.Left(); !slices.Contains(left, "map "+its.Device) {
					t.Errorf("left: %q", left)
				}
			})
		})
	}
}
