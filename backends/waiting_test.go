package backends

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func TestWaitIsCanceled(t *testing.T) {
	memory := newMemoryCinder()
	memory.looks = 1 << 30
	id := memory.add(mine(1, cinder.StatusCreating))
	ctx, cancel := context.WithCancel(t.Context())
	memory.onCall(func(operation string) {
		if operation == "volume.list" && memory.count("volume.list") == 3 {
			cancel()
		}
	})
	l := memory.term(t)
	if _, err := l.Connect(ctx, claimSpec(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	memory.onCall(nil)
	if err := l.Remove(ctx, claimTarget(1, id)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	idle(t, l)
	equal(t, memory.changes(), []string(nil))
}

// TestWaitingCostsWhatIsInFlight: in a project with 20,000 volumes, a claim costs
// at most two pages or reads more than in an empty one, and many claims cost no
// complete listing.
func TestWaitingCostsWhatIsInFlight(t *testing.T) {
	for _, claims := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(claims), func(t *testing.T) {
			spent := map[int]int{}
			for _, others := range []int{0, 20_000} {
				memory := newMemoryCinder()
				for range others {
					memory.add(cinder.Volume{Status: cinder.StatusInUse})
				}
				l := memory.term(t)
				// The term's one listing.
				_, err := l.Volumes(t.Context())
				equal(t, authtest.ErrorText(err), "")
				made := make([]Connected, claims)
				for _, do := range []func(claim int) error{
					func(claim int) (err error) { made[claim], err = l.Connect(t.Context(), claimSpec(claim)); return err },
					func(claim int) error { return l.Remove(t.Context(), claimTarget(claim, made[claim].Volume.ID)) },
				} {
					memory.forgetLog()
					together(t, l, claims)
					atOnce(t, claims, do)
					idle(t, l)
					spent[others] += memory.count("volume.list") + memory.count("volume.get")
				}
				equal(t, len(memory.present()), others)
			}
			// If there are many, each is read before and after its deletion, which costs
			// Cinder less than complete listings.
			if more := spent[20_000] - spent[0]; more > 2*claims {
				t.Errorf("%d pages and reads, %d in an empty project", spent[20_000], spent[0])
			}
		})
	}
}

// TestDeletionsThatTrickleShareListings: where the project has little else, most
// deletions cost no read of their own, whenever they begin.
func TestDeletionsThatTrickleShareListings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		l := memory.term(t)
		_, err := l.Volumes(t.Context())
		equal(t, authtest.ErrorText(err), "")
		const claims = 200
		made := make([]Connected, claims)
		atOnce(t, claims, func(claim int) (err error) {
			made[claim], err = l.Connect(t.Context(), claimSpec(claim))
			return err
		})
		idle(t, l)
		memory.looks = 5
		memory.forgetLog()
		atOnce(t, claims, func(claim int) error {
			time.Sleep(time.Duration(claim) * 100 * time.Microsecond)
			return l.Remove(t.Context(), claimTarget(claim, made[claim].Volume.ID))
		})
		idle(t, l)
		equal(t, len(memory.present()), 0)
		if requests := memory.count("volume.list") + memory.count("volume.get"); requests > claims/4 {
			t.Errorf("%d listings and %d reads for %d deletions", memory.count("volume.list"), memory.count("volume.get"), claims)
		}
	})
}
