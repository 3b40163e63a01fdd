package backends

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/keyedmutex"
	"github.com/standalone-cinder/standalone-cinder/backends/knowledge"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// newInventory returns the inventory of a cluster's volumes.
func newInventory(cluster string, list func(context.Context, func([]cinder.Volume) bool) error) *knowledge.Inventory[cinder.Volume] {
	return knowledge.NewInventory(knowledge.Entries[cinder.Volume]{
		List:  list,
		Owner: stamps.ClaimOf(cluster),
		Share: stamps.Share,
	})
}

func TestInventoryIsListedOnce(t *testing.T) {
	memory := newMemoryCinder()
	memory.add(mine(1, cinder.StatusAvailable))
	memory.add(mine(2, cinder.StatusAvailable))
	foreign := mine(3, cinder.StatusAvailable)
	foreign.Metadata[stamps.KeyCluster] = "cluster-2"
	memory.add(foreign)
	i := newInventory("cluster-1", func(ctx context.Context, yield func([]cinder.Volume) bool) error {
		return memory.client().ListVolumes(ctx, cinder.Query{PageSize: 1}, yield)
	})
	var group sync.WaitGroup
	for claim := range 50 {
		group.Go(func() {
			found, err := i.Find(t.Context(), claimStamp(claim).ClaimUID, claimStamp(claim).Owns, time.Time{})
			if want := claim == 1 || claim == 2; err != nil || (len(found) == 1) != want {
				t.Errorf("claim %d: %v, %v", claim, ids(found), err)
			}
		})
	}
	group.Wait()
	equal(t, memory.count("volume.list"), 3) // pages of one listing
	all, err := i.All(t.Context(), time.Time{})
	equal(t, authtest.ErrorText(err), "")
	equal(t, ids(all), []string{"volume-1", "volume-2"})
	i.Forget("volume-1")
	all, _ = i.All(t.Context(), time.Time{})
	equal(t, ids(all), []string{"volume-2"})
	equal(t, memory.count("volume.list"), 3)
}

// TestInventoryAfter: neither the volumes nor the failure of a listing that
// began before the given time count.
func TestInventoryAfter(t *testing.T) {
	for name, firstFails := range map[string]error{"the first succeeds": nil, "the first fails": errors.New("half a list")} {
		t.Run(name, func(t *testing.T) {
			listings := make(chan chan []cinder.Volume)
			failures := []error{firstFails, nil}
			i := newInventory("cluster-1", func(_ context.Context, yield func([]cinder.Volume) bool) error {
				answer := make(chan []cinder.Volume)
				listings <- answer
				yield(<-answer)
				err := failures[0]
				failures = failures[1:]
				return err
			})
			type result struct {
				found []cinder.Volume
				err   error
			}
			find := func(after time.Time) chan result {
				results := make(chan result, 1)
				go func() {
					found, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, after)
					results <- result{found, err}
				}()
				return results
			}
			early := find(time.Time{})
			first := <-listings
			late := find(time.Now())
			first <- nil
			equal(t, <-early, result{nil, firstFails})
			second := <-listings
			v := mine(1, cinder.StatusCreating)
			second <- []cinder.Volume{v}
			equal(t, <-late, result{[]cinder.Volume{v}, nil})
		})
	}
}

func TestInventoryThatFails(t *testing.T) {
	fail := true
	i := newInventory("cluster-1", func(_ context.Context, yield func([]cinder.Volume) bool) error {
		yield([]cinder.Volume{mine(1, cinder.StatusAvailable)})
		if fail {
			return errors.New("half a list")
		}
		return nil
	})
	_, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{})
	equal(t, authtest.ErrorText(err), "half a list")
	fail = false
	found, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{})
	equal(t, authtest.ErrorText(err), "")
	equal(t, len(found), 1)
	// A partial list does not count: the last complete one stays.
	fail = true
	if _, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Now()); err == nil {
		t.Error("no error from a new listing")
	}
	if found, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{}); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

