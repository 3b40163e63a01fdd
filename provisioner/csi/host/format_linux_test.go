package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
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

// stepped runs a program, and kills it after a number of stops at system calls. It
// returns how often the program stopped.
func stepped(t *testing.T, stops int, tool string, arguments ...string) (stopped int, ended bool) {
	t.Helper()
	// Only the thread that started the program may trace it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command := exec.Command(tool, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := command.Start(); err != nil {
		t.Skip(err)
	}
	pid, status := command.Process.Pid, syscall.WaitStatus(0)
	wait := func() {
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	for wait(); stopped < stops; stopped++ {
		if err := syscall.PtraceSyscall(pid, 0); err != nil {
			t.Fatal(err)
		}
		if wait(); status.Exited() {
			if status.ExitStatus() != 0 {
				t.Fatalf("%s exited with %d", tool, status.ExitStatus())
			}
			return stopped, true
		}
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for !status.Signaled() {
		wait()
	}
	return stopped, false
}
