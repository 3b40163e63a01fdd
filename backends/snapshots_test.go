package backends

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func snapshotStamp(n int) stamps.Snapshot {
	return stamps.Snapshot{Cluster: "cluster-1", Namespace: "team-a", Snapshot: fmt.Sprintf("nightly-%d", n), SnapshotUID: fmt.Sprintf("snapshot-uid-%d", n),
		Content: fmt.Sprintf("snapcontent-snapshot-uid-%d", n), Tenant: "team-a"}
}

// snapshotSpec returns snapshot n of claim 1's volume.
func snapshotSpec(n int, volumeID string) SnapshotSpec {
	stamp := snapshotStamp(n)
	return SnapshotSpec{Name: "snapshot-" + stamp.SnapshotUID, Stamp: stamp, Source: claimTarget(1, volumeID), Place: memoryPlace}
}

func snapshotTarget(n int, id string) SnapshotTarget {
	return SnapshotTarget{SnapshotID: id, Stamp: snapshotStamp(n), Place: memoryPlace}
}

// addSnapshot adds a snapshot with the stamp of snapshot n.
func (m *memoryCinder) addSnapshot(n int, volumeID string, status cinder.Status) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.putSnapshot(cinder.Snapshot{Name: "snapshot-" + snapshotStamp(n).SnapshotUID, VolumeID: volumeID, SizeGiB: 1, Metadata: snapshotStamp(n).Metadata(nil)})
	m.snapshots[s.ID].Status = status
	if status == cinder.StatusDeleting {
		m.snapshots[s.ID].end = ""
	}
	return s.ID
}

// mark marks a snapshot as recorded.
func (m *memoryCinder) mark(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snapshots[id].Metadata[stamps.KeyRecorded] = "true"
}

// stampedSnapshots lists the IDs of the snapshots with the stamp of snapshot n.
func (m *memoryCinder) stampedSnapshots(n int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []string
	for id, s := range m.snapshots {
		if snapshotStamp(n).Owns(s.Snapshot) {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

func TestTakeSnapshotFromWhatWasLeft(t *testing.T) {
	const create = "snapshot.create volume-1"
	tests := map[string]struct {
		left    []cinder.Status
		volume  cinder.Status
		ends    cinder.Status // status after the creation
		want    []string      // changes
		kept    []string
		kind    cinder.Kind
		wantErr string
	}{
		"nothing was left":            {want: []string{create}, kept: []string{"snapshot-2"}},
		"nothing, the volume in use":  {volume: cinder.StatusInUse, want: []string{create}, kept: []string{"snapshot-2"}},
		"one that is being created":   {left: []cinder.Status{cinder.StatusCreating}, kept: []string{"snapshot-2"}},
		"one that is available":       {left: []cinder.Status{cinder.StatusAvailable}, kept: []string{"snapshot-2"}},
		"one that is being deleted":   {left: []cinder.Status{cinder.StatusDeleting}, want: []string{create}, kept: []string{"snapshot-3"}},
		"two":                         {left: []cinder.Status{cinder.StatusAvailable, cinder.StatusAvailable}, want: []string{"snapshot.delete snapshot-3"}, kept: []string{"snapshot-2"}},
		"one in error":                {left: []cinder.Status{cinder.StatusError}, want: []string{"snapshot.delete snapshot-2"}, kind: KindVolumeFailed, wantErr: "backend gold: snapshot snapshot-2 went to error and was removed; see the log of cinder-volume"},
		"Cinder fails to create it":   {ends: cinder.StatusError, want: []string{create, "snapshot.delete snapshot-2"}, kind: KindVolumeFailed, wantErr: "backend gold: snapshot snapshot-2 went to error and was removed; see the log of cinder-volume"},
		"one whose deletion failed":   {left: []cinder.Status{cinder.StatusErrorDeleting}, kept: []string{"snapshot-2"}, kind: cinder.KindConflict, wantErr: "backend gold: snapshot snapshot-2 is error_deleting; waiting for that operation to finish"},
		"a volume in another service": {volume: "maintenance", want: []string{create}, kind: cinder.KindConflict, wantErr: "backend gold: snapshot.create: Invalid volume: Volume status must be available or in-use, but current status is: maintenance (HTTP 400)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			if test.volume == "" {
				test.volume = cinder.StatusAvailable
			}
			volume := memory.add(mine(1, test.volume))
			for _, status := range test.left {
				memory.addSnapshot(1, volume, status)
			}
			if test.ends != "" {
				memory.created = func(string) cinder.Status { return test.ends }
			}
			s, err := memory.term(t).Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, cinder.KindOf(err), test.kind)
			if err == nil {
				equal(t, s.ID, test.kept[0])
				equal(t, s.Status, cinder.StatusAvailable)
			}
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
			if left := memory.stampedSnapshots(1); !slices.Equal(left, test.kept) {
				t.Errorf("left %q, want %q", left, test.kept)
			}
		})
	}
}

