package backends

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// testWatcher is a watcher directly on a memoryCinder.
func testWatcher(client Cinder) *watcher[cinder.Volume] {
	return &watcher[cinder.Volume]{
		backend:  "gold",
		noun:     "volume",
		interval: time.Millisecond,
		list: func(ctx context.Context, status cinder.Status, pageSize int, yield func([]cinder.Volume) bool) error {
			return client.ListVolumes(ctx, cinder.VolumeQuery{Status: status, PageSize: pageSize}, yield)
		},
		get:     client.Volume,
		state:   func(v cinder.Volume) (string, cinder.Status) { return v.ID, v.Status },
		observe: func([]cinder.Volume) {},
		waiting: func(int) {},
		waits:   map[*wait[cinder.Volume]]struct{}{},
	}
}

func TestWaitsEndWithTheState(t *testing.T) {
	tests := map[string]struct {
		volume cinder.Volume
		ends   cinder.Status
		await  cinder.Status
		want   cinder.Status
		gone   bool
	}{
		"created":            {volume: cinder.Volume{Status: cinder.StatusCreating}, ends: cinder.StatusAvailable, await: cinder.StatusCreating, want: cinder.StatusAvailable},
		"creation fails":     {volume: cinder.Volume{Status: cinder.StatusCreating}, ends: cinder.StatusError, await: cinder.StatusCreating, want: cinder.StatusError},
		"creation vanishes":  {volume: cinder.Volume{Status: cinder.StatusCreating}, await: cinder.StatusCreating, gone: true},
		"created already":    {volume: cinder.Volume{Status: cinder.StatusAvailable}, await: cinder.StatusCreating, want: cinder.StatusAvailable},
		"deleted":            {volume: cinder.Volume{Status: cinder.StatusDeleting}, await: cinder.StatusDeleting, gone: true},
		"deletion fails":     {volume: cinder.Volume{Status: cinder.StatusDeleting}, ends: cinder.StatusErrorDeleting, await: cinder.StatusDeleting, want: cinder.StatusErrorDeleting},
		"deletion undone":    {volume: cinder.Volume{Status: cinder.StatusDeleting}, ends: cinder.StatusAvailable, await: cinder.StatusDeleting, want: cinder.StatusAvailable},
		"downloads an image": {volume: cinder.Volume{Status: "downloading"}, await: "downloading", want: cinder.StatusAvailable},
	}
	for name, test := range tests {
		for _, ignoreFilter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, ignoreFilter), func(t *testing.T) {
				memory := newMemoryCinder()
				memory.ignoreFilter = ignoreFilter
				id := memory.add(test.volume)
				memory.volumes[id].end = test.ends
				if test.volume.Status == "downloading" {
					memory.onCall(func(string) {
						if memory.count("volume.list") == 2 {
							memory.mu.Lock()
							memory.volumes[id].Status = cinder.StatusAvailable
							memory.mu.Unlock()
						}
					})
				}
				v, gone, err := testWatcher(memory).await(t.Context(), id, test.await, time.Minute)
				equal(t, authtest.ErrorText(err), "")
				equal(t, v.Status, test.want)
				equal(t, gone, test.gone)
			})
		}
	}
}

// TestManyDeletions: one sweep settles many, and a volume that no listing ever
// showed is read by its ID before it counts as gone.
func TestManyDeletions(t *testing.T) {
	memory := newMemoryCinder()
	hidden := &hiding{memoryCinder: memory, hidden: map[string]bool{}}
	w := testWatcher(hidden)
	const volumes = 60
	want := map[string]cinder.Status{}
	for i := range volumes {
		id := memory.add(cinder.Volume{Status: cinder.StatusDeleting})
		switch i % 6 {
		case 4:
			memory.volumes[id].end = cinder.StatusErrorDeleting
			want[id] = cinder.StatusErrorDeleting
		case 5:
			// Of another project: an administrator's listing never shows it.
			hidden.hidden[id] = true
			fallthrough
		default:
			want[id] = ""
		}
	}
	var group sync.WaitGroup
	for id, status := range want {
		group.Go(func() {
			v, gone, err := w.await(t.Context(), id, cinder.StatusDeleting, time.Minute)
			if err != nil || gone != (status == "") || v.Status != status {
				t.Errorf("%s: %q, gone %v, error %v; want %q", id, v.Status, gone, err, status)
			}
			if _, there := memory.present()[id]; gone && there {
				t.Errorf("%s counts as gone but exists", id)
			}
		})
	}
	group.Wait()
}

