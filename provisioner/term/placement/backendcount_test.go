package placement

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

func TestClaimsOfANewTermCountABackendOnce(t *testing.T) {
	f := newFixture(t)
	var listings atomic.Int32
	first, release := make(chan struct{}), make(chan struct{})
	f.backends["gold"].listed = []cinder.Volume{}
	f.backends["gold"].onList = func() {
		if listings.Add(1) == 1 {
			close(first)
		}
		<-release
	}
	var group, started sync.WaitGroup
	for range 50 {
		started.Add(1)
		group.Go(func() {
			started.Done()
			if err := f.CountBackend(t.Context(), "gold"); err != nil {
				t.Error(err)
			}
		})
	}
	started.Wait()
	<-first
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.CountBackend(impatient, "gold"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that stopped waiting gets %v", err)
	}
	close(release)
	group.Wait()
	if n := listings.Load(); n != 1 || !f.IsCounted("gold") {
		t.Errorf("the backend was listed %d times; counted: %t", n, f.IsCounted("gold"))
	}
}

func TestFailedCountFailsForAllWhoWait(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].listErr = errors.New("no answer")
	for range 2 {
		if err := f.CountBackend(t.Context(), "gold"); err == nil || err.Error() != "no answer" {
			t.Errorf("error %v", err)
		}
	}
	f.backends["gold"].listErr = nil
	if err := f.CountBackend(t.Context(), "gold"); err != nil || !f.IsCounted("gold") {
		t.Errorf("counted %t, error %v", f.IsCounted("gold"), err)
	}
}

func TestCountOfAnEarlierEndpointIsNotSharedWithALater(t *testing.T) {
	f := newFixture(t)
	var listings atomic.Int32
	entered, release := make(chan struct{}, 2), make(chan struct{})
	f.backends["gold"].onList = func() {
		listings.Add(1)
		entered <- struct{}{}
		<-release
	}
	var group sync.WaitGroup
	count := func() {
		if err := f.CountBackend(t.Context(), "gold"); err != nil {
			t.Error(err)
		}
	}
	group.Go(count)
	<-entered
	f.Recount("gold")
	group.Go(count)
	<-entered
	close(release)
	group.Wait()
	if n := listings.Load(); n < 2 || !f.IsCounted("gold") {
		t.Errorf("%d listings; counted: %t", n, f.IsCounted("gold"))
	}
}
