package backends

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

func importedSnapshotStamp(n int) stamps.Snapshot {
	stamp := snapshotStamp(n)
	stamp.ClusterUID, stamp.Content = "cluster-1", "chosen-by-somebody"
	return stamp
}

func snapshotImport(n int, id string) SnapshotImport {
	return SnapshotImport{
		SnapshotID: id, Stamp: importedSnapshotStamp(n), Place: memoryPlace,
		Unclaimed: func(context.Context, cinder.Snapshot) error { return nil },
		Granted:   func(cinder.Snapshot) error { return nil },
	}
}

// TestImportSnapshotFromEveryState: what is free, or was kept, is stamped; all else
// stays exactly as it is.
func TestImportSnapshotFromEveryState(t *testing.T) {
	recorded := map[string]string{stamps.KeyRecorded: "true"}
	stamped := func(change func(*stamps.Snapshot), marked map[string]string) map[string]string {
		stamp := snapshotStamp(2)
		stamp.ClusterUID = "cluster-1"
		change(&stamp)
		metadata := stamp.Metadata(nil)
		maps.Copy(metadata, marked)
		return metadata
	}
	same := func(*stamps.Snapshot) {}
	for name, test := range map[string]struct {
		status   cinder.Status
		metadata map[string]string
		want     cinder.Kind // of the error; empty if it is imported
		wantErr  string
	}{
		"available":    {status: cinder.StatusAvailable},
		"its metadata": {status: cinder.StatusAvailable, metadata: map[string]string{"owner": "a"}},
		"kept":         {status: cinder.StatusAvailable, metadata: stamped(same, recorded)},
		"in error": {status: cinder.StatusError, want: cinder.KindConflict,
			wantErr: "backend gold: snapshot snapshot-2 is error, and only an available one can be imported"},
		"being created": {status: cinder.StatusCreating, want: cinder.KindConflict,
			wantErr: "backend gold: snapshot snapshot-2 is creating, and only an available one can be imported"},
		"never ready": {status: cinder.StatusAvailable, metadata: stamped(same, nil), want: KindNotOurs,
			wantErr: "backend gold: snapshot snapshot-2 was taken for VolumeSnapshot team-a/nightly-2 and was never ready; the program or its audit will remove it"},
		"of another cluster": {status: cinder.StatusAvailable, metadata: stamped(func(s *stamps.Snapshot) { s.Cluster = "other" }, recorded), want: KindNotOurs,
			wantErr: `backend gold: snapshot snapshot-2 carries the stamp of cluster "other", VolumeSnapshot team-a/nightly-2; if that cluster no longer needs it, remove the stamp: openstack volume snapshot unset --property standalone-cinder.openstack.org/cluster snapshot-2`},
		"of another with the clusterID": {status: cinder.StatusAvailable, metadata: stamped(func(s *stamps.Snapshot) { s.ClusterUID = "other" }, recorded), want: KindNotOurs},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.looks = 100 // nothing ends while the test looks
			memory.mu.Lock()
			memory.ids = 1
			made := memory.putSnapshot(cinder.Snapshot{Name: "old", VolumeID: "volume-9", SizeGiB: 1, Metadata: test.metadata})
			memory.snapshots[made.ID].Status = test.status
			memory.mu.Unlock()
			l := memory.term(t)
			s, err := l.Snapshots().ImportSnapshot(t.Context(), snapshotImport(1, made.ID))
			equal(t, cinder.KindOf(err), test.want)
			if test.want != "" {
				if test.wantErr != "" {
					equal(t, err.Error(), test.wantErr)
				}
				equal(t, maps.Equal(memory.snapshots[made.ID].Metadata, test.metadata), true)
				return
			}
			success(t, err)
			equal(t, importedSnapshotStamp(1).Owns(s) && stamps.WasRecorded(s), true)
			equal(t, stamps.OfSnapshot(s), importedSnapshotStamp(1))
			for key, value := range test.metadata {
				if key == "owner" {
					equal(t, s.Metadata[key], value)
				}
			}
			// Repeating the import changes nothing.
			changes := len(memory.changes())
			_, err = memory.term(t).Snapshots().ImportSnapshot(t.Context(), snapshotImport(1, made.ID))
			success(t, err)
			equal(t, len(memory.changes()), changes)
			// The stamp allows its removal.
			success(t, l.Snapshots().RemoveSnapshot(t.Context(), SnapshotTarget{SnapshotID: made.ID, Stamp: importedSnapshotStamp(1), Place: memoryPlace}))
			equal(t, len(memory.snapshots), 0)
		})
	}
}

