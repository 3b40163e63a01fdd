package backends

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// atOnce runs a function for n claims at the same time.
func atOnce(t *testing.T, n int, do func(claim int) error) {
	t.Helper()
	var group sync.WaitGroup
	for claim := range n {
		group.Go(func() {
			if err := do(claim); err != nil {
				t.Errorf("claim %d: %v", claim, err)
			}
		})
	}
	group.Wait()
}

// idle waits until the watcher's goroutine has ended and makes no more
// requests.
func idle(t *testing.T, l *Lifecycle) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if !l.current().watcher.Running() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the watcher continues although nothing is in flight")
		}
	}
}

// together delays the watcher's first round until there are the given number of
// waits. After that, the test counts how many requests they need together,
// however long the beginning of each took.
func together(t *testing.T, l *Lifecycle, waits int) {
	l.options.pause = func(time.Duration, <-chan struct{}) {
		l.options.pause = sleep
		inFlight := l.options.Metrics.inFlight.WithLabelValues(l.options.Config.Name)
		for t.Context().Err() == nil && testutil.ToFloat64(inFlight) != float64(waits) {
			time.Sleep(time.Millisecond)
		}
	}
}

// TestRequestsPerClaim counts: three changes per claim, no request for a single
// volume, and as many listings for two hundred claims as for five.
func TestRequestsPerClaim(t *testing.T) {
	for _, claims := range []int{1, 5, 200} {
		t.Run(fmt.Sprint(claims), func(t *testing.T) {
			goroutines := runtime.NumGoroutine()
			memory := newMemoryCinder()
			for range 500 { // of other owners
				memory.add(cinder.Volume{Status: cinder.StatusInUse})
			}
			l := memory.term(t)
			connected := make([]Connected, claims)
			together(t, l, claims)
			atOnce(t, claims, func(claim int) (err error) {
				connected[claim], err = l.Connect(t.Context(), claimSpec(claim))
				return err
			})
			equal(t, memory.count("volume.create"), claims)
			equal(t, memory.count("volume.os-reserve"), claims)
			equal(t, memory.count("volume.os-initialize_connection"), claims)
			equal(t, len(memory.changes()), 3*claims)
			equal(t, memory.count("volume.get"), 0)
			// One for the inventory, one for each read that Cinder needs, one
			// that finds the volume.
			equal(t, memory.count("volume.list"), 1+memory.looks+1)
			idle(t, l)

			memory.forgetLog()
			atOnce(t, claims, func(claim int) error {
				return l.Complete(t.Context(), claimTarget(claim, connected[claim].Volume.ID), false)
			})
			equal(t, memory.count("volume.os-attach"), claims)
			equal(t, len(memory.log), claims) // nothing else
			for _, v := range memory.present() {
				if stamps.Of(v).Cluster != "" && v.Status != cinder.StatusInUse {
					t.Errorf("%s is %s", v.ID, v.Status)
				}
			}

			// A new leader finds everything in one listing.
			memory.forgetLog()
			next := memory.term(t)
			atOnce(t, claims, func(claim int) error {
				return next.Complete(t.Context(), claimTarget(claim, connected[claim].Volume.ID), false)
			})
			equal(t, memory.log, []string{"volume.list"})

			// And all the way back.
			memory.forgetLog()
			together(t, next, claims)
			atOnce(t, claims, func(claim int) error { return next.Remove(t.Context(), claimTarget(claim, connected[claim].Volume.ID)) })
			equal(t, len(memory.changes()), 3*claims)
			lists, reads := memory.count("volume.list"), memory.count("volume.get")
			switch rounds := memory.looks + 1; {
			case claims == 1:
				// One read proves ownership, and the others wait.
				equal(t, lists, 0)
				equal(t, reads, 1+rounds)
			case claims > 100:
				// Listings show which volumes are gone, and who owns those that are
				// removed later.
				if lists > rounds+2 || reads > claims {
					t.Errorf("%d listings and %d reads", lists, reads)
				}
			default:
				// One read per volume proves ownership, and one proves that it
				// is gone.
				equal(t, lists, rounds)
				equal(t, reads, 2*claims)
			}
			equal(t, len(memory.present()), 500)
			idle(t, next)
			for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
				}
			}
		})
	}
}
