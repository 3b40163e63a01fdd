package backends

import (
	"context"
	"testing"
)

// attackMoved is a term whose credentials came to lead to another project after
// it had connected a volume for claim 1.
func attackMoved(t *testing.T) (l *Lifecycle, before *memoryCinder, clients *changingClients, id string) {
	t.Helper()
	before, after := newMemoryCinder(), newMemoryCinder()
	after.place = Place{Endpoint: memoryPlace.Endpoint, Project: "p2"}
	clients = &changingClients{now: before}
	term := before.term(t)
	l = newLifecycle(term.options, sameClients(clients))
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	clients.leadTo(after)
	_, _ = l.Volumes(t.Context())
	if _, _, err := l.Find(t.Context(), connected.Volume.ID); !IsKind(err, KindConflict) && err != nil {
		t.Fatal(err)
	}
	return l, before, clients, connected.Volume.ID
}

// TestAttackAbandonAtAnotherPlaceProvesNothing: the claim goes while the
// credentials lead to another project. Who undoes it is told that all is gone,
// removes the Secret, gives the room back, and forgets the claim; the volume is
// where it was, connected.
func TestAttackAbandonAtAnotherPlaceProvesNothing(t *testing.T) {
	l, before, _, _ := attackMoved(t)
	err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	for IsKind(err, KindConflict) {
		err = l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	}
	if n := len(before.snapshot()); n != 1 {
		t.Fatalf("%d volumes", n)
	}
	if err == nil {
		t.Error("the volume exists, and is told to be gone")
	}
}

// TestAttackRemovalOfAListedVolumeAtAnotherPlaceProvesNothing: the listing was of
// another place than the removal.
func TestAttackRemovalOfAListedVolumeAtAnotherPlaceProvesNothing(t *testing.T) {
	l, before, _, id := attackMoved(t)
	err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
	for IsKind(err, KindConflict) {
		err = l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
	}
	if n := len(before.snapshot()); n != 1 {
		t.Fatalf("%d volumes", n)
	}
	if err == nil {
		t.Error("the volume exists, and is told to be removed")
	}
}

// TestAttackMarkAtAnotherPlaceIsNotMissing: KindNotFound ends the marking for
// good.
func TestAttackMarkAtAnotherPlaceIsNotMissing(t *testing.T) {
	l, _, _, id := attackMoved(t)
	target := claimTarget(1, id)
	err := l.Mark(t.Context(), target)
	for IsKind(err, KindConflict) {
		err = l.Mark(t.Context(), target)
	}
	if !IsKind(err, KindElsewhere) {
		t.Errorf("the volume was recorded at %s and is not there to be asked for: %v", target.Place, err)
	}
}

// TestAttackAbandonOfTwoKeptVolumesEnds: both were recorded once, and are kept.
// The conflict is tried again for ever.
func TestAttackAbandonOfTwoKeptVolumesEnds(t *testing.T) {
	cinder := newMemoryCinder()
	for range 2 {
		v := mine(1, StatusInUse)
		v.Status, v.Attachments = StatusAvailable, nil
		cinder.add(v)
	}
	l := cinder.term(t)
	if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); !IsKind(err, KindRecorded) {
		t.Errorf("the answer is %v (%s)", err, KindOf(err))
	}
}

// TestAttackSecondVolumeGoesBesideAKeptOne shows that the permit, which removes
// the claim's Secret, is asked for a second volume beside one that is kept with
// its Secret; see TestAttackSecondVolumeTakesTheSecretOfAKeptOne.
func TestAttackSecondVolumeGoesBesideAKeptOne(t *testing.T) {
	cinder := newMemoryCinder()
	kept := mine(1, StatusInUse)
	kept.Status, kept.Attachments = StatusAvailable, nil
	cinder.add(kept)
	cinder.add(mine(1, StatusAvailable))
	l := cinder.term(t)
	asked := 0
	permit := func(context.Context, Volume) error { asked++; return nil }
	err := l.Abandon(t.Context(), claimStamp(1), testConnector, permit)
	if IsKind(err, KindRecorded) && asked > 0 {
		t.Errorf("the claim's things stay (%v), and the permit that removes its Secret was asked %d times", err, asked)
	}
}
