package backends

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/knowledge"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// TestVolumeThatVanishedIsLookedUp: the volume that this term knows is gone,
// but this term did not remove it. Another leader may have kept a different
// one.
func TestVolumeThatVanishedIsLookedUp(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusAttaching, cinder.StatusCreating} {
		memory := newMemoryCinder()
		l := memory.term(t)
		if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
			t.Fatal(err)
		}
		if status == cinder.StatusCreating {
			// It disappears while it is being created.
			l = memory.term(t)
			memory.mu.Lock()
			clear(memory.volumes)
			memory.mu.Unlock()
			id := memory.add(mine(1, cinder.StatusCreating))
			memory.mu.Lock()
			memory.volumes[id].end = ""
			memory.mu.Unlock()
			memory.onCall(func(operation string) {
				memory.mu.Lock()
				defer memory.mu.Unlock()
				if _, there := memory.volumes[id]; !there && len(memory.volumes) == 0 {
					memory.put(mine(1, cinder.StatusAvailable))
				}
			})
		} else {
			memory.mu.Lock()
			clear(memory.volumes)
			memory.mu.Unlock()
			memory.add(mine(1, cinder.StatusAvailable))
		}
		if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
			t.Fatal(err)
		}
		found := memory.stamped(claimStamp(1))
		if len(found) != 1 || found[0].Status != cinder.StatusAttaching {
			t.Errorf("%s: left %+v, want the volume of the other leader", status, found)
		}
		if n := memory.count("volume.create"); n != 1 {
			t.Errorf("%s: %d creates, want 1", status, n)
		}
		memory.onCall(nil)
	}
}

// TestRivalOfAnotherLeader: two overlapping leaders create two volumes. The
// leader that is still waiting sees the other volume in its listing.
func TestRivalOfAnotherLeader(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	var once sync.Once
	memory.onCall(func(operation string) {
		if operation == "volume.list" && memory.count("volume.create") == 1 {
			once.Do(func() {
				rival := mine(1, cinder.StatusAttaching) // the other one was faster
				rival.ID = "rival"
				memory.add(rival)
			})
		}
	})
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, "rival")
	equal(t, len(memory.stamped(claimStamp(1))), 1)
	equal(t, memory.changes(), []string{"volume.create", "volume.delete volume-1", "volume.os-initialize_connection rival"})
}

// TestLateRivalIsHandedOver: the duplicate appears after the first volume was
// connected. The PersistentVolume then determines which one is right, and the
// caller that completes or removes that volume learns of the other.
func TestLateRivalIsHandedOver(t *testing.T) {
	for name, finish := range map[string]func(l *Lifecycle, id string) error{
		"on completion": func(l *Lifecycle, id string) error { return l.Complete(t.Context(), claimTarget(1, id), false) },
		"on abandoning": func(l *Lifecycle, id string) error { return l.Abandon(t.Context(), claimStamp(1), testConnector, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			l := memory.term(t)
			connected, err := l.Connect(t.Context(), claimSpec(1))
			if err != nil {
				t.Fatal(err)
			}
			late := memory.add(mine(1, cinder.StatusAvailable))
			foreign := mine(1, cinder.StatusAvailable)
			foreign.Metadata[stamps.KeyPV] = "pvc-another"
			memory.add(foreign)
			// Another claim's wait shows them.
			if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
				t.Fatal(err)
			}
			if err := finish(l, connected.Volume.ID); err != nil {
				t.Fatal(err)
			}
			for _, id := range l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID) {
				err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
				if err != nil && !cinder.IsKind(err, KindNotOurs) {
					t.Error(err)
				}
			}
			equal(t, len(l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID)), 0)
			left := memory.present()
			if _, ok := left[late]; ok {
				t.Error("the late volume still exists")
			}
			if _, ok := left["volume-3"]; !ok {
				t.Error("a volume of another PersistentVolume was removed")
			}
			if _, ok := left[connected.Volume.ID]; ok != (name == "on completion") {
				t.Errorf("the claim's volume exists: %v", ok)
			}
		})
	}
}

func TestLateRivalInUseIsLeftAlone(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	late := memory.add(mine(1, cinder.StatusInUse))
	if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
		t.Fatal(err)
	}
	before := memory.present()[late]
	if err := l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false); err != nil {
		t.Errorf("the claim is served, but: %v", err)
	}
	for _, id := range l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID) {
		if err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil); !cinder.IsKind(err, KindRecorded) {
			t.Errorf("error %v", err)
		}
	}
	equal(t, memory.present()[late], before)
}

// TestDuplicateThatCameIntoUse: the listing is old; meanwhile another leader
// has completed the volume that it shows as attaching.
func TestDuplicateThatCameIntoUse(t *testing.T) {
	memory := newMemoryCinder()
	first, second := memory.add(mine(1, cinder.StatusAttaching)), memory.add(mine(1, cinder.StatusAttaching))
	l := memory.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	memory.mu.Lock()
	memory.attach(memory.volumes[second], testConnector.Host)
	memory.mu.Unlock()
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, second)
	if _, ok := memory.present()[first]; ok {
		t.Error("the volume that was never attached still exists")
	}
}

// TestDuplicateThatBecameForeign: a duplicate in the listing now has another
// stamp.
func TestDuplicateThatBecameForeign(t *testing.T) {
	memory := newMemoryCinder()
	own, given := memory.add(mine(1, cinder.StatusAvailable)), memory.add(mine(1, cinder.StatusAvailable))
	l := memory.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	memory.mu.Lock()
	memory.volumes[given].Metadata = claimStamp(7).Metadata(nil)
	memory.mu.Unlock()
	before := memory.present()[given]
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, own)
	equal(t, memory.present()[given], before)
}

func TestSortedByAge(t *testing.T) {
	at := func(seconds int, id string) cinder.Volume {
		return cinder.Volume{ID: id, CreatedAt: time.Unix(int64(seconds), 0)}
	}
	volumes := []cinder.Volume{at(2, "a"), at(1, "c"), at(1, "b")}
	slices.SortFunc(volumes, knowledge.ByAge)
	equal(t, ids(volumes), []string{"b", "c", "a"})
}