// hiding omits volumes from every listing.
type hiding struct {
	*memoryCinder
	hidden map[string]bool
}

func (h *hiding) ListVolumes(ctx context.Context, query cinder.VolumeQuery, yield func([]cinder.Volume) bool) error {
	return h.memoryCinder.ListVolumes(ctx, query, func(page []cinder.Volume) bool {
		var shown []cinder.Volume
		for _, v := range page {
			if !h.hidden[v.ID] {
				shown = append(shown, v)
			}
		}
		return yield(shown)
	})
}

// TestOldVolumeInCreation: a volume that an earlier leader left in creation is
// behind thousands of newer ones. It costs two pages and a read per round, not
// a listing of everything.
func TestOldVolumeInCreation(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusCreating})
	for range 3000 {
		memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	}
	if _, _, err := testWatcher(memory).await(t.Context(), id, cinder.StatusCreating, time.Minute); err != nil {
		t.Fatal(err)
	}
	rounds := memory.looks + 1
	if n := memory.count("volume.list"); n > 2*rounds {
		t.Errorf("%d pages in %d rounds, want at most %d", n, rounds, 2*rounds)
	}
	equal(t, memory.count("volume.get"), rounds)
}

func TestWaitTimesOut(t *testing.T) {
	memory := newMemoryCinder()
	memory.looks = 1 << 30
	id := memory.add(cinder.Volume{Status: cinder.StatusCreating})
	w := testWatcher(memory)
	_, _, err := w.await(t.Context(), id, cinder.StatusCreating, 5*time.Millisecond)
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 is still creating after 5ms")
	equal(t, cinder.KindOf(err), KindTimeout)
	equal(t, len(w.waits), 0)
}

func TestWaitIsCanceled(t *testing.T) {
	memory := newMemoryCinder()
	memory.looks = 1 << 30
	id := memory.add(mine(1, cinder.StatusCreating))
	ctx, cancel := context.WithCancel(t.Context())
	memory.onCall(func(operation string) {
		if operation == "volume.list" && memory.count("volume.list") == 3 {
			cancel()
		}
	})
	l := memory.term(t)
	if _, err := l.Connect(ctx, claimSpec(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	memory.onCall(nil)
	if err := l.Remove(ctx, claimTarget(1, id)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	idle(t, l)
	equal(t, memory.changes(), []string(nil))
}

func TestListingThatKeepsFailingIsReported(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusCreating, cinder.StatusDeleting} {
		memory := newMemoryCinder()
		memory.looks = 1 << 30
		id := memory.add(cinder.Volume{Status: status})
		memory.fault = func(operation, _ string) mishap {
			if operation == "volume.list" {
				return refused
			}
			return noFault
		}
		_, _, err := testWatcher(memory).await(t.Context(), id, status, time.Minute)
		equal(t, authtest.ErrorText(err), "backend gold: volume.list: Cinder answered service unavailable (HTTP 503)")
		equal(t, memory.count("volume.list"), failuresToReport)
	}
}

func TestFewFailuresAreNotReported(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusCreating})
	n := 0
	memory.fault = func(operation, _ string) mishap {
		if n++; n%failuresToReport != 0 {
			return refused
		}
		return noFault
	}
	v, _, err := testWatcher(memory).await(t.Context(), id, cinder.StatusCreating, time.Minute)
	equal(t, authtest.ErrorText(err), "")
	equal(t, v.Status, cinder.StatusAvailable)
}

