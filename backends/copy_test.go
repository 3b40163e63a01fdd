package backends

import (
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// restored returns a volume that a user restored from a backup of a claim's
// volume, an hour after the original was made.
func restored(n int) cinder.Volume {
	made := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	v := mine(n, cinder.StatusAvailable)
	v.Metadata[stamps.KeyRequestedAt] = made.Format(time.RFC3339)
	v.CreatedAt = made.Add(time.Hour)
	return v
}

func TestRestoredBackupOutlivesTheVolumeThatItCopies(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	rescued := memory.add(restored(1))
	// Another claim's wait shows it as a duplicate of the first.
	if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), claimTarget(1, connected.Volume.ID)); err != nil {
		t.Fatal(err)
	}
	left := memory.present()
	if _, ok := left[rescued]; !ok {
		t.Error("a restored backup was removed with the volume that it copies")
	}
	if _, ok := left[connected.Volume.ID]; ok {
		t.Error("the claim's volume still exists")
	}
}

func TestRestoredBackupIsNotTakenForALeftover(t *testing.T) {
	memory := newMemoryCinder()
	memory.add(restored(1))
	err := memory.term(t).Abandon(t.Context(), claimStamp(1), testConnector, nil)
	equal(t, authtest.ErrorText(err), `backend gold: volume volume-1 (available) carries the stamp of claim UID "uid-1" but is younger than that claim's volume: it looks like a restored backup and is not removed`)
	equal(t, memory.changes(), []string(nil))
}

func TestRestoredBackupIsNoRivalOfAPendingClaimsVolume(t *testing.T) {
	memory := newMemoryCinder()
	rescued := memory.add(restored(1))
	own := mine(1, cinder.StatusAvailable)
	own.CreatedAt = time.Date(2026, 11, 20, 11, 0, 0, 0, time.UTC)
	memory.add(own)
	if _, err := memory.term(t).Connect(t.Context(), claimSpec(1)); err != nil {
		t.Fatal(err)
	}
	if _, ok := memory.present()[rescued]; !ok {
		t.Error("a restored backup was removed as a duplicate")
	}
}

func TestVolumeIsACopyOnlyIfItIsMuchYoungerThanItsRequest(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		created time.Time
		copy    bool
	}{
		{"at once", at, false},
		{"before, by a clock that was set", at.Add(-time.Hour), false},
		{"after a queue", at.Add(14 * time.Minute), false},
		{"much later", at.Add(16 * time.Minute), true},
		{"Cinder does not say", time.Time{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, stamps.IsCopy(cinder.Volume{CreatedAt: c.created, Metadata: map[string]string{stamps.KeyRequestedAt: at.Format(time.RFC3339)}}), c.copy)
		})
	}
	// A volume of an earlier release has no record of its request.
	equal(t, stamps.IsCopy(cinder.Volume{CreatedAt: at, Metadata: claimStamp(1).Metadata(nil)}), false)
}

// TestWrongDateMakesNoCopy: a proxy's Date header is wrong by an hour. The
// answer to the create shows Cinder's own clock, and the volume can still be
// removed.
func TestWrongDateMakesNoCopy(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		memory := newMemoryCinder()
		memory.ahead = ahead
		l := memory.term(t)
		connected, err := l.Connect(t.Context(), claimSpec(1))
		if err != nil {
			t.Fatal(err)
		}
		if stamps.IsCopy(memory.stamped(claimStamp(1))[0]) {
			t.Errorf("%s ahead: volume %s counts as a copy", ahead, connected.Volume.ID)
		}
		if err := l.Abandon(t.Context(), claimStamp(1), claimSpec(1).Connector, nil); err != nil {
			t.Errorf("%s ahead: %v", ahead, err)
		}
		equal(t, len(memory.stamped(claimStamp(1))), 0)
	}
}
