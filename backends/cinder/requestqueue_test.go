package cinder

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// TestTurnsGoRound: a tenant with a thousand requests delays each other tenant
// by one request, whether slots or tokens are scarce.
func TestTurnsGoRound(t *testing.T) {
	for name, limits := range map[string]Limits{
		"slots":  {Concurrency: 1},
		"tokens": {Concurrency: 100, RequestsPerSecond: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var sent []string
				wire := testTransport(t, func(r *http.Request) (*http.Response, error) {
					time.Sleep(10 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					sent = append(sent, CallerOf(r.Context()).Tenant)
					return ok(""), nil
				}, limits)
				var group sync.WaitGroup
				send := func(tenant string, requests int) {
					for range requests {
						group.Go(func() {
							response, err := wire.RoundTrip(request(WithCaller(t.Context(), Caller{Tenant: tenant})))
							if err != nil {
								t.Error(err)
								return
							}
							response.Body.Close()
						})
					}
					synctest.Wait()
				}
				send("a", 1000)
				mu.Lock()
				before := len(sent)
				mu.Unlock()
				send("b", 2)
				send("", 2) // without a tenant
				send("c", 2)
				time.Sleep(5 * time.Second)
				mu.Lock()
				round := slices.Clone(sent[before:])
				mu.Unlock()
				// Requests under way and turns already granted end first.
				first := slices.Index(round, "b")
				if first < 0 || first > 11 {
					t.Fatalf("the second tenant's first request is number %d", first)
				}
				equal(t, round[first:first+8], []string{"b", "", "c", "a", "b", "", "c", "a"})
				group.Wait()
				equal(t, len(sent), 1006)
				equal(t, slotsTaken(wire), 0)
			})
		})
	}
}