// TestImportSnapshotIsRefused: the caller's error is returned unchanged, before
// anything is written.
func TestImportSnapshotIsRefused(t *testing.T) {
	refusal := errors.New("no")
	for name, change := range map[string]func(*SnapshotImport){
		"it is not granted":      func(i *SnapshotImport) { i.Granted = func(cinder.Snapshot) error { return refusal } },
		"something needs it":     func(i *SnapshotImport) { i.Unclaimed = func(context.Context, cinder.Snapshot) error { return refusal } },
		"it is no longer wanted": func(i *SnapshotImport) { i.Permit = func(context.Context) error { return refusal } },
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.addSnapshot(2, "volume-9", cinder.StatusAvailable)
			memory.mark(id)
			memory.snapshots[id].Metadata[stamps.KeyClusterUID] = "cluster-1"
			spec := snapshotImport(1, id)
			change(&spec)
			_, err := memory.term(t).Snapshots().ImportSnapshot(t.Context(), spec)
			equal(t, errors.Is(err, refusal), true)
			equal(t, len(memory.changes()), 0)
		})
	}
}

// TestImportedSnapshotOfAnother: a snapshot that is renamed, or stamped by another
// cluster, at the moment of the import is not handed out.
func TestImportedSnapshotOfAnother(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.addSnapshot(2, "volume-9", cinder.StatusAvailable)
	memory.snapshots[id].Metadata = nil
	spec := snapshotImport(1, id)
	looks := 0
	refusal := errors.New("renamed")
	spec.Granted = func(cinder.Snapshot) error {
		if looks++; looks > 1 {
			return refusal
		}
		return nil
	}
	_, err := memory.term(t).Snapshots().ImportSnapshot(t.Context(), spec)
	equal(t, errors.Is(err, refusal), true)

	memory.snapshots[id].Metadata = nil
	other := importedSnapshotStamp(2).Metadata(nil)
	other[stamps.KeyCluster] = "other"
	gets := 0
	memory.onCall(func(operation string) {
		if operation == "snapshot.get" {
			if gets++; gets == 2 {
				memory.snapshots[id].Metadata = other
			}
		}
	})
	_, err = memory.term(t).Snapshots().ImportSnapshot(t.Context(), snapshotImport(1, id))
	equal(t, cinder.KindOf(err), KindNotOurs)
	equal(t, err.Error(), `backend gold: snapshot snapshot-1 was stamped by another import at the same time: cluster "other", VolumeSnapshotContent "chosen-by-somebody", VolumeSnapshot UID "snapshot-uid-2"; it is not imported`)
}

func TestAllSnapshotsHaveAllTheirMetadata(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.addSnapshot(2, "volume-9", cinder.StatusAvailable)
	memory.snapshots[id].Metadata = map[string]string{"owner": "a"}
	all, err := memory.term(t).Snapshots().AllSnapshots(t.Context())
	success(t, err)
	equal(t, len(all), 1)
	equal(t, all[0].Metadata["owner"], "a")
}

// TestSnapshotIsImportedOnlyAtItsPlace: the content of a snapshot that was stamped
// elsewhere would not lead to it.
func TestSnapshotIsImportedOnlyAtItsPlace(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.addSnapshot(1, memory.add(mine(1, cinder.StatusInUse)), cinder.StatusAvailable)
	spec := snapshotImport(1, id)
	spec.Place.Project = "p2"
	_, err := memory.term(t).Snapshots().ImportSnapshot(t.Context(), spec)
	equal(t, cinder.KindOf(err), KindElsewhere)
	equal(t, err.Error(), "backend gold: snapshot "+id+" was to be imported at "+spec.Place.String()+", but the backend points to "+memoryPlace.String())
	equal(t, len(memory.changes()), 0)
}

// TestImportedSnapshotHasTheModeOfItsContent: the CSI driver's sidecar deletes only
// snapshots in mode csi, and contents of either driver may name a snapshot in turn.
func TestImportedSnapshotHasTheModeOfItsContent(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.addSnapshot(2, "volume-9", cinder.StatusAvailable)
	memory.snapshots[id].Metadata = nil
	l := memory.term(t)
	for _, csi := range []bool{true, true, false, false, true} {
		spec := snapshotImport(1, id)
		spec.CSI = csi
		s, err := l.Snapshots().ImportSnapshot(t.Context(), spec)
		success(t, err)
		equal(t, stamps.IsCSISnapshot(s), csi)
	}
	equal(t, len(memory.changes()), 3)
}
