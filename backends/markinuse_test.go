package backends

import (
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func TestCompleteFromEveryState(t *testing.T) {
	connect, attach := "volume.os-initialize_connection volume-1", "volume.os-attach volume-1"
	noStamp := mine(1, cinder.StatusAttaching)
	noStamp.Metadata = nil
	tests := map[string]struct {
		volume  cinder.Volume
		member  bool
		faults  map[string][]mishap
		want    []string
		wantErr string
		kind    cinder.Kind
	}{
		"attaching":            {volume: mine(1, cinder.StatusAttaching), want: []string{connect, attach}},
		"in use":               {volume: mine(1, cinder.StatusInUse)},
		"answer lost":          {volume: mine(1, cinder.StatusAttaching), faults: map[string][]mishap{"volume.os-attach": {lost}}, want: []string{connect, attach}},
		"answer lost, member":  {volume: mine(1, cinder.StatusAttaching), member: true, faults: map[string][]mishap{"volume.os-attach": {lost}}, want: []string{connect, attach}},
		"refused":              {volume: mine(1, cinder.StatusAttaching), faults: map[string][]mishap{"volume.os-attach": {refused}}, want: []string{connect, attach}, wantErr: "backend gold: volume.os-attach: Cinder answered service unavailable (HTTP 503)", kind: cinder.KindUnavailable},
		"refused, and no look": {volume: mine(1, cinder.StatusAttaching), faults: map[string][]mishap{"volume.os-attach": {refused}, "volume.get": {unsent}}, want: []string{connect, attach}, wantErr: "backend gold: volume.os-attach: Cinder answered service unavailable (HTTP 503)\nbackend gold: volume.get: no connection to cinder: connection refused", kind: cinder.KindUnavailable},
		"available":            {volume: mine(1, cinder.StatusAvailable), wantErr: "backend gold: volume volume-1 is available, expected attaching", kind: cinder.KindConflict},
		"not ours":             {volume: noStamp, wantErr: `backend gold: volume volume-1 is stamped with nothing, expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`, kind: KindNotOurs},
		"in use elsewhere":     {volume: attachedTo(mine(1, cinder.StatusInUse), cinder.Attachment{ID: "a", Host: "node7"}), wantErr: "backend gold: volume volume-1 is attached elsewhere (node7); detach it there first", kind: KindInUse},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.member = test.member
			id := memory.add(test.volume)
			memory.fault = sequence(test.faults)
			err := memory.term(t).Complete(t.Context(), claimTarget(1, id), false)
			equal(t, authtest.ErrorText(err), test.wantErr)
			if err != nil {
				equal(t, cinder.KindOf(err), test.kind)
			}
			equal(t, memory.changes(), test.want)
		})
	}
	t.Run("by the attachments API: the mark comes first", func(t *testing.T) {
		memory := newMemoryCinder()
		id := memory.byAttachments(1, cinder.StatusAttaching, "attaching")
		memory.fault = sequence(map[string][]mishap{"attachment.complete": {refused}})
		l := memory.term(t)
		equal(t, cinder.KindOf(l.Complete(t.Context(), claimTarget(1, id), false)), cinder.KindUnavailable)
		equal(t, stamps.EverAttached(memory.present()[id]), true)
		if err := l.Complete(t.Context(), claimTarget(1, id), false); err != nil {
			t.Error(err)
		}
		equal(t, memory.changes(), []string{"metadata.update " + id, "attachment.complete attachment-2", "attachment.complete attachment-2"})
	})
	t.Run("connected, recorded late, and a connect failed since", func(t *testing.T) {
		memory := newMemoryCinder()
		l := memory.term(t)
		connected, err := l.Connect(t.Context(), claimSpec(1))
		if err != nil {
			t.Fatal(err)
		}
		made := len(memory.changes())
		memory.fault = sequence(map[string][]mishap{"volume.os-initialize_connection": {refused}})
		if _, err = l.Connect(t.Context(), claimSpec(1)); !cinder.IsKind(err, cinder.KindUnavailable) {
			t.Errorf("the second connect: %v", err)
		}
		if err := l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false); err != nil {
			t.Error(err)
		}
		equal(t, memory.changes()[made:], []string{connect, connect, attach})
	})
	t.Run("gone", func(t *testing.T) {
		memory := newMemoryCinder()
		err := memory.term(t).Complete(t.Context(), claimTarget(1, "volume-9"), false)
		equal(t, cinder.KindOf(err), cinder.KindNotFound)
	})
	t.Run("what was known is out of date", func(t *testing.T) {
		memory := newMemoryCinder()
		l := memory.term(t)
		connected, err := l.Connect(t.Context(), claimSpec(1))
		if err != nil {
			t.Fatal(err)
		}
		memory.mu.Lock()
		memory.attach(memory.volumes[connected.Volume.ID], "node7")
		memory.mu.Unlock()
		err = l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false)
		equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 is attached elsewhere (node7); detach it there first")
	})
}

// sequence gives each operation its mishaps in order.
func sequence(faults map[string][]mishap) func(operation, id string) mishap {
	return func(operation, _ string) mishap {
		if len(faults[operation]) == 0 {
			return noFault
		}
		next := faults[operation][0]
		faults[operation] = faults[operation][1:]
		return next
	}
}

