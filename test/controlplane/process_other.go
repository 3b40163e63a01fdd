//go:build unix && !linux

package controlplane

import "syscall"

// processAttributes give each component a process group of its own, so that an
// interrupt typed at a terminal reaches the test only. Only Linux can also tie
// a process's life to its parent's: elsewhere a test that is killed leaves its
// control plane behind.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// threadsStopped takes the signal for its effect, as there is no common way to
// see a thread's state.
func threadsStopped(int) (bool, error) { return true, nil }
