// Package host brings the disks of storage arrays to the node that it runs on, and
// their filesystems to directories of that node. It reads sysfs and the devices
// themselves; no link of udev and no cached identity decides anything. What it does
// to the node goes through a Root, so that tests need no node.
//
// No step assumes that this process did an earlier one: a step whose result is already
// present does nothing, and a step that cannot reach its result returns an error, and
// never only logs it.
package host

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Host is the node.
type Host struct {
	root   Root
	logger *slog.Logger
}

// New makes a Host of a node's files, devices and tools.
func New(root Root, logger *slog.Logger) *Host { return &Host{root: root, logger: logger} }

// A Reason says why the host refuses something that another try would not change.
type Reason string

const (
	// WrongVolume means that a disk holds another volume's filesystem than it should.
	WrongVolume Reason = "WrongVolume"
	// Outdated means that a volume was detached from the node while it was staged.
	Outdated Reason = "Outdated"
	// NotEmpty means that a disk without a filesystem is not empty, either.
	NotEmpty Reason = "NotEmpty"
	// WrongFilesystem means that the filesystem has another type than was asked for.
	WrongFilesystem Reason = "WrongFilesystem"
	// WrongDisk means that a disk does not say what a volume's disk must say.
	WrongDisk Reason = "WrongDisk"
	// ForeignPath means that a multipath map has paths of something else.
	ForeignPath Reason = "ForeignPath"
	// InUse means that something still uses what should be removed.
	InUse Reason = "InUse"
	// LoginRefused means that the storage refused the node's credentials.
	LoginRefused Reason = "LoginRefused"
	// MissingTool means that the node lacks a program.
	MissingTool Reason = "MissingTool"
	// Malformed means that a name or an address cannot be one.
	Malformed Reason = "Malformed"
)

// A Refusal is an error with a Reason.
type Refusal struct {
	Reason Reason
	text   string
}

// Error is the reason and a sentence.
func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.text }

// Refuse makes a Refusal.
func Refuse(reason Reason, format string, values ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, values...)}
}

const (
	// poll is the pause between two looks at something that changes by itself.
	poll = 100 * time.Millisecond
	// patience bounds the wait for a disk or a map to appear or to go away.
	patience = 30 * time.Second
)

// until looks until the answer is yes. It returns false if that was never the case.
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
