package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

func TestWaitsEndWithTheState(t *testing.T) {
	tests := map[string]struct {
		status cinder.Status
		ends   cinder.Status
		await  cinder.Status
		want   cinder.Status
		gone   bool
	}{
		"created":            {status: cinder.StatusCreating, ends: cinder.StatusAvailable, await: cinder.StatusCreating, want: cinder.StatusAvailable},
		"creation fails":     {status: cinder.StatusCreating, ends: cinder.StatusError, await: cinder.StatusCreating, want: cinder.StatusError},
		"creation vanishes":  {status: cinder.StatusCreating, await: cinder.StatusCreating, gone: true},
		"created already":    {status: cinder.StatusAvailable, await: cinder.StatusCreating, want: cinder.StatusAvailable},
		"deleted":            {status: cinder.StatusDeleting, await: cinder.StatusDeleting, gone: true},
		"deletion fails":     {status: cinder.StatusDeleting, ends: cinder.StatusErrorDeleting, await: cinder.StatusDeleting, want: cinder.StatusErrorDeleting},
		"deletion undone":    {status: cinder.StatusDeleting, ends: cinder.StatusAvailable, await: cinder.StatusDeleting, want: cinder.StatusAvailable},
		"downloads an image": {status: "downloading", ends: cinder.StatusAvailable, await: cinder.StatusCreating, want: cinder.StatusAvailable},
	}
	for name, test := range tests {
		for _, ignoreFilter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, ignoreFilter), func(t *testing.T) {
				p := newProject()
				p.ignoreFilter = ignoreFilter
				v := p.add(test.status)
				v.end = test.ends
				found, gone, err := p.watcher().Await(t.Context(), v.id, test.await, time.Minute)
				equal(t, err, nil)
				equal(t, gone, test.gone)
				equal(t, found.status, test.want)
			})
		}
	}
}

// TestManyDeletions: one sweep settles many, and a volume that no listing ever
// showed is read by its ID before it counts as gone.
func TestManyDeletions(t *testing.T) {
	p := newProject()
	w := p.watcher()
	want := map[string]cinder.Status{}
	for i := range 60 {
		v := p.add(cinder.StatusDeleting)
		switch i % 6 {
		case 4:
			v.end = cinder.StatusErrorDeleting
		case 5:
			// Of another project: an administrator's listing never shows it.
			v.hidden = true
		}
		want[v.id] = v.end
	}
	var group sync.WaitGroup
	for id, status := range want {
		group.Go(func() {
			found, gone, err := w.Await(t.Context(), id, cinder.StatusDeleting, time.Minute)
			if err != nil || gone != (status == "") || found.status != status {
				t.Errorf("%s: %q, gone %v, error %v; want %q", id, found.status, gone, err, status)
			}
			if gone && p.exists(id) {
				t.Errorf("%s counts as gone but exists", id)
			}
		})
	}
	group.Wait()
}

// TestOldVolumeInCreation: a volume that an earlier leader left in creation is
// behind thousands of newer ones. It costs two pages and a read per round, not
// a listing of everything.
func TestOldVolumeInCreation(t *testing.T) {
	p := newProject()
	v := p.add(cinder.StatusCreating)
	for range 3000 {
		p.add(cinder.StatusAvailable)
	}
	_, _, err := p.watcher().Await(t.Context(), v.id, cinder.StatusCreating, time.Minute)
	equal(t, err, nil)
	rounds := p.looks + 1
	if n := p.count("list"); n > 2*rounds {
		t.Errorf("%d pages in %d rounds, want at most %d", n, rounds, 2*rounds)
	}
	equal(t, p.count("get"), rounds)
}

func TestWaitTimesOut(t *testing.T) {
	p := newProject()
	p.looks = 1 << 30
	v := p.add(cinder.StatusCreating)
	w := p.watcher()
	_, _, err := w.Await(t.Context(), v.id, cinder.StatusCreating, 5*time.Millisecond)
	if err == nil || err.Error() != "backend gold: volume volume-1 is still creating after 5ms" {
		t.Errorf("error %v", err)
	}
	equal(t, cinder.KindOf(err), KindTimeout)
	equal(t, len(w.waits), 0)
}

func TestWaitIsCanceled(t *testing.T) {
	p := newProject()
	p.looks = 1 << 30
	ctx, cancel := context.WithCancel(t.Context())
	p.list = func(context.Context, cinder.Status, int) (bool, error) {
		if p.count("list") == 3 {
			cancel()
		}
		return false, nil
	}
	w := p.watcher()
	_, _, err := w.Await(ctx, p.add(cinder.StatusCreating).id, cinder.StatusCreating, time.Minute)
	equal(t, errors.Is(err, context.Canceled), true)
	for deadline := time.Now().Add(time.Minute); w.Running(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the rounds go on although nothing is waited for")
		}
	}
}

var errRefused = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "Cinder answered service unavailable"}

