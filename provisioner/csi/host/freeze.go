package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A filesystem that is frozen has everything on its disk, and whoever writes to it waits
// until it is thawed. The kernel ties a freeze to no process: if the one that froze a
// filesystem is killed, the filesystem stays frozen, and its pods wait forever. So the node
// plugin freezes by a process of its own, the guard, which outlives the plugin and its
// container. It thaws everything when the plugin says so, when the plugin has ended, or when
// time is up, whatever comes first.

// Freezer freezes filesystems of the node.
type Freezer interface {
	// Freeze freezes mounted filesystems in order, all or none. It waits as long as the
	// kernel hangs. If it fails, it has thawed what it froze, unless the error is
	// ErrMayBeFrozen.
	Freeze(FreezeOrder) (Frozen, error)
	// Thaw thaws a filesystem that Freeze may have left frozen. It does nothing if the
	// filesystem is not frozen, or not mounted there any more.
	Thaw(ctx context.Context, point FreezePoint) error
}

// Frozen are filesystems that are frozen.
type Frozen interface {
	// Thaw thaws them. Its error says why they did not all stay frozen until now; after
	// ErrMayBeFrozen, some are perhaps still frozen.
	Thaw() error
	// Ended is closed when nothing is frozen any more, or the guard has ended.
	Ended() <-chan struct{}
}

// FreezeOrder is what to freeze.
type FreezeOrder struct {
	Points []FreezePoint
	AtMost time.Duration
	// Record is a file, with this Content before the first filesystem is frozen, that is
	// removed once none is. It shows what a guard that was killed has left.
	Record, Content string
}

// FreezePoint is a mounted filesystem.
type FreezePoint struct {
	// At is where it is mounted, and Number the device's, as major:minor.
	At     string `json:"at"`
	Number string `json:"number"`
}

var (
	// ErrMayBeFrozen means that nobody has thawed a filesystem: the guard was killed, or
	// the kernel did not thaw it.
	ErrMayBeFrozen = errors.New("a filesystem may still be frozen")
	// ErrTimeUp means that the filesystems were thawed because time was up.
	ErrTimeUp = errors.New("the filesystems were thawed because time was up")
	// ErrFrozenByOthers means that a filesystem was frozen before.
	ErrFrozenByOthers = errors.New("somebody else has frozen it, such as fsfreeze or LVM")
	// errNotFrozen means that a filesystem was not frozen any more.
	errNotFrozen = errors.New("somebody else has thawed it")
)

// What the plugin and the guard say to each other, each in a line.
const (
	sayFreeze = "freeze"
	sayThaw   = "thaw"

	sayFrozen = "frozen"
	sayThawed = "thawed"
	sayTimeUp = "time is up"
	sayBusy   = "busy "
	sayFailed = "failed "
	sayLeft   = "left "
)

// readEnd returns the error that the guard's last line stands for.
func readEnd(line string) error {
	line = strings.TrimSuffix(line, "\n")
	if line == sayThawed {
		return nil
	}
	if line == sayTimeUp {
		return ErrTimeUp
	}
	if name, ok := strings.CutPrefix(line, sayBusy); ok {
		return fmt.Errorf("%s: %w", name, ErrFrozenByOthers)
	}
	if what, ok := strings.CutPrefix(line, sayFailed); ok {
		return errors.New(what)
	}
	if what, ok := strings.CutPrefix(line, sayLeft); ok {
		return fmt.Errorf("%w: %s", ErrMayBeFrozen, what)
	}
	return fmt.Errorf("%w: the process that kept it frozen was killed", ErrMayBeFrozen)
}

// filesystems are what a guard freezes.
type filesystems struct {
	names        []string
	sync         func(i int)
	freeze, thaw func(i int) error
	// note writes the record, and forget removes it.
	note, forget func() error
}

// hold is the work of a guard: it freezes filesystems in order, says so, and thaws them
// once it is asked to, the plugin has ended, or time is up. In the end, it says what became
// of them. A call that hangs in the kernel keeps none but its own filesystem frozen, and
// only until it returns.
func (f filesystems) hold(in *bufio.Reader, out io.Writer, atMost time.Duration) {
	over := make(chan string, 2)
	go func() {
		if line, _ := in.ReadString('\n'); line == sayThaw+"\n" {
			over <- sayThawed
		} else {
			over <- sayTimeUp // Nobody listens any more.
		}
	}()
	defer time.AfterFunc(atMost, func() { over <- sayTimeUp }).Stop()

	// Pods still write while most of what they have written goes to the disks.
	synced := make(chan struct{})
	go func() {
		defer close(synced)
		var syncing sync.WaitGroup
		for i := range f.names {
			syncing.Go(func() { f.sync(i) })
		}
		syncing.Wait()
	}()
	err := errors.New("the kernel did not write to the disks in time")
	select {
	case <-synced:
		err = f.note()
	case <-over:
	}
	if err != nil {
		fmt.Fprintf(out, "%s%v\n", sayFailed, err)
		return
	}

	var mu sync.Mutex // guards end while several filesystems are thawed
	end := ""
	tell := func(say string, i int, err error) string { return fmt.Sprintf("%s%s: %v", say, f.names[i], err) }
	var hanging sync.WaitGroup
	// Thawing writes to the disk, so it may hang, too.
	melt := func(i int) {
		err := f.thaw(i)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, errNotFrozen) && !strings.HasPrefix(end, sayLeft):
			end = tell(sayFailed, i, err)
		case err != nil && !errors.Is(err, errNotFrozen):
			end = tell(sayLeft, i, err)
		}
	}
	frozen, failed := 0, false
	for !failed && frozen < len(f.names) {
		i, done := frozen, make(chan error, 1)
		go func() { done <- f.freeze(i) }()
		select {
		case err := <-done:
			switch failed = err != nil; {
			case errors.Is(err, ErrFrozenByOthers):
				end = sayBusy + f.names[i]
			case err != nil:
				end = tell(sayFailed, i, err)
			default:
				frozen++
			}
		case <-over:
			failed = true
			end = tell(sayFailed, i, errors.New("the kernel did not freeze it in time"))
			hanging.Go(func() {
				if <-done == nil {
					melt(i)
				}
			})
		}
	}
	if !failed {
		fmt.Fprintln(out, sayFrozen) // If the plugin has ended, in says so.
		end = <-over
	}
	for i := range frozen {
		hanging.Go(func() { melt(i) })
	}
	hanging.Wait()
	if !strings.HasPrefix(end, sayLeft) {
		if err := f.forget(); err != nil {
			end = sayLeft + "its record: " + err.Error()
		}
	}
	fmt.Fprintln(out, end)
}
