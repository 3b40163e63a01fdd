package host

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// disks imitates filesystems that can be frozen.
type disks struct {
	mu sync.Mutex
	// frozen are those frozen now.
	frozen map[int]bool
	// freezing and thawing take this long, by filesystem; busy is one that others froze.
	freezing, thawing map[int]time.Duration
	busy, broken      map[int]bool
	syncing           time.Duration
	recorded          bool
}

func (d *disks) freeze(i int) error {
	time.Sleep(d.freezing[i])
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[i] {
		return ErrFrozenByOthers
	}
	if d.broken[i] {
		return errors.New("input/output error")
	}
	if !d.recorded {
		return errors.New("it is frozen without a record")
	}
	d.frozen[i] = true
	return nil
}

func (d *disks) thaw(i int) error {
	time.Sleep(d.thawing[i])
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.frozen[i] {
		return errNotFrozen
	}
	delete(d.frozen, i)
	return nil
}

func (d *disks) filesystems() filesystems {
	record := func(recorded bool) func() error {
		return func() error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.recorded = recorded
			return nil
		}
	}
	return filesystems{[]string{"a", "b", "c"}, func(int) { time.Sleep(d.syncing) }, d.freeze, d.thaw, record(true), record(false)}
}

func (d *disks) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.frozen)
}

// TestAGuardThawsWhateverHappens: when it is asked to, when nobody is left to ask, when
// time is up, and when the kernel hangs.
func TestAGuardThawsWhateverHappens(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		disks *disks
		// say is what the plugin says once they are frozen, after a second; "end" ends it.
		say string
		// others is what somebody else does meanwhile.
		others func(*disks)
		// frozen is whether all were frozen, and end what the guard says of them.
		frozen bool
		end    error
		// wait is when nothing is frozen any more, and hangs how many are then.
		wait  time.Duration
		hangs int
	}{
		"asked":              {&disks{}, sayThaw, nil, true, nil, time.Second, 0},
		"the plugin ends":    {&disks{}, "end", nil, true, ErrTimeUp, time.Second, 0},
		"nonsense is said":   {&disks{}, "what?", nil, true, ErrTimeUp, time.Second, 0},
		"time is up":         {&disks{}, "", nil, true, ErrTimeUp, 10 * time.Second, 0},
		"frozen by others":   {&disks{busy: map[int]bool{2: true}}, "", nil, false, ErrFrozenByOthers, 0, 0},
		"a broken disk":      {&disks{broken: map[int]bool{1: true}}, "", nil, false, errors.New("b: input/output error"), 0, 0},
		"thawed by others":   {&disks{}, sayThaw, func(d *disks) { _ = d.thaw(1) }, true, errors.New("b: somebody else has thawed it"), time.Second, 0},
		"freezing hangs":     {&disks{freezing: map[int]time.Duration{1: never}}, "", nil, false, errors.New("b: the kernel did not freeze it in time"), 10 * time.Second, 0},
		"syncing hangs":      {&disks{syncing: never}, "", nil, false, errors.New("the kernel did not write to the disks in time"), 10 * time.Second, 0},
		"thawing hangs":      {&disks{thawing: map[int]time.Duration{0: never}}, sayThaw, nil, true, nil, time.Second, 1},
		"freezing takes 9 s": {&disks{freezing: map[int]time.Duration{0: 3 * time.Second, 1: 3 * time.Second, 2: 3 * time.Second}}, "", nil, true, ErrTimeUp, 10 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.disks.frozen = map[int]bool{}
				in, plugin := io.Pipe()
				from, out := io.Pipe()
				var lines []string
				go func() {
					c.disks.filesystems().hold(bufio.NewReader(in), out, 10*time.Second)
					_ = out.Close()
				}()
				read := make(chan struct{})
				go func() {
					defer close(read)
					for scanner := bufio.NewScanner(from); scanner.Scan(); {
						lines = append(lines, scanner.Text())
						if scanner.Text() != sayFrozen || c.say == "" {
							continue
						}
						if c.others != nil {
							c.others(c.disks)
						}
						time.Sleep(time.Second)
						if c.say != "end" {
							_, _ = plugin.Write([]byte(c.say + "\n"))
						}
						_ = plugin.Close()
					}
				}()
				time.Sleep(c.wait + time.Millisecond)
				if left := c.disks.left(); left != c.hangs {
					t.Errorf("after %s, %d filesystems are frozen", c.wait, left)
				}
				<-read
				if c.disks.left() != 0 || c.disks.recorded {
					t.Error("a filesystem is left frozen, or the record is")
				}
				if frozen := slices.Contains(lines, sayFrozen); frozen != c.frozen {
					t.Errorf("it said that all were frozen: %t", frozen)
				}
				if len(lines) == 0 {
					t.Fatal("it said nothing")
				}
				err := readEnd(lines[len(lines)-1])
				if !errors.Is(err, c.end) && (err == nil || c.end == nil || !strings.Contains(err.Error(), c.end.Error())) {
					t.Errorf("in the end, it said %v", err)
				}
				_ = plugin.Close()
				time.Sleep(c.disks.syncing)
			})
		})
	}
}

// TestAGuardThatSaysNothingWasKilled: or half a line.
func TestAGuardThatSaysNothingWasKilled(t *testing.T) {
	for _, line := range []string{"", "tha", "frozen\n"} {
		if err := readEnd(line); !errors.Is(err, ErrMayBeFrozen) {
			t.Errorf("%q means %v", line, err)
		}
	}
}
