package backends

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// TestCopiesAreOpenedWithTheKeyOfTheirSource: the content of a copy is encrypted as that of
// its source, so it needs the same record, from the create request on. A record that
// cannot be read is no reason to lose it.
func TestCopiesAreOpenedWithTheKeyOfTheirSource(t *testing.T) {
	for name, record := range map[string]string{"encrypted": "1 keys/2026-11 BwcH", "with a damaged record": "2 ?", "not encrypted": ""} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			l := memory.term(t)
			made := marked(csiVolume(2, cinder.StatusAvailable))
			if record != "" {
				made.Metadata[stamps.KeyEncryption] = record
			}
			volume := csiTarget(2, memory.add(made))
			wanted := snapshotSpec(1, volume.VolumeID)
			wanted.Source, wanted.CSI = volume, true
			s, err := l.Snapshots().TakeSnapshot(t.Context(), wanted)
			success(t, err)
			equal(t, s.Metadata[stamps.KeyEncryption], record)
			snapshot := SnapshotTarget{SnapshotID: s.ID, Stamp: wanted.Stamp, Place: memoryPlace}
			// The snapshot keeps its record after the volume is gone, or loses it.
			delete(memory.volumes[volume.VolumeID].Metadata, stamps.KeyEncryption)
			restoring := csiSpec(1)
			restoring.Source = Source{Snapshot: &snapshot}
			restored, err := l.Connect(t.Context(), restoring)
			success(t, err)
			equal(t, restored.Volume.Metadata[stamps.KeyEncryption], record)

			from := csiTarget(1, restored.Volume.ID)
			cloning := csiSpec(3)
			cloning.Source = Source{Volume: &from}
			cloned, err := l.Connect(t.Context(), cloning)
			success(t, err)
			equal(t, cloned.Volume.Metadata[stamps.KeyEncryption], record)

			// The volume that an earlier attempt made keeps its own record.
			memory.volumes[from.VolumeID].Metadata[stamps.KeyEncryption] = "1 keys/2026-12 BwcH"
			again, err := memory.term(t).Connect(t.Context(), cloning)
			success(t, err)
			equal(t, again.Volume.ID, cloned.Volume.ID)
			equal(t, again.Volume.Metadata[stamps.KeyEncryption], record)

			native := claimSpec(4)
			native.Source = cloning.Source
			changes := len(memory.changes())
			_, err = l.Connect(t.Context(), native)
			equal(t, cinder.KindOf(err), cinder.KindInvalid)
			equal(t, len(memory.changes()), changes)
		})
	}
}
