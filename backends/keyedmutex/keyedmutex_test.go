package keyedmutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLocksExcludeByKey(t *testing.T) {
	locks := New()
	counts := make([]int, 3) // each guarded by its key
	var group sync.WaitGroup
	for i := range 300 {
		group.Go(func() {
			key := i % len(counts)
			release, err := locks.Acquire(t.Context(), fmt.Sprint(key))
			if err != nil {
				t.Error(err)
				return
			}
			counts[key]++
			release()
		})
	}
	group.Wait()
	if !slices.Equal(counts, []int{100, 100, 100}) {
		t.Errorf("counts %v, want 100 each", counts)
	}
	if len(locks.last) > 0 {
		t.Errorf("%d keys are still in use", len(locks.last))
	}
}

func TestWaiterForALockMayLeave(t *testing.T) {
	locks := New()
	release, err := locks.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := locks.Acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	other, err := locks.Acquire(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	release()
	again, err := locks.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	again()
	if len(locks.last) > 0 {
		t.Errorf("%d keys are still in use", len(locks.last))
	}
}

// TestOrderOfArrival: those who wait get the lock in the order in which they came, and one
// that leaves changes nothing for the others.
func TestOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New()
		release, err := locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		impatient, leave := context.WithCancel(t.Context())
		var mu sync.Mutex
		var order []int
		var group sync.WaitGroup
		for i := range 10 {
			ctx := t.Context()
			if i == 4 {
				ctx = impatient
			}
			group.Go(func() {
				release, err := locks.Acquire(ctx, "a")
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				release()
			})
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		release()
		group.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 5, 6, 7, 8, 9}) || len(locks.last) > 0 {
			t.Errorf("the waiters had it in the order %v, and %d keys are in use", order, len(locks.last))
		}
	})
}
