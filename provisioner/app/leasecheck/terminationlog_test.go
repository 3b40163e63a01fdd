package leasecheck

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTerminationLogIsOfTheFirstProcessOnly(t *testing.T) {
	if first, other := TerminationLogOf(1), TerminationLogOf(7); first != "/dev/termination-log" || other != "" {
		t.Errorf("%q and %q", first, other)
	}
}

func TestTerminationLogIsSigned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	for _, file := range []string{"", path} {
		if _, err := OpenTerminationLog(file, "pod_1", time.Second); err != nil {
			t.Errorf("without the file %q: %v", file, err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file was made: %v", err)
	}
	if err := os.WriteFile(path, []byte("a line of the container's former process"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTerminationLog(path, "pod_1", time.Second); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "pod_1" {
		t.Errorf("it has %q", got)
	}
}

// TestTerminationLogOfAProcessThatChangesNothing: its next leader need not wait for reads.
func TestTerminationLogOfAProcessThatChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, log := signed(t, 2*time.Second)
		says := func(when string, settled bool) {
			t.Helper()
			synctest.Wait()
			if got := read(t, path) == "pod_1 settled after 2s"; got != settled {
				t.Errorf("%s: it says %q", when, read(t, path))
			}
		}
		time.Sleep(time.Hour)
		says("as a follower", false)
		log.Lead(time.Now())
		time.Sleep(1900 * time.Millisecond)
		says("a moment after it was elected", false)
		time.Sleep(200 * time.Millisecond)
		says("two seconds after it was elected", true)
		first, err := log.Change()
		if err != nil {
			t.Fatal(err)
		}
		says("at its first change", false)
		second, err := log.Change()
		if err != nil {
			t.Fatal(err)
		}
		first()
		time.Sleep(time.Hour)
		says("while a change waits for its answer", false)
		second()
		time.Sleep(1900 * time.Millisecond)
		says("a moment after the answer", false)
		time.Sleep(200 * time.Millisecond)
		says("two seconds after the answer", true)
		if err := log.Follow(); err != nil {
			t.Fatal(err)
		}
		says("after its term", false)
		time.Sleep(time.Hour)
		says("an hour after its term", false)
		log.Lead(time.Unix(0, 0))
		time.Sleep(time.Millisecond)
		says("after a leader that had changed nothing", true)
	})
}

// TestTerminationLogWithoutLag: no leader waits, so nothing needs to be said.
func TestTerminationLogWithoutLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, log := signed(t, 0)
		log.Lead(time.Unix(0, 0))
		time.Sleep(time.Hour)
		if got := read(t, path); got != "pod_1" {
			t.Errorf("it says %q", got)
		}
	})
}

// TestTerminationLogNeverPromisesTooMuch compares it at every step of random terms with
// what really happened.
func TestTerminationLogNeverPromisesTooMuch(t *testing.T) {
	const lag = 2 * time.Second
	promised := 0
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			path, log := signed(t, lag)
			var underWay []func()
			var last time.Time // of all leaders' changes
			leads := false
			for range 200 {
				switch random.IntN(6) {
				case 0:
					if leads {
						if err := log.Follow(); err != nil {
							t.Fatal(err)
						}
						leads, last = false, time.Now()
						break
					}
					leads = true
					log.Lead(last)
				case 1, 2:
					if !leads {
						last = time.Now()
						break
					}
					ended, err := log.Change()
					if err != nil {
						t.Fatal(err)
					}
					underWay = append(underWay, ended)
				case 3:
					for len(underWay) > 0 {
						i := random.IntN(len(underWay))
						underWay[i]()
						underWay = append(underWay[:i], underWay[i+1:]...)
						last = time.Now()
						if random.IntN(3) == 0 {
							break
						}
					}
				default:
					time.Sleep(time.Duration(random.Int64N(int64(3 * lag))))
				}
				synctest.Wait()
				settled := strings.Contains(read(t, path), "settled")
				if settled && (!leads || len(underWay) > 0 || time.Since(last) < lag) {
					t.Fatalf("it says %q: leads %t, %d changes under way, the last one %s ago", read(t, path), leads, len(underWay), time.Since(last))
				}
				if settled {
					promised++
				}
			}
		})
	}
	if promised < 250 {
		t.Errorf("it says %d times that reads are settled", promised)
	}
}

// TestNothingIsChangedWhileTheLogSaysOtherwise: its disk fails.
func TestNothingIsChangedWhileTheLogSaysOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, log := signed(t, time.Second)
		log.Lead(time.Unix(0, 0))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if err := log.file.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := log.Change(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a change begins: %v", err)
		}
		if err := log.Follow(); err == nil {
			t.Error("a term ends as if nothing were wrong")
		}
	})
}

// signed returns the termination log of process pod_1.
func signed(t *testing.T, readLag time.Duration) (path string, log *TerminationLog) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := OpenTerminationLog(path, "pod_1", readLag)
	if err != nil {
		t.Fatal(err)
	}
	return path, log
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