// TestOneVolumesTroubleIsItsOwn: reading one volume fails forever; the others
// in flight are served, and only that volume's waits fail.
func TestOneVolumesTroubleIsItsOwn(t *testing.T) {
	memory := newMemoryCinder()
	hidden := &hiding{memoryCinder: memory, hidden: map[string]bool{}}
	bad := memory.add(cinder.Volume{Status: cinder.StatusDeleting})
	hidden.hidden[bad] = true
	memory.fault = func(operation, id string) mishap {
		if operation == "volume.get" && id == bad {
			return refused
		}
		return noFault
	}
	w := testWatcher(hidden)
	var group sync.WaitGroup
	for range 20 {
		created, deleted := memory.add(cinder.Volume{Status: cinder.StatusCreating}), memory.add(cinder.Volume{Status: cinder.StatusDeleting})
		group.Go(func() {
			if v, _, err := w.await(t.Context(), created, cinder.StatusCreating, time.Minute); err != nil || v.Status != cinder.StatusAvailable {
				t.Errorf("%s: %s, %v", created, v.Status, err)
			}
		})
		group.Go(func() {
			if _, gone, err := w.await(t.Context(), deleted, cinder.StatusDeleting, time.Minute); err != nil || !gone {
				t.Errorf("%s: gone %v, %v", deleted, gone, err)
			}
		})
	}
	_, _, err := w.await(t.Context(), bad, cinder.StatusDeleting, time.Minute)
	equal(t, authtest.ErrorText(err), "backend gold: volume.get: Cinder answered service unavailable (HTTP 503)")
	group.Wait()
}

func TestSeveralMayWaitForOneVolume(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusCreating})
	w := testWatcher(memory)
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if v, _, err := w.await(t.Context(), id, cinder.StatusCreating, time.Minute); err != nil || v.Status != cinder.StatusAvailable {
				t.Errorf("%s, %v", v.Status, err)
			}
		})
	}
	group.Wait()
}

func TestGaugeFollowsTheWaits(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusCreating})
	w := testWatcher(memory)
	var seen []int
	w.waiting = func(more int) { seen = append(seen, more) }
	if _, _, err := w.await(t.Context(), id, cinder.StatusCreating, time.Minute); err != nil {
		t.Fatal(err)
	}
	equal(t, seen, []int{1, -1})
}

// TestWaitingCostsWhatIsInFlight: in a project with 20,000 volumes, a claim costs
// at most two pages or reads more than in an empty one, and many claims no listing
// of all.
func TestWaitingCostsWhatIsInFlight(t *testing.T) {
	for _, claims := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(claims), func(t *testing.T) {
			spent := map[int]int{}
			for _, others := range []int{0, 20_000} {
				memory := newMemoryCinder()
				for range others {
					memory.add(cinder.Volume{Status: cinder.StatusInUse})
				}
				l := memory.term(t)
				// The term's one listing.
				_, err := l.Volumes(t.Context())
				equal(t, authtest.ErrorText(err), "")
				made := make([]Connected, claims)
				for _, do := range []func(claim int) error{
					func(claim int) (err error) { made[claim], err = l.Connect(t.Context(), claimSpec(claim)); return err },
					func(claim int) error { return l.Remove(t.Context(), claimTarget(claim, made[claim].Volume.ID)) },
				} {
					memory.forgetLog()
					together(t, l, claims)
					atOnce(t, claims, do)
					idle(t, l)
					spent[others] += memory.count("volume.list") + memory.count("volume.get")
				}
				equal(t, len(memory.present()), others)
			}
			// Of many, each is read before and after its deletion, which costs Cinder less
			// than listings of all.
			if more := spent[20_000] - spent[0]; more > 2*claims {
				t.Errorf("%d pages and reads, %d in an empty project", spent[20_000], spent[0])
			}
		})
	}
}

