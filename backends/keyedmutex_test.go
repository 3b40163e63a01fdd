package backends

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

func TestLocksExcludeByKey(t *testing.T) {
	locks := newKeyedMutex()
	counts := make([]int, 3) // each guarded by its key
	var group sync.WaitGroup
	for i := range 300 {
		group.Go(func() {
			key := i % len(counts)
			release, err := locks.acquire(t.Context(), fmt.Sprint(key))
			if err != nil {
				t.Error(err)
				return
			}
			counts[key]++
			release()
		})
	}
	group.Wait()
	equal(t, counts, []int{100, 100, 100})
	equal(t, len(locks.held), 0)
}

func TestWhoWaitsForALockMayLeave(t *testing.T) {
	locks := newKeyedMutex()
	release, err := locks.acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := locks.acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	other, err := locks.acquire(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	release()
	again, err := locks.acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	again()
	equal(t, len(locks.held), 0)
}
