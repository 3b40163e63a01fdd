package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// processAttributes give each component a process group of its own, so that an
// interrupt typed at a terminal reaches the test only, and have the kernel end
// it when the test's process ends, however that ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// threadsStopped reports whether every thread of the process is stopped or has
// ended. The signal that stops a process returns to its sender before that.
func threadsStopped(pid int) (bool, error) {
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "stat"))
	if err != nil {
		return false, err
	}
	if len(files) == 0 {
		return false, fmt.Errorf("process %d has no threads", pid)
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return false, err
		}
		// The state is a letter after the name, which is in parentheses and
		// may itself hold any character.
		_, state, found := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
		if !found || len(state) == 0 {
			return false, fmt.Errorf("%s has no state: %q", file, stat)
		}
		if !bytes.ContainsRune([]byte("TtZX"), rune(state[0])) {
			return false, nil
		}
	}
	return true, nil
}
