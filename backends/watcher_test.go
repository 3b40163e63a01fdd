package backends

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// testWatcher is a watcher straight on a memoryCinder.
func testWatcher(cinder api) *watcher {
	return &watcher{
		backend:  "gold",
		interval: time.Millisecond,
		list:     cinder.ListVolumes,
		get:      cinder.Volume,
		observe:  func([]Volume) {},
		waiting:  func(int) {},
		waits:    map[*wait]struct{}{},
	}
}

func TestWaitsEndWithTheState(t *testing.T) {
	tests := map[string]struct {
		volume Volume
		ends   Status
		await  Status
		want   Status
		gone   bool
	}{
		"created":            {volume: Volume{Status: StatusCreating}, ends: StatusAvailable, await: StatusCreating, want: StatusAvailable},
		"creation fails":     {volume: Volume{Status: StatusCreating}, ends: StatusError, await: StatusCreating, want: StatusError},
		"creation vanishes":  {volume: Volume{Status: StatusCreating}, await: StatusCreating, gone: true},
		"created already":    {volume: Volume{Status: StatusAvailable}, await: StatusCreating, want: StatusAvailable},
		"deleted":            {volume: Volume{Status: StatusDeleting}, await: StatusDeleting, gone: true},
		"deletion fails":     {volume: Volume{Status: StatusDeleting}, ends: StatusErrorDeleting, await: StatusDeleting, want: StatusErrorDeleting},
		"deletion undone":    {volume: Volume{Status: StatusDeleting}, ends: StatusAvailable, await: StatusDeleting, want: StatusAvailable},
		"downloads an image": {volume: Volume{Status: "downloading"}, await: "downloading", want: StatusAvailable},
	}
	for name, test := range tests {
		for _, ignoreFilter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, ignoreFilter), func(t *testing.T) {
				cinder := newMemoryCinder()
				cinder.ignoreFilter = ignoreFilter
				id := cinder.add(test.volume)
				cinder.volumes[id].end = test.ends
				if test.volume.Status == "downloading" {
					cinder.onCall(func(string) {
						if cinder.count("volume.list") == 2 {
							cinder.mu.Lock()
							cinder.volumes[id].Status = StatusAvailable
							cinder.mu.Unlock()
						}
					})
				}
				v, gone, err := testWatcher(cinder).await(t.Context(), id, test.await, time.Minute)
				equal(t, authtest.ErrorText(err), "")
				equal(t, v.Status, test.want)
				equal(t, gone, test.gone)
			})
		}
	}
}

// TestManyDeletions: one sweep tells what became of many, and a volume that no
// listing ever showed is asked for by its id before it counts as gone.
func TestManyDeletions(t *testing.T) {
	cinder := newMemoryCinder()
	hidden := &hiding{memoryCinder: cinder, hidden: map[string]bool{}}
	w := testWatcher(hidden)
	const volumes = 60
	want := map[string]Status{}
	for i := range volumes {
		id := cinder.add(Volume{Status: StatusDeleting})
		switch i % 6 {
		case 4:
			cinder.volumes[id].end = StatusErrorDeleting
			want[id] = StatusErrorDeleting
		case 5:
			// Of another project: an administrator's own listing never shows it.
			hidden.hidden[id] = true
			fallthrough
		default:
			want[id] = ""
		}
	}
	var group sync.WaitGroup
	for id, status := range want {
		group.Go(func() {
			v, gone, err := w.await(t.Context(), id, StatusDeleting, time.Minute)
			if err != nil || gone != (status == "") || v.Status != status {
				t.Errorf("%s: %q, gone %v, error %v; want %q", id, v.Status, gone, err, status)
			}
			if _, there := cinder.snapshot()[id]; gone && there {
				t.Errorf("%s is taken for gone and is not", id)
			}
		})
	}
	group.Wait()
}

// hiding leaves volumes out of every listing.
type hiding struct {
	*memoryCinder
	hidden map[string]bool
}

func (h *hiding) ListVolumes(ctx context.Context, query VolumeQuery, yield func([]Volume) bool) error {
	return h.memoryCinder.ListVolumes(ctx, query, func(page []Volume) bool {
		var shown []Volume
		for _, v := range page {
			if !h.hidden[v.ID] {
				shown = append(shown, v)
			}
		}
		return yield(shown)
	})
}

// TestOldVolumeInCreation: what an earlier leader left in creation is behind
// thousands of newer volumes. It costs two pages and a read a round, not a
// listing of everything.
func TestOldVolumeInCreation(t *testing.T) {
	cinder := newMemoryCinder()
	id := cinder.add(Volume{Status: StatusCreating})
	for range 3000 {
		cinder.add(Volume{Status: StatusAvailable})
	}
	if _, _, err := testWatcher(cinder).await(t.Context(), id, StatusCreating, time.Minute); err != nil {
		t.Fatal(err)
	}
	rounds := cinder.looks + 1
	if n := cinder.count("volume.list"); n > 2*rounds {
		t.Errorf("%d pages in %d rounds, want at most %d", n, rounds, 2*rounds)
	}
	equal(t, cinder.count("volume.get"), rounds)
}

