package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

var gold = parking.Trigger{Kind: parking.Backend, Name: "gold"}

// start runs a loop in a bubble, and returns it and what stops it.
func start(t *testing.T, workers int, own func(string) int, do func(ctx context.Context, a *Attempt[string]) Outcome) *Loop[string] {
	t.Helper()
	l := New(Options[string]{
		Name: "things", Workers: workers, OwnTurns: own, Do: do, Describe: func(key string) string { return "the worker of " + key },
		Board: parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { l.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	return l
}

func TestRetriesAreDelayedMoreWithEachFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begun := time.Now()
		l := start(t, 1, nil, func(context.Context, *Attempt[string]) Outcome {
			at = append(at, time.Since(begun).Truncate(time.Second))
			if len(at) == 4 {
				return Outcome{Done: true}
			}
			return Outcome{Retry: &backoff.Delay{Outcome: "other", First: 10 * time.Second, Most: 20 * time.Second}}
		})
		l.Queue.Add("a")
		time.Sleep(time.Hour)
		synctest.Wait()
		// Up to a tenth is added to each delay.
		if len(at) != 4 || at[1] < 10*time.Second || at[2]-at[1] < 20*time.Second || at[3]-at[2] < 20*time.Second || at[3] > 55*time.Second {
			t.Errorf("attempts at %v", at)
		}
		if n := l.limiter.Len(); n != 0 {
			t.Errorf("%d failures are remembered", n)
		}
	})
}

func TestTriggersBringKeysBack(t *testing.T) {
	for name, c := range map[string]struct {
		wakes []parking.Trigger
		want  int
	}{
		"its trigger":    {[]parking.Trigger{gold}, 2},
		"another one":    {[]parking.Trigger{{Kind: parking.Backend, Name: "silver"}}, 1},
		"its and others": {[]parking.Trigger{{Kind: parking.Policy}, gold}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				l := start(t, 1, nil, func(_ context.Context, a *Attempt[string]) Outcome {
					if attempts++; attempts == 1 {
						a.Await(gold)
					}
					return Outcome{Done: true}
				})
				l.Queue.Add("a")
				synctest.Wait()
				if awaiting := l.Awaiting(); !slices.Equal(awaiting, []string{"a"}) {
					t.Fatalf("%q await triggers", awaiting)
				}
				l.options.Board.Publish(c.wakes...)
				l.options.Board.Publish(c.wakes...) // the key no longer waits
				synctest.Wait()
				if attempts != c.want {
					t.Errorf("%d attempts, want %d", attempts, c.want)
				}
			})
		})
	}
}

// TestTriggerDuringAnAttemptIsNotMissed: it fires between the look and Await.
func TestTriggerDuringAnAttemptIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		var l *Loop[string]
		l = start(t, 1, nil, func(_ context.Context, a *Attempt[string]) Outcome {
			if attempts++; attempts == 1 {
				l.options.Board.Publish(gold)
				a.Await(gold)
			}
			return Outcome{}
		})
		l.Queue.Add("a")
		synctest.Wait()
		if attempts != 2 {
			t.Errorf("%d attempts", attempts)
		}
	})
}

// TestTenantsAndBackendsShareTheWorkers: keys without a turn occupy no worker, and come
// back.
func TestTenantsAndBackendsShareTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, done := make(chan struct{}), map[string]int{}
		results := make(chan string, 100)
		l := start(t, 4, func(tenant string) int { return map[string]int{"limited": 1}[tenant] }, func(_ context.Context, a *Attempt[string]) Outcome {
			var tenant string
			var n int
			fmt.Sscan(a.Key, &tenant, &n) //nolint:errcheck // The test made the key.
			if !a.Begin(tenant, tenant) {
				if !a.Waits() {
					t.Errorf("%s has no turn, and does not wait for one", a.Key)
				}
				return Outcome{}
			}
			if tenant != "quick" {
				<-answer
			}
			results <- tenant
			return Outcome{Done: true}
		})
		for _, tenant := range []string{"slow", "limited", "quick"} {
			for n := range 5 {
				l.Queue.Add(fmt.Sprint(tenant, " ", n))
			}
			synctest.Wait()
		}
		for len(results) > 0 {
			done[<-results]++
		}
		if done["quick"] != 5 || len(done) != 1 {
			t.Errorf("done while others hang: %v", done)
		}
		close(answer)
		synctest.Wait()
		for len(results) > 0 {
			done[<-results]++
		}
		if held, waiting := l.Turns.Count(); done["slow"] != 5 || done["limited"] != 5 || held+waiting > 0 {
			t.Errorf("done %v; %d have a turn, and %d wait", done, held, waiting)
		}
	})
}

// TestAnotherPolicyMayRaiseATenantsLimit: its keys come back then.
func TestAnotherPolicyMayRaiseATenantsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, working := 1, 0
		answer := make(chan struct{})
		l := start(t, 8, func(string) int { return limit }, func(_ context.Context, a *Attempt[string]) Outcome {
			if !a.Begin("a", a.Key) {
				return Outcome{}
			}
			working++
			<-answer
			return Outcome{Done: true}
		})
		l.Queue.Add("1")
		synctest.Wait()
		l.Queue.Add("2")
		synctest.Wait()
		if working != 1 {
			t.Fatalf("%d work", working)
		}
		limit = 2
		l.options.Board.Publish(parking.Trigger{Kind: parking.Policy})
		synctest.Wait()
		if working != 2 {
			t.Errorf("%d work under the new limit", working)
		}
		close(answer)
	})
}