// TestPacedTenantHoldsNoSlot: a tenant's pace delays only that tenant.
func TestPacedTenantHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		start := time.Now()
		wire := testTransport(t, func(r *http.Request) (*http.Response, error) {
			sent = append(sent, fmt.Sprintf("%s at %s", CallerOf(r.Context()).Tenant, time.Since(start).Round(time.Second)))
			return ok(""), nil
		}, Limits{Concurrency: 1})
		slow := Caller{Tenant: "slow", Pace: rate.NewLimiter(rate.Every(10*time.Second), 1)}
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				response, err := wire.RoundTrip(request(WithCaller(t.Context(), slow)))
				if err != nil {
					t.Error(err)
					return
				}
				response.Body.Close()
			})
			synctest.Wait()
		}
		equal(t, slotsTaken(wire), 0)
		response, err := wire.RoundTrip(request(WithCaller(t.Context(), Caller{Tenant: "quick"})))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		// A request that leaves the queue returns the tenant's token.
		ctx, cancel := context.WithCancel(t.Context())
		for name, ctx := range map[string]context.Context{
			"the request": WithCaller(ctx, slow),
			"the waiter":  WithAdmission(WithCaller(t.Context(), slow), Admission{Waiter: ctx, Fence: func() error { return nil }}),
		} {
			group.Go(func() {
				_, err := wire.RoundTrip(request(ctx))
				if err = translate("gold", "volume.create", err); authtest.ErrorText(err) != "backend gold: volume.create: the request was canceled" || effectUnknown(err) {
					t.Errorf("%s is canceled: %v", name, err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		cancel()
		group.Wait()
		equal(t, sent, []string{"slow at 0s", "quick at 0s", "slow at 10s", "slow at 20s", "slow at 30s"})
		response, err = wire.RoundTrip(request(WithCaller(t.Context(), slow)))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		equal(t, sent[5], "slow at 40s")
	})
}

func TestPaceThatAdmitsNothing(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) { return nil, errors.New("sent") }, Limits{})
	_, err := wire.RoundTrip(request(WithCaller(t.Context(), Caller{Tenant: "a", Pace: rate.NewLimiter(1, 0)})))
	err = translate("gold", "volume.create", err)
	equal(t, authtest.ErrorText(err), "backend gold: volume.create: the request was not sent: the tenant's pace admits no request; give its limiter a burst of at least one")
	equal(t, effectUnknown(err), false)
}

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
	turns := NewQueue(Limits{Concurrency: slots, RequestsPerSecond: perSecond})
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
			err := turns.acquire(caller, patience{ctx, waiter, nil})
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
			turns.release()
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
		"release": func(rt *rapid.T) { take(rt, &holding); turns.release() },
		"pass":    func(rt *rapid.T) { take(rt, &holding); passed++; turns.pass() },
		"leave as the turn comes": func(rt *rapid.T) {
			r := take(rt, &waiting)
			take(rt, &holding)
			go turns.release()
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
			turns.mu.Lock()
			defer turns.mu.Unlock()
			if turns.free+len(holding) != slots {
				rt.Fatalf("%d slots are free and %d in use of %d", turns.free, len(holding), slots)
			}
			for _, r := range waiting {
				if turns.free > 0 && (turns.timer == nil || perSecond == 0 && r.tenant != "paced") {
					rt.Fatalf("%q waits while %d slots are free; timer %v", r.tenant, turns.free, turns.timer)
				}
			}
			if len(waiting) == 0 && (turns.timer != nil || len(turns.queues) > 0 || turns.round.Len() > 0) {
				rt.Fatalf("no request waits, but timer %v, queues %v", turns.timer, turns.queues)
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
	turns.mu.Lock()
	defer turns.mu.Unlock()
	if turns.free != slots || turns.timer != nil || len(turns.queues) > 0 {
		rt.Fatalf("in the end %d of %d slots are free; timer %v, queues %v", turns.free, slots, turns.timer, turns.queues)
	}
}

// TestPassedTurnsNeedNoToken: when requests are rejected, a long queue empties
// at once.
func TestPassedTurnsNeedNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rejected := errors.New("rejected")
		wire := testTransport(t, func(*http.Request) (*http.Response, error) { return ok(""), nil }, Limits{Concurrency: 2, RequestsPerSecond: 1})
		occupy(t, wire)
		occupy(t, wire)
		var group sync.WaitGroup
		for i := range 500 {
			group.Go(func() {
				ctx := WithCaller(t.Context(), Caller{Tenant: fmt.Sprint(i % 7)})
				ctx = WithAdmission(ctx, Admission{Waiter: ctx, Fence: func() error { return rejected }})
				if _, err := wire.RoundTrip(request(ctx)); !errors.Is(err, rejected) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		wire.queue.release()
		wire.queue.release()
		group.Wait()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("rejecting 500 requests took %s", took)
		}
		equal(t, slotsTaken(wire), 0)
	})
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
		q.release()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if waiting, mark := q.Progress(); waiting || mark == before || over != 1 {
			t.Errorf("after its turn: waiting %t, mark %s after %s; %d over", waiting, mark, before, over)
		}
	})
}

// TestACallerLearnsTheIDsOfItsRequests: of those that Cinder accepted, cleaned.
func TestACallerLearnsTheIDsOfItsRequests(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		id     string
		want   string
	}{
		"accepted":    {http.StatusAccepted, "req-1", "[volume.delete req-1]"},
		"refused":     {http.StatusConflict, "req-1", "[]"},
		"a forged ID": {http.StatusAccepted, "req-1 msg=x", "[volume.delete ]"},
	} {
		t.Run(name, func(t *testing.T) {
			wire := testTransport(t, func(*http.Request) (*http.Response, error) {
				answer := ok("")
				answer.StatusCode = c.status
				answer.Header = http.Header{"X-Openstack-Request-Id": {c.id}}
				return answer, nil
			}, Limits{})
			learned := []string{}
			ctx := WithCaller(withOperation(t.Context(), OperationDelete), Caller{Answered: func(operation, requestID string) {
				learned = append(learned, operation+" "+requestID)
			}})
			response, err := wire.RoundTrip(request(ctx))
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if got := fmt.Sprint(learned); got != c.want {
				t.Errorf("learned %s, want %s", got, c.want)
			}
		})
	}
}
