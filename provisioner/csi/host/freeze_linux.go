package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel's requests for a filesystem (linux/fs.h).
const (
	ioctlFreeze = 0xc0045877 // FIFREEZE
	ioctlThaw   = 0xc0045878 // FITHAW
)

// Guard is a Freezer by processes of this program.
type Guard struct {
	Local *Local
	// Command are the arguments with which this program calls RunGuard.
	Command []string
}

// firstFile is the number of the first file that a guard inherits.
const firstFile = 3

// RunGuard is what a guard does. Its arguments are the longest time, the record and its
// content, and the names of the filesystems whose open directories it inherits.
func RunGuard(arguments []string, in io.Reader, out io.Writer) error {
	// Only the plugin ends it, and it ends with the plugin.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	from := bufio.NewReader(in)
	if line, _ := from.ReadString('\n'); line != sayFreeze+"\n" || len(arguments) < 3 {
		return errors.New("this command is the node plugin's own, and of no use to people")
	}
	atMost, err := time.ParseDuration(arguments[0])
	if err != nil {
		return err
	}
	record, content := arguments[1], arguments[2]
	filesystems{
		names:  arguments[3:],
		sync:   func(i int) { _ = unix.Syncfs(firstFile + i) }, // Freezing does it, too.
		freeze: func(i int) error { return ask(uintptr(firstFile+i), ioctlFreeze) },
		thaw:   func(i int) error { return ask(uintptr(firstFile+i), ioctlThaw) },
		note:   func() error { return os.WriteFile(record, []byte(content), 0o600) },
		forget: func() error { return os.Remove(record) },
	}.hold(from, out, atMost)
	return nil
}

// ask sends a filesystem a request.
func ask(descriptor, request uintptr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, descriptor, request, 0)
	switch {
	case errno == 0:
		return nil
	case errno == unix.EBUSY && request == ioctlFreeze:
		return ErrFrozenByOthers
	case errno == unix.EINVAL && request == ioctlThaw:
		return errNotFrozen
	}
	return errno
}

// held are filesystems that a guard has frozen.
type held struct {
	to    io.Writer
	ended chan struct{}
	// err is why they did not stay frozen, once ended is closed.
	err error
}

// Freeze starts a guard, which freezes the filesystems.
func (g *Guard) Freeze(order FreezeOrder) (Frozen, error) {
	record := g.Local.Path(order.Record)
	if err := os.MkdirAll(filepath.Dir(record), 0o700); err != nil {
		return nil, err
	}
	command := exec.Command("/proc/self/exe", append(slices.Clone(g.Command), order.AtMost.String(), record, order.Content)...)
	// What is open can neither be unmounted nor become another filesystem.
	defer func() {
		for _, file := range command.ExtraFiles {
			_ = file.Close()
		}
	}()
	for _, point := range order.Points {
		file, err := g.Local.openMounted(context.Background(), point)
		if err != nil {
			return nil, err
		}
		command.ExtraFiles, command.Args = append(command.ExtraFiles, file), append(command.Args, point.At)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	to, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	from, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the process that keeps filesystems frozen: %w", err)
	}
	lines := bufio.NewReader(from)
	end := func(line string) error {
		_ = to.Close()
		_ = command.Wait() // The line says more.
		return readEnd(line)
	}
	if err := g.Local.release(command.Process.Pid); err != nil {
		_ = end("")
		return nil, err
	}
	_, _ = fmt.Fprintln(to, sayFreeze) // If it has ended, it says nothing.
	if line, _ := lines.ReadString('\n'); line != sayFrozen+"\n" {
		return nil, end(line)
	}
	f := &held{to: to, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		line, _ := lines.ReadString('\n')
		f.err = end(line)
	}()
	return f, nil
}

// Thaw implements Frozen.
func (f *held) Thaw() error {
	_, _ = fmt.Fprintln(f.to, sayThaw) // If it has ended, its last line says why.
	<-f.ended
	return f.err
}

// Ended implements Frozen.
func (f *held) Ended() <-chan struct{} { return f.ended }

// rootCgroup lists the processes of the node's own cgroup.
const rootCgroup = cgroups + "/cgroup.procs"

// release makes a process outlive this one's container: whoever ends that kills what is in
// its cgroup, and the kernel kills what is in its PID namespace.
func (l *Local) release(pid int) error {
	// The node's table has a number of the process for each PID namespace that it is in.
	status, err := os.ReadFile(l.prefix + "/proc/self/status")
	if err != nil {
		return err
	}
	_, line, _ := strings.Cut(string(status), "\nNSpid:")
	if line, _, _ = strings.Cut(line, "\n"); len(strings.Fields(line)) > 1 {
		return errors.New("a container that is killed would leave filesystems frozen; run the pods of the node plugin with hostPID: true")
	}
	if _, err := os.Stat(l.prefix + rootCgroup); errors.Is(err, fs.ErrNotExist) {
		return nil // Kubernetes needs cgroup v2, so this is no container of it.
	}
	// It fails in a cgroup namespace of the container's own, which privileged ones do not have.
	if err := os.WriteFile(l.prefix+rootCgroup, []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("take the process that keeps filesystems frozen out of the container's cgroup: %w", err)
	}
	return nil
}

// openMounted opens the directory where a filesystem is mounted.
func (l *Local) openMounted(ctx context.Context, point FreezePoint) (*os.File, error) {
	return answered(ctx, l, usageLimit, "opening "+point.At, func() (*os.File, error) {
		opened, err := os.OpenFile(l.Path(point.At), os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		var status unix.Stat_t
		if err := unix.Fstat(int(opened.Fd()), &status); err != nil {
			return nil, errors.Join(err, opened.Close())
		}
		if number := fmt.Sprintf("%d:%d", unix.Major(status.Dev), unix.Minor(status.Dev)); number != point.Number {
			_ = opened.Close()
			return nil, fmt.Errorf("%s shows device %s instead of %s: %w", point.At, number, point.Number, fs.ErrNotExist)
		}
		return opened, nil
	})
}

// Thaw thaws a filesystem itself, because its guard has ended.
func (g *Guard) Thaw(ctx context.Context, point FreezePoint) error {
	file, err := g.Local.openMounted(ctx, point)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return g.Local.bounded(ctx, setLimit, "thawing "+point.At, func() error {
		defer file.Close() //nolint:errcheck // Nothing was written.
		if err := ask(file.Fd(), ioctlThaw); err != nil && !errors.Is(err, errNotFrozen) {
			return fmt.Errorf("thaw %s: %w", point.At, err)
		}
		return nil
	})
}
