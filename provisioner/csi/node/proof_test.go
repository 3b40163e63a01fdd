package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// device returns the device of a staged volume.
func (f *fixture) device(u use) string {
	f.t.Helper()
	r, err := f.service.state.load(u.handle())
	f.must(err)
	if r == nil {
		f.t.Fatal("the volume has no record")
	}
	return r.Device
}

// exchange gives the name of a volume's only disk to a disk of another volume, as the
// kernel does with a disk that it finds after the first one has gone.
func (f *fixture) exchange(device string, by *csinode.Volume) {
	f.node.RemoveDisks(device)
	f.add("vol-2", by)
	_, session := f.node.LogIn(iqn("vol-2"), onePortal, "iqn.2026-01.org.example:somebody")
	if got := f.node.Find(session, 1); got != device {
		f.t.Fatalf("the other disk is %s, not %s", got, device)
	}
}

// TestADiskWhoseNameChangesHandsWhileItIsStagedIsNotUsed: the disk goes before a
// program of staging opens it by its name, which another volume's disk then has.
func TestADiskWhoseNameChangesHandsWhileItIsStagedIsNotUsed(t *testing.T) {
	for _, filesystem := range []string{"ext4", "xfs"} {
		for _, tool := range []string{"e2fsck", "mount"} {
			if filesystem == "xfs" && tool == "e2fsck" {
				continue
			}
			t.Run(filesystem+" before "+tool, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					f.node.Reuse, u.filesystem = true, filesystem
					f.must(f.stage(u))
					device := f.device(u)
					f.must(f.unstage(u))
					theirs := &csinode.Volume{Bytes: gibibyte, Filesystem: filesystem, UUID: foreignID, FilesystemBytes: gibibyte / 2, Identity: "6002"}
					f.node.Before = func(command string) error {
						if strings.HasPrefix(command, tool) {
							f.node.Before = nil
							f.exchange(device, theirs)
						}
						return nil
					}
					if err := f.stage(u); err == nil {
						t.Error("the other volume's disk was staged")
					}
					if _, _, _, mounted := f.node.MountedAt(u.staging()); mounted {
						t.Error("the other volume is still mounted")
					}
					if theirs.FilesystemBytes != gibibyte/2 {
						t.Error("the other volume's filesystem was grown")
					}
					f.unharmed()
				})
			})
		}
	}
}

// TestADiskWhoseNameChangesHandsBeforeItIsCheckedIsNotChecked: the superblock was the
// volume's, but e2fsck would repair the other volume's filesystem.
func TestADiskWhoseNameChangesHandsBeforeItIsCheckedIsNotChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.node.Reuse = true
		f.must(f.stage(u))
		device := f.device(u)
		f.must(f.unstage(u))
		f.node.AfterRead = func(string) {
			f.node.AfterRead = nil
			f.exchange(device, &csinode.Volume{Bytes: gibibyte, Filesystem: "ext4", UUID: foreignID, FilesystemBytes: gibibyte, Identity: "6002"})
		}
		before := len(f.node.Calls())
		if err := f.stage(u); err == nil {
			t.Error("the other volume's disk was staged")
		}
		for _, call := range f.node.Calls()[before:] {
			if strings.HasPrefix(call, "e2fsck") || strings.HasPrefix(call, "mount") {
				t.Errorf("ran %q", call)
			}
		}
	})
}

// forgetMap makes a record one of an earlier release, which did not write the map's ID.
func (f *fixture) forgetMap(u use) {
	f.t.Helper()
	r, err := f.service.state.load(u.handle())
	f.must(err)
	r.Map = ""
	f.must(f.service.state.save(r))
}

// hang makes umount take a mount out of the table and then hang, as it does when the
// filesystem cannot be written to its device.
func (f *fixture) hang(u use, device string) {
	f.node.Before = func(command string) error {
		if !strings.HasPrefix(command, "umount") {
			return nil
		}
		if f.node.Hidden[device] {
			return fmt.Errorf("%s is still hanging from an earlier attempt", command)
		}
		f.node.UnmountByHand(u.staging())
		f.node.Hidden[device] = true
		return fmt.Errorf("%s did not finish within 2m0s", command)
	}
}

// TestAnUnmountThatHangsIsNotAnswered: what the filesystem has not written yet reaches
// the volume when its paths come back, even if another node has it by then.
func TestAnUnmountThatHangsIsNotAnswered(t *testing.T) {
	for name, way := range map[string]func(*use, *csinode.Node){"iscsi": ways["multipath"], "one path": ways["ext4"], "fibre channel": ways["fibre channel"], "nvme": ways["nvme by two portals"]} {
		for _, vanished := range []bool{false, true} {
			if vanished && !strings.HasSuffix(name, "i") && name != "fibre channel" {
				continue // without a map, what is written to a disk that is gone is lost
			}
			t.Run(fmt.Sprintf("%s, without its disks: %t", name, vanished), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					way(&u, f.node)
					f.must(f.stage(u))
					device := f.device(u)
					if vanished {
						f.node.RemoveDisks(device)
					}
					f.hang(u, device)
					f.refuses(f.unstage(u), codes.Unavailable, "did not finish within")
					for range 2 {
						f.start()
						f.forgetMap(u) // as after an upgrade
						f.refuses(f.unstage(u), codes.Unavailable, "something still uses "+device)
					}
					// The unmount ends.
					f.node.Before, f.node.Hidden[device] = nil, false
					f.must(f.unstage(u))
					f.clean()
				})
			})
		}
	}
}

// TestAMapWithoutPathsIsFailedBeforeItIsUnmounted: nothing that it holds can be written,
// and whoever waits for that cannot be killed.
func TestAMapWithoutPathsIsFailedBeforeItIsUnmounted(t *testing.T) {
	for name, way := range map[string]func(*use, *csinode.Node){"iscsi": ways["multipath"], "fibre channel": ways["fibre channel"], "raw": ways["raw by multipath"]} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				way(&u, f.node)
				f.node.Queues = true
				f.must(f.stage(u))
				f.node.RemoveDisks(f.device(u))
				f.must(f.unstage(u))
				if waits := f.node.Waits(); len(waits) > 0 {
					t.Errorf("waits that cannot be interrupted: %q", waits)
				}
				f.clean()
			})
		})
	}
}

// TestNothingReadsAMapThatHoldsEverythingBack: paths are there, but none answers.
func TestNothingReadsAMapThatHoldsEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		ways["multipath"](&u, f.node)
		f.node.Queues = true
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		device := f.device(u)
		for _, arrange := range []func(){func() { f.target().Gone = true }, func() { f.node.RemoveDisks(device) }} {
			arrange()
			if err := f.stage(u); err == nil {
				t.Error("a volume without a path counts as staged")
			}
		}
		if waits := f.node.Waits(); len(waits) > 0 {
			t.Errorf("waits that cannot be interrupted: %q", waits)
		}
	})
}

func TestAFailedUnmountIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.node.Before = func(command string) error {
			if strings.HasPrefix(command, "umount") {
				return errors.New("umount could not be started")
			}
			return nil
		}
		f.refuses(f.unstage(u), codes.Unavailable, "umount could not be started")
		f.node.Before = nil
		if !slices.ContainsFunc(f.node.Left(), func(l string) bool { return strings.HasPrefix(l, "mount ") }) {
			t.Error("the volume is no longer mounted")
		}
		f.must(f.unstage(u))
		f.clean()
	})
}