// TestSnapshotOfAForeignVolumeIsNotTaken: what a PersistentVolume names must
// carry the stamp of its claim.
func TestSnapshotOfAForeignVolumeIsNotTaken(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(2, cinder.StatusInUse))
	_, err := memory.term(t).Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	equal(t, cinder.KindOf(err), KindNotOurs)
	if changes := memory.changes(); len(changes) > 0 {
		t.Errorf("changes %q", changes)
	}
}

// TestRecordedSnapshotIsKept: of two, the one that a VolumeSnapshotContent names
// stays, even if it goes to error.
func TestRecordedSnapshotIsKept(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	memory.addSnapshot(1, volume, cinder.StatusAvailable)
	recorded := memory.addSnapshot(1, volume, cinder.StatusError)
	memory.mark(recorded)
	_, err := memory.term(t).Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	equal(t, authtest.ErrorText(err), "backend gold: snapshot snapshot-3 went to error after it was recorded, so it is kept; an OpenStack administrator must repair it, or delete the VolumeSnapshot")
	if left := memory.stampedSnapshots(1); !slices.Equal(left, []string{recorded}) {
		t.Errorf("left %q", left)
	}
}

// TestRecordedDuplicateIsTheOneToKeep: of two snapshots, the younger was recorded.
func TestRecordedDuplicateIsTheOneToKeep(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	memory.addSnapshot(1, volume, cinder.StatusAvailable)
	recorded := memory.addSnapshot(1, volume, cinder.StatusAvailable)
	memory.mark(recorded)
	s, err := memory.term(t).Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	equal(t, s.ID, recorded)
	equal(t, fmt.Sprint(memory.stampedSnapshots(1)), fmt.Sprint([]string{recorded}))
}

// TestOfSeveralRecordedSnapshotsNoneIsRemoved: somebody has to choose, and then
// the next attempt continues.
func TestOfSeveralRecordedSnapshotsNoneIsRemoved(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	memory.addSnapshot(1, volume, cinder.StatusAvailable)
	first, second := memory.addSnapshot(1, volume, cinder.StatusAvailable), memory.addSnapshot(1, volume, cinder.StatusAvailable)
	memory.mark(first)
	memory.mark(second)
	l := memory.term(t)
	_, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	equal(t, cinder.KindOf(err), KindRecorded)
	equal(t, authtest.ErrorText(err), "backend gold: snapshots snapshot-3, snapshot-4 of one VolumeSnapshot were all recorded; keep one and delete the others by hand")
	equal(t, len(memory.changes()), 0)
	memory.mu.Lock()
	delete(memory.snapshots, first)
	memory.mu.Unlock()
	s, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	equal(t, s.ID, second)
	equal(t, fmt.Sprint(memory.stampedSnapshots(1)), fmt.Sprint([]string{second}))
}

