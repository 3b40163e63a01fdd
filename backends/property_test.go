package backends

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// world is a Cinder with foreign volumes, and random faults for later calls. It
// watches for anything that must never happen.
type world struct {
	*memoryCinder
	foreign map[string]cinder.Volume

	mu       sync.Mutex
	mishaps  []mishap
	broken   []string
	terms    int
	failures []cinder.Status // statuses after the next creates
}

var ownStates = []cinder.Status{cinder.StatusCreating, cinder.StatusAvailable, cinder.StatusAttaching, cinder.StatusInUse, cinder.StatusError, cinder.StatusErrorDeleting, cinder.StatusDeleting}

func newWorld(t *rapid.T) *world {
	w := &world{memoryCinder: newMemoryCinder(), foreign: map[string]cinder.Volume{}}
	w.looks = rapid.IntRange(0, 3).Draw(t, "looks")
	w.workflow = rapid.SampledFrom([]cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment}).Draw(t, "workflow")
	w.shared = rapid.IntRange(0, 3).Draw(t, "one of four: several hosts may attach") == 0
	w.mishaps = rapid.SliceOfN(rapid.SampledFrom([]mishap{noFault, noFault, refused, lost, unsent, rateLimited, unauthorized}), 0, 80).Draw(t, "mishaps")
	w.failures = rapid.SliceOfN(rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusError}), 0, 4).Draw(t, "ends of creation")
	w.ignoreFilter = rapid.Bool().Draw(t, "filter ignored")

	cluster, claim, pv, nothing := mine(1, ""), mine(2, ""), mine(1, ""), cinder.Volume{Name: claimStamp(1).PV}
	cluster.Metadata[stamps.KeyCluster] = "cluster-2"
	pv.Metadata[stamps.KeyPV] = "pvc-another"
	for i, v := range []cinder.Volume{cluster, claim, pv, nothing} {
		v.Status = rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusAttaching, cinder.StatusInUse, cinder.StatusError, cinder.StatusErrorDeleting}).Draw(t, fmt.Sprintf("foreign state %d", i))
		if v.Status == cinder.StatusInUse {
			v.Attachments = []cinder.Attachment{{ID: "attachment-foreign", Host: testConnector.Host}}
		}
		id := w.add(v)
		w.foreign[id] = w.present()[id]
	}
	w.fault = w.nextMishap
	w.created = func(string) cinder.Status {
		// This is called with memoryCinder's lock held, once the new volume
		// exists.
		var own []string
		for _, v := range w.volumes {
			if claimStamp(1).Owns(v.Volume) {
				own = append(own, v.ID+" "+string(v.Status))
			}
		}
		if len(own) > 1 {
			w.complain("a duplicate was created: %s", strings.Join(own, ", "))
		}
		if len(w.failures) == 0 {
			return cinder.StatusAvailable
		}
		end := w.failures[0]
		w.failures = w.failures[1:]
		return end
	}
	return w
}

func (w *world) complain(format string, arguments ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, fmt.Sprintf(format, arguments...))
}

func (w *world) nextMishap(operation, id string) mishap {
	id, _, _ = strings.Cut(id, " ")
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, foreign := w.foreign[id]; foreign && !isRead(operation) {
		w.broken = append(w.broken, operation+" of the foreign volume "+id)
	}
	if len(w.mishaps) == 0 {
		return noFault
	}
	next := w.mishaps[0]
	w.mishaps = w.mishaps[1:]
	return next
}

// leftover returns a volume that an earlier term left in some state, connected
// by either API.
func (w *world) leftover(t *rapid.T, i int, status cinder.Status) string {
	if rapid.Bool().Draw(t, fmt.Sprintf("volume %d by the volume actions", i)) {
		return w.add(mine(1, status))
	}
	var attachments []string
	if status == cinder.StatusAttaching {
		attachments = rapid.SliceOfN(rapid.SampledFrom([]string{"reserved", "attaching", "error_attaching"}), 0, 2).Draw(t, fmt.Sprintf("attachments of volume %d", i))
	}
	return w.byAttachments(1, status, attachments...)
}