func TestRequestsThatKeepFailingAreReported(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusCreating, cinder.StatusDeleting} {
		p := newProject()
		v := p.add(status)
		p.fault = func(string, string) error { return errRefused }
		_, _, err := p.watcher().Await(t.Context(), v.id, status, time.Minute)
		equal(t, err, error(errRefused))
		equal(t, p.count("list")+p.count("get"), failuresToReport)
	}
}

func TestFewFailuresAreNotReported(t *testing.T) {
	p := newProject()
	v := p.add(cinder.StatusCreating)
	n := 0
	p.fault = func(string, string) error {
		if n++; n%failuresToReport != 0 {
			return errRefused
		}
		return nil
	}
	found, _, err := p.watcher().Await(t.Context(), v.id, cinder.StatusCreating, time.Minute)
	equal(t, err, nil)
	equal(t, found.status, cinder.StatusAvailable)
}

// TestOneFailureDelaysNoOtherWait: reading one volume fails forever; the others
// in flight are served, and only that volume's waits fail.
func TestOneFailureDelaysNoOtherWait(t *testing.T) {
	p := newProject()
	bad := p.add(cinder.StatusDeleting)
	bad.hidden = true
	p.fault = func(operation, id string) error {
		if operation == "get" && id == bad.id {
			return errRefused
		}
		return nil
	}
	w := p.watcher()
	var others []volume
	for i := range 40 {
		others = append(others, *p.add([]cinder.Status{cinder.StatusCreating, cinder.StatusDeleting}[i%2]))
	}
	var group sync.WaitGroup
	for _, v := range others {
		group.Go(func() {
			found, gone, err := w.Await(t.Context(), v.id, v.status, time.Minute)
			if err != nil || gone != (v.end == "") || found.status != v.end {
				t.Errorf("%s: %s, gone %v, %v; want %q", v.id, found.status, gone, err, v.end)
			}
		})
	}
	_, _, err := w.Await(t.Context(), bad.id, cinder.StatusDeleting, time.Minute)
	equal(t, err, error(errRefused))
	group.Wait()
}

func TestSeveralMayWaitForOneVolume(t *testing.T) {
	p := newProject()
	v := p.add(cinder.StatusCreating)
	w := p.watcher()
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if found, _, err := w.Await(t.Context(), v.id, cinder.StatusCreating, time.Minute); err != nil || found.status != cinder.StatusAvailable {
				t.Errorf("%s, %v", found.status, err)
			}
		})
	}
	group.Wait()
}

func TestNumberOfWaitsIsTold(t *testing.T) {
	p := newProject()
	v := p.add(cinder.StatusCreating)
	options := p.options()
	var seen []int
	options.Waiting = func(more int) { seen = append(seen, more) }
	_, _, err := New(options).Await(t.Context(), v.id, cinder.StatusCreating, time.Minute)
	equal(t, err, nil)
	if !slices.Equal(seen, []int{1, -1}) {
		t.Errorf("told %v", seen)
	}
}

// TestVolumeIsSeenWithoutAListing: a deletion that expects its volume in the next
// listing reads it if that listing fails or does not come.
func TestVolumeIsSeenWithoutAListing(t *testing.T) {
	for name, list := range map[string]func(context.Context, cinder.Status, int) (bool, error){
		"it fails": func(context.Context, cinder.Status, int) (bool, error) { return true, errRefused },
		"it hangs": func(context.Context, cinder.Status, int) (bool, error) {
			<-t.Context().Done()
			return true, t.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProject()
			p.looks = 1 << 30
			deleted, id := p.add(cinder.StatusDeleting).id, p.add(cinder.StatusInUse).id
			p.list = list
			options := p.options()
			options.Interval = 20 * time.Millisecond
			w := New(options).of(0)
			w.listedAll = true
			go w.Await(t.Context(), deleted, cinder.StatusDeleting, time.Minute) //nolint:errcheck // It ends with the test.
			for !w.listsSoon() {
				time.Sleep(time.Millisecond)
			}
			found, err := w.See(t.Context(), id, 300*time.Millisecond)
			equal(t, err, nil)
			equal(t, found.id, id)
		})
	}
}

// TestListingsThatFailAreNotRepeated: a listing of everything that fails, as it
// does where one volume's metadata cannot be read, stops no wait that does not
// need it.
func TestListingsThatFailAreNotRepeated(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusCreating, cinder.StatusDeleting} {
		p := newProject()
		v := p.add(status)
		p.list = func(_ context.Context, status cinder.Status, size int) (bool, error) {
			return status == "" && size == pageSize, errRefused
		}
		_, _, err := p.watcher().of(1).Await(t.Context(), v.id, status, time.Minute)
		equal(t, err, nil)
	}
}

// TestEmptyingAProjectMakesListingsCheaper: what is known to be gone does not add
// to the cost of the next listing.
func TestEmptyingAProjectMakesListingsCheaper(t *testing.T) {
	p := newProject()
	v := p.add(cinder.StatusDeleting)
	v.hidden = true
	w := p.watcher().of(500)
	_, gone, err := w.Await(t.Context(), v.id, cinder.StatusDeleting, time.Minute)
	equal(t, err, nil)
	equal(t, gone, true)
	wantTotal(t, w, 499)
}