// TestDuplicateMarkedAfterTheListingIsKept: an earlier leader's mark may arrive
// late. The attempt that sees it touches nothing, and the next one knows it.
func TestDuplicateMarkedAfterTheListingIsKept(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	memory.addSnapshot(1, volume, cinder.StatusAvailable)
	marked := memory.addSnapshot(1, volume, cinder.StatusAvailable)
	l := memory.term(t)
	_, err := l.Snapshots().Snapshots(t.Context())
	success(t, err)
	memory.mark(marked)
	_, err = l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	equal(t, cinder.KindOf(err), KindRecorded)
	equal(t, len(memory.changes()), 0)
	s, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	equal(t, s.ID, marked)
}

func TestRemoveSnapshotFromEveryState(t *testing.T) {
	const del = "snapshot.delete snapshot-2"
	tests := map[string]struct {
		status  cinder.Status
		number  int           // whose stamp it has; the target's is 1
		ends    cinder.Status // status after the deletion
		place   cinder.Place
		want    []string
		kept    bool
		kind    cinder.Kind
		wantErr string
	}{
		"available": {status: cinder.StatusAvailable, want: []string{del}},
		"creating":  {status: cinder.StatusCreating, want: []string{del}},
		"error":     {status: cinder.StatusError, want: []string{del}},
		"deleting":  {status: cinder.StatusDeleting},
		"error_deleting": {status: cinder.StatusErrorDeleting, kept: true, kind: KindVolumeFailed,
			wantErr: "backend gold: the storage backend failed to delete snapshot snapshot-2 (error_deleting); an OpenStack administrator must repair it and run: cinder snapshot-reset-state --state available snapshot-2"},
		"a backup reads it": {status: "backing-up", kept: true, kind: cinder.KindConflict,
			wantErr: "backend gold: snapshot snapshot-2 is backing-up; waiting for that operation to finish"},
		"volumes depend on it": {status: cinder.StatusAvailable, ends: cinder.StatusAvailable, want: []string{del}, kept: true, kind: KindInUse,
			wantErr: "backend gold: Cinder canceled the deletion of snapshot snapshot-2: volumes that were made from it depend on it"},
		"another's": {status: cinder.StatusAvailable, number: 2, kept: true, kind: KindNotOurs,
			wantErr: `backend gold: snapshot snapshot-2 is stamped cluster "cluster-1", VolumeSnapshotContent "snapcontent-snapshot-uid-2", VolumeSnapshot UID "snapshot-uid-2", expected cluster "cluster-1", VolumeSnapshotContent "snapcontent-snapshot-uid-1", VolumeSnapshot UID "snapshot-uid-1"; it is not touched`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			volume := memory.add(mine(1, cinder.StatusAvailable))
			memory.addSnapshot(max(test.number, 1), volume, test.status)
			memory.snapshotDeleted = test.ends
			err := memory.term(t).Snapshots().RemoveSnapshot(t.Context(), snapshotTarget(1, "snapshot-2"))
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, cinder.KindOf(err), test.kind)
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
			if kept := len(memory.snapshots) > 0; kept != test.kept {
				t.Errorf("kept %t, want %t", kept, test.kept)
			}
		})
	}
}

// TestAbsentSnapshotElsewhere: at another place, absence proves nothing.
func TestAbsentSnapshotElsewhere(t *testing.T) {
	memory := newMemoryCinder()
	memory.add(mine(1, cinder.StatusAvailable))
	l := memory.term(t)
	if _, err := l.Snapshots().Snapshots(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, authtest.ErrorText(l.Snapshots().RemoveSnapshot(t.Context(), snapshotTarget(1, "snapshot-9"))), "")
	target := snapshotTarget(1, "snapshot-9")
	target.Place.Project = "p2"
	equal(t, cinder.KindOf(l.Snapshots().RemoveSnapshot(t.Context(), target)), KindElsewhere)
}

