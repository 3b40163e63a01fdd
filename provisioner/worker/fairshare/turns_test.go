package fairshare

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// hall is Turns, and records the items that it invited.
type hall struct {
	*Turns[string]
	// mu guards against turns that lapse after their test.
	mu      sync.Mutex
	invited []string
}

func newHall(capacity int, own map[string]int) *hall {
	h := &hall{}
	h.Turns = New(capacity, func(tenant string) int { return own[tenant] }, func(key string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.invited = append(h.invited, key)
	})
	return h
}

// fill begins turns until one is refused, and returns how many there were.
func (h *hall) fill(prefix, tenant, backend string) int {
	for n := 0; ; n++ {
		if !h.Begin(fmt.Sprint(prefix, n), tenant, backend) {
			return n
		}
	}
}

func TestSomethingIsAlwaysLeftForANewcomer(t *testing.T) {
	h := newHall(1000, nil)
	if got := h.fill("a", "a", "gold"); got != 500 {
		t.Errorf("a tenant that is alone gets %d turns of 1000", got)
	}
	if got := h.fill("b", "b", "dead"); got != 250 {
		t.Errorf("a second one that wants everything gets %d", got)
	}
	if got := h.fill("c", "c", "gold"); got != 0 {
		t.Errorf("a backend with its full share gets %d more through another tenant", got)
	}
	if !h.Begin("d", "d", "silver") {
		t.Error("a newcomer waits")
	}
}

func TestTenantsTakeTurnsOnceTheyWait(t *testing.T) {
	h := newHall(4, nil)
	if got := h.fill("a", "a", "gold"); got != 2 {
		t.Fatalf("%d", got)
	}
	for i := range 3 {
		h.Begin(fmt.Sprint("later-a", i), "a", "gold")
		h.Begin(fmt.Sprint("b", i), "b", "gold")
	}
	for range 6 {
		h.End("a0")
		h.End("a1")
		for _, key := range slices.Clone(h.invited) {
			h.End(key)
		}
	}
	want := []string{"a2", "b0", "later-a0", "b1", "later-a1", "b2", "later-a2"}
	if !slices.Equal(h.invited, want) {
		t.Errorf("invited %v, want %v", h.invited, want)
	}
}

func TestTenantsOwnLimitIsKeptAndItsChangeNoticed(t *testing.T) {
	own := map[string]int{"a": 2}
	h := newHall(1000, own)
	if got := h.fill("a", "a", "gold"); got != 2 {
		t.Errorf("%d turns under a limit of 2", got)
	}
	own["a"] = 3
	h.Recheck()
	if !slices.Equal(h.invited, []string{"a2"}) {
		t.Errorf("invited %v", h.invited)
	}
}

func TestTurnThatNobodyBeginsLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(2, nil)
		if !h.Begin("a", "a", "gold") || h.Begin("b", "b", "gold") || h.Begin("c", "c", "gold") {
			t.Fatal("two turns at one backend, of two in all")
		}
		h.End("a")
		h.mu.Lock()
		if !slices.Equal(h.invited, []string{"b"}) {
			t.Fatalf("invited %v", h.invited)
		}
		h.mu.Unlock()
		time.Sleep(lapseAfter)
		synctest.Wait()
		if !slices.Equal(h.invited, []string{"b", "c"}) {
			t.Fatalf("invited %v after the first of them did not come", h.invited)
		}
		if !h.Begin("c", "c", "gold") {
			t.Error("the invited item does not get its turn")
		}
		time.Sleep(2 * lapseAfter)
		synctest.Wait()
		if h.Begin("d", "d", "gold") {
			t.Error("a turn lapsed after its work began")
		}
	})
}

func TestNoInterleavingLosesATurnOrGivesOneTooMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		own := map[string]int{"a": rapid.IntRange(0, 4).Draw(t, "own")}
		h := newHall(capacity, own)
		wants := map[string]lane{}
		key := rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6", "7", "8", "9"})
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				k := key.Draw(t, "key")
				l, known := wants[k]
				if !known {
					l = lane{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), rapid.SampledFrom([]string{"gold", "lab"}).Draw(t, "backend")}
				}
				wants[k] = l
				h.Begin(k, l.tenant, l.backend)
			},
			"end": func(t *rapid.T) {
				k := key.Draw(t, "key")
				delete(wants, k)
				h.End(k)
			},
			"": func(t *rapid.T) {
				h.Turns.mu.Lock()
				defer h.Turns.mu.Unlock()
				if len(h.held) > capacity {
					t.Fatalf("%d turns of %d are given", len(h.held), capacity)
				}
				tenants, backends := map[string]int{}, map[string]int{}
				for _, held := range h.held {
					tenants[held.tenant]++
					backends[held.backend]++
				}
				for tenant, n := range tenants {
					if h.byTenant[tenant] != n || own[tenant] > 0 && n > own[tenant] {
						t.Fatalf("tenant %s has %d turns, counted as %d, its own limit is %d", tenant, n, h.byTenant[tenant], own[tenant])
					}
				}
				if len(tenants) != len(h.byTenant) || len(backends) != len(h.byBackend) {
					t.Fatalf("counted %v %v, held by %v %v", h.byTenant, h.byBackend, tenants, backends)
				}
				for k, l := range wants {
					_, held := h.held[k]
					_, waits := h.laneOf[k]
					if held == waits {
						t.Fatalf("%s of %v: held %t, waits %t", k, l, held, waits)
					}
					if waits && h.fits(l) {
						t.Fatalf("%s of %v waits although there is room", k, l)
					}
				}
				if len(h.held)+len(h.laneOf) != len(wants) {
					t.Fatalf("%d held and %d waiting of %d", len(h.held), len(h.laneOf), len(wants))
				}
			},
		})
	})
}

func TestWorkingAreThoseWhoseTurnHasBegun(t *testing.T) {
	h := newHall(4, nil)
	h.Begin("ended", "a", "gold")
	h.Begin("begun", "a", "gold")
	h.Begin("invited", "a", "gold")
	h.Begin("waits", "a", "gold")
	h.End("ended")
	if held, waiting := h.Count(); held != 2 || waiting != 1 {
		t.Fatalf("%d have a turn, %d wait", held, waiting)
	}
	if got := h.Working(); !slices.Equal(got, []string{"begun"}) {
		t.Errorf("working %q", got)
	}
	h.End("begun")
	if got := h.Working(); len(got) != 0 {
		t.Errorf("working %q after the end", got)
	}
}

// TestWaitingWithoutAnyTurnIsNoProgress: nothing would ever end such a wait.
func TestWaitingWithoutAnyTurnIsNoProgress(t *testing.T) {
	h := newHall(2, map[string]int{"a": 1})
	_, before := h.Progress()
	h.fill("a", "a", "gold")
	if waiting, mark := h.Progress(); waiting || mark == before {
		t.Errorf("while one works and another waits for it: waiting %t, mark %s after %s", waiting, mark, before)
	}
	h.Turns.mu.Lock()
	// Pretend that the turn was lost.
	delete(h.held, "a0")
	h.Turns.mu.Unlock()
	_, before = h.Progress()
	if waiting, mark := h.Progress(); !waiting || mark != before {
		t.Errorf("while nobody works and one waits: waiting %t, mark %s after %s", waiting, mark, before)
	}
}
