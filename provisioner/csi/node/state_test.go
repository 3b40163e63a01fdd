package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// unreadable are contents of a state file that this plugin cannot use.
var unreadable = map[string]string{
	"damaged":            "{",
	"of another shape":   `{"version": 2, "boot": "boot-1", "disks": "none"}`,
	"of a later release": `{"version": 2, "boot": "boot-1", "volume": "gold/` + secondID + `", "protocol": "iscsi", "disks": [{"address": {"host": 500, "lun": 9}, "name": "sdx", "identity": "naa.9/9", "bytes": 1}], "staged": true}`,
}

// TestAnUnreadableStateFileConcernsItsVolumeOnly: a rollback of the DaemonSet leaves
// records of a later release.
func TestAnUnreadableStateFileConcernsItsVolumeOnly(t *testing.T) {
	for name, content := range unreadable {
		for wayName, way := range ways {
			t.Run(name+", "+wayName, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					way(&u, f.node)
					other := plain()
					other.id = secondID
					file := f.service.state.file(kindVolumes, other.handle())
					f.node.PutFile(file, content)
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
					f.must(f.unpublish(u, 1))
					f.must(f.unstage(u))
					f.refuses(f.unstage(other), codes.Unavailable, "state file")
					if _, err := f.service.Staged(); err == nil {
						t.Error("the volumes were counted though not all are known")
					}
					if f.node.Files()[file] != content {
						t.Error("the state file is gone")
					}
					f.node.RemoveFiles(file)
					f.clean()
				})
			})
		}
	}
}

// TestTheLUNOfALaterReleasesRecordIsItsVolumes: what is known of it counts.
func TestTheLUNOfALaterReleasesRecordIsItsVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.block = true
		f.must(f.stage(u))
		file := f.service.state.file(kindVolumes, u.handle())
		f.node.PutFile(file, strings.Replace(f.node.Files()[file], `"version": 1`, `"version": 2, "more": "of it"`, 1))
		second := u
		second.id = secondID
		f.refuses(f.stage(second), codes.FailedPrecondition, "InUse: LUN 1 of target")
		if len(f.node.Devices()) != 1 {
			t.Error("the disk is gone")
		}
	})
}

func TestADamagedStateFileDoesNotOutliveTheBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for _, kind := range []string{kindVolumes, kindFormatting, kindConnections} {
			f.node.PutFile(f.service.state.file(kind, "damaged"), "{")
		}
		f.service.Tidy(context.Background())
		if files := f.node.Files(); len(files) != 4 {
			t.Errorf("files of this boot are gone: %v", files)
		}
		time.Sleep(time.Hour)
		f.node.Reboot("boot-2")
		f.start()
		f.service.Tidy(context.Background())
		if files := f.node.Files(); len(files) != 1 {
			t.Errorf("files: %v", files)
		}
	})
}

// TestAFullDiskKeepsNothing: the node's disk has room for no state file, while pods are
// evicted because of just that.
func TestAFullDiskKeepsNothing(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				way(&u, f.node)
				f.must(f.stage(u))
				f.must(f.publish(u, 1, false))
				f.node.Full = true
				if err := f.publish(u, 2, false); !errors.Is(err, syscall.ENOSPC) && !strings.Contains(fmt.Sprint(err), "no space") {
					t.Errorf("a pod was started: %v", err)
				}
				f.must(f.unpublish(u, 1))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestAPowerLossLeavesNoPasswords: open-iscsi's records outlive it.
func TestAPowerLossLeavesNoPasswords(t *testing.T) {
	for name, after := range map[string]func(*fixture, use) error{
		"the plugin starts":            func(f *fixture, _ use) error { f.service.Tidy(context.Background()); return nil },
		"the volume is unstaged":       (*fixture).unstage,
		"the volume gets another path": nil,
	} {
		for _, multipath := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, multipath %t", name, multipath), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					if multipath {
						f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal}
					}
					f.must(f.stage(u))
					f.node.Reboot("boot-2")
					f.start()
					if after == nil {
						f.node.Targets[iqn("vol-2")] = f.node.Targets[iqn("vol-1")]
						u.target = "vol-2"
						f.must(f.stage(u))
						f.must(f.unstage(u))
					} else {
						f.must(after(f, u))
					}
					f.clean()
				})
			})
		}
	}
}

// TestTheRecordOfAnEarlierBootIsKeptUntilItsPasswordsAreGone: it alone names the targets.
func TestTheRecordOfAnEarlierBootIsKeptUntilItsPasswordsAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.node.Reboot("boot-2")
		f.start()
		f.node.Missing["iscsiadm"] = true
		f.service.Tidy(context.Background())
		f.refuses(f.unstage(u), codes.Unavailable, "iscsiadm is not installed")
		f.node.Missing["iscsiadm"] = false
		f.service.Tidy(context.Background())
		f.clean()
	})
}

// TestADiskOfAStrayScanEndsWithItsSession: otherwise session and password would stay.
func TestADiskOfAStrayScanEndsWithItsSession(t *testing.T) {
	for name, used := range map[string]bool{"unused": false, "in use": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				f.target().LUNs[2] = &csinode.Volume{Bytes: gibibyte, Identity: "6002"}
				f.must(f.stage(u))
				r, err := f.service.state.load(u.handle())
				f.must(err)
				f.must(f.node.Set(context.Background(), fmt.Sprintf("/sys/class/scsi_host/host%d/scan", r.Disks[0].Address.Host), "0 0 2"))
				stray := f.node.Devices()[1]
				f.node.Hidden[stray] = used
				f.must(f.unstage(u))
				if used {
					if devices := f.node.Devices(); len(devices) != 1 || devices[0] != stray {
						t.Errorf("disks: %q", devices)
					}
					f.unharmed()
					return
				}
				f.clean()
			})
		})
	}
}

// TestARecordThatACallWritesIsNotTidiedAway: the call replaces the record of an earlier
// boot while the plugin starts.
func TestARecordThatACallWritesIsNotTidiedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		f.must(f.stage(u))
		f.node.Reboot("boot-2")
		f.start()
		release, err := f.service.state.lock(context.Background(), "volume", u.handle(), false)
		f.must(err)
		f.service.Tidy(context.Background())
		if _, kept := f.node.Files()[f.service.state.file(kindVolumes, u.handle())]; !kept {
			t.Error("the record is gone")
		}
		release()
		f.service.Tidy(context.Background())
		f.clean()
	})
}
