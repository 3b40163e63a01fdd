package host

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the test's own program is when it is started with these arguments.
const (
	asGuard  = "be-a-guard"
	asPlugin = "be-a-plugin"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case asGuard:
			if err := RunGuard(os.Args[2:], os.Stdin, os.Stdout); err != nil {
				panic(err)
			}
			return
		case asPlugin:
			bePlugin(os.Args[2], os.Args[3], os.Args[4])
			return
		}
	}
	os.Exit(m.Run())
}

// bePlugin freezes a filesystem, says so, and waits to be killed.
func bePlugin(record, at, number string) {
	if _, err := guard().Freeze(FreezeOrder{[]FreezePoint{{at, number}}, time.Minute, record, "{}"}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sayFrozen)
	select {}
}

func guard() *Guard { return &Guard{Local: NewLocal("/"), Command: []string{asGuard}} }

// mounted makes filesystems on loop devices, mounts them, and has a process write to each
// all the time. written counts what it has written.
func mounted(t *testing.T, kinds ...string) (points []FreezePoint, written []*atomic.Int64) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	for i, kind := range kinds {
		image, at := filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint("at-", i))
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 320<<20), os.Mkdir(at, 0o700)); err != nil {
			t.Fatal(err)
		}
		if output, err := exec.Command(installed(t, "mkfs."+kind), "-q", image).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		if output, err := exec.Command("mount", "-o", "loop", image, at).CombinedOutput(); err != nil {
			t.Skipf("there are no loop devices: %v: %s", err, output)
		}
		t.Cleanup(func() {
			_ = exec.Command("fsfreeze", "--unfreeze", at).Run() // or the writer never ends
			if output, err := exec.Command("umount", at).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, output)
			}
		})
		var status unix.Stat_t
		if err := unix.Stat(at, &status); err != nil {
			t.Fatal(err)
		}
		points = append(points, FreezePoint{at, fmt.Sprintf("%d:%d", unix.Major(status.Dev), unix.Minor(status.Dev))})
		written = append(written, writing(t, at))
	}
	return points, written
}

// writing has another process write to a filesystem: a thread that waits for a frozen one
// cannot be ended.
func writing(t *testing.T, at string) *atomic.Int64 {
	t.Helper()
	command := exec.Command("sh", "-c", `while echo x > "$0"/file; do echo; sleep 0.01; done`, at)
	from, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for scanner := bufio.NewScanner(from); scanner.Scan(); {
			n.Add(1)
		}
	}()
	t.Cleanup(func() {
		_ = exec.Command("fsfreeze", "--unfreeze", at).Run()
		_ = command.Process.Kill()
		<-ended
		_ = command.Wait()
	})
	return &n
}

// expectWrites checks whether something is written to all of some filesystems.
func expectWrites(t *testing.T, want bool, written ...*atomic.Int64) {
	t.Helper()
	patience := 200 * time.Millisecond
	if want {
		patience = 10 * time.Second
	}
	for i, n := range written {
		before, end := n.Load(), time.Now().Add(patience)
		for n.Load() <= before+1 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if (n.Load() > before+1) != want {
			t.Errorf("filesystem %d is written: %t", i, !want)
		}
	}
}

