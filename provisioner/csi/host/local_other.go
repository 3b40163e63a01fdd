//go:build !linux

package host

import (
	"context"
	"errors"
	"io"
	"syscall"
)

// errNoNode is the error of everything on systems other than Linux.
var errNoNode = errors.New("the node plugin runs on Linux only")

func changeRoot(string) *syscall.SysProcAttr { return nil }

// SCSI fails.
func (l *Local) SCSI(context.Context, string, []byte, int) ([]byte, error) { return nil, errNoNode }

// ConnectNVMe fails.
func (l *Local) ConnectNVMe(context.Context, string, string) error { return errNoNode }

// Identify fails.
func (l *Local) Identify(context.Context, string, byte, uint32) ([]byte, error) {
	return nil, errNoNode
}

// TellRBD fails.
func (l *Local) TellRBD(context.Context, RBDCall) error { return errNoNode }

// ReadDevice fails.
func (l *Local) ReadDevice(context.Context, string, int64, int) ([]byte, error) {
	return nil, errNoNode
}

// Claimed fails.
func (l *Local) Claimed(context.Context, string) (bool, error) { return false, errNoNode }

// Usage fails.
func (l *Local) Usage(context.Context, string) (Usage, error) { return Usage{}, errNoNode }

// Lock fails.
func (l *Local) Lock(context.Context, string, bool) (func(), error) { return nil, errNoNode }

// Guard fails.
type Guard struct {
	Local   *Local
	Command []string
}

// RunGuard fails.
func RunGuard([]string, io.Reader, io.Writer) error { return errNoNode }

// Freeze fails.
func (g *Guard) Freeze(FreezeOrder) (Frozen, error) { return nil, errNoNode }

// Thaw fails.
func (g *Guard) Thaw(context.Context, FreezePoint) error { return errNoNode }
