package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// newHeader is a header that some passphrases open.
func newHeader(passphrases ...string) *csinode.LUKS {
	h := &csinode.LUKS{Version: 2, UUID: firstID}
	h.Passphrase = passphrases[0]
	copy(h.Added[:], passphrases[1:])
	return h
}

// opening lists which of the two passphrases open the header, and how many keyslots it has.
func (f *fixture) opening() string {
	of := f.volume().LUKS
	return fmt.Sprintf("%d %d", len(of.Opens(passphrase)), len(of.Opens(newPassphrase)))
}

func (f *fixture) proven(u use) []string {
	f.t.Helper()
	all, err := StagedPassphrases(f.node, stateDir, "boot-1")
	f.must(err)
	return all[u.handle()]
}

func ruled() use {
	u := plain()
	u.encryption, u.passphrase = &wire.Encryption{LUKS: 2}, passphrase
	return u
}

// TestHeadersGetNewPassphrases: what the leader says and what the header has, and what it has
// after it. The header changes only where no other node may have it.
func TestHeadersGetNewPassphrases(t *testing.T) {
	old, added := wire.PassphraseName(passphrase), wire.PassphraseName(newPassphrase)
	add := func(u *use) { u.also = newPassphrase }
	remove := func(u *use) { u.passphrase, u.former = newPassphrase, passphrase }
	for name, c := range map[string]struct {
		header *csinode.LUKS
		says   func(*use)
		want   string
		proven []string
		text   string
	}{
		"a new volume":                  {nil, add, "1 1", []string{old, added}, ""},
		"the former one":                {newHeader(passphrase), add, "1 1", []string{old, added}, ""},
		"both":                          {newHeader(passphrase, newPassphrase), add, "1 1", []string{old, added}, ""},
		"a copy that has only the next": {newHeader(newPassphrase), add, "0 1", []string{wire.Absent(old), added}, ""},
		"removal":                       {newHeader(passphrase, newPassphrase), remove, "0 1", []string{added, wire.Absent(old)}, ""},
		"removal from several keyslots": {newHeader(passphrase, newPassphrase, passphrase), remove, "0 1", []string{added, wire.Absent(old)}, ""},
		"removal that is done":          {newHeader(newPassphrase), remove, "0 1", []string{added, wire.Absent(old)}, ""},
		"removal from a copy without the new one": {newHeader(passphrase), remove, "0 1", []string{added, wire.Absent(old)}, ""},
		"no room": {newHeader(passphrase, "1", "2", "3"), add, "1 0", nil, "No free keyslot."},
		"volumes that several nodes may have, which changes nothing": {newHeader(passphrase), func(u *use) { add(u); u.shared = true }, "1 0", []string{old, wire.Absent(added)}, ""},
		"removal from those": {newHeader(passphrase, newPassphrase), func(u *use) { remove(u); u.shared = true }, "1 1", []string{added, old}, ""},
		"one that was taken from a node that may still write": {newHeader(passphrase), func(u *use) { add(u); u.taken = true }, "1 0", []string{old, wire.Absent(added)}, ""},
		"one that is only read":                               {newHeader(passphrase, newPassphrase), func(u *use) { remove(u); u.mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY }, "1 1", []string{added, old}, ""},
		"a key that is its own former one":                    {newHeader(passphrase), func(u *use) { u.former = passphrase }, "1 0", nil, "is the one that is to stay"},
		"a plain volume's passphrase":                         {newHeader(passphrase), func(*use) {}, "1 0", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), ruled()
				if c.header != nil {
					v := f.volume()
					header := *c.header
					v.LUKS, v.Filesystem, v.UUID, v.FilesystemBytes, v.Data = &header, "ext4", firstID, gibibyte/2, "kept"
				}
				c.says(&u)
				if u.shared {
					u.mode, u.block, u.filesystem = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, true, ""
				}
				f.must(f.stage(u))
				for range 2 {
					if got := f.opening(); got != c.want || !slices.Equal(f.proven(u), c.proven) {
						t.Errorf("the header has keyslots %s, and %q is reported; want %s, %q\n%s", got, f.proven(u), c.want, c.proven, f.log.String())
					}
					if c.text != "" && !strings.Contains(f.log.String(), c.text) {
						t.Errorf("the log does not say %q:\n%s", c.text, f.log.String())
					}
					// A kubelet that restarts stages again what its pods use.
					f.must(f.stage(u))
				}
				// Once the leader says nothing more, nothing is reported.
				u.also, u.former = "", ""
				if len(f.volume().LUKS.Opens(u.passphrase)) > 0 {
					f.must(f.stage(u))
					if f.proven(u) != nil {
						t.Errorf("%q is reported", f.proven(u))
					}
				}
				f.must(f.unstage(u))
				f.clean()
				if c.header != nil && f.volume().Data != "kept" {
					t.Error("the data are gone")
				}
			})
		})
	}
}

