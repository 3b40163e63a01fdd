package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

func encryptedVolume() use {
	u := plain()
	encrypt(&u, 1)
	return u
}

// TestANewVolumeIsEncryptedAsCinderSays: os-brick opens it, and its header names it.
func TestANewVolumeIsEncryptedAsCinderSays(t *testing.T) {
	for _, version := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			encrypt(&u, version)
			f.must(f.stage(u))
			if v := f.volume(); v.LUKS == nil || *v.LUKS != (csinode.LUKS{Version: version, UUID: firstID, Passphrase: passphrase, Cipher: "aes-xts-plain64", KeyBits: "256"}) || v.UUID != firstID {
				t.Errorf("the volume is %+v, %+v", v, v.LUKS)
			}
			if !slices.Contains(f.observed, "step open") {
				t.Errorf("observed %q", f.observed)
			}
			f.must(f.unstage(u))
			f.clean()
		})
	}
}

// TestWhatAKeyDoesNotProveIsRefused has a row for every check of an encrypted volume.
func TestWhatAKeyDoesNotProveIsRefused(t *testing.T) {
	header := func(id string) *csinode.LUKS { return &csinode.LUKS{Version: 1, UUID: id, Passphrase: passphrase} }
	for name, c := range map[string]struct {
		arrange func(*fixture, *use)
		code    codes.Code
		text    string
	}{
		"a wrong key": {func(f *fixture, u *use) { f.volume().LUKS, u.passphrase = header(firstID), "00" },
			codes.FailedPrecondition, "WrongKey: the volume's key does not open "},
		"no key": {func(_ *fixture, u *use) { u.passphrase = "" }, codes.Unavailable, "the volume's Secret has no key of it for node node-1"},
		"another volume's header and filesystem": {func(f *fixture, _ *use) {
			f.volume().LUKS, f.volume().Filesystem, f.volume().UUID = header(foreignID), "ext4", foreignID
		}, codes.FailedPrecondition, "WrongVolume: "},
		"a header that nobody knows, and nothing inside": {func(f *fixture, _ *use) { f.volume().LUKS = header(foreignID) },
			codes.FailedPrecondition, "such a volume is never formatted"},
		"data inside": {func(f *fixture, _ *use) { f.volume().LUKS, f.volume().Junk = header(firstID), true },
			codes.FailedPrecondition, "NotEmpty: "},
		"a filesystem without encryption": {func(f *fixture, _ *use) { f.volume().Filesystem, f.volume().UUID = "ext4", firstID },
			codes.FailedPrecondition, "holds ext4 without encryption; nothing was changed"},
		"data without encryption": {func(f *fixture, _ *use) { f.volume().Junk = true }, codes.FailedPrecondition, "NotEmpty: "},
		"a header of another volume without a key": {func(f *fixture, _ *use) { f.volume().LUKS = &csinode.LUKS{Version: 2, UUID: foreignID} },
			codes.FailedPrecondition, "WrongKey: the LUKS header on the disk of volume " + firstID},
		"an empty disk that must not be written": {func(_ *fixture, u *use) { u.arrayReads = true },
			codes.FailedPrecondition, "holds no LUKS header, and none can be created on it"},
		"an empty disk of an imported volume": {func(_ *fixture, u *use) { u.imported = true },
			codes.FailedPrecondition, "has no LUKS header; such a volume is never formatted"},
		"a header although Cinder says otherwise": {func(f *fixture, u *use) { f.volume().LUKS, u.encryption = header(firstID), nil },
			codes.FailedPrecondition, "is encrypted with LUKS1, but Cinder says that the volume is not"},
		"nothing says how to open what the PersistentVolume calls encrypted": {func(_ *fixture, u *use) { u.origin, u.encryption = "uid", nil },
			codes.FailedPrecondition, "says that nodes encrypt it, but the publish context does not say how"},
		"no program": {func(f *fixture, _ *use) { f.node.Missing["cryptsetup"] = true },
			codes.FailedPrecondition, "MissingTool: cryptsetup is not installed on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), encryptedVolume()
				c.arrange(f, &u)
				before := *f.volume()
				f.refuses(f.stage(u), c.code, c.text)
				if after := *f.volume(); after != before {
					t.Errorf("the volume was changed: %+v", after)
				}
				f.clean()
			})
		})
	}
}