// TestInventoryOutlivesItsFirstCaller: the listing serves other callers too.
func TestInventoryOutlivesItsFirstCaller(t *testing.T) {
	listing := make(chan struct{})
	i := newInventory("cluster-1", func(ctx context.Context, yield func([]cinder.Volume) bool) error {
		<-listing
		if err := ctx.Err(); err != nil {
			return err
		}
		yield([]cinder.Volume{mine(1, cinder.StatusAvailable)})
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.Find(ctx, claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(listing)
	found, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{})
	equal(t, authtest.ErrorText(err), "")
	equal(t, len(found), 1)
}

// TestInventoryIsCutOffWithItsLastCaller: a list that never ends would otherwise
// be read until the term ends.
func TestInventoryIsCutOffWithItsLastCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cutOff := make(chan struct{}, 2)
		endless := true
		i := newInventory("cluster-1", func(ctx context.Context, yield func([]cinder.Volume) bool) error {
			if !endless {
				return nil
			}
			<-ctx.Done()
			cutOff <- struct{}{}
			return ctx.Err()
		})
		first, leaveFirst := context.WithCancel(t.Context())
		second, leaveSecond := context.WithCancel(t.Context())
		left := make(chan error, 2)
		for _, ctx := range []context.Context{first, second} {
			go func() {
				_, err := i.All(ctx, time.Time{})
				left <- err
			}()
		}
		synctest.Wait()
		leaveFirst()
		<-left
		synctest.Wait()
		equal(t, len(cutOff), 0)
		leaveSecond()
		<-left
		<-cutOff
		endless = false
		if _, err := i.All(t.Context(), time.Time{}); err != nil {
			t.Errorf("the next caller got %v", err)
		}
	})
}

// TestInventoryOfARepeatedListing: after a new login a listing restarts and
// shows volumes twice.
func TestInventoryOfARepeatedListing(t *testing.T) {
	i := newInventory("cluster-1", func(_ context.Context, yield func([]cinder.Volume) bool) error {
		before, after := mine(1, cinder.StatusCreating), mine(1, cinder.StatusAvailable)
		before.ID, after.ID = "a", "a"
		yield([]cinder.Volume{before})
		yield([]cinder.Volume{after})
		return nil
	})
	found, err := i.Find(t.Context(), claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{})
	equal(t, authtest.ErrorText(err), "")
	equal(t, len(found), 1)
	equal(t, found[0].Status, cinder.StatusAvailable)
}

func TestEndOfTermEndsListings(t *testing.T) {
	memory := newMemoryCinder()
	term, end := context.WithCancel(t.Context())
	l := memory.term(t, func(o *LifecycleOptions) { o.Term = term })
	end()
	_, err := l.Volumes(t.Context())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestWaitingForAListingCountsAsWaitingForATurn: its pages wait for their turns at
// the backend, which may take hours, and no claim may seem to stand still.
func TestWaitingForAListingCountsAsWaitingForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		i := newInventory("cluster-1", func(context.Context, func([]cinder.Volume) bool) error {
			<-answer
			return nil
		})
		waiting := &atomic.Int32{}
		ctx := turns.WithCaller(t.Context(), turns.Caller{Waits: func() func() {
			waiting.Add(1)
			return func() { waiting.Add(-1) }
		}})
		go func() { _, _ = i.Find(ctx, claimStamp(1).ClaimUID, claimStamp(1).Owns, time.Time{}) }()
		synctest.Wait()
		equal(t, waiting.Load(), 1)
		close(answer)
		synctest.Wait()
		equal(t, waiting.Load(), 0)
	})
}

// TestWaitingForAnotherWorkerOfTheClaimCountsAsWaitingForATurn: the other one may
// wait for its turn at the backend.
func TestWaitingForAnotherWorkerOfTheClaimCountsAsWaitingForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Lifecycle{locks: keyedmutex.New()}
		release := make(chan struct{})
		go func() { _ = l.serialized(t.Context(), "uid-1", func(*owners) error { <-release; return nil }) }()
		synctest.Wait()
		waiting := &atomic.Int32{}
		ctx := turns.WithCaller(t.Context(), turns.Caller{Waits: func() func() {
			waiting.Add(1)
			return func() { waiting.Add(-1) }
		}})
		go func() {
			_ = l.serialized(ctx, "uid-1", func(*owners) error { return nil })
		}()
		synctest.Wait()
		equal(t, waiting.Load(), 1)
		close(release)
		synctest.Wait()
		equal(t, waiting.Load(), 0)
	})
}
