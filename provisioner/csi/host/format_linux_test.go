package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/killpoint"
)

// killPoints is at how many points of its run mkfs is killed.
const killPoints = 60

// TestAFilesystemWhoseMkfsWasKilledIsMadeAgain kills the real mkfs programs.
func TestAFilesystemWhoseMkfsWasKilledIsMadeAgain(t *testing.T) {
	for _, filesystem := range []string{Ext4, XFS} {
		t.Run(filesystem, func(t *testing.T) {
			tool := installed(t, "mkfs."+filesystem)
			file := filepath.Join(t.TempDir(), "disk")
			const size = 320 << 20
			empty := func() {
				if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
					t.Fatal(err)
				}
			}
			var read []byte
			content := func() Content {
				read = make([]byte, beginning)
				f, err := os.Open(file)
				if err == nil {
					_, err = f.ReadAt(read, 0)
				}
				if err = errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
				return recognize(read)
			}
			wanted := Wanted{Volume: volume, Filesystem: filesystem}
			empty()
			all, ended := stepped(t, 1<<30, tool, makeArguments(file, content(), wanted)...)
			if !ended {
				t.Fatal("it did not end")
			}
			for point := range killPoints {
				empty()
				stepped(t, all*point/killPoints, tool, makeArguments(file, content(), wanted)...)
				// Only ext4 has to know that formatting was begun: XFS says it itself.
				wanted.Begun = filesystem == Ext4
				found := content()
				format, err := Judge("sdb", found, wanted)
				if err != nil {
					t.Errorf("killed at %d of %d: %v", all*point/killPoints, all, err)
					continue
				}
				if format {
					if output, err := exec.Command(tool, makeArguments(file, found, wanted)...).CombinedOutput(); err != nil {
						t.Errorf("killed at %d of %d, then: %v: %s", all*point/killPoints, all, err, output)
					}
				}
				// The kernel mounts no XFS with sb_inprogress.
				if made := content(); made != (Content{Filesystem: filesystem, UUID: volume, Bytes: size}) || filesystem == XFS && read[126] != 0 {
					t.Errorf("killed at %d of %d, then it holds %+v", all*point/killPoints, all, made)
				}
			}
		})
	}
}

// stepped runs a program, and kills it after a number of stops. It returns how often the
// program stopped.
func stepped(t *testing.T, stops int, tool string, arguments ...string) (stopped int, ended bool) {
	t.Helper()
	stopped, ended, err := killpoint.Run(stops, tool, arguments...)
	if errors.Is(err, killpoint.ErrNotTraced) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return stopped, ended
}