// check looks for anything that must never have happened.
func (w *world) check(t *rapid.T) {
	t.Helper()
	w.mu.Lock()
	broken := slices.Clone(w.broken)
	w.mu.Unlock()
	if len(broken) > 0 {
		t.Fatalf("%s\nlog: %s", strings.Join(broken, "\n"), strings.Join(w.log, "\n     "))
	}
	now := w.present()
	for id, before := range w.foreign {
		if !reflect.DeepEqual(now[id], before) {
			t.Fatalf("the foreign volume %s was changed: %+v, was %+v", id, now[id], before)
		}
	}
}

// until repeats an operation, with new terms in between, until it succeeds.
func (w *world) until(t *rapid.T, tb testing.TB, name string, operation func(l *Lifecycle) error) error {
	t.Helper()
	l := w.term(tb)
	var err error
	for range 120 {
		if err = operation(l); err == nil {
			return nil
		}
		if rapid.IntRange(0, 3).Draw(t, name+": a new term") == 0 {
			l = w.term(tb)
			w.terms++
		}
	}
	return err
}

// TestOneClaimOneVolume: from any state left behind, through faults, lost
// answers and changes of the leader, a claim ends with exactly one connected
// volume; then with none. A volume that is not provably the claim's is never
// touched.
func TestOneClaimOneVolume(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		known := 0
		var attached []string
		for i, status := range rapid.SliceOfN(rapid.SampledFrom(ownStates), 0, 3).Draw(rt, "left from before") {
			id := w.leftover(rt, i, status)
			if status == cinder.StatusCreating {
				w.volumes[id].end = rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusError, ""}).Draw(rt, fmt.Sprintf("end of creation %d", i))
			}
			if status == cinder.StatusInUse {
				known++
				attached = append(attached, id)
			}
		}
		before := w.present()

		var connected Connected
		err := w.until(rt, t, "connect", func(l *Lifecycle) (err error) {
			connected, err = l.Connect(t.Context(), claimSpec(1))
			return err
		})
		w.check(rt)
		if known > 1 {
			if !cinder.IsKind(err, KindRecorded) {
				rt.Fatalf("several volumes may be recorded, but: %v", err)
			}
			for _, id := range attached {
				if now := w.present()[id]; !reflect.DeepEqual(now, before[id]) {
					rt.Fatalf("%s was in use and was changed: %+v", id, now)
				}
			}
			return
		}
		if err != nil {
			rt.Fatalf("no connection in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		want := cinder.StatusAttaching
		if known == 1 {
			want = cinder.StatusInUse
			if connected.Volume.ID != attached[0] {
				rt.Fatalf("kept %s although %s was in use", connected.Volume.ID, attached[0])
			}
		}
		found := w.stamped(claimStamp(1))
		if len(found) != 1 || found[0].ID != connected.Volume.ID || found[0].Status != want {
			rt.Fatalf("left %+v, want one volume %s\nlog: %s", found, want, strings.Join(w.log, "\n     "))
		}

		if rapid.Bool().Draw(rt, "completed") {
			w.member = rapid.Bool().Draw(rt, "member")
			w.mu.Lock()
			w.mishaps = rapid.SliceOfN(rapid.SampledFrom([]mishap{noFault, refused, lost, unsent}), 0, 10).Draw(rt, "mishaps of the completion")
			w.mu.Unlock()
			err := w.until(rt, t, "complete", func(l *Lifecycle) error {
				return l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false)
			})
			w.check(rt)
			found := w.stamped(claimStamp(1))
			if err != nil || len(found) != 1 || found[0].Status != cinder.StatusInUse || len(found[0].Attachments) != 1 {
				rt.Fatalf("after completion: %v, %+v", err, found)
			}
			w.member = false
		}

		w.mu.Lock()
		w.mishaps = rapid.SliceOfN(rapid.SampledFrom([]mishap{noFault, refused, lost, unsent, rateLimited, unauthorized}), 0, 40).Draw(rt, "mishaps of the removal")
		w.mu.Unlock()
		if err := w.until(rt, t, "remove", func(l *Lifecycle) error {
			return l.Remove(t.Context(), claimTarget(1, connected.Volume.ID))
		}); err != nil {
			rt.Fatalf("not removed in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.check(rt)
		if found := w.stamped(claimStamp(1)); len(found) != 0 {
			rt.Fatalf("left %+v, want nothing", found)
		}
	})
}

