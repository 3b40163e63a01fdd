package turns

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"
)

// TestTurnsAreNeverLost: in whatever order requests come, leave, use a turn or
// pass it, no slot is lost or granted twice, no request waits while a turn is
// free, and the round keeps its order.
func TestTurnsAreNeverLost(t *testing.T) {
	for name, perSecond := range map[string]float64{"unpaced": 0, "paced": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rapid.Check(inBubble{t}, func(rt *rapid.T) { turnsKeepTheirRules(rt, perSecond) })
			})
		})
	}
}

type turnRequest struct {
	tenant string
	leave  context.CancelFunc
}

func turnsKeepTheirRules(rt *rapid.T, perSecond float64) {
	slots := rapid.IntRange(1, 4).Draw(rt, "slots")
	queue := NewQueue(Limits{Concurrency: slots, RequestsPerSecond: perSecond})
	var mu sync.Mutex
	var waiting, holding []*turnRequest
	// since counts, for each waiting tenant, the turns of the others meanwhile.
	since := map[string]map[string]int{}
	granted, passed := 0, 0
	unclear := false // the order in which turns were granted
	own := rate.NewLimiter(1, 1)
	ask := func(tenant string, early bool) {
		caller := Caller{Tenant: tenant}
		if tenant == "paced" {
			caller.Pace = own
		}
		ctx, leave := context.WithCancel(context.Background())
		waiter := context.Background()
		if early {
			waiter, ctx = ctx, waiter
		}
		r := &turnRequest{tenant, leave}
		mu.Lock()
		waiting = append(waiting, r)
		if since[tenant] == nil {
			since[tenant] = map[string]int{}
		}
		mu.Unlock()
		go func() {
			err := queue.acquire(caller, patience{ctx, waiter, nil})
			mu.Lock()
			defer mu.Unlock()
			waiting = slices.DeleteFunc(waiting, func(other *turnRequest) bool { return other == r })
			still := slices.ContainsFunc(waiting, func(other *turnRequest) bool { return other.tenant == tenant })
			if err != nil {
				if !still {
					delete(since, tenant)
				}
				return
			}
			holding = append(holding, r)
			granted++
			if delete(since, tenant); still {
				since[tenant] = map[string]int{}
			}
			for other, had := range since {
				if other != tenant {
					had[tenant]++
				}
			}
		}()
	}
	take := func(rt *rapid.T, from *[]*turnRequest) *turnRequest {
		mu.Lock()
		defer mu.Unlock()
		if len(*from) == 0 {
			rt.Skip("no request waits")
		}
		i := rapid.IntRange(0, len(*from)-1).Draw(rt, "which")
		r := (*from)[i]
		if from == &holding {
			*from = slices.Delete(slices.Clone(*from), i, i+1)
		}
		return r
	}
	end := func() {
		mu.Lock()
		left := slices.Clone(waiting)
		mu.Unlock()
		for _, r := range left {
			r.leave()
		}
		synctest.Wait()
		for range holding {
			queue.Release()
		}
		holding = nil
		synctest.Wait()
	}
	defer end()
	start := time.Now()
	rt.Repeat(map[string]func(*rapid.T){
		"ask": func(rt *rapid.T) {
			ask(rapid.SampledFrom([]string{"", "a", "b", "paced"}).Draw(rt, "tenant"), rapid.Bool().Draw(rt, "a waiter"))
		},
		"ask much": func(rt *rapid.T) {
			for range 5 {
				ask("a", false)
			}
		},
		"leave":   func(rt *rapid.T) { take(rt, &waiting).leave() },
		"release": func(rt *rapid.T) { take(rt, &holding); queue.Release() },
		"pass":    func(rt *rapid.T) { take(rt, &holding); passed++; queue.pass() },
		"leave as the turn comes": func(rt *rapid.T) {
			r := take(rt, &waiting)
			take(rt, &holding)
			go queue.Release()
			go r.leave()
			unclear = true
		},
		"time passes": func(rt *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 3000).Draw(rt, "milliseconds")) * time.Millisecond)
		},
		"": func(rt *rapid.T) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			queue.mu.Lock()
			defer queue.mu.Unlock()
			if queue.free+len(holding) != slots {
				rt.Fatalf("%d slots are free and %d in use of %d", queue.free, len(holding), slots)
			}
			for _, r := range waiting {
				if queue.free > 0 && (queue.timer == nil || perSecond == 0 && r.tenant != "paced") {
					rt.Fatalf("%q waits while %d slots are free; timer %v", r.tenant, queue.free, queue.timer)
				}
			}
			if len(waiting) == 0 && (queue.timer != nil || len(queue.round) > 0) {
				rt.Fatalf("no request waits, but timer %v, queues %v", queue.timer, queue.round)
			}
			for tenant, others := range since {
				if unclear {
					clear(others)
				}
				for other, had := range others {
					if had > 1 && tenant != "paced" {
						rt.Fatalf("tenant %q waited while %q had %d turns", tenant, other, had)
					}
				}
			}
			unclear = false
			if most := perSecond * (1 + time.Since(start).Seconds()); perSecond > 0 && float64(granted-passed) > most+1e-6 {
				rt.Fatalf("%d turns were used within %s", granted-passed, time.Since(start))
			}
		},
	})
	end()
	queue.mu.Lock()
	defer queue.mu.Unlock()
	if queue.free != slots || queue.timer != nil || len(queue.round) > 0 {
		rt.Fatalf("in the end %d of %d slots are free; timer %v, queues %v", queue.free, slots, queue.timer, queue.round)
	}
}

func TestAQueueShowsWhetherItMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Limits{Concurrency: 1})
		forever := patience{ctx: t.Context(), waiter: t.Context()}
		if err := q.acquire(Caller{Waits: func() func() { t.Error("a request that gets its turn at once waits"); return func() {} }}, forever); err != nil {
			t.Fatal(err)
		}
		waits, over := 0, 0
		ended := make(chan error)
		go func() {
			ended <- q.acquire(Caller{Waits: func() func() { waits++; return func() { over++ } }}, forever)
		}()
		synctest.Wait()
		waiting, before := q.Progress()
		if _, again := q.Progress(); !waiting || before != again || waits != 1 || over != 0 {
			t.Errorf("while a request waits: waiting %t, mark %s, then %s; %d waits, %d over", waiting, before, again, waits, over)
		}
		q.Release()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if waiting, mark := q.Progress(); waiting || mark == before || over != 1 {
			t.Errorf("after its turn: waiting %t, mark %s after %s; %d over", waiting, mark, before, over)
		}
	})
}

// inBubble runs a test in a synctest bubble. rapid would call Deadline on a
// *testing.T, which fails in a bubble.
type inBubble struct{ testing.TB }
