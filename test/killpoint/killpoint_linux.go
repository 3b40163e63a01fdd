// Package killpoint ends programs at chosen points of their runs, as a crash would, for
// tests of what they leave behind.
package killpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// ErrNotTraced means that the program could not be started under control.
var ErrNotTraced = errors.New("the program cannot be traced")

// Run runs a program, and kills it after a number of stops: one before and one after each
// system call of its first thread. It returns how often the program stopped, and whether
// it ended by itself.
func Run(stops int, tool string, arguments ...string) (stopped int, ended bool, err error) {
	// Only the thread that started the program may trace it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command := exec.Command(tool, arguments...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := command.Start(); err != nil {
		return 0, false, fmt.Errorf("%w: %w", ErrNotTraced, err)
	}
	pid, status := command.Process.Pid, syscall.WaitStatus(0)
	wait := func() error {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		return err
	}
	for err = wait(); err == nil && stopped < stops; stopped++ {
		if err = syscall.PtraceSyscall(pid, 0); err != nil {
			break
		}
		if err = wait(); err == nil && status.Exited() {
			if status.ExitStatus() != 0 {
				return stopped, true, fmt.Errorf("%s exited with %d", tool, status.ExitStatus())
			}
			return stopped, true, nil
		}
	}
	err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
	for err == nil && !status.Signaled() {
		err = wait()
	}
	return stopped, false, err
}