// TestDeletionsThatTrickleShareListings: where the project has little else, most of
// them cost no read of their own, whenever they begin.
func TestDeletionsThatTrickleShareListings(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	_, err := l.Volumes(t.Context())
	equal(t, authtest.ErrorText(err), "")
	const claims = 200
	made := make([]Connected, claims)
	atOnce(t, claims, func(claim int) (err error) {
		made[claim], err = l.Connect(t.Context(), claimSpec(claim))
		return err
	})
	idle(t, l)
	memory.looks = 5
	memory.forgetLog()
	atOnce(t, claims, func(claim int) error {
		time.Sleep(time.Duration(claim) * 100 * time.Microsecond)
		return l.Remove(t.Context(), claimTarget(claim, made[claim].Volume.ID))
	})
	equal(t, len(memory.present()), 0)
	if requests := memory.count("volume.list") + memory.count("volume.get"); requests > claims {
		t.Errorf("%d listings and %d reads for %d deletions", memory.count("volume.list"), memory.count("volume.get"), claims)
	}
}

// unlisted answers some listings in another way.
type unlisted struct {
	*memoryCinder
	list func(ctx context.Context, query cinder.VolumeQuery) (answered bool, err error)
}

func (u *unlisted) ListVolumes(ctx context.Context, query cinder.VolumeQuery, yield func([]cinder.Volume) bool) error {
	if answered, err := u.list(ctx, query); answered {
		return err
	}
	return u.memoryCinder.ListVolumes(ctx, query, yield)
}

// of makes the watcher know how much a complete listing has.
func (w *watcher[T]) of(total int) *watcher[T] {
	w.total.Store(&total)
	return w
}

// TestVolumeIsSeenWithoutAListing: a deletion that was to see its volume with the
// next listing reads it if that listing fails or does not come.
func TestVolumeIsSeenWithoutAListing(t *testing.T) {
	for name, list := range map[string]func(ctx context.Context, query cinder.VolumeQuery) (bool, error){
		"it fails": func(context.Context, cinder.VolumeQuery) (bool, error) {
			return true, &cinder.Error{Backend: "gold", Kind: cinder.KindInternal, Message: "the answer is odd"}
		},
		"it hangs": func(context.Context, cinder.VolumeQuery) (bool, error) {
			<-t.Context().Done()
			return true, t.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.looks = 1 << 30
			deleted, id := memory.add(cinder.Volume{Status: cinder.StatusDeleting}), memory.add(cinder.Volume{Status: cinder.StatusInUse})
			w := testWatcher(&unlisted{memory, list}).of(0)
			w.interval = 20 * time.Millisecond
			w.listedAll = true
			go w.await(t.Context(), deleted, cinder.StatusDeleting, time.Minute) //nolint:errcheck // It ends with the test.
			for !w.listsSoon() {
				time.Sleep(time.Millisecond)
			}
			v, err := w.see(t.Context(), id, 300*time.Millisecond)
			equal(t, authtest.ErrorText(err), "")
			equal(t, v.ID, id)
		})
	}
}

// TestListingsThatFailAreNotRepeated: a listing of everything that fails, as it
// does where one volume's metadata cannot be read, stops no wait that does not
// need it.
func TestListingsThatFailAreNotRepeated(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusCreating, cinder.StatusDeleting} {
		memory := newMemoryCinder()
		id := memory.add(cinder.Volume{Status: status})
		w := testWatcher(&unlisted{memory, func(_ context.Context, query cinder.VolumeQuery) (bool, error) {
			return query.Status == "" && query.PageSize == pageSize, &cinder.Error{Backend: "gold", Kind: cinder.KindInternal, Message: "the metadata of volume x cannot be read"}
		}}).of(1)
		_, _, err := w.await(t.Context(), id, status, time.Minute)
		equal(t, authtest.ErrorText(err), "")
	}
}