// TestAVolumeThatOSBrickWroteIsUsed: its header has a random UUID, and its filesystem is
// the proof, as with volumes that are not encrypted.
func TestAVolumeThatOSBrickWroteIsUsed(t *testing.T) {
	for _, version := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), encryptedVolume()
			v := f.volume()
			v.LUKS = &csinode.LUKS{Version: version, UUID: foreignID, Passphrase: passphrase}
			v.Filesystem, v.UUID, v.FilesystemBytes, v.Data = "ext4", secondID, gibibyte/2, "of a server"
			f.refuses(f.stage(u), codes.FailedPrecondition, "WrongVolume: ")
			u.copied, u.imported = []string{secondID}, true
			f.must(f.stage(u))
			f.must(f.publish(u, 1, false))
			if data, err := f.node.Read(u.pod(1)); err != nil || data != "of a server" {
				t.Errorf("%q, %v", data, err)
			}
			f.must(f.unpublish(u, 1))
			f.must(f.unstage(u))
			f.clean()
		})
	}
}

// TestACopyHasTheHeaderOfItsSource, and both are staged on one node.
func TestACopyHasTheHeaderOfItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		f.must(f.stage(u))
		content := *f.volume()
		content.Identity, content.Bytes = "6002", 2*gibibyte
		f.add("vol-2", &content)
		clone := encryptedVolume()
		clone.id, clone.target, clone.copied = secondID, "vol-2", []string{firstID}
		f.must(f.stage(clone))
		if content.FilesystemBytes != 2*gibibyte-content.LUKS.Payload() {
			t.Errorf("the copy's filesystem has %d bytes", content.FilesystemBytes)
		}
		f.must(f.unstage(u))
		f.must(f.unstage(clone))
		f.clean()
	})
}

// TestABlankVolumeThatAnotherNodeOpenedGetsItsFilesystem: the other node died before it
// made one. What is inside decrypts to noise, and the disk shows that nothing was written.
func TestABlankVolumeThatAnotherNodeOpenedGetsItsFilesystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		f.volume().LUKS = &csinode.LUKS{Version: 1, UUID: firstID, Passphrase: passphrase}
		f.must(f.stage(u))
		if f.volume().UUID != firstID {
			t.Errorf("the volume is %+v", f.volume())
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAHeaderThatWasInterruptedElsewhereIsMadeAgain, if it has no key yet.
func TestAHeaderThatWasInterruptedElsewhereIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		f.volume().LUKS = &csinode.LUKS{Version: 2, UUID: firstID}
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
		// Somebody erased the keys of a volume with data.
		f.volume().LUKS.Passphrase = ""
		f.refuses(f.stage(u), codes.FailedPrecondition, "NotEmpty: ")
		f.clean()
	})
}

// TestAnEncryptedVolumeIsUnstagedWithout what a staged volume usually has.
func TestAnEncryptedVolumeIsUnstagedWithout(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, use){
		"the record":  func(f *fixture, _ use) { f.node.RemoveFiles(stateDir) },
		"the device":  func(f *fixture, _ use) { f.target().Gone = true },
		"the disks":   func(f *fixture, u use) { f.node.RemoveDisks(f.device(u)) },
		"the mount":   func(f *fixture, u use) { f.node.UnmountByHand(u.staging()) },
		"what opened": func(f *fixture, u use) { f.node.UnmountByHand(u.staging()); f.node.CloseByHand() },
		"a record that can be read": func(f *fixture, u use) {
			f.node.PutFile(f.service.state.file(kindVolumes, u.handle()), "{")
		},
	} {
		for _, multipath := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, multipath %t", name, multipath), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), encryptedVolume()
					if multipath {
						f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal}
					}
					f.must(f.stage(u))
					arrange(f, u)
					f.start()
					f.must(f.unstage(u))
					f.clean()
				})
			})
		}
	}
}

// TestAnOpenVolumeWithoutARecordIsClosed before its disk is removed: no mount shows it.
func TestAnOpenVolumeWithoutARecordIsClosed(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, *use){
		"raw":     func(_ *fixture, u *use) { u.block = true },
		"mounted": func(*fixture, *use) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), encryptedVolume()
				arrange(f, &u)
				f.must(f.stage(u))
				f.node.RemoveFiles(stateDir)
				f.start()
				if u.block {
					f.must(f.unstage(u)) // nothing shows that it is there
				}
				f.must(f.stage(u))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestWhatIsOpenMustBeTheVolume: it is neither used nor given to a pod if it is anything
// else.
func TestWhatIsOpenMustBeTheVolume(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, use){
		"closed":              func(f *fixture, _ use) { f.node.CloseByHand() },
		"another header":      func(f *fixture, _ use) { f.volume().LUKS.UUID = foreignID },
		"opened from another": func(f *fixture, _ use) { f.node.OpenedFrom("sdzz") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), encryptedVolume()
				u.block = true
				f.must(f.stage(u))
				arrange(f, u)
				f.refuses(f.publish(u, 1, false), codes.FailedPrecondition, "Wrong")
				f.unharmed()
			})
		})
	}
}

