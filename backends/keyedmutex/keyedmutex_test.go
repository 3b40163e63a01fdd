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

// TestOrderOfArrival: those who wait get the lock in the order in which they came.
func TestOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New()
		release, err := locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		for i := range 10 {
			go func() {
				release, err := locks.Acquire(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				time.Sleep(time.Second)
				release()
			}()
			synctest.Wait()
		}
		release()
		time.Sleep(time.Minute)
		if !slices.IsSorted(order) {
			t.Errorf("the waiters had it in the order %v", order)
		}
	})
}
