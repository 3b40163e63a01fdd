package backends

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// TestVolumeThatVanishedIsLookedUp: the volume that this term knows is gone,
// but not by its doing. Another leader may have kept another one.
func TestVolumeThatVanishedIsLookedUp(t *testing.T) {
	for _, status := range []Status{StatusAttaching, StatusCreating} {
		cinder := newMemoryCinder()
		l := cinder.term(t)
		if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
			t.Fatal(err)
		}
		if status == StatusCreating {
			// It vanishes while it is being created.
			l = cinder.term(t)
			cinder.mu.Lock()
			clear(cinder.volumes)
			cinder.mu.Unlock()
			id := cinder.add(mine(1, StatusCreating))
			cinder.mu.Lock()
			cinder.volumes[id].end = ""
			cinder.mu.Unlock()
			cinder.onCall(func(operation string) {
				cinder.mu.Lock()
				defer cinder.mu.Unlock()
				if _, there := cinder.volumes[id]; !there && len(cinder.volumes) == 0 {
					cinder.put(mine(1, StatusAvailable))
				}
			})
		} else {
			cinder.mu.Lock()
			clear(cinder.volumes)
			cinder.mu.Unlock()
			cinder.add(mine(1, StatusAvailable))
		}
		if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
			t.Fatal(err)
		}
		found := cinder.stamped(claimStamp(1))
		if len(found) != 1 || found[0].Status != StatusAttaching {
			t.Errorf("%s: left %+v, want the one that another leader made", status, found)
		}
		if n := cinder.count("volume.create"); n != 1 {
			t.Errorf("%s: %d creates, want none beside the first", status, n)
		}
		cinder.onCall(nil)
	}
}

// TestRivalOfAnotherLeader: two leaders for a moment make two volumes. The one
// that is still waiting sees the other's in the listing it waits by.
func TestRivalOfAnotherLeader(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	var once sync.Once
	cinder.onCall(func(operation string) {
		if operation == "volume.list" && cinder.count("volume.create") == 1 {
			once.Do(func() {
				rival := mine(1, StatusAttaching) // the other one was faster
				rival.ID = "rival"
				cinder.add(rival)
			})
		}
	})
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, "rival")
	equal(t, len(cinder.stamped(claimStamp(1))), 1)
	equal(t, cinder.changes(), []string{"volume.create", "volume.delete volume-1", "volume.os-initialize_connection rival"})
}

// TestLateRivalIsHandedOver: the second volume appears after the first was
// connected. The PersistentVolume then says which one is right, and whoever
// brings that into use, or removes it, is told of the other.
func TestLateRivalIsHandedOver(t *testing.T) {
	for name, finish := range map[string]func(l *Lifecycle, id string) error{
		"on completion": func(l *Lifecycle, id string) error { return l.Complete(t.Context(), claimTarget(1, id), false) },
		"on abandoning": func(l *Lifecycle, id string) error { return l.Abandon(t.Context(), claimStamp(1), testConnector, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			l := cinder.term(t)
			connected, err := l.Connect(t.Context(), claimSpec(1))
			if err != nil {
				t.Fatal(err)
			}
			late := cinder.add(mine(1, StatusAvailable))
			foreign := mine(1, StatusAvailable)
			foreign.Metadata[stampPV] = "pvc-another"
			cinder.add(foreign)
			// Another claim's waiting shows them.
			if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
				t.Fatal(err)
			}
			if err := finish(l, connected.Volume.ID); err != nil {
				t.Fatal(err)
			}
			for _, id := range l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID) {
				err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
				if err != nil && !IsKind(err, KindNotOurs) {
					t.Error(err)
				}
			}
			equal(t, len(l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID)), 0)
			left := cinder.snapshot()
			if _, ok := left[late]; ok {
				t.Error("the late volume is still there")
			}
			if _, ok := left["volume-3"]; !ok {
				t.Error("a volume of another PersistentVolume was removed")
			}
			if _, ok := left[connected.Volume.ID]; ok != (name == "on completion") {
				t.Errorf("the claim's own volume is there: %v", ok)
			}
		})
	}
}

func TestLateRivalInUseIsLeftAlone(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	late := cinder.add(mine(1, StatusInUse))
	if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
		t.Fatal(err)
	}
	before := cinder.snapshot()[late]
	if err := l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false); err != nil {
		t.Errorf("the claim is served, and yet: %v", err)
	}
	for _, id := range l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID) {
		if err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil); !IsKind(err, KindRecorded) {
			t.Errorf("the answer is %v", err)
		}
	}
	equal(t, cinder.snapshot()[late], before)
}

// TestDuplicateThatCameIntoUse: the listing is old; in the meantime the volume
// it shows as attaching has been completed by another leader.
func TestDuplicateThatCameIntoUse(t *testing.T) {
	cinder := newMemoryCinder()
	first, second := cinder.add(mine(1, StatusAttaching)), cinder.add(mine(1, StatusAttaching))
	l := cinder.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	cinder.mu.Lock()
	cinder.attach(cinder.volumes[second], testConnector.Host)
	cinder.mu.Unlock()
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, second)
	if _, ok := cinder.snapshot()[first]; ok {
		t.Error("the volume that was never attached is still there")
	}
}

// TestDuplicateThatBecameForeign: what the listing showed as a second volume
// has been given away since.
func TestDuplicateThatBecameForeign(t *testing.T) {
	cinder := newMemoryCinder()
	own, given := cinder.add(mine(1, StatusAvailable)), cinder.add(mine(1, StatusAvailable))
	l := cinder.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	cinder.mu.Lock()
	cinder.volumes[given].Metadata = claimStamp(7).Metadata(nil)
	cinder.mu.Unlock()
	before := cinder.snapshot()[given]
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, own)
	equal(t, cinder.snapshot()[given], before)
}

func TestSortedByAge(t *testing.T) {
	at := func(seconds int, id string) Volume {
		return Volume{ID: id, CreatedAt: time.Unix(int64(seconds), 0)}
	}
	volumes := []Volume{at(2, "a"), at(1, "c"), at(1, "b")}
	slices.SortFunc(volumes, elder)
	equal(t, ids(volumes), []string{"b", "c", "a"})
}
