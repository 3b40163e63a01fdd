package provisioner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// TestWorkThatStandsStillIsNoticed: the worker holds its object far longer than
// anything that it waits for may take.
func TestWorkThatStandsStillIsNoticed(t *testing.T) {
	for _, c := range []struct {
		name, want string
		work       func(f *fixture)
	}{
		{"provisioning", "the worker of claim team-a/", func(f *fixture) {
			f.backends["gold"].onCall = func() { <-f.stop }
			_, _ = f.provision(f.claim(nil))
		}},
		{"deleting", "the worker that deletes PersistentVolume pvc-", func(f *fixture) {
			pv, err := f.provision(f.claim(nil))
			f.must(err)
			pv.UID = "pv-uid"
			f.released(pv)
			f.backends["gold"].onCall = func() { <-f.stop }
			_ = f.Delete(f.t.Context(), pv)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _, _ := newCountedFixture(t)
				go c.work(f)
				time.Sleep(59 * time.Minute)
				if err := f.Monitor.Check(); err != nil {
					t.Errorf("within the bound: %v", err)
				}
				time.Sleep(2 * time.Minute)
				if err := f.Monitor.Check(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				close(f.stop)
				synctest.Wait()
				if err := f.Monitor.Check(); err != nil {
					t.Errorf("after the work: %v", err)
				}
			})
		})
	}
}

// TestABackendThatDoesNotAnswerIsNoStandstill: every request takes as long as it
// may and fails, for hours.
func TestABackendThatDoesNotAnswerIsNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, gold := newCountedFixture(t)
		gold.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "timed out"}
		gold.onCall = func() { time.Sleep(75 * time.Second) }
		claim := f.claim(nil)
		end := make(chan struct{})
		go func() {
			for {
				_, _ = f.provision(claim)
				f.newEvents() // or the next one would block
				select {
				case <-end:
					return
				case <-time.After(time.Second):
				}
			}
		}()
		for range 600 {
			time.Sleep(time.Minute)
			if err := f.Monitor.Check(); err != nil {
				t.Fatal(err)
			}
		}
		close(end)
		time.Sleep(time.Hour)
	})
}

// TestWorkThatWaitsForItsTurnAtABackendIsNoStandstill: with a low rate and many
// claims that takes hours, and the queue itself is watched.
func TestWorkThatWaitsForItsTurnAtABackendIsNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		task := f.Monitor.Begin("the worker of claim x", f.MaxWorkTime)
		defer task.End()
		ctx := task.In(t.Context())
		over := turns.CallerOf(f.OnBehalfOf(ctx, "a")).Waits()
		time.Sleep(24 * time.Hour)
		if err := f.Monitor.Check(); err != nil {
			t.Error(err)
		}
		over()
		time.Sleep(2 * time.Hour)
		if f.Monitor.Check() == nil {
			t.Error("work that is stuck after its turn is not noticed")
		}
	})
}

// TestWaitingForAListingIsNoStandstill: a leader begins with one of all volumes,
// which takes as long as Cinder takes for its pages. If that counted as a
// standstill, the next leader would begin again, and so would all after it.
func TestWaitingForAListingIsNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		listed := make(chan struct{})
		f.backends["gold"].onList = func() { <-listed }
		claim := f.claim(nil)
		go func() { _, _ = f.provision(claim) }()
		time.Sleep(24 * time.Hour)
		if err := f.Monitor.Check(); err != nil {
			t.Error(err)
		}
		close(listed)
		synctest.Wait()
	})
}
