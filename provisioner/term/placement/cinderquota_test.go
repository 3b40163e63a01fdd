package placement

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

var errGoldAtLimit = &cinder.Error{Kind: cinder.KindOverQuota, Backend: "gold", Operation: "volume.create", Message: "VolumeLimitExceeded", Status: 413}

func TestCindersQuotaForLargeVolumesDoesNotDenySmallOnes(t *testing.T) {
	f := newFixture(t)
	f.NoteFull("gold", policy.VolumeProperties{SizeGiB: 5, Type: "ssd"}, errGoldAtLimit)
	for _, c := range []struct {
		volume policy.VolumeProperties
		full   bool
	}{
		{policy.VolumeProperties{SizeGiB: 5, Type: "ssd"}, true},
		{policy.VolumeProperties{SizeGiB: 9, Type: "ssd"}, true},
		{policy.VolumeProperties{SizeGiB: 4, Type: "ssd"}, false},
		{policy.VolumeProperties{SizeGiB: 9, Type: "hdd"}, false},
	} {
		if got := f.isFull("gold", c.volume) != nil; got != c.full {
			t.Errorf("%+v: full %t", c.volume, got)
		}
	}
}

func TestFullnessPassesWithItsLastRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		volume := policy.VolumeProperties{SizeGiB: 1}
		f.NoteFull("gold", volume, errGoldAtLimit)
		time.Sleep(fullFor / 2)
		f.NoteFull("gold", volume, errGoldAtLimit)
		time.Sleep(fullFor/2 + time.Second)
		synctest.Wait()
		if len(f.Ledger.Freed()) > 0 || f.isFull("gold", volume) == nil {
			t.Error("a newer refusal was forgotten with the older one")
		}
		time.Sleep(fullFor / 2)
		synctest.Wait()
		if len(f.Ledger.Freed()) == 0 || f.isFull("gold", volume) != nil {
			t.Error("the refusal is not forgotten")
		}
		want := []parking.Trigger{RoomIn(ledger.Scope{Kind: policy.BackendScope, Name: "gold"})}
		if got := f.TakeFreed(); !slices.Equal(got, want) {
			t.Errorf("freed room triggers %v, want %v", got, want)
		}
	})
}
