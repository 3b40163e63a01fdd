package backends

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// TestBeginTakesNoAttachmentForItsReservation: an attachment that a leader is making for a
// node also makes the volume attaching, and the volume's document does not list it until it
// is complete.
func TestBeginTakesNoAttachmentForItsReservation(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	done := false
	memory.before = func(operation string) {
		if operation != "metadata.update" || done {
			return
		}
		done = true
		_, _, err := memory.client().CreateAttachment(t.Context(), id, cinder.Connector{Host: stamps.NodeHost("n1", "cluster-1")}, false)
		success(t, err)
	}
	swaps := Swaps{memory.term(t)}
	if err := swaps.Begin(t.Context(), id, "pvc-uid-2"); err == nil {
		t.Errorf("Begin succeeds although a node is getting the volume; it requested %q", memory.changes())
	}
	if err := swaps.Restamp(t.Context(), id, claimStamp(2), "pv-2"); err == nil {
		t.Errorf("the volume is now that of %s, and node n1 is getting it for pvc-uid-1", memory.volumes[id].Metadata[stamps.KeyPV])
	}
	success(t, swaps.End(t.Context(), id, "pvc-uid-2"))
	for _, change := range memory.changes() {
		if change == "volume.os-unreserve "+id {
			t.Error("the state of the node's attachment was canceled")
		}
	}
}

// TestAMarkedVolumeThatANodeHasCanBeDetached: a node gets the volume between Begin's read and
// its mark, and the command dies, or cannot take the mark back.
func TestAMarkedVolumeThatANodeHasCanBeDetached(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	leader, done := memory.term(t), false
	memory.before = func(operation string) {
		if operation != "metadata.update" || done {
			return
		}
		done = true
		_, err := leader.Publish(t.Context(), claimTarget(1, id), toNode("n1"))
		success(t, err)
	}
	swaps := Swaps{memory.term(t)}
	if err := swaps.Begin(t.Context(), id, "pvc-uid-2"); err == nil {
		t.Fatal("Begin reserved a volume in use")
	}
	// Here the command dies, and later the pod ends. Run again, the command takes back first
	// what it has begun.
	success(t, swaps.End(t.Context(), id, "pvc-uid-2"))
	err := leader.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1"})
	if err != nil {
		t.Errorf("the volume stays attached to n1: %v", err)
	}
}

// TestAMultiattachVolumeInUseIsNotReserved: Cinder does reserve a multiattach volume that
// somebody has attached meanwhile.
func TestAMultiattachVolumeInUseIsNotReserved(t *testing.T) {
	memory := newMemoryCinder()
	memory.shared = true
	v := forNodes()
	v.MultiAttach = true
	id := memory.add(v)
	leader, done := memory.term(t), false
	memory.before = func(operation string) {
		if operation != "metadata.update" || done {
			return
		}
		done = true
		to := toNode("n1")
		to.Shared = true
		_, err := leader.Publish(t.Context(), claimTarget(1, id), to)
		success(t, err)
	}
	swaps := Swaps{memory.term(t)}
	if err := swaps.Begin(t.Context(), id, "pvc-uid-2"); err == nil {
		t.Errorf("Begin reserved a volume that node n1 has; it is %s", memory.volumes[id].Status)
	}
	success(t, swaps.End(t.Context(), id, "pvc-uid-2"))
	if status := memory.volumes[id].Status; status != cinder.StatusInUse {
		t.Errorf("node n1 has the volume, which is %s after End", status)
	}
}

func TestAVolumeThatIsGoneHasEnded(t *testing.T) {
	memory := newMemoryCinder()
	if err := (Swaps{memory.term(t)}).End(t.Context(), "volume-9", "pvc-uid-2"); err != nil {
		t.Error(err)
	}
}

// TestAReservationThatArrivesLateIsFound: a proxy gives up on the reservation, and Cinder
// reserves the volume after all.
func TestAReservationThatArrivesLateIsFound(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	memory.fault = failOnce("volume.os-reserve", late)
	memory.delay = func() int { return 100 }
	swaps := Swaps{memory.term(t)}
	if err := swaps.Begin(t.Context(), id, "pvc-uid-2"); err == nil {
		t.Fatal("the answer was not lost")
	}
	memory.deliverAll()
	if err := swaps.Begin(t.Context(), id, "pvc-uid-2"); err != nil {
		t.Errorf("run again: %v", err)
	}
	success(t, swaps.End(t.Context(), id, "pvc-uid-2"))
	if status := memory.volumes[id].Status; status != cinder.StatusAvailable {
		t.Errorf("the volume is %s, marked for swap %q", status, memory.volumes[id].Metadata[stamps.KeySwap])
	}
}