func TestWaitTimesOut(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.looks = 1 << 30
	id := cinder.add(Volume{Status: StatusCreating})
	w := testWatcher(cinder)
	_, _, err := w.await(t.Context(), id, StatusCreating, 5*time.Millisecond)
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 is still creating after 5ms")
	equal(t, KindOf(err), KindTimeout)
	equal(t, len(w.waits), 0)
}

func TestWaitIsCanceled(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.looks = 1 << 30
	id := cinder.add(mine(1, StatusCreating))
	ctx, cancel := context.WithCancel(t.Context())
	cinder.onCall(func(operation string) {
		if operation == "volume.list" && cinder.count("volume.list") == 3 {
			cancel()
		}
	})
	l := cinder.term(t)
	if _, err := l.Connect(ctx, claimSpec(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	cinder.onCall(nil)
	if err := l.Remove(ctx, claimTarget(1, id)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	idle(t, l)
	equal(t, cinder.changes(), []string(nil))
}

func TestListingThatKeepsFailingIsReported(t *testing.T) {
	for _, status := range []Status{StatusCreating, StatusDeleting} {
		cinder := newMemoryCinder()
		cinder.looks = 1 << 30
		id := cinder.add(Volume{Status: status})
		cinder.fault = func(operation, _ string) mishap {
			if operation == "volume.list" {
				return refused
			}
			return noFault
		}
		_, _, err := testWatcher(cinder).await(t.Context(), id, status, time.Minute)
		equal(t, authtest.ErrorText(err), "backend gold: volume.list: Cinder answered service unavailable (HTTP 503)")
		equal(t, cinder.count("volume.list"), failuresToReport)
	}
}

func TestFewFailuresAreNotReported(t *testing.T) {
	cinder := newMemoryCinder()
	id := cinder.add(Volume{Status: StatusCreating})
	n := 0
	cinder.fault = func(operation, _ string) mishap {
		if n++; n%failuresToReport != 0 {
			return refused
		}
		return noFault
	}
	v, _, err := testWatcher(cinder).await(t.Context(), id, StatusCreating, time.Minute)
	equal(t, authtest.ErrorText(err), "")
	equal(t, v.Status, StatusAvailable)
}

// TestOneVolumesTroubleIsItsOwn: reading one volume fails for ever; the others
// in flight are served, and only its own waiter is told.
func TestOneVolumesTroubleIsItsOwn(t *testing.T) {
	cinder := newMemoryCinder()
	hidden := &hiding{memoryCinder: cinder, hidden: map[string]bool{}}
	bad := cinder.add(Volume{Status: StatusDeleting})
	hidden.hidden[bad] = true
	cinder.fault = func(operation, id string) mishap {
		if operation == "volume.get" && id == bad {
			return refused
		}
		return noFault
	}
	w := testWatcher(hidden)
	var group sync.WaitGroup
	for range 20 {
		created, deleted := cinder.add(Volume{Status: StatusCreating}), cinder.add(Volume{Status: StatusDeleting})
		group.Go(func() {
			if v, _, err := w.await(t.Context(), created, StatusCreating, time.Minute); err != nil || v.Status != StatusAvailable {
				t.Errorf("%s: %s, %v", created, v.Status, err)
			}
		})
		group.Go(func() {
			if _, gone, err := w.await(t.Context(), deleted, StatusDeleting, time.Minute); err != nil || !gone {
				t.Errorf("%s: gone %v, %v", deleted, gone, err)
			}
		})
	}
	_, _, err := w.await(t.Context(), bad, StatusDeleting, time.Minute)
	equal(t, authtest.ErrorText(err), "backend gold: volume.get: Cinder answered service unavailable (HTTP 503)")
	group.Wait()
}

func TestSeveralMayWaitForOneVolume(t *testing.T) {
	cinder := newMemoryCinder()
	id := cinder.add(Volume{Status: StatusCreating})
	w := testWatcher(cinder)
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if v, _, err := w.await(t.Context(), id, StatusCreating, time.Minute); err != nil || v.Status != StatusAvailable {
				t.Errorf("%s, %v", v.Status, err)
			}
		})
	}
	group.Wait()
}

func TestGaugeFollowsTheWaits(t *testing.T) {
	cinder := newMemoryCinder()
	id := cinder.add(Volume{Status: StatusCreating})
	w := testWatcher(cinder)
	var seen []int
	w.waiting = func(more int) { seen = append(seen, more) }
	if _, _, err := w.await(t.Context(), id, StatusCreating, time.Minute); err != nil {
		t.Fatal(err)
	}
	equal(t, seen, []int{1, -1})
}