// TestAbandonedClaimLeavesNothing deletes a claim at any point of its
// provisioning.
func TestAbandonedClaimLeavesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		l := w.term(t)
		for range rapid.IntRange(0, 5).Draw(rt, "attempts") {
			_, _ = l.Connect(t.Context(), claimSpec(1))
			if rapid.Bool().Draw(rt, "a new term") {
				l = w.term(t)
			}
		}
		if err := w.until(rt, t, "abandon", func(l *Lifecycle) error { return l.Abandon(t.Context(), claimStamp(1), testConnector, nil) }); err != nil {
			rt.Fatalf("not abandoned in the end: %v", err)
		}
		w.check(rt)
		if found := w.stamped(claimStamp(1)); len(found) != 0 {
			rt.Fatalf("left %+v, want nothing", found)
		}
	})
}

// TestFenceThatFallsAnyTime: once the fence rejects changes, none is made,
// whatever was under way.
func TestFenceThatFallsAnyTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for range rapid.IntRange(0, 2).Draw(rt, "left from before") {
			w.add(mine(1, rapid.SampledFrom(ownStates).Draw(rt, "state")))
		}
		stands := rapid.IntRange(0, 12).Draw(rt, "changes until it falls")
		var mu sync.Mutex
		asked := 0
		l := w.term(t, func(o *LifecycleOptions) {
			o.Fence = func() error {
				mu.Lock()
				defer mu.Unlock()
				if asked++; asked > stands {
					return fmt.Errorf("the term is over")
				}
				return nil
			}
		})
		for range 6 {
			switch rapid.IntRange(0, 3).Draw(rt, "operation") {
			case 0, 1:
				_, _ = l.Connect(t.Context(), claimSpec(1))
			case 2:
				_ = l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
			case 3:
				for _, v := range w.stamped(claimStamp(1)) {
					_ = l.Remove(t.Context(), claimTarget(1, v.ID))
				}
			}
		}
		w.check(rt)
		if n := len(w.changes()); n > stands {
			rt.Fatalf("%d changes, the fence fell after %d", n, stands)
		}
	})
}

// TestTwoLeadersAtOnce: a paused process continues while its successor works.
// Both may create a volume. When both are done and one of them looks again, one
// volume is left, and none that was attached is lost.
func TestTwoLeadersAtOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		memory := newMemoryCinder()
		memory.looks = rapid.IntRange(1, 4).Draw(rt, "looks")
		var group sync.WaitGroup
		for range 2 {
			l := memory.term(t)
			group.Go(func() { _, _ = l.Connect(t.Context(), claimSpec(1)) })
		}
		group.Wait()
		l := memory.term(t)
		var err error
		for range 5 {
			if _, err = l.Connect(t.Context(), claimSpec(1)); err == nil {
				break
			}
		}
		found := memory.stamped(claimStamp(1))
		if err != nil || len(found) != 1 || found[0].Status != cinder.StatusAttaching {
			rt.Fatalf("%v; left %+v\nlog: %s", err, found, strings.Join(memory.log, "\n     "))
		}
	})
}

