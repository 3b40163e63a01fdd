package liveness

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestATaskStandsStillWithoutASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		loop := m.Begin("the loop", Always(time.Minute))
		for range 10 {
			time.Sleep(50 * time.Second)
			loop.Beat()
		}
		if err := m.Check(); err != nil {
			t.Errorf("a loop that turns: %v", err)
		}
		time.Sleep(61 * time.Second)
		if err := m.Check(); err == nil || err.Error() != "the loop is stuck: no sign of life for 1m1s" {
			t.Errorf("a loop that is stuck: %v", err)
		}
		loop.Beat()
		if err := m.Check(); err != nil {
			t.Errorf("a loop that turns again: %v", err)
		}
		time.Sleep(time.Hour)
		loop.End()
		if err := m.Check(); err != nil {
			t.Errorf("a loop that ended: %v", err)
		}
	})
}

func TestATaskThatWaitsInAQueueIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		work := m.Begin("the work", Always(time.Minute))
		resume := work.Pause()
		other := work.Pause()
		other()
		time.Sleep(time.Hour)
		if err := m.Check(); err != nil {
			t.Errorf("while it waits: %v", err)
		}
		resume()
		time.Sleep(59 * time.Second)
		if err := m.Check(); err != nil {
			t.Errorf("just after the wait: %v", err)
		}
		time.Sleep(2 * time.Second)
		if m.Check() == nil {
			t.Error("work that is stuck after its wait is not noticed")
		}
	})
}

func TestAQueueStandsStillIfItHasWaitersAndDoesNotMove(t *testing.T) {
	for _, c := range []struct {
		name    string
		look    func(ctx context.Context, number int) (waiting bool, mark string)
		noticed bool
	}{
		{"empty", func(context.Context, int) (bool, string) { return false, "5" }, false},
		{"moving", func(_ context.Context, number int) (bool, string) { return true, fmt.Sprint(number) }, false},
		{"not moving", func(context.Context, int) (bool, string) { return true, "5" }, true},
		{"locked for ever", func(ctx context.Context, _ int) (bool, string) { <-ctx.Done(); return false, "" }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, looks := New(), 0
				ctx, end := context.WithCancel(t.Context())
				go m.Follow(ctx, "the queue", Always(time.Minute), func() (bool, string) { looks++; return c.look(ctx, looks) })
				time.Sleep(50 * time.Second)
				if err := m.Check(); err != nil {
					t.Errorf("before the bound: %v", err)
				}
				time.Sleep(time.Hour)
				if noticed := m.Check() != nil; noticed != c.noticed {
					t.Errorf("noticed %t, want %t", noticed, c.noticed)
				}
				end()
				synctest.Wait()
				if err := m.Check(); err != nil {
					t.Errorf("after the end: %v", err)
				}
			})
		})
	}
}

func TestTheErrorNamesOnlySome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		for i := range 200 {
			m.Begin(fmt.Sprintf("worker %03d", i), Always(time.Minute))
		}
		time.Sleep(2 * time.Minute)
		err := m.Check()
		if err == nil {
			t.Fatal("200 workers that stand still are not noticed")
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != maxNamed+1 || !strings.HasPrefix(lines[0], "worker 000 ") || lines[maxNamed] != "and 190 more" {
			t.Errorf("%q", lines)
		}
	})
}
