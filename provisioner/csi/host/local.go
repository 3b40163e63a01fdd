package host

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrLocked means that another process or call holds a lock.
var ErrLocked = errors.New("another process or call holds the lock")

// Local is the node itself.
type Local struct {
	// prefix is where the node's root directory is mounted; empty for this process's
	// own.
	prefix string
	// tools are where the node's programs are.
	tools []string
	// stuck counts, by subject, the calls that the kernel has not answered.
	mu    sync.Mutex
	stuck map[string]int
}

// NewLocal returns the node whose root directory is mounted at the given
// path. Tools run with that as their root directory, and are searched for in the given
// directories before the usual ones.
func NewLocal(at string, tools ...string) *Local {
	return &Local{prefix: strings.TrimSuffix(filepath.Clean(at), "/"), tools: slices.Concat(tools, toolDirectories), stuck: map[string]int{}}
}

// Root returns the node as the Root of a Host.
func (l *Local) Root() Root { return Root{l, l, l, l} }

// Path converts a path on the node to this process's path for it. It contains no links,
// because an absolute one would lead to this process's root directory.
func (l *Local) Path(path string) string { return l.prefix + l.Resolve(path) }

// mostLinks is how many links in a path the kernel follows, too.
const mostLinks = 40

// Resolve follows links as the node's programs do.
func (l *Local) Resolve(at string) string {
	done, rest := "", strings.Split(at, "/")
	for links := 0; len(rest) > 0; {
		next := rest[0]
		rest = rest[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			done = done[:max(0, strings.LastIndex(done, "/"))]
			continue
		}
		to, err := os.Readlink(l.prefix + done + "/" + next)
		if err != nil || links == mostLinks {
			done += "/" + next
			continue
		}
		links++
		if strings.HasPrefix(to, "/") {
			done = ""
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return cmp.Or(done, "/")
}

// maxFileSize bounds how much of a file is read. The longest is the mountinfo of a node
// with thousands of mounts.
const maxFileSize = 16 << 20

// ReadFile reads a file.
func (l *Local) ReadFile(path string) ([]byte, error) {
	file, err := os.Open(l.Path(path))
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // Nothing was written.
	content, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err == nil && len(content) > maxFileSize {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFileSize)
	}
	return content, err
}

// ReadDir lists the names in a directory, in order.
func (l *Local) ReadDir(path string) ([]string, error) {
	entries, err := os.ReadDir(l.Path(path))
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, nil
}

// Modified returns when a file was last written.
func (l *Local) Modified(path string) (time.Time, error) {
	info, err := os.Stat(l.Path(path))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// dialLimit bounds the check of a portal. Logins and connections of the kernel would try
// for minutes.
const dialLimit = 5 * time.Second

// Dial connects to a TCP address, and disconnects again.
func (l *Local) Dial(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: dialLimit}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

// setLimit bounds a write to sysfs. Removing a disk waits for its last commands.
const setLimit = 90 * time.Second

// Set writes an attribute of sysfs.
func (l *Local) Set(ctx context.Context, path, value string) error {
	return l.bounded(ctx, setLimit, "the write to "+path, func() error {
		file, err := os.OpenFile(l.Path(path), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = file.WriteString(value)
		return errors.Join(err, file.Close())
	})
}

// Replace writes a file atomically, readable only by the node's root user.
func (l *Local) Replace(path string, content []byte) error {
	path = l.Path(path)
	directory := filepath.Dir(path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(directory, ".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return syncDirectory(directory)
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// MakeDir makes a directory and those above it.
func (l *Local) MakeDir(path string) error { return os.MkdirAll(l.Path(path), 0o750) }

// MakeFile makes an empty file if there is none.
func (l *Local) MakeFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(l.Path(path)), 0o750); err != nil {
		return err
	}
	file, err := os.OpenFile(l.Path(path), os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return file.Close()
}

// Remove removes a file or an empty directory, or a link.
func (l *Local) Remove(path string) error {
	directory, name := filepath.Split(path)
	if err := os.Remove(filepath.Join(l.Path(directory), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// toolDirectories are where most nodes have their programs; the last two are for Flatcar
// and NixOS. The PATH of this process is not the node's.
var toolDirectories = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/bin", "/run/current-system/sw/bin"}

func (l *Local) find(tool string) string {
	for _, directory := range l.tools {
		info, err := os.Lstat(l.Path(directory + "/" + tool))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return directory + "/" + tool
		}
	}
	return ""
}

// killed is how long a program may take to end after it is killed.
const killed = 2 * time.Second

// Has reports whether the node has a program.
func (l *Local) Has(tool string) bool { return l.find(tool) != "" }

// Run runs a program of the node with the node's root directory as its own.
func (l *Local) Run(ctx context.Context, c Command) (string, error) {
	path := l.find(c.Tool)
	if path == "" {
		return "", Refuse(MissingTool, "%s is not installed on the node", c.Tool)
	}
	limit := c.Limit
	limit = cmp.Or(limit, toolLimit)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	arguments := c.Arguments
	if c.Secret != "" {
		arguments = append(arguments[:len(arguments):len(arguments)], c.Secret)
	}
	var output bytes.Buffer
	command := exec.CommandContext(ctx, path, arguments...)
	// Looking up the path here may have failed, because it is valid only below the node's
	// root directory.
	command.Err = nil
	command.Dir = "/"
	command.Env = []string{"PATH=" + strings.Join(l.tools, ":"), "LC_ALL=C"}
	if c.Tool == cryptsetup || c.Tool == "dmsetup" {
		// They would wait for the node's udev by a semaphore, of which a container has its
		// own, and forever.
		command.Env = append(command.Env, "DM_DISABLE_UDEV=1")
	}
	if c.Input != "" {
		command.Stdin = strings.NewReader(c.Input + c.Further)
	}
	command.Stdout, command.Stderr = &output, &output
	command.WaitDelay = time.Second
	if l.prefix != "" {
		command.SysProcAttr = changeRoot(l.prefix)
	}
	var exit *exec.ExitError
	// A program that waits for a dead disk cannot be killed.
	err := l.bounded(ctx, limit+2*killed, c.String(), command.Run)
	switch {
	case err == nil:
		return c.clean(output.String()), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s did not finish within %s: %w", c, limit, ctx.Err())
	case errors.As(err, &exit):
		return "", &ToolError{c.String(), exit.ExitCode(), c.clean(output.String())}
	}
	return "", fmt.Errorf("%s: %w", c, err)
}

// bounded calls do, as answered does.
func (l *Local) bounded(ctx context.Context, limit time.Duration, what string, do func() error) error {
	_, err := answered(ctx, l, limit, what, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// answered calls do, which may hang in the kernel, and gives up after a while. An
// abandoned call continues in the background, and the same call is not tried again until
// it has ended, because each try would cost a thread.
func answered[T any](ctx context.Context, l *Local, limit time.Duration, what string, do func() (T, error)) (T, error) {
	var none T
	l.mu.Lock()
	hangs := l.stuck[what] > 0
	l.mu.Unlock()
	if hangs {
		return none, fmt.Errorf("%s is still hanging from an earlier attempt", what)
	}
	type answer struct {
		value T
		err   error
	}
	ended := make(chan answer, 1)
	go func() {
		value, err := do()
		ended <- answer{value, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var reason error
	select {
	case a := <-ended:
		return a.value, a.err
	case <-timer.C:
		reason = fmt.Errorf("%s did not finish within %s", what, limit)
	case <-ctx.Done():
		// A program killed because of the context will end soon.
		select {
		case a := <-ended:
			return a.value, a.err
		case <-time.After(killed):
			reason = fmt.Errorf("%s was given up: %w", what, ctx.Err())
		}
	}
	l.count(what, 1)
	go func() {
		<-ended
		l.count(what, -1)
	}()
	return none, reason
}

// TellsRBD reports whether the kernel has not answered an order for an image.
func (l *Local) TellsRBD(image string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stuck[ordersFor(image)] > 0
}

func ordersFor(image string) string { return "the order for image " + image }

func (l *Local) count(what string, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stuck[what] += by; l.stuck[what] == 0 {
		delete(l.stuck, what)
	}
}