// TestTheKernelFreezesAndThaws with real filesystems of both kinds.
func TestTheKernelFreezesAndThaws(t *testing.T) {
	points, written := mounted(t, Ext4, XFS)
	record := filepath.Join(t.TempDir(), "state", "frozen.json")
	recorded := func(t *testing.T, want bool) {
		t.Helper()
		if _, err := os.Stat(record); (err == nil) != want {
			t.Errorf("there is a record: %t", err == nil)
		}
	}
	freeze := func(t *testing.T, atMost time.Duration) Frozen {
		t.Helper()
		frozen, err := guard().Freeze(FreezeOrder{points, atMost, record, "{}"})
		if err != nil {
			t.Fatal(err)
		}
		return frozen
	}
	t.Run("when it is asked to", func(t *testing.T) {
		frozen := freeze(t, time.Minute)
		expectWrites(t, false, written...)
		recorded(t, true)
		if err := exec.Command("umount", points[0].At).Run(); err == nil {
			t.Error("a frozen filesystem can be unmounted")
		}
		if err := frozen.Thaw(); err != nil {
			t.Error(err)
		}
		recorded(t, false)
		expectWrites(t, true, written...)
	})
	t.Run("when time is up", func(t *testing.T) {
		frozen := freeze(t, 2*time.Second)
		<-frozen.Ended()
		expectWrites(t, true, written...)
		if err := frozen.Thaw(); !errors.Is(err, ErrTimeUp) {
			t.Errorf("the error is %v", err)
		}
	})
	t.Run("when another process had frozen the second", func(t *testing.T) {
		if err := exec.Command("fsfreeze", "--freeze", points[1].At).Run(); err != nil {
			t.Fatal(err)
		}
		if _, err := guard().Freeze(FreezeOrder{points, time.Minute, record, "{}"}); !errors.Is(err, ErrFrozenByOthers) || !strings.Contains(err.Error(), points[1].At) {
			t.Errorf("the error is %v", err)
		}
		expectWrites(t, true, written[0])
		expectWrites(t, false, written[1])
		if err := exec.Command("fsfreeze", "--unfreeze", points[1].At).Run(); err != nil {
			t.Error(err)
		}
	})
	t.Run("when another process has thawed one", func(t *testing.T) {
		frozen := freeze(t, time.Minute)
		if err := exec.Command("fsfreeze", "--unfreeze", points[0].At).Run(); err != nil {
			t.Fatal(err)
		}
		if err := frozen.Thaw(); err == nil || !strings.Contains(err.Error(), "somebody else has thawed it") {
			t.Errorf("the error is %v", err)
		}
		expectWrites(t, true, written...)
	})
	t.Run("when its guard is killed", func(t *testing.T) {
		frozen := freeze(t, time.Minute)
		for _, pid := range guards(t) {
			_ = unix.Kill(pid, unix.SIGTERM) // which it ignores
		}
		expectWrites(t, false, written...)
		for _, pid := range guards(t) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if err := frozen.Thaw(); !errors.Is(err, ErrMayBeFrozen) {
			t.Errorf("the error is %v", err)
		}
		expectWrites(t, false, written...)
		recorded(t, true)
		for _, point := range points {
			for range 2 {
				if err := guard().Thaw(t.Context(), point); err != nil {
					t.Error(err)
				}
			}
		}
		expectWrites(t, true, written...)
	})
	t.Run("when the plugin is killed", func(t *testing.T) {
		for _, point := range points {
			plugin := exec.Command("/proc/self/exe", asPlugin, record, point.At, point.Number)
			from, err := plugin.StdoutPipe()
			if err == nil {
				err = plugin.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			if line, _ := bufio.NewReader(from).ReadString('\n'); line != sayFrozen+"\n" {
				t.Fatal(line)
			}
			written := written[map[bool]int{true: 1}[point == points[1]]]
			expectWrites(t, false, written)
			if err := plugin.Process.Kill(); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, from)
			_ = plugin.Wait()
			expectWrites(t, true, written)
			recorded(t, false)
		}
	})
	t.Run("not from a container that would take the guard with it", func(t *testing.T) {
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		output, err := exec.Command("unshare", "--pid", "--fork", program, asPlugin, record, points[0].At, points[0].Number).CombinedOutput()
		if err != nil || !strings.Contains(string(output), "run the pods of the node plugin with hostPID: true") {
			t.Errorf("%v: %s", err, output)
		}
	})
	t.Run("never what is mounted there instead", func(t *testing.T) {
		other := FreezePoint{points[0].At, points[1].Number}
		if _, err := guard().Freeze(FreezeOrder{[]FreezePoint{other}, time.Minute, record, "{}"}); err == nil {
			t.Error("it is frozen")
		}
		if err := guard().Thaw(t.Context(), other); err != nil {
			t.Error(err)
		}
	})
	// The race detector delays the end of a process.
	for deadline := time.Now().Add(10 * time.Second); len(guards(t)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a guard is left")
		}
	}
}

// guards returns the processes of guards.
func guards(t *testing.T) (found []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		line, _ := os.ReadFile(file)
		if words := strings.Split(string(line), "\x00"); len(words) > 3 && words[1] == asGuard && strings.Contains(string(line), os.TempDir()) {
			var pid int
			if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil {
				found = append(found, pid)
			}
		}
	}
	return found
}

// TestAGuardOutlivesItsContainer: whoever ends a container kills everything in its cgroup.
func TestAGuardOutlivesItsContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can move processes")
	}
	root := t.TempDir()
	all, status := filepath.Join(root, cgroups), filepath.Join(root, "proc/self/status")
	if err := errors.Join(os.MkdirAll(all, 0o700), os.MkdirAll(filepath.Dir(status), 0o700), os.WriteFile(status, []byte("Name:\tnode\nNSpid:\t7\nNSpgid:\t7\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("mount", "-t", "cgroup2", "none", all).CombinedOutput(); err != nil {
		t.Skipf("there is no cgroup v2: %v: %s", err, output)
	}
	container := filepath.Join(all, "container-of-"+filepath.Base(filepath.Dir(root)))
	t.Cleanup(func() {
		if err := errors.Join(os.Remove(container), exec.Command("umount", all).Run()); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(container, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		process := exec.Command("sleep", "60")
		if err := errors.Join(process.Start(), os.WriteFile(filepath.Join(container, "cgroup.procs"), fmt.Append(nil, process.Process.Pid), 0)); err != nil {
			t.Fatal(err)
		}
		return process
	}
	plugin, guard := start(), start()
	if err := NewLocal(root).release(guard.Process.Pid); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(container, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Error(err)
	}
	_ = plugin.Wait()
	// What ended it is what was first.
	_ = guard.Process.Signal(syscall.SIGTERM)
	_ = guard.Wait()
	if by := guard.ProcessState.Sys().(syscall.WaitStatus).Signal(); by != syscall.SIGTERM {
		t.Errorf("the guard was ended with its container: %s", by)
	}
}