// TestARunningPodKeepsItsVolumeThroughNewPassphrases: whatever kills the plugin at any of its
// changes, at any step, the header is opened by what the leader says at that step, and by the
// only passphrase that an earlier release knows. The pod's mount stays.
func TestARunningPodKeepsItsVolumeThroughNewPassphrases(t *testing.T) {
	steps := []func(*use){
		func(u *use) { u.also = newPassphrase },
		func(u *use) { u.passphrase, u.also = newPassphrase, passphrase },
		func(u *use) { u.passphrase, u.also, u.former = newPassphrase, "", passphrase },
		func(u *use) { u.passphrase, u.former = newPassphrase, "" },
	}
	for interrupted := range steps {
		for _, after := range []bool{false, true} {
			reached := true
			for nth := 1; reached; nth++ {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), ruled()
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
					for i, step := range steps {
						step(&u)
						if i == interrupted {
							f.node.CrashAt(nth, after)
							_ = f.stage(u)
							reached = f.node.Restart()
							f.start()
							f.service.Tidy(context.Background())
							if len(f.volume().LUKS.Opens(u.passphrase)) == 0 {
								t.Fatalf("after a kill at change %d (after it: %t) of step %d, the header has keyslots %s", nth, after, i, f.opening())
							}
						}
						f.must(f.stage(u))
						if _, err := f.node.Read(u.pod(1)); err != nil {
							t.Fatal(err)
						}
						earlier := u
						earlier.also, earlier.former = "", ""
						f.must(f.stage(earlier))
					}
					if got := f.opening(); got != "0 1" {
						t.Errorf("at the end, the header has keyslots %s", got)
					}
					f.must(f.unpublish(u, 1))
					f.must(f.unstage(u))
					f.clean()
				})
				if nth > 100 {
					t.Fatal("a step makes more than 100 changes")
				}
			}
		}
	}
}

// TestAnInterruptedChangeOfPassphrasesFailsNoStaging: whichever request of it fails.
func TestAnInterruptedChangeOfPassphrasesFailsNoStaging(t *testing.T) {
	for _, action := range []string{"luksAddKey", "luksKillSlot", "--test-passphrase"} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), ruled()
			f.volume().LUKS, f.volume().Filesystem, f.volume().UUID, f.volume().FilesystemBytes = newHeader(passphrase), "ext4", firstID, gibibyte/2
			u.also = newPassphrase
			if action == "luksKillSlot" {
				f.must(f.stage(u))
				u.passphrase, u.also, u.former = newPassphrase, "", passphrase
			}
			f.node.Before = func(call string) error {
				if strings.Contains(call, action) {
					return fmt.Errorf("no answer")
				}
				return nil
			}
			f.must(f.stage(u))
			if f.proven(u) != nil || !strings.Contains(f.log.String(), "no answer") {
				t.Errorf("%q is reported, log:\n%s", f.proven(u), f.log.String())
			}
			f.node.Before = nil
			f.must(f.unstage(u))
			f.clean()
		})
	}
}
