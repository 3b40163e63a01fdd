package backends

import (
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// TestVolumeWithTheContentOfAnother: the request names the source, and a volume
// that an earlier attempt requested without it is replaced, never handed out
// empty.
func TestVolumeWithTheContentOfAnother(t *testing.T) {
	memory := newMemoryCinder()
	source := memory.add(mine(2, cinder.StatusInUse))
	memory.mu.Lock()
	snapshot := memory.putSnapshot(cinder.Snapshot{VolumeID: source, SizeGiB: 1}).ID
	memory.mu.Unlock()
	for name, from := range map[string]Source{"a volume": {VolumeID: source}, "a snapshot": {SnapshotID: snapshot}} {
		t.Run(name, func(t *testing.T) {
			spec := claimSpec(1)
			l := memory.term(t)
			empty, err := l.Connect(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			spec.Source = from
			copied, err := l.Connect(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if copied.Volume.ID == empty.Volume.ID || copied.Volume.SourceVolumeID != from.VolumeID || copied.Volume.SnapshotID != from.SnapshotID {
				t.Errorf("the volume is %+v", copied.Volume)
			}
			again, err := memory.term(t).Connect(t.Context(), spec)
			if err != nil || again.Volume.ID != copied.Volume.ID {
				t.Errorf("a new leader has %+v, error %v", again.Volume, err)
			}
			if found := memory.stamped(claimStamp(1)); !slices.ContainsFunc(found, func(v cinder.Volume) bool { return v.ID == copied.Volume.ID }) || len(found) != 1 {
				t.Errorf("left %+v", found)
			}
			if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}
