// Package host attaches disks of storage arrays to the node that it runs on, and mounts
// their filesystems. It reads sysfs and the devices themselves, and never relies on a
// udev link or a cached identity. It acts on the node only through a Root, so that tests
// need no node.
//
// No step assumes that this process did an earlier one. A step whose result already
// exists does nothing, and a step that fails returns an error rather than only logging
// it.
package host

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Host is the node: its tools, mounts, filesystems and block devices. SCSI, ISCSI,
// FibreChannel, NVMe and RBD reach the disks of their kind through it.
type Host struct {
	root   Root
	logger *slog.Logger
}

// New returns a Host over a node's files, devices and tools.
func New(root Root, logger *slog.Logger) *Host { return &Host{root: root, logger: logger} }

// A Reason explains a refusal that a retry would not change.
type Reason string

const (
	// WrongVolume means that a disk holds the filesystem of another volume.
	WrongVolume Reason = "WrongVolume"
	// Outdated means that a volume was detached from the node while it was staged.
	Outdated Reason = "Outdated"
	// NotEmpty means that a disk has no filesystem, but is not empty.
	NotEmpty Reason = "NotEmpty"
	// WrongFilesystem means that the filesystem does not have the requested type.
	WrongFilesystem Reason = "WrongFilesystem"
	// WrongDisk means that a disk does not identify itself as the volume's.
	WrongDisk Reason = "WrongDisk"
	// WrongKey means that a volume's key does not open its disk.
	WrongKey Reason = "WrongKey"
	// ForeignPath means that a multipath map has paths that do not belong to the
	// volume.
	ForeignPath Reason = "ForeignPath"
	// InUse means that something to be removed is still in use.
	InUse Reason = "InUse"
	// LoginRefused means that the storage refused the node's credentials.
	LoginRefused Reason = "LoginRefused"
	// UnsupportedImage means that an image of Ceph lacks a feature, or has one that the
	// node's kernel lacks.
	UnsupportedImage Reason = "UnsupportedImage"
	// MissingTool means that the node lacks a program.
	MissingTool Reason = "MissingTool"
	// Malformed means that a name or an address is not valid.
	Malformed Reason = "Malformed"
)

// A Refusal is an error with a Reason.
type Refusal struct {
	Reason Reason
	text   string
}

// Error returns the reason and a sentence.
func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.text }

// Refuse returns a Refusal.
func Refuse(reason Reason, format string, values ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, values...)}
}

const (
	// poll is the pause between two checks of a changing state.
	poll = 100 * time.Millisecond
	// patience bounds the wait for a disk or a map to appear or disappear.
	patience = 30 * time.Second
)

// until calls look until it returns true. If that does not happen within the limit,
// until returns false.
func until(ctx context.Context, limit time.Duration, look func() (bool, error)) (bool, error) {
	deadline := time.Now().Add(limit)
	for {
		done, err := look()
		if done || err != nil {
			return done, err
		}
		if !time.Now().Before(deadline) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// await is until with an error if it does not happen.
func await(ctx context.Context, limit time.Duration, look func() (bool, error), late string, values ...any) error {
	done, err := until(ctx, limit, look)
	if err == nil && !done {
		err = fmt.Errorf(late, values...)
	}
	return err
}