// wantTotal waits for a total: a round tells the waits first.
func wantTotal(t *testing.T, w *Watcher[volume], want int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); *w.total.Load() != want && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	equal(t, *w.total.Load(), want)
}

// TestTotalFollowsWhatIsMadeAndRemoved: replacing volumes leaves the total as it is, and
// what a listing has left out is not subtracted again.
func TestTotalFollowsWhatIsMadeAndRemoved(t *testing.T) {
	t.Run("replaced one by one", func(t *testing.T) {
		p := newProject()
		for range 300 {
			p.add(cinder.StatusInUse)
		}
		w := p.watcher().of(300)
		for range 50 {
			_, _, err := w.Await(t.Context(), p.add(cinder.StatusCreating).id, cinder.StatusCreating, time.Minute)
			equal(t, err, nil)
			removed := p.add(cinder.StatusDeleting)
			removed.hidden = true
			_, gone, err := w.Await(t.Context(), removed.id, cinder.StatusDeleting, time.Minute)
			equal(t, err, nil)
			equal(t, gone, true)
		}
		wantTotal(t, w, 300)
	})
	t.Run("gone before the listing", func(t *testing.T) {
		p := newProject()
		for range 40 {
			p.add(cinder.StatusInUse)
		}
		options := p.options()
		all := make(chan struct{})
		options.Pause = func(pause time.Duration, _ <-chan struct{}) { <-all; time.Sleep(pause) }
		w := New(options).of(40)
		var group sync.WaitGroup
		for i := range 40 {
			group.Go(func() {
				_, gone, err := w.Await(t.Context(), fmt.Sprintf("gone-%d", i), cinder.StatusDeleting, time.Minute)
				equal(t, err, nil)
				equal(t, gone, true)
			})
		}
		for {
			w.mu.Lock()
			n := len(w.waits)
			w.mu.Unlock()
			if n == 40 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		close(all)
		group.Wait()
		equal(t, *w.total.Load(), 40)
	})
}

// TestTheFirstLookComesWhenItIsWorthItsCost: what takes a second each time takes two
// requests each time, and a wait that is due earlier does not wait for others.
func TestTheFirstLookComesWhenItIsWorthItsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProject()
		options := p.options()
		options.Interval = 200 * time.Millisecond
		options.Pause = func(pause time.Duration, woken <-chan struct{}) {
			select {
			case <-time.After(pause):
			case <-woken:
			}
		}
		w := New(options)
		lasts := func(status cinder.Status, duration time.Duration) (took time.Duration, requests int) {
			p.looks = 1 << 30 // until it is changed below
			v := p.add(status)
			go func() {
				time.Sleep(duration)
				p.mu.Lock()
				defer p.mu.Unlock()
				if v.status = v.end; v.end == "" {
					v.gone = true
				}
			}()
			began, before := time.Now(), p.count("get")+p.count("list")
			if _, _, err := w.Await(t.Context(), v.id, status, time.Minute); err != nil {
				t.Error(err)
			}
			return time.Since(began), p.count("get") + p.count("list") - before
		}
		for range fewest {
			lasts(cinder.StatusDeleting, time.Second)
			lasts(cinder.StatusCreating, time.Second)
		}
		for range 20 {
			for _, status := range []cinder.Status{cinder.StatusCreating, cinder.StatusDeleting} {
				if took, requests := lasts(status, time.Second); took > 1300*time.Millisecond || requests > 2 {
					t.Errorf("%s took %s and %d requests", status, took, requests)
				}
			}
		}
		time.Sleep(time.Minute) // until no more rounds are made
	})
}

// TestNobodyWaitsForASlowListing: a volume is read at once if a listing has just begun and
// the next one comes late.
func TestNobodyWaitsForASlowListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProject()
		p.looks = 1 << 30
		deleted, id := p.add(cinder.StatusDeleting).id, p.add(cinder.StatusInUse).id
		p.list = func(context.Context, cinder.Status, int) (bool, error) {
			time.Sleep(3 * time.Second)
			return false, nil
		}
		options := p.options()
		options.Interval = 200 * time.Millisecond
		w := New(options).of(0)
		ctx, cancel := context.WithCancel(t.Context())
		go w.Await(ctx, deleted, cinder.StatusDeleting, time.Hour) //nolint:errcheck // It ends with the test.
		for p.count("list") < 3 {
			w.of(0) // Listing everything stays the cheapest.
			time.Sleep(100 * time.Millisecond)
		}
		began := time.Now()
		_, err := w.See(t.Context(), id, time.Minute)
		equal(t, err, nil)
		equal(t, time.Since(began), 0)
		cancel()
		time.Sleep(time.Minute) // until no more rounds are made
	})
}
