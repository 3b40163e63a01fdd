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
// plugin freezes by a process of its own, the holder, which outlives the plugin and its
// container. It thaws everything when the plugin says so, when the plugin has ended, or when
// time is up, whatever comes first.

// Freezer freezes filesystems of the node.
type Freezer interface {
	// Freeze freezes mounted filesystems in order, all or none. It waits as long as the
	// kernel hangs. If it fails, it has thawed what it froze, unless the error is
	// ErrHolderEnded.
	Freeze(points []FreezePoint, atMost time.Duration) (Frozen, error)
	// Thaw thaws a filesystem that Freeze may have left frozen. It does nothing if the
	// filesystem is not frozen, or not mounted there any more.
	Thaw(ctx context.Context, point FreezePoint) error
}

// Frozen are filesystems that are frozen.
type Frozen interface {
	// Thaw thaws them. Its error says why they did not all stay frozen until now; after
	// ErrHolderEnded, some may still be frozen.
	Thaw() error
	// Ended is closed when nothing is frozen any more, or the holder has ended.
	Ended() <-chan struct{}
}

// FreezePoint is a mounted filesystem.
type FreezePoint struct {
	// At is where it is mounted, and Number the device's, as major:minor.
	At     string `json:"at"`
	Number string `json:"number"`
}

var (
	// ErrHolderEnded means that the holder was killed.
	ErrHolderEnded = errors.New("the process that kept the filesystems frozen was killed")
	// ErrTimeUp means that the filesystems were thawed because time was up.
	ErrTimeUp = errors.New("the filesystems were thawed because time was up")
	// ErrFrozenByOthers means that a filesystem was frozen before.
	ErrFrozenByOthers = errors.New("somebody else has frozen it, such as fsfreeze or LVM")
	// errNotFrozen means that a filesystem was not frozen any more.
	errNotFrozen = errors.New("somebody else has thawed it")
)

// What the plugin and the holder say to each other, each in a line.
const (
	sayFreeze = "freeze"
	sayThaw   = "thaw"

	sayFrozen = "frozen"
	sayThawed = "thawed"
	sayTimeUp = "time is up"
	sayBusy   = "busy "
	sayFailed = "failed "
)

// readEnd returns the error that the holder's last line stands for.
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
	return ErrHolderEnded
}

// hold is the work of a holder: it freezes filesystems in order, says so, and thaws them
// once it is asked to, the plugin has ended, or time is up. In the end, it says what became
// of them. A call that hangs in the kernel keeps none but its own filesystem frozen, and
// only until it returns.
func hold(in *bufio.Reader, out io.Writer, names []string, atMost time.Duration, freeze, thaw func(i int) error) {
	over := make(chan string, 2)
	go func() {
		if line, _ := in.ReadString('\n'); line == sayThaw+"\n" {
			over <- sayThawed
		} else {
			over <- sayTimeUp // Nobody listens any more.
		}
	}()
	defer time.AfterFunc(atMost, func() { over <- sayTimeUp }).Stop()

	end := ""
	failed := func(i int, err error) string { return fmt.Sprintf("%s%s: %v", sayFailed, names[i], err) }
	var hanging sync.WaitGroup
	frozen := 0
	for end == "" && frozen < len(names) {
		i, done := frozen, make(chan error, 1)
		go func() { done <- freeze(i) }()
		select {
		case err := <-done:
			switch {
			case errors.Is(err, ErrFrozenByOthers):
				end = sayBusy + names[i]
			case err != nil:
				end = failed(i, err)
			default:
				frozen++
			}
		case <-over:
			end = failed(i, errors.New("the kernel did not freeze it in time"))
			hanging.Go(func() {
				if <-done == nil {
					_ = thaw(i) // It was just frozen.
				}
			})
		}
	}
	if end == "" {
		fmt.Fprintln(out, sayFrozen) //nolint:errcheck // The plugin has ended, which in says, too.
		end = <-over
	}
	// Thawing writes to the disk, so it may hang as well.
	var mu sync.Mutex // guards end
	for i := range frozen {
		hanging.Go(func() {
			if err := thaw(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				end = failed(i, err)
			}
		})
	}
	hanging.Wait()
	fmt.Fprintln(out, end) //nolint:errcheck // The plugin has ended.
}