// TestNothingFollowsTheEndOfATerm: what an attempt says is the next leader's business.
func TestNothingFollowsTheEndOfATerm(t *testing.T) {
	l := New(Options[string]{
		Name: "things", Describe: func(key string) string { return key }, Board: parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
		Do: func(context.Context, *Attempt[string]) Outcome {
			return Outcome{Retry: &backoff.Delay{Outcome: "other"}}
		},
	})
	defer l.Queue.ShutDown()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l.Try(ctx, "a")
	if n := l.limiter.Len(); n != 0 {
		t.Errorf("%d failures are remembered", n)
	}
}

// TestForgottenKeysLeaveNothing: neither failures, triggers, nor a wait for a turn.
func TestForgottenKeysLeaveNothing(t *testing.T) {
	l := New(Options[string]{
		Name: "things", Workers: 1, Describe: func(key string) string { return key }, Board: parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
		Do: func(_ context.Context, a *Attempt[string]) Outcome {
			a.Begin("a", "gold")
			a.Await(gold)
			return Outcome{Retry: &backoff.Delay{Outcome: "other", First: time.Hour, Most: time.Hour}}
		},
	})
	defer l.Queue.ShutDown()
	l.Turns.Begin("other", "b", "gold")
	l.Try(t.Context(), "a")
	if _, waiting := l.Turns.Count(); waiting != 1 || len(l.Awaiting()) != 1 || l.limiter.Len() != 1 {
		t.Fatalf("%d wait for a turn, %d for a trigger, %d have failed", waiting, len(l.Awaiting()), l.limiter.Len())
	}
	l.Forget("a")
	if _, waiting := l.Turns.Count(); waiting != 0 || len(l.Awaiting()) != 0 || l.limiter.Len() != 0 {
		t.Errorf("%d wait for a turn, %d for a trigger, %d have failed", waiting, len(l.Awaiting()), l.limiter.Len())
	}
}

// TestWaitingForATurnForgetsNoFailures: an attempt that only waited has not succeeded.
func TestWaitingForATurnForgetsNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var failed []time.Duration
		begun := time.Now()
		l := start(t, 4, func(string) int { return 1 }, func(_ context.Context, a *Attempt[string]) Outcome {
			if !a.Begin("tenant", "gold") {
				return Outcome{Done: true}
			}
			if a.Key == "slow" {
				<-answer
				return Outcome{Done: true}
			}
			failed = append(failed, time.Since(begun))
			return Outcome{Retry: &backoff.Delay{Outcome: "other", First: 10 * time.Second, Most: time.Hour}}
		})
		l.Queue.Add("failing")
		synctest.Wait()
		l.Queue.Add("slow")
		time.Sleep(time.Minute) // the retry waits for the turn
		close(answer)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(failed) < 3 || failed[2]-failed[1] < 20*time.Second {
			t.Errorf("attempts at %v", failed)
		}
	})
}

// TestKeysOfAnotherQueueGoBackToIt: together when one trigger helps many, and alone when
// a trigger fired during an attempt, or when a turn has come.
func TestKeysOfAnotherQueueGoBackToIt(t *testing.T) {
	var back []string
	limiter := backoff.New[string](backoff.Delay{})
	l := New(Options[string]{
		Name: "things", Workers: 2, Board: parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour), Limiter: limiter,
		Requeue: func(keys []string) {
			slices.Sort(keys)
			back = append(back, strings.Join(keys, "+"))
		},
	})
	make := func(key string, do func(a *Attempt[string]) Outcome) {
		l.Make(t.Context(), key, "the worker of "+key, func(_ context.Context, a *Attempt[string]) Outcome { return do(a) })
	}
	awaits := func(a *Attempt[string]) Outcome { a.Await(gold); return Outcome{} }
	make("a", awaits)
	make("b", awaits)
	l.options.Board.Publish(gold)
	make("late", func(a *Attempt[string]) Outcome {
		make("c", awaits)
		l.options.Board.Publish(gold)
		return awaits(a)
	})
	make("first", func(a *Attempt[string]) Outcome {
		a.Begin("tenant", "gold")
		make("second", func(a *Attempt[string]) Outcome { a.Begin("tenant", "gold"); return Outcome{} })
		return Outcome{Retry: &backoff.Delay{Outcome: "other", First: time.Hour, Most: time.Hour}}
	})
	if want := []string{"a+b", "c", "late", "second"}; !slices.Equal(back, want) {
		t.Errorf("came back: %q, want %q", back, want)
	}
	if delay := limiter.When("first"); delay < time.Hour {
		t.Errorf("a failure is retried after %s", delay)
	}
	if len(l.Awaiting()) > 0 {
		t.Errorf("%q still wait", l.Awaiting())
	}
}

func TestKeysAreLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		l := start(t, 1, nil, func(_ context.Context, a *Attempt[string]) Outcome {
			if attempts.Add(1) == 1 {
				a.Await(gold)
				a.LookAgain(time.Minute)
			}
			return Outcome{}
		})
		l.Queue.Add("a")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := attempts.Load(); n != 1 {
			t.Errorf("%d attempts in the first minute", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := attempts.Load(); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}
