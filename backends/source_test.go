package backends

import (
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// TestVolumeWithTheContentOfAnother: the request names the source, and a volume
// that an earlier attempt requested without it is replaced, never handed out
// empty.
func TestVolumeWithTheContentOfAnother(t *testing.T) {
	memory := newMemoryCinder()
	source := memory.add(mine(2, cinder.StatusInUse))
	volume, snapshot := claimTarget(2, source), snapshotTarget(1, memory.addSnapshot(1, source, cinder.StatusAvailable))
	for name, from := range map[string]Source{"a volume": {Volume: &volume}, "a snapshot": {Snapshot: &snapshot}} {
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
			if copied.Volume.ID == empty.Volume.ID || !strings.HasSuffix(from.String(), " "+copied.Volume.SourceVolumeID+copied.Volume.SnapshotID) {
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

// TestForeignSourceIsNotCopied: what a PersistentVolume or a content names must
// carry the stamp that they record.
func TestForeignSourceIsNotCopied(t *testing.T) {
	memory := newMemoryCinder()
	stranger := memory.add(cinder.Volume{Name: "important", Status: cinder.StatusAvailable})
	volume, snapshot := claimTarget(2, stranger), snapshotTarget(1, memory.addSnapshot(2, stranger, cinder.StatusAvailable))
	for name, from := range map[string]Source{"a volume": {Volume: &volume}, "a snapshot": {Snapshot: &snapshot}} {
		t.Run(name, func(t *testing.T) {
			spec := claimSpec(1)
			spec.Source = from
			_, err := memory.term(t).Connect(t.Context(), spec)
			equal(t, cinder.KindOf(err), KindNotOurs)
			if found := memory.stamped(claimStamp(1)); len(found) > 0 {
				t.Errorf("left %+v", found)
			}
		})
	}
}

// TestSourceInAnotherZoneIsNotCopied: Cinder copies within one zone, and a volume
// in the source's zone would be of no use.
func TestSourceInAnotherZoneIsNotCopied(t *testing.T) {
	memory := newMemoryCinder()
	elsewhere := mine(2, cinder.StatusInUse)
	elsewhere.Zone = "az9"
	source := memory.add(elsewhere)
	volume, snapshot := claimTarget(2, source), snapshotTarget(1, memory.addSnapshot(1, source, cinder.StatusAvailable))
	for name, from := range map[string]Source{"a volume": {Volume: &volume}, "a snapshot": {Snapshot: &snapshot}} {
		t.Run(name, func(t *testing.T) {
			spec := claimSpec(1)
			spec.Source, spec.Zones = from, []string{"az1", "az2"}
			l := memory.term(t)
			_, err := l.Connect(t.Context(), spec)
			equal(t, authtest.ErrorText(err), `backend gold: the source volume `+source+` is in availability zone "az9", but the claim can use only az1, az2; Cinder copies within one zone`)
			if found := memory.stamped(claimStamp(1)); len(found) > 0 {
				t.Errorf("left %+v", found)
			}
			spec.Zones = append(spec.Zones, "az9")
			if _, err := l.Connect(t.Context(), spec); err != nil {
				t.Error(err)
			}
			if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}