// TestSnapshotIsTakenOnlyAtItsPlace: the content of a snapshot that was taken elsewhere
// would not lead to it. The backend may move between the two.
func TestSnapshotIsTakenOnlyAtItsPlace(t *testing.T) {
	for name, begin := range map[string]func(*Lifecycle) error{
		"a term that has begun": func(*Lifecycle) error { return nil },
		"later in a term": func(l *Lifecycle) error {
			_, err := l.Snapshots().Snapshots(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			spec := snapshotSpec(1, memory.add(mine(1, cinder.StatusInUse)))
			spec.Place.Project = "p2"
			l := memory.term(t)
			success(t, begin(l))
			_, err := l.Snapshots().TakeSnapshot(t.Context(), spec)
			equal(t, cinder.KindOf(err), KindElsewhere)
			equal(t, err.Error(), "backend gold: the snapshot was to be taken at "+spec.Place.String()+", but the backend points to "+memoryPlace.String())
			equal(t, len(memory.changes()), 0)
		})
	}
}

// TestSnapshotIsRemovedOnlyWithPermission: the permit comes before the change.
func TestSnapshotIsRemovedOnlyWithPermission(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	target := snapshotTarget(1, memory.addSnapshot(1, volume, cinder.StatusAvailable))
	refusal := errors.New("the content is retained")
	target.Permit = func(context.Context) error { return refusal }
	if err := memory.term(t).Snapshots().RemoveSnapshot(t.Context(), target); !errors.Is(err, refusal) {
		t.Errorf("the error is %v", err)
	}
	if changes := memory.changes(); len(changes) > 0 {
		t.Errorf("changes %q", changes)
	}
}

// TestSnapshotThatSomebodyElseDeletesIsWaitedFor: a gateway may repeat a request, and
// an earlier one may arrive late.
func TestSnapshotThatSomebodyElseDeletesIsWaitedFor(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	target := snapshotTarget(1, memory.addSnapshot(1, volume, cinder.StatusAvailable))
	target.Permit = func(ctx context.Context) error { return memory.client().DeleteSnapshot(ctx, target.SnapshotID) }
	success(t, memory.term(t).Snapshots().RemoveSnapshot(t.Context(), target))
	if left := len(memory.snapshots); left > 0 {
		t.Errorf("%d snapshots are left", left)
	}
}

// TestVolumeWithSnapshotsNamesThem: the error of a deletion that Cinder refuses
// says what to delete first.
func TestVolumeWithSnapshotsNamesThem(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	memory.addSnapshot(1, volume, cinder.StatusAvailable)
	memory.mu.Lock()
	memory.putSnapshot(cinder.Snapshot{Name: "by hand", VolumeID: volume})
	memory.mu.Unlock()
	err := memory.term(t).Remove(t.Context(), claimTarget(1, volume))
	equal(t, cinder.KindOf(err), KindInUse)
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 cannot be deleted until its snapshots (2) are deleted: by hand (snapshot-3), VolumeSnapshot team-a/nightly-1 (snapshot-2)")
}

