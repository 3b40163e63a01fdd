package books

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
)

func TestClaimsArePickedAmongTheNewest(t *testing.T) {
	b := NewClaims()
	if got := b.Pick(5); got != "" {
		t.Errorf("picked %q of nothing", got)
	}
	for _, uid := range []types.UID{"u1", "u2", "u3"} {
		b.NoteMade(uid)
	}
	if got := b.Pick(4); got != "u2" {
		t.Errorf("picked %q", got)
	}
	b.RecordDeletionRequest("u2")
	b.RecordDeletionRequest("u2")
	if made, asked := b.Totals(); made != 3 || asked != 1 || !b.DeletionRequested("u2") || b.DeletionRequested("u1") {
		t.Errorf("%d made, %d asked", made, asked)
	}
}

func TestAPersistentVolumeHasOneFate(t *testing.T) {
	b := NewFates()
	if !b.Choose("pvc-1") || b.Choose("pvc-1") || !b.Choose("pvc-2") {
		t.Error("a PersistentVolume is not chosen once")
	}
	pv := checker.PV{Name: "pvc-1", VolumeID: "v1"}
	for _, c := range []struct {
		name string
		note func(checker.PV)
		must bool
	}{
		{"removed", b.NoteRemoved, false}, {"kept", b.NoteKept, true}, {"freed", b.NoteFreed, false}, {"kept again", b.NoteKept, true},
	} {
		c.note(pv)
		fate := b.All()["pvc-1"]
		if fate.MustStay() != c.must || fate.PV != pv || !fate.Removed {
			t.Errorf("%s: %+v", c.name, fate)
		}
	}
}
