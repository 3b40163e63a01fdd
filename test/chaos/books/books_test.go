package books

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
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

func TestANodeRunsOnePodOfAVolume(t *testing.T) {
	b := NewPods()
	for _, v := range []machine.Volume{{PV: "pvc-2", Pod: "b-1"}, {PV: "pvc-1", Pod: "a-1"}, {PV: "pvc-1", Pod: "a-2"}} {
		b.Put("n1", v)
	}
	b.Remove("n2", "pvc-1")
	if got := b.On("n1"); len(got) != 2 || got[0].Pod != "a-2" || got[1].Pod != "b-1" || len(b.On("n2")) != 0 {
		t.Errorf("the pods are %+v", got)
	}
	b.Remove("n1", "pvc-1")
	if got := b.On("n1"); len(got) != 1 || got[0].PV != "pvc-2" {
		t.Errorf("the pods are %+v", got)
	}
}