// sweep does what a leader does after a while: it lists again, and removes
// duplicates and orphans in the listing.
func (w *world) sweep(t *rapid.T, tb testing.TB, recorded string) {
	t.Helper()
	err := w.until(t, tb, "sweep", func(l *Lifecycle) error {
		listed, err := l.Relist(tb.Context())
		for _, v := range listed {
			if err == nil && v.ID != recorded && claimStamp(1).Owns(v) && !stamps.EverAttached(v) {
				err = l.RemoveUnrecorded(tb.Context(), v.ID, claimStamp(1), testConnector, nil)
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("no sweep in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
	}
}

// TestLateAndRepeatedRequests: requests that take effect twice, or long after
// their sender stopped waiting, may create duplicates for a while. Once nothing
// more can arrive, a sweep leaves one volume, attached, and none after the
// removal.
func TestLateAndRepeatedRequests(t *testing.T) {
	seconds := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.created = nil
		delays := rapid.SliceOfN(rapid.IntRange(1, 20), 8, 8).Draw(rt, "calls late")
		w.delay = func() int {
			delays = append(delays[1:], delays[0])
			return delays[0]
		}
		withMishaps := func(name string, longest int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.mishaps = rapid.SliceOfN(rapid.SampledFrom([]mishap{noFault, noFault, late, twice, lost, refused}), 0, longest).Draw(rt, "mishaps of the "+name)
		}
		withMishaps("connection", 30)
		var connected Connected
		if err := w.until(rt, t, "connect", func(l *Lifecycle) (err error) {
			connected, err = l.Connect(t.Context(), claimSpec(1))
			return err
		}); err != nil {
			rt.Fatalf("no connection in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		id := connected.Volume.ID
		withMishaps("completion", 10)
		if err := w.until(rt, t, "complete", func(l *Lifecycle) error { return l.Complete(t.Context(), claimTarget(1, id), false) }); err != nil {
			rt.Fatalf("not completed in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.deliverAll()
		if len(w.stamped(claimStamp(1))) > 1 {
			seconds++
		}
		w.sweep(rt, t, id)
		w.check(rt)
		// A volume for several hosts accepts a late reservation in addition to
		// its attachment.
		if found := w.stamped(claimStamp(1)); len(found) != 1 || found[0].ID != id || found[0].Status != cinder.StatusInUse && !(w.shared && len(found[0].Attachments) > 0) {
			rt.Fatalf("left %+v, want %s in use\nlog: %s", found, id, strings.Join(w.log, "\n     "))
		}
		withMishaps("removal", 20)
		if err := w.until(rt, t, "remove", func(l *Lifecycle) error { return l.Remove(t.Context(), claimTarget(1, id)) }); err != nil {
			rt.Fatalf("not removed in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.deliverAll()
		w.sweep(rt, t, "")
		w.check(rt)
		if found := w.stamped(claimStamp(1)); len(found) != 0 {
			rt.Fatalf("left %+v, want nothing\nlog: %s", found, strings.Join(w.log, "\n     "))
		}
	})
	if seconds == 0 {
		t.Error("no run had a duplicate; this test would prove little")
	}
}

// TestOneClaimOneVolumeThroughOutages: requests that are rejected during a
// claim's provisioning neither lose nor duplicate a volume.
func TestOneClaimOneVolumeThroughOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outages atomic.Int32
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			w := newWorld(rt)
			// Every request takes some time: what began before another request
			// must be distinguishable from what began after it.
			w.onCall(func(string) { time.Sleep(time.Millisecond) })
			failures := rapid.IntRange(1, 3).Draw(rt, "failures to open")
			var end context.CancelFunc
			begin := func() *Lifecycle {
				var term context.Context
				term, end = context.WithCancel(context.Background())
				return w.term(t, func(o *LifecycleOptions) {
					o.Term, o.FailuresToOpen = term, failures
					o.HealthChanged = func(error) { outages.Add(1) }
				})
			}
			l := begin()
			defer func() {
				end()
				time.Sleep(time.Minute) // until all waits for volumes have ended
			}()
			var err error
			for range 120 {
				if _, err = l.Connect(t.Context(), claimSpec(1)); err == nil {
					break
				}
				if rapid.IntRange(0, 4).Draw(rt, "a new term") == 0 {
					end()
					l = begin()
				}
				time.Sleep(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds to the next attempt")) * time.Second)
			}
			w.check(rt)
			if found := w.stamped(claimStamp(1)); err != nil || len(found) != 1 || found[0].Status != cinder.StatusAttaching {
				rt.Fatalf("%v; left %+v\nlog: %s", err, found, strings.Join(w.log, "\n     "))
			}
		})
		if outages.Load() == 0 {
			t.Error("no outage in any run")
		}
	})
}
