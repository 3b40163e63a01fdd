package backends

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// TestAttackBeginTakesNoAttachmentForItsReservation: an attachment that a leader is making
// for a node also makes the volume attaching, and the volume's document does not list it
// until it is complete. Between Begin's read and its mark, a node can get the volume; Begin
// then believes that it has reserved the volume itself, Restamp gives the volume to the
// other PersistentVolume, and End cancels the state of the attachment. Only stillFree is in
// between, and it does not see nodes of other orchestrators, for which isAskedFor attaches
// without a VolumeAttachment: such a node then writes to another claim's volume, and since
// it reports it under the handle of its own PersistentVolume, nodeuse and letsGo of the
// other one find no node that has it.
func TestAttackBeginTakesNoAttachmentForItsReservation(t *testing.T) {
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
			t.Error("the state of the node's attachment was cancelled")
		}
	}
}

// TestAttackAMarkedVolumeThatANodeHasCanBeDetached: a node gets the volume between Begin's
// read and its mark, and the command dies, or cannot take the mark back. The pod runs, and
// when it ends, its volume can never be detached: a marked volume is nobody's. The swap
// refuses to continue or to end because the claim is in use, so neither ever happens.
func TestAttackAMarkedVolumeThatANodeHasCanBeDetached(t *testing.T) {
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

// TestAttackAMultiattachVolumeInUseIsNotReserved: Cinder does reserve a multiattach volume
// that somebody has attached meanwhile, unlike Begin says. End then leaves it attaching,
// because it has an attachment, and Cinder makes no second attachment and no snapshot of it
// until an administrator resets its state.
func TestAttackAMultiattachVolumeInUseIsNotReserved(t *testing.T) {
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

// TestAttackAVolumeThatIsGoneHasEnded: End of a volume that was deleted fails, and so does
// everything after it: the other volume's End, and the removal of the intents.
func TestAttackAVolumeThatIsGoneHasEnded(t *testing.T) {
	memory := newMemoryCinder()
	if err := (Swaps{memory.term(t)}).End(t.Context(), "volume-9", "pvc-uid-2"); err != nil {
		t.Error(err)
	}
}

// TestAttackAReservationThatArrivesLateIsFound: a proxy gives up on the reservation, the
// command takes back what it did, and Cinder reserves the volume after all. Nothing marks it
// now, so no pod gets it ("another party reserved it"), and the command, run again, takes the
// reservation for a stranger's. Nobody ends it but an OpenStack administrator.
func TestAttackAReservationThatArrivesLateIsFound(t *testing.T) {
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

// TestAttackAVolumeRestoredFromABackupKeepsItsNewStamp: Cinder keeps the stamp of a volume that
// it restores from a backup without volume metadata (of a volume that had none), so stampAgain
// never runs, and the description that says for which claim the volume was made stays. It
// does no harm as long as the stamp names the same claim. A swap changes that: from then on
// stamps.Settled shows the volume to everybody as one that was never attached, of the former
// claim, and without the swap's mark. The swap never gets beyond Restamp, and what protects a
// volume that was in use is gone: RemoveUnrecorded, which audit and follow-ups call, takes it.
// Only the record of a PersistentVolume that names it keeps them from that, so it is lost when
// its claim and a PersistentVolume with the policy Retain are deleted.
func TestAttackAVolumeRestoredFromABackupKeepsItsNewStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		v := forNodes()
		v.Description = claimStamp(1).RestoredFrom("backup-1")
		v.Metadata[cinder.MetadataSourceBackup] = "backup-1"
		id := memory.add(v)
		if err := (Swaps{memory.term(t)}).Begin(t.Context(), id, "pvc-uid-2"); err == nil || len(memory.changes()) > 0 {
			t.Errorf("error %v, requests %q", err, memory.changes())
		}
		time.Sleep(time.Minute) // until nothing is watched anymore
	})
}