func TestHasAndVolumes(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(mine(1, cinder.StatusAvailable))
	foreign := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	second := memory.add(mine(2, cinder.StatusError))
	l := memory.term(t)
	for volume, want := range map[string]bool{id: true, foreign: true, "volume-9": false} {
		_, got, err := l.Find(t.Context(), volume)
		if err != nil || got != want {
			t.Errorf("Find(%s) = %v, %v", volume, got, err)
		}
	}
	memory.fault = sequence(map[string][]mishap{"volume.get": {refused}})
	if _, _, err := l.Find(t.Context(), id); !cinder.IsKind(err, cinder.KindUnavailable) {
		t.Errorf("Find at a silent Cinder: %v", err)
	}
	volumes, err := l.Volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, ids(volumes), []string{id, second})
	for claim, want := range map[int]bool{1: true, 2: true, 3: false} {
		got, err := l.HasVolumeOf(t.Context(), claimStamp(claim))
		if err != nil || got != want {
			t.Errorf("HasVolumeOf(%d) = %v, %v", claim, got, err)
		}
	}
	equal(t, memory.count("volume.list"), 1)
}

func TestHoldsOfASilentBackendIsUnknown(t *testing.T) {
	memory := newMemoryCinder()
	memory.fault = func(string, string) mishap { return refused }
	_, err := memory.term(t).HasVolumeOf(t.Context(), claimStamp(1))
	equal(t, cinder.KindOf(err), cinder.KindUnavailable)
	_, err = memory.term(t).Connect(t.Context(), claimSpec(1))
	equal(t, cinder.KindOf(err), cinder.KindUnavailable)
	equal(t, len(memory.changes()), 0)
}

// TestOutdatedPictureIsRefreshed: the listing showed the volume before it was
// reserved.
func TestOutdatedPictureIsRefreshed(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(mine(1, cinder.StatusAvailable))
	l := memory.term(t)
	_, err := l.Volumes(t.Context())
	equal(t, authtest.ErrorText(err), "")
	memory.mu.Lock()
	memory.volumes[id].Status = cinder.StatusAttaching
	memory.mu.Unlock()
	equal(t, authtest.ErrorText(l.Complete(t.Context(), claimTarget(1, id), false)), "")
	equal(t, memory.log, []string{"volume.list", "volume.get " + id, "volume.os-initialize_connection " + id, "volume.os-attach " + id})
}

// TestIsCompleteAgreesWithComplete: what the listing shows to be complete must need no
// request, or a later leader would take the volume for one that was never recorded.
func TestIsCompleteAgreesWithComplete(t *testing.T) {
	csi, marked := mine(1, cinder.StatusAvailable), mine(1, cinder.StatusAvailable)
	csi.Metadata[stamps.KeyMode], marked.Metadata[stamps.KeyMode] = stamps.ModeCSI, stamps.ModeCSI
	marked.Metadata[stamps.KeyAttached] = "true"
	noStamp := mine(1, cinder.StatusInUse)
	noStamp.Metadata[stamps.KeyClaimUID] = "uid-2"
	for name, test := range map[string]struct {
		volume cinder.Volume
		want   bool
	}{
		"attaching":                 {mine(1, cinder.StatusAttaching), false},
		"in use":                    {mine(1, cinder.StatusInUse), true},
		"available":                 {mine(1, cinder.StatusAvailable), false},
		"error":                     {mine(1, cinder.StatusError), false},
		"another claim's":           {noStamp, false},
		"in use by another":         {attachedTo(mine(1, cinder.StatusInUse), cinder.Attachment{ID: "a", ServerID: "server"}), false},
		"in mode csi, not recorded": {csi, false},
		"in mode csi, recorded":     {marked, true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(test.volume)
			l := memory.term(t)
			equal(t, l.IsComplete(claimTarget(1, id)), false) // nothing was listed
			equal(t, l.IsGone(id), false)
			if _, err := l.Volumes(t.Context()); err != nil {
				t.Fatal(err)
			}
			equal(t, l.IsComplete(claimTarget(1, id)), test.want)
			equal(t, l.IsGone(id), false)
			if test.want {
				if err := l.Complete(t.Context(), claimTarget(1, id), false); err != nil {
					t.Error(err)
				}
				equal(t, len(memory.changes()), 0)
			}
		})
	}
}

// TestRemovedVolumeIsGone: a removed volume counts as gone before another
// listing shows that.
func TestRemovedVolumeIsGone(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), claimTarget(1, id)); err != nil {
		t.Fatal(err)
	}
	equal(t, l.IsGone(id), true)
	equal(t, l.IsComplete(claimTarget(1, id)), false)
}

// TestListingOlderThanTheRecordShowsNothing: an administrator detached the volume before
// its PersistentVolume was made again.
func TestListingOlderThanTheRecordShowsNothing(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	memory.mu.Lock()
	v := memory.volumes[id]
	v.Status = cinder.StatusAttaching
	memory.volumes[id] = v
	memory.mu.Unlock()
	target := claimTarget(1, id)
	equal(t, l.IsComplete(target), true) // as far as the listing shows
	target.RecordedAt = time.Now().Add(time.Minute)
	equal(t, l.IsComplete(target), false)
	if err := l.Complete(t.Context(), target, false); err != nil {
		t.Error(err)
	}
	equal(t, memory.changes(), []string{"volume.os-initialize_connection " + id, "volume.os-attach " + id})
}
