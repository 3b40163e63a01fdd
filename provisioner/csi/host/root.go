package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Root is what a Host reads and changes, by the parts of a node. One value may be all of
// them, such as a Local.
type Root struct {
	Files
	Devices
	Tools
	Network
}

// Network is the node's.
type Network interface {
	// Dial connects to a TCP address, and disconnects again.
	Dial(ctx context.Context, address string) error
}

// Files are the node's files. Paths are absolute paths on the node.
type Files interface {
	ReadFile(path string) ([]byte, error)
	// Resolve returns a path without symbolic links. Missing parts stay as they are.
	Resolve(path string) string
	// ReadDir lists the names in a directory.
	ReadDir(path string) ([]string, error)
	// Set writes an attribute of sysfs.
	Set(ctx context.Context, path, value string) error
	// MakeDir makes a directory and those above it.
	MakeDir(path string) error
	// MakeFile makes an empty file if there is none.
	MakeFile(path string) error
	// Remove removes a file or an empty directory. It succeeds if there is none.
	Remove(path string) error
}

// Devices are the node's block devices, by their kernel names.
type Devices interface {
	// SCSI sends a command that reads up to length bytes, and returns those that
	// arrived.
	SCSI(ctx context.Context, disk string, command []byte, length int) ([]byte, error)
	// ConnectNVMe connects the kernel to an NVMe subsystem at a portal, with the
	// kernel's options.
	ConnectNVMe(ctx context.Context, portal, options string) error
	// Identify sends the command Identify to an NVMe controller, and returns the
	// answer.
	Identify(ctx context.Context, controller string, structure byte, namespace uint32) ([]byte, error)
	// ReadDevice bypasses all caches.
	ReadDevice(ctx context.Context, device string, offset int64, length int) ([]byte, error)
	// Claimed reports whether something holds the device exclusively: a filesystem
	// mounted in any namespace, or another device.
	Claimed(ctx context.Context, device string) (bool, error)
	// Usage reads how full a mounted filesystem is.
	Usage(ctx context.Context, path string) (Usage, error)
}

// Tools are the node's programs.
type Tools interface {
	// Has reports whether the node has a program.
	Has(tool string) bool
	// Run runs a program without a shell, and returns its output. If the program fails,
	// the error is a ToolError.
	Run(ctx context.Context, c Command) (string, error)
}

// Usage is how full a filesystem is.
type Usage struct {
	Bytes, FreeBytes, AvailableBytes int64
	Inodes, FreeInodes               int64
}

// Command is a call of a program.
type Command struct {
	Tool      string
	Arguments []string
	// Secret is a last argument that must not appear in errors or logs.
	Secret string
	// Input is what the program reads, and Further what it reads after that. They must not
	// appear in errors or logs either.
	Input, Further string
	// Limit bounds the program's run time; zero means toolLimit, and Unlimited no limit.
	Limit time.Duration
}

const (
	toolLimit = 2 * time.Minute
	// Unlimited is the Limit of a program that must not be killed.
	Unlimited time.Duration = 1 << 62
)

// String returns the call in a form that errors and logs may show.
func (c Command) String() string {
	text := strings.Join(append([]string{c.Tool}, c.Arguments...), " ")
	if c.Secret != "" {
		text += " (secret)"
	}
	return text
}

// GoString keeps the secrets out of %#v.
func (c Command) GoString() string { return c.String() }

// clean removes the secrets from a program's output.
func (c Command) clean(output string) string {
	for _, secret := range []string{c.Secret, c.Input, c.Further} {
		if secret != "" {
			output = strings.ReplaceAll(output, secret, "(secret)")
		}
	}
	return strings.TrimSpace(output)
}

// ToolError means that a program failed.
type ToolError struct {
	Command string
	Code    int
	Output  string
}

// maxOutput bounds how much of a program's output an error repeats.
const maxOutput = 500

// Error returns the call, its exit code and its output.
func (e *ToolError) Error() string {
	output := strings.Join(strings.Fields(e.Output), " ")
	if len(output) > maxOutput {
		output = output[:maxOutput] + "..."
	}
	return fmt.Sprintf("%s failed with code %d: %s", e.Command, e.Code, output)
}

// hasCode reports whether a program failed with an exit code.
func hasCode(err error, code int) bool {
	var tool *ToolError
	return errors.As(err, &tool) && tool.Code == code
}

func (h *Host) run(ctx context.Context, tool string, arguments ...string) (string, error) {
	return h.call(ctx, Command{Tool: tool, Arguments: arguments})
}

func (h *Host) call(ctx context.Context, c Command) (string, error) {
	if err := h.Need(c.Tool, "the package that provides it"); err != nil {
		return "", err
	}
	return h.root.Run(ctx, c)
}

// Has reports whether the node has a program.
func (h *Host) Has(tool string) bool { return h.root.Has(tool) }

// Need returns an error if the node lacks a program. It names the package to install.
func (h *Host) Need(tool, of string) error {
	if h.root.Has(tool) {
		return nil
	}
	return Refuse(MissingTool, "%s is not installed on the node; install %s, or name the directory of the program in --tool-directories", tool, of)
}

// MountTools are the programs without which no volume can be mounted.
func MountTools() []string {
	return []string{"mount", "umount", "blockdev", "mkfs.ext4", "e2fsck", "resize2fs"}
}

// BootID returns an ID that changes whenever the node starts.
func (h *Host) BootID() (string, error) {
	id, err := h.root.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil && len(strings.TrimSpace(string(id))) == 0 {
		err = fmt.Errorf("the node's boot ID is empty")
	}
	return strings.TrimSpace(string(id)), err
}

// MachineIDs return the UUID of the node's firmware and the ID of its operating system,
// as a kubelet reports them in its Node; empty if the node has none.
func (h *Host) MachineIDs() (systemUUID, machineID string) {
	return h.attribute("/sys/class/dmi/id/product_uuid"), h.attribute("/etc/machine-id")
}

// Booted returns when the node started.
func (h *Host) Booted() (time.Time, error) {
	content, err := h.root.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(content)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "btime "); ok {
			seconds, err := strconv.ParseInt(text, 10, 64)
			return time.Unix(seconds, 0), err
		}
	}
	return time.Time{}, errors.New("/proc/stat does not say when the node started")
}

// list lists the names in a directory; none if it does not exist.
func list(files Files, path string) ([]string, error) {
	names, err := files.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// attribute reads a file of sysfs. If there is none, it returns an empty string.
func (h *Host) attribute(path string) string {
	content, err := h.root.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// Dial checks that something answers at a target's portal.
func (h *Host) Dial(ctx context.Context, portal string) error {
	if err := h.root.Dial(ctx, portal); err != nil {
		return fmt.Errorf("nothing answers at %s: %w", portal, err)
	}
	return nil
}