// TestAnEncryptedVolumeIsCutOff when the storage has given its LUN to another volume: what
// the kernel holds back would overwrite that.
func TestAnEncryptedVolumeIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		f.must(f.stage(u))
		theirs := &csinode.Volume{Bytes: gibibyte, LUKS: &csinode.LUKS{Version: 1, UUID: foreignID, Passphrase: "x"}, Filesystem: "ext4", UUID: foreignID, Data: "theirs"}
		f.target().LUNs[1] = theirs
		f.must(f.unstage(u))
		if theirs.Data != "theirs" {
			t.Errorf("the other volume has %q", theirs.Data)
		}
		f.clean()
	})
}

// TestAnEncryptedVolumeOutlivesARestartOfTheNode.
func TestAnEncryptedVolumeOutlivesARestartOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		f.must(f.stage(u))
		f.node.Reboot("boot-2")
		f.start()
		f.service.Tidy(context.Background())
		f.must(f.stage(u))
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAnOlderPluginLeavesEncryptedVolumesAlone: to it, what is open is a stranger's.
func TestAnOlderPluginLeavesEncryptedVolumesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		f.must(f.stage(u))
		if file := f.node.Files()[f.service.state.file(kindVolumes, u.handle())]; !strings.Contains(file, `"version": 2,`) {
			t.Errorf("the record is %s", file)
		}
		if context := u.stageRequest(t).GetPublishContext(); context["version"] != "2" {
			t.Errorf("the publish context is %v", context)
		}
	})
}

// TestASwappedEncryptedVolumeIsNotThatOfTheHandle: its header is that of the volume that the
// leader names, and what is open has the name of the handle, by which an unstaged volume is
// known even without its record.
func TestASwappedEncryptedVolumeIsNotThatOfTheHandle(t *testing.T) {
	for name, lose := range map[string]func(f *fixture){
		"with its record": func(*fixture) {},
		"without":         func(f *fixture) { f.node.RemoveFiles(stateDir) },
	} {
		for _, block := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, block %t", name, block), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), encryptedVolume()
					u.block, u.swapped = block, &wire.SwappedVolume{ID: secondID, Volume: wire.Volume{Encrypted: "uid"}}
					f.volume().LUKS = &csinode.LUKS{Version: 1, UUID: firstID, Passphrase: passphrase}
					f.refuses(f.stage(u), codes.FailedPrecondition, map[bool]string{true: "WrongVolume: ", false: "such a volume is never formatted"}[block])
					f.clean()
					f.volume().LUKS = nil
					f.must(f.stage(u))
					if v := f.volume(); v.LUKS == nil || v.LUKS.UUID != secondID || !block && v.UUID != secondID {
						t.Errorf("the volume is %+v, %+v", v, v.LUKS)
					}
					if file := f.node.Files()[f.service.state.file(kindVolumes, u.handle())]; !strings.Contains(file, `"version": 3,`) {
						t.Errorf("an older plugin can read the record %s", file)
					}
					f.start()
					f.must(f.stage(u))
					lose(f)
					f.start()
					f.must(f.unstage(u))
					if block { // Of a raw volume without a record, nothing shows the disk.
						f.must(f.stage(u))
						f.must(f.unstage(u))
					}
					f.clean()
					u.encryption = nil
					f.refuses(f.stage(u), codes.FailedPrecondition, "says that nodes encrypt it")
					f.clean()
				})
			})
		}
	}
}

// TestAnEncryptedDiskWhoseNameChangesHandsIsNotUsed, even if one key opens all volumes.
func TestAnEncryptedDiskWhoseNameChangesHandsIsNotUsed(t *testing.T) {
	for _, tool := range []string{"cryptsetup open", "mount", "e2fsck"} {
		t.Run(tool, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), encryptedVolume()
				f.node.Reuse = true
				f.must(f.stage(u))
				device := f.device(u)
				f.must(f.unstage(u))
				theirs := &csinode.Volume{Bytes: gibibyte, Filesystem: "ext4", UUID: foreignID, FilesystemBytes: gibibyte / 2, Identity: "6002",
					LUKS: &csinode.LUKS{Version: 1, UUID: foreignID, Passphrase: passphrase}}
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
				if _, _, _, mounted := f.node.MountedAt(u.staging()); mounted || f.node.OpenedBytes() != 0 {
					t.Error("the other volume is still mounted or open")
				}
				if theirs.FilesystemBytes != gibibyte/2 {
					t.Error("the other volume's filesystem was grown")
				}
				f.unharmed()
			})
		})
	}
}

