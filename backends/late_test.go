package backends

import (
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

func TestVolumeThatArrivesAfterTheListingIsFoundByTheNext(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	// A volume that an earlier leader requested arrives now.
	second := memory.add(mine(1, cinder.StatusAvailable))
	listed, err := l.Relist(t.Context())
	if err != nil || len(listed) != 2 {
		t.Fatalf("listed %d volumes, %v", len(listed), err)
	}
	if err := l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false); err != nil {
		t.Fatal(err)
	}
	equal(t, l.Duplicates(claimStamp(1).ClaimUID, connected.Volume.ID), []string{second})
}

func TestUnrecordedVolumeIsRemovedAndNoOther(t *testing.T) {
	marked := mine(1, cinder.StatusAvailable)
	marked.Metadata[stamps.KeyAttached] = "true"
	for name, c := range map[string]struct {
		volume  cinder.Volume
		kind    cinder.Kind
		removed bool
	}{
		"was in use once":            {marked, KindRecorded, false},
		"available":                  {mine(1, cinder.StatusAvailable), "", true},
		"attaching":                  {mine(1, cinder.StatusAttaching), "", true},
		"error":                      {mine(1, cinder.StatusError), "", true},
		"in use":                     {mine(1, cinder.StatusInUse), KindRecorded, false},
		"another claim's":            {mine(2, cinder.StatusAvailable), KindNotOurs, false},
		"of the same name, unmarked": {cinder.Volume{Name: claimStamp(1).PV, Status: cinder.StatusAvailable}, KindNotOurs, false},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			kept := memory.add(mine(1, cinder.StatusInUse))
			id := memory.add(c.volume)
			l := memory.term(t)
			err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
			if c.kind == "" && err != nil || c.kind != "" && !cinder.IsKind(err, c.kind) {
				t.Errorf("error %v, want kind %q", err, c.kind)
			}
			left := memory.present()
			if _, ok := left[id]; ok == c.removed {
				t.Errorf("removed: %t, want %t", !ok, c.removed)
			}
			if _, ok := left[kept]; !ok {
				t.Error("the claim's volume is gone")
			}
		})
	}
}

func TestLostAnswerToACreateIsRemembered(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	if !l.LastUncertain().IsZero() {
		t.Error("there is doubt before any request")
	}
	before := time.Now()
	memory.fault = func(operation, _ string) mishap {
		if operation == "volume.create" {
			return lost
		}
		return noFault
	}
	if _, err := l.Connect(t.Context(), claimSpec(1)); err == nil {
		t.Fatal("no error")
	}
	if doubt := l.LastUncertain(); doubt.Before(before) {
		t.Errorf("the doubt is from %s", doubt)
	}
	memory.fault = nil
	settled := l.LastUncertain()
	if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
		t.Fatal(err)
	}
	if l.LastUncertain() != settled {
		t.Error("an answered create left a doubt")
	}
}