// TestASwappedVolumeIsNotThatOfItsBackupsClaim: Cinder keeps the stamp of a volume that it
// restores from a backup without volume metadata, so nothing has removed the description that
// says for which claim it was made; not even Cinder's mark of the backup need be there. With
// it, a volume in error would be that claim's again.
func TestASwappedVolumeIsNotThatOfItsBackupsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		v := forNodes()
		v.Description = claimStamp(1).RestoredFrom("backup-1")
		id := memory.add(v)
		swaps := Swaps{memory.term(t)}
		success(t, swaps.Begin(t.Context(), id, "pvc-uid-2"))
		success(t, swaps.Restamp(t.Context(), id, claimStamp(2), "pv-2"))
		for _, status := range []cinder.Status{cinder.StatusAttaching, cinder.StatusError} {
			memory.volumes[id].Status = status
			seen, found, err := memory.term(t).Find(t.Context(), id)
			success(t, err)
			if !found || !stamps.EverAttached(seen) || !stamps.IsBeingSwapped(seen) || stamps.Of(seen).PV != "pvc-uid-2" {
				t.Errorf("the volume is seen as %v", seen.Metadata)
			}
			permit := func(context.Context, cinder.Volume) error { return nil }
			err = memory.term(t).RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, permit)
			if memory.volumes[id] == nil {
				t.Fatalf("the volume with the data is deleted; error %v", err)
			}
		}
		time.Sleep(time.Minute) // until nothing is watched anymore
	})
}

// TestALateStampOfAnEarlierLeaderUndoesNoSwap: the first leader's request to stamp a restored
// volume again loses its answer, and the leader dies with the memory of that. The next one
// stamps the volume, the claim is bound, and somebody swaps its volume. Then the first request
// arrives.
func TestALateStampOfAnEarlierLeaderUndoesNoSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		_, spec := lateStamped(t, memory)
		next := memory.term(t)
		connected, err := next.Connect(t.Context(), spec)
		success(t, err)
		id := connected.Volume.ID
		swaps := Swaps{next}
		if err := swaps.Begin(t.Context(), id, "pvc-uid-3"); !cinder.IsKind(err, cinder.KindConflict) {
			t.Errorf("error %v", err)
		}
		time.Sleep(lateStamp)
		memory.deliverAll()
		success(t, swaps.Begin(t.Context(), id, "pvc-uid-3"))
		time.Sleep(time.Minute)
	})
}

// TestAReservationAfterItsMarkWasTakenBackEnds: between a run's mark and its reservation,
// another run takes back what the first has begun. The first cannot commit, and ends what it
// did.
func TestAReservationAfterItsMarkWasTakenBackEnds(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	first, second, done := Swaps{memory.term(t)}, Swaps{memory.term(t)}, false
	memory.before = func(operation string) {
		if operation != "volume.os-reserve" || done {
			return
		}
		done = true
		success(t, second.End(t.Context(), id, "pvc-uid-2"))
	}
	err := first.Begin(t.Context(), id, "pvc-uid-2")
	if !done {
		t.Fatal("the case is wrong")
	}
	success(t, first.End(t.Context(), id, "pvc-uid-2"))
	if v := memory.volumes[id]; v.Status != cinder.StatusAvailable {
		t.Errorf("the volume is %s for good, marked for swap %q; Begin says %v", v.Status, v.Metadata[stamps.KeySwap], err)
	}
}

// TestAVolumeInAnotherSwapIsNotRestamped: a late run of a swap comes to a volume that is being
// swapped with that of a third PersistentVolume.
func TestAVolumeInAnotherSwapIsNotRestamped(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	swaps := Swaps{memory.term(t)}
	success(t, swaps.Begin(t.Context(), id, "pvc-uid-3"))
	if err := swaps.Restamp(t.Context(), id, claimStamp(2), "pv-2"); err == nil {
		t.Errorf("the volume is now that of %s, and pvc-uid-3 gets it", memory.volumes[id].Metadata[stamps.KeyPV])
	}
	success(t, swaps.Restamp(t.Context(), id, claimStamp(3), "pv-3"))
}