// TestTwoNodesMakeNoTwoHeaders: a claim of ReadWriteOnce and ReadWriteMany is attached to
// several nodes at once, because csi-attacher asks for the widest mode
// (MULTI_NODE_MULTI_WRITER), but kubelet stages with the first mode in the list, which is
// ReadWriteOnce. Both nodes find a blank disk, and the slower one's header makes what the
// faster one's pod wrote unreadable.
func TestTwoNodesMakeNoTwoHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, u := newFixture(t), newFixture(t), encryptedVolume()
		u.block, u.shared = true, true
		shared := one.volume()
		two.target().LUNs[1] = shared
		one.node.Before = func(command string) error {
			if strings.HasPrefix(command, "cryptsetup --batch-mode luksFormat") {
				one.node.Before = nil
				if err := two.stage(u); err == nil {
					shared.Data = "of the second node's pod"
				}
			}
			return nil
		}
		err := one.stage(u)
		if harm := one.node.Harm(); len(harm) > 0 {
			t.Errorf("harm: %q; the stage of the first node ended with %v", harm, err)
		}
	})
}

// TestARawVolumeWithTheDriversHeaderIsNotShownUnopened: if Cinder says of an encrypted
// volume that it is not, or that the storage encrypts it, a filesystem is refused, but a
// raw volume's pod gets the device with the LUKS header. To the pod it looks new, and what
// it writes destroys the header and with it all data.
func TestARawVolumeWithTheDriversHeaderIsNotShownUnopened(t *testing.T) {
	for _, version := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			encrypt(&u, version)
			u.block = true
			f.must(f.stage(u))
			f.must(f.unstage(u))
			u.encryption, u.passphrase = nil, ""
			f.refuses(f.stage(u), codes.FailedPrecondition, "encrypted")
			if err := f.publish(u, 1, false); err == nil {
				t.Errorf("LUKS%d: the pod got /dev/%s, whose first sector is the volume's LUKS header", version, f.device(u))
			}
		})
	}
}

// TestARawVolumeWithAnotherVolumesHeaderIsNotOpened: with the fixed key, one passphrase
// opens every volume, so it proves nothing. A volume that the driver made has the driver's
// header, and a filesystem in it would be refused; a raw volume is handed to the pod.
func TestARawVolumeWithAnotherVolumesHeaderIsNotOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), encryptedVolume()
		u.block = true
		v := f.volume()
		v.LUKS, v.Data = &csinode.LUKS{Version: 1, UUID: secondID, Passphrase: passphrase}, "of another tenant"
		if err := f.stage(u); err == nil {
			err = f.publish(u, 1, false)
			t.Errorf("volume %s is opened by the header of volume %s and given to a pod (%v)", firstID, secondID, err)
		}
	})
}

// TestUnstagingWithoutARecordLeavesNothingOpen: nothing is mounted for a raw volume, or any
// more, so only the name shows what is open. Unstaging succeeds, the volume is detached, and
// the key stays in the node's kernel.
func TestUnstagingWithoutARecordLeavesNothingOpen(t *testing.T) {
	for name, arrange := range map[string]func(*fixture, *use){
		"raw":         func(_ *fixture, u *use) { u.block = true },
		"raw by NVMe": func(f *fixture, u *use) { u.block = true; byNVMe(u, f.node) },
		"raw by RBD":  func(f *fixture, u *use) { u.block = true; byRBD(u, f.node) },
		"unmounted":   func(*fixture, *use) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), encryptedVolume()
				arrange(f, &u)
				f.must(f.stage(u))
				f.node.UnmountByHand(u.staging())
				f.node.RemoveFiles(stateDir)
				f.start()
				err := f.unstage(u)
				for _, left := range f.node.Left() {
					if strings.HasPrefix(left, "opened ") && err == nil {
						t.Errorf("unstaged, but left %q", left)
					}
				}
			})
		})
	}
}

// TestStagingsDoNotPrintTheirKey: fmt calls no methods of unexported fields.
func TestStagingsDoNotPrintTheirKey(t *testing.T) {
	f, u := newFixture(t), encryptedVolume()
	w, err := f.service.readStage(u.stageRequest(t))
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%v %+v %#v", w, w, w); strings.Contains(shown, passphrase) {
		t.Errorf("printed %s", strings.ReplaceAll(shown, passphrase, "<KEY>"))
	}
}