// TestOneVolumeSnapshotOneSnapshot: from anything left behind, through faults,
// lost answers and changes of the leader, a VolumeSnapshot ends with exactly one
// snapshot; then with none. The source is never changed.
func TestOneVolumeSnapshotOneSnapshot(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.created = nil
		volume := w.add(mine(1, rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusInUse}).Draw(rt, "source")))
		for i, status := range rapid.SliceOfN(rapid.SampledFrom([]cinder.Status{cinder.StatusCreating, cinder.StatusAvailable, cinder.StatusError, cinder.StatusDeleting}), 0, 3).Draw(rt, "left from before") {
			id := w.addSnapshot(1, volume, status)
			if status == cinder.StatusCreating {
				w.snapshots[id].end = rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusError, ""}).Draw(rt, fmt.Sprintf("end of creation %d", i))
			}
		}
		other := w.addSnapshot(2, volume, cinder.StatusAvailable)
		before := w.present()[volume]
		var s cinder.Snapshot
		if err := w.until(rt, t, "take", func(l *Lifecycle) (err error) {
			s, err = l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			return err
		}); err != nil {
			rt.Fatalf("no snapshot in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.check(rt)
		if found := w.stampedSnapshots(1); !slices.Equal(found, []string{s.ID}) || s.Status != cinder.StatusAvailable {
			rt.Fatalf("left %q, want %s, which is %s\nlog: %s", found, s.ID, s.Status, strings.Join(w.log, "\n     "))
		}
		if err := w.until(rt, t, "remove", func(l *Lifecycle) error { return l.Snapshots().RemoveSnapshot(t.Context(), snapshotTarget(1, s.ID)) }); err != nil {
			rt.Fatalf("not removed in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.check(rt)
		if found := w.stampedSnapshots(1); len(found) > 0 {
			rt.Fatalf("left %q", found)
		}
		if found := w.stampedSnapshots(2); !slices.Equal(found, []string{other}) {
			rt.Fatalf("the other VolumeSnapshot has %q", found)
		}
		if now := w.present()[volume]; now.Status != before.Status {
			rt.Fatalf("the source is %s, was %s", now.Status, before.Status)
		}
	})
}

// TestVolumeWithOurSnapshotsOnly: whatever waits for such a volume can be
// notified when its last snapshot is gone.
func TestVolumeWithOurSnapshotsOnly(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	memory.addSnapshot(1, volume, cinder.StatusAvailable)
	equal(t, cinder.KindOf(memory.term(t).Remove(t.Context(), claimTarget(1, volume))), KindHasSnapshots)
}

func success(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMarkedSnapshotIsNeverTakenForALeftover(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	s, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	target := snapshotTarget(1, s.ID)
	target.Unrecorded = true
	success(t, l.Snapshots().MarkSnapshot(t.Context(), s))
	equal(t, cinder.KindOf(l.Snapshots().RemoveSnapshot(t.Context(), target)), KindRecorded)
	kept, err := l.Snapshots().AbandonSnapshots(t.Context(), target)
	success(t, err)
	equal(t, fmt.Sprint(kept), fmt.Sprint([]string{s.ID}))
	equal(t, fmt.Sprint(memory.stampedSnapshots(1)), fmt.Sprint([]string{s.ID}))
	// The next leader reads the mark, and does not write it again.
	next := memory.term(t)
	s, found, err := next.Snapshots().FindSnapshot(t.Context(), s.ID)
	success(t, err)
	equal(t, found && stamps.WasRecorded(s), true)
	changes := len(memory.changes())
	success(t, next.Snapshots().MarkSnapshot(t.Context(), s))
	equal(t, len(memory.changes()), changes)
	target.Unrecorded = false
	success(t, next.Snapshots().RemoveSnapshot(t.Context(), target))
	equal(t, len(memory.stampedSnapshots(1)), 0)
}

func TestAbandonSnapshotsRemovesAllOfAVolumeSnapshot(t *testing.T) {
	elsewhere := cinder.Place{Endpoint: "http://other:8776/v3", Project: "p"}
	for name, test := range map[string]struct {
		left    int
		inTerm  bool // one was made in this term, after the listing
		place   cinder.Place
		want    int
		wantErr cinder.Kind
	}{
		"none":                        {},
		"one":                         {left: 1},
		"two":                         {left: 2},
		"one of this term":            {inTerm: true},
		"one, but the backend moved":  {left: 1, place: elsewhere, want: 1, wantErr: KindElsewhere},
		"none, but the backend moved": {place: elsewhere, wantErr: KindElsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			volume := memory.add(mine(1, cinder.StatusInUse))
			memory.addSnapshot(2, volume, cinder.StatusAvailable)
			for range test.left {
				memory.addSnapshot(1, volume, cinder.StatusAvailable)
			}
			l := memory.term(t)
			if test.inTerm {
				_, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
				success(t, err)
			}
			target := snapshotTarget(1, "")
			if test.place.IsKnown() {
				target.Place = test.place
			}
			kept, err := l.Snapshots().AbandonSnapshots(t.Context(), target)
			equal(t, cinder.KindOf(err), test.wantErr)
			equal(t, len(kept), 0)
			equal(t, len(memory.stampedSnapshots(1)), test.want)
			equal(t, len(memory.stampedSnapshots(2)), 1)
		})
	}
}
