package backends

import (
	"testing"

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
	// Here the command dies, and later the pod ends.
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
